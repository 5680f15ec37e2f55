"""Tables on the terminal, and pages of runs: each one HTML file with its pictures inside."""

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

from hypersphere_jax.config import require
from hypersphere_jax.evaluate.results_file import flattened
from hypersphere_jax.files import atomic_write, read_json
from hypersphere_jax.training.metrics_log import read_metrics

HEADERS = {"top1": "top-1 (%)", "top1_interval": "95% interval", "top5": "top-5 (%)"}
HEADERS["uniform_optimum"] = "optimal uniform"
# Of a result, what is not compared; times are left out as well.
HIDDEN = ("run", "protocol", "data", "init_from", "units", "data_wait")
# Options of `probe` for an encoder of sentences.
OF_SENTENCES = "--data mr cr --data-dir SENTIMENT --protocols quick_thought"

HEAD = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 0 auto; padding: 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .6rem; text-align: left; border-bottom: 1px solid #8884; }
.number { text-align: right; white-space: nowrap; }
img { width: 100%; min-width: 40rem; background: white; }
pre { background: #8881; padding: .7rem 1rem; white-space: pre-wrap; }
</style>
"""


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str | None = None
) -> None:
    """Print a table, a line a row; long texts end in "…" on a narrow terminal."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for index, (column, numeric) in enumerate(zip(columns, _numeric(columns, rows), strict=True)):
        # Names and numbers stay whole, texts give way.
        justify = "right" if numeric else "left"
        table.add_column(Text(column), justify=justify, no_wrap=numeric or index == 0)
    for row in rows:
        table.add_row(*(Text(text_of(cell), no_wrap=True, overflow="ellipsis") for cell in row))
    # A file or a pipe has no width to fit into.
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


def text_of(value: Any) -> str:
    """A value as tables print it: four digits, "-" for None."""
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(text_of, value))
    if isinstance(value, Real) and not isinstance(value, Integral):
        return f"{value:#.4g}" if abs(float(value)) < 1000 else f"{value:.0f}"
    return str(value)


def _numeric(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[bool]:
    """Whether each column holds numbers, and perhaps gaps."""
    kinds = [{type(row[i]) for row in rows} - {type(None)} for i in range(len(columns))]
    return [
        bool(each) and all(issubclass(k, Real) and k is not bool for k in each) for each in kinds
    ]


def write_page(path: str | Path, title: str, blocks: Iterable[tuple]) -> Path:
    """Write one self-contained HTML page, whole or not at all.

    Blocks are a key of `RENDERERS` and its arguments: ("heading", text), ("subheading", text),
    ("text", text), ("table", columns, rows), ("figure", path of a PNG, caption), ("config", nested
    dict), ("command", text).
    """
    body = "\n".join(RENDERERS[kind](*content) for kind, *content in blocks)
    page = f"{HEAD}{_tag('title', title)}\n{_tag('h1', title)}\n{body}\n</html>\n"
    with atomic_write(Path(path)) as file:
        file.write(page.encode())
    return Path(path)


def run_report(run_dir: str | Path) -> Path:
    """Write report.html into a run's folder; UserError if there is no run or a file is no JSON."""
    from hypersphere_jax import plots

    run_dir = Path(run_dir)
    saved, records = _read_config(run_dir), read_metrics(run_dir)
    if records:
        curves = run_dir / "figures" / "training_curves.png"
        plots.training_curves({run_dir.resolve().name: records}, curves)
    pictures = (run_dir / "figures").glob("*.png")
    pictures = sorted(pictures, key=lambda path: (path.stem != "training_curves", path.stem))
    blocks = [
        ("heading", "Training"),
        ("text", _progress(records)),
        *_evaluations([run_dir]),
        ("heading", "Pictures"),
        *(("figure", path, path.stem.replace("_", " ")) for path in pictures),
        ("heading", "Configuration"),
        ("config", saved),
        ("heading", "To evaluate the run, and to continue it if it is not finished"),
        ("command", "\n".join(_commands(run_dir, saved))),
    ]
    return write_page(run_dir / "report.html", run_dir.resolve().name, blocks)


def sweep_report(run_dirs: Sequence[str | Path], path: str | Path, title: str) -> Path:
    """Write one page of several runs, and their curves as a PNG beside it."""
    from hypersphere_jax import plots

    require(len(run_dirs) > 0, "no runs to report: name at least one run's folder")
    folders = _names(run_dirs)
    # Beside its config, a file holds dates and the like, which always differ.
    configs = {name: _settings(_read_config(each)["config"]) for name, each in folders.items()}
    curves = Path(path).with_name(f"{Path(path).stem}_curves.png")
    plots.training_curves({name: read_metrics(each) for name, each in folders.items()}, curves)
    blocks = [
        *_evaluations(run_dirs),
        ("heading", "Settings that differ"),
        ("table", *_differing_settings(configs)),
        ("heading", "Training"),
        ("figure", curves, f"Training curves of {len(run_dirs)} runs"),
    ]
    return write_page(path, title, blocks)


def _evaluations(run_dirs: Sequence[str | Path]) -> Iterable[tuple]:
    yield ("heading", "Evaluation")
    for protocol, table in eval_tables(run_dirs).items():
        yield from (("subheading", protocol), ("table", *table))


def eval_tables(run_dirs: Sequence[str | Path]) -> dict[str, tuple[list[str], list[list]]]:
    """Columns and rows of all eval/*.json of some runs, by protocol; one row a file."""
    results: dict[str, list[dict]] = {}
    for name, run_dir in _names(run_dirs).items():
        for file in sorted((run_dir / "eval").glob("*.json")):
            result = read_json(file)
            place = {"run": name} if len(run_dirs) > 1 else {}
            row = place | {"file": file.stem} | _compared(result)
            results.setdefault(str(result.get("protocol", file.stem)), []).append(row)
    tables = {}
    for protocol, rows in results.items():
        keys = list(dict.fromkeys(k for row in rows for k, v in row.items() if v is not None))
        # Dicts, such as the chosen hyper-parameters, are wide: after the numbers.
        keys.sort(key=lambda key: any(isinstance(row.get(key), Mapping) for row in rows))
        columns = [HEADERS.get(key, key.replace("_", " ")) for key in keys]
        tables[protocol] = columns, [[row.get(key) for key in keys] for row in rows]
    return tables


def _compared(result: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a result's row, without times, and without lists but for intervals."""
    row = {}
    for key, value in result.items():
        hidden = key in HIDDEN or "seconds" in key or key.endswith("_standard_error")
        if not hidden and (key.endswith("_interval") or not isinstance(value, list)):
            error = result.get(f"{key}_standard_error")
            row[key] = value if error is None else with_error(value, error)
    return row


def _commands(run_dir: Path, saved: Mapping) -> list[str]:
    """What to type next, and the run's last command if it is on record."""
    config, run = saved.get("config", {}), shlex.quote(str(run_dir))
    model, recipe = config.get("model", {}), str(config.get("data", {}).get("recipe"))
    if model.get("vocabulary"):
        verbs = [f"metrics {run}", f"probe {run} {OF_SENTENCES}"]
    elif recipe.startswith("nyu_depth"):
        verbs = [f"depth {run}", f"metrics {run}"]
    else:
        verbs = [f"probe {run}", f"metrics {run}"]
        verbs += [] if model.get("num_classes") else [f"finetune {run}"]
    typed = (saved.get("sessions") or [{}])[-1].get("command", "")
    return [*(f"python run.py {verb}" for verb in verbs), *filter(None, [typed])]


def _names(run_dirs: Sequence[str | Path]) -> dict[str, Path]:
    """Key folders by name, or by path where names repeat."""
    paths = [Path(run_dir) for run_dir in run_dirs]
    names = {path.resolve().name: path for path in paths}
    return names if len(names) == len(paths) else {str(path): path for path in paths}


def _read_config(run_dir: Path) -> dict:
    file = run_dir / "config.json"
    require(file.is_file(), f"no run at {run_dir}: config.json is missing; `pretrain` makes one")
    return read_json(file)


def _progress(records: Sequence[Mapping]) -> str:
    if not records:
        return "No metrics yet: no step was logged."
    last = f"Last record: {text_of(records[-1])}."
    for record in records:
        loss = record.get("loss", 0.0)
        if loss is None or not math.isfinite(loss):
            return f"The loss was not finite at step {record['step']}. {last}"
    return last


def _settings(config: Mapping) -> dict[str, str]:
    return {key: str(value) for key, value in flattened(config).items()}


def _differing_settings(configs: Mapping[str, Mapping]) -> tuple[list[str], list[list]]:
    keys = dict.fromkeys(key for config in configs.values() for key in config)
    columns = {key: [config.get(key) for config in configs.values()] for key in keys}
    names = list(configs)
    kept = {k: v for k, v in columns.items() if len(set(v)) > 1 and v != names}
    return ["run", *kept], [list(row) for row in zip(names, *kept.values(), strict=True)]


def _tag(tag: str, text: str, attributes: str = "") -> str:
    return f"<{tag}{attributes}>{escape(text)}</{tag}>"


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    marks = [' class="number"' if numeric else "" for numeric in _numeric(columns, rows)]
    lines = [map(_tag, ["th"] * len(columns), columns, marks)]
    lines += [map(_tag, ["td"] * len(columns), map(text_of, row), marks) for row in rows]
    body = "\n".join(f"<tr>{''.join(line)}</tr>" for line in lines)
    return f'<div class="wide"><table>\n{body}\n</table></div>'


def _figure(path: str | Path, caption: str) -> str:
    data = base64.b64encode(Path(path).read_bytes()).decode()
    image = f'<img alt="{escape(caption)}" src="data:image/png;base64,{data}">'
    return f'<figure><div class="wide">{image}</div>{_tag("figcaption", caption)}</figure>'


RENDERERS: dict[str, Callable[..., str]] = {
    "heading": partial(_tag, "h2"),
    "subheading": partial(_tag, "h3"),
    "text": partial(_tag, "p"),
    "command": partial(_tag, "pre"),
    "table": _table,
    "figure": _figure,
    "config": lambda settings: _table(["setting", "value"], list(_settings(settings).items())),
}
