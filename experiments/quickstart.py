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

from hypersphere_jax import data, plots, report
from hypersphere_jax.config import (
    DataConfig,
    MetricsConfig,
    ModelConfig,
    ObjectiveConfig,
    OptimizerConfig,
    PretrainConfig,
    ProbeConfig,
    RuntimeConfig,
    to_dict,
)
from hypersphere_jax.evaluate.features import pair_features, split_features
from hypersphere_jax.evaluate.metrics_verb import measure
from hypersphere_jax.evaluate.probe_verb import probe
from hypersphere_jax.train import loop, run_folder, sharding
from hypersphere_jax.train.metrics_log import read_metrics

CONTRASTIVE = ObjectiveConfig(contrastive_weight=1, align_weight=0, uniform_weight=0)
ALIGN_UNIFORM = ObjectiveConfig(align_weight=1, uniform_weight=1)
SUPERVISED = ObjectiveConfig(supervised_weight=1, align_weight=0, uniform_weight=0)

# Run: (objective, dimension, epochs of 5 steps, learning rate). On the circle a high rate draws all
# features to one point before they have spread.
RUNS = {
    "contrastive": (CONTRASTIVE, 32, 50, 0.12),
    "align_uniform": (ALIGN_UNIFORM, 32, 50, 0.12),
    "circle_supervised": (SUPERVISED, 2, 40, 0.12),
    "circle_contrastive": (CONTRASTIVE, 2, 50, 0.01),
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
TITLE = "Top-1 accuracy on the test split of the digits, features on the sphere in R^32"
COLUMNS = ["encoder", "L_align", "L_uniform", "its optimum", "linear (%)", "5-NN (%)"]


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
    folders = {name: loop.train(_config(name, config), command) for name in RUNS}
    rows = [[name, *_scores(folders[run], step)] for name, (run, step) in ENCODERS.items()]
    report.print_table(COLUMNS, rows, title=TITLE)
    figures = _draw(Path(config.out) / "figures", folders, rows)
    page = _page(config, folders, rows, figures)
    print(f"\npage: {page}\npictures: {Path(config.out) / 'figures'}")
    print(f"all of it took {time.monotonic() - began:.0f} s")


def _draw(folder: Path, folders: dict[str, Path], rows: list[list]) -> dict[str, Path]:
    """Draws all pictures, and gives their files by name."""
    files = {name: folder / f"{name}.png" for name in ("plane", "circle", "training_curves")}
    keys = ("name", "align", "uniform", "optimum", "top1", "knn")
    encoders = [dict(zip(keys, row, strict=True)) for row in rows]
    plots.alignment_uniformity_plane(encoders, encoders[0]["optimum"], files["plane"])
    circles = [_circle(name, folders[run], step) for name, (run, step) in CIRCLES.items()]
    names = data.load(DataConfig()).class_names
    plots.circle_figure(circles, files["circle"], names, CIRCLE_CLASSES)
    curves = {name: read_metrics(run) for name, run in folders.items()}
    plots.training_curves(curves, files["training_curves"])
    return files


def _page(
    config: QuickstartConfig, folders: dict[str, Path], rows: list[list], figures: dict[str, Path]
) -> Path:
    settings = [[name, obj, dim, epochs, rate] for name, (obj, dim, epochs, rate) in RUNS.items()]
    for row in settings:
        row[1] = ", ".join(
            f"{weight:g} {name}" for name, weight in _weights(row[1]).items() if weight
        )
    mine = "python run.py pretrain --name mine --contrastive-weight 1 --contrastive-tau 0.1"
    blocks = [
        ("text", "Small encoders of 8x8 images of digits, each evaluated from its checkpoint."),
        ("heading", TITLE),
        ("table", COLUMNS, rows),
        (
            "text",
            "L_align: mean squared distance of two random views of an image. L_uniform: log of the "
            "mean Gaussian potential (t = 2) of all pairs of images; its optimum is that of the "
            "uniform distribution on the sphere. Both are better when lower. The linear probe's "
            "regularization was chosen on a held-out part of the training split.",
        ),
        ("figure", figures["plane"], "The encoders in the plane of both metrics (test split)"),
        (
            "figure",
            figures["circle"],
            "Encoders on the circle, after Figure 3 of Wang & Isola (test split): distances within "
            "positive pairs, features of all digits, and features of four of them",
        ),
        ("heading", "Training"),
        ("table", ["run", "loss", "dimension", "epochs", "learning rate"], settings),
        (
            "figure",
            figures["training_curves"],
            "Metrics of the training batches: of random views, where the table's L_uniform is of "
            "the test images as they are",
        ),
        ("heading", "Full configuration of align_uniform"),
        ("config", to_dict(_config("align_uniform", config))),
        ("heading", "To go on"),
        ("command", f"python run.py probe {folders['align_uniform']} --layers backbone\n{mine}"),
    ]
    title = "Quickstart: alignment and uniformity on handwritten digits"
    return report.write_page(Path(config.out) / "report.html", title, blocks)


def _weights(objective: ObjectiveConfig) -> dict[str, float]:
    names = ("contrastive", "align", "uniform", "supervised")
    return {name: getattr(objective, f"{name}_weight") for name in names}


def _config(run: str, config: QuickstartConfig) -> PretrainConfig:
    objective, dim, epochs, rate = RUNS[run]
    return PretrainConfig(
        name=run,
        runs_dir=config.out,
        seed=config.seed,
        model=ModelConfig(dim=dim),
        objective=objective,
        optimizer=OptimizerConfig(epochs=epochs, schedule="cosine", learning_rate=rate),
        # One device is enough for digits, and any batch divides over it.
        runtime=RuntimeConfig(devices=1, checkpoint_every_steps=50),
    )


def _scores(folder: Path, step: int | None) -> list[float]:
    """Alignment, uniformity, its optimum, linear and k-NN accuracy of a checkpoint."""
    found = measure(MetricsConfig(str(folder), step=step))
    linear, knn = probe(ProbeConfig((str(folder),), step=step))
    return [found["align"], found["uniform"], found["uniform_optimum"], linear["top1"], knn["top1"]]


def _circle(name: str, folder: Path, step: int | None) -> dict[str, Any]:
    """A row of the circle figure: features of the test split, and distances of its pairs."""
    encoder = run_folder.load_encoder(folder, step)
    devices = sharding.local_devices()
    test = data.load(encoder.config.data).test
    x, y = pair_features(encoder, test, devices)
    return {
        "name": name,
        "features": split_features(encoder, test, ["output"], devices)["output"].x,
        "labels": test.labels,
        "pair_distances": np.linalg.norm(x - y, axis=1),
    }
