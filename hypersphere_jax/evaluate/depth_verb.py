"""Depth maps from frozen features: the depth evaluation of Wang & Isola (B.1, Table 6)."""

import dataclasses
import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from hypersphere_jax import augment, data, models
from hypersphere_jax.config import DataConfig, DepthConfig, UserError, require
from hypersphere_jax.data.pipeline import read
from hypersphere_jax.data.source import Sample, Source
from hypersphere_jax.evaluate.depth import Split, errors, fit, mean_depth
from hypersphere_jax.evaluate.features import split_features
from hypersphere_jax.files import write_json
from hypersphere_jax.train import run_folder, sharding
from hypersphere_jax.train.progress import track
from hypersphere_jax.train.run_folder import Encoder

logger = logging.getLogger("hypersphere_jax")

# A pixel of a resized depth map is known if at least this share of what it covers is.
KNOWN = 0.5


class Examples(NamedTuple):
    """Of some test images: `images` uint8 `[k, size, size, c]`, depth maps `[k, size, size]`."""

    images: np.ndarray
    depths: np.ndarray
    predicted: np.ndarray


class Evaluated(NamedTuple):
    """`results`, the tested run's first; `figure`, where a picture of `examples` belongs."""

    results: list[dict[str, Any]]
    figure: Path
    examples: Examples


Crop = Callable[[np.ndarray], np.ndarray]


def evaluate(config: DepthConfig) -> Evaluated:
    """Trains a depth predictor on frozen features of the training images, and tests it.

    With folds, each run gets its error by cross-validation on the training images; of several runs,
    the one with the smallest mean squared error there is tested, and no other.
    """
    candidates = [_Candidate.open(name, config) for name in config.runs]
    for candidate in candidates if config.folds else ():
        candidate.result.update(_cross_validated(candidate, config))
    candidates.sort(key=lambda candidate: candidate.result.get("cv_mse", 0.0))
    best = candidates[0]
    examples = _test(best, config)
    for candidate in candidates:
        candidate.save(config)
    figure = best.encoder.folder / "figures" / f"{_file_name(config)}.png"
    return Evaluated([candidate.result for candidate in candidates], figure, examples)


def resized_depth(depth: np.ndarray, crop: Crop) -> np.ndarray:
    """The depth map of what the encoder sees: resized and cropped as its image is.

    Args:
      depth: `[h, w]`, metres; unknown where it is 0, negative, or not finite.
      crop: of images `[h, w, c]`.

    Returns:
      float32 `[size, size]`, the mean over the known places, 0 where fewer than half are known.
    """
    known = np.isfinite(depth) & (depth > 0)
    share, depth = (
        crop(side.astype(np.float32)[..., None])[..., 0]
        for side in (known, np.where(known, depth, 0))
    )
    return np.where(share >= KNOWN, depth / np.maximum(share, KNOWN), 0).astype(np.float32)


class _Candidate(NamedTuple):
    """A run's encoder and its images; `result` is filled step by step."""

    encoder: Encoder
    dataset: data.Dataset
    layer: str
    shape: tuple[int, int, int]
    devices: list[jax.Device]
    result: dict[str, Any]

    @classmethod
    def open(cls, name: str, config: DepthConfig) -> "_Candidate":
        folder = run_folder.find(name)
        run_folder.require_images(folder, "depth")
        encoder = run_folder.load_encoder(folder, config.step)
        shape = _spatial_shape(encoder, config.layer)
        if config.data is None:
            dataset = run_folder.load_data(folder, config.data_dir)
        else:
            dataset = data.load(DataConfig(config.data, config.data_dir))
        run_folder.test_split(dataset)
        for source in (dataset.train, dataset.test):
            _check_depths(source, encoder)
        names = ("epochs", "batch_size", "learning_rate", "seed")
        result = {
            "protocol": "depth",
            "run": folder.name,
            "step": encoder.step,
            "data": dataset.origin,
            "layer": config.layer,
            "size": encoder.config.model.image_size,
            "units": "metres (mse: square metres), shares in percent",
            **{name: getattr(config, name) for name in names},
        }
        devices = sharding.local_devices(config.devices)
        return cls(encoder, dataset, config.layer, shape, devices, result)

    @property
    def crop(self) -> Crop:
        """What evaluation sees of an image `[h, w, c]`."""
        model, recipe = self.encoder.config.model, self.encoder.config.data.recipe
        return augment.host_crops(recipe, model.image_size)[1]

    def load(self, source: Source) -> Split:
        """Features and depth maps, both on disk."""
        x = split_features(self.encoder, source, [self.layer], self.devices)[self.layer].x
        crop, size = self.crop, self.encoder.config.model.image_size
        with tempfile.TemporaryFile() as file:
            depths = np.memmap(file, np.float32, "w+", shape=(len(x), size, size))
        samples = track(_readable(source), "depth maps", len(source))
        count = -1
        for count, sample in enumerate(samples):
            require(count < len(x), f"the images of {source.origin} changed meanwhile")
            depths[count] = resized_depth(sample["depth"], crop)
        require(count + 1 == len(x), f"the images of {source.origin} changed meanwhile")
        return Split(x, depths)

    def save(self, config: DepthConfig) -> None:
        file = self.encoder.folder / "eval" / f"{_file_name(config)}.json"
        try:
            write_json(file, self.result)
        except OSError as error:
            logger.warning("the result is not kept: %s", error)


def _cross_validated(candidate: _Candidate, config: DepthConfig) -> dict[str, Any]:
    """Mean squared error on each fold of the training images, of a predictor of the others."""
    began = time.monotonic()
    train = candidate.load(candidate.dataset.train)
    n = len(train.x)
    require(config.folds <= n, f"--folds {config.folds}: there are {n} training images")
    number = np.random.default_rng(config.seed).permutation(n) % config.folds
    scores = []
    for held_out in range(config.folds):
        rest, rows = np.flatnonzero(number != held_out), np.flatnonzero(number == held_out)
        predict = fit(train, rest, candidate.shape, config)
        scores.append(errors(predict, train, rows, mean_depth(train, rest))["mse"])
    return {
        "folds": config.folds,
        "cv_mse": float(np.mean(scores)),
        "cv_mse_folds": scores,
        "cv_seconds": time.monotonic() - began,
    }


def _test(candidate: _Candidate, config: DepthConfig) -> Examples:
    """Adds the errors on the test split to the result."""
    began = time.monotonic()
    train, test = map(candidate.load, (candidate.dataset.train, candidate.dataset.test))
    loaded = time.monotonic()
    rows, test_rows = np.arange(len(train.x)), np.arange(len(test.x))
    predict = fit(train, rows, candidate.shape, config)
    fitted = time.monotonic()
    found = errors(predict, test, test_rows, mean_depth(train, rows))
    candidate.result.update(
        {
            "split": "test",
            "n": len(test_rows),
            "n_train": len(rows),
            **found,
            "features_seconds": loaded - began,
            "fit_seconds": fitted - loaded,
            "seconds": time.monotonic() - began,
        }
    )
    # Spread over the split, whose neighbours often show one scene.
    shown = np.unique(np.linspace(0, len(test_rows) - 1, config.rows).round().astype(int))
    wanted, images = set(shown.tolist()), []
    for number, sample in enumerate(_readable(candidate.dataset.test)):
        if number in wanted:
            images.append(candidate.crop(sample["image"]))
    return Examples(np.stack(images), test.depths[shown], predict(test.x[shown]))


def _readable(source: Source) -> Iterator[Sample]:
    """The samples that evaluation sees, as in `batches.eval_batches`."""
    for number in range(len(source)):
        sample, _ = read(source, number, replace=False)
        if sample:
            yield sample


def _spatial_shape(encoder: Encoder, layer: str) -> tuple[int, int, int]:
    models.check_layer(encoder.config.model, layer, "--layer")
    shapes = models.layers(encoder.config.model)
    spatial = [name for name, shape in shapes.items() if len(shape) == 3]
    require(
        layer in spatial,
        f"--layer {layer}: a depth map needs a layer with places, [h, w, channels], and that of "
        f"{encoder.config.model.name} is {list(shapes[layer])}; such layers are "
        f"{', '.join(spatial)}",
    )
    return shapes[layer]


def _check_depths(source: Source, encoder: Encoder) -> None:
    sample = next(_readable(source), None)
    require(sample is not None, f"no image of {source.origin} can be read")
    image, depth = sample["image"], sample.get("depth")
    if depth is None:
        raise UserError(
            f"the images of {source.origin} have no depth maps: name others that do, such as "
            "--data nyu_depth_v2 --data-dir nyu_depth_v2_labeled.mat"
        )
    require(
        depth.shape == image.shape[:2],
        f"{source.origin}: images are {image.shape[:2]} pixels, depth maps {depth.shape}",
    )
    channels = encoder.config.model.channels
    require(
        channels == image.shape[2],
        f"{encoder.folder} sees images of {channels} channel(s), those of {source.origin} have "
        f"{image.shape[2]}: take an encoder that was trained on such images",
    )


def _file_name(config: DepthConfig) -> str:
    """Tells a result from those with other options."""
    standard = {field.name: field.default for field in dataclasses.fields(config)}
    names = ("step", "folds", "epochs", "batch_size", "learning_rate", "seed")
    given = ((name, getattr(config, name)) for name in names)
    changed = [f"-{name}{value}" for name, value in given if value != standard[name]]
    # Other data than the run's are told by their file or folder.
    changed += [f"-{Path(place).stem}" for place in (config.data, config.data_dir) if place]
    return f"depth-{config.layer}{''.join(changed)}"
