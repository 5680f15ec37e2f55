"""What an item of the reproduction is: the runs that it needs, and how its result is shown."""

import dataclasses
import fnmatch
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments import specifications
from experiments.measures import Measures, Rows
from experiments.shown import Shown
from experiments.sweeps import Planned
from experiments.tables import Row, expected
from hypersphere_jax import data
from hypersphere_jax.config import PretrainConfig


class Context(NamedTuple):
    """Where and how an item is reproduced.

    Attributes:
      scale: `paper`, or `laptop`: the same claims with small encoders and images.
      runs_dir: folder of the encoders, which items of one scale share.
      folder: of this item's table, pictures and page.
      data_dir: where the data are, see `folder_of`; None: TensorFlow Datasets' folder.
      row: of the paper's table, the one to train; None: those that the item needs.
    """

    scale: str
    runs_dir: Path
    folder: Path
    data_dir: str | None = None
    row: int | None = None


# Data sets that are text, each in a folder of its name.
TEXT = ("books", "sentiment")

# From the rows so far to the runs of a stage. Later stages may depend on what earlier ones gave.
Stage = Callable[[Context, Rows], list[Planned]]


class Scale(NamedTuple):
    """What an item needs at a scale.

    Attributes:
      data: names of the data sets.
      hours: on 2 CPU cores; at the paper's scale an estimate.
      stages: of runs; empty where nothing is trained.
    """

    data: tuple[str, ...]
    hours: float
    stages: tuple[Stage, ...] = ()


class Item(NamedTuple):
    """A table, figure or theorem of a paper.

    Attributes:
      title: what it shows, in a few words.
      scales: by name; one that is not there cannot be had.
      show: from the rows of all stages to the result. It also draws the pictures.
      by_row: scales at which a single row of the table can be asked for.
    """

    title: str
    scales: dict[str, Scale]
    show: Callable[[Context, Rows], Shown]
    by_row: tuple[str, ...] = ()


def located(config: PretrainConfig, context: Context) -> PretrainConfig:
    """The config with its runs and images where the context has them."""
    place = folder_of(config.data.name, context.data_dir)
    moved = dataclasses.replace(config.data, data_dir=place)
    return dataclasses.replace(config, runs_dir=str(context.runs_dir), data=moved)


def folder_of(name: str, data_dir: str | None) -> str | None:
    """Where a data set is: the folder of that name with its data, or else data_dir itself."""
    if data_dir is None or name in data.EMBEDDED:
        return None
    inside = Path(data_dir) / name
    images = any((inside / f"train{ending}").exists() for ending in ("", ".zip"))
    text = name in TEXT and inside.is_dir()
    return str(inside) if images or text else data_dir


def planned_row(
    row: Row,
    context: Context,
    measures: Measures,
    scale: str | None = None,
    seed: int | None = None,
    doubtful: bool = False,
) -> Planned:
    """The run of a row of a table, with what the paper printed of it as `paper_…`.

    Args:
      row: of `tables.rows`.
      context: of the item.
      measures: of the encoder.
      scale: of `specifications.SCALES`; None: that of the context.
      seed: in place of the row's own.
      doubtful: as for `config_of`.
    """
    config = specifications.config_of(
        row, scale or context.scale, runs_dir=str(context.runs_dir), doubtful=doubtful
    )
    if seed is not None:
        config = dataclasses.replace(config, name=f"{config.name}_seed{seed}", seed=seed)
    row = specifications.specified(row)
    about = described(config) | {"table": row.table, "row": row.number}
    about |= {f"paper_{name}": value for name, value in expected(row).items()}
    about |= {"paper_diverged": True} if row.values.get("nan_occurred") else {}
    if measures.tasks:
        measures = measures._replace(tasks_dir=folder_of("sentiment", context.data_dir))
    return Planned(located(config, context), about, measures)


def run(
    config: PretrainConfig, context: Context, measures: Measures, about: Mapping[str, Any]
) -> Planned:
    """A run of an item, with what tells it from the others."""
    return Planned(located(config, context), described(config) | dict(about), measures)


def described(config: PretrainConfig) -> dict:
    """Columns that tell what was trained."""
    rule = config.optimizer
    return {
        "data": config.data.name,
        "loss": specifications.formula(config.objective)
        + ("" if config.model.unit_norm else ", no unit norm"),
        "kind": kind(config),
        "dim": config.model.dim,
        "batch": rule.batch_size,
        "epochs": rule.epochs,
        "seed": config.seed,
    }


def kind(config: PretrainConfig) -> str:
    """Which losses take part, such as `align+uniform`, or `nt_xent`."""
    loss, names = config.objective, ("contrastive", "align", "uniform", "supervised")
    if loss.loss != "weighted":
        return loss.loss + ("+supervised" if loss.supervised_weight else "")
    return "+".join(name for name in names if getattr(loss, f"{name}_weight"))


def with_sources(chosen: Sequence[Planned], planned: Sequence[Planned]) -> list[Planned]:
    """The chosen runs, and those of the plan that they begin from."""
    names = {one.config.name for one in chosen}
    names |= {Path(one.config.init_from).name for one in chosen if one.config.init_from}
    return [one for one in planned if one.config.name in names]


def matching(planned: Sequence[Planned], patterns: Sequence[str]) -> list[Planned]:
    """The runs whose name fits one of the patterns; all of them without patterns."""
    if not patterns:
        return list(planned)
    fits = [
        one for one in planned if any(fnmatch.fnmatch(one.config.name, each) for each in patterns)
    ]
    return with_sources(fits, planned)


def spread(rows: Sequence, count: int) -> list:
    """As many of the rows as asked for (2 at least), evenly from the first to the last."""
    if count >= len(rows):
        return list(rows)
    return [rows[round(place * (len(rows) - 1) / (count - 1))] for place in range(count)]
