"""The verb `depth`: depth maps from frozen features (Wang & Isola, B.1, Table 6)."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from hypersphere_jax import augment, data, models
from hypersphere_jax.config import DataConfig, DepthConfig, require
from hypersphere_jax.data.source import Source, UnreadableImage
from hypersphere_jax.evaluate import results
from hypersphere_jax.evaluate.depth import Split, errors, fit, mean_depth
from hypersphere_jax.evaluate.features import split_features
from hypersphere_jax.train import run_folder, sharding
from hypersphere_jax.train.progress import track
from hypersphere_jax.train.run_folder import Encoder

# A pixel of a resized depth map is known if at least this share of what it covers is.
KNOWN = 0.5


class Evaluated(NamedTuple):
    """`results`, the tested run's first; `figure`, where a picture of `examples` belongs.

    Of some test images: `images` uint8 `[k, size, size, c]`, true and predicted depth maps
    `[k, size, size]`.
    """

    results: list[dict[str, Any]]
    figure: Path
    examples: tuple[np.ndarray, np.ndarray, np.ndarray]


class Candidate(NamedTuple):
    """A run's encoder and its images; `result` is filled step by step."""

    encoder: Encoder
    dataset: data.Dataset
    shape: tuple[int, int, int]  # of the layer
    devices: list[jax.Device]
    crop: Callable[[np.ndarray], np.ndarray]  # of images [h, w, c] to what evaluation sees
    result: dict[str, Any]


def evaluate(config: DepthConfig) -> Evaluated:
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
    name = f"depth-{config.layer}{results.suffix(config, names)}"
    # Other data than the run's are told by their file or folder.
    name += "".join(f"-{Path(place).stem}" for place in (config.data, config.data_dir) if place)
    for candidate in candidates:
        results.save(candidate.encoder.folder / "eval" / f"{name}.json", candidate.result)
    figure = candidates[0].encoder.folder / "figures" / f"{name}.png"
    return Evaluated([candidate.result for candidate in candidates], figure, examples)


def resized_depth(depth: np.ndarray, crop: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The depth map of what the encoder sees: resized and cropped as its image is.

    Args:
      depth: `[h, w]`, metres; unknown where it is 0, negative, or not finite.
      crop: of images `[h, w, c]`.

    Returns:
      float32 `[size, size]`, the mean over the known places, 0 where fewer than half are known.
    """
    known = np.isfinite(depth) & (depth > 0)
    sides = (known, np.where(known, depth, 0))
    share, depth = (crop(side.astype(np.float32)[..., None])[..., 0] for side in sides)
    return np.where(share >= KNOWN, depth / np.maximum(share, KNOWN), 0).astype(np.float32)


def _open(name: str, config: DepthConfig) -> Candidate:
    folder = run_folder.find(name)
    run_folder.require_images(folder, "depth")
    encoder = run_folder.load_encoder(folder, config.step)
    model, recipe = encoder.config.model, encoder.config.data.recipe
    models.check_layer(model, config.layer, "--layer")
    shapes = models.layers(model)
    spatial = [layer for layer, shape in shapes.items() if len(shape) == 3]
    require(
        config.layer in spatial,
        f"--layer {config.layer}: a depth map needs a layer with places, [h, w, channels]; those "
        f"of {model.name} are {', '.join(spatial)}",
    )
    if config.data is None:
        dataset = run_folder.load_data(folder, config.data_dir)
    else:
        dataset = data.load(DataConfig(config.data, config.data_dir))
    run_folder.test_split(dataset)
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
    devices = sharding.local_devices(config.devices)
    crop = augment.host_crops(recipe, model.image_size)[1]
    return Candidate(encoder, dataset, shapes[config.layer], devices, crop, result)


def _load(candidate: Candidate, source: Source) -> tuple[Split, list[int]]:
    """Features, which stay on disk, and depth maps; and the numbers of the images."""
    encoder, layer = candidate.encoder, candidate.result["layer"]
    channels = encoder.config.model.channels
    depths, numbers = [], []
    for number in track(range(len(source)), "depth maps"):
        try:
            sample = source[number]
        except UnreadableImage:
            continue
        require(
            "depth" in sample,
            f"the images of {source.origin} have no depth maps: name others that do, such as "
            "--data nyu_depth_v2 --data-dir nyu_depth_v2_labeled.mat",
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
    require(config.folds <= n, f"--folds {config.folds}: there are {n} training images")
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
