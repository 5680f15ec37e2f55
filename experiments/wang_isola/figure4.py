r"""Figure 4 of Wang & Isola: the mean pairwise Gaussian potential measures uniformity.

Claim: the mean potential G_2 of points on the circle agrees with intuition; lower is more uniform.

    python run.py reproduce wang-isola/figure4 --scale laptop --data-dir DATA

laptop: 10,000 points from each of 8 distributions with exact potentials, and the encoders of
        Figure 3; 14 minutes on one CPU core for these encoders.
gpu:    likewise, with the encoders of Figure 3 at that scale.
paper:  likewise.
Result: all 8 potentials agree with the exact values within 3 standard errors, and uniform points
have the least potential.

The paper's distributions are named only in the titles of its plots, so other ones are used here.
"""

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from scipy import special

from experiments.lib.circle import potential_figure
from experiments.lib.records import Rows
from experiments.lib.stats import check
from experiments.wang_isola import figure3
from hypersphere_jax import uniform_loss

SCALES = figure3.SCALES
SETTINGS = figure3.SETTINGS
runs = figure3.runs
T = 2.0
POINTS = 10_000
WAVES = np.arange(1, 80)  # Fourier coefficients of the potential; later ones vanish


class CircleDistribution(NamedTuple):
    """A distribution of angles with known trigonometric moments."""

    sample: Callable[[np.random.Generator, int], np.ndarray]  # (generator, n) -> angles [n]
    moment: Callable[[np.ndarray], np.ndarray]  # integers k >= 0 -> |E exp(i k angle)|


def von_mises_mixture(kappa: float, modes: int = 1) -> CircleDistribution:
    """Return an equal mixture of von Mises distributions with equally spaced modes."""

    def sample(random: np.random.Generator, n: int) -> np.ndarray:
        centers = 2 * np.pi / modes * random.integers(modes, size=n)
        return centers + random.vonmises(0, kappa, n)

    def moment(k: np.ndarray) -> np.ndarray:
        return (k % modes == 0) * special.ive(k, kappa) / special.ive(0, kappa)

    return CircleDistribution(sample, moment)


DISTRIBUTIONS = {
    "uniform": CircleDistribution(
        lambda random, n: random.uniform(-np.pi, np.pi, n), lambda k: np.where(k == 0, 1.0, 0)
    ),
    "three vMF, κ = 10": von_mises_mixture(10.0, modes=3),
    "vMF, κ = 1": von_mises_mixture(1.0),
    "uniform on a half circle": CircleDistribution(
        lambda random, n: random.uniform(-np.pi / 2, np.pi / 2, n), lambda k: np.abs(np.sinc(k / 2))
    ),
    "two vMF, κ = 10": von_mises_mixture(10.0, modes=2),
    "vMF, κ = 10": von_mises_mixture(10.0),
    "vMF, κ = 100": von_mises_mixture(100.0),
    "one point": CircleDistribution(lambda random, n: np.zeros(n), lambda k: np.ones(len(k))),
}


def expected_potential(moment: Callable[[np.ndarray], np.ndarray], t: float = T) -> float:
    r"""Return the mean Gaussian potential of independent pairs on the circle.

    .. math:: E e^{-t |u - v|^2} = e^{-2t} \sum_{k=-\infty}^\infty I_k(2t) |E e^{i k \theta}|^2

    because `|u - v|^2 = 2 - 2 cos(a - b)`, and I_k are the Fourier coefficients of exp(2t cos).
    """
    terms = special.ive(WAVES, 2 * t) * moment(WAVES) ** 2
    return float(special.ive(0, 2 * t) + 2 * terms.sum())


def potential_error(points: np.ndarray) -> float:
    """Return the standard error of the mean potential of points `[n, 2]`, a U-statistic."""
    angles = np.arctan2(points[:, 1], points[:, 0]).astype(np.float64)
    waves = np.exp(1j * WAVES * angles[:, None])
    moments = waves.mean(axis=0)
    per_point = 2 * (waves.conj() @ (special.ive(WAVES, 2 * T) * moments)).real
    mean = expected_potential(lambda k: np.abs(moments))
    squares = expected_potential(lambda k: np.abs(moments), 2 * T)
    # Each point's potential is itself a mean over n pairs. Only variance beyond that counts twice.
    pair_variance = max(0.0, squares - mean**2) / len(angles)
    variance = 4 * max(0.0, per_point.var() - pair_variance) + 2 * pair_variance
    return math.sqrt(variance / len(angles))


def measured_potential(points: np.ndarray) -> float:
    """Return exp(L_uniform) of points `[n, 2]` at t = 2."""
    return math.exp(float(jax.jit(uniform_loss)(np.asarray(points, np.float32), T)))


@functools.cache
def samples() -> dict[str, np.ndarray]:
    """Return points `[n, 2]` of each distribution."""
    random = np.random.default_rng(0)
    points = {}
    for name, distribution in DISTRIBUTIONS.items():
        angles = distribution.sample(random, POINTS)
        points[name] = np.stack((np.cos(angles), np.sin(angles)), axis=1)
    return points


def analyze(rows: Rows) -> Rows:
    """Compare measured potentials with the exact values."""
    table = []
    for name, points in samples().items():
        measured = measured_potential(points)
        exact = expected_potential(DISTRIBUTIONS[name].moment)
        error = potential_error(np.asarray(points, np.float32))
        is_close = abs(measured - exact) < 3 * error + 1e-5
        claim = f"G_2 is exact: {name}"
        table.append(check(claim, is_close, measured, exact=exact, standard_error=error))
    least = min(row["effect"] for row in table)
    table.append(check("uniform points have the least G_2", table[0]["effect"] == least, least))
    return table


def plot(rows: Rows, path: Path) -> None:
    """Draw the samples and the encoders of Figure 3."""
    points = dict(samples())
    for encoder in figure3.features(rows):
        points[encoder["name"]] = encoder["features"]
    panels = []
    for name, features in points.items():
        potential = measured_potential(features)
        panels.append({"name": name, "features": features, "potential": potential})
    potential_figure(panels, path, T)
