"""The encoders that rows of Wang & Isola's tables specify.

    config_of(table_row("wang-isola/table8", 57))    # the config of that encoder

Appendix B.1: SGD with momentum 0.9 and weight decay 0.0001, STL-10 for 200 epochs with the rate
divided by 10 at epochs 155, 170 and 185, everything else from the row. A row's learning rate is the
initial rate, whatever the batch. Shorter runs (finetuning, 12 epochs) have no decay. NYU-Depth-V2
(B.1), ImageNet-100 (B.2.1), ImageNet (B.2.2) and BookCorpus (B.3) start from the configs of
`python run.py pretrain`.
"""

from typing import Any

from experiments import PRETRAIN
from experiments.lib import Evaluation, Rows, Run, records, tables
from experiments.lib.tables import TableRow
from hypersphere_jax.configs import ObjectiveConfig, PretrainConfig, require

LOSS_OPTIONS = tuple(vars(ObjectiveConfig()))
TRAINING_OPTIONS = ("init", "epochs", "batch_size", "queue_size", "initial_lr", "dim")
SETTINGS = (*LOSS_OPTIONS, *TRAINING_OPTIONS, "l2_normalized")

STL10 = PRETRAIN["nyu_depth/contrastive"].replace(
    name="stl10",
    data="stl10",
    recipe="stl10",
    **vars(ObjectiveConfig()),
    epochs=200,
    batch_size=768,
    learning_rate=0.36,
    scaling="none",
    decay_at=(155 / 200, 170 / 200, 185 / 200),
    log_every_steps=100,
)
# Shared options of a table's rows.
BASES = {
    "wang-isola/table5": PRETRAIN["moco_v2_imagenet/contrastive"],
    "wang-isola/table8": STL10,
    "wang-isola/table9": PRETRAIN["nyu_depth/contrastive"],
    "wang-isola/table10": PRETRAIN["moco_imagenet100/contrastive"],
    "wang-isola/table11": PRETRAIN["quick_thought/contrastive"],
}
# The paper's evaluations.
EVALUATE_STL10 = Evaluation(layers=("output", "fc7"))
EVALUATE_BOOKS = Evaluation(protocol="quick_thought", tasks=("mr", "cr"))
EVALUATE_CIFAR10 = Evaluation(folds=None)
# Rows of the tables of best encoders, and the kinds of loss among which each is selected.
CONTRASTIVE = "best contrastive only"
ALIGN_UNIFORM = "best align and uniform only"
SELECTIONS = {
    CONTRASTIVE: ("contrastive",),
    ALIGN_UNIFORM: ("align+uniform",),
    "best among all encoders": None,
}


def start_rows(row: TableRow) -> list[TableRow]:
    """Return the rows with the mark of the encoder that a row starts from."""
    mark = row.values.get("init", "rand")
    if mark in ("rand", None):
        return []
    return [other for other in tables.table_rows(row.table) if other.values["init_mark"] == mark]


def is_certain(row: TableRow) -> bool:
    """Return whether a row specifies a config: no setting was lost or may be misread."""
    is_random = row.values.get("init", "rand") == "rand"
    doubtful = [row.values.get(name) or "" for name in ("lost_cells", "suspect_cells")]
    is_legible = set(SETTINGS).isdisjoint(";".join(doubtful).split(";"))
    return is_legible and (is_random or len(start_rows(row)) == 1)


def certain_rows(table: str) -> list[TableRow]:
    """Return the rows of a table that specify a config."""
    return [row for row in tables.table_rows(table) if is_certain(row)]


def config_of(row: TableRow, scale: str = "paper") -> PretrainConfig:
    """Return the config of a row of Tables 5 or 8 to 11.

    Rows with equal settings get the seeds 0, 1, … in the order of the table. The scale is `paper`,
    `laptop` (STL-10 and BookCorpus), `cifar10` or `gpu` (STL-10).

    Raises:
      UserError: for a row that is not certain.
    """
    message = f"{row.table}, row {row.number}: settings are lost or doubtful in the paper's text"
    require(is_certain(row), message)
    base = BASES[row.table]
    values = row.values
    epochs = values["epochs"]
    decay_epochs = [share * base.epochs for share in base.decay_at]
    losses = {name: values[name] for name in LOSS_OPTIONS if values.get(name) is not None}
    config = base.replace(
        name=_run_name(row),
        seed=_repeats(row),
        init_from=next(map(_run_name, start_rows(row)), None),
        dim=values["dim"],
        unit_norm=values.get("l2_normalized", True),
        **vars(ObjectiveConfig(**losses)),
        queue_size=values.get("queue_size", 0),
        epochs=epochs,
        batch_size=values["batch_size"],
        learning_rate=values["initial_lr"],
        scaling="none",
        decay_at=tuple(epoch / epochs for epoch in decay_epochs if epoch < epochs),
    )
    return config if scale == "paper" else at_scale(config, scale)


def run_of(row: TableRow, scale: str, evaluation: Evaluation, seed: int | None = None) -> Run:
    """Return the run of a row. The scale is as for `config_of`, the seed defaults to the row's."""
    config = config_of(row, scale)
    if seed is not None:
        config = config.replace(name=f"{config.name}_seed{seed}", seed=seed)
    return Run(config, tables.printed_labels(row), evaluation)


def table_runs(table: str, evaluation: Evaluation, scale: str, rows: Rows) -> list[Run]:
    """Return the runs of all rows that specify a config, the encoders they start from first."""
    certain = certain_rows(table)
    starts = [start for row in certain for start in start_rows(row)]
    numbers = dict.fromkeys(row.number for row in (*starts, *certain))
    return [run_of(tables.table_row(table, number), scale, evaluation) for number in numbers]


def selected(rows: Rows, score: str) -> dict[str, int]:
    """Return the row of the table with the best mean held-out score, by selection."""
    groups = records.group_by(rows, "row")
    held_out = {number: records.column(group, score).mean() for number, group in groups.items()}
    chosen = {}
    for name, kinds in SELECTIONS.items():
        numbers = [n for n, group in groups.items() if kinds is None or group[0]["kind"] in kinds]
        chosen[name] = max(numbers, key=held_out.__getitem__)
    return chosen


def _run_name(row: TableRow) -> str:
    return f"{row.table.replace('-', '_').replace('/', '_')}_row{row.number}"


def _repeats(row: TableRow) -> int:
    """Return how many earlier rows have the same settings."""
    settings = [row.values.get(name) for name in SETTINGS]
    earlier = tables.table_rows(row.table)[: row.number - 1]
    return sum([other.values.get(name) for name in SETTINGS] == settings for other in earlier)


def cifar10(width: float, image_size: int) -> dict[str, Any]:
    """Return the changes of a config from STL-10 to CIFAR-10."""
    return {"data": "cifar10", "recipe": None, "width": width, "image_size": image_size}


DIGITS = {"data": "digits", "recipe": None, "model": "small_cnn", "image_size": None, "init": "he"}
# Scale: divisor of the epochs, divisor of the batch, other changes.
SMALLER = {
    "laptop": (8, 4, DIGITS),
    "cifar10": (100, 6, cifar10(width=0.125, image_size=16)),
    "gpu": (20, 1, cifar10(width=1.0, image_size=32) | {"dtype": "bfloat16"}),
}


def at_scale(config: PretrainConfig, scale: str) -> PretrainConfig:
    """Return the run with fewer epochs and a smaller batch (2 pairs at least), and its rate."""
    if config.data == "books":
        # Eight novels: 300 steps instead of 132,000, too few to learn the long memory with which
        # `chrono` starts.
        rate = 4 * config.learning_rate
        changes = {"dim": config.dim // 12, "embedding": 100, "init": "chrono"}
    else:
        epochs, batch, changes = SMALLER[scale]
        batch_size = max(2, config.batch_size // batch)
        rate = config.learning_rate * batch_size / config.batch_size
        changes = changes | {
            "init_from": config.init_from and f"{config.init_from}_{scale}",
            "epochs": max(1, config.epochs // epochs),
            "batch_size": batch_size,
        }
    name = f"{config.name}_{scale}"
    return config.replace(name=name, learning_rate=rate, devices=1, log_every_steps=50, **changes)
