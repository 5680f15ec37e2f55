"""GPU checks that train encoders on CIFAR-10: `cifar10` and `wang_isola`."""

import dataclasses
from typing import Any

from scipy import stats

from benchmarks.gpu import runs
from benchmarks.gpu.record import Record
from hypersphere_jax.configs import MetricsConfig, PretrainConfig
from hypersphere_jax.evaluation.measure_runs import run_metrics
from hypersphere_jax.training.vmapped import train_vmapped

MOCO: dict[str, Any] = {**runs.RECIPE, **runs.CONTRASTIVE, "head": "moco_v2"}
MOCO |= {"contrastive_tau": 0.1, "ema_decay": 0.99}
# Options of the encoders of `wang_isola`: the contrastive loss at several temperatures, and weights
# of alignment and uniformity.
CONTRASTIVE = {
    f"contrastive, tau {tau:g}": runs.CONTRASTIVE | {"contrastive_tau": tau}
    for tau in (0.07, 0.1, 0.15, 0.2, 0.35, 0.5, 1.0)
}
WEIGHTS = [(1, 1 / ratio) for ratio in (256, 16, 4, 2, 1)]
WEIGHTS += [(1 / ratio, 1) for ratio in (2, 4, 16, 256)]
WEIGHTED = {
    f"align {align:g}, uniform {uniform:g}": {"align_weight": align, "uniform_weight": uniform}
    for align, uniform in WEIGHTS
}
ENCODER_SCORES = ("output_knn5", "output_linear", "fc7_knn5", "fc7_linear")


@dataclasses.dataclass
class Cifar10(runs.TrainingCheck):
    """Train ResNet-18 on CIFAR-10 with SimCLR, then with MoCo in the remaining time."""

    epochs: int = 200

    def run(self) -> None:
        record = Record("cifar10", self)
        moco = MOCO | {"queue_size": 64 if self.toy else 4096}
        for method, options in {"SimCLR": runs.SIMCLR, "MoCo": moco}.items():
            labels = {"method": method}
            config = self.config(record, method.lower(), **options)
            seconds = record.seconds_left - runs.EVALUATION_S
            record.measure(labels, runs.train, record, config, seconds, labels)
        columns = ("method", "epochs", "images_per_s", "minutes", *runs.SCORES)
        record.finish("CIFAR-10, ResNet-18", *columns)


@dataclasses.dataclass
class WangIsola(runs.TrainingCheck):
    """Train 16 encoders of Wang & Isola in two programs and relate both metrics to accuracy.

    Seven encoders with the contrastive loss at other temperatures, then nine with other weights of
    alignment and uniformity (Figure 7, Table 1): SmallAlexNet on CIFAR-10 at 32 pixels.
    """

    minutes: float = 9
    model: str = "small_alexnet"
    epochs: int = 8
    batch_size: int = 256

    def run(self) -> None:
        record = Record("wang_isola", self)
        groups = [CONTRASTIVE, WEIGHTED]
        for number, encoders in enumerate(groups):
            if self.toy:
                encoders = dict(list(encoders.items())[:2])
            configs = {}
            for loss, options in encoders.items():
                name = f"encoder-{number}-{len(configs)}"
                configs[loss] = self.config(record, name, recipe="cifar10", dim=128, **options)
            # Half of the remaining time for the first group, two thirds of that for training.
            with runs.stopped_after(record.seconds_left / (len(groups) - number) * 2 / 3):
                train_vmapped(list(configs.values()))
            for loss, config in configs.items():
                record.measure({"loss": loss}, evaluate, config)
        measured = [row for row in record.rows if "align" in row]
        record.add(loss="rank correlation with align + uniform", **correlations(measured))
        for kind in ("contrastive", "align"):
            rows = [row for row in measured if row["loss"].startswith(kind)]
            if rows:  # Table 1 chooses on held-out training images
                best = max(rows, key=lambda row: row["output_valid"])
                record.add(**(best | {"loss": f"best: {best['loss']}"}))
        columns = ("loss", "align", "uniform", *ENCODER_SCORES)
        record.finish("SmallAlexNet, CIFAR-10 at 32 pixels", *columns)


def evaluate(config: PretrainConfig) -> dict[str, Any]:
    """Return epochs, both metrics, and accuracies of output and hidden layer."""
    run = f"{config.runs_dir}/{config.name}"
    metrics = run_metrics(MetricsConfig(run, parts=()))
    row = {"epochs": runs.epochs_done(config)}
    row |= {name: metrics[name] for name in ("align", "uniform")}
    for name, layer in (("output", "output"), ("fc7", runs.LAYERS[config.model])):
        scores = runs.accuracies(run, layers=(layer,))
        row |= {f"{name}_{score}": value for score, value in scores.items()}
    return row


def correlations(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return rank correlations of the accuracies with align + uniform."""
    total = [row["align"] + row["uniform"] for row in rows]
    found = {}
    for name in ENCODER_SCORES:
        scores = [row[name] for row in rows]
        if len(set(scores)) > 1:
            found[name] = round(stats.spearmanr(total, scores).statistic, 3)
    return found
