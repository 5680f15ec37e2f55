"""Page of a run: results, curves, pictures, options, and the next commands."""

import contextlib
import logging
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hypersphere_jax.configs import PretrainConfig, UserError, to_dict
from hypersphere_jax.configs.base import program
from hypersphere_jax.reporting import pictures, plots
from hypersphere_jax.reporting.page import Section, Table, write_page
from hypersphere_jax.reporting.tables import with_error
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
HEADERS = {"top1": "top-1 (%)", "top1_interval": "95% interval", "top5": "top-5 (%)"}
NOT_SHOWN = {"run", "protocol", "num_classes", "gradient_norm", "chosen_at_edge"}


def draw_run_page(folder: Path, config: PretrainConfig | None = None, redraw: bool = True) -> Path:
    """Draw the pictures of a run, see `pictures.draw_pictures`, and write its page."""
    pictures.draw_pictures(folder, config, redraw)
    return write_run_page(folder)


def write_run_page(folder: Path) -> Path:
    """Write report.html into the folder of a run, and return its path."""
    record = run_dir.read_record(folder)
    metrics = read_metrics(folder)
    name = folder.resolve().name
    last = metrics[-1] if metrics else {}
    if len(metrics) > 1:
        plots.training_curves({name: metrics}, folder / "figures" / "training_curves.png")
    files = {file.stem: file for file in sorted((folder / "figures").glob("*.png"))}
    order = [*(stem for stem in CAPTIONS if stem in files), *files]
    figures = {files[stem]: CAPTIONS.get(stem, stem.replace("_", " ")) for stem in order}
    sentences = read_kept(folder / "figures" / "nearest_sentences.json", ("columns", "rows"))
    commands = [*next_commands(folder), record["sessions"][-1].get("command") or ""]
    sections = [
        Section("Last record of training", tables=[Table(list(last), [list(last.values())])]),
        evaluation_section([folder]),
        Section("Figures", figures=figures),
        _options(record),
        Section("Evaluate the run, or resume it", commands=commands),
    ]
    if sentences is not None:
        table = Table(sentences["columns"], sentences["rows"])
        sections.insert(3, Section("Nearest sentences", tables=[table]))
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
    has_test = splits.get("test_split", True)
    commands = ["metrics RUN" if has_test else "metrics RUN --split train"]
    if config.reads_text:
        sentences = "--data mr cr --data-dir FOLDER --protocols quick_thought knn"
        commands.append(f"probe RUN {sentences}")
    elif (config.recipe or "").startswith("nyu_depth"):
        commands.insert(0, "depth RUN")
    elif has_test and splits.get("labels", True):
        commands.insert(0, "probe RUN")
        if not config.num_classes:
            commands.append("finetune RUN")
    run = shlex.quote(str(folder))
    return [f"{program()} {command.replace('RUN', run)}" for command in commands]


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


# Evaluation results in the folders of runs.


def read_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the results of a run by the stem of their file; damaged files are left out."""
    results = {file.stem: read_kept(file) for file in sorted((folder / "eval").glob("*.json"))}
    return {stem: result for stem, result in results.items() if result is not None}


def run_names(folders: Sequence[Path]) -> dict[str, Path]:
    """Return run folders by name, or by path if two have the same name."""
    names = {folder.resolve().name: folder for folder in folders}
    if len(names) == len(folders):
        return names
    return {str(folder): folder for folder in folders}


def evaluation_section(folders: Sequence[Path]) -> Section:
    """Return all results of some runs, with a table for each protocol."""
    by_protocol: dict[str, list[dict]] = {}
    for name, folder in run_names(folders).items():
        for stem, result in read_results(folder).items():
            row = {"run": name, "result": stem} | _shown(result)
            by_protocol.setdefault(str(result.get("protocol", stem)), []).append(row)
    tables = []
    for protocol, rows in by_protocol.items():
        keys = dict.fromkeys(key for row in rows for key in row)
        columns = [HEADERS.get(key, key.replace("_", " ")) for key in keys]
        tables.append(Table(columns, [[row.get(key) for key in keys] for row in rows], protocol))
    return Section("Evaluation", ["± is the standard error. New results: probe, metrics."], tables)


def _shown(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a result: scores with their errors, intervals, and options."""
    row = {}
    for key, value in result.items():
        is_hidden = key in NOT_SHOWN or "seconds" in key or key.endswith("_standard_error")
        is_array = isinstance(value, list) and not key.endswith("_interval")
        if is_hidden or is_array or value is None:
            continue
        error = result.get(f"{key}_standard_error")
        if isinstance(value, float) and isinstance(error, float):
            value = with_error(value, error)
        row[key] = value
    return row
