"""A reproduction of a table, figure or theorem: the runs that it needs, and its result."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from experiments import specifications
from experiments.protocols import Evaluation
from experiments.statistics import Rows
from experiments.sweeps import Planned
from experiments.tables import Row, expected
from hypersphere_jax import data
from hypersphere_jax.configs import DataConfig, PretrainConfig
from hypersphere_jax.configs.objective import WEIGHTS

TEXT = ("books", "sentiment")  # data sets that are text, each in a folder of its name
# A harder task than digits for a network of the same size: its 10,000 test images tell encoders
# apart that the 397 digits do not.
GREY, GREY_PIXELS = DataConfig("cifar10", channels=1, fraction=0.1), 16
OF_GREY = (
    f"a tenth of CIFAR-10's training images, in grey at {GREY_PIXELS} pixels, tested on all 10,000 "
    "test images"
)


class Result(NamedTuple):
    """A table or figure of a paper, as it came out here."""

    title: str
    columns: list[str]
    rows: list[list]  # one value a column; None where there is none
    figures: list[tuple[Path, str]]  # PNG and caption
    text: list[str]  # paragraphs: the paper's claim, what was computed, what came out
    verdict: str = ""  # whether the claim holds here, in sentences; empty where nothing is claimed
    short: str = ""  # the verdict in a line, for lists; empty: as it is

    @property
    def summary(self) -> str:
        return self.short or self.verdict


class Context(NamedTuple):
    """Where and how a table or figure is reproduced."""

    scale: str  # `paper`, or `laptop`: the same claims with small encoders and images
    runs_dir: Path  # of the encoders, which all reproductions of one scale share
    folder: Path  # of this table, its pictures and page
    data_dir: str | None = None  # see `folder_of`; None: TensorFlow Datasets' folder
    row: int | None = None  # of the paper's table, the one to train; None: all that are needed

    @property
    def laptop(self) -> bool:
        return self.scale == "laptop"

    @property
    def figure(self) -> Path:
        return self.folder / "figure.png"


# From the rows so far to the runs of a stage. Later stages may depend on what earlier ones gave.
Stage = Callable[[Context, Rows], list[Planned]]


class Scale(NamedTuple):
    """What a reproduction needs at a scale."""

    data: tuple[str, ...]  # names of the data sets
    stages: tuple[Stage, ...] = ()  # of runs; empty where nothing is trained
    seconds: float = 0.0  # of what has no stages, on 2 CPU cores


def scale(data: str, *stages: Stage) -> Scale:
    """A scale with data sets such as "books, sentiment"."""
    return Scale(tuple(data.split(", ")), stages)


class Reproduction(NamedTuple):
    """A table, figure or theorem of a paper."""

    title: str
    result: Callable[[Context, Rows], Result]  # of the rows of all stages; also draws the pictures
    laptop: Scale | None = None
    paper: Scale | None = None
    by_row: tuple[str, ...] = ()  # scales at which a single row of the table can be asked for

    @property
    def scales(self) -> dict[str, Scale]:
        both = {"laptop": self.laptop, "paper": self.paper}
        return {name: scale for name, scale in both.items() if scale is not None}


def folder_of(name: str, data_dir: str | None) -> str | None:
    """Where a data set is: the folder of that name in data_dir if it has the data, or data_dir."""
    if data_dir is None or name in data.EMBEDDED:
        return None
    inside = Path(data_dir) / name
    images = any((inside / f"train{ending}").exists() for ending in ("", ".zip"))
    text = name in TEXT and inside.is_dir()
    return str(inside) if images or text else data_dir


def planned_row(
    row: Row,
    context: Context,
    evaluation: Evaluation,
    scale: str | None = None,
    seed: int | None = None,
) -> Planned:
    """The run of a table's row, with the printed results as `paper_…`.

    The scale (of `specifications.SCALES`) is by default the context's, the seed the row's own.
    """
    config = specifications.config_of(row, scale or context.scale, runs_dir=str(context.runs_dir))
    if seed is not None:
        config = dataclasses.replace(config, name=f"{config.name}_seed{seed}", seed=seed)
    row = specifications.specified(row)
    about = {"table": row.table, "row": row.number}
    about |= {f"paper_{name}": value for name, value in expected(row).items()}
    about |= {"paper_diverged": True} if row.values.get("nan_occurred") else {}
    if evaluation.tasks:
        evaluation = evaluation._replace(tasks_dir=folder_of("sentiment", context.data_dir))
    return run(config, context, evaluation, about)


def run(
    config: PretrainConfig, context: Context, evaluation: Evaluation, about: Mapping[str, Any]
) -> Planned:
    """A run in the context's folders, with the columns that tell it from the others."""
    data_dir = folder_of(config.data, context.data_dir)
    config = config.replace(runs_dir=str(context.runs_dir), data_dir=data_dir)
    return Planned(config, settings(config) | dict(about), evaluation)


def settings(config: PretrainConfig) -> dict:
    """Columns that tell what is trained."""
    return {
        "data": config.data,
        "loss": specifications.formula(config) + ("" if config.unit_norm else ", no unit norm"),
        "kind": kind(config),
        "dim": config.dim,
        "batch": config.batch_size,
        "epochs": config.epochs,
        "seed": config.seed,
    }


def kind(config: PretrainConfig) -> str:
    """Which losses take part, such as `align+uniform`, or `nt_xent`."""
    if config.loss != "weighted":
        return config.loss + ("+supervised" if config.supervised_weight else "")
    return "+".join(name.removesuffix("_weight") for name in WEIGHTS if getattr(config, name))
