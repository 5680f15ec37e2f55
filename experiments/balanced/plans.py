"""The runs behind the tables and figures of the balanced paper, at both scales."""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

from experiments import items, tables
from experiments.balanced import settings
from experiments.balanced.settings import BALANCED, GENERALIZED, SIMCLR, of_grid
from experiments.items import Context
from experiments.measures import Measures, Rows
from experiments.sweeps import Planned
from hypersphere_jax.config import ObjectiveConfig, PretrainConfig

GRID = (1, 2, 4, 8)
SEEDS = range(5)  # of Table 3
FEW_SEEDS = range(3)
# The best (alpha, lambda) of the balanced contrastive loss, and of the generalized NT-Xent.
IMAGENET_BEST = {BALANCED: (4, 2), GENERALIZED: (2, 2)}
CIFAR10_BEST = {BALANCED: (2, 4)}
AUGMENTATIONS = {
    "base": "balanced_imagenet",
    "-gaussian_blur": "balanced_no_blur",
    "-color_distortion": "balanced_no_color",
    "+random_cutout": "balanced_cutout",
    "+random_rotation": "balanced_rotation",
}
# As Table 1 names them.
SIMILARITIES = {
    "cosine": None,
    "dot product": "dot",
    "negative Euclidean distance": "neg_euclidean",
}
SUBSETS = {"uniform": "uniform", "long-tailed": "long_tailed"}  # as Table 4 names them


def grid(base: PretrainConfig, measures: Measures, context: Context, rows: Rows) -> list[Planned]:
    """Both losses over alpha and lambda."""
    return [
        _of_grid(base, measures, context, loss, alpha, lam)
        for loss, alpha, lam in itertools.product((BALANCED, GENERALIZED), GRID, GRID)
    ]


def seeds(
    base: PretrainConfig,
    measures: Measures,
    best: Mapping[str, tuple[int, int]],
    context: Context,
    rows: Rows,
) -> list[Planned]:
    """NT-Xent, and the other losses at their best settings, with five seeds."""
    planned = []
    for seed in SEEDS:
        name = f"{base.name}_nt_xent_seed{seed}"
        planned.append(_run(base, measures, context, name, SIMCLR, {}, seed=seed))
        for loss, (alpha, lam) in best.items():
            planned.append(_of_grid(base, measures, context, loss, alpha, lam, seed))
    return planned


def augmentations(
    base: PretrainConfig, measures: Measures, numbers: range, context: Context, rows: Rows
) -> list[Planned]:
    """NT-Xent with five augmentations, and the prototype representation bias of each."""
    planned = []
    for (label, recipe), seed in itertools.product(AUGMENTATIONS.items(), numbers):
        config = dataclasses.replace(base, data=dataclasses.replace(base.data, recipe=recipe))
        name = f"{base.name}_{recipe}_seed{seed}"
        about = {"augmentation": label}
        measured = measures._replace(prototype=True)
        planned.append(_run(config, measured, context, name, SIMCLR, about, seed=seed))
    return planned


def similarities(
    base: PretrainConfig, measures: Measures, numbers: range, context: Context, rows: Rows
) -> list[Planned]:
    """NT-Xent with each similarity."""
    printed = {
        row.values["similarity_measure"]: tables.expected(row)
        for row in tables.rows("balanced/table1")
    }
    planned = []
    for (label, similarity), seed in itertools.product(SIMILARITIES.items(), numbers):
        objective = dataclasses.replace(SIMCLR, similarity=similarity)
        about = {"similarity": label}
        about |= {f"paper_{name}": value for name, value in printed[label].items()}
        name = f"{base.name}_{similarity or 'cosine'}_seed{seed}"
        planned.append(_run(base, measures, context, name, objective, about, seed=seed))
    return planned


def subsets(
    base: PretrainConfig, measures: Measures, numbers: range, context: Context, rows: Rows
) -> list[Planned]:
    """NT-Xent of a long-tailed and of a uniform training set of one size; one test set."""
    printed = {
        row.values["class_distribution"]: tables.expected(row)
        for row in tables.rows("balanced/table4")
    }
    planned = []
    for (label, subset), seed in itertools.product(SUBSETS.items(), numbers):
        data = dataclasses.replace(base.data, subset=subset, subset_seed=seed)
        config = dataclasses.replace(base, data=data)
        about = {"classes": label}
        about |= {f"paper_{name}": value for name, value in printed[label].items()}
        name = f"{base.name}_{subset}_seed{seed}"
        planned.append(_run(config, measures, context, name, SIMCLR, about, seed=seed))
    return planned


def _of_grid(
    base: PretrainConfig,
    measures: Measures,
    context: Context,
    loss: str,
    alpha: int,
    lam: int,
    seed: int = 0,
) -> Planned:
    name = f"{base.name}_{loss}_alpha{alpha}_lam{lam}_seed{seed}"
    about = {"alpha": alpha, "lam": lam}
    objective = of_grid(loss, alpha, lam)
    return _run(base, measures, context, name, objective, about, seed=seed)


def _run(
    base: PretrainConfig,
    measures: Measures,
    context: Context,
    name: str,
    objective: ObjectiveConfig,
    about: Mapping[str, Any],
    *,
    seed: int,
) -> Planned:
    config = dataclasses.replace(base, name=name, objective=objective, seed=seed)
    config = items.located(config, context)
    return Planned(config, items.described(config) | dict(about), measures)
