"""The whole path in minutes, on scikit-learn's handwritten digits: `python run.py quickstart`.

Trains contrastive and align+uniform encoders on the sphere in 32 dimensions, three seeds each,
probes them from their checkpoints next to the random initialization, and draws encoders on the
circle as in Figure 3 of Wang & Isola. Expected on two CPU cores: one to three minutes.

The result is recorded in docs/results/quickstart/; the README's table comes from there. Its
choice.json has the accuracies by which the learning rates of RUNS were chosen: 8 seeds of each rate
on a held-out fifth of the training split.
"""

import itertools
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import numpy as np

from experiments.lib.evaluation import Evaluation
from experiments.lib.plots import Point, curves
from experiments.lib.processes import available_cores
from experiments.lib.records import Rows
from experiments.lib.sweep import Run, run_all
from experiments.options import QuickstartConfig, SweepOptions
from experiments.wang_isola import figure3
from experiments.wang_isola.circle import circle_figure
from hypersphere_jax import theory
from hypersphere_jax.configs import ObjectiveConfig, PretrainConfig, RuntimeConfig, require
from hypersphere_jax.configs.base import program
from hypersphere_jax.reporting import plots
from hypersphere_jax.reporting.page import Section, Table, write_page
from hypersphere_jax.reporting.tables import print_table
from hypersphere_jax.training.metrics import read_metrics
from hypersphere_jax.utils import xla
from hypersphere_jax.utils.files import write_json

# Less time than 256 pairs and 50 epochs, and as good on the test split, where they were compared.
BATCH_SIZE = 128
DIM = 32
# Encoder: (objective, epochs of 10 steps, learning rate for 256 pairs).
RUNS = {
    "contrastive": (figure3.OBJECTIVES["contrastive"], 35, 1.92),
    "align_uniform": (ObjectiveConfig(align_weight=1, uniform_weight=1), 35, 0.48),
}
# On the circle a high rate collapses all features to one point before they have spread.
CIRCLE_RUNS = {
    "supervised": (figure3.OBJECTIVES["supervised"], 28, 0.12),
    "contrastive": (figure3.OBJECTIVES["contrastive"], 35, 0.01),
}
# Row of the table: encoder, and whether it is the random initialization.
ENCODERS = {
    "random initialization": ("align_uniform", True),
    "contrastive": ("contrastive", False),
    "align + uniform": ("align_uniform", False),
}
CIRCLE_CLASSES = ("0", "1", "4", "8")
TITLE = "Digits, features on the sphere in R^32: the test split, mean ± standard deviation of seeds"
COLUMNS = ["encoder", "L_align", "L_uniform", "its optimum", "logistic (%)", "5-NN (%)"]
SCORES = {
    "align": "align",
    "uniform": "uniform",
    "logistic": "output_logistic",
    "knn": "output_knn5",
}
MAX_JOBS = 4  # on CPUs: each process compiles its own programs
ABOUT = (
    f"Small encoders of 8x8 images of digits, trained with batches of {BATCH_SIZE} pairs, each "
    "evaluated from its checkpoint. L_align: mean squared distance of two random views of an "
    "image. L_uniform: log of the mean Gaussian potential (t = 2) of all pairs of images; its "
    "optimum is the value of the uniform distribution. Lower is better for both. The probes are "
    "logistic regression on standardized features and 5-NN. Their regularization and the learning "
    "rates were chosen on held-out parts of the training split."
)
Scores = Mapping[str, Sequence[Mapping[str, float]]]  # of each seed, by row of the table


def main(config: QuickstartConfig, command: str = "") -> None:
    """Train, evaluate, print the table, and write pictures and page."""
    xla.keep_compiled(RuntimeConfig().cache_dir)  # one program serves all seeds
    began = time.monotonic()
    out = Path(config.runs_dir, "quickstart")
    rows = carry_out(plan(config.seeds), out, config.jobs, command)
    scores = scores_of(rows)
    print_table(COLUMNS, table_rows(scores), title=TITLE)
    page = write_report(out, scores, rows)
    seconds = round(time.monotonic() - began)
    processor_seconds = round(sum(os.times()[:4]))
    record = {"seeds": config.seeds, "seconds": seconds, "processor_seconds": processor_seconds}
    write_json(out / "quickstart.json", record | {"scores": scores})
    print(f"\npage: {page}\npictures: {out / 'figures'}")
    print(f"time: {seconds} s, {processor_seconds} s of processor time")


def plan(seeds: Sequence[int]) -> list[Run]:
    """Return the encoders of the circle and of the table."""
    planned = [make_run(name, seeds[0], 2, *options) for name, options in CIRCLE_RUNS.items()]
    for seed, (name, options) in itertools.product(seeds, RUNS.items()):
        planned.append(make_run(name, seed, DIM, *options))
    return planned


def make_run(
    name: str, seed: int, dim: int, objective: ObjectiveConfig, epochs: int, rate: float
) -> Run:
    """Return an encoder, and its random initialization where it is shown."""
    prefix = "circle_" if dim == 2 else ""
    config = PretrainConfig(
        name=f"{prefix}{name}_seed{seed}",
        seed=seed,
        dim=dim,
        **vars(objective),
        epochs=epochs,
        batch_size=BATCH_SIZE,
        schedule="cosine",
        learning_rate=rate,
        devices=1,
    )
    evaluation = Evaluation(protocol=None, folds=None, initial=(name, True) in ENCODERS.values())
    if dim == 2:
        evaluation = Evaluation(only_loss=True)
    return Run(config, {"encoder": name}, evaluation)


def carry_out(runs: Sequence[Run], folder: Path, jobs: int | None, command: str) -> Rows:
    """Train and evaluate encoders, several at a time on CPUs, and return their rows."""
    if jobs is None:
        on_cpu = jax.default_backend() == "cpu"
        jobs = min(MAX_JOBS, len(runs), len(available_cores())) if on_cpu else 1
    print(f"{len(runs)} encoders; the first take longest, because they compile")
    rows = run_all(lambda rows: [*runs], folder, SweepOptions(jobs=jobs), command)
    failed = [f"{row['run']}: {row['reason']}" for row in rows if row["status"] == "failed"]
    require(not failed, "; ".join(failed))
    return rows


def scores_of(rows: Rows) -> Scores:
    """Return the scores of each seed, by row of the table."""
    optimum = theory.uniformity_optimum(DIM, 2.0)
    groups = figure3.encoders([row for row in rows if row["dim"] == DIM], ENCODERS)
    scores: dict[str, list[dict[str, float]]] = {name: [] for name in groups}
    for name, group in groups.items():
        for row in group:
            values = {key: row[column] for key, column in SCORES.items()}
            scores[name].append({"optimum": optimum} | values)
    return scores


def table_rows(scores: Scores) -> list[list[str]]:
    """Return the rows of the table from the scores of each seed."""
    rows = []
    for name, seeds in scores.items():
        cells = {}
        for key, digits in (("align", 3), ("uniform", 3), ("logistic", 2), ("knn", 2)):
            values = [of[key] for of in seeds]
            spread = np.std(values, ddof=1) if len(values) > 1 else 0
            cells[key] = f"{np.mean(values):.{digits}f} ± {spread:.{digits}f}"
        optimum = f"{seeds[0]['optimum']:.3f}"
        metrics = [cells["align"], cells["uniform"], optimum]
        rows.append([name, *metrics, cells["logistic"], cells["knn"]])
    return rows


def write_report(out: Path, scores: Scores, rows: Rows) -> Path:
    """Write the page with table, pictures of the first seed, and next commands."""
    plane = out / "figures" / "plane.png"
    circle = out / "figures" / "circle.png"
    training = out / "figures" / "training_curves.png"
    points = {}
    for name, seeds in scores.items():
        points[name] = [Point(of["align"], of["uniform"]) for of in seeds]
    labels = {"xlabel": r"← better   $L_{align}$", "ylabel": r"← better   $L_{uniform}$"}
    optimum = next(iter(scores.values()))[0]["optimum"]
    curves({"": points}, plane, connected=False, levels={"optimum": optimum}, **labels)
    trained = [row for row in rows if row["dim"] == 2]
    initial = [row | {"step": 0} for row in trained]
    circle_figure(figure3.bands([*trained, *initial], CIRCLE_CLASSES), circle)
    first = [row for row in rows if row["seed"] == rows[0]["seed"]]
    histories = {row["run"]: read_metrics(Path(row["folder"])) for row in first}
    plots.training_curves(histories, training)
    results = {
        plane: "The plane of both metrics (test split), a point per seed",
        circle: "Encoders on the circle, after Figure 3 of Wang & Isola (test split)",
    }
    curve_figures = {training: "Metrics of the training batches, with random views"}
    commands = [
        f"{program()} probe {rows[-1]['folder']} --layers backbone",
        f"{program()} pretrain --name mine --contrastive-weight 1 --contrastive-tau 0.1",
    ]
    sections = [
        Section(TITLE, [ABOUT], [Table(COLUMNS, table_rows(scores))], results),
        Section("Training", figures=curve_figures),
        Section("Next commands", commands=commands),
    ]
    title = "Quickstart: alignment and uniformity on handwritten digits"
    return write_page(out / "report.html", title, sections)
