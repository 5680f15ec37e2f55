"""Figure 3 of the balanced paper: prototype representation bias against accuracy.

Claim: augmentations with a lower bias (distance between outputs of two images of a class under the
same transformation, Eq. 51) give a higher accuracy. SimCLR's augmentation has the lowest bias and
the highest accuracy of five.

    python run.py reproduce balanced/figure3 --scale laptop --data-dir DATA

laptop: 5 augmentations x 3 seeds on a tenth of CIFAR-10 at 16 pixels; 15 minutes on one CPU core.
gpu:    5 augmentations x 3 seeds, ResNet-18, CIFAR-10, 30 epochs; about 40 minutes on one H100
        (estimated).
paper:  5 encoders of ImageNet (ResNet-50, 100 epochs).
Result (laptop): inconclusive. Rotation has the lowest bias here, and accuracies differ by less than
their intervals.

Ten of the 120 orders of five augmentations have a correlation of 0.9 or more in absolute value, so
only a correlation of -1 can be significant (p = 1/60).
"""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.balanced import settings
from experiments.lib.evaluation import layers_of
from experiments.lib.plots import curves, point
from experiments.lib.ranks import permutation_p, spearman
from experiments.lib.records import Rows, column, correct, finished, group_by
from experiments.lib.stats import (
    Comparison,
    Estimate,
    accuracy,
    bootstrap,
    columns_of,
    compare,
    judge,
)
from experiments.lib.sweep import Run

SCALES = ("laptop", "gpu", "paper")
SETTINGS = ("augmentation",)
BASE = "base"
RECIPES = {
    BASE: "balanced_imagenet",
    "-gaussian_blur": "balanced_no_blur",
    "-color_distortion": "balanced_no_color",
    "+random_cutout": "balanced_cutout",
    "+random_rotation": "balanced_rotation",
}
TASKS = {"laptop": settings.COLOR, "gpu": settings.GPU, "paper": settings.IMAGENET}


def runs(scale: str, rows: Sequence = ()) -> list[Run]:
    """Return encoders with each augmentation."""
    planned = []
    seeds = range(1) if scale == "paper" else range(3)
    for (label, recipe), seed in itertools.product(RECIPES.items(), seeds):
        labels = {"augmentation": label}
        run = settings.task_run(TASKS[scale], recipe, settings.SIMCLR, seed, labels, recipe=recipe)
        planned.append(run.evaluated(prototype=True))
    return planned


def analyze(rows: Rows) -> Rows:
    """Correlate bias and accuracy on each layer, and compare the base with each augmentation."""
    groups = group_by(rows, "augmentation")
    table: Rows = []
    for layer in layers_of(finished(rows), ("backbone", "output")):
        columns = columns_of(layer)
        estimates = {name: bias_correlation(groups, score) for name, score in columns.items()}
        claim = "a lower bias goes with a higher accuracy (rank correlation)"
        table += judge([Comparison(claim, estimates, expected=-1, labels={"layer": layer})])
        comparisons = []
        for label, group in groups.items():
            if label != BASE:
                differences = compare(groups[BASE], group, columns)
                labels = {"layer": layer}
                comparisons.append(
                    Comparison(f"base is better than {label}", differences, 1, 0, labels)
                )
        table += judge(comparisons)
    return table


def bias_correlation(groups: dict[str, Rows], score: str, draws: int = 1000) -> Estimate:
    """Return the rank correlation of bias and accuracy over augmentations.

    The bootstrap draws test images and seeds; a seed's bias is drawn with its accuracy. The p-value
    is the larger one of the bootstrap and of an exact permutation test over the augmentations.
    """
    random = np.random.default_rng(0)
    biases = [column(group, "prototype_bias") for group in groups.values()]
    rights = [correct(group, score).astype(np.float32) for group in groups.values()]
    n = rights[0].shape[1]
    drawn_biases = np.empty((len(groups), draws))
    drawn_accuracies = np.empty((len(groups), draws))
    for draw in range(draws):
        images = np.bincount(random.integers(0, n, n), minlength=n).astype(np.float32) / n
        for index, (bias, right) in enumerate(zip(biases, rights, strict=True)):
            k = len(bias)
            weights = random.multinomial(k, np.full(k, 1 / k)) / k
            # The mean of k resampled seeds has (k - 1) / k of the variance of k new ones.
            weights = 1 / k + math.sqrt(k / max(k - 1, 1)) * (weights - 1 / k)
            drawn_biases[index, draw] = bias @ weights
            drawn_accuracies[index, draw] = (right @ images) @ weights
    x = [bias.mean() for bias in biases]
    y = [right.mean() for right in rights]
    effect = float(spearman(np.array(x)[:, None], np.array(y)[:, None])[0])
    estimate = bootstrap(effect, spearman(drawn_biases.round(9), drawn_accuracies.round(7)))
    p = max(estimate.p, permutation_p(x, y))
    return estimate._replace(p=p, single_seed=min(map(len, biases)) == 1)


def plot(rows: Rows, path: Path) -> None:
    """Draw accuracy over bias by each instrument."""
    panels: dict[str, dict] = {}
    for name, score in columns_of("backbone").items():
        panel = panels.setdefault(name, {})
        for label, group in group_by(rows, "augmentation").items():
            bias = column(group, "prototype_bias").mean()
            panel[label] = [point(bias, accuracy(group, score))]
    labels = {"x": "prototype representation bias", "y": "accuracy (%)"}
    curves(panels, path, **labels, levels={}, connected=False)
