"""Figures 3 and 4 of Wang & Isola: encoders onto the circle, and how uniform their features are."""

import dataclasses
import math

import numpy as np

from experiments import items
from experiments.items import Context, Item, Scale
from experiments.measures import Measures, Rows
from experiments.shown import Shown
from experiments.specifications import STL10
from experiments.sweeps import Planned
from hypersphere_jax import data, plots, uniform_loss
from hypersphere_jax.config import DataConfig, ModelConfig, ObjectiveConfig, RuntimeConfig
from hypersphere_jax.evaluate.features import pair_features, split_features
from hypersphere_jax.train import run_folder, sharding

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


def encoders(context: Context, rows: Rows) -> list[dict]:
    """Features of the test split and distances of its pairs, of those encoders that are done."""
    done = {row["run"] for row in rows if row["status"] == "done"}
    devices = sharding.local_devices(1)
    found = []
    for name, (run, step) in {
        "random": ("circle_contrastive", 0),
        "supervised": ("circle_supervised", None),
        "contrastive": ("circle_contrastive", None),
    }.items():
        if run not in done:
            continue
        encoder = run_folder.load_encoder(context.runs_dir / run, step)
        dataset = data.load(encoder.config.data)
        test = run_folder.test_split(dataset)
        x, y = pair_features(encoder, test, devices)
        features = split_features(encoder, test, ["output"], devices)["output"].x
        found.append(
            {
                "name": TITLES[name],
                "features": np.asarray(features),
                "labels": np.asarray(test.labels),
                "pair_distances": np.linalg.norm(x - y, axis=1),
                "class_names": dataset.class_names,
            }
        )
    return found


def show(context: Context, rows: Rows) -> Shown:
    """The circle figure, and the numbers behind it."""
    found = encoders(context, rows)
    names = list(found[0]["class_names"])
    path = context.folder / "figure.png"
    plots.circle_figure(found, path, names, [names.index(name) for name in CLASSES])
    accuracy = {row["encoder"]: row["output_linear"] for row in rows if row["status"] == "done"}
    table = []
    for encoder in found:
        distances, potential = encoder["pair_distances"], uniform_loss(encoder["features"], t=2)
        (kind,) = (name for name, title in TITLES.items() if title == encoder["name"])
        line = [float(distances.mean()), float(np.median(distances)), math.exp(potential)]
        table.append([encoder["name"], *line, accuracy.get(kind)])
    columns = ["encoder", "mean pair distance", "median", "average G2 potential", "linear (%)"]
    text = [
        "The paper's claim: on the circle, features of the contrastive encoder are the most "
        "uniform, and close within positive pairs; those of the supervised one are close in pairs "
        "and less uniform; those of a random network are crowded. It prints no numbers.",
        "The average potential of pairs, exp(L_uniform) at t = 2, is 0.2070 for uniform features "
        "(exp(-4) I_0(4)) and 1 for a single point; two random points of the circle are 1.273 "
        "apart on average. With two dimensions a linear classifier has little to work with.",
    ]
    caption = "CIFAR-10's test split on the circle, after Figure 3"
    return Shown(
        "Encoders on the circle (Figure 3)",
        columns,
        table,
        [(path, caption)],
        text,
        _verdict({line[0]: line[1:] for line in table}),
    )


def _verdict(found: dict[str, list[float]]) -> str:
    if len(found) < len(TITLES):
        return ""
    random, supervised, contrastive = (found[title] for title in TITLES.values())
    uniform = contrastive[2] < min(random[2], supervised[2])
    aligned = contrastive[0] < 4 / math.pi
    return (
        f"the contrastive encoder is {'' if uniform else 'not '}the most uniform, and its positive "
        f"pairs are {'nearer' if aligned else 'not nearer'} than random points "
        f"({contrastive[0]:.2f}; supervised {supervised[0]:.2f}, random network {random[0]:.2f})"
    )


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
