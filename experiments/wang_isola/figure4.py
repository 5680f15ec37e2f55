"""Figure 4 of Wang & Isola: the mean pairwise Gaussian potential measures uniformity.

Claim: the mean potential G_2 of points on the circle agrees with intuition; lower is more uniform.

    python run.py reproduce wang-isola/figure4 --scale laptop --data-dir DATA

All scales: 10,000 points from each of 8 distributions, and the encoders of Figure 3 and its time.
Result: all 8 potentials agree with the exact values within 3 standard errors, and uniform points
have the least potential. The paper does not define its distributions, so other ones are used here.
"""

import math
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import jax
import numpy as np
from scipy import special

from experiments.lib import Rows
from experiments.lib.stats import check
from experiments.wang_isola import figure3
from experiments.wang_isola.circle import Band, circle_figure
from hypersphere_jax import uniform_loss

SCALES = figure3.SCALES
SETTINGS = figure3.SETTINGS
runs = figure3.runs
T = 2.0
POINTS = 10_000
WAVES = np.arange(1, 80)  # Fourier coefficients of the potential; later ones vanish
# A sampler of POINTS angles, and the moments |E exp(i k angle)| of integers k >= 0.
Distribution = tuple[Callable, Callable]


def von_mises_mixture(kappa: float, modes: int = 1) -> Distribution:
    """Return an equal mixture of von Mises distributions with equally spaced modes."""

    def sample(random: np.random.Generator) -> np.ndarray:
        centers = 2 * np.pi / modes * random.integers(modes, size=POINTS)
        return centers + random.vonmises(0, kappa, POINTS)

    def moment(k: np.ndarray) -> np.ndarray:
        return (k % modes == 0) * special.ive(k, kappa) / special.ive(0, kappa)

    return sample, moment


def uniform_arc(width: float) -> Distribution:
    """Return the uniform distribution of angles on an arc."""
    sample = partial(np.random.Generator.uniform, low=-width / 2, high=width / 2, size=POINTS)
    return sample, lambda k: np.abs(np.sinc(k * width / (2 * np.pi)))


DISTRIBUTIONS = {
    "uniform": uniform_arc(2 * np.pi),
    "three vMF, κ = 10": von_mises_mixture(10.0, modes=3),
    "vMF, κ = 1": von_mises_mixture(1.0),
    "uniform on a half circle": uniform_arc(np.pi),
    "two vMF, κ = 10": von_mises_mixture(10.0, modes=2),
    "vMF, κ = 10": von_mises_mixture(10.0),
    "vMF, κ = 100": von_mises_mixture(100.0),
    "one point": uniform_arc(0.0),
}


@cache
def samples() -> dict[str, np.ndarray]:
    """Return points `[n, 2]` of each distribution."""
    random = np.random.default_rng(0)
    points = {}
    for name, (sample, _) in DISTRIBUTIONS.items():
        angles = sample(random)
        points[name] = np.stack((np.cos(angles), np.sin(angles)), axis=1)
    return points


def measured_potential(points: np.ndarray) -> float:
    """Return exp(L_uniform) of points `[n, 2]` at t = 2."""
    return math.exp(float(jax.jit(uniform_loss)(np.asarray(points, np.float32), T)))


def expected_potential(moment: Callable[[np.ndarray], np.ndarray]) -> float:
    r"""Return the mean Gaussian potential of independent pairs on the circle, at t = 2.

    .. math:: E e^{-t |u - v|^2} = e^{-2t} \sum_{k=-\infty}^\infty I_k(2t) |E e^{i k \theta}|^2

    because `|u - v|^2 = 2 - 2 cos(a - b)`, and I_k are the Fourier coefficients of exp(2t cos).
    """
    terms = special.ive(WAVES, 2 * T) * moment(WAVES) ** 2
    return float(special.ive(0, 2 * T) + 2 * terms.sum())


def potential_error(points: np.ndarray) -> float:
    """Return a standard error of the mean potential of points `[n, 2]`, a U-statistic.

    Its variance has a term of each point's mean potential, and a term of order 1/n^2 of the pairs,
    which is bounded, as potentials are at most 1.
    """
    angles = np.arctan2(points[:, 1], points[:, 0])
    waves = np.exp(1j * WAVES * angles[:, None])
    coefficients = special.ive(WAVES, 2 * T) * waves.mean(axis=0)
    per_point = 2 * (waves.conj() @ coefficients).real
    n = len(angles)
    return math.sqrt(4 * per_point.var() / n + 2 / n**2)


def analyze(rows: Rows) -> Rows:
    """Compare measured potentials with the exact values."""
    table = []
    for name, points in samples().items():
        measured = measured_potential(points)
        exact = expected_potential(DISTRIBUTIONS[name][1])
        error = potential_error(points)
        is_close = abs(measured - exact) < 3 * error + 1e-5
        claim = f"G_2 is exact: {name}"
        table.append(check(claim, is_close, measured, exact=exact, standard_error=error))
    least = min(row["effect"] for row in table)
    table.append(check("uniform points have the least G_2", table[0]["effect"] == least, least))
    return table


def plot(rows: Rows, path: Path) -> None:
    """Draw the samples and the encoders of Figure 3."""
    points = dict(samples())
    for band in figure3.bands(rows, classes=()):
        points[band.name] = band.panels["all classes"]
    panels = [
        (f"{name}\nmean $G_2$ {measured_potential(features):.4f}", features)
        for name, features in points.items()
    ]
    rows_of_panels = [dict(panels[start : start + 4]) for start in range(0, len(panels), 4)]
    circle_figure([Band("", row) for row in rows_of_panels], path)
