"""Table 4 of the balanced paper: long-tailed against balanced training data of the same size."""

import dataclasses
import functools
import itertools

from experiments import tables
from experiments.balanced import settings
from experiments.balanced.settings import SIMCLR, Setting
from experiments.items import Context, Item, Scale
from experiments.measures import Rows
from experiments.shown import Shown, by, difference, with_interval
from experiments.sweeps import Planned
from hypersphere_jax.data.subsets import long_tailed_counts

TABLE = "balanced/table4"
SUBSETS = {"uniform": "uniform", "long-tailed": "long_tailed"}  # as the table names them


def plan(setting: Setting, seeds: range, context: Context, rows: Rows) -> list[Planned]:
    """NT-Xent of each subset of the training images; another one for each seed."""
    printed = {
        row.values["class_distribution"]: row.values["linear_top1"] for row in tables.rows(TABLE)
    }
    planned = []
    for (label, subset), seed in itertools.product(SUBSETS.items(), seeds):
        data = dataclasses.replace(setting.base.data, subset=subset, subset_seed=seed)
        changed = setting._replace(base=dataclasses.replace(setting.base, data=data))
        about = {"classes": label, "paper_top1": printed[label]}
        planned.append(settings.run(changed, context, subset, SIMCLR, about, seed))
    return planned


def show(context: Context, rows: Rows) -> Shown:
    """Accuracy with each class distribution."""
    columns = ["classes", "seeds", "linear (%)", "k-NN (%)", "paper: linear (%)"]
    k = "knn1" if context.scale == "laptop" else "knn200"
    lines, accuracies = [], {}
    for label, group in by(rows, "classes").items():
        accuracies[label] = [row["backbone_linear"] for row in group]
        nearest = [row[f"backbone_{k}"] for row in group]
        cells = [with_interval(accuracies[label]), with_interval(nearest)]
        lines.append([label, len(group), *cells, group[0]["paper_top1"]])
    text = [
        "The paper's claim: its bound assumes that all classes are equally frequent, and indeed an "
        "encoder trained on a balanced set is better than one trained on a long-tailed set of the "
        "same size: ImageNet-LT, 115,846 images of 1,000 classes, the largest of 1,280 and the "
        "smallest of 5 (Pareto, alpha 6). Both are tested on the same balanced test set.",
        "The linear classifier is trained on the same subset as the encoder, so that a part of the "
        "difference is the classifier's.",
    ]
    if context.scale == "laptop":
        base = settings.SUBSETS.base
        text.append(
            "Ours: CIFAR-10's ten classes with the same distribution, 1,280 to 5 images, "
            f"{long_tailed_counts(10).sum():,} in all; a narrow network, images of "
            f"{base.model.image_size} pixels, {base.optimizer.epochs} epochs. "
            "±: half of the 95% interval over seeds (each with a draw of its own), by Student's t."
        )
    title = "Balanced against long-tailed training data (Table 4)"
    return Shown(title, columns, lines, [], text, _verdict(accuracies))


def _verdict(accuracies: dict[str, list[float]]) -> str:
    found = difference(*(accuracies.get(label, []) for label in SUBSETS))
    if found is None:
        return ""
    shows = "shows" if found.low > 0 else "does not show"
    return f"balanced against long-tailed data {found}; the paper: +7.17: the claim {shows}"


ITEMS = {
    TABLE: Item(
        "balanced against long-tailed training data",
        {
            "laptop": Scale(
                ("cifar10",), 0.2, (functools.partial(plan, settings.SUBSETS, range(3)),)
            ),
            "paper": Scale(
                ("imagenet2012",), 3_200, (functools.partial(plan, settings.IMAGENET, range(1)),)
            ),
        },
        show,
    )
}
