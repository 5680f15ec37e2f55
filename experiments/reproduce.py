"""The papers' tables, figures and theorems: `python run.py reproduce ITEM --scale SCALE`.

An item is a file in the folder of its paper, e.g. `wang_isola/figure7.py` for
`wang-isola/figure7`. It contains

    SCALES               the scales at which it can run
    SETTINGS             columns that distinguish its settings, if it trains encoders
    runs(scale, rows)    its runs, if it trains encoders; `rows` are the results so far, on which
                         later runs may depend
    analyze(rows)        a tidy table: claim, effect, interval, p, verdict
    plot(rows, path)     its picture, if it has one
"""

import functools
import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

from experiments.lib.rates import final
from experiments.lib.records import Rows, write_csv, write_results
from experiments.lib.stats import summarize
from experiments.lib.sweep import Plan, placed, read_rows, run_all
from experiments.options import ReproduceConfig
from hypersphere_jax.configs import UserError, require
from hypersphere_jax.configs.base import did_you_mean
from hypersphere_jax.reporting.tables import print_table

FOLDER = Path(__file__).parent
RECORDED = FOLDER.parent / "docs" / "results"
PAPERS = ("wang-isola", "chen", "balanced")
# Tables whose encoders belong to another item.
COVERED = {
    "wang-isola/table2": "wang-isola/figure5b",
    "wang-isola/table9": "wang-isola/figure5b",
    "wang-isola/table3": "wang-isola/figure9a",
    "wang-isola/table10": "wang-isola/figure9a",
    "chen/tableD3": "chen/tableD2",
}


def item_names() -> list[str]:
    """Return all items by paper, figure2 before figure10."""
    names = []
    for paper in PAPERS:
        stems = [file.stem for file in (FOLDER / paper.replace("-", "_")).glob("*.py")]
        stems = [s for s in stems if re.match(r"(figure|proposition|table|theorem)\w?\d", s)]
        stems.sort(key=lambda stem: re.sub(r"\d+", lambda number: number[0].zfill(2), stem))
        names += [f"{paper}/{stem.replace('_', '.')}" for stem in stems]
    return names


def find(item: str) -> ModuleType:
    """Return the module of an item.

    Raises:
      UserError: for an unknown item; the message suggests a similar one.
    """
    names = item_names()
    item = COVERED.get(item, item)
    hint = did_you_mean(item, names) or "; `python run.py reproduce` lists them"
    require(item in names, f"no item {item!r}{hint}")
    path = item.replace("-", "_").replace(".", "_").replace("/", ".")
    return importlib.import_module(f"experiments.{path}")


def plan_of(module: ModuleType, scale: str) -> Plan:
    """Return the runs of an item as a function of the results so far."""
    if hasattr(module, "runs"):
        return functools.partial(module.runs, scale)
    return lambda rows: []


def recorded_folder(item: str, scale: str) -> Path:
    """Return the folder of a recorded result in docs/."""
    return RECORDED / f"{item.replace('/', '-')}-{scale}"


def main(options: ReproduceConfig, command: str = "") -> None:
    """List all items, describe one, or reproduce it."""
    if options.item is None:
        print_items()
        return
    module = find(options.item)
    scales = " or ".join(module.SCALES)
    if options.scale is None:
        print(module.__doc__)
        message = f"choose a scale: python run.py reproduce {options.item} --scale {scales}"
        raise UserError(message)
    message = f"{options.item} has no --scale {options.scale}: take --scale {scales}"
    require(options.scale in module.SCALES, message)
    folder = Path(options.runs_dir, "reproduce")
    runs_dir = folder / options.item.partition("/")[0] / f"runs-{options.scale}"
    plan = plan_of(module, options.scale)
    if options.dry_run:
        runs = [placed(run, runs_dir, options) for run in plan([])]
        lines = [{**run.labels, "done": read_rows(run) is not None} for run in runs]
        print_rows(lines, f"{len(runs)} runs; later ones may depend on their results")
        return
    rows = run_all(plan, runs_dir, options, command)
    report(module, options.item, rows, folder / options.item / options.scale)


def print_items() -> None:
    """Print all items with their scales and recorded results."""
    lines = []
    for item in item_names():
        module = find(item)
        title = (module.__doc__ or "").splitlines()[0].partition(": ")[2]
        recorded = [scale for scale in module.SCALES if recorded_folder(item, scale).is_dir()]
        lines.append([item, ", ".join(module.SCALES), ", ".join(recorded) or "-", title])
    print_table(["item", "scales", "recorded", "what"], lines)


def report(module: ModuleType, item: str, rows: Rows, folder: Path) -> None:
    """Write and print results, analysis and picture."""
    for row in rows:
        if row["status"] == "failed":
            print(f"failed: {row['run']}: {row['reason']}", file=sys.stderr)
    if rows:
        write_results(folder, rows)
        summary = summarize(final(rows), module.SETTINGS)
        print_rows(summary, f"{item}: means, ± half of the 95% interval")
    lost = failed_settings(module, rows)
    require(not lost, f"no analysis, because all runs of {lost} failed: see {folder}/results.csv")
    table = module.analyze(rows)
    print_rows(table, f"{item}: analysis")
    write_csv(folder / "analysis.csv", table)
    if hasattr(module, "plot"):
        module.plot(rows, folder / "figure.png")
    print(f"results: {folder}")


def failed_settings(module: ModuleType, rows: Rows) -> list[tuple]:
    """Return the settings of which no run finished."""
    statuses: dict[tuple, set[str]] = {}
    for row in final(rows):
        setting = tuple(row.get(name) for name in module.SETTINGS if name != "step")
        statuses.setdefault(setting, set()).add(row["status"])
    return [setting for setting, found in statuses.items() if found == {"failed"}]


def print_rows(rows: Rows, title: str) -> None:
    """Print dicts as a table."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    print_table(columns, [[row.get(name) for name in columns] for row in rows], title)
