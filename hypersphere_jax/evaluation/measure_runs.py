"""Alignment, uniformity and geometry of a run's checkpoint, or of a file of features."""

import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hypersphere_jax import text
from hypersphere_jax.configs import MetricsConfig, UserError, require
from hypersphere_jax.configs.base import WRITER, check_output
from hypersphere_jax.data import subsets
from hypersphere_jax.evaluation import checks, geometry, metrics, results_file
from hypersphere_jax.evaluation.checks import SelectedRows
from hypersphere_jax.evaluation.estimates import UNKNOWN_ESTIMATE, entries, jsonable, mean_estimate
from hypersphere_jax.evaluation.features import pair_features, split_features
from hypersphere_jax.evaluation.knn import retrieval_scores
from hypersphere_jax.training import distributed, run_dir
from hypersphere_jax.utils.arrays import array_names, open_array
from hypersphere_jax.utils.files import write_json

DEFAULT_PARTS = ("rank", "classes", "distances", "projections")
PAIR_BINS = 50  # bins of distances from 0 to 2


class MeasuredFeatures(NamedTuple):
    """Features to measure, their positives and labels."""

    x: Any  # [n, d] of unit norm
    pairs: tuple[Any, Any] | None  # features of both sides of positive pairs
    labels: np.ndarray | None = None  # [n]
    class_names: Sequence[str] = ()
    # Maps rows to their features under one or several augmentations, which depend only on a row's
    # position. None if some images cannot be read.
    views: Callable[[np.ndarray], Sequence[Any]] | None = None
    # Maps (alpha, t) to the entries of sentence encoders, which replace alignment and uniformity.
    summary: Callable[..., dict[str, Any]] | None = None

    def groups(self) -> dict[Any, np.ndarray]:
        """Return the rows of each class, or raise `UserError`."""
        require(self.labels is not None, "these features have no labels; pass labels=")
        return geometry.class_rows(self.labels, len(self.x))


@distributed.isolated()
def run_metrics(config: MetricsConfig) -> dict[str, Any]:
    """Return alignment, uniformity and geometry of a checkpoint's output, or of a file.

    The alignment of a checkpoint is over pairs of random views of each image, everything else over
    the images without augmentation. The result is also written to the file of `metrics_files`.

    Args:
      config: the run or file, and what to measure.

    Raises:
      UserError: for features that are not finite or not of unit norm, and for parts whose data are
        missing.
    """
    check_output(config.out, ".json")
    check_output(config.figure, ".png", flag="figure=")
    header, features = _open_file(config) if config.of_file else _open_run(config)
    chosen = DEFAULT_PARTS if config.parts is None else config.parts
    parts: dict[str, Any] = {}
    for part in [name for name in METRIC_PARTS if name in chosen]:
        try:
            parts |= jsonable(METRIC_PARTS[part](features, config))
        except UserError:  # parts without data are left out by default
            if config.parts is not None or (part == "classes" and config.labels is not None):
                raise
    if features.summary is not None:
        summary = features.summary(config.alpha, config.t)
    else:
        align = UNKNOWN_ESTIMATE
        if features.pairs is not None:
            align = metrics.alignment(*features.pairs, config.alpha)
        summary = metrics.summary(features.x, align, config.alpha, config.t)
    result = header | {"protocol": "metrics"} | summary | parts | {"seed": config.seed}
    out, _ = metrics_files(config)
    if out is not None and config.of_file:
        write_json(out, {"written_by": WRITER} | result)
    elif out is not None:
        results_file.save_result(out, result)
    return result


def metrics_files(config: MetricsConfig) -> tuple[Path | None, Path | None]:
    """Return the files of the result and of its figure.

    The names of a run's files contain the options that are not the default.
    """
    if config.of_file:
        return config.out, config.figure
    changed = results_file.changed_options(config, ("step", "alpha", "t", "seed"))
    name = f"metrics-{config.split}{changed}"
    if config.parts is not None:
        name += "-" + ("+".join(sorted(set(config.parts))) or "only")
    folder = run_dir.find(config.run, config.runs_dir)
    return folder / "eval" / f"{name}.json", folder / "figures" / f"{name}.png"


def metrics_rows(result: dict[str, Any]) -> list[tuple[str, float, float | None, float | None]]:
    """Return rows of name, value, standard error, and value of uniform features if known."""
    optimum = result["uniform_optimum"]
    uniform = {
        "uniform_f": optimum / 2,
        "uniform_g": optimum / 2,
        "uniform_by_class_mean": optimum,
        "effective_rank": float(result["d"]),
        "participation_ratio": float(result["d"]),
        "pair_distance": None,
        "sliced_wasserstein": 0.0,
        # The mean for a sample of n points.
        "projection_ks_sphere": math.sqrt(math.pi / 2 / result["n"]) * math.log(2),
    }
    uniform |= dict.fromkeys(("prototype_bias", "recall_at_1", "recall_at_5", "recall_at_10"))
    rows = []
    for name, value in (uniform | {"map_at_r": None}).items():
        if name in result:
            error = result.get(f"{name}_standard_error")
            rows.append((name.replace("_", " "), result[name], error, value))
    return rows


# Features, with the first entries of the result.


def _open_run(config: MetricsConfig) -> tuple[dict[str, Any], MeasuredFeatures]:
    devices = distributed.local_devices(config.devices)
    folder = run_dir.find(config.run, config.runs_dir)
    encoder = run_dir.load_encoder(folder, config.step)
    dataset = run_dir.load_data(folder, config.data_dir)
    source = dataset.train
    if config.split == "test":
        source = run_dir.test_split(dataset)
    header = {
        "run": folder.name,
        "step": encoder.step,
        "data": encoder.config.data,
        "split": config.split,
        "layer": "f, g" if encoder.config.reads_text else "output",
    }
    if encoder.config.reads_text:
        x, pairs, summary = text.neighbour_inputs(encoder, source, devices)
        return header, MeasuredFeatures(x, pairs, summary=summary)
    x, labels = split_features(encoder, source, ["output"], devices).features["output"]
    pairs = pair_features(encoder, source, devices, config.seed)
    for side in (x, *pairs):
        checks.check_features(f"{folder.name}, {config.split}", side)
    features = MeasuredFeatures(x, pairs, class_names=source.class_names)
    if dataset.class_names:
        features = features._replace(labels=labels)
    if len(x) < len(source):
        return header, features

    def views(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return two views of each of these images, random by position in `rows`."""
        images = subsets.Subset(source, rows, "class mates")
        return pair_features(encoder, images, devices, config.seed)

    return header, features._replace(views=views)


def _open_file(config: MetricsConfig) -> tuple[dict[str, Any], MeasuredFeatures]:
    x = load_features(config.run, config.normalize)
    labels_file = config.labels
    if labels_file is None and "labels" in array_names(config.run):
        labels_file = Path(config.run)
    features = MeasuredFeatures(x, None, views=lambda rows: (SelectedRows(x, rows),))
    if labels_file is not None:
        features = features._replace(labels=open_array(labels_file, "labels"))
    if config.pairs is not None:
        y = load_features(config.pairs, config.normalize)
        message = f"{config.pairs} has shape {y.shape}, and {config.run} {x.shape}"
        require(x.shape == y.shape, message)
        features = features._replace(pairs=(x, y))
    header = {
        "features": config.run,
        "pairs": config.pairs and str(config.pairs),
        "labels": labels_file and str(labels_file),
        "normalized": config.normalize,
    }
    return header, features


def load_features(path: str | Path, normalize: bool = False) -> Any:
    """Return unit-norm features `[n, d]` from an .npy file, which is mapped, or an .npz file.

    Args:
      path: file of any real dtype. An .npz file has `features`.
      normalize: divide rows by their norm, into a temporary float32 file.

    Raises:
      UserError: for another file, and rows that are not finite or not of unit norm.
    """
    x = open_array(path, "features")
    checks.check_matrix(str(path), x)
    if not normalize:
        checks.check_features(str(path), x)
        checks.check_unit_norm(str(path), x, "normalize=True divides each row by its norm")
        return x
    with tempfile.TemporaryFile() as file:  # the memory map keeps it
        unit = np.memmap(file, np.float32, "w+", shape=x.shape)
    for rows in checks.row_blocks(*x.shape, checks.CHECKED_ENTRIES):
        block = x[rows].astype(np.float64)
        with np.errstate(invalid="ignore"):  # rows of zeros become NaN
            # The largest entry first, because squares may overflow.
            block /= np.abs(block).max(axis=1, keepdims=True)
            unit[rows] = block / np.linalg.norm(block, axis=1, keepdims=True)
    return checks.check_features(f"{path}: normalized (rows of zeros have no norm)", unit)


# Parts of the result.


def _rank(features: MeasuredFeatures, config: MetricsConfig) -> dict:
    return geometry.effective_rank(features.x)._asdict()


def _classes(features: MeasuredFeatures, config: MetricsConfig) -> dict:
    groups = features.groups()
    estimates = []
    for rows in groups.values():
        estimate = UNKNOWN_ESTIMATE
        if len(rows) > 1:
            estimate = metrics.uniformity(SelectedRows(features.x, rows), config.t)
        estimates.append(estimate)
    values, errors = np.transpose(estimates)
    names = list(groups)
    if features.class_names:
        names = [features.class_names[label] for label in groups]
    return {
        "uniform_by_class_mean": float(np.nanmean(values)),
        "classes": names,
        "n_by_class": [len(rows) for rows in groups.values()],
        "uniform_by_class": values,
        "uniform_by_class_standard_error": errors,
    }


def _distances(features: MeasuredFeatures, config: MetricsConfig) -> dict:
    require(features.pairs is not None, "these features have no positive pairs; pass pairs=")
    lengths = geometry.distances(*features.pairs)
    counts, _ = np.histogram(np.minimum(lengths, 2), PAIR_BINS, (0, 2))
    return entries("pair_distance", mean_estimate(lengths)) | {"pair_distance_counts": counts}


def _projections(features: MeasuredFeatures, config: MetricsConfig) -> dict:
    result = geometry.projections(features.x, seed=config.seed)
    columns = result._asdict()
    del columns["half_width"]
    rows = zip(*columns.values(), strict=True)
    return {
        "sliced_wasserstein": float(result.sliced_wasserstein.mean()),
        "projection_ks_sphere": float(result.ks_sphere.mean()),
        "projection_ks_normal": float(result.ks_normal.mean()),
        "projection_half_width": result.half_width,
        "projections": [dict(zip(columns, row, strict=True)) for row in rows],
    }


def _retrieval(features: MeasuredFeatures, config: MetricsConfig) -> dict:
    features.groups()  # names the labels in messages
    return retrieval_scores(features.x, features.labels)


def _prototype(features: MeasuredFeatures, config: MetricsConfig) -> dict:
    """Compare each row with another row of its class under the same augmentation."""
    mates = geometry.class_mates(features.groups(), len(features.x), config.seed)
    require(features.views is not None, "parts=prototype needs all images; some are unreadable")
    rows = np.flatnonzero(mates >= 0)
    draws = zip(features.views(rows), features.views(mates[rows]), strict=True)
    bias = geometry.mean_prototype_bias(list(draws))
    return entries("prototype_bias", bias) | {"prototype_bias_n": len(rows)}


METRIC_PARTS = {
    "rank": _rank,
    "classes": _classes,
    "distances": _distances,
    "projections": _projections,
    "retrieval": _retrieval,
    "prototype": _prototype,
}
