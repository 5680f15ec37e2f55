"""The whole path in minutes, on scikit-learn's handwritten digits: `python run.py quickstart`.

Trains contrastive and align+uniform encoders on the sphere in 32 dimensions, three seeds each,
probes them from their checkpoints next to the random initialization, and draws encoders on the
circle as in Figure 3 of Wang & Isola. Expected on two CPU cores: one to three minutes.

`python run.py quickstart --choose --seeds 0 1 2 3 4 5 6 7` chose the learning rates of RUNS by
accuracy on a held-out fifth of the training split. The output of both commands is recorded in
docs/results/quickstart/; the README's table comes from there.
"""

import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.lib.circle import circle_figure
from experiments.lib.evaluation import output_features
from experiments.lib.labels import formula
from experiments.lib.plots import metric_plane
from experiments.lib.processes import available_cores, run_processes
from experiments.options import QuickstartConfig
from experiments.wang_isola import figure3
from hypersphere_jax.configs import (
    DataConfig,
    MetricsConfig,
    ObjectiveConfig,
    PretrainConfig,
    ProbeConfig,
    RuntimeConfig,
)
from hypersphere_jax.configs.base import program
from hypersphere_jax.evaluation.measure_runs import run_metrics
from hypersphere_jax.evaluation.probe_runs import run_probe
from hypersphere_jax.reporting import plots
from hypersphere_jax.reporting.page import Section, Table, write_page
from hypersphere_jax.reporting.tables import print_table
from hypersphere_jax.training.metrics import read_metrics
from hypersphere_jax.training.train import train
from hypersphere_jax.utils import xla
from hypersphere_jax.utils.files import write_json

# Less time than 256 pairs and 50 epochs, and as good on the test split, where they were compared.
BATCH_SIZE = 128
RATES = (0.24, 0.48, 0.96, 1.92, 3.84)
# Run: (objective, dimension, epochs of 10 steps, learning rate for 256 pairs).
RUNS = {
    "contrastive": (figure3.OBJECTIVES["contrastive"], 32, 35, 1.92),
    "align_uniform": (ObjectiveConfig(align_weight=1, uniform_weight=1), 32, 35, 0.48),
}
# On the circle a high rate collapses all features to one point before they have spread.
CIRCLE_RUNS = {
    "circle_supervised": (figure3.OBJECTIVES["supervised"], 2, 28, 0.12),
    "circle_contrastive": (figure3.OBJECTIVES["contrastive"], 2, 35, 0.01),
}
# Row of the table: (run, checkpoint); step 0 is the initialization.
ENCODERS = {
    "random initialization": ("align_uniform", 0),
    "contrastive": ("contrastive", None),
    "align + uniform": ("align_uniform", None),
}
CIRCLE_CLASSES = (0, 1, 4, 8)
TITLE = "Digits, features on the sphere in R^32: the test split, mean ± standard deviation of seeds"
COLUMNS = ["encoder", "L_align", "L_uniform", "its optimum", "logistic (%)", "5-NN (%)"]
MAX_JOBS = 4  # on CPUs: each process compiles its own programs
ABOUT = (
    f"Small encoders of 8x8 images of digits, trained with batches of {BATCH_SIZE} pairs, each "
    "evaluated from its checkpoint. L_align: mean squared distance of two random views of an "
    "image. L_uniform: log of the mean Gaussian potential (t = 2) of all pairs of images; its "
    "optimum is the value of the uniform distribution. Lower is better for both. The probes are "
    "logistic regression on standardized features and 5-NN. Their regularization and the learning "
    "rates were chosen on held-out parts of the training split."
)


class Task(NamedTuple):
    """An encoder to train, and the checkpoints to evaluate (None is the last one)."""

    config: PretrainConfig
    steps: tuple[int | None, ...] = ()
    circle_steps: tuple[int | None, ...] = ()


class Outcome(NamedTuple):
    """Scores, and features on the circle, by checkpoint."""

    scores: dict[int | None, dict[str, float]]
    circles: dict[int | None, dict[str, Any]]


def main(config: QuickstartConfig, command: str = "") -> None:
    """Train, evaluate, print the table, and write pictures and page."""
    xla.keep_compiled(RuntimeConfig().cache_dir)  # one program serves all seeds
    if config.choose:
        choose(config, command)
    else:
        run(config, command)


def run(config: QuickstartConfig, command: str) -> None:
    """Run the quickstart."""
    began = time.monotonic()
    out = Path(config.folder)
    first = config.seeds[0]
    outcomes = dict(carry_out_all(plan(config), config, command))
    scores = {
        name: [outcomes[f"{run}_seed{seed}"].scores[step] for seed in config.seeds]
        for name, (run, step) in ENCODERS.items()
    }
    rows = table_rows(scores)
    print_table(COLUMNS, rows, title=TITLE)
    circles = []
    for title, (name, is_initial) in figure3.ENCODERS.items():
        outcome = outcomes[f"circle_{name}_seed{first}"]
        circles.append({"name": title, **outcome.circles[0 if is_initial else None]})
    folders = {name: out / f"{name}_seed{first}" for name in (*RUNS, *CIRCLE_RUNS)}
    figures = draw(out / "figures", folders, scores, circles)
    page = write_report(config, folders, rows, figures)
    seconds = round(time.monotonic() - began)
    processor_seconds = round(sum(os.times()[:4]))
    record = {"seeds": config.seeds, "seconds": seconds, "processor_seconds": processor_seconds}
    write_json(out / "quickstart.json", record | {"scores": scores})
    print(f"\npage: {page}\npictures: {out / 'figures'}")
    print(f"time: {seconds} s, {processor_seconds} s of processor time")


def plan(config: QuickstartConfig) -> list[Task]:
    """Return the encoders of the table and of the circle."""
    tasks = []
    for seed, (name, options) in itertools.product(config.seeds, RUNS.items()):
        steps = tuple(step for run, step in ENCODERS.values() if run == name)
        tasks.append(Task(run_config(name, options, config.folder, seed), steps))
    circles = []
    for name, options in CIRCLE_RUNS.items():
        steps = (0, None) if name == "circle_contrastive" else (None,)
        made = run_config(name, options, config.folder, config.seeds[0])
        circles.append(Task(made, circle_steps=steps))
    # One compiles early, and all processes end at about the same time.
    supervised, contrastive = circles
    return [tasks[0], supervised, *tasks[1:-1], contrastive, tasks[-1]]


def carry_out_all(
    tasks: Sequence[Task], config: QuickstartConfig, command: str
) -> Iterator[tuple[str, Outcome]]:
    """Train and evaluate all encoders, several at a time, and yield each by name."""
    jobs = config.jobs
    if jobs is None:
        on_cpu = jax.default_backend() == "cpu"
        jobs = min(MAX_JOBS, len(tasks), len(available_cores())) if on_cpu else 1
    print(f"{len(tasks)} encoders; the first take longest, because they compile")
    if jobs == 1:
        ended = ((index, carry_out(task, command)) for index, task in enumerate(tasks))
    else:
        ended = run_processes([(carry_out, task, command) for task in tasks], jobs)
    for number, (index, outcome) in enumerate(ended, 1):
        name = tasks[index].config.name
        last = outcome.scores.get(None)
        result = "trained"
        if last:
            result = f"logistic {last['logistic']:.2f}%, 5-NN {last['knn']:.2f}%"
        print(f"{number} of {len(tasks)}: {name}: {result}", flush=True)
        yield name, outcome


def carry_out(task: Task, command: str) -> Outcome:
    """Train and evaluate an encoder."""
    xla.keep_compiled(task.config.cache_dir)
    folder = train(task.config, command)
    scores = {step: evaluate(folder, step) for step in task.steps}
    return Outcome(scores, {step: output_features(folder, step) for step in task.circle_steps})


def evaluate(folder: Path, step: int | None) -> dict[str, float]:
    """Return alignment, uniformity, its optimum, and accuracies of a checkpoint."""
    metrics = run_metrics(MetricsConfig(str(folder), step=step))
    logistic, knn = run_probe(ProbeConfig((str(folder),), step=step, standardize=True))
    return {
        "align": metrics["align"],
        "uniform": metrics["uniform"],
        "optimum": metrics["uniform_optimum"],
        "logistic": logistic["top1"],
        "knn": knn["top1"],
    }


def table_rows(scores: Mapping[str, Sequence[Mapping[str, float]]]) -> list[list[str]]:
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


def choose(config: QuickstartConfig, command: str) -> None:
    """Print the accuracy of each learning rate on a held-out fifth of the training split."""
    folder = f"{config.folder}/choose"
    held_out = DataConfig(folds=5, fold=0)
    tasks = []
    for (name, options), rate, seed in itertools.product(RUNS.items(), RATES, config.seeds):
        made = run_config(f"{name}_{rate:g}", (*options[:-1], rate), folder, seed, held_out)
        tasks.append(Task(made, (None,)))
    outcomes = dict(carry_out_all(tasks, config, command))
    accuracies: dict[str, dict[str, float]] = {}
    for name, rate in itertools.product(RUNS, RATES):
        scores = [outcomes[f"{name}_{rate:g}_seed{seed}"].scores[None] for seed in config.seeds]
        means = [of[probe] for of in scores for probe in ("logistic", "knn")]
        accuracies.setdefault(name, {})[f"{rate:g}"] = float(np.mean(means))
    record = {"seeds": config.seeds, "accuracy": accuracies}
    write_json(Path(config.folder) / "choice.json", record)
    rows = []
    for name, by_rate in accuracies.items():
        best = max(reversed(by_rate), key=by_rate.__getitem__)
        rows.append([name, *by_rate.values(), best])
    title = "Accuracy (%), mean of both probes, on a held-out fifth of the training split, by rate"
    print_table(["encoder", *map(str, RATES), "best"], rows, title=title)


def draw(
    folder: Path,
    folders: Mapping[str, Path],
    scores: Mapping[str, Sequence[Mapping[str, float]]],
    circles: Sequence[Mapping[str, Any]],
) -> dict[str, Path]:
    """Draw the plane of both metrics (means over seeds), the circle, and training curves."""
    files = {name: folder / f"{name}.png" for name in ("plane", "circle", "training_curves")}
    encoders = []
    for name, seeds in scores.items():
        means = {key: float(np.mean([of[key] for of in seeds])) for key in seeds[0]}
        encoders.append({"name": name, **means})
    metric_plane(encoders, files["plane"], "logistic", encoders[0]["optimum"])
    circle_figure(circles, files["circle"], CIRCLE_CLASSES)
    curves = {name: read_metrics(run) for name, run in folders.items()}
    plots.training_curves(curves, files["training_curves"])
    return files


def write_report(
    config: QuickstartConfig,
    folders: Mapping[str, Path],
    rows: list[list[str]],
    figures: Mapping[str, Path],
) -> Path:
    """Write the page with table, pictures and next commands."""
    settings = [[name, formula(of[0]), *of[1:]] for name, of in (RUNS | CIRCLE_RUNS).items()]
    columns = ["run", "loss", "dimension", "epochs", "learning rate for 256 pairs"]
    results = {
        figures["plane"]: "The plane of both metrics (test split), means over seeds",
        figures["circle"]: "Encoders on the circle, after Figure 3 of Wang & Isola (test split)",
    }
    curves = {figures["training_curves"]: "Metrics of the training batches, with random views"}
    commands = [
        f"{program()} probe {folders['align_uniform']} --layers backbone",
        f"{program()} pretrain --name mine --contrastive-weight 1 --contrastive-tau 0.1",
    ]
    sections = [
        Section(TITLE, [ABOUT], [Table(COLUMNS, rows)], results),
        Section("Training", tables=[Table(columns, settings)], figures=curves),
        Section("Next commands", commands=commands),
    ]
    title = "Quickstart: alignment and uniformity on handwritten digits"
    return write_page(Path(config.folder) / "report.html", title, sections)


def run_config(
    name: str, options: tuple, runs_dir: str, seed: int, images: DataConfig | None = None
) -> PretrainConfig:
    """Return the config of an encoder; digits need one device."""
    objective, dim, epochs, rate = options
    return PretrainConfig(
        name=f"{name}_seed{seed}",
        runs_dir=runs_dir,
        seed=seed,
        **vars(images or DataConfig()),
        dim=dim,
        **vars(objective),
        epochs=epochs,
        batch_size=BATCH_SIZE,
        schedule="cosine",
        learning_rate=rate,
        devices=1,
    )
