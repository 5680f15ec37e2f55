"""Pages of runs: each one HTML file with its pictures inside."""

import base64
import functools
import logging
import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from hypersphere_jax.configs import PretrainConfig, UserError, require, to_dict
from hypersphere_jax.configs.base import WRITER, program
from hypersphere_jax.evaluate.results_file import flattened
from hypersphere_jax.files import atomic_write, read_kept
from hypersphere_jax.tables import numeric_columns, text_of, with_error
from hypersphere_jax.training.metrics_log import read_metrics

logger = logging.getLogger("hypersphere_jax")

HEADERS = {"top1": "top-1 (%)", "top1_interval": "95% interval", "top5": "top-5 (%)"}
HEADERS |= {"uniform_optimum": "optimal uniform", "projection_ks_sphere": "KS of projections"}
# Of a result, what is not compared; times are left out as well.
HIDDEN = ("run", "protocol", "data", "init_from", "units", "data_wait", "num_classes")
# And how a fit ended.
HIDDEN += ("C", "steps", "gradient_norm", "chosen_at_edge", "projection_half_width")
HIDDEN += ("projection_ks_normal",)
# Columns with numbers that were given, not measured.
OPTIONS = ("align alpha", "uniform t", "valid fraction")
# Pictures of a run, by their file's name, in the order of its page; then come all others.
CAPTIONS = {
    "training_curves": "Training curves",
    "augmented_views": "Training images, each with two random views as in training, before "
    "their values are normalized",
    "nearest_neighbours": "Images, each with those whose features are nearest, and the cosine. "
    "Blue: of the same class; orange, dashed, with a cross: of another one",
}
SHORT = 24  # characters of a table's cell that stay in one line
# Options of `probe` for an encoder of sentences.
OF_SENTENCES = "--data mr cr --data-dir SENTIMENT --protocols quick_thought knn"

HEAD = f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="generator" content="{WRITER}">
<meta name="viewport" content="width=device-width, initial-scale=1">
"""
HEAD += """<style>
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 0 auto; padding: 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .45rem; text-align: left; border-bottom: 1px solid #8884; }
th { vertical-align: bottom; }
td { overflow-wrap: anywhere; min-width: 3rem; }
.number { text-align: right; }
td.number, .short { white-space: nowrap; }
figure { margin: 1rem 0; }
img { width: 100%; min-width: 40rem; background: white; }
pre { background: #8881; padding: .7rem 1rem; white-space: pre-wrap; }
</style>
"""


def write_page(path: str | Path, title: str, blocks: Iterable[tuple]) -> Path:
    """Write one self-contained HTML page, whole or not at all.

    Blocks are a key of `RENDERERS` and its arguments: ("heading", text), ("subheading", text),
    ("text", text), ("table", columns, rows), ("folded", title, columns, rows), ("figure", path of a
    PNG, caption), ("config", nested dict of a run's options), ("command", text).
    """
    body = "\n".join(RENDERERS[kind](*content) for kind, *content in blocks)
    page = f"{HEAD}{_tag('title', title)}\n{_tag('h1', title)}\n{body}\n</html>\n"
    with atomic_write(Path(path)) as file:
        file.write(page.encode(errors="backslashreplace"))  # names that are no UTF-8
    return Path(path)


def run_report(run_dir: str | Path, redraw: bool = True) -> Path:
    """Write report.html into a run's folder, from the files that are there.

    Args:
      run_dir: of the run.
      redraw: the training curves, also where their picture is newer than the log.

    Raises:
      UserError: if there is no run, or a file is no JSON.
    """
    run_dir = Path(run_dir)
    saved, records = read_config(run_dir), read_metrics(run_dir)
    figures = run_dir / "figures"
    curves, log = figures / "training_curves.png", run_dir / "metrics.jsonl"
    newer = curves.is_file() and log.is_file() and curves.stat().st_mtime > log.stat().st_mtime
    # One record is no curve.
    if len(records) > 1 and (redraw or not newer):
        from hypersphere_jax import plots

        plots.training_curves({run_dir.resolve().name: records}, curves)
    others = sorted(set(figures.glob("*.png")) - {figures / f"{name}.png" for name in CAPTIONS})
    pictures = {figures / f"{name}.png": caption for name, caption in CAPTIONS.items()}
    pictures |= {path: path.stem.replace("_", " ") for path in others}
    typed = saved["sessions"][-1].get("command", "")
    commands = [*next_commands(run_dir), *filter(None, [typed])]
    blocks = [
        ("heading", "Training"),
        ("text", _progress(records)),
        *evaluations([run_dir]),
        *_finetuned(run_dir),
        ("heading", "Pictures"),
        *(("figure", path, caption) for path, caption in pictures.items() if path.is_file()),
        *_sentences(figures / "nearest_sentences.json"),
        ("heading", "Options that are not the defaults"),
        ("config", saved.pop("config")),
        ("folded", "Sessions, versions and data", ["", "value"], list(settings_of(saved).items())),
        ("heading", "To evaluate the run, and to continue it if it is not finished"),
        ("command", "\n".join(commands)),
    ]
    return write_page(run_dir / "report.html", run_dir.resolve().name, blocks)


def refreshed(run_dirs: Iterable[str | Path], redraw: bool = False) -> list[Path]:
    """Writes the pages of runs anew, see `run_report`; warns of those that cannot be written."""
    pages = []
    for run_dir in run_dirs:
        try:
            pages.append(run_report(run_dir, redraw))
        except (UserError, OSError, ValueError) as error:
            logger.warning("%s: its page is not written: %s", run_dir, error)
    return pages


def evaluations(run_dirs: Sequence[str | Path]) -> Iterable[tuple]:
    """The part of a page with all results of some runs."""
    yield ("heading", "Evaluation")
    tables = eval_tables(run_dirs)
    if not tables:
        yield ("text", "Nothing was evaluated yet: `probe` and `metrics` do.")
    for protocol, (columns, rows) in tables.items():
        yield ("subheading", protocol)
        shared, columns, rows = _without_shared(columns, rows)
        if any("±" in text_of(cell) for row in rows for cell in row):
            shared = "; ".join(filter(None, [shared, "±: standard error"]))
        yield from ([("text", shared)] if shared else [])
        yield ("table", columns, rows)


def _without_shared(columns: list[str], rows: list[list]) -> tuple[str, list[str], list[list]]:
    """What is the same in all rows, as text; and the other columns. Scores stay columns."""
    shared, kept = [], []
    for place, column in enumerate(columns):
        values = {text_of(row[place]) for row in rows}
        number = isinstance(rows[0][place], float) or "±" in text_of(rows[0][place])
        alone = len(rows) == 1 and number and column not in OPTIONS
        measured = alone or column in HEADERS.values()
        if len(values) == 1 and not measured:
            shared.append(f"{column} {values.pop()}")
        else:
            kept.append(place)
    rows = [[row[place] for place in kept] for row in rows]
    return ", ".join(shared), [columns[place] for place in kept], rows


def _sentences(file: Path) -> Iterable[tuple]:
    """Nearest neighbours of a run of text."""
    table = read_kept(file, ("columns", "rows"))
    if table and all(len(row) == len(table["columns"]) for row in table["rows"]):
        yield from (("heading", "Nearest sentences"), ("table", table["columns"], table["rows"]))


def _finetuned(run_dir: Path) -> Iterable[tuple]:
    """Results of the runs beside this one that were fine-tuned from it."""
    rows = []
    for file in sorted(run_dir.resolve().parent.glob("*/eval/finetune.json")):
        result = read_kept(file) or {}
        if result.get("init_from") == str(run_dir.resolve()):
            rows.append([result.get(key) for key in ("run", "labels", "top1", "top1_interval")])
    if rows:
        columns = ["run", "labels", HEADERS["top1"], HEADERS["top1_interval"]]
        yield from (("subheading", "fine-tuned from this run"), ("table", columns, rows))


def eval_tables(run_dirs: Sequence[str | Path]) -> dict[str, tuple[list[str], list[list]]]:
    """Columns and rows of all eval/*.json of some runs, by protocol; one row a file."""
    results: dict[str, list[dict]] = {}
    for name, run_dir in names_of(run_dirs).items():
        for stem, result in results_of(run_dir).items():
            place = {"run": name} if len(run_dirs) > 1 else {}
            row = place | {"file": stem} | _compared(result)
            results.setdefault(str(result.get("protocol", stem)), []).append(row)
    tables = {}
    for protocol, rows in results.items():
        keys = list(dict.fromkeys(k for row in rows for k, v in row.items() if v is not None))
        # Dicts, such as the chosen hyper-parameters, are wide: after the numbers.
        keys.sort(key=lambda key: any(isinstance(row.get(key), Mapping) for row in rows))
        columns = [HEADERS.get(key, key.replace("_", " ")) for key in keys]
        tables[protocol] = columns, [[row.get(key) for key in keys] for row in rows]
    return tables


def results_of(run_dir: Path) -> dict[str, dict]:
    """The results of a run by file; where it has trained on since, with "step": "9 of 21"."""
    records = read_metrics(run_dir)
    newest = records[-1]["step"] if records else 0
    files = sorted((run_dir / "eval").glob("*.json"))
    results = {file.stem: result for file in files if (result := read_kept(file))}
    for result in results.values():
        if isinstance(step := result.get("step"), int) and step < newest:
            result["step"] = f"{step} of {newest}"
    return results


def _compared(result: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a result's row, without times, and without lists but for intervals."""
    row = {}
    for key, value in result.items():
        hidden = key in HIDDEN or "seconds" in key or key.endswith("_standard_error")
        if not hidden and (key.endswith("_interval") or not isinstance(value, list)):
            error = result.get(f"{key}_standard_error")
            both = isinstance(value, float) and isinstance(error, float)
            row[key] = with_error(value, error) if both else value
    return row


def next_commands(run_dir: Path) -> list[str]:
    """What to type next, as far as the run's data have labels and a test split."""
    saved, run = read_config(run_dir), shlex.quote(str(run_dir))
    config, of_data = saved["config"], saved.get("data", {})
    recipe = str(config.get("recipe"))
    has_test = of_data.get("test_split", True)
    metrics = f"metrics {run}" if has_test else f"metrics {run} --split train"
    if config.get("vocabulary_size"):
        verbs = [metrics, f"probe {run} {OF_SENTENCES}"]
    elif recipe.startswith("nyu_depth"):
        verbs = [f"depth {run}", metrics]
    elif not (has_test and of_data.get("labels", True)):
        verbs = [metrics]
    else:
        verbs = [f"probe {run}", metrics]
        verbs += [] if config.get("num_classes") else [f"finetune {run}"]
    return [f"{program()} {verb}" for verb in verbs]


def names_of(run_dirs: Sequence[str | Path]) -> dict[str, Path]:
    """Key folders by name, or by path where names repeat."""
    paths = [Path(run_dir) for run_dir in run_dirs]
    names = {path.resolve().name: path for path in paths}
    return names if len(names) == len(paths) else {str(path): path for path in paths}


def read_config(run_dir: Path) -> dict:
    here = (run_dir / "config.json").exists()
    require(here, f"no run at {run_dir}: config.json is missing; `pretrain` makes one")
    from hypersphere_jax.training.run_folder import read_record  # brings JAX, which tables need not

    return read_record(run_dir)


def _progress(records: Sequence[Mapping]) -> str:
    if not records:
        return "No metrics: no step was logged yet, or metrics.jsonl was lost."
    shown = {
        key.replace("_", " "): f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
        for key, value in records[-1].items()
        if value is not None
    }
    last = f"Last record: {', '.join(map(' '.join, shown.items()))}."
    for record in records:
        loss = record.get("loss", 0.0)
        if loss is None or not math.isfinite(loss):
            return f"The loss was not finite at step {record['step']}. {last}"
    return last


def settings_of(config: Mapping) -> dict[str, str]:
    return {key: str(value) for key, value in flattened(config).items()}


def option_of(key: str) -> str:
    """The command line's option of a key as "optimizer.epochs"."""
    field = key.rpartition(".")[2]
    return f"--{field.replace('_', '-')}"


@functools.cache
def _defaults() -> dict[str, str]:
    return settings_of(to_dict(PretrainConfig()))


def _config(options: Mapping[str, Any]) -> str:
    """Options as a table of those that differ from the defaults, and the others, folded."""
    settings = settings_of(options)
    same = {key: value for key, value in settings.items() if _defaults().get(key) == value}
    tables = [
        [[option_of(key), value] for key, value in settings.items() if (key in same) == is_same]
        for is_same in (False, True)
    ]
    columns = ["option", "value"]
    return f"{_table(columns, tables[0])}\n{_folded('Defaults', columns, tables[1])}"


def _folded(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    return f"<details>{_tag('summary', title)}\n{_table(columns, rows)}</details>"


def _tag(tag: str, text: str, attributes: str = "") -> str:
    return f"<{tag}{attributes}>{escape(text)}</{tag}>"


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    texts = [list(map(text_of, row)) for row in rows]
    marks = []
    for place, numeric in enumerate(numeric_columns(columns, rows)):
        short = all(len(row[place]) <= SHORT for row in texts)
        marks.append(' class="number"' if numeric else ' class="short"' if short else "")
    lines = [map(_tag, ["th"] * len(columns), columns, marks)]
    lines += [map(_tag, ["td"] * len(columns), row, marks) for row in texts]
    body = "\n".join(f"<tr>{''.join(line)}</tr>" for line in lines)
    return f'<div class="wide"><table>\n{body}\n</table></div>'


def _figure(path: str | Path, caption: str) -> str:
    data = base64.b64encode(Path(path).read_bytes()).decode()
    image = f'<img alt="{escape(caption)}" src="data:image/png;base64,{data}">'
    return f'<figure><div class="wide">{image}</div>{_tag("figcaption", caption)}</figure>'


RENDERERS: dict[str, Callable[..., str]] = {
    "heading": functools.partial(_tag, "h2"),
    "subheading": functools.partial(_tag, "h3"),
    "text": functools.partial(_tag, "p"),
    "command": functools.partial(_tag, "pre"),
    "table": _table,
    "figure": _figure,
    "folded": _folded,
    "config": _config,
}
