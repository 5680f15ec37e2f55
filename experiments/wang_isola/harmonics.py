r"""Kernels of the cosine on the sphere in R^d, by the degree of spherical harmonics.

A kernel K acts on a spherical harmonic h of degree k as multiplication by its eigenvalue (Funk and
Hecke):

.. math:: \int K(u \cdot v) h(v) d\sigma(v) = \lambda_k h(u), \quad
          \lambda_k = \int K(s) P_k(s) dw(s)

Sigma is the uniform distribution, w the distribution of one coordinate under it, and P_k the
Gegenbauer polynomial of d dimensions with P_k(1) = 1. The energy of a density 1 + h of degree
k >= 1 is `lambda_0 + lambda_k mean(h^2)`. Sigma is a minimizer only if no eigenvalue of degree 1 or
more is negative, and the unique minimizer only if all are positive.
"""

import math
from collections.abc import Callable

import numpy as np
from scipy import special

from hypersphere_jax import theory

Kernel = Callable[[np.ndarray], np.ndarray]  # a function of the cosine of two points
T = 2.0
DIMS = (2, 3, 8, 128)
KAPPAS = (0.1, 1.0, 10.0)
NODES = 200  # the quadrature is exact for polynomials of degree 399
ROUNDING = 1e-12  # relative error of an integral against a polynomial of mean square 1


def polynomials(cosines: np.ndarray, dim: int, degrees: int) -> np.ndarray:
    """Return Gegenbauer polynomials of dim >= 2 dimensions, P_k(1) = 1, `[degrees, ...]`."""
    values = [np.ones_like(cosines), cosines]
    for k in range(1, degrees - 1):
        rising = (2 * k + dim - 2) * cosines * values[k] - k * values[k - 1]
        values.append(rising / (k + dim - 2))
    return np.stack(values[:degrees])


def multiplicities(dim: int, degrees: int) -> np.ndarray:
    """Return the number of independent harmonics per degree, `[degrees]`."""
    k = np.arange(degrees)
    counts = special.binom(k + dim - 1, dim - 1)
    counts[2:] -= special.binom(k[2:] + dim - 3, dim - 1)
    return counts


def eigenvalues(kernel: Kernel, dim: int, degrees: int) -> np.ndarray:
    """Return the eigenvalues of a smooth kernel, `[degrees]`, by Gauss-Gegenbauer quadrature."""
    if dim == 2:  # Chebyshev's nodes have equal weights
        cosines = np.cos((np.arange(NODES) + 0.5) * np.pi / NODES)
        weights = np.ones(NODES)
    else:
        cosines, weights = special.roots_jacobi(NODES, (dim - 3) / 2, (dim - 3) / 2)
    return polynomials(cosines, dim, degrees) @ (kernel(cosines) * weights) / weights.sum()


def first_negative(kernel: Kernel, dim: int) -> tuple[int, float] | None:
    """Return the first of 40 degrees with a negative eigenvalue, relative to lambda_0."""
    values = eigenvalues(kernel, dim, 40)
    sizes = values * np.sqrt(multiplicities(dim, 40)) / values[0]
    negative = np.flatnonzero(sizes < -ROUNDING)
    if not len(negative):
        return None
    return int(negative[0]), float(values[negative[0]] / values[0])


def largest_decrease(kernel: Kernel, dim: int) -> float:
    """Return a bound on how far an energy can be below lambda_0, relative to it.

    The mean of P_k over the pairs of any measure is between 0 and 1; 150 degrees are summed.
    """
    sums = eigenvalues(kernel, dim, 150) * multiplicities(dim, 150)
    return float(-sums[sums < 0].sum() / sums[0])


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
    counts = multiplicities(dim, 60)
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
