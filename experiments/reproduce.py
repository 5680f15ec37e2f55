"""The papers' tables and figures, each by one command: `python run.py reproduce ITEM`."""

import difflib
import re
import sys
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from tyro.conf import Positional, arg

from experiments import balanced, chen, costs, sweeps, wang_isola
from experiments.reproduction import Context, Reproduction, Scale, folder_of, matching
from experiments.result import Result, Rows, done
from experiments.sweeps import Planned
from experiments.wang_isola.encoder_tables import BOOKCORPUS
from hypersphere_jax import data, report
from hypersphere_jax.config import DataConfig, UserError, require
from hypersphere_jax.config.base import check_range, config
from hypersphere_jax.evaluate import results
from hypersphere_jax.files import write_json

# By the first part of the names, in the order of all lists.
PAPERS = {
    "wang-isola": "Wang & Isola",
    "chen": "Chen, Luo & Li",
    "balanced": "Balanced contrastive loss",
}
REPRODUCTIONS: dict[str, Reproduction] = {
    name: reproduction
    for paper in (wang_isola, chen, balanced)
    for module in paper.MODULES
    for name, reproduction in module.REPRODUCTIONS.items()
}
OTHERS = wang_isola.OTHERS | chen.OTHERS | balanced.OTHERS  # name: where it is instead


class _Files(NamedTuple):
    """What is written of a reproduction, beside its page."""

    rows: str = "results.csv"
    result: str = "shown.json"
    figure: str = "figure.png"


FILES = _Files()
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
        require(
            self.jobs == 1 or self.vmapped != "yes", "--vmapped yes is for one process: --jobs 1"
        )
        for name in ("row", "only", "dry_run", "retry"):
            flag = name.replace("_", "-")
            require(self.item is not None or not getattr(self, name), f"--{flag} needs an ITEM")
        require(self.dry_run or not self.measure, "--measure needs --dry-run")


def main(options: ReproduceConfig, command: str = "") -> None:
    """Lists all, says what one would cost, or reproduces it."""
    if options.item is None:
        _list(options)
        return
    reproduction = find(options.item)
    scale = reproduction.scales.get(options.scale)
    require(
        scale is not None,
        f"{options.item} has no --scale {options.scale}: take --scale "
        f"{' or '.join(reproduction.scales)}",
    )
    context = Context(
        options.scale,
        options.out / options.item.partition("/")[0] / f"runs-{options.scale}",
        folder(options.out, options.item, options.scale, options.row),
        options.data_dir,
        options.row,
    )
    by_row = [name for name, each in REPRODUCTIONS.items() if options.scale in each.by_row]
    require(
        options.row is None or options.item in by_row,
        f"--row: at --scale {options.scale}, {options.item} is no table of encoders; those are "
        f"{', '.join(sorted(by_row, key=order))}",
    )
    if options.dry_run:
        _dry_run(scale, context, options)
        return
    rows, errors, total = _carry_out(scale, context, options, command)
    failed = [row for row in rows if row["status"] == "failed"]
    for line in (*(f"failed: {row['run']}: {row['reason']}" for row in failed), *errors):
        print(line, file=sys.stderr)
    if failed:
        print("--retry does those again that failed", file=sys.stderr)
    if rows:
        results.write(context.folder / FILES.rows, rows)
    require(bool(done(rows)) or not scale.stages, "no run is done, for the reasons above")
    ended = len({row["run"] for row in rows})
    part = f"{ended} of {total} planned runs are done or failed." if ended < total else ""
    lost = f"{len(failed)} of {total} runs failed: results.csv says why." if failed else ""
    result = reproduction.result(context, rows)
    result = result._replace(text=[*result.text, *filter(None, [lost, part])])
    figures = [(path.name, caption) for path, caption in result.figures]
    record = {**result._asdict(), "figures": figures, "part": part}
    write_json(context.folder / FILES.result, record)
    page = _page(context, result, command)
    report.print_table(result.columns, result.rows, title=result.title)
    print("\n" + "\n".join(result.text))
    if result.verdict:
        print(f"Verdict: {result.verdict}.")
    for path, _ in result.figures:
        print(f"picture: {path}")
    print(f"page: {page}")
    require(
        not errors,
        f"{len(errors)} run(s) are not done, for the reasons above; once these are gone, the same "
        "command does the rest",
    )


def _carry_out(
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
            _chosen(planned, options) if number == 0 else planned,
            jobs=options.jobs,
            retry=options.retry,
            command=command,
            logs=context.folder / "logs",
            vmapped={"yes": True, "no": False, "auto": None}[options.vmapped],
            log=lambda line: print(line, file=sys.stderr),
        )
        rows += sweeps.known(planned)  # also those of an earlier command without --only
        if len({row["run"] for row in rows}) < len(names):
            break  # what a later stage does depends on all of this one
    return rows, errors, len(names)


def _chosen(planned: list[Planned], options: ReproduceConfig) -> list[Planned]:
    chosen = matching(planned, options.only)
    require(
        bool(chosen),
        f"--only {' '.join(options.only)}: no run has such a name; --dry-run prints them",
    )
    return chosen


def folder(out: Path, item: str, scale: str, row: int | None = None) -> Path:
    """Of a reproduction's table, pictures and page."""
    return out / (item if row is None else f"{item}-row{row}") / scale


def find(name: str) -> Reproduction:
    """A reproduction by its name.

    Raises:
      UserError: for an unknown name, with the nearest one; or one that is not reproduced.
    """
    if name in REPRODUCTIONS:
        return REPRODUCTIONS[name]
    if name in OTHERS:
        raise UserError(f"{name}: nothing to reproduce here: {OTHERS[name]}")
    near = difflib.get_close_matches(name, REPRODUCTIONS, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else "`python run.py reproduce` lists them"
    raise UserError(f"no item {name!r}: {hint}")


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


def _list(options: ReproduceConfig) -> None:
    columns = ["item", "scale", "data", "here", "encoders", "hours on 2 cores"]
    rows, here = [], {}
    ordered = sorted(REPRODUCTIONS.items(), key=lambda named: order(named[0]))
    for name, reproduction in ordered:
        scales = reproduction.scales
        if len(set(scales.values())) < len(scales):  # nothing depends on it
            scales = {"both": scales["paper"]}
        for number, (scale, needs) in enumerate(scales.items()):
            context = Context(scale, Path("runs"), Path("runs"), options.data_dir)
            for each in needs.data:
                here.setdefault(each, _is_here(each, options.data_dir))
            first = needs.stages[0](context, []) if needs.stages else []
            rows.append(
                [
                    name if number == 0 else "",
                    scale,
                    ", ".join(needs.data) or "none",
                    "yes" if all(here[each] for each in needs.data) else "no",
                    len(first),
                    f"{needs.hours:.1g}" if needs.hours < 1 else f"{needs.hours:,.0f}",
                ]
            )
    report.print_table(columns, rows, title="Tables, figures and theorems of the papers")
    print(
        "\nhere: whether the data are in --data-dir. hours on 2 cores: of a CPU, for all runs; at\n"
        "--scale paper, which is meant for GPUs, an estimate for comparison. `ITEM --dry-run` has\n"
        "the hours of this device.\n"
    )
    for name, reproduction in ordered:
        print(f"  {name:<21}{reproduction.title}")
    print("\nNothing to reproduce:")
    for name, why in OTHERS.items():
        print(f"  {name:<21}{why}")


def order(name: str) -> list:
    """By which names are sorted: by paper, and figure2 before figure10."""
    paper, _, item = name.partition("/")
    parts = (int(part) if part.isdigit() else part for part in re.split(r"(\d+)", item))
    return [list(PAPERS).index(paper), *parts]


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
    planned = _chosen(scale.stages[0](context, []), options)
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
