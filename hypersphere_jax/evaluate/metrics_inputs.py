"""What there is to measure: of a run's split, or of somebody's files."""

import functools
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from hypersphere_jax.config import MetricsConfig, UserError, require
from hypersphere_jax.data import Source
from hypersphere_jax.data.source import Sample
from hypersphere_jax.evaluate import geometry, metrics
from hypersphere_jax.evaluate.feature_files import FeatureFile
from hypersphere_jax.evaluate.features import pair_features, split_features
from hypersphere_jax.evaluate.metrics import Estimate, Rows, row_slices
from hypersphere_jax.evaluate.sentences import neighbour_metrics
from hypersphere_jax.theory import uniformity_lower_bound, uniformity_optimum
from hypersphere_jax.train import run_folder
from hypersphere_jax.train.run_folder import Encoder


class Material(NamedTuple):
    """What there is to measure.

    `x` are unit features `[n, d]`, and `pairs` those of the two sides of positive pairs. `labels`
    are integers `[n]`, called `labels_name` in messages. `class_names` are by label. `prototype`
    gives the prototype bias, and of how many images it is. `summary(alpha, t, devices)` gives
    alignment and uniformity; of text it is `metrics.summary` of neighbours, and `x` are f's.
    """

    x: Any
    pairs: tuple[Any, Any] | None
    labels: np.ndarray | None
    labels_name: str
    class_names: Sequence[str]
    prototype: Callable[[], tuple[Estimate, int]] | None
    summary: Callable[..., dict[str, Any]]


class Picked:
    """A source whose image i is number `indices[i]` of another; a number may come up again."""

    def __init__(self, source: Source, indices: np.ndarray):
        self.source, self.indices = source, indices
        self.class_names, self.image_shape = source.class_names, source.image_shape
        self.origin = f"{len(indices)} picked images of {source.origin}"

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, i: int) -> Sample:
        return self.source[int(self.indices[i])]

    @property
    def labels(self) -> np.ndarray:
        return self.source.labels[self.indices]

    @property
    def digest(self) -> str:
        indices = np.ascontiguousarray(self.indices, np.int64).tobytes()
        return hashlib.sha256(self.source.digest.encode() + indices).hexdigest()[:16]


def of_run(config: MetricsConfig, devices: Sequence[jax.Device]) -> tuple[dict[str, Any], Material]:
    """What the result says of a run and its split, and their features."""
    folder = run_folder.find(config.run)
    encoder = run_folder.load_encoder(folder, config.step)
    dataset = run_folder.load_data(folder, config.data_dir)
    source = run_folder.test_split(dataset) if config.split == "test" else dataset.train
    about = {
        "run": folder.name,
        "step": encoder.step,
        "data": encoder.config.data.name,
        "split": config.split,
    }
    if encoder.config.model.reads_text:
        return about | {"layer": "f, g"}, _of_text(encoder, source, devices)
    found = split_features(encoder, source, ["output"], devices)["output"]
    _check_finite(f"{config.split} features of {folder.name}", found.x)
    pairs = pair_features(encoder, source, devices, config.seed)
    for side in pairs:
        _check_finite(f"features of random {config.split} views of {folder.name}", side)

    def prototype() -> tuple[Estimate, int]:
        return _prototype_of_run(encoder, source, pairs, devices, config.seed)

    labels = found.labels if dataset.class_names else None
    name = f"labels of the {config.split} split"
    summary = functools.partial(metrics.summary, found.x, pairs)
    return about | {"layer": "output"}, Material(
        found.x, pairs, labels, name, dataset.class_names, prototype, summary
    )


def _of_text(encoder: Encoder, source: Source, devices: Sequence[jax.Device]) -> Material:
    """Features of neighbouring sentences: f of one and g of the other are a pair."""
    found = split_features(encoder, source, ["f", "g"], devices)
    f, g = found["f"].x, found["g"].x
    for name, x in (("f", f), ("g", g)):
        _check_finite(f"{name}'s features of {encoder.folder.name}", x)
    ends = source.documents[1:-1] - 1  # whose next sentence is another document's
    before = np.setdiff1d(np.arange(len(f) - 1), ends)
    pairs = (
        Rows(f, np.concatenate([before, before + 1])),
        Rows(g, np.concatenate([before + 1, before])),
    )
    summary = functools.partial(_summary_of_text, f, g, source.documents)
    return Material(f, pairs, None, "labels of the text", (), None, summary)


def _summary_of_text(f, g, documents, alpha: float, t: float, devices) -> dict[str, Any]:
    """`neighbour_metrics`, and what the sum of both uniformities can be at best."""
    found = neighbour_metrics(f, g, documents, alpha, t, devices=devices)
    n, d = found["n"], found["d"]
    return found | {
        "uniform_optimum": 2 * uniformity_optimum(d, t),
        "uniform_lower_bound": 2 * uniformity_lower_bound(d, t, n),
    }


def _prototype_of_run(
    encoder: Encoder, source: Source, pairs: tuple, devices: Sequence[jax.Device], seed: int
) -> tuple[Estimate, int]:
    """Both views of each image beside those of another one of its class, augmented alike.

    What is random about a view belongs to its place in the source, so the mates are put there.
    """
    n = len(source)
    mates = geometry.class_mates(geometry.class_rows(source.labels, n), n, seed)
    rows = np.flatnonzero(mates >= 0)
    if not len(rows) == len(pairs[0]) == n:
        pairs = pair_features(encoder, Picked(source, rows), devices, seed)
    others = pair_features(encoder, Picked(source, mates[rows]), devices, seed)
    require(
        len(pairs[0]) == len(others[0]) == len(rows),
        f"--parts prototype: some images of {source.origin} cannot be read, and it needs all",
    )
    return geometry.prototype_bias(list(zip(pairs, others, strict=True))), len(rows)


def _check_finite(name: str, x: np.ndarray) -> None:
    slices = row_slices(len(x))
    bad = [rows.start + np.flatnonzero(~np.isfinite(x[rows]).all(1)) for rows in slices]
    bad = np.concatenate(bad)
    named = ", ".join(map(str, bad[:5])) + (", ..." if bad.size > 5 else "")
    require(
        not bad.size,
        f"{name}: {bad.size} of {len(x)} rows hold NaN or infinity (rows {named}); did the "
        "training diverge?",
    )


def of_file(config: MetricsConfig) -> tuple[dict[str, Any], Material]:
    """What the result says of the files, and their features."""
    x = FeatureFile(config.run, config.normalize)
    others = None if config.pairs is None else FeatureFile(config.pairs, config.normalize)
    if others is not None:
        require(
            x.shape == others.shape,
            f"pairs must have one shape, but {x.path} holds {x.shape} and {others.path} "
            f"{others.shape}",
        )
        others.check_unit()
    labels = None if config.labels is None else _labels(config.labels)
    x.check_unit()

    def prototype() -> tuple[Estimate, int]:
        """Eq. (51) of what is there: each row under its own augmentation, if it has one."""
        mates = geometry.class_mates(geometry.class_rows(labels, len(x)), len(x), config.seed)
        rows = np.flatnonzero(mates >= 0)
        return geometry.prototype_bias([(Rows(x, rows), Rows(x, mates[rows]))]), len(rows)

    about = {
        "features": str(config.run),
        "pairs": None if others is None else str(config.pairs),
        "labels": None if labels is None else str(config.labels),
        "normalized": config.normalize,
    }
    pairs = None if others is None else (x, others)
    summary = functools.partial(metrics.summary, x, pairs)
    return about, Material(x, pairs, labels, str(config.labels), (), prototype, summary)


def _labels(path: Path) -> np.ndarray:
    require(path.is_file(), f"{path}: there is no such file")
    try:
        labels = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise UserError(f"{path} cannot be read as an .npy array: {error}") from error
    require(isinstance(labels, np.ndarray), f"{path} holds several arrays: save one as .npy")
    return labels
