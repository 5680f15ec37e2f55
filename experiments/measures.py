"""What is measured of a run of a sweep, from its checkpoints."""

import shutil
from pathlib import Path
from typing import Any, NamedTuple

from hypersphere_jax.config import DepthConfig, MetricsConfig, ProbeConfig
from hypersphere_jax.evaluate import depth_verb
from hypersphere_jax.evaluate.metrics_verb import measure
from hypersphere_jax.evaluate.probe_verb import probe
from hypersphere_jax.train import checkpoint, run_folder
from hypersphere_jax.train.metrics_log import read_metrics

Rows = list[dict[str, Any]]


class Measures(NamedTuple):
    """What is measured of an encoder, beside alignment (alpha 2) and uniformity (t 2).

    Attributes:
      layers: whose outputs are classified.
      protocol: of the linear probe, see `ProbeConfig`; as its paper prints it.
      folds: of the cross-validation on the training split, by which encoders are selected; None: a
        held-out part of it.
      all_steps: of every checkpoint that is kept, also the random initialization.
      depth: depth maps from the layers, in place of classes.
      tasks: labelled sentences that are classified, see `ProbeConfig.data`, in place of classes.
      tasks_dir: where they are, which shapes no number.
      initial: of the random initialization too.
      neighbours: of k-NN, a number each.
      prototype: also the prototype representation bias, of the training split as in its paper.
      logged: nothing but the loss that training logged, its mean over the last tenth of the steps.
    """

    layers: tuple[str, ...] = ("output",)
    protocol: str = "stl10"
    folds: int | None = 5
    all_steps: bool = False
    depth: bool = False
    tasks: tuple[str, ...] = ()
    tasks_dir: str | None = None
    initial: bool = False
    neighbours: tuple[int, ...] = (5,)
    prototype: bool = False
    logged: bool = False


def measured(folder: Path, measures: Measures) -> Rows:
    """A row for each checkpoint that is measured: alignment, uniformity, and scores."""
    if measures.logged:
        return [_logged(folder)]
    steps = _steps(folder) if measures.all_steps else [None]
    steps = [0, *steps] if measures.initial else steps
    score = _depths if measures.depth else _of_tasks if measures.tasks else _accuracies
    rows = []
    for step in steps:
        found = measure(MetricsConfig(str(folder), parts=(), step=step))
        row = {"step": found["step"]}
        for metric in ("align", "uniform"):
            row[metric] = found[metric]
            row[f"{metric}_error"] = found[f"{metric}_standard_error"]
        if measures.prototype:
            row |= _prototype(folder, step)
        rows.append(row | score(folder, step, measures))
    # They are many, and large beside all else of a run; what was measured of them is kept.
    shutil.rmtree(folder / "features", ignore_errors=True)
    return rows


def _steps(folder: Path) -> list[int]:
    """Checkpoints that every run of this config has, wherever it was interrupted."""
    every = run_folder.read_config(folder).runtime.keep_every_steps
    saved = checkpoint.steps(folder / "checkpoints")
    return [step for step in saved if step == saved[-1] or (every and step % every == 0)]


def _logged(folder: Path) -> dict[str, Any]:
    records = read_metrics(folder)
    last = records[-1]["step"]
    losses = [record["loss"] for record in records if record["step"] > 0.9 * last]
    return {"step": last, "final_loss": sum(losses) / len(losses)}


def _prototype(folder: Path, step: int | None) -> dict[str, Any]:
    found = measure(MetricsConfig(str(folder), parts=("prototype",), split="train", step=step))
    names = ("prototype_bias", "prototype_bias_standard_error")
    return {name.replace("_standard", ""): found[name] for name in names}


def _accuracies(folder: Path, step: int | None, measures: Measures) -> dict[str, Any]:
    """Linear and k-NN accuracy on each layer, in percent, with the ends of their intervals."""
    row = {}
    for score in probe(
        ProbeConfig(
            (str(folder),),
            layers=measures.layers,
            protocols=(measures.protocol, "knn"),
            folds=measures.folds,
            as_printed=True,
            k=measures.neighbours,
            step=step,
        )
    ):
        nearest = score["protocol"] == "knn"
        what = f"knn{score['k']}" if nearest else "linear"
        name = f"{score['layer']}_{what}"
        row[name] = score["top1"]
        row[f"{name}_low"], row[f"{name}_high"] = score["top1_interval"]
        if not nearest:
            row |= {f"{name}_cv": score["valid_top1"], f"{name}_top5": score["top5"]}
    return row


def _depths(folder: Path, step: int | None, measures: Measures) -> dict[str, Any]:
    """Mean squared error of depth maps from each layer."""
    row = {}
    for layer in measures.layers:
        config = DepthConfig((str(folder),), layer=layer, folds=measures.folds or 0, step=step)
        (found,) = depth_verb.evaluate(config).results
        row[f"{layer}_mse"] = found["mse"]
        row |= {f"{layer}_mse_cv": found["cv_mse"]} if measures.folds else {}
    return row


def _of_tasks(folder: Path, step: int | None, measures: Measures) -> dict[str, Any]:
    """Accuracy on each task, in percent, with its interval, and that of the cross-validation."""
    row = {}
    for score in probe(
        ProbeConfig(
            (str(folder),),
            data=measures.tasks,
            data_dir=measures.tasks_dir,
            layers=measures.layers,
            protocols=("quick_thought",),
            step=step,
        )
    ):
        name = score["task"] if score["layer"] == "output" else f"{score['task']}_{score['layer']}"
        row[name], row[f"{name}_cv"] = score["top1"], score["valid_top1"]
        row[f"{name}_low"], row[f"{name}_high"] = score["top1_interval"]
    return row
