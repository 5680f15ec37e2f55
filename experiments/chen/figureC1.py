"""Figure C.1 of Chen, Luo & Li: the spreading term saturates with a few bits.

Claim: images that carry k random bits have at most 2^k different outputs, and yet the loss is soon
as low as it gets, for LogSumExp (the second term of NT-Xent) and for SWD.

    python run.py reproduce chen/figureC1 --scale laptop

laptop: 3 losses x 2 batches x 5 numbers of bits x 5 seeds, 5,000 images of 8 pixels; 24 minutes on
        one CPU core.
gpu:    3 x 2 x 6 settings x 3 seeds, ResNet-18, 10 epochs; 40 minutes on one H100 (estimated).
paper:  ResNet-18, 400 epochs. Its temperatures, batches and bits are in its picture only.
Result (laptop): supported for LogSumExp at tau 0.5 and for SWD; not supported at tau 0.1.

A loss is saturated by 8 bits if they gain more than 95% of the gain of the most bits. Tests are
over seeds; no test data take part.
"""

import functools
import itertools
import math
from pathlib import Path

import jax
import numpy as np

from experiments.chen import settings
from experiments.chen.settings import SWD
from experiments.lib import Evaluation, Rows, Run, plots, records, stats
from hypersphere_jax import theory
from hypersphere_jax.configs import ObjectiveConfig
from hypersphere_jax.losses import prior_matching_loss

SCALES = ("laptop", "gpu", "paper")
SETTINGS = ("name", "batch", "bits")
LOSSES = {
    "LogSumExp, tau 0.1": ObjectiveConfig(loss="logsumexp", loss_tau=0.1),
    "LogSumExp, tau 0.5": ObjectiveConfig(loss="logsumexp", loss_tau=0.5),
    SWD: ObjectiveConfig(loss="prior_matching", prior="hypersphere", loss_factor=settings.FACTOR),
}
BITS = {
    "laptop": (2, 4, 6, 8, 16),
    "gpu": (2, 4, 6, 8, 12, 16),
    "paper": (1, 2, 3, 4, 6, 8, 10, 12, 14, 16),
}
BATCHES = {"laptop": (64, 256), "gpu": (128, 512), "paper": (128, 512, 2048)}
SEEDS = {"laptop": range(5), "gpu": range(3), "paper": range(1)}
EPOCHS = {64: 3, 256: 6}  # at laptop scale: 234 and 114 steps
FEW = 8
SATURATED = 95.0  # percent
DRAWS = 20  # samples of uniform points


def runs(scale: str, rows: Rows) -> list[Run]:
    """Return runs that minimize only the spreading term, on bits that differ between seeds."""
    cells = itertools.product(LOSSES.items(), BATCHES[scale], BITS[scale], SEEDS[scale])
    planned = []
    for (label, objective), batch, bits, seed in cells:
        name = f"{settings.slug(label)}_batch{batch}_bits{bits}"
        run = settings.loss_run(settings.SHORT[scale], name, objective, seed, name=label, bits=bits)
        run = run.replace(data="random_bits", recipe="none", bits=bits, subset_seed=seed)
        run = run.replace(batch_size=batch)
        if scale == "laptop":
            epochs = EPOCHS[batch]
            run = run.replace(image_size=8, fraction=0.1, epochs=epochs, warmup_epochs=epochs / 10)
        planned.append(Run(run.config, run.labels, Evaluation(only_loss=True)))
    return planned


def gains(rows: Rows) -> dict[tuple[str, int], dict[int, np.ndarray]]:
    """Return the gain of each seed by bits, by loss and batch.

    The gain is 0 for equal outputs and 1 for uniform points.
    """
    found: dict[tuple[str, int], dict[int, np.ndarray]] = {}
    for (name, batch, bits), group in records.group_by(rows, "name", "batch", "bits").items():
        worst, best = reference(name, batch, group[0]["dim"])
        losses = records.column(group, "final_loss") / LOSSES[name].loss_factor
        found.setdefault((name, batch), {})[bits] = (worst - losses) / (worst - best)
    return found


@functools.cache
def reference(name: str, n: int, d: int) -> tuple[float, float]:
    """Return the loss of n equal outputs in d dimensions, and of n random uniform points.

    LogSumExp of n points is log(n - 1) plus the log of the mean of `exp(z . z' / tau)`, which is
    known for uniform points. Its bias for few points is neglected.
    """
    if name == SWD:
        keys = jax.random.split(jax.random.key(0), (DRAWS, 2))
        points = [theory.uniform_sphere(pair[1], n, d) for pair in keys]
        losses = [prior_matching_loss(pair[0], x) for pair, x in zip(keys, points, strict=True)]
        return 2 / d, float(np.mean(losses))
    kappa = 1 / LOSSES[name].loss_tau
    uniform = theory.vmf_log_normalizer(d, kappa) - theory.sphere_log_area(d)
    return kappa + math.log(n - 1), uniform + math.log(n - 1)


def analyze(rows: Rows) -> Rows:
    """Test whether 8 bits gain more than 95% of the gain of the most bits."""
    comparisons = []
    for (name, batch), by_bits in gains(rows).items():
        most = max(by_bits)
        estimates = {"final loss": share_gained(by_bits[FEW], by_bits[most])}
        claim = f"{FEW} bits gain more than {SATURATED:g}% of {most} bits (%)"
        labels = {"loss": name, "batch": batch}
        comparisons.append(stats.Comparison(claim, estimates, level=SATURATED, labels=labels))
    return stats.judge(comparisons)


def share_gained(few: np.ndarray, most: np.ndarray) -> stats.Estimate:
    """Return the gain of few bits in percent of the most bits' gain.

    The interval is by the delta method with Welch's degrees of freedom; p tests the share against
    `SATURATED`.
    """
    ratio = float(few.mean() / most.mean())
    scale = 100 / float(most.mean())
    spread = stats.seed_difference(few * scale, most * (scale * ratio))
    test = stats.seed_difference(few * scale, most * (scale * SATURATED / 100))
    return stats.Estimate(100 * ratio, 100 * ratio + spread.low, 100 * ratio + spread.high, test.p)


def plot(rows: Rows, path: Path) -> None:
    """Draw the gain over bits."""
    panels: dict[str, dict] = {}
    for (name, batch), by_bits in gains(rows).items():
        points = [
            plots.Point(bits, *stats.seed_difference(by_bits[bits])[:3]) for bits in sorted(by_bits)
        ]
        panels.setdefault(name.partition(" (")[0], {})[f"batch {batch}"] = points
    labels = {"xlabel": "bits in the images", "ylabel": "gain"}
    plots.curves(panels, path, levels={"uniform outputs": 1.0}, **labels)
