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
from typing import Any

from experiments.lib.circle import Band, circle_figure
from experiments.lib.evaluation import Evaluation, output_features
from experiments.lib.records import Rows, column, finished
from experiments.lib.stats import Comparison, judge, seed_difference
from experiments.lib.sweep import Run
from experiments.wang_isola.encoders import STL10, cifar10
from hypersphere_jax.configs import ObjectiveConfig

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
    planned = []
    seeds = range(1) if scale == "paper" else range(3)
    for (name, objective), seed in itertools.product(OBJECTIVES.items(), seeds):
        suffix = f"_seed{seed}" if seed else ""
        config = base.replace(name=f"circle_{name}{suffix}", seed=seed, **vars(objective))
        evaluation = Evaluation(folds=None, initial=name == "contrastive")
        planned.append(Run(config, {"encoder": name}, evaluation))
    return planned


def encoders(rows: Rows, shown: Mapping[str, tuple[str, bool]] = ENCODERS) -> dict[str, Rows]:
    """Return the rows of each encoder of the figure."""
    groups: dict[str, Rows] = {title: [] for title in shown}
    for row in finished(rows):
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
        estimate = seed_difference(column(contrastive, metric), column(others, metric))
        comparisons.append(Comparison(claim, {metric: estimate}, expected=-1))
    return judge(comparisons)


def plot(rows: Rows, path: Path) -> None:
    """Draw the first seed of each encoder, from its checkpoint."""
    drawn = [band(name, encoder, CLASSES) for name, encoder in features(rows).items()]
    if drawn:
        circle_figure(drawn, path)


def band(name: str, encoder: dict[str, Any], classes: Sequence[str]) -> Band:
    """Return the panels of an encoder: all features, and features of each class."""
    panels = {"all classes": encoder["features"]}
    for label in classes:
        is_class = encoder["labels"] == encoder["class_names"].index(label)
        panels[label] = encoder["features"][is_class]
    return Band(name, panels, encoder["pair_distances"])


def features(rows: Rows) -> dict[str, dict[str, Any]]:
    """Load the features of the first seed of each encoder, where its checkpoint exists."""
    loaded = {}
    for title, (row, *_) in encoders(rows).items():
        if "folder" in row:
            step = 0 if row["step"] == 0 else None
            loaded[title] = output_features(Path(row["folder"]), step)
    return loaded
