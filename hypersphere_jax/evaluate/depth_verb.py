"""The verb `depth`: depth maps from frozen features (Wang & Isola, B.1, Table 6)."""

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hypersphere_jax import augment, data, models
from hypersphere_jax.configs import DataConfig, DepthConfig, OptimizerConfig, require
from hypersphere_jax.data.sampling import Sampler
from hypersphere_jax.data.source import Source, UnreadableImage
from hypersphere_jax.evaluate import results_file
from hypersphere_jax.evaluate.features import split_features
from hypersphere_jax.models import depth_predictor
from hypersphere_jax.training import distributed, optimizers, run_dir
from hypersphere_jax.training.run_dir import RunEncoder
from hypersphere_jax.utils.terminal import track

KNOWN = 0.5  # the share of known depths that makes a pixel of a resized depth map known
LEAST_DEPTH = 0.01  # metres; smaller predictions count as this in ratios
CHUNK = 256  # images that are predicted at a time

Predict = Callable[[np.ndarray], np.ndarray]


class Split(NamedTuple):
    """`x` float32 `[n, h * w * c]` and `depths` float32 `[n, size, size]`, metres, 0: unknown."""

    x: np.ndarray
    depths: np.ndarray


class DepthResults(NamedTuple):
    """Results, the tested run's first, and the path and contents of the picture."""

    results: list[dict[str, Any]]
    figure: Path
    # Of test images: uint8 [k, size, size, c], true and predicted depths [k, size, size].
    examples: tuple[np.ndarray, np.ndarray, np.ndarray]


class Candidate(NamedTuple):
    """A run's encoder and its images; `result` is filled step by step."""

    encoder: RunEncoder
    dataset: data.Dataset
    shape: tuple[int, int, int]  # of the layer
    devices: list[jax.Device]
    crop: Callable[[np.ndarray], np.ndarray]  # of images [h, w, c] to what evaluation sees
    result: dict[str, Any]


@distributed.isolated()
def run_depth(config: DepthConfig) -> DepthResults:
    """Trains a depth predictor on frozen features of the training images, and tests it.

    With folds, each run gets its error by cross-validation on the training images; of several runs,
    the one with the smallest mean squared error there is tested, and no other.
    """
    candidates = [_open(name, config) for name in config.runs]
    for candidate in candidates if config.folds else ():
        _cross_validate(candidate, config)
    candidates.sort(key=lambda candidate: candidate.result.get("cv_mse", 0.0))
    examples = _test(candidates[0], config)
    names = ("step", "folds", "epochs", "batch_size", "learning_rate", "seed")
    name = f"depth-{config.layer}{results_file.changed_options(config, names)}"
    name += "".join(f"-{Path(place).stem}" for place in (config.data, config.data_dir) if place)
    for candidate in candidates:
        file = candidate.encoder.folder / "eval" / f"{name}.json"
        results_file.save_result(file, candidate.result)
    figure = candidates[0].encoder.folder / "figures" / f"{name}.png"
    return DepthResults([candidate.result for candidate in candidates], figure, examples)


def resized_depth(depth: np.ndarray, crop: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """A depth map `[h, w]` in metres, resized and cropped as its image is: float32 `[size, size]`.

    Depths that are 0, negative or not finite are unknown; the result is the mean over known ones, 0
    where fewer than half are known.
    """
    known = np.isfinite(depth) & (depth > 0)
    sides = (known, np.where(known, depth, 0))
    share, depth = (crop(side.astype(np.float32)[..., None])[..., 0] for side in sides)
    return np.where(share >= KNOWN, depth / np.maximum(share, KNOWN), 0).astype(np.float32)


def _open(name: str, config: DepthConfig) -> Candidate:
    folder = run_dir.find(name, config.runs_dir)
    run_dir.require_images(folder, "depth")
    encoder = run_dir.load_encoder(folder, config.step)
    model = encoder.config
    recipe = augment.recipe_of(model)
    models.check_layer(model, config.layer, "layer=")
    shapes = models.layers(model)
    spatial = [layer for layer, shape in shapes.items() if len(shape) == 3]
    usable = config.layer in spatial
    require(usable, f"layer={config.layer}: has no [h, w, channels], as {', '.join(spatial)} do")
    if config.data is None:
        dataset = run_dir.load_data(folder, config.data_dir)
    else:
        dataset = data.load(DataConfig(config.data, config.data_dir))
    run_dir.test_split(dataset)
    result = {
        "protocol": "depth",
        "run": folder.name,
        "step": encoder.step,
        "data": dataset.origin,
        "size": model.image_size,
        "units": "metres (mse: square metres), shares in percent",
    }
    names = ("layer", "epochs", "batch_size", "learning_rate", "seed")
    result |= {name: getattr(config, name) for name in names}
    devices = distributed.local_devices(config.devices)
    crop = augment.host_crops(recipe, model.image_size)[1]
    return Candidate(encoder, dataset, shapes[config.layer], devices, crop, result)


def _load(candidate: Candidate, source: Source) -> tuple[Split, list[int]]:
    """Features, which stay on disk, and depth maps; and the numbers of the images."""
    encoder, layer = candidate.encoder, candidate.result["layer"]
    channels = encoder.config.in_channels
    depths, numbers = [], []
    for number in track(range(len(source)), "depth maps"):
        try:
            sample = source[number]
        except UnreadableImage:
            continue
        require(
            "depth" in sample,
            f"the images of {source.origin} have no depth maps: name data that do, such as "
            "data=nyu_depth_v2 data_dir=nyu_depth_v2_labeled.mat",
        )
        image, depth = sample["image"], sample["depth"]
        require(
            image.shape == (*depth.shape, channels),
            f"{source.origin}: an image is {image.shape}, its depth map {depth.shape}, and "
            f"{encoder.folder} sees images of {channels} channel(s)",
        )
        depths.append(resized_depth(depth, candidate.crop))
        numbers.append(number)
    x = split_features(encoder, source, [layer], candidate.devices).features[layer].x
    require(len(depths) == len(x), f"the images of {source.origin} changed meanwhile")
    return Split(x, np.stack(depths)), numbers


def _cross_validate(candidate: Candidate, config: DepthConfig) -> None:
    """Adds the mean squared error on each fold of the training images to the result."""
    began = time.monotonic()
    train, _ = _load(candidate, candidate.dataset.train)
    n = len(train.x)
    require(config.folds <= n, f"folds={config.folds}: there are {n} training images")
    number = np.random.default_rng(config.seed).permutation(n) % config.folds
    scores = []
    for held_out in range(config.folds):
        rest, rows = np.flatnonzero(number != held_out), np.flatnonzero(number == held_out)
        predict = fit(train, rest, candidate.shape, config)
        scores.append(errors(predict, train, rows, mean_depth(train, rest))["mse"])
    candidate.result.update(
        folds=config.folds,
        cv_mse=float(np.mean(scores)),
        cv_mse_folds=scores,
        cv_seconds=time.monotonic() - began,
    )


def _test(candidate: Candidate, config: DepthConfig) -> tuple[np.ndarray, ...]:
    """Adds the errors on the test split to the result; gives some examples."""
    began, dataset = time.monotonic(), candidate.dataset
    (train, _), (test, numbers) = (_load(candidate, s) for s in (dataset.train, dataset.test))
    loaded = time.monotonic()
    rows = np.arange(len(train.x))
    predict = fit(train, rows, candidate.shape, config)
    fitted = time.monotonic()
    scores = errors(predict, test, np.arange(len(test.x)), mean_depth(train, rows))
    candidate.result.update(
        scores,
        split="test",
        n=len(test.x),
        n_train=len(rows),
        features_seconds=loaded - began,
        fit_seconds=fitted - loaded,
        seconds=time.monotonic() - began,
    )
    # Spread over the split, whose neighbours often show one scene.
    drawn = np.unique(np.linspace(0, len(test.x) - 1, config.rows).round().astype(int))
    images = [candidate.crop(dataset.test[numbers[row]]["image"]) for row in drawn]
    return np.stack(images), test.depths[drawn], predict(test.x[drawn])


def fit(
    split: Split, rows: np.ndarray, shape: tuple[int, int, int], config: DepthConfig
) -> Predict:
    """A depth predictor, trained to the least mean squared error over known pixels of these rows.

    Of features of shape `(side, side, channels)` an image. It maps features `[m, h * w * c]` to
    depths `[m, size, size]`, metres.
    """
    sampler = Sampler(len(rows), min(config.batch_size, len(rows)), config.seed)
    steps = config.epochs * sampler.steps_per_epoch
    key, mean, size = jax.random.key(config.seed), mean_depth(split, rows), split.depths.shape[-1]
    apply, params, stats = depth_predictor.create(shape, size, key, mean)
    optimizer, step, predict = _compiled(apply, shape, config.optimizer, steps)
    state = optimizer.init(params)
    for number in track(range(steps), "depth predictor"):
        batch = np.sort(rows[sampler(number)])  # in the order of the file
        x, depths = split.x[batch], split.depths[batch]
        params, stats, state, value = step(params, stats, state, x, depths)
    require(bool(jnp.isfinite(value)), "the depth predictor diverged: lower learning_rate=")
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
    """Errors of depth maps, over all pixels of known depth of the rows `[m]` of a split.

    With the predicted depth p and the true one t, metres: the mean squared error `mse` (square
    metres), its root `rmse`, the mean of |p - t| / t `abs_rel`, the mean of |log10 p - log10 t|
    `log10`, and the percentage of pixels where max(p / t, t / p) is below 1.25, 1.25^2 and 1.25^3,
    `delta1` to `delta3` (Eigen et al. 2014). `mse_constant` is of one depth for all pixels.
    """
    chunks = (rows[begin : begin + CHUNK] for begin in range(0, len(rows), CHUNK))
    predicted = np.concatenate([predict(split.x[chunk]) for chunk in chunks])
    depths = split.depths[rows]
    known = depths > 0
    require(known.any(), "no pixel of these images has a known depth")
    true, predicted = depths[known].astype(np.float64), predicted[known].astype(np.float64)
    positive = np.maximum(predicted, LEAST_DEPTH)
    ratio = np.maximum(positive / true, true / positive)
    values = {
        "mse": np.mean(np.square(predicted - true)),
        "rmse": np.sqrt(np.mean(np.square(predicted - true))),
        "abs_rel": np.mean(np.abs(predicted - true) / true),
        "log10": np.mean(np.abs(np.log10(positive / true))),
        **{f"delta{power}": 100 * np.mean(ratio < 1.25**power) for power in (1, 2, 3)},
        "mse_constant": np.mean(np.square(constant - true)),
    }
    return {name: float(value) for name, value in values.items()}


def mean_depth(split: Split, rows: np.ndarray) -> float:
    """The mean known depth of some rows, metres; UserError when no depth is known."""
    depths = split.depths[rows]
    known = np.count_nonzero(depths)
    require(known > 0, "no pixel of the training images has a known depth")
    return float(depths.sum(dtype=np.float64) / known)
