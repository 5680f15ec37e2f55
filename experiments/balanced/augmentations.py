"""Figure 3 of the balanced paper: prototype representation bias against accuracy."""

import functools
import itertools
from collections.abc import Mapping

import numpy as np

from experiments.balanced import settings
from experiments.balanced.settings import SIMCLR, Setting
from experiments.plots import comparisons
from experiments.reproduction import Context, Reproduction, Result, scale
from experiments.statistics import Rows, by, rank_correlation, values, with_interval
from experiments.sweeps import Planned

# As the figure names them: its base, without one step, or with one more.
RECIPES = {
    "base": "balanced_imagenet",
    "-gaussian_blur": "balanced_no_blur",
    "-color_distortion": "balanced_no_color",
    "+random_cutout": "balanced_cutout",
    "+random_rotation": "balanced_rotation",
}
CERTAIN = 0.9  # of five points, a rank correlation that 8% of random orders have, or a greater one


def plan(setting: Setting, seeds: range, context: Context, rows: Rows) -> list[Planned]:
    """NT-Xent with each augmentation, and the bias of the training images with it."""
    setting = setting._replace(evaluation=setting.evaluation._replace(prototype=True))
    return [
        settings.run(setting, context, recipe, SIMCLR, {"augmentation": label}, seed, recipe=recipe)
        for (label, recipe), seed in itertools.product(RECIPES.items(), seeds)
    ]


def result(context: Context, rows: Rows) -> Result:
    """Bias and accuracy of each augmentation."""
    columns = ["augmentation", "seeds", "prototype representation bias", "linear (%)"]
    score = "backbone_linear"
    lines, points, means = [], {}, {}
    for label, group in by(rows, "augmentation").items():
        biases, accuracies = values(group, "prototype_bias"), values(group, score)
        means[label] = float(np.mean(biases)), float(np.mean(accuracies))
        bias = f"{np.mean(biases):.4f} ({', '.join(f'{value:.4f}' for value in biases)})"
        lines.append([label, len(group), bias, with_interval(accuracies)])
        points[label] = [comparisons.point(row, "prototype_bias", score) for row in group]
    comparisons.scatter(
        points,
        context.figure,
        x="prototype representation bias",
        y="linear accuracy before the head (%)",
    )
    text = [
        "The paper's claim: self-supervised learning takes the mean output of an image's views "
        "for the mean output of its class. How far the two lie apart, the prototype "
        "representation bias, depends on the augmentation, and augmentations with a lower bias "
        "give a higher accuracy. SimCLR's augmentation (base) has the lowest bias and the highest "
        "accuracy of five.",
        "The bias is that of Eq. (51), over the training images: the distance between the outputs "
        "of an image and of another one of its class, both under the same random transformation.",
    ]
    if context.laptop:
        text.append(
            "Ours: a narrow network, a fifth of CIFAR-10's images at 16 pixels, "
            f"{settings.COLORS.base.optimizer.epochs} epochs. The blur has the paper's radius in "
            "pixels, which is much for images so small. ±: half of the 95% interval over seeds, by "
            "Student's t; with two seeds that is wide."
        )
    title = "Prototype representation bias against accuracy (Figure 3)"
    caption = "Each point is an encoder; bars: 95% interval of the accuracy over test images"
    return Result(title, columns, lines, [(context.figure, caption)], text, _verdict(means))


def _verdict(means: Mapping[str, tuple[float, float]]) -> str:
    if len(means) < len(RECIPES):
        return ""
    biases, accuracies = zip(*means.values(), strict=True)
    correlation = rank_correlation(biases, accuracies)
    lowest = min(means, key=lambda label: means[label][0])
    best = max(means, key=lambda label: means[label][1])
    if correlation <= -CERTAIN:
        shows = "the claim shows"
    elif correlation >= CERTAIN:
        shows = "the opposite of the claim shows"
    else:
        shows = "five points do not tell"
    return (
        f"rank correlation of bias and accuracy over the five: {correlation:.2f} (the claim: "
        f"negative): {shows}; lowest bias: {lowest}, highest accuracy: {best}"
    )


REPRODUCTIONS = {
    "balanced/figure3": Reproduction(
        "prototype representation bias of five augmentations",
        result,
        laptop=scale("cifar10", functools.partial(plan, settings.COLORS, range(2))),
        paper=scale("imagenet2012", functools.partial(plan, settings.IMAGENET, range(1))),
    )
}
