"""How the encoder of a run is evaluated, from its checkpoints."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.predictions import COLUMN, Predictions
from experiments.statistics import Rows
from hypersphere_jax import data
from hypersphere_jax.configs import DepthConfig, MetricsConfig, ProbeConfig
from hypersphere_jax.evaluate import depth_verb
from hypersphere_jax.evaluate.features import split_features
from hypersphere_jax.evaluate.measure_runs import run_metrics
from hypersphere_jax.evaluate.probe_runs import run_probe
from hypersphere_jax.training import checkpoints, distributed, run_dir
from hypersphere_jax.training.metrics import read_metrics

DIRECTIONS = 6  # whose histograms are kept
PROBE_SEED = 1000  # of the draw of balanced training images; no run's


class Evaluation(NamedTuple):
    """What is evaluated of an encoder, beside alignment (alpha 2) and uniformity (t 2).

    Of each layer: logistic regression on standardized features, k-NN, and the paper's own probe.
    """

    layers: tuple[str, ...] = ("output",)  # that of the paper first
    protocol: str | None = "stl10"  # of the linear probe, as its paper prints it; None: without it
    folds: int | None = 5  # of the training split, to select encoders; None: a held-out part
    all_steps: bool = False  # of every checkpoint that is kept, also the random initialization
    depth: bool = False  # depth maps from the layers, in place of classes
    tasks: tuple[str, ...] = ()  # labelled sentences, in place of classes
    tasks_dir: str | None = None  # their folder, which shapes no number
    initial: bool = False  # of the random initialization too
    neighbours: tuple[int, ...] = (5,)  # numbers k of k-NN
    prototype: bool = False  # the prototype representation bias, of the training split, too
    logged: bool = False  # nothing but the logged loss, its mean over the last tenth of the steps
    probe_size: int | None = None  # training images of the probe, as many of each class; None: all
    projections: bool = False  # how far the outputs are from uniform ones along random directions


def evaluate(folder: Path, evaluation: Evaluation) -> Rows:
    """A row for each checkpoint that is evaluated: alignment, uniformity, scores, predictions."""
    if evaluation.logged:
        return [_final_loss(folder)]
    steps = _steps(folder) if evaluation.all_steps else [None]
    steps = [0, *steps] if evaluation.initial else steps
    scores = _depth if evaluation.depth else _tasks if evaluation.tasks else _accuracies
    rows = []
    for step in steps:
        parts = ("projections",) if evaluation.projections else ()
        config = MetricsConfig(str(folder), parts=parts, step=step)
        metrics = run_metrics(config)
        row = {"step": metrics["step"]} | _with_error(metrics, "align", "uniform")
        if evaluation.projections:
            row |= _projections(metrics)
        if evaluation.prototype:
            config = dataclasses.replace(config, parts=("prototype",), split="train")
            row |= _with_error(run_metrics(config), "prototype_bias")
        rows.append(row | scores(folder, step, evaluation))
    # Features of all checkpoints are large beside the rest of a run.
    shutil.rmtree(folder / "features", ignore_errors=True)
    return rows


def _steps(folder: Path) -> list[int]:
    """Checkpoints that every run of this config has, wherever it was interrupted."""
    every = run_dir.read_config(folder).keep_every_steps
    saved = checkpoints.steps(folder / "checkpoints")
    return [step for step in saved if step == saved[-1] or (every and step % every == 0)]


def _final_loss(folder: Path) -> dict[str, Any]:
    records = read_metrics(folder)
    last = records[-1]["step"]
    losses = [record["loss"] for record in records if record["step"] > 0.9 * last]
    return {"step": last, "final_loss": sum(losses) / len(losses)}


def _with_error(metrics: dict[str, Any], *names: str) -> dict[str, float]:
    errors = {f"{name}_error": metrics[f"{name}_standard_error"] for name in names}
    return {name: metrics[name] for name in names} | errors


def _projections(metrics: dict[str, Any]) -> dict[str, Any]:
    """Distances from uniform outputs, and the histograms of some directions as a text."""
    names = "sliced_wasserstein", "projection_ks_sphere", "uniform_optimum", "projection_half_width"
    counts = [one["counts"] for one in metrics["projections"][:DIRECTIONS]]
    text = "; ".join(" ".join(map(str, of)) for of in counts)
    return {name: metrics[name] for name in names} | {"projection_counts": text}


def _accuracies(folder: Path, step: int | None, evaluation: Evaluation) -> dict[str, Any]:
    """Accuracy of each layer by all instruments, in percent, with the ends of its interval."""
    papers = () if evaluation.protocol is None else (evaluation.protocol,)
    how: dict[str, Any] = {
        "protocols": ("lbfgs", "knn", *papers),
        "folds": evaluation.folds,
        "standardize": True,
        "as_printed": bool(papers),
        "k": evaluation.neighbours,
    }
    if evaluation.probe_size is None:
        config = ProbeConfig((str(folder),), layers=evaluation.layers, step=step, **how)
        scores = run_probe(config)
    else:
        files = _balanced_features(folder, step, evaluation.layers, evaluation.probe_size)
        scores = [
            {"layer": layer, **score}
            for layer, file in files.items()
            for score in run_probe(ProbeConfig((str(file),), **how))
        ]
    row: dict[str, Any] = {COLUMN: {}}
    for score in scores:
        of = {"lbfgs": "logistic", "knn": f"knn{score.get('k')}"}.get(score["protocol"], "linear")
        name = f"{score['layer']}_{of}"
        _add(row, name, score)
        if score["protocol"] != "knn":
            row |= {f"{name}_cv": score["valid_top1"], f"{name}_top5": score["top5"]}
    return row


def _balanced_features(
    folder: Path, step: int | None, layers: tuple[str, ...], size: int
) -> dict[str, Path]:
    """Files for the probe, by layer: of balanced training images that are drawn for it alone."""
    encoder = run_dir.load_encoder(folder, step)
    images = {"subset": "uniform", "subset_size": size, "subset_seed": PROBE_SEED, "fraction": 1.0}
    dataset = data.load(encoder.config.replace(**images))
    splits = {"train": dataset.train, "test": run_dir.test_split(dataset)}
    devices = distributed.local_devices(1)
    features = {
        name: split_features(encoder, source, layers, devices).features
        for name, source in splits.items()
    }
    files = {}
    for layer in layers:
        files[layer] = folder / "features" / f"{layer}.npz"
        of_layer = {name: each[layer] for name, each in features.items()}
        arrays = {f"{name}_x": each.x for name, each in of_layer.items()}
        arrays |= {f"{name}_y": each.labels for name, each in of_layer.items()}
        np.savez(files[layer], **arrays)
    return files


def _depth(folder: Path, step: int | None, evaluation: Evaluation) -> dict[str, Any]:
    row = {}
    for layer in evaluation.layers:
        config = DepthConfig((str(folder),), layer=layer, folds=evaluation.folds or 0, step=step)
        (errors,) = depth_verb.run_depth(config).results
        row[f"{layer}_mse"] = errors["mse"]
        row |= {f"{layer}_mse_cv": errors["cv_mse"]} if evaluation.folds else {}
    return row


def _tasks(folder: Path, step: int | None, evaluation: Evaluation) -> dict[str, Any]:
    """Accuracy on each task by both instruments, in percent, with the ends of its interval.

    That of the paper's protocol, logistic regression, has the name of the task alone.
    """
    config = ProbeConfig(
        (str(folder),),
        data=evaluation.tasks,
        data_dir=evaluation.tasks_dir,
        layers=evaluation.layers,
        protocols=("quick_thought", "knn"),
        k=evaluation.neighbours,
        step=step,
    )
    row: dict[str, Any] = {COLUMN: {}}
    for score in run_probe(config):
        name = score["task"] if score["layer"] == "output" else f"{score['task']}_{score['layer']}"
        if score["protocol"] == "knn":
            _add(row, f"{name}_knn{score['k']}", score)
            continue
        _add(row, name, score)
        row[f"{name}_cv"] = score["valid_top1"]
    return row


def _add(row: dict[str, Any], name: str, score: dict) -> None:
    """A score with the ends of its interval, and what was predicted."""
    low, high = score["top1_interval"]
    row |= {name: score["top1"], f"{name}_low": low, f"{name}_high": high}
    arrays = (np.asarray(score[key]) for key in ("targets", "predicted"))
    row[COLUMN][name] = Predictions(*arrays)
