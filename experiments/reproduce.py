"""The papers' tables and figures, each by one command: `python run.py reproduce ITEM`."""

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from experiments import balanced, chen, costs, plans, predictions, rates, sweeps, wang_isola
from experiments.costs import Machine, memory_text, time_text
from experiments.options import ReproduceConfig
from experiments.plans import Plan
from experiments.reproduction import Context, Reproduction, Result, Scale
from experiments.statistics import Rows, done
from hypersphere_jax.configs import PretrainConfig, UserError, require
from hypersphere_jax.configs.base import did_you_mean
from hypersphere_jax.data import tfds
from hypersphere_jax.evaluate import results_file
from hypersphere_jax.reporting.page import Section, Table, write_page
from hypersphere_jax.reporting.tables import print_table
from hypersphere_jax.utils.files import read_kept, write_json
from hypersphere_jax.utils.terminal import say

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
HEAD = ["data", "network", "epochs", "seeds", "encoders"]  # of the table on top of a page
# What is written of a reproduction, beside its page and figure.
ROWS, PREDICTIONS, RESULT = "results.csv", "predictions.npz", "shown.json"
# Seconds beyond which `--yes` is asked for.
LONG = 3600


def main(options: ReproduceConfig, command: str = "") -> None:
    """Lists all, says what one would take, or reproduces it."""
    if options.item is None:
        _list(options)
        return
    reproduction = find(options.item)
    scales = reproduction.scales
    name = options.scale or list(scales)[-1]
    where = f"{options.item} at --scale {name}"
    require(name in scales, f"no {where}: take --scale {' or '.join(scales)}")
    typed = command or f"python run.py reproduce {options.item}"
    if options.scale is None and _differ(scales):
        _choose(reproduction, options, typed)
        return
    require(
        options.row is None or name in reproduction.by_row,
        f"--row: {where} is no table of encoders",
    )
    scale, context = scales[name], _context(options, name)
    if options.dry_run and not scale.stages:
        say(f"{options.item}: nothing to train; the command without --dry-run computes it")
        return
    if scale.stages and not _begins(scale, context, options, typed):
        return
    rows, errors, total = _train(scale, context, options, command)
    failed = [row for row in rows if row["status"] == "failed"]
    for line in (*(f"failed: {row['run']}: {row['reason']}" for row in failed), *errors):
        say(line, sys.stderr)
    if failed:
        say("--retry does those again that failed", sys.stderr)
    if rows:
        results_file.write_results(context.folder / ROWS, predictions.without(rows))
        predictions.write(context.folder / PREDICTIONS, rows)
    require(bool(done(rows)) or not scale.stages, "no run is done, for the reasons above")
    ended = len({row["run"] for row in rows})
    part = f"{ended} of {total} planned runs are done or failed." if ended < total else ""
    result = result_of(reproduction, context, rows, part)
    write_json(context.folder / RESULT, written(result) | {"part": part})
    page = _page(context, _trained(scale, context, rows), result, command)
    print_table(result.columns, result.rows, title=result.title)
    say("\n" + "\n".join(result.text))
    if result.verdict:
        say(f"Found: {result.verdict}")
    for path, _ in result.figures:
        say(f"picture: {path}")
    say(f"page: {page}")
    require(not errors, f"{len(errors)} run(s) are not done, for the reasons above")


def result_of(reproduction: Reproduction, context: Context, rows: Rows, part: str = "") -> Result:
    """The result of these rows; its text ends with the runs that failed, and what is not done."""
    result = reproduction.result(context, rows)
    return result._replace(text=[*result.text, *_lost(rows), *([part] if part else [])])


def written(result: Result) -> dict:
    """A result as its JSON file has it."""
    figures = [[path.name, caption] for path, caption in result.figures]
    return result._asdict() | {"figures": figures, "summary": result.summary}


def _lost(rows: Rows) -> list[str]:
    """How many runs failed, those that only chose a learning rate apart."""
    kinds = {"encoders": rates.final(rows), "runs that choose rates": rates.of_candidates(rows)}
    lost = {
        kind: {row["run"]: row["status"] == "failed" for row in of} for kind, of in kinds.items()
    }
    return [
        f"{sum(of.values())} of {len(of)} {kind} failed: results.csv says why."
        for kind, of in lost.items()
        if any(of.values())
    ]


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


def all_configs() -> list[PretrainConfig]:
    """Of every run of every item and scale that can be told before any is done."""
    return [
        one.config
        for reproduction in REPRODUCTIONS.values()
        for name, scale in reproduction.scales.items()
        for stage in scale.stages
        for one in stage(Context(name, Path(), Path()), [])
    ]


def _differ(scales: dict[str, Scale]) -> bool:
    """Whether there is a choice: what trains nothing is the same at both scales."""
    return len({id(scale) for scale in scales.values()}) > 1


def _context(options: ReproduceConfig, scale: str, item: str | None = None) -> Context:
    item = item or options.item or ""
    return Context(
        scale,
        options.folder / item.partition("/")[0] / f"runs-{scale}",
        result_folder(options.folder, item, scale, options.row),
        options.data_dir,
        options.row,
    )


def _plan(
    scale: Scale,
    context: Context,
    options: ReproduceConfig,
    here: Machine,
    steps: plans.Steps | None = None,
) -> Plan:
    return plans.plan(scale, context, here, options.only, options.jobs, options.retry, steps)


def _choose(reproduction: Reproduction, options: ReproduceConfig, command: str) -> None:
    """What each scale would take; status 2, as one has to be chosen, unless `--dry-run`."""
    scales = {
        name: scale
        for name, scale in reproduction.scales.items()
        if options.row is None or name in reproduction.by_row
    }
    require(bool(scales), f"--row: {options.item} is no table of encoders")
    for flag in ("only", "measure"):
        require(not getattr(options, flag), f"--{flag} needs a --scale: {' or '.join(scales)}")
    here = costs.machine(apart=options.jobs > 1)
    made = {
        name: _plan(scale, _context(options, name), options, here) for name, scale in scales.items()
    }
    _print_scales(reproduction, made, here, options)
    for name in made:
        if record := read_kept(plans.kept(options.item or "", name) / RESULT, {"summary": str}):
            say(f"\nrecorded at --scale {name}: {record['summary']}")
    commands = [f"  {command} --scale {name}" for name in made]
    say("\n".join(["", "choose a scale:", *commands]), sys.stderr)
    if not options.dry_run:
        raise SystemExit(2)


def _print_scales(
    reproduction: Reproduction, made: dict[str, Plan], here: Machine, options: ReproduceConfig
) -> None:
    rows = [
        plans.line(options.item or "", reproduction.scales[name], _context(options, name), one)
        for name, one in made.items()
    ]
    print_table(plans.COLUMNS, rows, title=f"{options.item}: {reproduction.title}")
    say("\n" + "\n".join(plans.notes(here, made.values())))
    if "paper" in made and not here.devices:
        say(f"--scale paper, {plans.on_gpus(made['paper'], laptop=False)}")


def _begins(scale: Scale, context: Context, options: ReproduceConfig, command: str) -> bool:
    """Whether the runs are to begin; in a dry run, prints what each of them takes.

    Raises:
      UserError: without their data; for runs that take long, or more memory than there is,
        without `--yes`.
    """
    here = costs.machine(apart=options.jobs > 1 or options.measure)
    made = _plan(scale, context, options, here)
    where = f"{options.item} at --scale {context.scale}"
    if options.dry_run:
        steps = plans.measure(made, here) if options.measure else {}
        made = _plan(scale, context, options, here, steps)
        plans.print_runs(where, made, here, steps, names=bool(options.only))
        if context.scale == "paper" and not here.devices:
            say(f"time {plans.on_gpus(made, context.laptop)}")
        return False
    to_do = [made.runs[name] for name in made.costs]
    used = {one.config.data for one in to_do}
    used |= {"sentiment" for one in to_do if one.evaluation.tasks}
    away = [name for name in sorted(used) if not costs.is_here(name, context.data_dir)]
    require(
        not away,
        f"{where} needs {' and '.join(away)}, not found in "
        f"{context.data_dir or tfds.data_root(None)}: --data-dir says where, see docs/data.md",
    )
    reasons = []
    if made.seconds > LONG:
        reasons.append(f"about {time_text(made.seconds)} on {here.name}")
    if made.memory > here.memory:
        reasons.append(f"{memory_text(made.memory)} of memory, of {memory_text(here.memory)}")
    if reasons and not options.yes:
        _print_scales(find(options.item or ""), {context.scale: made}, here, options)
        raise UserError(f"this takes {' and '.join(reasons)}; to begin: {command} --yes")
    if made.costs:
        say(f"{where}: {plans.summary(made, here)}, in {context.runs_dir}", sys.stderr)
    return True


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
            plans.matching(planned, options.only) if number == 0 else planned,
            jobs=options.jobs,
            retry=options.retry,
            command=command,
            logs=context.folder / "logs",
            vmapped={"yes": True, "no": False, "auto": None}[options.vmapped],
        )
        rows += sweeps.with_predictions(planned)  # also those of an earlier command without --only
        if len({row["run"] for row in rows}) < len(names):
            break  # what a later stage does depends on all of this one
    return rows, errors, len(names)


def _trained(scale: Scale, context: Context, rows: Rows) -> list[list]:
    """What was trained: data, network, epochs, seeds and number of encoders, for each of `HEAD`."""
    groups: dict[tuple[str, str], dict[str, dict]] = {}
    for row in done(rows):
        file = context.runs_dir / row["run"] / "config.json"
        record = read_kept(file, ("config",))
        config = record["config"] if record else {}
        parts = [("fraction", 1.0), ("subset", "all"), ("bits", 0), ("folds", 1)]
        told = [f"{k} {config[k]}" for k, usual in parts if config.get(k, usual) != usual]
        network = str(config.get("network") or config.get("model", "-"))
        network += f", width {config['width']}" if config.get("width", 1.0) != 1 else ""
        runs = groups.setdefault((", ".join([Path(row["data"]).name, *told]), network), {})
        runs[row["run"]] = row  # one that is evaluated twice has two rows
    if not groups:
        return [[", ".join(scale.data) or "see below", "nothing is trained", "-", "-", 0]]
    return [
        [
            *group,
            *(_numbers(row[key] for row in runs.values()) for key in ("epochs", "seed")),
            len(runs),
        ]
        for group, runs in groups.items()
    ]


def _numbers(values: Iterable[int]) -> str:
    """Different numbers in order; of many consecutive ones the ends."""
    numbers = sorted(set(values))
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))


def _page(context: Context, trained: list[list], result: Result, command: str) -> Path:
    text = list(result.text)
    if result.verdict:
        text.append(f"Found: {result.verdict}")
    sections = [
        Section(tables=[Table(HEAD, trained)]),
        Section(
            text=text, tables=[Table(result.columns, result.rows)], figures=dict(result.figures)
        ),
        Section("Command", commands=[command]),
    ]
    return write_page(context.folder / "report.html", result.title, sections)


def _list(options: ReproduceConfig) -> None:
    here = costs.machine(apart=options.jobs > 1)
    made, rows = [], []
    for item, reproduction in REPRODUCTIONS.items():
        scales = reproduction.scales
        if both := len(scales) > 1 and not _differ(scales):
            scales = {"paper": scales["paper"]}
        for place, (name, scale) in enumerate(scales.items()):
            context = _context(options, name, item)
            made.append(_plan(scale, context, options, here))
            _, *line = plans.line(item, scale, context, made[-1])
            rows.append(["" if place else item, "both" if both else name, *line])
    title = "Tables, figures and theorems of the papers"
    print_table(["item", *plans.COLUMNS], rows, title=title)
    say("\n" + "\n".join(plans.notes(here, made)) + "\n")
    titles = [[name, reproduction.title] for name, reproduction in REPRODUCTIONS.items()]
    print_table(["item", "what"], titles)
    print()
    print_table(["item", "what"], [*OTHERS.items()], title="Nothing to reproduce")
