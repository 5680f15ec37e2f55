"""From a run's checkpoint, or a file of features, to scores and a JSON file."""

import logging
from pathlib import Path
from typing import Any

import jax

from hypersphere_jax import data, runs, sharding
from hypersphere_jax.config import MetricsConfig, ProbeConfig, require
from hypersphere_jax.evaluation import knn, linear, metrics
from hypersphere_jax.evaluation.features import Features, pair_features, split_features
from hypersphere_jax.evaluation.files import FeatureFile

logger = logging.getLogger("hypersphere_jax")


def probe(config: ProbeConfig) -> list[dict[str, Any]]:
    """Linear probe and k-NN of one layer of a checkpoint.

    Hyper-parameters are chosen on the training split; the test split is scored once.

    Returns:
      The two results, as they stand in `eval/`.
    """
    folder = runs.find(config.run)
    encoder = runs.load_encoder(folder, config.step)
    devices = sharding.local_devices(config.devices)
    dataset = runs.load_data(folder, config.data_dir)
    require(
        bool(dataset.class_names),
        f"the images of {dataset.origin} have no labels, which a probe needs",
    )
    (train_x, train_y), (test_x, test_y) = (
        _labelled(split_features(encoder, source, config.layer, devices))
        for source in (dataset.train, _test_split(dataset))
    )
    arrays = (train_x, train_y, test_x, test_y)
    classes = len(dataset.class_names)
    about = {
        "run": folder.name,
        "step": encoder.step,
        "data": encoder.config.data.name,
        "split": "test",
        "layer": config.layer,
        "d": train_x.shape[1],
    }
    results = [
        about
        | linear.linear_probe(
            *arrays, num_classes=classes, protocol=config.protocol, seed=config.seed
        ),
        about | knn.knn_probe(*arrays, num_classes=classes, k=config.k),
    ]
    options = {"step": config.step, "seed": config.seed or None}
    _save(folder, f"{config.protocol}-{config.layer}", options, results[0])
    _save(folder, f"knn{config.k}-{config.layer}", {"step": config.step}, results[1])
    return results


def measure(config: MetricsConfig) -> dict[str, Any]:
    """Alignment and uniformity: of a checkpoint's output over a split, or of a file's features.

    Of a checkpoint, alignment is over pairs of random views of each image, uniformity over the
    images as they are; the result also goes into the run's `eval/`.
    """
    devices = sharding.local_devices(config.devices)
    if config.of_file:
        return _measure_file(config, devices)
    folder = runs.find(config.run)
    encoder = runs.load_encoder(folder, config.step)
    dataset = runs.load_data(folder, config.data_dir)
    source = _test_split(dataset) if config.split == "test" else dataset.train
    x = split_features(encoder, source, "output", devices).x
    pairs = pair_features(encoder, source, devices, config.seed)
    result = {
        "run": folder.name,
        "step": encoder.step,
        "data": encoder.config.data.name,
        "split": config.split,
        "layer": "output",
        "protocol": "metrics",
        **metrics.summary(x, pairs, config.alpha, config.t, devices),
        "seed": config.seed,
    }
    standard = MetricsConfig(config.run)
    options = {
        key: value if value != getattr(standard, key) else None
        for key in ("step", "alpha", "t", "seed")
        if (value := getattr(config, key)) is not None
    }
    _save(folder, f"metrics-{config.split}", options, result)
    return result


def _test_split(dataset: data.Dataset) -> data.Source:
    require(
        dataset.test is not None,
        f"{dataset.origin} has no test split: add one to the data, or pretrain with --folds, which "
        "holds a part of the training images out",
    )
    return dataset.test


def _labelled(features: Features) -> Features:
    known = features.labels >= 0
    return Features(features.x[known], features.labels[known])


def _measure_file(config: MetricsConfig, devices: list[jax.Device]) -> dict[str, Any]:
    features = FeatureFile(config.run, config.normalize)
    others = None if config.pairs is None else FeatureFile(config.pairs, config.normalize)
    if others is not None:
        require(
            features.shape == others.shape,
            f"pairs must have one shape, but {features.path} holds {features.shape} and "
            f"{others.path} {others.shape}",
        )
        others.check_unit()
    features.check_unit()
    pairs = None if others is None else (features, others)
    result = {
        "features": str(config.run),
        "pairs": None if others is None else str(config.pairs),
        "normalized": config.normalize,
        "protocol": "metrics",
        **metrics.summary(features, pairs, config.alpha, config.t, devices),
    }
    if config.out is not None:
        runs.write_json(config.out, result)
    return result


def _save(folder: Path, name: str, options: dict[str, Any], result: dict[str, Any]) -> None:
    """Writes a result under a name that tells it from those with other options."""
    suffix = "".join(f"-{key}{value}" for key, value in options.items() if value is not None)
    try:
        runs.write_json(folder / "eval" / f"{name}{suffix}.json", result)
    except OSError as error:
        logger.warning("the result is not kept: %s", error)
