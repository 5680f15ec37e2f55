"""The Gaussian potential on the sphere in closed form, for Propositions 1 to 3."""

import math

import numpy as np
from scipy import special

from experiments.wang_isola import harmonics
from hypersphere_jax import theory

T = 2.0
DIMS = (2, 3, 8, 128)
KAPPAS = (0.1, 1.0, 10.0)


def potential(cosines: np.ndarray, t: float = T) -> np.ndarray:
    """Return the Gaussian kernel G_t of two points with a cosine."""
    return np.exp(2 * t * (np.asarray(cosines) - 1))


def exact_eigenvalues(dim: int, degrees: int, t: float = T) -> np.ndarray:
    r"""Return the eigenvalues of G_t.

    .. math:: \lambda_k = e^{-2t} \Gamma(d/2) t^{1 - d/2} I_{k + d/2 - 1}(2t)
    """
    log_scale = math.lgamma(dim / 2) - (dim / 2 - 1) * math.log(t)
    return math.exp(log_scale) * special.ive(np.arange(degrees) + dim / 2 - 1, 2 * t)


def uniform_potential(dim: int, t: float = T) -> float:
    """Return the mean potential of the uniform distribution."""
    return math.exp(theory.uniformity_optimum(dim, t))


def vmf_potential(dim: int, kappa: float, t: float = T) -> float:
    """Return the mean potential of a von Mises-Fisher distribution, a sum over degrees."""
    orders = np.arange(60) + dim / 2 - 1
    moments = special.ive(orders, kappa) / special.ive(orders[0], kappa)
    counts = harmonics.multiplicities(dim, 60)
    return float((exact_eigenvalues(dim, 60, t) * counts * moments**2).sum())


def other_potentials(dim: int) -> dict[str, float]:
    """Return the exact mean potential of distributions that are not uniform."""
    axes = np.array([1, -1] + [0] * (2 * dim - 2))
    known = {
        f"{2 * dim} points ±e_i": float(potential(axes).mean()),
        "two poles": float(potential(np.array([1, -1])).mean()),
        "one point": 1.0,
    }
    if dim > 2:
        known["uniform on the equator"] = uniform_potential(dim - 1)
    for kappa in KAPPAS:
        known[f"vMF, κ = {kappa:g}"] = vmf_potential(dim, kappa)
    return known
