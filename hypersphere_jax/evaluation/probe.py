"""From a run's checkpoint to scores and a JSON file."""

import logging
from pathlib import Path
from typing import Any

from hypersphere_jax import data, runs, sharding
from hypersphere_jax.config import ProbeConfig, require
from hypersphere_jax.evaluation import knn, linear
from hypersphere_jax.evaluation.features import Features, split_features

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


def _save(folder: Path, name: str, options: dict[str, Any], result: dict[str, Any]) -> None:
    """Writes a result under a name that tells it from those with other options."""
    suffix = "".join(f"-{key}{value}" for key, value in options.items() if value is not None)
    try:
        runs.write_json(folder / "eval" / f"{name}{suffix}.json", result)
    except OSError as error:
        logger.warning("the result is not kept: %s", error)
