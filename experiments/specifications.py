"""The encoder that a row of a paper's table specifies.

    config_of(row_of("wang-isola/table8", 57))    # trains that very encoder

Wang & Isola B.1: SGD with momentum 0.9 and weight decay 0.0001, STL-10 for 200 epochs with the rate
times 0.1 at epochs 155, 170 and 185, all else from the row. Its learning rate is the one that the
run begins with, whatever the batch. Where a run is shorter (finetuning, 12 epochs), decays that lie
behind its end are left out. NYU-Depth-V2 (B.1), ImageNet-100 (B.2.1), ImageNet (B.2.2) and
BookCorpus (B.3) are in nyu_depth.py, moco_imagenet100.py, moco_v2_imagenet.py, quick_thought.py.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from experiments import moco_imagenet100, moco_v2_imagenet, nyu_depth, quick_thought
from experiments.tables import Row, Value, expected, rows
from hypersphere_jax.configs import (
    DataConfig,
    ModelConfig,
    ObjectiveConfig,
    PretrainConfig,
    UserError,
    require,
)
from hypersphere_jax.training import objectives

LOSSES = (
    "contrastive_weight",
    "contrastive_tau",
    "align_weight",
    "align_alpha",
    "uniform_weight",
    "uniform_t",
    "uniform_intra_batch",
)
SETTINGS = (
    *LOSSES,
    *("init", "epochs", "batch_size", "queue_size", "initial_lr", "dim", "l2_normalized"),
)

STL10 = PretrainConfig(
    name="stl10",
    data="stl10",
    recipe="stl10",
    model="small_alexnet",
    dim=128,
    image_size=64,
    init="authors",
    epochs=200,
    batch_size=768,
    learning_rate=0.36,
    scaling="none",
    decay_at=(155 / 200, 170 / 200, 185 / 200),
    momentum=0.9,
    weight_decay=1e-4,
    log_every_steps=100,
)

# The tables of which encoders can be trained, and what their rows do not say.
BASES = {
    "wang-isola/table5": moco_v2_imagenet.CONFIGS["contrastive"],
    "wang-isola/table8": STL10,
    "wang-isola/table9": nyu_depth.CONFIGS["contrastive"],
    "wang-isola/table10": moco_imagenet100.CONFIGS["contrastive"],
    "wang-isola/table11": quick_thought.CONFIGS["contrastive"],
}
# The best encoders' tables, and those that have their settings.
DETAILS = {
    "wang-isola/table1": "wang-isola/table8",
    "wang-isola/table2": "wang-isola/table9",
    "wang-isola/table3": "wang-isola/table10",
}
WITHDRAWN = "wang-isola/table8-withdrawn"


def specified(row: Row) -> Row:
    """Of a row of Tables 1 to 3, that of Tables 8 to 10 with the same losses and results."""
    if row.table not in DETAILS:
        return row
    printed = expected(row) | {name: row.values[name] for name in LOSSES if name in row.values}
    (full,) = (
        other
        for other in rows(DETAILS[row.table])
        if all(other.values[name] == value for name, value in printed.items())
    )
    return full


def initial(row: Row) -> Row | None:
    """The row of the encoder that this one begins from; None for random initialization.

    Raises:
      UserError: when it cannot be known which one that is.
    """
    row = specified(row)
    mark = row.values.get("init", "rand")
    if mark == "rand":
        return None
    marked = [other for other in rows(row.table) if other.values["init_mark"] == mark]
    require(
        mark is not None and len(marked) == 1,
        f"{row.table}, row {row.number}: it begins from an encoder marked {mark!r}, and no row has "
        "that mark for certain",
    )
    return marked[0]


def refusal(row: Row) -> str | None:
    """Why a row gives no config, or None; see `config_of`."""
    row = specified(row)
    where = f"{row.table}, row {row.number}"
    if row.table == WITHDRAWN:
        return f"{where}: withdrawn by the authors, as other losses took part that are not printed"
    if row.table not in BASES:
        return f"{where}: no config; the tables that have some are {', '.join((*DETAILS, *BASES))}"
    note = f" ({row.values['note']})" if row.values.get("note") else ""
    for cells, what in ((row.lost, "lost"), (row.suspect, "doubtful")):
        settings = [name for name in cells if name in SETTINGS]
        if settings:
            return f"{where}: {what} in the paper's text: {', '.join(settings)}{note}"
    try:
        initial(row)
    except UserError as error:
        return str(error)
    return None


def config_of(row: Row, scale: str = "paper", *, runs_dir: str = "runs") -> PretrainConfig:
    """The config that trains the encoder of a row.

    Rows that are alike in all settings differ by their seed: 0, 1, … in the order of the table. A
    row of Tables 1 to 3 gives the config of its encoder in Tables 8 to 10.

    Args:
      row: of `rows`.
      scale: of `SCALES`; `laptop` and `cifar10` are of rows of STL-10, `laptop` of BookCorpus.
      runs_dir: folder of all runs, where also the encoder is that a finetuned one begins from.

    Raises:
      UserError: for a `refusal`.
    """
    reason = refusal(row)
    require(reason is None, str(reason))
    row, start = specified(row), initial(row)
    base, values = BASES[row.table], row.values
    losses = {name: values[name] for name in LOSSES if values.get(name) is not None}
    objective = ObjectiveConfig(**losses)
    config = dataclasses.replace(
        base,
        name=_run_name(row),
        runs_dir=runs_dir,
        seed=_repeats(row),
        init_from=start and f"{runs_dir}/{_run_name(start)}",
        dim=values["dim"],
        unit_norm=values.get("l2_normalized", True),
        **vars(objective),
        queue_size=values.get("queue_size", 0),
        **_optimizer(base, values),
    )
    return SCALES[scale](config)


def formula(objective: ObjectiveConfig) -> str:
    """The loss as a table prints it: `0.98 align (alpha 2) + 0.96 uniform (t 2)`.

    Another one than the weighted sum has its settings: `balanced_contrastive (alpha 4, lam 2)`.
    """
    if objective.loss == "weighted":
        terms = [
            (objective.contrastive_weight, f"contrastive (tau {objective.contrastive_tau:g})"),
            (objective.align_weight, f"align (alpha {objective.align_alpha:g})"),
            (objective.uniform_weight, f"uniform (t {objective.uniform_t:g})"),
        ]
    else:
        settings = objectives.settings(objective).items()
        listed = [f"{k} {v}" if isinstance(v, str) else f"{k} {v:g}" for k, v in settings]
        terms = [(objective.loss_factor, f"{objective.loss} ({', '.join(listed)})")]
    terms.append((objective.supervised_weight, "supervised"))
    return " + ".join(term if w == 1 else f"{w:g} {term}" for w, term in terms if w)


def _run_name(row: Row) -> str:
    return f"{row.table.replace('-', '_').replace('/', '_')}_row{row.number}"


def _repeats(row: Row) -> int:
    """How many rows above this one have the same settings."""
    mine, *above = (
        [other.values.get(name) for name in SETTINGS]
        for other in (row, *rows(row.table)[: row.number - 1])
    )
    return above.count(mine)


def _optimizer(base: PretrainConfig, values: Mapping[str, Value]) -> dict[str, Any]:
    epochs = values["epochs"]
    decay_epochs = [share * base.epochs for share in base.decay_at]
    return {
        "epochs": epochs,
        "batch_size": values["batch_size"],
        "learning_rate": values["initial_lr"],
        "scaling": "none",
        "decay_at": tuple(epoch / epochs for epoch in decay_epochs if epoch < epochs),
    }


def _laptop(config: PretrainConfig) -> PretrainConfig:
    """Of digits, an eighth of the epochs and a quarter of the batch."""
    if config.data == "books":
        return _laptop_text(config)
    model = ModelConfig("small_cnn", dim=config.dim)
    return _smaller(config, "laptop", DataConfig("digits"), model, epochs=8, batch=4)


def _laptop_text(config: PretrainConfig) -> PretrainConfig:
    """A twelfth of the dimensions, a sixth of the word embeddings', one epoch of a small corpus.

    That is 300 steps where the paper has 132,000, so that the rate is four times the paper's, and
    the encoders begin with a long memory: in so few steps Quick-Thought's do not learn one.
    """
    return config.replace(
        name=f"{config.name}_laptop",
        dim=config.dim // 12,
        embedding=100,
        init="chrono",
        learning_rate=4 * config.learning_rate,
        devices=1,
        log_every_steps=50,
    )


def _cifar10(config: PretrainConfig) -> PretrainConfig:
    """Narrow, at 16 pixels, a hundredth of the epochs and a sixth of the batch."""
    size = {"width": 0.125, "image_size": 16}
    model = ModelConfig("small_alexnet", dim=config.dim, init="authors", **size)
    return _smaller(config, "cifar10", DataConfig("cifar10"), model, epochs=100, batch=6)


def _smaller(
    config: PretrainConfig,
    scale: str,
    data: DataConfig,
    model: ModelConfig,
    epochs: int,
    batch: int,
) -> PretrainConfig:
    """The run on other data, epochs and batch (2 pairs at least) divided; the rate as the batch."""
    batch_size = max(2, config.batch_size // batch)
    return config.replace(
        name=f"{config.name}_{scale}",
        init_from=config.init_from and f"{config.init_from}_{scale}",
        **vars(data),
        **vars(model),
        epochs=max(1, config.epochs // epochs),
        batch_size=batch_size,
        learning_rate=config.learning_rate * batch_size / config.batch_size,
        # One device, over which any batch divides.
        devices=1,
        log_every_steps=50,
    )


SCALES = {"paper": lambda config: config, "laptop": _laptop, "cifar10": _cifar10}
