"""Proposition 2 of Wang & Isola: minimizing point sets converge to the uniform distribution.

Claim: for each N, take N points of the least mean Gaussian potential. As N grows, their empirical
measure converges weak* to the uniform distribution.

    python run.py reproduce wang-isola/proposition2 --scale laptop

Nothing is trained; a minute on one CPU core.
Result: supported as far as finitely many points can. The distance to the uniform distribution falls
at each step from N = 4 to 256, and 10 known minimizers are found within 1e-9: regular polygons on
the circle and regular solids (Cohn & Kumar, 2007). A point set is the best of three searches.
"""

import math

import numpy as np
from scipy import optimize
from threadpoolctl import threadpool_limits

from experiments.lib import Rows
from experiments.lib.stats import check
from experiments.wang_isola.harmonics import T, potential, uniform_potential

SCALES = ("laptop", "gpu", "paper")
DIMS = (2, 3)
NUMBERS = (4, 6, 12, 32, 64, 128, 256)
STARTS = 3
MEAN_DISTANCES = {2: 4 / math.pi, 3: 4 / 3}  # mean distance of two uniform points
# Cosines of a point of a universally optimal set with all of its points.
SOLIDS = {
    4: np.array([1] + [-1 / 3] * 3),
    6: np.array([1, -1] + [0] * 4),
    12: np.array([1, -1] + [5**-0.5, -(5**-0.5)] * 5),
}


def minimized(start: np.ndarray) -> np.ndarray:
    """Return points `[n, d]` of the least mean potential that L-BFGS finds from a start."""
    shape = start.shape

    def value_and_gradient(flat: np.ndarray) -> tuple[float, np.ndarray]:
        lengths = np.linalg.norm(flat.reshape(shape), axis=1, keepdims=True)
        points = flat.reshape(shape) / lengths
        kernel = potential(points @ points.T)
        gradient = kernel @ points
        gradient -= (gradient * points).sum(axis=1, keepdims=True) * points
        # Scaled by n, since one point changes the mean over pairs less the more points there are.
        return kernel.mean() * shape[0], (4 * T / shape[0] * gradient / lengths).ravel()

    options = {"maxiter": 1000, "maxfun": 1500, "ftol": 0.0, "gtol": 1e-12}
    with threadpool_limits(1):  # threads slow down products this small
        result = optimize.minimize(
            value_and_gradient, start.ravel(), jac=True, method="L-BFGS-B", options=options
        )
    points = result.x.reshape(shape)
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def distance(cosines: np.ndarray, dim: int) -> float:
    """Return the energy distance of points to the uniform distribution, from all cosines.

    It is `sqrt(E |u - v| - mean_ij |x_i - x_j|)` for uniform u and v, proportional to the L2
    discrepancy over spherical caps (Stolarsky). It goes to 0 exactly for weak* convergence.
    """
    mean = np.sqrt(np.maximum(0, 2 - 2 * np.asarray(cosines))).mean()
    return math.sqrt(max(0.0, MEAN_DISTANCES[dim] - mean))


def analyze(rows: Rows, numbers: tuple[int, ...] = NUMBERS) -> Rows:
    """Measure distances to the uniform distribution, and compare with known minimizers."""
    random = np.random.default_rng(0)
    table = []
    for dim in DIMS:
        previous = math.inf
        for n in numbers:
            sets = [minimized(random.standard_normal((n, dim))) for _ in range(STARTS)]
            products = [points @ points.T for points in sets]
            cosines = min(products, key=lambda cosines: potential(cosines).mean())
            mean = float(potential(cosines).mean())
            value = distance(cosines, dim)
            claim = "distance to uniform falls with N"
            excess = mean - uniform_potential(dim)
            table.append(check(claim, value < previous, value, d=dim, N=n, G2_above_uniform=excess))
            previous = value
            known = SOLIDS.get(n) if dim == 3 else np.cos(2 * np.pi * np.arange(n) / n)
            if known is not None:
                error = mean - float(potential(known).mean())
                claim = "potential equals the known minimum"
                table.append(check(claim, abs(error) < 1e-8, error, d=dim, N=n))
    return table
