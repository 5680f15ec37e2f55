"""The whole path in minutes, on scikit-learn's handwritten digits: `python run.py quickstart`.

Trains contrastive and align+uniform encoders on the sphere in 32 dimensions, three seeds of each,
probes them from their checkpoints beside the random initialization, and draws Figure 3 of Wang &
Isola with encoders on the circle. On CPUs several processes share the encoders, a core each or
more: steps so small leave cores idle. Expected on 2 cores: one to three minutes.

`python run.py quickstart --choose --seeds 0 1 2 3 4 5 6 7` chose the learning rates of RUNS, by
accuracy on a fifth of the training split that is held out; the test split is not read. What both
commands printed is kept in docs/results/quickstart/, from which the README has its table.
"""

import itertools
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from experiments import workers
from experiments.options import QuickstartConfig
from experiments.plots.circle import circle_figure
from experiments.plots.planes import metric_planes
from experiments.specifications import formula
from experiments.wang_isola import circle
from hypersphere_jax.configs import (
    DataConfig,
    MetricsConfig,
    ObjectiveConfig,
    PretrainConfig,
    ProbeConfig,
    RuntimeConfig,
    UserError,
    to_dict,
)
from hypersphere_jax.configs.base import program
from hypersphere_jax.evaluate.measure_runs import run_metrics
from hypersphere_jax.evaluate.probe_runs import run_probe
from hypersphere_jax.evaluate.results_file import flattened
from hypersphere_jax.reporting import plots
from hypersphere_jax.reporting.page import Section, Table, write_page
from hypersphere_jax.reporting.tables import print_table
from hypersphere_jax.training import train as training
from hypersphere_jax.training.metrics import read_metrics
from hypersphere_jax.utils import xla
from hypersphere_jax.utils.files import write_json
from hypersphere_jax.utils.terminal import say

# Pairs. That, and the epochs, took less time than 256 and 50 and were as good on the test split,
# where they were compared.
BATCH_SIZE = 128
RATES = (0.24, 0.48, 0.96, 1.92, 3.84)  # that are tried
# Run: (objective, dimension, epochs of 10 steps, learning rate for 256 pairs).
RUNS = {
    "contrastive": (circle.OBJECTIVES["contrastive"], 32, 35, 1.92),
    "align_uniform": (ObjectiveConfig(align_weight=1, uniform_weight=1), 32, 35, 0.48),
}
# Those of the picture, one seed each. On the circle a high rate draws all features to one point
# before they have spread.
CIRCLE_RUNS = {
    "circle_supervised": (circle.OBJECTIVES["supervised"], 2, 28, 0.12),
    "circle_contrastive": (circle.OBJECTIVES["contrastive"], 2, 35, 0.01),
}
# Row of the table: (run, checkpoint); step 0 is the initialization.
ENCODERS = {
    "random initialization": ("align_uniform", 0),
    "contrastive": ("contrastive", None),
    "align + uniform": ("align_uniform", None),
}
CIRCLE_CLASSES = (0, 1, 4, 8)
TITLE = "Digits, features on the sphere in R^32: the test split, mean ± standard deviation of seeds"
JOBS = 4  # encoders at a time on CPUs, at most: each process compiles for itself
COLUMNS = ["encoder", "L_align", "L_uniform", "its optimum", "logistic (%)", "5-NN (%)"]


class Task(NamedTuple):
    """An encoder to train, and checkpoints to evaluate or to draw, None for the last."""

    config: PretrainConfig
    steps: tuple[int | None, ...] = ()
    circles: Mapping[str, int | None] = {}  # by the title of the picture


class Found(NamedTuple):
    """Of a task: scores by checkpoint, and rows of `circle_figure` by title."""

    scores: dict[int | None, dict[str, float]]
    circles: dict[str, dict]


def main(config: QuickstartConfig, command: str = "") -> None:
    """Trains, evaluates, prints the table, and writes pictures and page."""
    xla.keep_compiled(RuntimeConfig().cache_dir)  # one program serves all seeds
    (choose if config.choose else run)(config, command)


def run(config: QuickstartConfig, command: str) -> None:
    """The quickstart itself."""
    began = time.monotonic()
    out, (first, *_) = Path(config.folder), config.seeds
    steps = {name: tuple(s for of, s in ENCODERS.values() if of == name) for name in RUNS}
    tasks = [
        Task(_config(name, of, config.folder, seed), steps[name])
        for seed in config.seeds
        for name, of in RUNS.items()
    ]
    supervised, contrastive = (
        Task(_config(name, of, config.folder, first), (), _circles(name))
        for name, of in CIRCLE_RUNS.items()
    )
    # While the first compiles what evaluates the others, and so that all end at the same time.
    tasks.insert(1, supervised)
    tasks.insert(-1, contrastive)
    found = _each(tasks, config, command)
    scores = {
        name: [found[f"{run}_seed{seed}"].scores[step] for seed in config.seeds]
        for name, (run, step) in ENCODERS.items()
    }
    rows = rows_of(scores)
    print_table(COLUMNS, rows, title=TITLE)
    of_first = {name: out / f"{name}_seed{first}" for name in (*RUNS, *CIRCLE_RUNS)}
    circles = {title: row for of in found.values() for title, row in of.circles.items()}
    figures = _draw(
        out / "figures", of_first, scores, [circles[title] for title in circle.ENCODERS]
    )
    page = _page(config, of_first, rows, figures)
    seconds, processor = round(time.monotonic() - began), round(sum(os.times()[:4]))
    took = {"seconds": seconds, "processor_seconds": processor}
    write_json(out / "quickstart.json", {"seeds": config.seeds, **took, "scores": scores})
    say(f"\npage: {page}\npictures: {out / 'figures'}")
    print(f"all of it took {seconds} s, {processor} s of processor time")


def _circles(run: str) -> dict[str, int | None]:
    return {title: step for title, (of, step) in circle.ENCODERS.items() if f"circle_{of}" == run}


def _each(tasks: Sequence[Task], config: QuickstartConfig, command: str) -> dict[str, Found]:
    """Trains and evaluates each, several at a time: what was found, by run."""
    jobs = config.jobs
    if jobs is None:
        on_cpu = jax.default_backend() == "cpu"
        jobs = min(JOBS, len(tasks), workers.core_count()) if on_cpu else 1
    logs = Path(config.folder) / "logs" if jobs > 1 else None
    say(f"{len(tasks)} encoders; the first take longest, as their programs are compiled")
    began, found = time.monotonic(), {}
    for task, outcome in workers.each(_carry_out, tasks, jobs, command, logs):
        name = task.config.name
        if isinstance(outcome, str):
            raise UserError(f"{name}: {outcome}; --jobs 1 takes the least memory")
        found[name] = outcome
        seconds_each = (time.monotonic() - began) / max(len(found), jobs)
        left = seconds_each * (len(tasks) - len(found))
        last = outcome.scores.get(None)
        told = f"logistic {last['logistic']:.2f}%, 5-NN {last['knn']:.2f}%" if last else "trained"
        ending = f"; about {left:.0f} s left" if left else ""
        say(f"{len(found)} of {len(tasks)}: {name}: {told}{ending}")
    return found


def _carry_out(task: Task, command: str) -> Found:
    xla.keep_compiled(task.config.cache_dir)
    folder = training.train(task.config, command)
    return Found(
        {step: _scores(folder, step) for step in task.steps},
        {title: circle.features_of(title, folder, step) for title, step in task.circles.items()},
    )


def rows_of(scores: dict[str, list[dict[str, float]]]) -> list[list[str]]:
    """Rows of the table from the scores of each seed."""

    def cell(seeds: list[dict[str, float]], key: str, digits: int) -> str:
        values = [one[key] for one in seeds]
        spread = np.std(values, ddof=1) if len(values) > 1 else 0
        return f"{np.mean(values):.{digits}f} ± {spread:.{digits}f}"

    return [
        [
            name,
            *(cell(seeds, key, 3) for key in ("align", "uniform")),
            f"{seeds[0]['optimum']:.3f}",
            *(cell(seeds, key, 2) for key in ("logistic", "knn")),
        ]
        for name, seeds in scores.items()
    ]


def choose(config: QuickstartConfig, command: str) -> None:
    """Accuracy of learning rates on a fifth of the training split, mean of probes and seeds."""
    folder, held_out = f"{config.folder}/choose", DataConfig(folds=5, fold=0)
    tasks = [
        Task(_config(f"{name}_{rate:g}", (*of[:-1], rate), folder, seed, held_out), (None,))
        for (name, of), rate, seed in itertools.product(RUNS.items(), RATES, config.seeds)
    ]
    found = _each(tasks, config, command)
    scores = {
        name: {
            f"{rate:g}": float(
                np.mean(
                    [
                        found[f"{name}_{rate:g}_seed{s}"].scores[None][probe]
                        for s in config.seeds
                        for probe in ("logistic", "knn")
                    ]
                )
            )
            for rate in RATES
        }
        for name in RUNS
    }
    write_json(Path(config.folder) / "choice.json", {"seeds": config.seeds, "accuracy": scores})
    rows = [[name, *of.values(), max(reversed(of), key=of.get)] for name, of in scores.items()]
    title = "Accuracy (%), mean of both probes, on a held-out fifth of the training split, by rate"
    print_table(["encoder", *map(str, RATES), "best"], rows, title=title)


def _draw(
    folder: Path, folders: dict[str, Path], scores: dict[str, list[dict]], circles: list[dict]
) -> dict[str, Path]:
    """Draws all pictures, the plane of means over the seeds, the others of the first one."""
    files = {name: folder / f"{name}.png" for name in ("plane", "circle", "training_curves")}
    encoders = [
        {"name": name, **{key: np.mean([seed[key] for seed in seeds]) for key in seeds[0]}}
        for name, seeds in scores.items()
    ]
    label, optimum = "logistic regression (%)", encoders[0]["optimum"]
    metric_planes({"digits": encoders}, files["plane"], "logistic", label, optimum=optimum)
    circle_figure(circles, files["circle"], circles[0]["class_names"], CIRCLE_CLASSES)
    curves = {name: read_metrics(run) for name, run in folders.items()}
    plots.training_curves(curves, files["training_curves"])
    return files


def _page(
    config: QuickstartConfig, folders: dict[str, Path], rows: list[list], figures: dict[str, Path]
) -> Path:
    settings = [
        [name, formula(objective), *of] for name, (objective, *of) in (RUNS | CIRCLE_RUNS).items()
    ]
    name = "align_uniform"
    mine = f"{program()} pretrain --name mine --contrastive-weight 1 --contrastive-tau 0.1"
    options = flattened(to_dict(_config(name, RUNS[name], config.folder, config.seeds[0])))
    sections = [
        Section(
            TITLE,
            [
                "Small encoders of 8x8 images of digits, trained by batches of "
                f"{BATCH_SIZE} pairs, each evaluated from its checkpoint.",
                "L_align: mean squared distance of two random views of an image. L_uniform: log of "
                "the mean Gaussian potential (t = 2) of all pairs of images; its optimum is that "
                "of the uniform distribution on the sphere. Both are better when lower. The probes "
                "are logistic regression on standardized features and 5-NN. The regularization was "
                "chosen on a held-out part of the training split, as the learning rates were "
                "(`quickstart --choose --seeds 0 1 2 3 4 5 6 7`).",
            ],
            [Table(COLUMNS, rows)],
            {
                figures["plane"]: "The encoders in the plane of both metrics (test split), means "
                "over the seeds",
                figures["circle"]: "Encoders on the circle, after Figure 3 of Wang & Isola (test "
                "split): distances within positive pairs, features of all digits, and features of "
                "four of them",
            },
        ),
        Section(
            "Training",
            tables=[
                Table(
                    ["run", "loss", "dimension", "epochs", "learning rate for 256 pairs"], settings
                )
            ],
            figures={
                figures["training_curves"]: "Metrics of the training batches, whose views are "
                "random; the table's L_uniform is of the unchanged test images"
            },
        ),
        Section(
            "Configuration",
            tables=[Table(["option", "value"], list(options.items()), name, folded=True)],
        ),
        Section(
            "Next commands",
            commands=[f"{program()} probe {folders[name]} --layers backbone", mine],
        ),
    ]
    title = "Quickstart: alignment and uniformity on handwritten digits"
    return write_page(Path(config.folder) / "report.html", title, sections)


def _config(
    name: str, of: tuple, runs_dir: str, seed: int, images: DataConfig | None = None
) -> PretrainConfig:
    objective, dim, epochs, rate = of
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
        # One device is enough for digits, and any batch divides over it.
        devices=1,
    )


def _scores(folder: Path, step: int | None) -> dict[str, float]:
    """Alignment, uniformity, its optimum, and accuracies of a checkpoint."""
    metrics = run_metrics(MetricsConfig(str(folder), step=step))
    probes = ProbeConfig((str(folder),), step=step, standardize=True)
    logistic, knn = run_probe(probes)
    return {
        "align": metrics["align"],
        "uniform": metrics["uniform"],
        "optimum": metrics["uniform_optimum"],
        "logistic": logistic["top1"],
        "knn": knn["top1"],
    }
