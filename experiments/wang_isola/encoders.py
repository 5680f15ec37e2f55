"""The encoders that rows of Wang & Isola's tables specify.

    config_of(table_row("wang-isola/table8", 57))    # the config of that encoder

Appendix B.1: SGD with momentum 0.9 and weight decay 0.0001, STL-10 for 200 epochs with the rate
divided by 10 at epochs 155, 170 and 185, everything else from the row. A row's learning rate is the
initial rate, whatever the batch. Shorter runs (finetuning, 12 epochs) have no decay. NYU-Depth-V2
(B.1), ImageNet-100 (B.2.1), ImageNet (B.2.2) and BookCorpus (B.3) start from the configs of
`python run.py pretrain`.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from experiments import moco_imagenet100, moco_v2_imagenet, nyu_depth, quick_thought
from experiments.lib.evaluation import Evaluation
from experiments.lib.sweep import Run
from experiments.lib.tables import TableRow, printed_scores, table_row, table_rows
from hypersphere_jax.configs import ModelConfig, ObjectiveConfig, PretrainConfig, UserError, require

LOSS_OPTIONS = (
    "contrastive_weight",
    "contrastive_tau",
    "align_weight",
    "align_alpha",
    "uniform_weight",
    "uniform_t",
    "uniform_intra_batch",
)
TRAINING_OPTIONS = ("init", "epochs", "batch_size", "queue_size", "initial_lr", "dim")
SETTINGS = (*LOSS_OPTIONS, *TRAINING_OPTIONS, "l2_normalized")

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
# Shared options of a table's rows.
BASES = {
    "wang-isola/table5": moco_v2_imagenet.CONFIGS["contrastive"],
    "wang-isola/table8": STL10,
    "wang-isola/table9": nyu_depth.CONFIGS["contrastive"],
    "wang-isola/table10": moco_imagenet100.CONFIGS["contrastive"],
    "wang-isola/table11": quick_thought.CONFIGS["contrastive"],
}
# Tables of the best encoders, and the table that has all their settings.
DETAILS = {
    "wang-isola/table1": "wang-isola/table8",
    "wang-isola/table2": "wang-isola/table9",
    "wang-isola/table3": "wang-isola/table10",
}
WITHDRAWN = "wang-isola/table8-withdrawn"

# The paper's evaluations.
EVALUATE_STL10 = Evaluation(layers=("output", "fc7"))
EVALUATE_NYU = Evaluation(layers=("conv5", "conv4"), depth=True)
EVALUATE_IMAGENET100 = Evaluation(layers=("backbone",), protocol="moco_imagenet100", folds=3)
EVALUATE_IMAGENET = Evaluation(layers=("backbone",), protocol="moco", folds=None)
EVALUATE_BOOKS = Evaluation(protocol="quick_thought", tasks=("mr", "cr"))
EVALUATE_CIFAR10 = Evaluation(folds=None)
# Rows of the tables of best encoders, and the kinds of loss among which each is selected.
SELECTIONS: Mapping[str, tuple[str, ...] | None] = {
    "best contrastive only": ("contrastive",),
    "best align and uniform only": ("align+uniform",),
    "best among all encoders": None,
}


def detailed(row: TableRow) -> TableRow:
    """Return the row of Tables 8 to 10 with the losses and results of a row of Tables 1 to 3."""
    if row.table not in DETAILS:
        return row
    known = printed_scores(row)
    known |= {name: row.values[name] for name in LOSS_OPTIONS if name in row.values}
    candidates = table_rows(DETAILS[row.table])
    (found,) = [other for other in candidates if known.items() <= other.values.items()]
    return found


def initial_row(row: TableRow) -> TableRow | None:
    """Return the row of the encoder that this row starts from, or None.

    Raises:
      UserError: when the printed mark does not identify a row.
    """
    row = detailed(row)
    mark = row.values.get("init", "rand")
    if mark == "rand":
        return None
    marked = [other for other in table_rows(row.table) if other.values["init_mark"] == mark]
    message = f"{row.table}, row {row.number}: starts from an encoder marked {mark!r}; no row "
    require(mark is not None and len(marked) == 1, message + "has that mark for certain")
    return marked[0]


def refusal(row: TableRow) -> str | None:
    """Return why a row does not specify a config, or None."""
    row = detailed(row)
    where = f"{row.table}, row {row.number}"
    if row.table == WITHDRAWN:
        return f"{where}: withdrawn by the authors, because unprinted losses took part"
    if row.table not in BASES:
        return f"{where}: no config; tables with configs are {', '.join((*DETAILS, *BASES))}"
    note = f" ({row.values['note']})" if row.values.get("note") else ""
    for columns, reason in ((row.lost, "lost"), (row.suspect, "doubtful")):
        settings = [name for name in columns if name in SETTINGS]
        if settings:
            return f"{where}: {reason} in the paper's text: {', '.join(settings)}{note}"
    try:
        initial_row(row)
    except UserError as error:
        return str(error)
    return None


def config_of(row: TableRow, scale: str = "paper") -> PretrainConfig:
    """Return the config of a row's encoder.

    Rows with equal settings get the seeds 0, 1, … in the order of the table.

    Args:
      row: a row of Tables 1 to 3, 5, or 8 to 11.
      scale: a name in `SCALES`; `laptop` is for STL-10 and BookCorpus, `cifar10` and `gpu` for
        STL-10.

    Raises:
      UserError: for a `refusal`.
    """
    return _cached_config(row.table, row.number, scale)


@functools.cache
def _cached_config(table: str, number: int, scale: str) -> PretrainConfig:
    row = table_row(table, number)
    reason = refusal(row)
    require(reason is None, str(reason))
    row = detailed(row)
    start = initial_row(row)
    base = BASES[row.table]
    values = row.values
    epochs = values["epochs"]
    decay_epochs = [share * base.epochs for share in base.decay_at]
    changes: dict[str, Any] = {
        "name": _run_name(row),
        "seed": _repeats(row),
        "init_from": None if start is None else _run_name(start),
        "dim": values["dim"],
        "unit_norm": values.get("l2_normalized", True),
        "queue_size": values.get("queue_size", 0),
        "epochs": epochs,
        "batch_size": values["batch_size"],
        "learning_rate": values["initial_lr"],
        "scaling": "none",
        "decay_at": tuple(epoch / epochs for epoch in decay_epochs if epoch < epochs),
    }
    losses = {name: values[name] for name in LOSS_OPTIONS if values.get(name) is not None}
    changes |= vars(ObjectiveConfig(**losses))
    return SCALES[scale](base.replace(**changes))


def run_of(row: TableRow, scale: str, evaluation: Evaluation, seed: int | None = None) -> Run:
    """Return the run of a row, with the printed results as `paper_…` columns.

    Args:
      row: a row of a table.
      scale: a name in `SCALES`.
      evaluation: measurements of the encoder.
      seed: another seed than the row's.
    """
    config = config_of(row, scale)
    if seed is not None:
        config = config.replace(name=f"{config.name}_seed{seed}", seed=seed)
    row = detailed(row)
    labels: dict[str, Any] = {"table": row.table, "row": row.number}
    labels |= {f"paper_{name}": value for name, value in printed_scores(row).items()}
    if row.values.get("nan_occurred"):
        labels["paper_diverged"] = True
    return Run(config, labels, evaluation)


def table_runs(table: str, scale: str, evaluation: Evaluation) -> list[Run]:
    """Return the runs of all rows that specify a config, and of the encoders they start from."""
    runs = {}
    for row in table_rows(table):
        if refusal(row) is None:
            start = initial_row(row)
            for each in (start, row):
                if each is not None:
                    run = run_of(each, scale, evaluation)
                    runs.setdefault(run.config.name, run)
    starts = {run.config.init_from for run in runs.values()}
    return sorted(runs.values(), key=lambda run: run.config.name not in starts)


def random_rows(table: str) -> list[TableRow]:
    """Return the rows with certain settings that start from random initialization."""
    return [
        row for row in table_rows(table) if refusal(row) is None and row.values["init"] == "rand"
    ]


def _run_name(row: TableRow) -> str:
    return f"{row.table.replace('-', '_').replace('/', '_')}_row{row.number}"


def _repeats(row: TableRow) -> int:
    """Return how many earlier rows have the same settings."""
    settings = [row.values.get(name) for name in SETTINGS]
    earlier = table_rows(row.table)[: row.number - 1]
    return sum([other.values.get(name) for name in SETTINGS] == settings for other in earlier)


def _laptop(config: PretrainConfig) -> PretrainConfig:
    """Return the run on digits, with an eighth of the epochs and a quarter of the batch."""
    if config.data == "books":
        return _laptop_books(config)
    changes = {"data": "digits", "recipe": None, **vars(ModelConfig("small_cnn", dim=config.dim))}
    return _smaller(config, "laptop", epochs=8, batch=4, **changes)


def _laptop_books(config: PretrainConfig) -> PretrainConfig:
    """Return the run on eight novels with a twelfth of the dimensions.

    One epoch has 300 steps instead of the paper's 132,000. The rate is four times the paper's, and
    `init="chrono"` starts with a long memory, which 300 steps are too few to learn.
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
    """Return the run of a narrow encoder at 16 pixels, with 1/100 of the epochs."""
    return _smaller(config, "cifar10", epochs=100, batch=6, **cifar10(width=0.125, image_size=16))


def _gpu(config: PretrainConfig) -> PretrainConfig:
    """Return the run on CIFAR-10 with the paper's network and batch, and 1/20 of the epochs."""
    changes = cifar10(width=1.0, image_size=32)
    return _smaller(config, "gpu", epochs=20, batch=1, dtype="bfloat16", **changes)


def cifar10(width: float, image_size: int) -> dict[str, Any]:
    """Return the changes of a config from STL-10 to CIFAR-10."""
    size = {"width": width, "image_size": image_size}
    return {"data": "cifar10", "recipe": None, **size}


def _smaller(
    config: PretrainConfig, scale: str, *, epochs: int, batch: int, **changes: Any
) -> PretrainConfig:
    """Divide epochs and batch (2 pairs at least); the rate shrinks with the batch."""
    batch_size = max(2, config.batch_size // batch)
    values: dict[str, Any] = {
        "name": f"{config.name}_{scale}",
        "init_from": config.init_from and f"{config.init_from}_{scale}",
        "epochs": max(1, config.epochs // epochs),
        "batch_size": batch_size,
        "learning_rate": config.learning_rate * batch_size / config.batch_size,
        "devices": 1,
        "log_every_steps": 50,
    }
    return config.replace(**{**changes, **values})


SCALES: dict[str, Callable[[PretrainConfig], PretrainConfig]] = {
    "paper": PretrainConfig.replace,
    "laptop": _laptop,
    "cifar10": _cifar10,
    "gpu": _gpu,
}
