"""Evaluation of runs by depth prediction: features, cross-validation, and one test."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hypersphere_jax import augment, models
from hypersphere_jax import data as datasets
from hypersphere_jax.configs import DataConfig, require
from hypersphere_jax.data.source import Source, UnreadableImage
from hypersphere_jax.depth import fitting
from hypersphere_jax.depth.config import DepthConfig
from hypersphere_jax.depth.fitting import DepthData
from hypersphere_jax.evaluation import results_file
from hypersphere_jax.evaluation.features import split_features
from hypersphere_jax.training import distributed, run_dir
from hypersphere_jax.training.run_dir import RunEncoder
from hypersphere_jax.utils.caches import fingerprint
from hypersphere_jax.utils.terminal import track

EXAMPLES = 6  # test images in the picture
OPTIONS = ("epochs", "batch_size", "learning_rate", "seed")  # of a result


class DepthResults(NamedTuple):
    """Results of a depth evaluation."""

    results: list[dict[str, Any]]  # one per run; the tested run is the first
    figure: Path  # of the picture, for the caller to draw
    # Test images uint8 [k, size, size, c], and their true and predicted depths [k, size, size].
    examples: tuple[np.ndarray, np.ndarray, np.ndarray]


class Candidate(NamedTuple):
    """A run's encoder and images, and the result to fill."""

    encoder: RunEncoder
    dataset: datasets.Dataset
    shape: tuple[int, int, int]  # shape of the layer: (side, side, channels)
    crop: Callable[[np.ndarray], np.ndarray]  # from [h, w, c] to the image of an evaluation
    train: DepthData
    result: dict[str, Any]


@distributed.isolated()
def run_depth(config: DepthConfig) -> DepthResults:
    """Train a depth predictor on frozen features of the training images, and test it.

    With `folds`, each run is cross-validated on its training images, and the run with the smallest
    mean squared error is tested. Results are saved in the runs' folders.

    Raises:
      UserError: for runs, layers or data that do not fit.
    """
    candidates = [_open(name, config) for name in config.runs]
    if config.folds:
        for candidate in candidates:
            _cross_validate(candidate, config)
        candidates.sort(key=lambda candidate: candidate.result["cv_mse"])
    best = candidates[0]
    examples = _test(best, config)
    for candidate in candidates:
        results_file.save_result(_file(candidate, config, "eval", ".json"), candidate.result)
    figure = _file(best, config, "figures", ".png")
    return DepthResults([candidate.result for candidate in candidates], figure, examples)


def _file(candidate: Candidate, config: DepthConfig, folder: str, suffix: str) -> Path:
    """Return a file in a run's folder, with another name for other options or images."""
    options = ("step", "folds", *OPTIONS)
    name = f"depth-{config.layer}{results_file.changed_options(config, options)}"
    if config.data is not None or config.data_dir is not None:
        name += f"-{fingerprint(candidate.dataset.digest())}"
    return candidate.encoder.folder / folder / f"{name}{suffix}"


def _open(name: str, config: DepthConfig) -> Candidate:
    """Load the encoder and the training data of a run."""
    folder = run_dir.find(name, config.runs_dir)
    run_dir.require_images(folder, "depth")
    encoder = run_dir.load_encoder(folder, config.step)
    shapes: Any = models.layers(encoder.config)
    spatial = [layer for layer, shape in shapes.items() if len(shape) == 3]
    is_spatial = config.layer in spatial
    require(is_spatial, f"layer={config.layer} is not spatial; use one of {', '.join(spatial)}")
    if config.data is None:
        dataset = run_dir.load_data(folder, config.data_dir)
    else:
        dataset = datasets.load(DataConfig(config.data, config.data_dir))
    run_dir.test_split(dataset)
    size: Any = encoder.config.image_size
    _, crop = augment.host_crops(augment.recipe_of(encoder.config), size)
    train, _ = _load(dataset.train, encoder, crop, config)
    result = {
        "protocol": "depth",
        "run": folder.name,
        "step": encoder.step,
        "data": dataset.origin,
        "size": size,
        "units": "metres (mse: square metres), shares in percent",
        "layer": config.layer,
        **{option: getattr(config, option) for option in OPTIONS},
    }
    return Candidate(encoder, dataset, shapes[config.layer], crop, train, result)


def _load(
    source: Source, encoder: RunEncoder, crop: Callable, config: DepthConfig
) -> tuple[DepthData, list[int]]:
    """Return features (on disk) and depth maps of readable images, and their indices."""
    depths = []
    indices = []
    for index in track(range(len(source)), "depth maps"):
        try:
            sample = source[index]
        except UnreadableImage:
            continue
        require("depth" in sample, f"{source.origin} has no depth maps: use data=nyu_depth_v2")
        image_shape = sample["image"].shape
        expected = (*sample["depth"].shape, encoder.config.in_channels)
        message = f"{source.origin} has an image {image_shape}; its depth map or the encoder needs"
        require(image_shape == expected, f"{message} {expected}")
        depths.append(fitting.resize_depth(sample["depth"], crop))
        indices.append(index)
    devices = distributed.local_devices(config.devices)
    x = split_features(encoder, source, [config.layer], devices).features[config.layer].x
    require(len(depths) == len(x), f"the images of {source.origin} changed during the evaluation")
    return DepthData(x, np.stack(depths)), indices


def _cross_validate(candidate: Candidate, config: DepthConfig) -> None:
    """Add the mean squared error on each fold of the training images to the result."""
    train = candidate.train
    n = len(train.x)
    require(config.folds <= n, f"folds={config.folds}: there are {n} training images")
    fold_of_row = np.random.default_rng(config.seed).permutation(n) % config.folds
    scores = []
    for fold in range(config.folds):
        fitted = np.flatnonzero(fold_of_row != fold)
        held_out = np.flatnonzero(fold_of_row == fold)
        predict = fitting.fit(train, fitted, candidate.shape, config)
        errors = fitting.depth_errors(predict, train, held_out, train.mean_depth(fitted))
        scores.append(errors["mse"])
    mean = float(np.mean(scores))
    candidate.result.update(folds=config.folds, cv_mse=mean, cv_mse_folds=scores)


def _test(candidate: Candidate, config: DepthConfig) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Add the errors on the test split to the result, and return examples."""
    encoder, dataset, shape, crop, train, result = candidate
    source: Any = dataset.test
    test, indices = _load(source, encoder, crop, config)
    rows = np.arange(len(train.x))
    predict = fitting.fit(train, rows, shape, config)
    n = len(test.x)
    result |= fitting.depth_errors(predict, test, np.arange(n), train.mean_depth(rows))
    result |= {"n": n, "n_train": len(rows), "split": "test"}
    # Consecutive images often show the same scene, so the examples are spread over the split.
    drawn = np.unique(np.linspace(0, n - 1, EXAMPLES).round().astype(int))
    images = [crop(source[indices[row]]["image"]) for row in drawn]
    return np.stack(images), test.depths[drawn], predict(test.x[drawn])
