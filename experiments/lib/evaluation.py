"""Evaluation of a run's encoder from its checkpoints."""

import dataclasses
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.lib.records import PREDICTIONS, Predictions, Rows
from hypersphere_jax import data
from hypersphere_jax.configs import MetricsConfig, ProbeConfig
from hypersphere_jax.depth.config import DepthConfig
from hypersphere_jax.depth.protocol import run_depth
from hypersphere_jax.evaluation.features import split_features
from hypersphere_jax.evaluation.measure_runs import run_metrics
from hypersphere_jax.evaluation.probe_runs import run_probe
from hypersphere_jax.training import checkpoints, distributed, run_dir
from hypersphere_jax.training.metrics import read_metrics

HISTOGRAMS = 6  # random directions whose histograms are recorded
PROBE_SEED = 1000  # draws the balanced training images of a probe


@dataclass(frozen=True)
class Evaluation:
    """Measurements: alignment (alpha 2), uniformity (t 2), and each layer's accuracies."""

    layers: tuple[str, ...] = ("output",)  # to probe, the paper's layer first
    protocol: str | None = "stl10"  # the paper's linear probe, or None for no linear probe
    folds: int | None = 5  # of the training split; with None, one part is held out
    all_steps: bool = False  # evaluate every kept checkpoint and the random initialization
    initial: bool = False  # evaluate the random initialization as well
    neighbours: tuple[int, ...] = (5,)  # numbers k of k-NN
    depth: bool = False  # predict depth maps instead of classes
    tasks: tuple[str, ...] = ()  # labelled sentences, instead of the classes of images
    tasks_dir: str | None = None  # folder of the labelled sentences
    prototype: bool = False  # the prototype representation bias of the training split
    projections: bool = False  # how far outputs are from uniform along random directions
    probe_size: int | None = None  # balanced training images of the probe; defaults to all images
    only_loss: bool = False  # only the logged loss: its mean over the last tenth of the steps


def evaluate(folder: Path, evaluation: Evaluation) -> Rows:
    """Return a row per evaluated checkpoint: alignment, uniformity, scores and predictions."""
    if evaluation.only_loss:
        records = read_metrics(folder)
        last = records[-1]["step"]
        losses = [record["loss"] for record in records if record["step"] > 0.9 * last]
        return [{"step": last, "final_loss": float(np.mean(losses))}]
    steps: list[int | None] = [0, None] if evaluation.initial else [None]
    if evaluation.all_steps:
        steps = [*_kept_steps(folder)]
    measure_scores = _accuracies
    if evaluation.depth:
        measure_scores = _depth_errors
    if evaluation.tasks:
        measure_scores = _task_accuracies
    rows = []
    for step in steps:
        metrics = _metrics(folder, step, evaluation)
        rows.append(metrics | measure_scores(folder, step, evaluation))
    # Cached features of all checkpoints are large compared with the rest of a run.
    shutil.rmtree(folder / "features", ignore_errors=True)
    return rows


def _kept_steps(folder: Path) -> list[int]:
    """Return the checkpoints that every run of this config has, wherever it was interrupted."""
    every = run_dir.read_config(folder).keep_every_steps
    saved = checkpoints.steps(folder / "checkpoints")
    return [step for step in saved if step == saved[-1] or (every and step % every == 0)]


def _metrics(folder: Path, step: int | None, evaluation: Evaluation) -> dict[str, Any]:
    parts = ("projections",) if evaluation.projections else ()
    metrics = run_metrics(MetricsConfig(str(folder), parts=parts, step=step))
    row = {name: metrics[name] for name in ("step", "align", "uniform")}
    if evaluation.projections:
        row |= {name: metrics[name] for name in ("projection_ks_sphere", "projection_half_width")}
        counts = [direction["counts"] for direction in metrics["projections"][:HISTOGRAMS]]
        row["projection_counts"] = "; ".join(" ".join(map(str, of)) for of in counts)
    if evaluation.prototype:
        config = MetricsConfig(str(folder), parts=("prototype",), step=step, split="train")
        row["prototype_bias"] = run_metrics(config)["prototype_bias"]
    return row


def _accuracies(folder: Path, step: int | None, evaluation: Evaluation) -> dict[str, Any]:
    """Return the accuracy of each layer by each instrument, in percent."""
    config = ProbeConfig(
        (str(folder),),
        layers=evaluation.layers,
        protocols=tuple(filter(None, ("lbfgs", "knn", evaluation.protocol))),
        folds=evaluation.folds,
        standardize=True,
        as_printed=evaluation.protocol is not None,
        k=evaluation.neighbours,
        step=step,
    )
    if evaluation.probe_size is None:
        scores = run_probe(config)
    else:
        scores = _probe_balanced(config, evaluation.probe_size)
    row: dict[str, Any] = {PREDICTIONS: {}}
    for score in scores:
        names = {"lbfgs": "logistic", "knn": f"knn{score.get('k')}"}
        name = f"{score['layer']}_{names.get(score['protocol'], 'linear')}"
        _add_score(row, name, score)
    return row


def _probe_balanced(config: ProbeConfig, size: int) -> list[dict]:
    """Probe with balanced training images that are drawn for the probe."""
    folder = Path(config.runs[0])
    encoder = run_dir.load_encoder(folder, config.step)
    subset = {"subset": "uniform", "subset_size": size, "subset_seed": PROBE_SEED, "fraction": 1.0}
    dataset = data.load(encoder.config.replace(**subset))
    splits = {"train": dataset.train, "test": run_dir.test_split(dataset)}
    scores = []
    for layer in config.layers:
        arrays = {}
        for name, source in splits.items():
            extracted = split_features(encoder, source, [layer], distributed.local_devices(1))
            features = extracted.features[layer]
            arrays |= {f"{name}_x": features.x, f"{name}_y": features.labels}
        file = folder / "features" / f"{layer}.npz"
        np.savez(file, **arrays)
        of_file = dataclasses.replace(config, runs=(str(file),), layers=("output",), step=None)
        scores += [score | {"layer": layer} for score in run_probe(of_file)]
    return scores


def _depth_errors(folder: Path, step: int | None, evaluation: Evaluation) -> dict[str, Any]:
    row = {}
    for layer in evaluation.layers:
        config = DepthConfig((str(folder),), layer=layer, folds=evaluation.folds or 0, step=step)
        (errors,) = run_depth(config).results
        row[f"{layer}_mse"] = errors["mse"]
        if evaluation.folds:
            row[f"{layer}_mse_cv"] = errors["cv_mse"]
    return row


def _task_accuracies(folder: Path, step: int | None, evaluation: Evaluation) -> dict[str, Any]:
    """Return the accuracy on each task: `mr` by logistic regression, `mr_knn5` by 5-NN."""
    config = ProbeConfig(
        (str(folder),),
        data=evaluation.tasks,
        data_dir=evaluation.tasks_dir,
        layers=evaluation.layers,
        protocols=("quick_thought", "knn"),
        k=evaluation.neighbours,
        step=step,
    )
    row: dict[str, Any] = {PREDICTIONS: {}}
    for score in run_probe(config):
        name = score["task"]
        if score["layer"] != "output":
            name += f"_{score['layer']}"
        if score["protocol"] == "knn":
            name += f"_knn{score['k']}"
        _add_score(row, name, score)
    return row


def _add_score(row: dict[str, Any], name: str, score: dict) -> None:
    """Add a score and its predictions to a row; linear probes add held-out and top-5 scores."""
    row[name] = score["top1"]
    predictions = Predictions(np.asarray(score["targets"]), np.asarray(score["predicted"]))
    row[PREDICTIONS][name] = predictions
    if score["protocol"] != "knn":
        row[f"{name}_cv"] = score["valid_top1"]
        row[f"{name}_top5"] = score["top5"]
