"""Figure 3 of Wang & Isola: features of three encoders on the circle.

Claim: features of the contrastive encoder are the most uniform, and close within positive pairs.
Features of the supervised encoder are close and less uniform, features of a random network crowded.

    python run.py reproduce wang-isola/figure3 --scale laptop --data-dir DATA

laptop: CIFAR-10 at 16 pixels, 4 epochs, 3 seeds; 14 minutes on one CPU core.
gpu:    CIFAR-10 at 32 pixels, 10 epochs, 3 seeds; 10 minutes on one H100 (estimated).
paper:  CIFAR-10, 200 epochs, one seed.
Result (laptop): inconclusive. The contrastive encoder is the most uniform in 1 of 3 seeds; its
pairs are closer than those of the supervised encoder.
"""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from experiments.lib import Evaluation, Rows, Run, records, stats
from experiments.lib.records import column
from experiments.wang_isola.circle import Band, circle_figure
from experiments.wang_isola.encoders import STL10, cifar10
from hypersphere_jax import data
from hypersphere_jax.configs import ObjectiveConfig
from hypersphere_jax.evaluation.features import pair_features, split_features
from hypersphere_jax.training import distributed, run_dir

SCALES = ("laptop", "gpu", "paper")
SETTINGS = ("encoder", "step")
OBJECTIVES = {
    "supervised": ObjectiveConfig(supervised_weight=1, align_weight=0, uniform_weight=0),
    "contrastive": ObjectiveConfig(contrastive_weight=1, align_weight=0, uniform_weight=0),
}
# Row of the figure: encoder, and whether it is the random initialization.
ENCODERS = {
    "Random initialization": ("contrastive", True),
    "Supervised predictive learning": ("supervised", False),
    "Unsupervised contrastive learning": ("contrastive", False),
}
CLASSES = ("airplane", "automobile", "bird", "cat")  # the paper does not name its classes


def runs(scale: str, rows: Rows) -> list[Run]:
    """Return supervised and contrastive encoders with two dimensions."""
    base = STL10.replace(dim=2, **cifar10(width=1.0, image_size=32))
    if scale == "gpu":
        base = base.replace(epochs=10, batch_size=256, learning_rate=0.12, dtype="bfloat16")
    if scale == "laptop":
        base = base.replace(**cifar10(width=0.125, image_size=16))
        base = base.replace(epochs=4, batch_size=128, learning_rate=0.06, devices=1)
    seeds = range(1) if scale == "paper" else range(3)
    planned = []
    for (name, objective), seed in itertools.product(OBJECTIVES.items(), seeds):
        suffix = f"_seed{seed}" if seed else ""
        config = base.replace(name=f"circle_{name}{suffix}", seed=seed, **vars(objective))
        evaluation = Evaluation(folds=None, initial=name == "contrastive")
        planned.append(Run(config, {"encoder": name}, evaluation))
    return planned


def encoders(rows: Rows, shown: Mapping[str, tuple[str, bool]] = ENCODERS) -> dict[str, Rows]:
    """Return the rows of each encoder of the figure."""
    groups: dict[str, Rows] = {title: [] for title in shown}
    for row in records.finished(rows):
        for title, encoder in shown.items():
            if encoder == (row["encoder"], row["step"] == 0):
                groups[title].append(row)
    return groups


def analyze(rows: Rows) -> Rows:
    """Compare uniformity and alignment of the contrastive encoder with the others, over seeds."""
    random, supervised, contrastive = encoders(rows).values()
    pairs = {
        ("contrastive is more uniform than random", "uniform"): random,
        ("contrastive is more uniform than supervised", "uniform"): supervised,
        ("contrastive pairs are closer than supervised pairs", "align"): supervised,
    }
    comparisons = []
    for (claim, metric), others in pairs.items():
        estimate = stats.seed_difference(column(contrastive, metric), column(others, metric))
        comparisons.append(stats.Comparison(claim, {metric: estimate}, expected=-1))
    return stats.judge(comparisons)


def plot(rows: Rows, path: Path) -> None:
    """Draw the first seed of each encoder."""
    drawn = bands(rows, CLASSES)
    if drawn:
        circle_figure(drawn, path)


def bands(rows: Rows, classes: Sequence[str]) -> list[Band]:
    """Return all features and features of classes, by the first seed of each encoder.

    Encoders without a checkpoint are left out.
    """
    drawn = []
    for title, (row, *_) in encoders(rows).items():
        if "folder" in row:
            step = 0 if row["step"] == 0 else None
            drawn.append(band(title, Path(row["folder"]), step, classes))
    return drawn


def band(title: str, folder: Path, step: int | None, classes: Sequence[str]) -> Band:
    """Return the features of test images by a checkpoint."""
    encoder = run_dir.load_encoder(folder, step)
    dataset = data.load(encoder.config)
    devices = distributed.local_devices(1)
    x, y = pair_features(encoder, dataset.test, devices)
    output = split_features(encoder, dataset.test, ["output"], devices).features["output"]
    features = np.asarray(output.x)
    labels = np.asarray(dataset.test.labels)
    panels = {"all classes": features}
    for name in classes:
        panels[name] = features[labels == [*dataset.class_names].index(name)]
    return Band(title, panels, np.linalg.norm(x - y, axis=1))
