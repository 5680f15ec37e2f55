"""GPU checks that train encoders on CIFAR-10: `cifar10` and `wang_isola`."""

from pathlib import Path
from typing import Any

from scipy import stats

from benchmarks.gpu.record import Record
from benchmarks.gpu.runs import (
    LAYERS,
    SCORES,
    SIMCLR,
    accuracies,
    images_per_s,
    load_data,
    make_config,
    stopped_in_time,
    train,
)
from hypersphere_jax.configs import MetricsConfig
from hypersphere_jax.evaluate.metrics_verb import run_metrics
from hypersphere_jax.training.vmapped import train_vmapped

COLUMNS = (
    "loss",
    "align",
    "uniform",
    "output_knn5",
    "output_linear",
    "hidden_knn5",
    "hidden_linear",
)


def cifar10(
    data_dir: Path = Path(".data/cifar10"),
    epochs: int = 200,
    batch_size: int = 512,
    minutes: float = 8,
    out: Path = Path("runs/gpu"),
    toy: bool = False,
) -> None:
    """Train ResNet-18 on CIFAR-10 with SimCLR, then with MoCo as far as the time allows.

    Args:
        data_dir: folder with CIFAR-10's train.zip and test.zip.
        epochs: passes over the training images, of each method.
        batch_size: positive pairs in a batch.
        minutes: time limit; a run that does not finish is evaluated at its last step.
        out: folder of the results.
        toy: run at toy size, on random images.
    """
    size: dict[str, Any] = {"model": "resnet18", "dtype": "bfloat16"}
    if toy:
        size = {"model": "small_cnn", "width": 0.2}
        epochs, batch_size = 2, 32
    record = Record("cifar10", out, minutes, epochs=epochs, batch_size=batch_size)
    source = load_data(data_dir, 50_000, toy, out)
    size |= {"epochs": epochs, "batch_size": batch_size}
    moco = {name: value for name, value in SIMCLR.items() if name not in ("loss", "loss_tau")}
    moco |= {
        "head": "moco_v2",
        "contrastive_weight": 1.0,
        "align_weight": 0.0,
        "uniform_weight": 0.0,
        "contrastive_tau": 0.1,
        "queue_size": 64 if toy else 4096,
        "ema_decay": 0.99,
    }
    for method, options in {"SimCLR": SIMCLR, "MoCo": moco}.items():
        if record.seconds_left < 60 and not toy:
            record.add(method=method, skipped="no time left")
            continue
        config = make_config(
            record, source, toy, name=f"cifar10-{method.lower()}", **size, **options
        )
        train(record, config, reserve=45, method=method)
        scores = accuracies(
            str(record.path.parent / "runs" / config.name), layers=(LAYERS[size["model"]],)
        )
        minutes_used = (60 * minutes - record.seconds_left) / 60
        record.add(
            method=method,
            epochs=record.rows[-1].get("epoch"),
            images_per_s=images_per_s(record, method=method),
            minutes=round(minutes_used, 2),
            **scores,
        )
    runs = [row for row in record.rows if "knn5" in row]
    columns = ("method", "epochs", "images_per_s", "minutes", *SCORES)
    record.print_table("CIFAR-10, ResNet-18", columns, runs)


def wang_isola(
    data_dir: Path = Path(".data/cifar10"),
    epochs: int = 12,
    batch_size: int = 256,
    minutes: float = 9,
    out: Path = Path("runs/gpu"),
    toy: bool = False,
) -> None:
    """Train 16 encoders of Wang & Isola in one program and relate both metrics to accuracy.

    Seven encoders with the contrastive loss at other temperatures, nine with other weights of
    alignment and uniformity (Figure 7, Table 1): SmallAlexNet on CIFAR-10 at 32 pixels.

    Args:
        data_dir: folder with CIFAR-10's train.zip and test.zip.
        epochs: passes over the training images.
        batch_size: positive pairs in a batch of each encoder.
        minutes: time limit; encoders that do not finish are evaluated at their last step.
        out: folder of the results.
        toy: run at toy size, on random images.
    """
    weights = [(1, 0), (1, 1 / 16), (1, 1 / 4), (1, 1 / 2), (1, 1), (1 / 2, 1), (1 / 4, 1)]
    weights += [(1 / 16, 1), (0, 1)]
    temperatures = (0.07, 0.1, 0.15, 0.2, 0.35, 0.5, 1.0)
    size: dict[str, Any] = {"model": "small_alexnet", "dim": 128, "dtype": "bfloat16"}
    if toy:
        size = {"model": "small_cnn", "dim": 8, "width": 0.2}
        epochs, batch_size, weights, temperatures = 2, 32, [(1, 1)], (0.5,)
    record = Record("wang_isola", out, minutes, epochs=epochs, batch_size=batch_size)
    source = load_data(data_dir, 50_000, toy, out)
    losses = {f"contrastive, tau {tau:g}": _weights(1, 0, 0, tau) for tau in temperatures}
    losses |= {f"align {a:g}, uniform {u:g}": _weights(0, a, u) for a, u in weights}
    configs = [
        make_config(
            record,
            source,
            toy,
            name=f"wang-isola-{number:02d}",
            recipe=SIMCLR["recipe"] if toy else "cifar10",
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=0.12,
            devices=1,
            **size,
            **options,
        )
        for number, options in enumerate(losses.values())
    ]
    with stopped_in_time(record, reserve=120):
        train_vmapped(configs)
    for loss, config in zip(losses, configs, strict=True):
        run = str(record.path.parent / "runs" / config.name)
        metrics = run_metrics(MetricsConfig(run, parts=()))
        row = {"loss": loss, "align": metrics["align"], "uniform": metrics["uniform"]}
        for place, layer in {"output": "output", "hidden": LAYERS[size["model"]]}.items():
            scores = accuracies(run, layers=(layer,))
            row |= {f"{place}_{name}": score for name, score in scores.items()}
        record.add(**row)
    _add_correlations(record)
    for kind in ("contrastive", "align"):
        _add_best(record, kind)
    record.print_table("SmallAlexNet, CIFAR-10 at 32 pixels", COLUMNS)


def _weights(contrastive: float, align: float, uniform: float, tau: float = 0.5) -> dict:
    return {
        "contrastive_weight": contrastive,
        "contrastive_tau": tau,
        "align_weight": align,
        "uniform_weight": uniform,
    }


def _add_correlations(record: Record) -> None:
    """Add the rank correlation over the encoders of align + uniform with each accuracy."""
    total = [row["align"] + row["uniform"] for row in record.rows]
    correlations = {}
    for score in COLUMNS[3:]:
        scores = [row[score] for row in record.rows]
        if len(set(scores)) > 1:
            correlations[score] = round(stats.spearmanr(total, scores).statistic, 3)
    record.add(loss="rank correlation with align + uniform", **correlations)


def _add_best(record: Record, kind: str) -> None:
    """Add the encoder of a kind of loss that is best on held-out training images (Table 1)."""
    rows = [row for row in record.rows if row["loss"].startswith(kind)]
    best = max(rows, key=lambda row: row["output_valid"])
    record.add(**(best | {"loss": f"best: {best['loss']}"}))
