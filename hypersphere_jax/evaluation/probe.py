"""From a run's checkpoint to its scores: features, probe, and a file in `eval/`."""

from pathlib import Path
from typing import Any

from hypersphere_jax import data, runs, sharding
from hypersphere_jax.config import MetricsConfig, ProbeConfig
from hypersphere_jax.evaluation import knn, linear, metrics
from hypersphere_jax.evaluation.features import pair_features, split_features


def probe(config: ProbeConfig) -> list[dict[str, Any]]:
    """Linear probe and k-NN of one layer of a checkpoint.

    Hyper-parameters are chosen on the training split; the test split is scored once.

    Returns:
      The two results, as they stand in `eval/`.
    """
    folder = runs.find(config.run)
    encoder = runs.load_encoder(folder, config.step)
    devices = sharding.local_devices(config.devices)
    dataset = data.load(encoder.config.data)
    sides = [
        (split_features(encoder, split.images, config.layer, devices), split.labels)
        for split in (dataset.train, dataset.test)
    ]
    (train_x, train_y), (test_x, test_y) = sides
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
    for name, result in zip((config.protocol, f"knn{config.k}"), results, strict=True):
        _save(folder, f"{name}-{config.layer}", config.step, result)
    return results


def measure(config: MetricsConfig) -> dict[str, Any]:
    """Alignment and uniformity of a checkpoint's output over a split, as it stands in `eval/`.

    Alignment is over pairs of random views of each image, uniformity over the images as they are.
    """
    folder = runs.find(config.run)
    encoder = runs.load_encoder(folder, config.step)
    devices = sharding.local_devices(config.devices)
    dataset = data.load(encoder.config.data)
    images = getattr(dataset, config.split).images
    x = split_features(encoder, images, "output", devices)
    pairs = pair_features(encoder, images, devices, config.seed)
    result = {
        "run": folder.name,
        "step": encoder.step,
        "data": encoder.config.data.name,
        "split": config.split,
        "layer": "output",
        "protocol": "metrics",
        **metrics.summary(x, pairs, config.alpha, config.t),
        "seed": config.seed,
    }
    _save(folder, f"metrics-{config.split}", config.step, result)
    return result


def _save(folder: Path, name: str, step: int | None, result: dict[str, Any]) -> None:
    suffix = "" if step is None else f"-step{step}"
    runs.write_json(folder / "eval" / f"{name}{suffix}.json", result)
