"""Pages and tables from the files of runs.

A page is one HTML file with its pictures inside, which also reads well on a phone and in dark mode.
matplotlib is imported only where a picture is drawn.
"""

import base64
import math
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from html import escape
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hypersphere_jax.config import UserError
from hypersphere_jax.files import read_json, whole_file
from hypersphere_jax.train.metrics_log import read_metrics

HEADERS = {
    "top1": "top-1 (%)",
    "top1_interval": "95% interval",
    "top5": "top-5 (%)",
    "uniform_optimum": "optimal uniform",
}
# Of a result, what nobody compares; the times that its parts took are left out as well.
HIDDEN = ("run", "protocol", "data", "init_from", "units", "data_wait")
# What follows the run where its encoder of sentences is probed.
OF_SENTENCES = "--data mr cr --data-dir SENTIMENT --protocols quick_thought"
# Of pictures named as a result, by its protocol.
CAPTIONS = {
    "metrics": "positive pairs, classes, singular values, projections: those that were measured",
    "depth": "test images, their true and their predicted depths",
}

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .5rem; }
h1, p, pre, td, figcaption { overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .6rem; text-align: left; border-bottom: 1px solid var(--line); }
.wide td { overflow-wrap: normal; }
.wide td:first-child { white-space: nowrap; }
.wide .number { text-align: right; white-space: nowrap; }
figure { margin: 1rem 0; }
img { width: 100%; min-width: 40rem; background: white; border-radius: 4px; }
pre { background: var(--soft); padding: .7rem 1rem; border-radius: 4px; white-space: pre-wrap; }
""".strip()


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    title: str | None = None,
    highlight_best: Mapping[str, Callable] | None = None,
) -> None:
    """Print a table, numbers to the right and with four digits; plain text when not on a terminal.

    Args:
      columns: their names.
      rows: one value a column; None prints as "-".
      title: a line above the table.
      highlight_best: column -> `max` or `min`; the best values of such a column are bold.
    """
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    best = {}
    for index, column in enumerate(columns):
        values = [row[index] for row in rows]
        table.add_column(Text(column), justify="right" if _is_numeric(values) else "left")
        if column in (highlight_best or {}):
            finite = [value for value in values if _is_number(value) and math.isfinite(value)]
            best[index] = highlight_best[column](finite, default=None)
    for row in rows:
        cells = [Text(text_of(value)) for value in row]
        for index, value in best.items():
            if row[index] == value:
                cells[index].stylize("bold")
        table.add_row(*cells)
    # A file or a pipe has no width to fit into: there, wrapping would only break the table.
    console = Console(width=None if sys.stdout.isatty() else 10_000)
    if title:
        console.print(Text(title, style="bold"))
    console.print(table)


def with_error(value: float | None, standard_error: float | None) -> str:
    """A measured value as text, such as `-3.697 ± 0.002`."""
    if value is None:
        return "-"
    if not standard_error:
        return f"{value:.4f}"
    digits = min(6, max(2, 1 - math.floor(math.log10(standard_error))))
    return f"{value:.{digits}f} ± {standard_error:.{digits}f}"


def write_page(path: str | Path, title: str, blocks: Iterable[tuple]) -> Path:
    """Write one self-contained HTML page; a page that is there stays whole until then.

    Args:
      path: of the HTML file.
      title: of the page.
      blocks: from top to bottom, each a tuple of a kind and its content:
        ("heading", text), ("subheading", text), ("text", text), ("table", columns, rows),
        ("figure", path of a PNG, caption), ("config", nested dict), ("command", text of shell
        commands).

    Returns:
      The path.
    """
    body = "\n".join(RENDERERS[kind](*content) for kind, *content in blocks)
    page = f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>
{STYLE}
</style>
<h1>{escape(title)}</h1>
{body}
</html>
"""
    path = Path(path)
    with whole_file(path) as file:
        file.write(page.encode())
    return path


def run_report(run_dir: str | Path) -> Path:
    """Write report.html into a run's folder, and its figures/training_curves.png.

    Raises:
      UserError: if there is no run, or one of its JSON files cannot be read.
    """
    run_dir = Path(run_dir)
    name = run_dir.resolve().name
    saved = _read_config(run_dir)
    records = read_metrics(run_dir)
    if records:
        from hypersphere_jax import plots

        plots.training_curves({name: records}, run_dir / "figures" / "training_curves.png")
    pictures = {path.stem: path for path in sorted((run_dir / "figures").glob("*.png"))}
    curves = pictures.pop("training_curves", None)
    blocks = [
        ("heading", "Training"),
        ("text", _progress(records)),
        *([("figure", curves, "training curves")] if curves else []),
        ("heading", "Evaluation"),
        *_evaluations([run_dir], pictures),
        *(("figure", path, stem.replace("_", " ")) for stem, path in pictures.items()),
        ("heading", "Configuration"),
        ("config", saved),
        ("heading", "Next"),
        ("text", "To evaluate the run, and to continue it if it is not finished:"),
        ("command", "\n".join(_commands(run_dir, saved))),
    ]
    return write_page(run_dir / "report.html", name, blocks)


def _evaluations(run_dirs: Sequence[str | Path], pictures: dict[str, Path]) -> Iterable[tuple]:
    """The tables; and after each, taken out of the pictures, those named as its results."""
    tables = eval_tables(run_dirs)
    for protocol, (columns, rows) in tables.items():
        yield ("subheading", protocol)
        yield ("table", columns, rows)
        for stem in (row[columns.index("file")] for row in rows):
            if stem in pictures:
                caption = f"{stem}: {CAPTIONS[protocol]}" if protocol in CAPTIONS else stem
                yield ("figure", pictures.pop(stem), caption)
    if not tables:
        yield ("text", "Nothing was evaluated yet.")


def _commands(run_dir: Path, saved: Mapping) -> list[str]:
    """What to type next, and the command that started the run if it is on record."""
    config = saved.get("config", {})
    run = shlex.quote(str(run_dir))
    if config.get("model", {}).get("vocabulary"):
        verbs = [f"metrics {run}", f"probe {run} {OF_SENTENCES}"]
    elif str(config.get("data", {}).get("recipe")).startswith("nyu_depth"):
        verbs = [f"depth {run}", f"metrics {run}"]
    else:
        has_classifier = config.get("model", {}).get("num_classes")
        names = ["probe", "metrics", *([] if has_classifier else ["finetune"])]
        verbs = [f"{name} {run}" for name in names]
    sessions = saved.get("sessions") or [{}]
    typed = sessions[-1].get("command", "")
    continues = [typed] if typed.startswith("python ") else []
    return [*(f"python run.py {verb}" for verb in verbs), *continues]


def sweep_report(run_dirs: Sequence[str | Path], path: str | Path, title: str) -> Path:
    """Write one page of several runs, and their curves as a PNG beside it.

    Raises:
      UserError: if there is no run, or a JSON file of one cannot be read.
    """
    from hypersphere_jax import plots

    if not run_dirs:
        raise UserError("no runs to report: name at least one run's folder")
    path = Path(path)
    folders = _names(run_dirs)
    saved = {name: _read_config(run_dir) for name, run_dir in folders.items()}
    # Beside its config, a file may hold dates and the like, which always differ.
    configs = {name: _flat(content.get("config", content)) for name, content in saved.items()}
    curves = path.with_name(f"{path.stem}_curves.png")
    plots.training_curves(
        {name: read_metrics(run_dir) for name, run_dir in folders.items()}, curves
    )
    blocks = [
        ("heading", "Evaluation"),
        *_evaluations(run_dirs, {}),
        ("heading", "Settings that differ"),
        ("table", *_differing_settings(configs)),
        ("heading", "Training"),
        ("figure", curves, f"Training curves of {len(run_dirs)} runs"),
    ]
    return write_page(path, title, blocks)


def eval_tables(run_dirs: Sequence[str | Path]) -> dict[str, tuple[list[str], list[list]]]:
    """Columns and rows of all eval/*.json of some runs: a table a protocol, in it one row a file.

    A table has what one compares: neither lists, such as a confusion matrix, nor times. The first
    column is the run's name where there are several runs.
    """
    results: dict[str, list[dict]] = {}
    for name, run_dir in _names(run_dirs).items():
        for file in sorted((run_dir / "eval").glob("*.json")):
            result = read_json(file)
            place = {"run": name} if len(run_dirs) > 1 else {}
            row = place | {"file": file.stem} | _compared(result)
            results.setdefault(str(result.get("protocol", file.stem)), []).append(row)
    tables = {}
    for protocol, found in results.items():
        keys = list(dict.fromkeys(k for row in found for k, v in row.items() if v is not None))
        # Groups, such as the chosen hyper-parameters, are wide: after the numbers.
        keys.sort(key=lambda key: any(isinstance(row.get(key), Mapping) for row in found))
        columns = [HEADERS.get(key, key.replace("_", " ")) for key in keys]
        tables[protocol] = columns, [[row.get(key) for key in keys] for row in found]
    return tables


def _compared(result: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a result's row; one with a standard error is text."""
    row = {}
    for key, value in result.items():
        lists = isinstance(value, list) and not key.endswith("_interval")
        if lists or key in HIDDEN or "seconds" in key or key.endswith("_standard_error"):
            continue
        error = result.get(f"{key}_standard_error")
        row[key] = value if error is None else with_error(value, error)
    return row


# Reading a run's folder.


def _names(run_dirs: Sequence[str | Path]) -> dict[str, Path]:
    """Key folders by name, or by path where names repeat."""
    paths = [Path(run_dir) for run_dir in run_dirs]
    names = {path.resolve().name: path for path in paths}
    return names if len(names) == len(paths) else {str(path): path for path in paths}


def _read_config(run_dir: Path) -> dict:
    if not (run_dir / "config.json").is_file():
        raise UserError(
            f"no run at {run_dir}: config.json is missing; "
            f"`python run.py pretrain --name {shlex.quote(run_dir.resolve().name)}` makes one"
        )
    return read_json(run_dir / "config.json")


def _progress(records: Sequence[Mapping]) -> str:
    if not records:
        return "No metrics yet: no step was logged."
    last = ", ".join(f"{key} {text_of(value)}" for key, value in records[-1].items())
    for record in records:
        loss = record.get("loss", 0.0)
        if loss is None or not math.isfinite(loss):
            return f"The loss was not finite at step {record['step']}. Last record: {last}."
    return f"Last record: {last}."


def _flat(settings: Mapping, prefix: str = "") -> dict[str, str]:
    """Nested settings as one dict with keys such as "model.width"."""
    flat = {}
    for key, value in settings.items():
        nested = isinstance(value, Mapping)
        flat |= _flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": str(value)}
    return flat


def _differing_settings(configs: Mapping[str, Mapping]) -> tuple[list[str], list[list]]:
    keys = dict.fromkeys(key for config in configs.values() for key in config)
    columns = {key: [config.get(key) for config in configs.values()] for key in keys}
    names = list(configs)
    # A setting that repeats the run's name tells nothing new.
    kept = {k: v for k, v in columns.items() if len(set(v)) > 1 and v != names}
    return ["run", *kept], [list(row) for row in zip(names, *kept.values(), strict=True)]


# Tables and values.


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_numeric(values: Sequence[Any]) -> bool:
    """Whether a column holds numbers, and gaps at most."""
    present = [value for value in values if value is not None]
    return bool(present) and all(map(_is_number, present))


def text_of(value: Any) -> str:
    """A value as tables print it: four digits, `-` for None."""
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(text_of, value))
    if isinstance(value, Real) and not isinstance(value, Integral):
        return f"{value:#.4g}" if abs(value) < 1000 else f"{value:.0f}"
    return str(value)


# Blocks of a page: content in, HTML out.


def _tag(tag: str, text: str) -> str:
    return f"<{tag}>{escape(text)}</{tag}>"


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    numeric = [_is_numeric([row[index] for row in rows]) for index in range(len(columns))]
    marks = [' class="number"' if flag else "" for flag in numeric]
    lines = [[f"<th{m}>{escape(c)}</th>" for m, c in zip(marks, columns, strict=True)]]
    for row in rows:
        lines.append([f"<td{m}>{escape(text_of(v))}</td>" for m, v in zip(marks, row, strict=True)])
    body = "\n".join(f"<tr>{''.join(line)}</tr>" for line in lines)
    return f'<div class="wide"><table>\n{body}\n</table></div>'


def _figure(path: str | Path, caption: str) -> str:
    data = base64.b64encode(Path(path).read_bytes()).decode()
    text = escape(caption)
    image = f'<div class="wide"><img alt="{text}" src="data:image/png;base64,{data}"></div>'
    return f"<figure>{image}<figcaption>{text}</figcaption></figure>"


def _config(settings: Mapping) -> str:
    return f"<table>{_config_rows(settings, depth=0)}</table>"


def _config_rows(settings: Mapping, depth: int) -> str:
    rows = []
    indent = f' style="padding-left: {0.6 + 1.5 * depth}rem"'
    for key, value in settings.items():
        name = escape(str(key))
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            value = dict(enumerate(value, start=1))
        if isinstance(value, Mapping):
            rows.append(f'<tr><th colspan="2"{indent}>{name}</th></tr>')
            rows.append(_config_rows(value, depth + 1))
        else:
            rows.append(f"<tr><td{indent}>{name}</td><td>{escape(str(value))}</td></tr>")
    return "\n".join(rows)


RENDERERS = {
    "heading": partial(_tag, "h2"),
    "subheading": partial(_tag, "h3"),
    "text": partial(_tag, "p"),
    "command": partial(_tag, "pre"),
    "table": _table,
    "figure": _figure,
    "config": _config,
}
