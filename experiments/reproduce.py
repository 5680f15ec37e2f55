"""The papers' tables and figures, each by one command: `python run.py reproduce ITEM`."""

import fnmatch
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from experiments import balanced, chen, costs, sweeps, wang_isola
from experiments.reproduction import Context, Reproduction, Result, Scale, folder_of
from experiments.statistics import Rows, done
from experiments.sweeps import Planned
from experiments.wang_isola.encoder_tables import BOOKCORPUS
from hypersphere_jax import data, report
from hypersphere_jax.config import DataConfig, UserError, require
from hypersphere_jax.config.base import check_range, config, did_you_mean, refuse
from hypersphere_jax.evaluate import results_file
from hypersphere_jax.files import write_json

# By the first part of the names, in the order of all lists.
PAPERS = {
    "wang-isola": "Wang & Isola",
    "chen": "Chen, Luo & Li",
    "balanced": "Balanced contrastive loss",
}


def _order(name: str) -> list:
    """By paper, and figure2 before figure10."""
    paper, _, item = name.partition("/")
    parts = (int(part) if part.isdigit() else part for part in re.split(r"(\d+)", item))
    return [list(PAPERS).index(paper), *parts]


_OF_PAPERS = {
    name: reproduction
    for paper in (wang_isola, chen, balanced)
    for module in paper.MODULES
    for name, reproduction in module.REPRODUCTIONS.items()
}
REPRODUCTIONS: dict[str, Reproduction] = {
    name: _OF_PAPERS[name] for name in sorted(_OF_PAPERS, key=_order)
}
OTHERS = wang_isola.OTHERS | chen.OTHERS | balanced.OTHERS  # name: where it is instead
# What is written of a reproduction, beside its page and figure.
ROWS, RESULT = "results.csv", "shown.json"
# Of a run: the results that the paper printed of it, on its validation split.
PRINTED = ("paper_val_", "paper_top1")


@config
class ReproduceConfig:
    """A table, figure or theorem of a paper: the paper's numbers and ours, side by side.

    Trains and evaluates the encoders that it needs, if that is not done yet, and writes table,
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
    """Print the runs, what they would cost, and the paper's numbers; train nothing."""
    measure: bool = False
    """With `--dry-run`: run a step of each and take its time, rather than counting its FLOP."""
    retry: bool = False
    """Do those runs again that failed before."""
    data_dir: str | None = None
    """Folder of the images: of CIFAR-10, DATA_DIR/cifar10 if that holds train/ or train.zip; else
    as for `pretrain`."""
    out: Path = Path("runs/reproduce")
    """Folder of all that is reproduced."""

    def __post_init__(self):
        check_range(self, "[1, inf)", "jobs")
        require(self.jobs == 1 or self.vmapped != "yes", "--vmapped yes needs --jobs 1")
        if self.item is None:
            refuse(self, ("row", "only", "dry_run", "retry"), "needs an ITEM")
        require(self.dry_run or not self.measure, "--measure needs --dry-run")


def main(options: ReproduceConfig, command: str = "") -> None:
    """Lists all, says what one would cost, or reproduces it."""
    if options.item is None:
        _list(options.data_dir)
        return
    reproduction = find(options.item)
    where = f"{options.item} at --scale {options.scale}"
    require(
        options.scale in reproduction.scales,
        f"no {where}: take --scale {' or '.join(reproduction.scales)}",
    )
    require(
        options.row is None or options.scale in reproduction.by_row,
        f"--row: {where} is no table of encoders",
    )
    scale = reproduction.scales[options.scale]
    context = Context(
        options.scale,
        options.out / options.item.partition("/")[0] / f"runs-{options.scale}",
        result_folder(options.out, options.item, options.scale, options.row),
        options.data_dir,
        options.row,
    )
    if options.dry_run:
        _dry_run(scale, context, options)
        return
    rows, errors, total = _train(scale, context, options, command)
    failed = [row for row in rows if row["status"] == "failed"]
    for line in (*(f"failed: {row['run']}: {row['reason']}" for row in failed), *errors):
        print(line, file=sys.stderr)
    if failed:
        print("--retry does those again that failed", file=sys.stderr)
    if rows:
        results_file.write(context.folder / ROWS, rows)
    require(bool(done(rows)) or not scale.stages, "no run is done, for the reasons above")
    ended = len({row["run"] for row in rows})
    part = f"{ended} of {total} planned runs are done or failed." if ended < total else ""
    lost = f"{len(failed)} of {total} runs failed: results.csv says why." if failed else ""
    result = reproduction.result(context, rows)
    result = result._replace(text=[*result.text, *filter(None, [lost, part])])
    figures = [(path.name, caption) for path, caption in result.figures]
    write_json(context.folder / RESULT, {**result._asdict(), "figures": figures, "part": part})
    page = _page(context, result, command)
    report.print_table(result.columns, result.rows, title=result.title)
    print("\n" + "\n".join(result.text))
    if result.verdict:
        print(f"Verdict: {result.verdict}.")
    for path, _ in result.figures:
        print(f"picture: {path}")
    print(f"page: {page}")
    require(not errors, f"{len(errors)} run(s) are not done, for the reasons above")


def find(name: str) -> Reproduction:
    """A reproduction by its name.

    Raises:
      UserError: for an unknown name, with the nearest one; or one that is not reproduced.
    """
    require(name not in OTHERS, f"{name}: nothing to reproduce here: {OTHERS.get(name)}")
    hint = did_you_mean(name, REPRODUCTIONS) or "; `python run.py reproduce` lists them"
    require(name in REPRODUCTIONS, f"no item {name!r}{hint}")
    return REPRODUCTIONS[name]


def result_folder(out: Path, item: str, scale: str, row: int | None = None) -> Path:
    """Of a reproduction's table, pictures and page."""
    return out / (item if row is None else f"{item}-row{row}") / scale


def matching(planned: Sequence[Planned], patterns: Sequence[str]) -> list[Planned]:
    """The runs whose name fits one of the patterns, and those of the plan that they begin from.

    Raises:
      UserError: when there is none.
    """
    chosen = [
        one.config
        for one in planned
        if any(fnmatch.fnmatch(one.config.name, each) for each in patterns or ("*",))
    ]
    require(
        bool(chosen), f"--only {' '.join(patterns)}: no run has such a name; --dry-run prints them"
    )
    names = {config.name for config in chosen}
    names |= {Path(config.init_from).name for config in chosen if config.init_from}
    return [one for one in planned if one.config.name in names]


def _train(
    scale: Scale, context: Context, options: ReproduceConfig, command: str
) -> tuple[Rows, list[str], int]:
    """Rows of the runs of all stages, what kept some from being done, and the runs' number."""
    rows: Rows = []
    errors: list[str] = []
    names: set[str] = set()
    for number, stage in enumerate(scale.stages):
        planned = stage(context, rows)
        names |= {one.config.name for one in planned}  # a run may be evaluated in two stages
        errors += sweeps.sweep(
            matching(planned, options.only) if number == 0 else planned,
            jobs=options.jobs,
            retry=options.retry,
            command=command,
            logs=context.folder / "logs",
            vmapped={"yes": True, "no": False, "auto": None}[options.vmapped],
        )
        rows += sweeps.known(planned)  # also those of an earlier command without --only
        if len({row["run"] for row in rows}) < len(names):
            break  # what a later stage does depends on all of this one
    return rows, errors, len(names)


def _page(context: Context, result: Result, command: str) -> Path:
    blocks = [
        *(("text", text) for text in result.text),
        *([("text", f"Verdict: {result.verdict}.")] if result.verdict else []),
        ("table", result.columns, result.rows),
        *(("figure", path, caption) for path, caption in result.figures),
        ("heading", "Again"),
        ("command", command),
    ]
    return report.write_page(context.folder / "report.html", result.title, blocks)


def _list(data_dir: str | None) -> None:
    columns = ["item", "scale", "data", "here", "encoders", "hours on 2 cores"]
    rows, here = [], {}
    for name, reproduction in REPRODUCTIONS.items():
        scales = reproduction.scales
        if len(set(scales.values())) < len(scales):  # nothing depends on it
            scales = {"both": scales["paper"]}
        for scale, needs in scales.items():
            here |= {each: _is_here(each, data_dir) for each in needs.data if each not in here}
            first = needs.stages[0](Context(scale, Path(), Path()), []) if needs.stages else []
            line = ["" if rows and rows[-1][0] == name else name, scale]
            line += [", ".join(needs.data) or "none"]
            line += ["yes" if all(here[each] for each in needs.data) else "no", len(first)]
            rows.append([*line, f"{needs.hours:.1g}" if needs.hours < 1 else f"{needs.hours:,.0f}"])
    report.print_table(columns, rows, title="Tables, figures and theorems of the papers")
    print(
        "\nhere: whether the data are in --data-dir. hours on 2 cores: of a CPU, for all runs; at\n"
        "--scale paper, which is meant for GPUs, an estimate for comparison. `ITEM --dry-run` has\n"
        "the hours of this device.\n"
    )
    for name, reproduction in REPRODUCTIONS.items():
        print(f"  {name:<21}{reproduction.title}")
    print("\nNothing to reproduce:")
    for name, why in OTHERS.items():
        print(f"  {name:<21}{why}")


def _is_here(name: str, data_dir: str | None) -> bool:
    if name in data.EMBEDDED:
        return True
    place = folder_of(name, data_dir)
    try:
        if name == "sentiment":
            for task in BOOKCORPUS.tasks:
                data.load_labelled(task, place, data.text.SPECIAL)
            return True
        data.load(DataConfig(name, data_dir=place))
    except UserError:
        return False
    return True


def _dry_run(scale: Scale, context: Context, options: ReproduceConfig) -> None:
    if not scale.stages:
        print(f"{options.item}: nothing to train; the command without --dry-run computes it")
        return
    planned = matching(scale.stages[0](context, []), options.only)
    names = (name for one in planned for name in one.about if name.startswith(PRINTED))
    printed = next(names, "")
    columns = ["run", "loss", "d", "pairs", "steps", "s / step", "hours"]
    columns += ["paper"] if printed else []
    rows, total = [], 0.0
    for one in planned:
        cost = costs.cost(one.config, options.measure)
        known = sweeps.known([one])
        hours = 0.0 if known else cost.steps * cost.seconds / 3600
        total += hours
        rows.append(
            [
                one.config.name,
                *(one.about[name] for name in ("loss", "dim", "batch")),
                cost.steps,
                f"{cost.seconds:.2g}",
                known[0]["status"] if known else f"{hours:.2g}",
                *([one.about.get(printed)] if printed else []),
            ]
        )
    report.print_table(columns, rows, title=f"{options.item} at --scale {options.scale}")
    print(f"\n{len(planned)} runs, {total:.2g} hours of training one after the other")
    if printed:
        print(f"paper: its {printed.removeprefix('paper_').replace('_', ' ')}")
    for line in costs.notes(total, options.measure):
        print(line)
    if len(scale.stages) > 1:
        print("More runs follow, which depend on what these give.")
