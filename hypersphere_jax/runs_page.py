"""The page of several runs: their results beside each other, differences, and curves."""

import logging
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hypersphere_jax import plots, report
from hypersphere_jax.array_files import open_array
from hypersphere_jax.configs import UserError, require
from hypersphere_jax.configs.objective import SETTINGS, WEIGHTS
from hypersphere_jax.evaluate import comparison
from hypersphere_jax.evaluate.results_file import PREDICTIONS
from hypersphere_jax.tables import text_of, with_error
from hypersphere_jax.training.metrics_log import read_metrics
from hypersphere_jax.training.run_folder import NOT_COMPARED

logger = logging.getLogger("hypersphere_jax")

LOSS_PARTS = ("loss_alignment", "loss_distribution")  # of a loss that has a name
TASK = ("data", "split", "num_classes")  # what results must share to be compared
COMPARED = ("top1", "align", "uniform")  # of the results of several runs
OF_SPREADS = (
    "SD: standard deviation over runs that differ by seed alone, whose mean is given. SE: standard "
    "error of one run's value."
)
OVER_SEEDS = "Intervals between means of several runs: Welch's t, over the runs."
OF_PAIRS = (
    "Paired intervals: from what two runs predicted of the same test samples, by Agresti and Min's "
    "adjusted Wald method for matched pairs; they are of these runs, not of other seeds."
)
OF_ACCURACIES = (
    "Intervals between accuracies of single runs, where not paired: Newcombe's hybrid score method "
    "(from Wilson's intervals), as of independent test samples; on the same ones they are rather "
    "too wide."
)
OF_ERRORS = "Intervals from standard errors: of values of single runs, as of independent ones."


def sweep_report(run_dirs: Sequence[str | Path], path: str | Path, title: str) -> Path:
    """Write one page of several runs, and their curves as a PNG beside it."""
    require(len(run_dirs) > 0, "no runs to report: name at least one run's folder")
    folders = report.names_of(run_dirs)
    # Beside its config, a file holds dates and the like, which always differ.
    raw = {name: report.read_config(each)["config"] for name, each in folders.items()}
    configs = {name: report.settings_of(config) for name, config in raw.items()}
    curves = curves_of(path)
    records = {name: read_metrics(each) for name, each in folders.items()}
    kinds = {name: _kinds(config) for name, config in raw.items()}
    if has_curves := any(len(of) > 1 for of in records.values()):
        plots.training_curves(records, curves, kinds)
    blocks = [
        *_differences(folders, _groups(raw)),
        *report.evaluations(run_dirs),
        ("heading", "Settings that differ"),
        ("table", *_differing_settings(configs)),
    ]
    if has_curves:
        caption = f"Training curves of {len(run_dirs)} runs"
        blocks += [("heading", "Training"), ("figure", curves, caption)]
    return report.write_page(path, title, blocks)


def curves_of(page: str | Path) -> Path:
    """Where the picture of a page of several runs is."""
    return Path(page).with_name(f"{Path(page).stem}_curves.png")


class Scored(NamedTuple):
    """A result, and the file of what it predicted, which may be missing."""

    result: Mapping[str, Any]
    predictions: Path


def _groups(configs: Mapping[str, Mapping]) -> dict[str, list[str]]:
    """Runs that differ by seed alone, together, under their names."""
    groups: dict[str, list[str]] = {}
    for name, config in configs.items():
        dropped = {*NOT_COMPARED, "seed", "data_dir"}
        kept = {k: v for k, v in config.items() if k not in dropped}
        groups.setdefault(str(kept), []).append(name)
    return {
        ", ".join(names) if len(names) <= 3 else f"{names[0]} to {names[-1]}": names
        for names in groups.values()
    }


def _differences(folders: Mapping[str, Path], groups: Mapping[str, list[str]]) -> Iterable[tuple]:
    """Scores of runs, or means of those that differ by seed alone, less those of the first."""
    results = {name: report.results_of(folder) for name, folder in folders.items()}
    files = dict.fromkeys(file for of in results.values() for file in of)
    first = next(iter(groups))
    rows, methods = [], {}
    for file, key in ((file, key) for file in files for key in COMPARED):
        base: list[Scored] = []
        for group, names in groups.items():
            having = [n for n in names if results[n].get(file, {}).get(key) is not None]
            found = [Scored(results[n][file], folders[n] / "eval" / f"{file}.npz") for n in having]
            if not found:
                continue
            who = f"{', '.join(having)} ({len(having)} of {len(names)} runs)"
            shown = group if having == names else who
            score = report.HEADERS.get(key, key)
            line: list[Any] = [score, file, shown, _mean(found, key), None, None]
            if group == first:
                base = found
            elif not base:
                line[4] = "no value of the first"
            elif any(base[0].result.get(k) != found[0].result.get(k) for k in TASK):
                line[4] = "other data"
            else:
                line[4:], method = _difference(found, base, key)
                methods[method] = None
            rows.append(line)
    if not rows:
        return
    texts = [OF_SPREADS] if any("±" in row[3] for row in rows) else []
    texts += [f"Differences are to {first}."] if len(groups) > 1 else []
    columns = ["score", "result", "runs", "value", "difference", "95% interval"]
    shown = len(columns) if len(groups) > 1 else 4
    yield ("heading", "Differences" if len(groups) > 1 else "Means over seeds")
    yield ("text", " ".join([*texts, *filter(None, methods)]))
    yield ("table", columns[:shown], [row[:shown] for row in rows])


def _mean(scored: Sequence[Scored], key: str) -> str:
    results, digits = [each.result for each in scored], 2 if key == "top1" else 4
    values = [result[key] for result in results]
    steps = dict.fromkeys(r["step"] for r in results if isinstance(r.get("step"), str))
    old = f", step {', '.join(steps)}" if steps else ""  # it has trained on since
    if len(values) > 1:
        spread = f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"
        return f"{spread} (SD, {len(values)} runs){old}"
    error = results[0].get(f"{key}_standard_error")
    text = f"{values[0]:.{digits}f}" if not error else f"{with_error(values[0], error)} (SE)"
    return text + old


def _difference(
    found: Sequence[Scored], base: Sequence[Scored], key: str
) -> tuple[list[str | None], str | None]:
    """The mean of some results less that of others, its 95% interval, and the method of that."""
    a, b = ([each.result[key] for each in side] for side in (found, base))
    value, digits = statistics.mean(a) - statistics.mean(b), 2 if key == "top1" else 3
    (one, other), error = (found[0].result, base[0].result), f"{key}_standard_error"
    interval = method = pair = None
    if key == "top1" and len(a) == len(b) == 1:
        pair = _pair(found[0], base[0])
    if min(len(a), len(b)) > 1:
        interval, method = comparison.welch(a, b), OVER_SEEDS
    elif pair is not None:
        interval, method = comparison.paired(*pair), OF_PAIRS
    elif len(a) == len(b) and key == "top1" and None not in (one.get("n"), other.get("n")):
        interval = comparison.newcombe(one[key], one["n"], other[key], other["n"])
        method = OF_ACCURACIES
    elif len(a) == len(b) and None not in (one.get(error), other.get(error)):
        interval = comparison.of_errors(one[key], one[error], other[key], other[error])
        method = OF_ERRORS
    ends = "one run: no interval" if len(a) != len(b) else "no standard error: no interval"
    if interval is not None:
        ends = f"{interval.low:+.{digits}f} to {interval.high:+.{digits}f}"
        ends += ", paired" if pair is not None else ""
    return [f"{value:+.{digits}f}", ends], method


def _pair(one: Scored, other: Scored) -> tuple[np.ndarray, np.ndarray] | None:
    """Whether either was right about each test sample; None where that is not known of the same."""
    kept = [_predictions(each) for each in (one, other)]
    if None in kept:
        return None
    (labels, right), (other_labels, other_right) = kept
    return (right, other_right) if np.array_equal(labels, other_labels) else None


def _predictions(scored: Scored) -> tuple[np.ndarray, np.ndarray] | None:
    """Labels `[n]`, and whether each was predicted, if that is kept and of this very result."""
    if not scored.predictions.is_file():
        return None
    try:
        labels, predicted = (open_array(scored.predictions, name) for name in PREDICTIONS)
    except UserError as error:
        logger.warning("%s; it is left out", error)
        return None
    fits = labels.ndim == 1 and labels.shape == predicted.shape and labels.size > 0
    right = labels == predicted if fits else np.zeros(1, bool)
    same = fits and math.isclose(100 * right.mean(), scored.result["top1"])
    return (labels, right) if same else None


def _kinds(objective: Mapping[str, Any]) -> dict[str, str]:
    """By training metric, the settings that its values depend on: others do not compare."""
    kinds = {
        "align": f"alpha = {objective.get('align_alpha')}",
        "uniform": f"t = {objective.get('uniform_t')}",
        "contrastive": f"tau = {objective.get('contrastive_tau')}",
    }
    loss = objective.get("function") or objective.get("loss") or "weighted"
    settings = {name: objective.get(name) for name in SETTINGS.get(loss, ())}
    terms = [f"{loss} ({text_of(settings)})" if settings else loss] * (loss != "weighted")
    for name in WEIGHTS if loss == "weighted" else WEIGHTS[-1:]:
        term = name.removesuffix("_weight")
        setting = f" ({kinds[term]})" if term in kinds else ""
        terms += [f"{objective[name]:g} {term}{setting}"] if objective.get(name) else []
    return kinds | {"loss": " + ".join(terms)} | dict.fromkeys(LOSS_PARTS, loss)


def _differing_settings(configs: Mapping[str, Mapping]) -> tuple[list[str], list[list]]:
    keys = dict.fromkeys(key for config in configs.values() for key in config)
    columns = {key: [config.get(key) for config in configs.values()] for key in keys}
    names = list(configs)
    kept = {k: v for k, v in columns.items() if len(set(v)) > 1 and v != names}
    if len(kept) > len(names):  # a page is narrow
        return ["option", *names], [[report.option_of(k), *v] for k, v in kept.items()]
    columns_of = ["run", *map(report.option_of, kept)]
    return columns_of, [list(row) for row in zip(names, *kept.values(), strict=True)]
