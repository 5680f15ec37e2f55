"""Page of a run: results, curves, pictures, options, and the next commands."""

import contextlib
import logging
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hypersphere_jax.configs import PretrainConfig, ReportConfig, UserError, to_dict
from hypersphere_jax.configs.base import check_output, program
from hypersphere_jax.reporting import differences, pictures, plots
from hypersphere_jax.reporting.page import Section, Table, write_page
from hypersphere_jax.reporting.results import evaluation_section
from hypersphere_jax.reporting.tables import print_table
from hypersphere_jax.training import run_dir
from hypersphere_jax.training.metrics import read_metrics
from hypersphere_jax.utils.files import read_kept

logger = logging.getLogger("hypersphere_jax")

# Captions by file name, in the order of the page. Other figures follow.
CAPTIONS = {
    "training_curves": "Training curves",
    "augmented_views": "Training images, each with two random views, before normalization",
    "nearest_neighbours": "Images and their nearest training images with the cosine similarity. "
    "Solid blue: same class. Dashed orange with a cross: another class",
}


def write_report(config: ReportConfig) -> Path:
    """Write the page of one run, or the page of several and print their table."""
    check_output(config.out, ".html")
    folders = [run_dir.find(name, config.runs_dir) for name in config.runs]
    if len(folders) == 1:
        return draw_run_page(folders[0], redraw=False)
    page = config.out or Path(config.runs_dir, "report.html")
    if config.out is not None:
        for file in differences.comparison_files(page):
            check_output(file, ".csv", ".png")
    table = differences.write_comparison(folders, page)
    print_table(table.columns, table.rows)
    return page


def draw_run_page(folder: Path, config: PretrainConfig | None = None, redraw: bool = True) -> Path:
    """Draw the pictures of a run, see `pictures.draw_pictures`, and write its page."""
    pictures.draw_pictures(folder, config, redraw)
    return write_run_page(folder)


def write_run_page(folder: Path) -> Path:
    """Write report.html into the folder of a run, and return its path.

    Raises:
      UserError: If the folder contains no run, or its config.json is damaged.
    """
    record = run_dir.read_record(folder)
    metrics = read_metrics(folder)
    name = folder.resolve().name
    if len(metrics) > 1:
        plots.training_curves({name: metrics}, folder / "figures" / "training_curves.png")
    last = metrics[-1] if metrics else {}
    commands = [*next_commands(folder), record["sessions"][-1].get("command") or ""]
    sections = [
        Section("Last record of training", tables=[Table(list(last), [list(last.values())])]),
        evaluation_section([folder]),
        Section("Figures", figures=_figures(folder)),
        *_sentences(folder),
        _options(record),
        Section("Evaluate the run, or resume it", commands=list(filter(None, commands))),
    ]
    return write_page(folder / "report.html", name, sections)


def update_pages(names: Iterable[str], runs_dir: str) -> list[Path]:
    """Write the pages of runs; names of other files are ignored, failures are logged."""
    pages = []
    for name in names:
        folders: list[Path] = []
        with contextlib.suppress(UserError):  # a file of features
            folders = run_dir.find_all(name, runs_dir)
        for folder in folders:
            try:
                pages.append(write_run_page(folder))
            except (UserError, OSError, ValueError) as error:
                logger.warning("%s: its page is not written: %s", folder, error)
    return pages


def next_commands(folder: Path) -> list[str]:
    """Return the commands that evaluate a run, as far as its data has labels and a test split."""
    config = run_dir.read_config(folder)
    splits = run_dir.read_record(folder).get("data", {})
    run = shlex.quote(str(folder))
    probe = f"probe {run}"
    metrics = f"metrics {run}"
    has_test = splits.get("test_split", True)
    if not has_test:
        metrics += " --split train"
    if config.reads_text:
        options = "--data mr cr --data-dir FOLDER --protocols quick_thought knn"
        commands = [metrics, f"{probe} {options}"]
    elif (config.recipe or "").startswith("nyu_depth"):
        commands = [f"depth {run}", metrics]
    elif not has_test or not splits.get("labels", True):
        commands = [metrics]
    elif config.num_classes:
        commands = [probe, metrics]
    else:
        commands = [probe, metrics, f"finetune {run}"]
    return [f"{program()} {command}" for command in commands]


def _figures(folder: Path) -> dict[Path, str]:
    """Return the figures of a run with their captions."""
    files = {file.stem: file for file in sorted((folder / "figures").glob("*.png"))}
    order = [*(name for name in CAPTIONS if name in files), *files]
    return {files[name]: CAPTIONS.get(name, name.replace("_", " ")) for name in order}


def _sentences(folder: Path) -> list[Section]:
    """Return the nearest sentences of a run of text."""
    table = read_kept(folder / "figures" / "nearest_sentences.json", ("columns", "rows"))
    if table is None:
        return []
    return [Section("Nearest sentences", tables=[Table(table["columns"], table["rows"])])]


def _options(record: Mapping[str, Any]) -> Section:
    defaults = to_dict(PretrainConfig())
    config = record["config"]
    changed = {key: str(value) for key, value in config.items() if defaults.get(key) != value}
    unchanged = {key: str(value) for key, value in config.items() if key not in changed}
    sessions = [[key, value] for session in record["sessions"] for key, value in session.items()]
    tables = [
        Table(["option", "value"], list(changed.items())),
        Table(["option", "value"], list(unchanged.items()), "Defaults", folded=True),
        Table(["", "value"], sessions, "Sessions", folded=True),
    ]
    return Section("Options that are not the defaults", tables=tables)
