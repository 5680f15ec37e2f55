"""The verb `metrics`: of a run's checkpoint, or a file of features, to metrics and a JSON file."""

import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from hypersphere_jax import text
from hypersphere_jax.configs import MetricsConfig, UserError, require
from hypersphere_jax.configs.base import WRITER, check_output
from hypersphere_jax.data import Source, subsets
from hypersphere_jax.evaluate import geometry, metrics, results_file
from hypersphere_jax.evaluate.checks import check_features
from hypersphere_jax.evaluate.feature_files import load_features
from hypersphere_jax.evaluate.features import pair_features, split_features
from hypersphere_jax.evaluate.metrics import SelectedRows
from hypersphere_jax.training import distributed, run_dir
from hypersphere_jax.training.run_dir import RunEncoder
from hypersphere_jax.utils.arrays import array_names, open_array
from hypersphere_jax.utils.files import write_json


class MetricsInputs(NamedTuple):
    """Features to measure, of a run or of files."""

    x: Any  # unit features [n, d]
    pairs: tuple[Any, Any] | None  # those of the two sides of positive pairs
    labels: np.ndarray | None = None  # [n]
    labels_name: str = "labels"  # in messages
    class_names: Sequence[str] = ()
    # Features of rows under one or several augmentations, which depend on a row's place alone.
    views: Callable[[np.ndarray], Sequence[Any]] | None = None  # None: some cannot be read
    # Alignment and uniformity by alpha, t and devices; defaults to those of x and pairs.
    summary: Callable[..., dict[str, Any]] | None = None


@distributed.isolated()
def run_metrics(config: MetricsConfig) -> dict[str, Any]:
    """Alignment, uniformity and geometry: of a checkpoint's output over a split, or of a file.

    Of a checkpoint, alignment is over pairs of random views of each image, all else over the images
    without augmentation. The result is also written where `places` says.

    Raises:
      UserError: for features that are not finite or have no unit norm, and for parts whose data
        are missing.
    """
    check_output(config.out, ".json")
    check_output(config.figure, ".png", flag="figure=")
    devices = distributed.local_devices(config.devices)
    header, inputs = _file_inputs(config) if config.of_file else _run_inputs(config, devices)
    parts = {}
    for part, compute in PARTS.items():
        if part in (DEFAULT if config.parts is None else config.parts):
            try:
                parts |= metrics.jsonable(compute(config, inputs, devices))
            except UserError:  # by default, as far as the data allow
                if config.parts is not None or (part == "classes" and config.labels is not None):
                    raise
    result = header | {"protocol": "metrics"} | _summary(config, inputs, devices) | parts
    result["seed"] = config.seed
    out, _ = places(config)
    if config.of_file and out is not None:
        write_json(out, {"written_by": WRITER} | result)
    elif out is not None:
        results_file.save(out, result)
    return result


def places(config: MetricsConfig) -> tuple[Path | None, Path | None]:
    """Where the result goes, and where its picture does; None: nowhere.

    Of a run, options other than the defaults are in the name.
    """
    if config.of_file:
        return config.out, config.figure
    name = f"metrics-{config.split}{results_file.suffix(config, ('step', 'alpha', 't', 'seed'))}"
    if config.parts is not None:
        name += "-" + ("+".join(sorted(set(config.parts))) or "only")
    folder = run_dir.find(config.run, config.runs_dir)
    return folder / "eval" / f"{name}.json", folder / "figures" / f"{name}.png"


def lines(result: dict[str, Any]) -> list[tuple[str, float, float | None, float | None]]:
    """Rows of name, value, standard error, and the value of uniform features where it is known."""
    # The Kolmogorov-Smirnov distance of n points from their own distribution, on average.
    chance = math.sqrt(math.pi / 2 / result["n"]) * math.log(2)
    optimum, d = result["uniform_optimum"], float(result["d"])
    rows = (
        ("L_uniform of f", "uniform_f", optimum / 2),
        ("L_uniform of g", "uniform_g", optimum / 2),
        ("L_uniform of the views, mean", "uniform_views", optimum),
        ("L_uniform by class, mean", "uniform_by_class_mean", optimum),
        ("effective rank", "effective_rank", d),
        ("participation ratio", "participation_ratio", d),
        ("distance of positive pairs, mean", "pair_distance", None),
        ("projections: sliced Wasserstein", "sliced_wasserstein", 0.0),
        ("projections: Kolmogorov-Smirnov", "projection_ks_sphere", chance),
        ("prototype representation bias", "prototype_bias", None),
    )
    return [
        (name, result[key], result.get(f"{key}_standard_error"), uniform)
        for name, key, uniform in rows
        if key in result
    ]


# Inputs, with the first entries of the result.


def _run_inputs(
    config: MetricsConfig, devices: list[jax.Device]
) -> tuple[dict[str, Any], MetricsInputs]:
    folder, split = run_dir.find(config.run, config.runs_dir), config.split
    encoder = run_dir.load_encoder(folder, config.step)
    dataset = run_dir.load_data(folder, config.data_dir)
    source = run_dir.test_split(dataset) if split == "test" else dataset.train
    is_text = encoder.config.reads_text
    header = {
        "run": folder.name,
        "step": encoder.step,
        "data": encoder.config.data,
        "split": split,
        "layer": "f, g" if is_text else "output",
    }
    if is_text:
        x, pairs, summary = text.neighbour_inputs(encoder, source, devices)
        return header, MetricsInputs(x, pairs, summary=summary)
    x, labels = split_features(encoder, source, ["output"], devices).features["output"]
    pairs = pair_features(encoder, source, devices, config.seed)
    for side in (x, *pairs):
        check_features(f"{folder.name}, {split}", side)
    labels = labels if dataset.class_names else None
    views = None
    if len(x) == len(source):
        views = functools.partial(_views_of, encoder, source, devices, config.seed)
    name = f"labels of the {split} split"
    return header, MetricsInputs(x, pairs, labels, name, dataset.class_names, views)


def _views_of(
    encoder: RunEncoder, source: Source, devices: list[jax.Device], seed: int, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Two views of each of these images, random by their place in `rows`."""
    return pair_features(encoder, subsets.Subset(source, rows, "class mates"), devices, seed)


def _file_inputs(config: MetricsConfig) -> tuple[dict[str, Any], MetricsInputs]:
    x = load_features(config.run, config.normalize)
    pairs, labels, labels_file = None, None, config.labels
    if labels_file is None and "labels" in array_names(config.run):
        labels_file = Path(config.run)
    if labels_file is not None:
        labels = open_array(labels_file, "labels")
    if config.pairs is not None:
        pairs = (x, load_features(config.pairs, config.normalize))
    header = {
        "features": config.run,
        "pairs": config.pairs and str(config.pairs),
        "labels": labels_file and str(labels_file),
        "normalized": config.normalize,
    }
    return header, MetricsInputs(
        x, pairs, labels, str(labels_file), views=lambda rows: (SelectedRows(x, rows),)
    )


# Parts of the result, from config, inputs and devices.


def _summary(config: MetricsConfig, inputs: MetricsInputs, devices: list) -> dict[str, Any]:
    """Alignment and uniformity."""
    if inputs.summary is not None:
        return inputs.summary(config.alpha, config.t, devices)
    return metrics.summary(inputs.x, inputs.pairs, config.alpha, config.t, devices)


def _pairs(inputs: MetricsInputs) -> tuple[Any, Any]:
    require(inputs.pairs is not None, "there are no positive pairs: give pairs=")
    return inputs.pairs


def _groups(inputs: MetricsInputs) -> dict[Any, np.ndarray]:
    require(inputs.labels is not None, "there are no labels: give labels=")
    return geometry.class_rows(inputs.labels, len(inputs.x), inputs.labels_name)


def _rank(config: MetricsConfig, inputs: MetricsInputs, devices: list) -> dict[str, Any]:
    return geometry.effective_rank(inputs.x)._asdict()


def _classes(config: MetricsConfig, inputs: MetricsInputs, devices: list) -> dict[str, Any]:
    groups = _groups(inputs)
    estimates = metrics.uniformities(inputs.x, list(groups.values()), config.t, devices=devices)
    values, errors = map(list, zip(*estimates, strict=True))
    names = inputs.class_names
    return {
        "uniform_by_class_mean": float(np.nanmean(values)),
        "classes": [names[label] if names else label for label in groups],
        "n_by_class": [len(rows) for rows in groups.values()],
        "uniform_by_class": values,
        "uniform_by_class_standard_error": errors,
    }


def _distances(config: MetricsConfig, inputs: MetricsInputs, devices: list) -> dict[str, Any]:
    mean, counts = geometry.pair_distances(*_pairs(inputs))
    return metrics.entries("pair_distance", mean) | {"pair_distance_counts": counts}


def _projections(config: MetricsConfig, inputs: MetricsInputs, devices: list) -> dict[str, Any]:
    half_width, *columns = result = geometry.projections(inputs.x, seed=config.seed)
    names, directions = result._fields[1:], zip(*columns, strict=True)
    return {
        "sliced_wasserstein": float(result.sliced_wasserstein.mean()),
        "projection_ks_sphere": float(result.ks_sphere.mean()),
        "projection_ks_normal": float(result.ks_normal.mean()),
        "projection_half_width": half_width,
        "projections": [dict(zip(names, direction, strict=True)) for direction in directions],
    }


def _views(config: MetricsConfig, inputs: MetricsInputs, devices: list) -> dict[str, Any]:
    sides = [metrics.uniformity(side, config.t, devices=devices) for side in _pairs(inputs)]
    return {"uniform_views": (sides[0].value + sides[1].value) / 2}


def _prototype(config: MetricsConfig, inputs: MetricsInputs, devices: list) -> dict[str, Any]:
    """Each row beside another one of its class, augmented alike."""
    mates = geometry.class_mates(_groups(inputs), len(inputs.x), config.seed)
    require(inputs.views is not None, "parts=prototype: it needs all images; some are unreadable")
    rows = np.flatnonzero(mates >= 0)
    draws = list(zip(inputs.views(rows), inputs.views(mates[rows]), strict=True))
    bias = geometry.prototype_bias(draws)
    return metrics.entries("prototype_bias", bias) | {"prototype_bias_n": len(rows)}


PARTS = {
    "rank": _rank,
    "classes": _classes,
    "distances": _distances,
    "projections": _projections,
    "views": _views,
    "prototype": _prototype,
}
DEFAULT = ("rank", "classes", "distances", "projections")
