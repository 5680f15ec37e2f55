"""Figures 3 and 4 of Wang & Isola: encoders onto the circle, and how uniform their features are."""

import dataclasses
import math

import numpy as np

from experiments import items
from experiments.items import Context, Item, Scale
from experiments.shown import Shown
from experiments.specifications import STL10
from experiments.sweeps import Measures, Planned, Rows
from hypersphere_jax import data, plots, runs, sharding, uniform_loss
from hypersphere_jax.config import DataConfig, ModelConfig, ObjectiveConfig, RuntimeConfig
from hypersphere_jax.evaluation.features import pair_features, split_features

OBJECTIVES = {
    "supervised": ObjectiveConfig(supervised_weight=1, align_weight=0, uniform_weight=0),
    "contrastive": ObjectiveConfig(contrastive_weight=1, align_weight=0, uniform_weight=0),
}
TITLES = {
    "random": "Random initialization",
    "supervised": "Supervised predictive learning",
    "contrastive": "Unsupervised contrastive learning",
}
CLASSES = ("airplane", "automobile", "bird", "cat")  # the figure's text does not name its own


def _plan(context: Context, rows: Rows) -> list[Planned]:
    small = context.scale == "laptop"
    base = dataclasses.replace(
        STL10,
        data=DataConfig("cifar10"),
        model=ModelConfig(
            "small_alexnet", dim=2, width=0.125 if small else 1.0, image_size=16 if small else 32
        ),
    )
    if small:
        rule = dataclasses.replace(base.optimizer, epochs=4, batch_size=128, learning_rate=0.06)
        base = dataclasses.replace(base, optimizer=rule, runtime=RuntimeConfig(devices=1))
    planned = []
    for name, objective in OBJECTIVES.items():
        config = dataclasses.replace(base, name=f"circle_{name}", objective=objective)
        config = items.located(config, context)
        measures = Measures(folds=None)
        planned.append(Planned(config, items.described(config) | {"encoder": name}, measures))
    return planned


def encoders(context: Context) -> list[dict]:
    """Features of the test split and distances of its pairs, of the three encoders."""
    devices = sharding.local_devices(1)
    found = []
    for name, (run, step) in {
        "random": ("circle_contrastive", 0),
        "supervised": ("circle_supervised", None),
        "contrastive": ("circle_contrastive", None),
    }.items():
        encoder = runs.load_encoder(context.runs_dir / run, step)
        test = runs.test_split(data.load(encoder.config.data))
        x, y = pair_features(encoder, test, devices)
        features = split_features(encoder, test, ["output"], devices)["output"].x
        found.append(
            {
                "name": TITLES[name],
                "features": np.asarray(features),
                "labels": np.asarray(test.labels),
                "pair_distances": np.linalg.norm(x - y, axis=1),
                "class_names": data.load(encoder.config.data).class_names,
            }
        )
    return found


def show(context: Context, rows: Rows) -> Shown:
    """The circle figure, and the numbers behind it."""
    found = encoders(context)
    names = list(found[0]["class_names"])
    path = context.folder / "figure.png"
    plots.circle_figure(found, path, names, [names.index(name) for name in CLASSES])
    table = [
        [
            encoder["name"],
            float(encoder["pair_distances"].mean()),
            float(np.median(encoder["pair_distances"])),
            math.exp(uniform_loss(encoder["features"], t=2)),
        ]
        for encoder in found
    ]
    columns = ["encoder", "mean pair distance", "median", "average G2 potential"]
    text = [
        "The paper's claim: features of the contrastive encoder are the most uniform on the circle "
        "and at the same time close within positive pairs; those of the supervised one are close "
        "in pairs, and less uniform; those of a random network crowd together.",
        "Uniform features would have the potential 0.2070 (exp(-4) I_0(4)), and two random points "
        "of the circle the mean distance 1.273.",
    ]
    caption = "CIFAR-10's test split on the circle, after Figure 3"
    return Shown("Encoders on the circle (Figure 3)", columns, table, [(path, caption)], text)


ITEMS = {
    "wang-isola/figure3": Item(
        "random, supervised and contrastive encoders on the circle",
        {
            "laptop": Scale(("cifar10",), 0.2, (_plan,)),
            "paper": Scale(("cifar10",), 150, (_plan,)),
        },
        show,
    )
}
