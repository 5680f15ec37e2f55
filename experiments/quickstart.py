"""The whole path in minutes, on scikit-learn's handwritten digits: `python run.py quickstart`.

Trains a contrastive and an align+uniform encoder on the sphere in 32 dimensions, probes each from
its checkpoint beside the random initialization, and draws Figure 3 of Wang & Isola with encoders
on the circle. Expected on 2 cores: under 3 minutes, linear top-1 of 98% and more.
"""

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np

from hypersphere_jax import data, plots, report, runs, sharding, training
from hypersphere_jax.config import (
    MetricsConfig,
    ModelConfig,
    ObjectiveConfig,
    OptimizerConfig,
    PretrainConfig,
    ProbeConfig,
    RuntimeConfig,
    to_dict,
)
from hypersphere_jax.evaluation.features import pair_features, split_features
from hypersphere_jax.evaluation.probe import measure, probe

CONTRASTIVE = ObjectiveConfig(contrastive_weight=1, align_weight=0, uniform_weight=0)
ALIGN_UNIFORM = ObjectiveConfig(align_weight=1, uniform_weight=1)
SUPERVISED = ObjectiveConfig(supervised_weight=1, align_weight=0, uniform_weight=0)

# Run: (objective, dimension, epochs of 5 steps).
RUNS = {
    "contrastive": (CONTRASTIVE, 32, 50),
    "align_uniform": (ALIGN_UNIFORM, 32, 50),
    "circle_supervised": (SUPERVISED, 2, 30),
    "circle_contrastive": (CONTRASTIVE, 2, 30),
}
# Row of the table: (run, checkpoint); step 0 is the initialization.
ENCODERS = {
    "random initialization": ("align_uniform", 0),
    "contrastive": ("contrastive", None),
    "align + uniform": ("align_uniform", None),
}
# Row of the circle figure: (run, checkpoint).
CIRCLES = {
    "Random initialization": ("circle_contrastive", 0),
    "Supervised predictive learning": ("circle_supervised", None),
    "Unsupervised contrastive learning": ("circle_contrastive", None),
}
CIRCLE_CLASSES = (0, 1, 4, 8)
LEARNING_RATE = 0.12


@dataclasses.dataclass(frozen=True)
class QuickstartConfig:
    """The whole path in minutes: pretrain, checkpoint, probe from the checkpoint, report."""

    out: str = "runs/quickstart"
    """Folder of the runs, pictures and page. What is finished there is not done again."""
    seed: int = 0
    """Seed of all runs."""


def main(config: QuickstartConfig, command: str = "") -> None:
    """Trains, evaluates, prints the table, and writes pictures and page."""
    began = time.monotonic()
    out = Path(config.out)
    folders = {name: training.train(_config(name, config), command) for name in RUNS}

    rows = [[name, *_scores(folders[run], step)] for name, (run, step) in ENCODERS.items()]
    columns = ["encoder", "L_align", "L_uniform", "optimum", "linear top-1 (%)", "5-NN top-1 (%)"]
    title = "Test split of the digits (397 images), features on the hypersphere in R^32"
    report.print_table(columns, rows, title=title)

    figures = out / "figures"
    points = [dict(zip(("name", "align", "uniform", "optimum", "top1"), r, strict=False)) for r in rows]
    plots.alignment_uniformity_plane(points, points[0]["optimum"], figures / "plane.png")
    circles = [_circle(name, folders[run], step) for name, (run, step) in CIRCLES.items()]
    names = data.digits().class_names
    plots.circle_figure(circles, figures / "circle.png", names, CIRCLE_CLASSES)
    curves = {name: runs.read_metrics(folder) for name, folder in folders.items()}
    plots.training_curves(curves, figures / "training_curves.png")

    page = report.write_page(
        out / "report.html",
        "Quickstart: alignment and uniformity on handwritten digits",
        [
            ("text", "Encoders of 8x8 digits, trained without labels and probed from their checkpoints."),
            ("table", columns, rows),
            (
                "text",
                "Both losses are better when lower; the optimum is the uniformity of the uniform "
                "distribution on this sphere. The probe's regularization was chosen on a held-out part of "
                "the training split; the test split was scored once.",
            ),
            ("figure", figures / "plane.png", "The encoders in the plane of alignment and uniformity"),
            ("figure", figures / "circle.png", "Encoders on the circle, as in Figure 3 of Wang & Isola: "
             "distances within positive pairs, all test features, and those of four digits"),
            ("figure", figures / "training_curves.png", "Training of the four runs"),
            ("heading", "Configuration"),
            ("config", {name: to_dict(_config(name, config)) for name in RUNS}),
            ("heading", "To go on"),
            ("command", f"python run.py probe {folders['align_uniform']} --layer backbone\n"
             "python run.py pretrain --name mine --contrastive-weight 1 --align-weight 0 --uniform-weight 0"),
        ],
    )
    print(f"\npage: {page}    pictures: {figures}    {time.monotonic() - began:.0f} s")


def _config(run: str, config: QuickstartConfig) -> PretrainConfig:
    objective, dim, epochs = RUNS[run]
    return PretrainConfig(
        name=run,
        runs_dir=config.out,
        seed=config.seed,
        model=ModelConfig(dim=dim),
        objective=objective,
        optimizer=OptimizerConfig(epochs=epochs, schedule="cosine", learning_rate=LEARNING_RATE),
        runtime=RuntimeConfig(checkpoint_every_steps=50),
    )


def _scores(folder: Path, step: int | None) -> list[float]:
    """Alignment, uniformity, its optimum, linear and k-NN accuracy of a checkpoint."""
    found = measure(MetricsConfig(str(folder), step=step))
    linear, knn = probe(ProbeConfig(str(folder), step=step))
    return [found["align"], found["uniform"], found["uniform_optimum"], linear["top1"], knn["top1"]]


def _circle(name: str, folder: Path, step: int | None) -> dict[str, Any]:
    """A row of the circle figure: features of the test split, and distances of its pairs."""
    encoder = runs.load_encoder(folder, step)
    devices = sharding.local_devices()
    test = data.load(encoder.config.data).test
    x, y = pair_features(encoder, test.images, devices)
    return {
        "name": name,
        "features": split_features(encoder, test.images, "output", devices),
        "labels": test.labels,
        "pair_distances": np.linalg.norm(x - y, axis=1),
    }
