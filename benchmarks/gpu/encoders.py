"""GPU checks that train encoders on CIFAR-10: `cifar10` and `wang_isola`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scipy import stats

from benchmarks.gpu.record import Record
from benchmarks.gpu.runs import (
    EVALUATION_S,
    LAYERS,
    SCORES,
    SIMCLR,
    accuracies,
    epochs_done,
    images_per_s,
    load_data,
    make_config,
    stopped_after,
    train,
)
from hypersphere_jax.configs import MetricsConfig, PretrainConfig, ProbeConfig
from hypersphere_jax.evaluation.measure_runs import run_metrics
from hypersphere_jax.evaluation.probe_runs import run_probe
from hypersphere_jax.training.vmapped import train_vmapped

MOCO: dict[str, Any] = {
    **{name: value for name, value in SIMCLR.items() if name not in ("loss", "loss_tau")},
    "head": "moco_v2",
    "contrastive_weight": 1.0,
    "align_weight": 0.0,
    "uniform_weight": 0.0,
    "contrastive_tau": 0.1,
    "queue_size": 4096,
    "ema_decay": 0.99,
}
# The encoders of `wang_isola`: temperatures of the contrastive loss, weights of the other losses.
TEMPERATURES = (0.07, 0.1, 0.15, 0.2, 0.35, 0.5, 1.0)
WEIGHTS = (
    (1, 1 / 256),
    (1, 1 / 16),
    (1, 1 / 4),
    (1, 1 / 2),
    (1, 1),
    (1 / 2, 1),
    (1 / 4, 1),
    (1 / 16, 1),
    (1 / 256, 1),
)
COLUMNS = ("loss", "align", "uniform", "output_knn5", "output_linear", "fc7_knn5", "fc7_linear")


def cifar10(
    data_dir: Path = Path(".data/cifar10"),
    epochs: int = 200,
    batch_size: int = 512,
    minutes: float = 8,
    out: Path = Path("runs/gpu"),
    toy: bool = False,
) -> None:
    """Train ResNet-18 on CIFAR-10 with SimCLR, then with MoCo if four minutes remain.

    Args:
        data_dir: folder with CIFAR-10's train.zip and test.zip.
        epochs: passes over the training images, of each method.
        batch_size: positive pairs in a batch.
        minutes: time limit; a run that does not finish is evaluated at its last step.
        out: folder of the results.
        toy: run at toy size, on random images.
    """
    size: dict[str, Any] = {"model": "resnet18", "dtype": "bfloat16"}
    moco = MOCO
    if toy:
        size = {"model": "small_cnn", "width": 0.2}
        epochs, batch_size = 2, 32
        moco = MOCO | {"queue_size": 64}
    size |= {"epochs": epochs, "batch_size": batch_size}
    record = Record("cifar10", out, minutes, **size)
    source = load_data(data_dir, 50_000, toy, out)
    for method, options in {"SimCLR": SIMCLR, "MoCo": moco}.items():
        if record.seconds_left < 240 and not toy:
            record.add(method=method, skipped="no time left")
            continue
        config = make_config(record, source, toy, name=method.lower(), **size, **options)
        train(record, config, record.seconds_left - EVALUATION_S, method=method)
        scores = accuracies(f"{record.runs_dir}/{config.name}", layers=(LAYERS[size["model"]],))
        record.add(
            method=method,
            epochs=epochs_done(config),
            images_per_s=images_per_s(record, method=method),
            minutes=round((record.limit - record.seconds_left) / 60, 2),
            **scores,
        )
    runs = [row for row in record.rows if "knn5" in row or "skipped" in row]
    columns = ("method", "epochs", "images_per_s", "minutes", *SCORES, "skipped")
    record.finish("CIFAR-10, ResNet-18", columns, runs)


def wang_isola(
    data_dir: Path = Path(".data/cifar10"),
    epochs: int = 8,
    batch_size: int = 256,
    minutes: float = 9,
    out: Path = Path("runs/gpu"),
    toy: bool = False,
) -> None:
    """Train 16 encoders of Wang & Isola in two programs and relate both metrics to accuracy.

    Seven encoders with the contrastive loss at other temperatures, then nine with other weights of
    alignment and uniformity (Figure 7, Table 1): SmallAlexNet on CIFAR-10 at 32 pixels.

    Args:
        data_dir: folder with CIFAR-10's train.zip and test.zip.
        epochs: passes over the training images.
        batch_size: positive pairs in a batch of each encoder.
        minutes: time limit; encoders that do not finish are evaluated at their last step.
        out: folder of the results.
        toy: run at toy size, on random images.
    """
    size: dict[str, Any] = {"model": "small_alexnet", "dim": 128, "dtype": "bfloat16"}
    recipe = "cifar10"
    weights, temperatures = WEIGHTS, TEMPERATURES
    if toy:
        size = {"model": "small_cnn", "dim": 8, "width": 0.2}
        recipe = SIMCLR["recipe"]
        epochs, batch_size = 2, 32
        weights, temperatures = WEIGHTS[4:6], TEMPERATURES[:1]
    size |= {"epochs": epochs, "batch_size": batch_size, "recipe": recipe}
    record = Record("wang_isola", out, minutes, **size)
    source = load_data(data_dir, 50_000, toy, out)
    contrastive = {
        f"contrastive, tau {tau:g}": {
            "contrastive_weight": 1.0,
            "contrastive_tau": tau,
            "align_weight": 0.0,
            "uniform_weight": 0.0,
        }
        for tau in temperatures
    }
    weighted = {
        f"align {align:g}, uniform {uniform:g}": {
            "align_weight": float(align),
            "uniform_weight": float(uniform),
        }
        for align, uniform in weights
    }
    for number, group in enumerate((contrastive, weighted)):
        configs = [
            make_config(record, source, toy, name=f"encoder-{number}-{place}", **size, **options)
            for place, options in enumerate(group.values())
        ]
        # Half of the remaining time for the first group, two thirds of that for training.
        seconds = record.seconds_left / (2 - number) * 2 / 3
        with stopped_after(seconds):
            train_vmapped(configs)
        _evaluate(record, list(group), configs, LAYERS[size["model"]])
    _add_summary(record)
    record.finish("SmallAlexNet, CIFAR-10 at 32 pixels", COLUMNS)


def _evaluate(
    record: Record, losses: Sequence[str], configs: Sequence[PretrainConfig], hidden: str
) -> None:
    """Add a row per encoder: epochs, both metrics, and accuracies of output and hidden layer."""
    for loss, config in zip(losses, configs, strict=True):
        if epochs_done(config) == 0:
            record.add(loss=loss, skipped="not trained")
            continue
        run = f"{record.runs_dir}/{config.name}"
        metrics = run_metrics(MetricsConfig(run, parts=()))
        row = {"loss": loss, "epochs": epochs_done(config)}
        row |= {"align": metrics["align"], "uniform": metrics["uniform"]}
        results = run_probe(ProbeConfig((run,), layers=("output", hidden), standardize=True))
        for result in results:
            name = "linear" if result["protocol"] == "lbfgs" else "knn5"
            layer = "output" if result["layer"] == "output" else "fc7"
            row[f"{layer}_{name}"] = result["top1"]
            if name == "linear":
                row[f"{layer}_valid"] = result["valid_top1"]
        record.add(**row)


def _add_summary(record: Record) -> None:
    """Add rank correlations with align + uniform, and the best encoder of each kind of loss.

    The best is chosen on held-out training images (Table 1).
    """
    rows = [row for row in record.rows if "align" in row]
    correlations = {}
    for score in COLUMNS[3:]:
        scores = [row[score] for row in rows]
        if len(set(scores)) > 1:
            total = [row["align"] + row["uniform"] for row in rows]
            correlations[score] = round(stats.spearmanr(total, scores).statistic, 3)
    record.add(loss="rank correlation with align + uniform", **correlations)
    for kind in ("contrastive", "align"):
        of_kind = [row for row in rows if row["loss"].startswith(kind)]
        if of_kind:
            best = max(of_kind, key=lambda row: row["output_valid"])
            record.add(**(best | {"loss": f"best: {best['loss']}"}))
