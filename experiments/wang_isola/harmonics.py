r"""Kernels of the cosine on the sphere in R^d, and measures on it, by degrees of harmonics.

A kernel K acts on a spherical harmonic h of degree k as a number, its eigenvalue (Funk and Hecke):

.. math:: \int K(u \cdot v) h(v) d\sigma(v) = \lambda_k h(u), \quad
          \lambda_k = \int K(s) P_k(s) dw(s)

with the uniform distribution sigma, the distribution w of a coordinate under it, and the
Gegenbauer polynomial P_k of d dimensions with P_k(1) = 1. So the energy of a density 1 + h, h of
degree k >= 1, is `lambda_0 + lambda_k mean(h^2)`: sigma is a minimizer only if no eigenvalue of
degree 1 or more is negative, and the only one only if all are positive.
"""

from collections.abc import Callable

import numpy as np
from scipy import special

Kernel = Callable[[np.ndarray], np.ndarray]  # of the cosine of two points
NODES = 200  # of the quadrature: exact for polynomials of degree 399
ROUNDING = 1e-12  # of an integral against a polynomial of mean square 1, beside that of the kernel


def polynomials(cosines: np.ndarray, dim: int, degrees: int) -> np.ndarray:
    """Gegenbauer polynomials of dim >= 2 dimensions, P_k(1) = 1, `[degrees, ...]` from k = 0."""
    values = [np.ones_like(cosines), cosines]
    for k in range(1, degrees - 1):
        rising = (2 * k + dim - 2) * cosines * values[k] - k * values[k - 1]
        values.append(rising / (k + dim - 2))
    return np.stack(values[:degrees])


def multiplicities(dim: int, degrees: int) -> np.ndarray:
    """How many harmonics of each degree are independent, `[degrees]`: 1 / mean(P_k^2)."""
    k = np.arange(degrees)
    binomials = special.binom(k + dim - 1, dim - 1)
    binomials[2:] -= special.binom(k[2:] + dim - 3, dim - 1)
    return binomials


def eigenvalues(kernel: Kernel, dim: int, degrees: int, nodes: int = NODES) -> np.ndarray:
    """Of a smooth kernel, `[degrees]` from k = 0, by Gauss-Gegenbauer quadrature."""
    if dim == 2:  # Chebyshev's nodes, of equal weights
        cosines, weights = np.cos((np.arange(nodes) + 0.5) * np.pi / nodes), np.ones(nodes)
    else:
        cosines, weights = special.roots_jacobi(nodes, (dim - 3) / 2, (dim - 3) / 2)
    return polynomials(cosines, dim, degrees) @ (kernel(cosines) * weights) / weights.sum()


def first_negative(kernel: Kernel, dim: int, degrees: int = 40) -> tuple[int, float] | None:
    """The first degree of a negative eigenvalue, and that eigenvalue over lambda_0 > 0."""
    values = eigenvalues(kernel, dim, degrees)
    sizes = values * np.sqrt(multiplicities(dim, degrees)) / values[0]
    below = np.flatnonzero(sizes < -ROUNDING)
    return (int(below[0]), float(values[below[0]] / values[0])) if len(below) else None


def most_below(kernel: Kernel, dim: int, degrees: int = 150) -> float:
    """How far below lambda_0 > 0 an energy can lie at most, as a part of it.

    For any measure, the mean of P_k over its pairs lies between 0 and 1.
    """
    sums = eigenvalues(kernel, dim, degrees) * multiplicities(dim, degrees)
    return float(-sums[sums < 0].sum() / sums[0])
