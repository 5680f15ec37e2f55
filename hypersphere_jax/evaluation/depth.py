"""Depth maps from frozen features: the depth evaluation of Wang & Isola (B.1, Table 6)."""

import dataclasses
import functools
import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hypersphere_jax import augment, data, models, optimizers, runs, sharding
from hypersphere_jax.config import DataConfig, DepthConfig, OptimizerConfig, UserError, require
from hypersphere_jax.data.pipeline import read
from hypersphere_jax.data.sampling import Sampler
from hypersphere_jax.data.source import Sample, Source
from hypersphere_jax.evaluation.features import split_features
from hypersphere_jax.models import depth_predictor
from hypersphere_jax.progress import track
from hypersphere_jax.runs import Encoder

logger = logging.getLogger("hypersphere_jax")

# A pixel of a resized depth map is known if at least this share of what it covers is.
KNOWN = 0.5
# The measures that are ratios take a smaller (or negative) prediction for this, metres.
LEAST_DEPTH = 0.01
CHUNK = 256  # images that are predicted at a time


class Split(NamedTuple):
    """`x` float32 `[n, h * w * c]` and `depths` float32 `[n, size, size]`, metres, 0: unknown."""

    x: np.ndarray
    depths: np.ndarray


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


Predict = Callable[[np.ndarray], np.ndarray]
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


def fit(
    split: Split, rows: np.ndarray, shape: tuple[int, int, int], config: DepthConfig
) -> Predict:
    """A depth predictor, trained to the least mean squared error over the known pixels.

    Args:
      split: of which it sees
      rows: these, integers `[m]`.
      shape: of the features of one image, `(side, side, channels)`.
      config: of the training.

    Returns:
      The function from features `[m, h * w * c]` to depths `[m, size, size]`, metres.

    Raises:
      UserError: when it diverges.
    """
    sampler = Sampler(len(rows), min(config.batch_size, len(rows)), config.seed)
    steps = config.epochs * sampler.steps_per_epoch
    key, mean, size = jax.random.key(config.seed), _mean(split, rows), split.depths.shape[-1]
    apply, params, stats = depth_predictor.create(shape, size, key, mean)
    optimizer, step, predict = _compiled(apply, shape, config.optimizer, steps)
    state = optimizer.init(params)
    for number in track(range(steps), "depth predictor"):
        batch = np.sort(rows[sampler(number)])  # in the order of the file
        params, stats, state, value = step(
            params, stats, state, split.x[batch], split.depths[batch]
        )
    require(bool(jnp.isfinite(value)), "the depth predictor diverged: lower --learning-rate")
    return lambda x: np.asarray(predict(params, stats, x))


@functools.lru_cache(maxsize=8)  # once for all folds of a size
def _compiled(apply: Callable, shape: tuple[int, int, int], rule: OptimizerConfig, steps: int):
    """The optimizer, its step, and the prediction."""
    optimizer = optimizers.make_optimizer(rule, optimizers.make_schedule(rule, steps))

    @jax.jit
    def step(params, stats, state, x, depths):
        def loss(params):
            predicted, new = apply(params, stats, x.reshape(-1, *shape), True)
            squares = jnp.where(depths > 0, jnp.square(predicted - depths), 0.0)
            return jnp.sum(squares) / jnp.maximum(1, jnp.sum(depths > 0)), new

        (value, new), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        update, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, update), new, state, value

    @jax.jit
    def predict(params, stats, x):
        return apply(params, stats, x.reshape(-1, *shape), False)[0]

    return optimizer, step, predict


def errors(predict: Predict, split: Split, rows: np.ndarray, constant: float) -> dict[str, float]:
    """The usual measures of depth maps, over all pixels of known depth of all images.

    With the predicted depth p and the true one t, metres: the mean squared error `mse` (square
    metres), its root `rmse`, the mean of |p - t| / t `abs_rel`, the mean of |log10 p - log10 t|
    `log10`, and the percentage of pixels where max(p / t, t / p) is below 1.25, 1.25^2 and 1.25^3,
    `delta1` to `delta3` (Eigen et al. 2014). Beside them `mse_constant`, the mean squared error of
    one depth for all pixels.

    Args:
      predict: as `fit` gives it.
      split: of which are scored
      rows: these, integers `[m]`.
      constant: that one depth.

    Raises:
      UserError: when no depth is known.
    """
    sums = np.zeros(8)
    for begin in range(0, len(rows), CHUNK):
        chunk = rows[begin : begin + CHUNK]
        true = split.depths[chunk].astype(np.float64)
        known = true > 0
        predicted = predict(split.x[chunk]).astype(np.float64)
        sums += _sums(predicted[known], true[known], constant)
    require(sums[0] > 0, "no pixel of these images has a known depth")
    mse, abs_rel, log10, *deltas, mse_constant = (sums[1:] / sums[0]).tolist()
    return {
        "mse": mse,
        "rmse": mse**0.5,
        "abs_rel": abs_rel,
        "log10": log10,
        **{f"delta{power}": 100 * share for power, share in enumerate(deltas, 1)},
        "mse_constant": mse_constant,
    }


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


def _sums(predicted: np.ndarray, true: np.ndarray, constant: float) -> np.ndarray:
    """The number of pixels, and what `errors` divides by it; float64 `[8]`."""
    error = predicted - true
    positive = np.maximum(predicted, LEAST_DEPTH)
    ratio = np.maximum(positive / true, true / positive)
    return np.array(
        [
            true.size,
            np.sum(np.square(error)),
            np.sum(np.abs(error) / true),
            np.sum(np.abs(np.log10(positive / true))),
            *(np.sum(ratio < 1.25**power) for power in (1, 2, 3)),
            np.sum(np.square(constant - true)),
        ]
    )


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
        folder = runs.find(name)
        encoder = runs.load_encoder(folder, config.step)
        shape = _spatial_shape(encoder, config.layer)
        if config.data is None:
            dataset = runs.load_data(folder, config.data_dir)
        else:
            dataset = data.load(DataConfig(config.data, config.data_dir))
        runs.test_split(dataset)
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
            runs.write_json(file, self.result)
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
        scores.append(errors(predict, train, rows, _mean(train, rest))["mse"])
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
    found = errors(predict, test, test_rows, _mean(train, rows))
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


def _mean(split: Split, rows: np.ndarray) -> float:
    """The mean known depth."""
    total, count = 0.0, 0
    for begin in range(0, len(rows), CHUNK):
        depths = split.depths[rows[begin : begin + CHUNK]]
        total, count = total + depths.sum(dtype=np.float64), count + np.count_nonzero(depths)
    require(count > 0, "no pixel of the training images has a known depth")
    return float(total / count)


def _readable(source: Source) -> Iterator[Sample]:
    """The samples that evaluation sees, as in `feed.in_order`."""
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
    changed = (f"-{name}{value}" for name, value in given if value != standard[name])
    return f"depth-{config.layer}{''.join(changed)}"
