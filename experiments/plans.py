"""What reproductions would take: their runs, time and memory, before anything is begun."""

import fnmatch
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments import costs, measured_steps, step_costs, sweeps
from experiments.costs import Cost, Machine, memory_text, time_text
from experiments.reproduction import Context, Scale
from experiments.statistics import Rows
from experiments.sweeps import Planned
from hypersphere_jax.configs import PretrainConfig, require
from hypersphere_jax.reporting.tables import print_table
from hypersphere_jax.utils.terminal import say

KEPT = Path(__file__).parent.parent / "docs" / "results"
MANY = 20  # runs beyond which a dry run counts those that take the same
MOST_PAIRS = 32  # of a step of images that is measured on a CPU: its time grows with them
# Of a run: the results that the paper printed of it, on its validation split.
PRINTED = ("paper_val_", "paper_top1")


class Plan(NamedTuple):
    """The runs of a scale, and what is still to do."""

    runs: dict[str, Planned]  # by name: of all stages, as far as they can be told
    ended: dict[str, str]  # by name: `done`, or `failed`
    costs: dict[str, Cost]  # by name: of the runs that are still to do
    seconds: float  # of these, as many at a time as asked for
    memory: float  # bytes, of those that train at a time; on accelerators of one
    whole: bool  # whether no runs follow that depend on what these give


Steps = Mapping[str, float | str]  # measured seconds of a step by run, or why there are none


def plan(
    scale: Scale,
    context: Context,
    here: Machine,
    only: Sequence[str] = (),
    jobs: int = 1,
    retry: bool = False,
    steps: Steps | None = None,
) -> Plan:
    """The runs of a scale and what they take here. Nothing is begun, no data are opened.

    Args:
      scale: of a reproduction.
      context: where its runs are.
      here: what they run on.
      only: patterns of names, see `matching`.
      jobs: runs at a time.
      retry: whether those that failed are to do again.
      steps: what `measure` gave; None: their stored costs.
    """
    runs: dict[str, Planned] = {}
    rows: Rows = []
    whole = True
    for number, stage in enumerate(scale.stages):
        done = {row["run"] for row in rows} >= runs.keys()
        if number and only and not done:
            break  # it waits for runs that are not asked for
        planned = stage(context, rows if done else [])
        whole = whole and (done or bool(planned))
        planned = planned if number else matching(planned, only)
        runs |= {one.config.name: one for one in planned}
        rows += sweeps.known(planned)
    ends = ("done",) if retry else ("done", "failed")
    ended = {
        row["run"]: row["status"] for row in rows if row["status"] in ends and row["run"] in runs
    }
    to_do = [one for name, one in runs.items() if name not in ended]
    at_a_time = max(1, min(jobs, len(to_do)))
    mine = here.shared(at_a_time)
    needs = {
        one.config.name: costs.cost(one, mine, context.laptop, (steps or {}).get(one.config.name))
        for one in to_do
    }
    seconds = sum(need.seconds for need in needs.values()) / at_a_time
    memory = max((need.memory for need in needs.values()), default=0.0)
    memory *= here.jobs_on_each(at_a_time)
    return Plan(runs, ended, needs, seconds, memory, whole)


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
        bool(chosen),
        f"--only {' '.join(patterns)}: no run has such a name; --dry-run --only '*' prints them",
    )
    names = {config.name for config in chosen}
    names |= {Path(config.init_from).name for config in chosen if config.init_from}
    return [one for one in planned if one.config.name in names]


COLUMNS = ["scale", "runs", "time", "memory", "data", "here", "done", "recorded"]


def line(item: str, scale: Scale, context: Context, made: Plan) -> list:
    """What an item takes at a scale, for a table with `COLUMNS`."""
    here = all(costs.is_here(name, context.data_dir) for name in scale.data)
    return [
        context.scale,
        f"{len(made.runs)}{'' if made.whole else '+'}",
        time_text(made.seconds if scale.stages else scale.seconds),
        memory_text(made.memory) if made.costs else "-",
        ", ".join(scale.data) or "none",
        "yes" if here else "no",
        len(made.ended),
        "yes" if kept(item, context.scale).is_dir() else "no",
    ]


def notes(here: Machine, made: Iterable[Plan]) -> list[str]:
    """What one should know of the columns."""
    lines = [
        f"time: on {here.name}, of the runs that are not done yet: an estimate, within a factor of "
        "two of what we measured at --scale laptop.",
        f"memory: of {memory_text(here.memory)}. here: whether the data are in --data-dir. done: "
        "runs in --out.",
        "recorded: whether a result of ours is in docs/results.md.",
    ]
    if not all(one.whole for one in made):
        lines.append("+: more runs follow, which depend on what these give.")
    return lines


def on_gpus(made: Plan, laptop: bool) -> str:
    """The time of a plan on one GPU, by kinds."""
    times = []
    for name, flop in costs.SUSTAINED.items():
        gpu = Machine(name, 1, flop, math.inf, 0)
        each = (costs.cost(made.runs[run], gpu, laptop).seconds for run in made.costs)
        times.append(f"{name} {time_text(sum(each))}")
    return f"on one GPU about: {', '.join(times)}."


def print_runs(title: str, made: Plan, here: Machine, steps: Steps, names: bool = False) -> None:
    """A line for each run of a plan; of many, without `names`, one for those that take the same."""
    some = next(iter(made.runs.values()))
    printed = next((name for name in some.about if name.startswith(PRINTED)), "")
    columns = ["run", "loss", "d", "pairs", "steps", "s / step", "time", "memory"]
    columns += ["paper"] if printed else []
    rows = []
    for name, one in made.runs.items():
        row = [name, *(one.about[what] for what in ("loss", "dim", "batch"))]
        if (need := made.costs.get(name)) is None:
            row += [None, None, made.ended[name], None]
        elif isinstance(reason := steps.get(name), str):
            row += [need.steps, reason, "-", memory_text(need.memory)]
        else:
            times = step_text(need.step), time_text(need.seconds)
            row += [need.steps, *times, memory_text(need.memory)]
        rows.append(row + ([one.about.get(printed)] if printed else []))
    counted = len(rows) > MANY and not names
    if counted:
        alike: dict[tuple, list] = {}
        for name, _, _, *takes in rows:
            alike.setdefault(tuple(takes[:5]), []).append(name)
        columns = ["such as", "runs", *columns[3:6], "time of each", "memory"]
        rows = [[of[0], len(of), *takes] for takes, of in alike.items()]
    print_table(columns, rows, title=title)
    say(f"\n{summary(made, here)}")
    if counted:
        say("--only '*' prints all names, with their losses and the paper's numbers.")
    elif printed:
        say(f"paper: its {printed.removeprefix('paper_').replace('_', ' ')}")
    if any(isinstance(of, str) for of in steps.values()):
        say("The sum is without the runs whose step could not be measured.")
    elif steps:
        say(
            "s / step: measured with random images or words; of images on a CPU with "
            f"{MOST_PAIRS} pairs at most, in proportion for more. What else runs here counts as "
            "well: on a busy machine it can be several times too long."
        )
    else:
        say(
            "time: an estimate, within a factor of two of what we measured at --scale laptop; "
            "--measure takes the time of a step here."
        )
    say("Start, training and evaluation are counted, decoding of images is not.")


def summary(made: Plan, here: Machine) -> str:
    """Such as `6 runs, 2 of them done; the rest: about 12 min on 2 CPU cores, 0.7 GB of memory`."""
    some = f"{len(made.runs)} runs" if len(made.runs) > 1 else "1 run"
    if not made.costs:
        return f"{some}, all done"
    done = f", {len(made.ended)} of them done; the rest" if made.ended else ""
    return (
        f"{some}{done}: about {time_text(made.seconds)} on {here.name}, "
        f"{memory_text(made.memory)} of memory"
    )


def step_text(seconds: float) -> str:
    """Seconds with two digits, such as `0.016` or `76`."""
    return f"{seconds:,.0f}" if seconds >= 9.95 else f"{seconds:.{1 if seconds >= 1 else 4}f}"


def measure(made: Plan, here: Machine) -> Steps:
    """Measured seconds of a step of each run that is still to do, or why there are none."""
    steps: dict[str, float | str] = {}
    known: dict[tuple[str, int], float | str] = {}
    asked = {name: _measured_as(made.runs[name].config, here) for name in made.costs}
    total = len(set(asked.values()))
    for name, (key, pairs) in asked.items():
        config = made.runs[name].config
        if (key, pairs) not in known:
            _log(f"measuring {len(known) + 1} of {total}: {key}, {pairs} pairs")
            plain = step_costs.with_pairs(costs.plain(config), pairs)
            limit = measured_steps.free(here.memory)
            known[key, pairs] = outcome = measured_steps.measured(plain, limit)
            _log(f"  {outcome if isinstance(outcome, str) else f'{step_text(outcome)} s a step'}")
        outcome = known[key, pairs]
        batch = config.batch_size / max(1, here.devices)
        steps[name] = outcome if isinstance(outcome, str) else outcome * batch / pairs
    return steps


def _measured_as(config: PretrainConfig, here: Machine) -> tuple[str, int]:
    """What tells the step that is measured for a run: its stored cost, and its pairs."""
    batch = config.batch_size
    if here.devices:
        pairs = math.ceil(batch / here.devices)
    else:
        pairs = batch if config.reads_text else min(batch, MOST_PAIRS)
    return costs.key(config), pairs


def _log(text: str) -> None:
    say(text, sys.stderr)


def kept(item: str, scale: str) -> Path:
    """The folder of the project's own result of an item."""
    return KEPT / f"{item.replace('/', '-')}-{scale}"
