"""Proposition 3 of Wang & Isola: the range of the mean Gaussian potential.

Claim: the mean potential lies between exp(-2t) 0F1(; m/2; t^2) and 1. The least value belongs to
the uniform distribution, strictly decreases with the dimension m, and converges to exp(-2t).

    python run.py reproduce wang-isola/proposition3 --scale laptop

Nothing is trained; a few seconds on one CPU core.
Result: supported. The formula equals the integral within 1e-14, it decreases in each of 4,094 steps
of the dimension, and 4,800 random distributions lie inside the range.

A share s of the mass at one point and the rest uniform has the potential least + s^2 (1 - least),
so every value of the range occurs.
"""

import itertools
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from experiments.lib.plots import new_figure, printed
from experiments.lib.records import Rows
from experiments.lib.stats import check
from experiments.lib.sweep import no_runs
from experiments.wang_isola import harmonics
from experiments.wang_isola.potentials import DIMS, T, potential, uniform_potential
from hypersphere_jax.reporting.plots.style import COLORS, save_figure

SCALES = ("laptop", "gpu", "paper")
SETTINGS = ()
runs = no_runs
TS = (0.5, 1.0, 2.0, 4.0)
ATOMS = (2, 8, 64)
MEASURES = 100  # random measures per number of atoms


def mixture_potential(dim: int, share: float, t: float = T) -> float:
    """Return the potential of a point mass of a share, mixed with the uniform distribution."""
    least = uniform_potential(dim, t)
    return least + share**2 * (1 - least)


def random_potentials(random: np.random.Generator, dim: int, t: float) -> np.ndarray:
    """Return the potentials of random weighted points."""
    values = []
    for n, _ in itertools.product(ATOMS, range(MEASURES)):
        points = random.standard_normal((n, dim))
        points /= np.linalg.norm(points, axis=1, keepdims=True)
        weights = random.dirichlet(np.ones(n))
        values.append(weights @ potential(points @ points.T, t) @ weights)
    return np.array(values)


def analyze(rows: Sequence = (), seed: int = 0) -> Rows:
    """Check the least value, its decrease with the dimension, and random distributions."""
    random = np.random.default_rng(seed)
    table = []
    for t, dim in itertools.product(TS, DIMS):
        least = uniform_potential(dim, t)
        integral = harmonics.eigenvalues(partial(potential, t=t), dim, 1)[0]
        error = float(integral - least)
        table.append(check("formula equals the integral", abs(error) < 1e-12, error, t=t, m=dim))
        drawn = random_potentials(random, dim, t)
        is_inside = bool((least < drawn).all() and (drawn < 1).all())
        claim = "random distributions are inside the range; least one"
        table.append(check(claim, is_inside, drawn.min(), t=t, m=dim, least=least))
    for t in TS:
        optima = [uniform_potential(dim, t) for dim in range(2, 4097)]
        claim = "least value decreases with m; excess over exp(-2t) at m = 4096"
        falls = bool((np.diff(optima) < 0).all())
        table.append(check(claim, falls, optima[-1] / math.exp(-2 * t) - 1, t=t))
    return table


@printed
def plot(rows: Rows, path: Path | None):
    """Draw the range taken by mixtures, and the least value over the dimension."""
    figure, ((left, right),) = new_figure(1, 2, 2.6)
    fine = np.linspace(0, 1, 101)
    for dim, color in zip(DIMS, COLORS, strict=False):
        left.plot(fine, mixture_potential(dim, fine), color=color, label=f"m = {dim}")
    left.set(title="mixtures of a point and uniform, t = 2", xlabel="share of mass at one point")
    left.set_ylabel("mean potential")
    left.legend()
    dims = 2 ** np.arange(1, 13)
    for t, color in zip(TS, COLORS, strict=False):
        right.plot(
            dims, [uniform_potential(int(m), t) for m in dims], color=color, label=f"t = {t:g}"
        )
        right.axhline(math.exp(-2 * t), color=color, linestyle="--", linewidth=0.8)
    right.set(title="least value (dashed: limit)", xlabel="dimension m", xscale="log", yscale="log")
    right.legend(ncols=2, loc="lower left")
    return save_figure(figure, path)
