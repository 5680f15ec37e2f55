"""Figure 3 of the balanced paper: prototype representation bias against accuracy.

Claim: augmentations with a lower bias (distance between outputs of two images of a class under the
same transformation, Eq. 51) give a higher accuracy. SimCLR's augmentation is best of five in both.

    python run.py reproduce balanced/figure3 --scale laptop --data-dir DATA

laptop: 5 augmentations x 3 seeds, a tenth of CIFAR-10 at 16 pixels; 15 minutes on one CPU core.
gpu:    5 x 3 encoders, ResNet-18, CIFAR-10, 30 epochs; 40 minutes on one H100 (estimated).
paper:  5 encoders of ImageNet (ResNet-50, 100 epochs).
Result (laptop): inconclusive. Rotation has the lowest bias here, and accuracies differ by less than
their intervals. Of 120 orders, only a correlation of -1 can be significant (p = 1/60).
"""

import itertools
from pathlib import Path

from experiments.balanced import settings
from experiments.lib import Rows, Run, plots, ranks, records, stats

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
BASES = {"laptop": settings.COLOR, "gpu": settings.GPU, "paper": settings.IMAGENET}


def runs(scale: str, rows: Rows) -> list[Run]:
    """Return encoders with each augmentation."""
    planned = []
    seeds = range(1) if scale == "paper" else range(3)
    for (label, recipe), seed in itertools.product(RECIPES.items(), seeds):
        run = settings.make_run(BASES[scale], recipe, settings.SIMCLR, seed, augmentation=label)
        planned.append(run.replace(recipe=recipe).evaluated(prototype=True))
    return planned


def analyze(rows: Rows) -> Rows:
    """Correlate bias and accuracy on each layer, and compare the base with each augmentation."""
    groups = records.group_by(rows, "augmentation")
    others = [label for label in groups if label != BASE]
    claims = [
        stats.Claim(f"base is better than {label}", groups[BASE], groups[label]) for label in others
    ]
    text = "a lower bias goes with a higher accuracy (rank correlation)"
    table: Rows = []
    for layer in stats.layers_of(records.finished(rows)):
        estimates = {
            name: bias_correlation([*groups.values()], score)
            for name, score in stats.columns_of(layer).items()
        }
        table += stats.judge([stats.Comparison(text, estimates, -1, labels={"layer": layer})])
        table += stats.judge_accuracies(claims, [layer])
    return table


def bias_correlation(groups: list[Rows], score: str) -> stats.Estimate:
    """Return the rank correlation of bias and accuracy over augmentations."""
    biases = [records.column(group, "prototype_bias") for group in groups]
    rights = [records.correct(group, score) for group in groups]
    drawn_accuracies, drawn_biases = stats.resample(rights, biases)
    means = ([bias.mean() for bias in biases], [right.mean() for right in rights])
    estimate = ranks.setting_correlation(*means, drawn_biases, drawn_accuracies)
    return estimate._replace(single_seed=min(map(len, biases)) == 1)


def plot(rows: Rows, path: Path) -> None:
    """Draw accuracy over bias by each instrument."""
    panels: dict[str, dict] = {}
    for label, group in records.group_by(rows, "augmentation").items():
        bias = records.column(group, "prototype_bias").mean()
        for instrument, points in plots.accuracy_lines({bias: group}, "backbone").items():
            panels.setdefault(instrument, {})[label] = points
    labels = {"xlabel": "prototype representation bias", "ylabel": "accuracy (%)"}
    plots.curves(panels, path, connected=False, **labels)
