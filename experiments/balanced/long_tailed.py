"""Table 4 of the balanced paper: long-tailed against balanced training data of the same size."""

import functools
import itertools
from collections.abc import Mapping

from experiments import inference, tables
from experiments.balanced import settings
from experiments.balanced.settings import SIMCLR, Setting
from experiments.reproduction import Context, Reproduction, Result, scale
from experiments.statistics import Rows, by
from experiments.sweeps import Planned
from hypersphere_jax.data.subsets import long_tailed_counts

TABLE = "balanced/table4"
SIZE = 115_846  # images of ImageNet-LT
PROBE = 5000  # training images that the laptop's encoders are evaluated with
SUBSETS = {"uniform": "uniform", "long-tailed": "long_tailed"}  # as the table names them


def plan(setting: Setting, probe: int, seeds: range, context: Context, rows: Rows) -> list[Planned]:
    """NT-Xent of each subset of the training images; another one for each seed.

    All encoders are probed with the same balanced training images, of this number.
    """
    setting = setting._replace(evaluation=setting.evaluation._replace(probe_size=probe))
    printed = tables.printed(TABLE, "linear_top1", "class_distribution")
    planned = []
    for (label, subset), seed in itertools.product(SUBSETS.items(), seeds):
        about = {"classes": label, "paper_top1": printed[label]}
        data = {"subset": subset, "subset_seed": seed}
        planned.append(settings.run(setting, context, subset, SIMCLR, about, seed, **data))
    return planned


def result(context: Context, rows: Rows) -> Result:
    """Accuracy with each class distribution."""
    layers = ("backbone", "output") if context.laptop else ("backbone",)
    groups = by(rows, "classes")
    lines = [
        [label, len(group), *inference.accuracies(group, layers), group[0]["paper_top1"]]
        for label, group in groups.items()
    ]
    columns = ["classes", "seeds", *inference.columns(layers), "paper: linear (%)"]
    text = [
        "Its bound assumes that all classes are equally frequent, and indeed an encoder trained on "
        "a balanced set is better than one trained on a long-tailed set of the same size: "
        "ImageNet-LT, 115,846 images of 1,000 classes, the largest of 1,280 and the smallest of 5 "
        "(Pareto, alpha 6).",
        _what_was_done(context, groups),
        "±: half of the 95% interval over seeds (each with a draw of its own) and test images.",
    ]
    verdict = short = ""
    if len(groups) == len(SUBSETS):
        name = "Balanced training data against long-tailed data"
        compared = {
            layer: {name: inference.compare(*(groups[of] for of in SUBSETS), layer)}
            for layer in layers
        }
        verdict = " ".join(inference.sentences(of, layer) for layer, of in compared.items())
        short = inference.short(compared)
    title = "Balanced against long-tailed training data (Table 4)"
    return Result(title, columns, lines, [], text, verdict, short)


def _what_was_done(context: Context, groups: Mapping[str, Rows]) -> str:
    seeds = max(map(len, groups.values()), default=0)
    probe = (
        "All encoders are evaluated with the same {:,} balanced training images, so that a "
        "difference is the encoders' and not that of the classifiers' training set; the paper does "
        "not say on which images it trains these."
    )
    if not context.laptop:
        return f"Here: the paper's data and network. {probe.format(SIZE)}"
    base = settings.SUBSETS.base
    return (
        "Here: CIFAR-10's ten classes with the same distribution, 1,280 to 5 images, "
        f"{long_tailed_counts(10).sum():,} in all, or as many of each class; {seeds} draws of "
        f"each. A narrow network, {base.image_size} pixels, {base.epochs} epochs. "
        + probe.format(PROBE)
    )


REPRODUCTIONS = {
    TABLE: Reproduction(
        "balanced against long-tailed training data",
        result,
        laptop=scale("cifar10", functools.partial(plan, settings.SUBSETS, PROBE, range(5))),
        paper=scale("imagenet2012", functools.partial(plan, settings.IMAGENET, SIZE, range(1))),
    )
}
