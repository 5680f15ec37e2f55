"""Proposition 3 of Wang & Isola: the range of the mean Gaussian potential.

Claim: the mean potential lies between exp(-2t) 0F1(; m/2; t^2) and 1. The least value belongs to
the uniform distribution, strictly decreases with the dimension m, and converges to exp(-2t).

    python run.py reproduce wang-isola/proposition3 --scale laptop

Nothing is trained; a few seconds on one CPU core.
Result: supported. The formula equals the integral within 1e-14, it decreases in each of 4,094 steps
of the dimension, and 4,800 random distributions lie inside the range.
"""

import itertools
import math
from functools import partial

import numpy as np

from experiments.lib import Rows
from experiments.lib.stats import check
from experiments.wang_isola import harmonics
from experiments.wang_isola.harmonics import DIMS, potential, uniform_potential

SCALES = ("laptop", "gpu", "paper")
TS = (0.5, 1.0, 2.0, 4.0)
ATOMS = (2, 8, 64)
MEASURES = 100  # random measures per number of atoms


def random_potentials(random: np.random.Generator, dim: int, t: float) -> np.ndarray:
    """Return the potentials of random weighted points."""
    values = []
    for n, _ in itertools.product(ATOMS, range(MEASURES)):
        points = random.standard_normal((n, dim))
        points /= np.linalg.norm(points, axis=1, keepdims=True)
        weights = random.dirichlet(np.ones(n))
        values.append(weights @ potential(points @ points.T, t) @ weights)
    return np.array(values)


def analyze(rows: Rows, seed: int = 0) -> Rows:
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
