"""What is evaluated of the encoder of a run, from its checkpoints."""

import shutil
from pathlib import Path
from typing import Any, NamedTuple

from experiments.result import Rows
from hypersphere_jax.config import DepthConfig, MetricsConfig, ProbeConfig
from hypersphere_jax.evaluate import depth_verb
from hypersphere_jax.evaluate.metrics_verb import measure
from hypersphere_jax.evaluate.probe_verb import probe
from hypersphere_jax.train import checkpoint, run_folder
from hypersphere_jax.train.metrics_log import read_metrics


class Evaluation(NamedTuple):
    """What is evaluated of an encoder, beside alignment (alpha 2) and uniformity (t 2)."""

    layers: tuple[str, ...] = ("output",)
    protocol: str = "stl10"  # of the linear probe, as its paper prints it
    folds: int | None = 5  # of the training split, to select encoders; None: a held-out part
    all_steps: bool = False  # of every checkpoint that is kept, also the random initialization
    depth: bool = False  # depth maps from the layers, in place of classes
    tasks: tuple[str, ...] = ()  # labelled sentences, in place of classes
    tasks_dir: str | None = None  # their folder, which shapes no number
    initial: bool = False  # of the random initialization too
    neighbours: tuple[int, ...] = (5,)  # numbers k of k-NN
    prototype: bool = False  # the prototype representation bias, of the training split, too
    logged: bool = False  # nothing but the logged loss, its mean over the last tenth of the steps


def evaluate(folder: Path, evaluation: Evaluation) -> Rows:
    """A row for each checkpoint that is evaluated: alignment, uniformity, and scores."""
    if evaluation.logged:
        return [_final_loss(folder)]
    steps = _steps(folder) if evaluation.all_steps else [None]
    steps = [0, *steps] if evaluation.initial else steps
    scores = _depth if evaluation.depth else _tasks if evaluation.tasks else _accuracies
    rows = []
    for step in steps:
        metrics = measure(MetricsConfig(str(folder), parts=(), step=step))
        row = {"step": metrics["step"]}
        for name in ("align", "uniform"):
            row[name] = metrics[name]
            row[f"{name}_error"] = metrics[f"{name}_standard_error"]
        if evaluation.prototype:
            row |= _prototype_bias(folder, step)
        rows.append(row | scores(folder, step, evaluation))
    # Features of all checkpoints are large beside the rest of a run.
    shutil.rmtree(folder / "features", ignore_errors=True)
    return rows


def _steps(folder: Path) -> list[int]:
    """Checkpoints that every run of this config has, wherever it was interrupted."""
    every = run_folder.read_config(folder).runtime.keep_every_steps
    saved = checkpoint.steps(folder / "checkpoints")
    return [step for step in saved if step == saved[-1] or (every and step % every == 0)]


def _final_loss(folder: Path) -> dict[str, Any]:
    records = read_metrics(folder)
    last = records[-1]["step"]
    losses = [record["loss"] for record in records if record["step"] > 0.9 * last]
    return {"step": last, "final_loss": sum(losses) / len(losses)}


def _prototype_bias(folder: Path, step: int | None) -> dict[str, Any]:
    config = MetricsConfig(str(folder), parts=("prototype",), split="train", step=step)
    names = ("prototype_bias", "prototype_bias_standard_error")
    metrics = measure(config)
    return {name.replace("_standard", ""): metrics[name] for name in names}


def _accuracies(folder: Path, step: int | None, evaluation: Evaluation) -> dict[str, Any]:
    """Linear and k-NN accuracy on each layer, in percent, with the ends of their intervals."""
    config = ProbeConfig(
        (str(folder),),
        layers=evaluation.layers,
        protocols=(evaluation.protocol, "knn"),
        folds=evaluation.folds,
        as_printed=True,
        k=evaluation.neighbours,
        step=step,
    )
    row = {}
    for score in probe(config):
        is_knn = score["protocol"] == "knn"
        name = f"{score['layer']}_{'knn' + str(score['k']) if is_knn else 'linear'}"
        row |= _with_ends(name, score)
        if not is_knn:
            row |= {f"{name}_cv": score["valid_top1"], f"{name}_top5": score["top5"]}
    return row


def _depth(folder: Path, step: int | None, evaluation: Evaluation) -> dict[str, Any]:
    """Mean squared error of depth maps from each layer."""
    row = {}
    for layer in evaluation.layers:
        config = DepthConfig((str(folder),), layer=layer, folds=evaluation.folds or 0, step=step)
        (errors,) = depth_verb.evaluate(config).results
        row[f"{layer}_mse"] = errors["mse"]
        row |= {f"{layer}_mse_cv": errors["cv_mse"]} if evaluation.folds else {}
    return row


def _tasks(folder: Path, step: int | None, evaluation: Evaluation) -> dict[str, Any]:
    """Accuracy on each task, in percent, with its interval, and that of the cross-validation."""
    config = ProbeConfig(
        (str(folder),),
        data=evaluation.tasks,
        data_dir=evaluation.tasks_dir,
        layers=evaluation.layers,
        protocols=("quick_thought",),
        step=step,
    )
    row = {}
    for score in probe(config):
        name = score["task"] if score["layer"] == "output" else f"{score['task']}_{score['layer']}"
        row |= _with_ends(name, score) | {f"{name}_cv": score["valid_top1"]}
    return row


def _with_ends(name: str, score: dict) -> dict[str, float]:
    low, high = score["top1_interval"]
    return {name: score["top1"], f"{name}_low": low, f"{name}_high": high}
