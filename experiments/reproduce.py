"""The papers' tables and figures, each by one command: `python run.py reproduce ITEM`."""

import difflib
import re
import sys
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from tyro.conf import Positional, arg

from experiments import balanced, chen, costs, items, sweeps, wang_isola
from experiments.items import Context, Item, Scale
from experiments.measures import Rows
from experiments.shown import Shown
from experiments.sweeps import Planned
from experiments.wang_isola.rows import BOOKCORPUS
from hypersphere_jax import data, report
from hypersphere_jax.config import DataConfig, UserError, require
from hypersphere_jax.config.base import at_least_one, config
from hypersphere_jax.evaluate import results
from hypersphere_jax.files import write_json

# By the first part of their items' names, in the order of all lists.
PAPERS = {
    "wang-isola": "Wang & Isola",
    "chen": "Chen, Luo & Li",
    "balanced": "Balanced contrastive loss",
}
ITEMS: dict[str, Item] = wang_isola.ITEMS | chen.ITEMS | balanced.ITEMS
ELSEWHERE = wang_isola.ELSEWHERE | chen.ELSEWHERE | balanced.ELSEWHERE


class _Files(NamedTuple):
    """What is written of an item, beside its page."""

    rows: str = "results.csv"
    shown: str = "shown.json"
    figure: str = "figure.png"


FILES = _Files()


@config
class ReproduceConfig:
    """A table, figure or theorem of a paper: the paper's numbers and ours, side by side.

    Trains and measures the encoders that it needs, if that is not done yet, and writes table,
    picture and page. The same command continues what was interrupted. Without ITEM: lists all.
    """

    item: Annotated[Positional[str | None], arg(metavar="[ITEM]")] = None
    """What to reproduce, such as wang-isola/table1."""
    scale: Literal["paper", "laptop"] = "paper"
    """`paper`: its data and settings; `laptop`: the same claims with digits, or CIFAR-10 and a
    narrow encoder, in minutes to an hour on 2 cores (all of Table 8: two)."""
    row: int | None = None
    """Of a table: the one encoder of this row, counted from 1 as in experiments/paper_tables/."""
    only: tuple[str, ...] = ()
    """Only the runs with such names, such as 'figure7_*seed0'; `--dry-run` prints the names."""
    jobs: int = 1
    """Processes that train at a time, each with its share of the cores; with GPUs, one on each."""
    vmapped: Annotated[Literal["auto", "yes", "no"], arg(aliases=["--together"])] = "auto"
    """Whether encoders that differ in scalars alone (weights, tau, alpha, t, rate, seed) train
    under `vmap`, as many at a time as fit. `auto`: with one job, on accelerators."""
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
        at_least_one("jobs", self.jobs)
        require(
            self.jobs == 1 or self.vmapped != "yes", "--vmapped yes is for one process: --jobs 1"
        )
        for name in ("row", "only", "dry_run", "retry"):
            flag = name.replace("_", "-")
            require(self.item is not None or not getattr(self, name), f"--{flag} needs an ITEM")


def main(options: ReproduceConfig, command: str = "") -> None:
    """Lists the items, says what one would cost, or reproduces it."""
    if options.item is None:
        _list(options)
        return
    item = find(options.item)
    scale = item.scales.get(options.scale)
    require(
        scale is not None,
        f"{options.item} has no --scale {options.scale}: take --scale {' or '.join(item.scales)}",
    )
    paper = options.item.partition("/")[0]
    context = Context(
        options.scale,
        options.out / paper / f"runs-{options.scale}",
        place(options.out, options.item, options.scale, options.row),
        options.data_dir,
        options.row,
    )
    by_row = [name for name, each in ITEMS.items() if options.scale in each.by_row]
    require(
        options.row is None or options.item in by_row,
        f"--row: at --scale {options.scale}, {options.item} is no table of encoders; those are "
        f"{', '.join(sorted(by_row, key=order))}",
    )
    if options.dry_run:
        _dry_run(options.item, item, context, options)
        return
    rows, mistakes, total = _carried_out(scale, context, options, command)
    done = [row for row in rows if row["status"] == "done"]
    failed = [row for row in rows if row["status"] == "failed"]
    for line in (*(f"failed: {row['run']}: {row['reason']}" for row in failed), *mistakes):
        print(line, file=sys.stderr)
    if failed:
        print("--retry does those again that failed", file=sys.stderr)
    if rows:
        results.write(context.folder / FILES.rows, rows)
    require(bool(done) or not scale.stages, "no run is done, for the reasons above")
    seen = len({row["run"] for row in rows})
    part = f"{seen} of {total} planned runs are done or failed." if seen < total else ""
    lost = f"{len(failed)} of {total} runs failed: results.csv says why." if failed else ""
    shown = item.show(context, rows)
    shown = shown._replace(text=[*shown.text, *filter(None, [lost, part])])
    written = {**shown._asdict(), "part": part}
    written["figures"] = [(path.name, caption) for path, caption in shown.figures]
    write_json(context.folder / FILES.shown, written)
    page = _page(context, shown, command)
    report.print_table(shown.columns, shown.rows, title=shown.title)
    print("\n" + "\n".join(shown.text))
    if shown.verdict:
        print(f"Verdict: {shown.verdict}.")
    for path, _ in shown.figures:
        print(f"picture: {path}")
    print(f"page: {page}")
    require(
        not mistakes,
        f"{len(mistakes)} run(s) are not done, for the reasons above: mend them, and the same "
        "command does the rest",
    )


def _carried_out(
    scale: Scale, context: Context, options: ReproduceConfig, command: str
) -> tuple[Rows, list[str], int]:
    """Rows of the runs of all stages, mistakes that kept some from being done, and their number."""
    rows: Rows = []
    mistakes: list[str] = []
    names: set[str] = set()
    for number, stage in enumerate(scale.stages):
        planned = stage(context, rows)
        names |= {one.config.name for one in planned}  # a run may be measured in two stages
        total = len(names)
        chosen = _chosen(planned, options) if number == 0 else planned
        mistakes += sweeps.sweep(
            chosen,
            jobs=options.jobs,
            retry=options.retry,
            command=command,
            logs=context.folder / "logs",
            vmapped={"yes": True, "no": False, "auto": None}[options.vmapped],
            say=lambda line: print(line, file=sys.stderr),
        )
        # Also those that were done before, by a command without --only.
        rows += sweeps.known(planned)
        if len({row["run"] for row in rows}) < total:
            break  # what a later stage does depends on all of this one
    return rows, mistakes, len(names)


def _chosen(planned: list[Planned], options: ReproduceConfig) -> list[Planned]:
    chosen = items.matching(planned, options.only)
    require(
        bool(chosen),
        f"--only {' '.join(options.only)}: no run has such a name; --dry-run prints them",
    )
    return chosen


def place(out: Path, item: str, scale: str, row: int | None = None) -> Path:
    """The folder of an item's table, pictures and page."""
    return out / (item if row is None else f"{item}-row{row}") / scale


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
        *([("text", f"Verdict: {shown.verdict}.")] if shown.verdict else []),
        ("table", shown.columns, shown.rows),
        *(("figure", path, caption) for path, caption in shown.figures),
        ("heading", "Again"),
        ("command", command),
    ]
    return report.write_page(context.folder / "report.html", shown.title, blocks)


def _list(options: ReproduceConfig) -> None:
    columns = ["item", "scale", "data", "here", "encoders", "device", "hours"]
    rows, found = [], {}
    ordered = sorted(ITEMS.items(), key=lambda named: order(named[0]))
    for name, item in ordered:
        scales = item.scales
        if len(set(scales.values())) < len(scales):  # nothing depends on it
            scales = {"both": scales["paper"]}
        for number, (scale, needs) in enumerate(scales.items()):
            context = Context(scale, Path("runs"), Path("runs"), options.data_dir)
            found |= {
                each: _is_here(each, options.data_dir) for each in needs.data if each not in found
            }
            first = needs.stages[0](context, []) if needs.stages else []
            here = "yes" if all(found[each] for each in needs.data) else "no"
            names = ", ".join(needs.data) or "none"
            hours = f"{needs.hours:.1g}" if needs.hours < 1 else f"{needs.hours:,.0f}"
            device = "GPU" if needs.stages and scale == "paper" else "CPU"
            name = name if number == 0 else ""
            rows.append([name, scale, names, here, len(first), device, hours])
    report.print_table(columns, rows, title="Tables, figures and theorems of the papers")
    print(
        "\nhere: whether the images are found (--data-dir). hours: on 2 CPU cores, at --scale paper"
        "\nan estimate for comparison; on one GPU, `ITEM --dry-run` measures its step.\n"
    )
    for name, item in ordered:
        print(f"  {name:<21}{item.title}")
    print("\nNothing to reproduce:")
    for name, why in ELSEWHERE.items():
        print(f"  {name:<21}{why}")


def order(name: str) -> list:
    """By which names are sorted: by paper, and figure2 before figure10."""
    paper, _, item = name.partition("/")
    parts = (int(part) if part.isdigit() else part for part in re.split(r"(\d+)", item))
    return [list(PAPERS).index(paper), *parts]


def _is_here(name: str, data_dir: str | None) -> bool:
    if name in data.EMBEDDED:
        return True
    place = items.folder_of(name, data_dir)
    try:
        if name == "sentiment":
            for task in BOOKCORPUS.tasks:
                data.text.open_labelled(task, place)
            return True
        data.load(DataConfig(name, data_dir=place))
    except UserError:
        return False
    return True


def _dry_run(name: str, item: Item, context: Context, options: ReproduceConfig) -> None:
    stages = item.scales[options.scale].stages
    if not stages:
        print(f"{name}: nothing to train; `python run.py reproduce {name}` computes it")
        return
    planned = _chosen(stages[0](context, []), options)
    columns = ["run", "loss", "d", "pairs", "epochs", "steps", "s / step", "hours", "the paper"]
    rows, total = [], 0.0
    for one in planned:
        cost = costs.cost(one.config)
        known = sweeps.known([one])
        hours = 0.0 if known else cost.steps * cost.seconds / 3600
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
                known[0]["status"] if known else f"{hours:.2g}",
                _printed(one),
            ]
        )
    report.print_table(columns, rows, title=f"{name} at --scale {options.scale}")
    print(f"\n{len(planned)} runs, {total:.2g} hours of training one after the other")
    for line in costs.notes():
        print(line)
    if len(stages) > 1:
        print("More runs follow, which depend on what these give.")


def _printed(one: Planned) -> str:
    """What the paper printed of a run's validation split: accuracies in percent, or errors."""
    start = ("paper_val_", "paper_top1")
    numbers = [
        f"{name.removeprefix('paper_').removeprefix('val_').replace('_', ' ')} {value:g}"
        for name, value in one.about.items()
        if name.startswith(start) and value is not None
    ]
    return ", ".join(numbers)
