"""Figure 3 of Wang & Isola: encoders onto the circle, and how uniform their features are."""

import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments import inference
from experiments.plots.circle import circle_figure
from experiments.protocols import Evaluation
from experiments.reproduction import Context, Reproduction, Result, run, scale
from experiments.specifications import STL10
from experiments.statistics import Rows, done
from experiments.sweeps import Planned
from hypersphere_jax import data
from hypersphere_jax.configs import ModelConfig, ObjectiveConfig, RuntimeConfig
from hypersphere_jax.evaluate.features import pair_features, split_features
from hypersphere_jax.training import distributed, run_dir

OBJECTIVES = {
    "supervised": ObjectiveConfig(supervised_weight=1, align_weight=0, uniform_weight=0),
    "contrastive": ObjectiveConfig(contrastive_weight=1, align_weight=0, uniform_weight=0),
}
# Row of the figure: the encoder, and its checkpoint; step 0 is the initialization.
ENCODERS = {
    "Random initialization": ("contrastive", 0),
    "Supervised predictive learning": ("supervised", None),
    "Unsupervised contrastive learning": ("contrastive", None),
}
LAYERS = ("output",)
SEEDS = range(3)  # at the laptop's scale; the picture is of the first
CLASSES = ("airplane", "automobile", "bird", "cat")  # the figure's text does not name its own


def _plan(context: Context, rows: Rows) -> list[Planned]:
    size = {"width": 0.125, "image_size": 16} if context.laptop else {"image_size": 32}
    model = ModelConfig("small_alexnet", dim=2, init="authors", **size)
    base = STL10.replace(data="cifar10", data_dir=None, recipe=None, **vars(model))
    if context.laptop:
        base = base.replace(epochs=4, batch_size=128, learning_rate=0.06)
        base = base.replace(**vars(RuntimeConfig(devices=1)))
    planned = []
    seeds = SEEDS if context.laptop else SEEDS[:1]
    for (name, objective), seed in itertools.product(OBJECTIVES.items(), seeds):
        of_seed = f"_seed{seed}" * (seed != SEEDS[0])
        config = base.replace(name=f"circle_{name}{of_seed}", seed=seed, **vars(objective))
        # The random initialization is that of the contrastive encoder.
        evaluation = Evaluation(folds=None, initial=(name, 0) in ENCODERS.values())
        planned.append(run(config, context, evaluation, {"encoder": name}))
    return planned


def features_of(name: str, folder: Path, step: int | None) -> dict[str, Any]:
    """A row of `circle_figure`: features of the test split, and distances of its pairs."""
    encoder = run_dir.load_encoder(folder, step)
    dataset, devices = data.load(encoder.config), distributed.local_devices(1)
    x, y = pair_features(encoder, dataset.test, devices)
    output = split_features(encoder, dataset.test, ["output"], devices).features["output"]
    return {
        "name": name,
        "features": np.asarray(output.x),
        "labels": np.asarray(dataset.test.labels),
        "pair_distances": np.linalg.norm(x - y, axis=1),
        "class_names": dataset.class_names,
    }


def encoders(context: Context, rows: Rows) -> list[dict]:
    """Rows of `circle_figure` for those encoders that are done.

    Features are of the first seed; "rows", of scores, are of all.
    """
    found = []
    for title, (name, step) in ENCODERS.items():
        of_run = [row for row in done(rows) if row["encoder"] == name]
        scored = [row for row in of_run if (row["step"] == 0) == (step == 0)]
        if any(row["seed"] == SEEDS[0] for row in scored):
            folder = context.runs_dir / f"circle_{name}"
            found.append(features_of(title, folder, step) | {"rows": scored})
    return found


def result(context: Context, rows: Rows) -> Result:
    """The circle figure, and the numbers behind it."""
    loaded = encoders(context, rows)
    names = list(loaded[0]["class_names"])
    circle_figure(loaded, context.figure, names, [names.index(name) for name in CLASSES])
    table, potentials = [], {}
    for encoder in loaded:
        distances, scored = encoder["pair_distances"], encoder["rows"]
        of = {row["seed"]: math.exp(row["uniform"]) for row in scored}
        potentials[encoder["name"]] = of
        line = [float(distances.mean()), float(np.median(distances))]
        line.append(", ".join(f"{value:.3f}" for value in of.values()))
        table.append([encoder["name"], *line, *inference.accuracies(scored, LAYERS)])
    columns = ["encoder", "mean pair distance", "median", "average G2 potential of each seed"]
    columns += inference.columns(LAYERS)
    seeds = max((len(of) for of in potentials.values()), default=0)
    many = f"{seeds} seeds of each" if seeds > 1 else "One encoder each"
    text = [
        "The paper's claim: on the circle, features of the contrastive encoder are the most "
        "uniform, and close within positive pairs; those of the supervised one are close in pairs "
        "and less uniform; those of a random network are crowded. It prints no numbers.",
        f"Here: {many}, of the test images of CIFAR-10; the picture and the distances are of the "
        "first. The average potential of pairs, exp(L_uniform) at t = 2, is 0.2070 for uniform "
        "features (exp(-4) I_0(4)) and 1 for a single point; two random points of the circle are "
        "1.273 apart on average.",
        "With two dimensions a classifier has little to work with. ±: half of the 95% interval "
        "over seeds, where there are several, and test images.",
    ]
    figures = [(context.figure, "CIFAR-10's test split on the circle, after Figure 3")]
    title, verdict = "Encoders on the circle (Figure 3)", _verdict(table, potentials)
    return Result(title, columns, table, figures, text, verdict)


def _verdict(table: list[list], potentials: Mapping[str, Mapping[int, float]]) -> str:
    if len(table) < len(ENCODERS):
        return ""
    random, supervised, contrastive = potentials.values()
    seeds = [*random.keys() & supervised.keys() & contrastive.keys()]
    most = sum(contrastive[seed] < min(random[seed], supervised[seed]) for seed in seeds)
    apart = [row[1] for row in table]
    aligned = apart[2] < 4 / math.pi
    return (
        f"The contrastive encoder is the most uniform of the three in {most or 'none'} of "
        f"{len(seeds)} seeds. In the first, its positive pairs are "
        f"{'nearer' if aligned else 'not nearer'} than random points ({apart[2]:.2f}; supervised "
        f"{apart[1]:.2f}, random network {apart[0]:.2f})."
    )


REPRODUCTIONS = {
    "wang-isola/figure3": Reproduction(
        "random, supervised and contrastive encoders on the circle",
        result,
        laptop=scale("cifar10", _plan),
        paper=scale("cifar10", _plan),
    )
}
