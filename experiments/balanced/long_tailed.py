"""Table 4 of the balanced paper: long-tailed against balanced training data of the same size."""

import functools
import itertools

from experiments import tables
from experiments.balanced import settings
from experiments.balanced.settings import SIMCLR, Setting
from experiments.reproduction import Context, Reproduction, Result, scale
from experiments.statistics import Rows, by, difference, means, values
from experiments.sweeps import Planned
from hypersphere_jax.data.subsets import long_tailed_counts

TABLE = "balanced/table4"
SUBSETS = {"uniform": "uniform", "long-tailed": "long_tailed"}  # as the table names them


def plan(setting: Setting, seeds: range, context: Context, rows: Rows) -> list[Planned]:
    """NT-Xent of each subset of the training images; another one for each seed."""
    printed = tables.printed(TABLE, "linear_top1", "class_distribution")
    planned = []
    for (label, subset), seed in itertools.product(SUBSETS.items(), seeds):
        about = {"classes": label, "paper_top1": printed[label]}
        data = {"subset": subset, "subset_seed": seed}
        planned.append(settings.run(setting, context, subset, SIMCLR, about, seed, **data))
    return planned


def result(context: Context, rows: Rows) -> Result:
    """Accuracy with each class distribution."""
    columns = ["classes", "seeds", "linear (%)", "k-NN (%)", "paper: linear (%)"]
    nearest = "backbone_knn1" if context.laptop else "backbone_knn200"
    lines, accuracies = [], {}
    for label, group in by(rows, "classes").items():
        accuracies[label] = values(group, "backbone_linear")
        cells = means(group, "backbone_linear", nearest)
        lines.append([label, len(group), *cells, group[0]["paper_top1"]])
    text = [
        "The paper's claim: its bound assumes that all classes are equally frequent, and indeed an "
        "encoder trained on a balanced set is better than one trained on a long-tailed set of the "
        "same size: ImageNet-LT, 115,846 images of 1,000 classes, the largest of 1,280 and the "
        "smallest of 5 (Pareto, alpha 6). Both are tested on the same balanced test set.",
        "The linear classifier is trained on the same subset as the encoder, so that a part of the "
        "difference is the classifier's.",
    ]
    if context.laptop:
        base = settings.SUBSETS.base
        text.append(
            "Ours: CIFAR-10's ten classes with the same distribution, 1,280 to 5 images, "
            f"{long_tailed_counts(10).sum():,} in all; a narrow network, images of "
            f"{base.model.image_size} pixels, {base.optimizer.epochs} epochs. "
            "±: half of the 95% interval over seeds (each with a draw of its own), by Student's t."
        )
    title = "Balanced against long-tailed training data (Table 4)"
    return Result(title, columns, lines, [], text, _verdict(accuracies))


def _verdict(accuracies: dict[str, list[float]]) -> str:
    gain = difference(*(accuracies.get(label, []) for label in SUBSETS))
    if gain is None:
        return ""
    shows = "shows" if gain.low > 0 else "does not show"
    return f"balanced against long-tailed data {gain}; the paper: +7.17: the claim {shows}"


REPRODUCTIONS = {
    TABLE: Reproduction(
        "balanced against long-tailed training data",
        result,
        laptop=scale("cifar10", functools.partial(plan, settings.SUBSETS, range(3))),
        paper=scale("imagenet2012", functools.partial(plan, settings.IMAGENET, range(1))),
    )
}
