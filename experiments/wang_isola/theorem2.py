"""Theorem 2 of Wang & Isola: the contrastive loss with a single negative.

Claim: if perfectly aligned and uniform encoders exist, they minimize the contrastive loss at M = 1.

    python run.py reproduce wang-isola/theorem2 --scale laptop

Nothing is trained; a few seconds on one CPU core.
Result: not supported; the theorem is false as stated, and nearly true. With data uniform on the
circle and equal positives, an encoder that rounds to the nearest corner of a regular polygon has a
loss up to 0.9% below the aligned and uniform one.

The loss of aligned features is the mean of log(1 + exp((s - 1) / tau)) over the cosines s of pairs.
Where an eigenvalue of this kernel is negative, the density 1 + h of that degree has a lower loss
than the uniform one. The error in the proof is described in docs/results.md.
"""

import math
from functools import partial
from pathlib import Path

import numpy as np

from experiments.lib import Rows, plots
from experiments.lib.stats import check
from experiments.wang_isola import harmonics

SCALES = ("laptop", "gpu", "paper")
TAU = 0.5
TAUS = (0.1, 0.5, 1.0)
DIMS = (2, 3, 8, 128)
CORNERS = range(2, 17)


def pair_loss(cosines: np.ndarray, tau: float, positive: float = 1.0) -> np.ndarray:
    """Return the loss with one negative: `log(1 + exp((negative's cosine - positive's) / tau))`."""
    return np.logaddexp(0, (cosines - positive) / tau)


def uniform_loss_value(dim: int, tau: float, positive: float = 1.0) -> float:
    """Return the loss of uniform features by quadrature over the negative's angle."""
    angles = (np.arange(20_000) + 0.5) * np.pi / 20_000
    weights = np.sin(angles) ** (dim - 2)
    values = pair_loss(np.cos(angles), tau, positive)
    return float((weights * values).sum() / weights.sum())


def polygon_loss(n: int, tau: float) -> float:
    """Return the loss of aligned features at the corners of a regular polygon."""
    return float(pair_loss(np.cos(2 * np.pi * np.arange(n) / n), tau).mean())


def analyze(rows: Rows) -> Rows:
    """Compare features that are not uniform with aligned and uniform ones."""
    table = []
    for tau in TAUS:
        constant = uniform_loss_value(2, tau)
        corners = 1 + int(np.argmin([polygon_loss(n, tau) for n in range(1, 80)]))
        gain = 100 * (1 - polygon_loss(corners, tau) / constant)
        claim = "no polygon has a lower loss than uniform features; gain of the best one (%)"
        bound = 100 * harmonics.largest_decrease(partial(pair_loss, tau=tau), 2)
        table.append(check(claim, gain <= 0, gain, d=2, tau=tau, corners=corners, bound=bound))
    for dim in DIMS:
        for tau in TAUS:
            negative = harmonics.first_negative(partial(pair_loss, tau=tau), dim)
            degree, size = negative or (0, 0.0)
            claim = "no eigenvalue is negative; the first negative one over lambda_0"
            table.append(check(claim, negative is None, size, d=dim, tau=tau, degree=degree))
    for degrees in (10, 30, 90):
        excess = uniform_loss_value(2, TAU, math.cos(math.radians(degrees)))
        excess -= uniform_loss_value(2, TAU)
        claim = f"aligned positives are better than positives at {degrees}°; excess"
        table.append(check(claim, excess > 0, excess, d=2, tau=TAU))
    return table


def plot(rows: Rows, path: Path) -> None:
    """Draw losses of regular polygons above the loss that the theorem calls the least."""
    lines = {}
    for tau in TAUS:
        constant = uniform_loss_value(2, tau)
        excess = [100 * (polygon_loss(n, tau) / constant - 1) for n in CORNERS]
        lines[f"τ = {tau:g}"] = plots.line(CORNERS, excess)
    labels = {"xlabel": "number of corners", "ylabel": "loss above uniform features (%)"}
    plots.curves({"": lines}, path, levels={"uniform features": 0.0}, ylim=(-1.5, 3), **labels)
