"""The whole path in minutes, on scikit-learn's handwritten digits: `python run.py quickstart`.

Trains contrastive and align+uniform encoders on the sphere in 32 dimensions, three seeds of each,
probes them from their checkpoints beside the random initialization, and draws Figure 3 of Wang &
Isola with encoders on the circle. Expected on 2 cores: under 3 minutes.

`python run.py quickstart --choose` chose the learning rates of RUNS, by accuracy on a fifth of the
training split that is held out; the test split is not read. What both commands printed is kept in
docs/results/quickstart/, from which the README has its table.
"""

import time
from pathlib import Path

import numpy as np

from experiments.options import QuickstartConfig
from experiments.plots.circle import circle_figure
from experiments.plots.planes import metric_planes
from experiments.specifications import formula
from experiments.wang_isola import circle
from hypersphere_jax import plots, report
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
from hypersphere_jax.config.base import program
from hypersphere_jax.evaluate.metrics_verb import run_metrics
from hypersphere_jax.evaluate.probe_verb import run_probe
from hypersphere_jax.files import write_json
from hypersphere_jax.tables import print_table
from hypersphere_jax.terminal import say
from hypersphere_jax.training import loop, sharding
from hypersphere_jax.training.metrics_log import read_metrics

RATES = (0.03, 0.06, 0.12, 0.24, 0.48)  # that are tried
# Run: (objective, dimension, epochs of 5 steps, learning rate).
RUNS = {
    "contrastive": (circle.OBJECTIVES["contrastive"], 32, 50, 0.24),
    "align_uniform": (ObjectiveConfig(align_weight=1, uniform_weight=1), 32, 50, 0.06),
}
# Those of the picture, one seed each. On the circle a high rate draws all features to one point
# before they have spread.
CIRCLE_RUNS = {
    "circle_supervised": (circle.OBJECTIVES["supervised"], 2, 40, 0.12),
    "circle_contrastive": (circle.OBJECTIVES["contrastive"], 2, 50, 0.01),
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


def main(config: QuickstartConfig, command: str = "") -> None:
    """Trains, evaluates, prints the table, and writes pictures and page."""
    sharding.keep_compiled(RuntimeConfig().cache_dir)  # one program serves all seeds
    (choose if config.choose else run)(config, command)


def run(config: QuickstartConfig, command: str) -> None:
    """The quickstart itself."""
    began = time.monotonic()
    out, (first, *_) = Path(config.folder), config.seeds
    configs = [
        _config(name, of, config.folder, seed) for seed in config.seeds for name, of in RUNS.items()
    ]
    configs += [_config(name, of, config.folder, first) for name, of in CIRCLE_RUNS.items()]
    folders = {(one.name.rsplit("_seed")[0], one.seed): loop.train(one, command) for one in configs}
    scores = {
        name: [_scores(folders[run, seed], step) for seed in config.seeds]
        for name, (run, step) in ENCODERS.items()
    }
    rows = rows_of(scores)
    print_table(COLUMNS, rows, title=TITLE)
    of_first = {name: folders[name, first] for name in (*RUNS, *CIRCLE_RUNS)}
    figures = _draw(out / "figures", of_first, scores)
    page = _page(config, of_first, rows, figures)
    seconds = round(time.monotonic() - began)
    record = {"seeds": config.seeds, "seconds": seconds, "scores": scores}
    write_json(out / "quickstart.json", record)
    say(f"\npage: {page}\npictures: {out / 'figures'}")
    print(f"all of it took {seconds} s")


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
    """Accuracies of learning rates on a fifth of the training split, means over the seeds."""
    folder, held_out = f"{config.folder}/choose", DataConfig(folds=5, fold=0)
    scores: dict[str, dict[str, float]] = {}
    for name, (objective, dim, epochs, _) in RUNS.items():
        scores[name] = {}
        for rate in RATES:
            configs = [
                _config(f"{name}_{rate:g}", (objective, dim, epochs, rate), folder, seed, held_out)
                for seed in config.seeds
            ]
            found = [_scores(loop.train(one, command), None)["logistic"] for one in configs]
            scores[name][f"{rate:g}"] = float(np.mean(found))
    write_json(Path(config.folder) / "choice.json", {"seeds": config.seeds, "logistic": scores})
    rows = [[name, *of.values(), max(reversed(of), key=of.get)] for name, of in scores.items()]
    title = "Logistic regression (%) on a held-out fifth of the training split, by learning rate"
    print_table(["encoder", *map(str, RATES), "best"], rows, title=title)


def _draw(folder: Path, folders: dict[str, Path], scores: dict[str, list[dict]]) -> dict[str, Path]:
    """Draws all pictures, the plane of means over the seeds, the others of the first one."""
    files = {name: folder / f"{name}.png" for name in ("plane", "circle", "training_curves")}
    encoders = [
        {"name": name, **{key: np.mean([seed[key] for seed in seeds]) for key in seeds[0]}}
        for name, seeds in scores.items()
    ]
    label, optimum = "logistic regression (%)", encoders[0]["optimum"]
    metric_planes({"digits": encoders}, files["plane"], "logistic", label, optimum=optimum)
    circles = [
        circle.features_of(title, folders[f"circle_{name}"], step)
        for title, (name, step) in circle.ENCODERS.items()
    ]
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
    blocks = [
        ("text", "Small encoders of 8x8 images of digits, each evaluated from its checkpoint."),
        ("heading", TITLE),
        ("table", COLUMNS, rows),
        (
            "text",
            "L_align: mean squared distance of two random views of an image. L_uniform: log of the "
            "mean Gaussian potential (t = 2) of all pairs of images; its optimum is that of the "
            "uniform distribution on the sphere. Both are better when lower. The probes are "
            "logistic regression on standardized features and 5-NN. The regularization was chosen "
            "on a held-out part of the training split, as the learning rates were "
            "(`quickstart --choose`).",
        ),
        (
            "figure",
            figures["plane"],
            "The encoders in the plane of both metrics (test split), means over the seeds",
        ),
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
        ("config", to_dict(_config(name, RUNS[name], config.folder, config.seeds[0]))),
        ("heading", "To go on"),
        ("command", f"{program()} probe {folders[name]} --layers backbone\n{mine}"),
    ]
    title = "Quickstart: alignment and uniformity on handwritten digits"
    return report.write_page(Path(config.folder) / "report.html", title, blocks)


def _config(
    name: str, of: tuple, runs_dir: str, seed: int, images: DataConfig | None = None
) -> PretrainConfig:
    objective, dim, epochs, rate = of
    return PretrainConfig(
        name=f"{name}_seed{seed}",
        runs_dir=runs_dir,
        seed=seed,
        data=images or DataConfig(),
        model=ModelConfig(dim=dim),
        objective=objective,
        optimizer=OptimizerConfig(epochs=epochs, schedule="cosine", learning_rate=rate),
        # One device is enough for digits, and any batch divides over it.
        runtime=RuntimeConfig(devices=1),
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
