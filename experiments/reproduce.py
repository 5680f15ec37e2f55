"""The papers' tables and figures, each by one command: `python run.py reproduce ITEM`."""

import dataclasses
import difflib
import sys
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from experiments import costs, items, sweeps, wang_isola
from experiments.items import Context, Item
from experiments.shown import Shown
from experiments.sweeps import Planned, Rows
from hypersphere_jax import data, report
from hypersphere_jax.config import DataConfig, UserError, require
from hypersphere_jax.evaluation import results

ITEMS: dict[str, Item] = wang_isola.ITEMS
ELSEWHERE = wang_isola.ELSEWHERE | wang_isola.LATER


@dataclasses.dataclass(frozen=True)
class ReproduceConfig:
    """A table, figure or theorem of a paper: the paper's numbers and ours, side by side.

    Trains and measures the encoders that it needs, if that is not done yet, and writes table,
    picture and page. The same command continues what was interrupted. Without ITEM: lists all.
    """

    item: Annotated[Positional[str | None], arg(metavar="[ITEM]")] = None
    """What to reproduce, such as wang-isola/table1."""
    scale: Literal["paper", "laptop"] = "paper"
    """`paper`: its data and settings; `laptop`: the same claims with digits, or CIFAR-10 and a
    narrow encoder, in an hour or less on 2 cores."""
    row: int | None = None
    """Of a table: the one encoder of this row, counted from 1 as in experiments/paper_tables/."""
    only: tuple[str, ...] = ()
    """Only the runs with such names, such as 'figure7_*seed0'; `--dry-run` prints the names."""
    jobs: int = 1
    """Processes that train at a time, each with its share of the cores; with GPUs, one on each."""
    dry_run: bool = False
    """Print the runs, what they would cost at the measured speed of a step, and the paper's
    numbers; train nothing."""
    retry: bool = False
    """Do those runs again that failed before."""
    data_dir: str | None = None
    """Folder of the images: of CIFAR-10, DATA_DIR/cifar10 if that holds train/ or train.zip; else
    as for `pretrain`."""
    out: Path = Path("runs/reproduce")
    """Folder of all that is reproduced."""

    def __post_init__(self):
        require(self.jobs >= 1, f"--jobs {self.jobs}: must be at least 1")
        for name in ("row", "only", "dry_run", "retry"):
            flag = name.replace("_", "-")
            require(self.item is not None or not getattr(self, name), f"--{flag} needs an ITEM")


def main(config: ReproduceConfig, command: str = "") -> None:
    """Lists the items, says what one would cost, or reproduces it."""
    if config.item is None:
        _list(config)
        return
    item = find(config.item)
    scale = item.scales.get(config.scale)
    require(
        scale is not None,
        f"{config.item} has no --scale {config.scale}: take --scale {' or '.join(item.scales)}",
    )
    paper, _, name = config.item.partition("/")
    top = config.out / paper
    context = Context(
        config.scale,
        top / f"runs-{config.scale}",
        top / (name if config.row is None else f"{name}-row{config.row}") / config.scale,
        config.data_dir,
        config.row,
    )
    require(
        config.row is None or config.item in wang_isola.TABLES_OF_ROWS,
        f"--row: {config.item} is no table of encoders; those are "
        f"{', '.join(wang_isola.TABLES_OF_ROWS)}",
    )
    if config.dry_run:
        _dry_run(config.item, item, context, config)
        return
    rows: Rows = []
    for number, stage in enumerate(scale.stages):
        planned = items.matching(stage(context, rows), config.only)
        require(
            number > 0 or bool(planned),
            f"--only {' '.join(config.only)}: no run has such a name; --dry-run prints them",
        )
        rows += sweeps.sweep(
            planned,
            jobs=config.jobs,
            retry=config.retry,
            command=command,
            logs=context.folder / "logs",
            say=lambda line: print(line, file=sys.stderr),
        )
    if rows:
        results.write(context.folder / "results.csv", rows)
        failed = [row for row in rows if row["status"] == "failed"]
        for row in failed:
            print(f"failed: {row['run']}: {row['reason']}", file=sys.stderr)
        require(
            len(failed) < len(rows),
            "every run failed, for the reasons above: mend them, then the same with --retry",
        )
    shown = item.show(context, rows)
    page = _page(context, shown, command)
    report.print_table(shown.columns, shown.rows, title=shown.title)
    print("\n" + "\n".join(shown.text))
    for path, _ in shown.figures:
        print(f"picture: {path}")
    print(f"page: {page}")


def find(name: str) -> Item:
    """An item by its name.

    Raises:
      UserError: for an unknown name, with the nearest one; or one that is elsewhere.
    """
    if name in ITEMS:
        return ITEMS[name]
    if name in ELSEWHERE:
        raise UserError(f"{name}: nothing to reproduce here: {ELSEWHERE[name]}")
    near = difflib.get_close_matches(name, ITEMS, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else "`python run.py reproduce` lists them"
    raise UserError(f"no item {name!r}: {hint}")


def _page(context: Context, shown: Shown, command: str) -> Path:
    blocks = [
        *(("text", text) for text in shown.text),
        ("table", shown.columns, shown.rows),
        *(("figure", path, caption) for path, caption in shown.figures),
        ("heading", "Again"),
        ("command", command),
    ]
    return report.write_page(context.folder / "report.html", shown.title, blocks)


def _list(config: ReproduceConfig) -> None:
    columns = ["item", "what", "scale", "data", "here", "encoders", "hours on 2 cores"]
    rows, found = [], {}
    for name, item in sorted(ITEMS.items(), key=_order):
        for place, (scale, needs) in enumerate(item.scales.items()):
            context = Context(scale, Path("runs"), Path("runs"), config.data_dir)
            for each in needs.data:
                found.setdefault(each, _is_here(each, config.data_dir))
            first = needs.stages[0](context, []) if needs.stages else []
            rows.append(
                [
                    name if place == 0 else "",
                    item.title if place == 0 else "",
                    scale,
                    ", ".join(needs.data) or "none",
                    "yes" if all(found[each] for each in needs.data) else "no",
                    len(first) or None,
                    _hours(needs.hours),
                ]
            )
    report.print_table(columns, rows, title="Tables, figures and theorems of the papers")
    print("\nNothing to reproduce, or not here yet:")
    for name, why in ELSEWHERE.items():
        print(f"  {name:<22}{why}")
    print(
        "\nhours: at --scale paper estimated for 2 cores, where nobody would wait for them: on one "
        "GPU\n`ITEM --dry-run` measures its step. here: whether the images are found (--data-dir)."
    )


def _order(named: tuple[str, Item]) -> tuple:
    name = named[0]
    stem = name.rstrip("abcdefgh")
    digits = "".join(letter for letter in stem[::-1] if letter.isdigit())[::-1]
    return stem.rstrip("0123456789"), int(digits or 0), name


def _hours(hours: float) -> str:
    return f"{hours:.1g}" if hours < 1 else f"{hours:,.0f}"


def _is_here(name: str, data_dir: str | None) -> bool:
    try:
        data.load(DataConfig(name, data_dir=items.folder_of(name, data_dir)))
    except UserError:
        return False
    return True


def _dry_run(name: str, item: Item, context: Context, config: ReproduceConfig) -> None:
    stages = item.scales[config.scale].stages
    if not stages:
        print(f"{name}: nothing to train; `python run.py reproduce {name}` computes it")
        return
    planned = items.matching(stages[0](context, []), config.only)
    columns = ["run", "loss", "d", "pairs", "epochs", "steps", "s / step", "hours", "paper (%)"]
    rows, total = [], 0.0
    for one in planned:
        cost = costs.cost(one.config)
        done = sweeps.rows_of(one) is not None
        hours = 0.0 if done else cost.steps * cost.seconds / 3600
        total += hours
        rows.append(
            [
                one.config.name,
                one.about["loss"],
                one.about["dim"],
                one.about["batch"],
                one.about["epochs"],
                cost.steps,
                cost.seconds,
                "done" if done else f"{hours:.2g}",
                _printed(one),
            ]
        )
    report.print_table(columns, rows, title=f"{name} at --scale {config.scale}")
    print(f"\n{len(planned)} runs, {total:.2g} hours of training one after the other")
    for line in costs.notes():
        print(line)
    if len(stages) > 1:
        print("More runs follow, which depend on what these give.")


def _printed(one: Planned) -> str:
    numbers = [value for name, value in one.about.items() if name.startswith("paper_val")]
    return ", ".join(f"{value:g}" for value in numbers)
