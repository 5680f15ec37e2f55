"""Evaluation of runs by depth prediction: features, cross-validation, and one test."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from hypersphere_jax import augment, models
from hypersphere_jax import data as datasets
from hypersphere_jax.configs import DataConfig, require
from hypersphere_jax.data.source import Source, UnreadableImage
from hypersphere_jax.depth import fitting
from hypersphere_jax.depth.config import DepthConfig
from hypersphere_jax.depth.fitting import DepthData, depth_errors, resize_depth
from hypersphere_jax.evaluation import results_file
from hypersphere_jax.evaluation.features import split_features
from hypersphere_jax.training import distributed, run_dir
from hypersphere_jax.training.run_dir import RunEncoder
from hypersphere_jax.utils.caches import fingerprint
from hypersphere_jax.utils.terminal import track

EXAMPLES = 6  # test images in the picture


class DepthResults(NamedTuple):
    """Results of a depth evaluation.

    Attributes:
      results: one per run; the tested run is the first.
      figure: path of the picture.
      examples: test images uint8 `[k, size, size, c]`, and their true and predicted depths
        `[k, size, size]`.
    """

    results: list[dict[str, Any]]
    figure: Path
    examples: tuple[np.ndarray, np.ndarray, np.ndarray]


class Candidate(NamedTuple):
    """A run's encoder and images; `result` is filled step by step.

    Attributes:
      shape: of the layer, `(side, side, channels)`.
      crop: from images `[h, w, c]` to the images of an evaluation.
    """

    encoder: RunEncoder
    dataset: datasets.Dataset
    shape: tuple[int, int, int]
    devices: list[jax.Device]
    crop: Callable[[np.ndarray], np.ndarray]
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
        file = candidate.encoder.folder / "eval" / f"{_file_name(config, candidate)}.json"
        results_file.save_result(file, candidate.result)
    figure = best.encoder.folder / "figures" / f"{_file_name(config, best)}.png"
    return DepthResults([candidate.result for candidate in candidates], figure, examples)


def _file_name(config: DepthConfig, candidate: Candidate) -> str:
    """Return the name of a run's files, which differs for other options and other images."""
    options = ("step", "folds", "epochs", "batch_size", "learning_rate", "seed")
    name = f"depth-{config.layer}{results_file.changed_options(config, options)}"
    if config.data is not None or config.data_dir is not None:
        name += f"-{fingerprint(candidate.dataset.digest())}"
    return name


def _open(name: str, config: DepthConfig) -> Candidate:
    folder = run_dir.find(name, config.runs_dir)
    run_dir.require_images(folder, "depth")
    encoder = run_dir.load_encoder(folder, config.step)
    model = encoder.config
    models.check_layer(model, config.layer, "layer=")
    shapes = models.layers(model)
    spatial = [layer for layer, shape in shapes.items() if len(shape) == 3]
    is_spatial = config.layer in spatial
    require(is_spatial, f"layer={config.layer} is not spatial; use one of {', '.join(spatial)}")
    if config.data is None:
        dataset = run_dir.load_data(folder, config.data_dir)
    else:
        dataset = datasets.load(DataConfig(config.data, config.data_dir))
    run_dir.test_split(dataset)
    result = {
        "protocol": "depth",
        "run": folder.name,
        "step": encoder.step,
        "data": dataset.origin,
        "size": model.image_size,
        "units": "metres (mse: square metres), shares in percent",
    }
    options = ("layer", "epochs", "batch_size", "learning_rate", "seed")
    result |= {name: getattr(config, name) for name in options}
    size: Any = model.image_size
    shape: Any = shapes[config.layer]
    _, crop = augment.host_crops(augment.recipe_of(model), size)
    devices = distributed.local_devices(config.devices)
    return Candidate(encoder, dataset, shape, devices, crop, result)


def _load(candidate: Candidate, source: Source) -> tuple[DepthData, list[int]]:
    """Return features (on disk) and depth maps of readable images, and their indices."""
    depths = []
    indices = []
    for index in track(range(len(source)), "depth maps"):
        try:
            sample = source[index]
        except UnreadableImage:
            continue
        advice = "name data that have, e.g. data=nyu_depth_v2 data_dir=nyu_depth_v2_labeled.mat"
        require("depth" in sample, f"the images of {source.origin} have no depth maps: {advice}")
        image_shape = sample["image"].shape
        expected = (*sample["depth"].shape, candidate.encoder.config.in_channels)
        message = f"{source.origin} has an image {image_shape}, and a depth map or encoder"
        require(image_shape == expected, f"{message} for images {expected}")
        depths.append(resize_depth(sample["depth"], candidate.crop))
        indices.append(index)
    layer = candidate.result["layer"]
    x = split_features(candidate.encoder, source, [layer], candidate.devices).features[layer].x
    require(len(depths) == len(x), f"the images of {source.origin} changed during the evaluation")
    return DepthData(x, np.stack(depths)), indices


def _cross_validate(candidate: Candidate, config: DepthConfig) -> None:
    """Add the mean squared error on each fold of the training images to the result."""
    train, _ = _load(candidate, candidate.dataset.train)
    n = len(train.x)
    require(config.folds <= n, f"folds={config.folds}: there are {n} training images")
    fold_of_row = np.random.default_rng(config.seed).permutation(n) % config.folds
    scores = []
    for fold in range(config.folds):
        training = np.flatnonzero(fold_of_row != fold)
        held_out = np.flatnonzero(fold_of_row == fold)
        predict = fitting.fit(train, training, candidate.shape, config)
        errors = depth_errors(predict, train, held_out, train.mean_depth(training))
        scores.append(errors["mse"])
    mean = float(np.mean(scores))
    candidate.result.update(folds=config.folds, cv_mse=mean, cv_mse_folds=scores)


def _test(candidate: Candidate, config: DepthConfig) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Add the errors on the test split to the result, and return examples."""
    started = time.monotonic()
    train, _ = _load(candidate, candidate.dataset.train)
    test_images: Any = candidate.dataset.test
    test, indices = _load(candidate, test_images)
    rows = np.arange(len(train.x))
    predict = fitting.fit(train, rows, candidate.shape, config)
    errors = depth_errors(predict, test, np.arange(len(test.x)), train.mean_depth(rows))
    seconds = time.monotonic() - started
    sizes = {"n": len(test.x), "n_train": len(rows)}
    candidate.result.update(errors, **sizes, split="test", seconds=seconds)
    # Consecutive images often show the same scene, so the examples are spread over the split.
    drawn = np.unique(np.linspace(0, len(test.x) - 1, EXAMPLES).round().astype(int))
    images = [candidate.crop(test_images[indices[row]]["image"]) for row in drawn]
    return np.stack(images), test.depths[drawn], predict(test.x[drawn])
