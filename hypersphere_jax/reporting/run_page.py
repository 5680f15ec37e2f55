"""Page of a run: results, curves, pictures, options, and the next commands."""

import logging
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hypersphere_jax.configs import PretrainConfig, UserError, to_dict
from hypersphere_jax.configs.base import program
from hypersphere_jax.evaluate.results_file import flattened
from hypersphere_jax.reporting import plots
from hypersphere_jax.reporting.page import Section, Table, write_page
from hypersphere_jax.reporting.results import evaluation_section
from hypersphere_jax.training.metrics import read_metrics
from hypersphere_jax.training.run_dir import read_record
from hypersphere_jax.utils.files import read_kept

logger = logging.getLogger("hypersphere_jax")

# Captions by file name, in the order of the page. Other figures follow.
CAPTIONS = {
    "training_curves": "Training curves",
    "augmented_views": "Training images, each with two random views, before normalization",
    "nearest_neighbours": "Images and their nearest training images with the cosine similarity. "
    "Solid blue: same class. Dashed orange with a cross: another class",
}


def write_run_page(folder: str | Path) -> Path:
    """Write report.html into the folder of a run, and return its path.

    Raises:
      UserError: If the folder contains no run, or its config.json is damaged.
    """
    folder = Path(folder)
    record = read_record(folder)
    metrics = read_metrics(folder)
    name = folder.resolve().name
    if len(metrics) > 1:
        plots.training_curves({name: metrics}, folder / "figures" / "training_curves.png")
    last = metrics[-1] if metrics else {}
    command = record["sessions"][-1].get("command", "")
    commands = [*next_commands(folder), *filter(None, [command])]
    sections = [
        Section("Last record of training", tables=[Table(list(last), [list(last.values())])]),
        evaluation_section([folder]),
        Section("Figures", figures=_figures(folder)),
        *_sentences(folder),
        _options(record),
        Section("Evaluate the run, or resume it", commands=commands),
    ]
    return write_page(folder / "report.html", name, sections)


def update_pages(folders: Iterable[str | Path]) -> list[Path]:
    """Write the pages of runs; log a warning for each page that cannot be written."""
    pages = []
    for folder in folders:
        try:
            pages.append(write_run_page(folder))
        except (UserError, OSError, ValueError) as error:
            logger.warning("%s: its page is not written: %s", folder, error)
    return pages


def next_commands(folder: Path) -> list[str]:
    """Return the commands that evaluate a run, as far as its data has labels and a test split."""
    record = read_record(folder)
    config = flattened(record["config"])
    data = record.get("data", {})
    run = shlex.quote(str(folder))
    metrics = f"metrics {run}"
    has_test = data.get("test_split", True)
    if not has_test:
        metrics += " --split train"
    if config.get("vocabulary_size"):
        options = "--data mr cr --data-dir FOLDER --protocols quick_thought knn"
        verbs = [metrics, f"probe {run} {options}"]
    elif str(config.get("recipe")).startswith("nyu_depth"):
        verbs = [f"depth {run}", metrics]
    elif not has_test or not data.get("labels", True):
        verbs = [metrics]
    elif config.get("num_classes"):
        verbs = [f"probe {run}", metrics]
    else:
        verbs = [f"probe {run}", metrics, f"finetune {run}"]
    return [f"{program()} {verb}" for verb in verbs]


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
    defaults = _as_text(to_dict(PretrainConfig()))
    config = _as_text(record["config"])
    others = _as_text({key: value for key, value in record.items() if key != "config"})
    changed = {key: value for key, value in config.items() if defaults.get(key) != value}
    unchanged = {key: value for key, value in config.items() if key not in changed}
    columns = ["option", "value"]
    tables = [
        Table(columns, list(changed.items())),
        Table(columns, list(unchanged.items()), "Defaults", folded=True),
        Table(["", "value"], list(others.items()), "Sessions, versions and data", folded=True),
    ]
    return Section("Options that are not the defaults", tables=tables)


def _as_text(options: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in flattened(options).items()}
