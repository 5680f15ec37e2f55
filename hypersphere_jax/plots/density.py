"""Densities of samples by kernels, on the circle and in the plane."""

from collections.abc import Iterator

import numpy as np

CHUNK = 4096  # samples a kernel matrix holds at once


def vmf_kde(angles: np.ndarray, grid: np.ndarray, kappa: float) -> np.ndarray:
    """Density of angles on the circle, by a von Mises-Fisher kernel around each.

    p(g) = 1/n sum_i exp(kappa cos(g - angle_i)) / (2 pi I_0(kappa)), exact at any kappa: numerator
    and Bessel function are both scaled by exp(-kappa), so that neither overflows.

    Args:
      angles: [n], in radians.
      grid: [g], in radians, where the density is wanted.
      kappa: concentration, at least 0; the kernel's width is about 1 / sqrt(kappa) radians.

    Returns:
      [g], per radian; integrates to one over the circle.

    Raises:
      ValueError: if there are no angles, or kappa is negative.
    """
    if len(angles) == 0 or kappa < 0:
        raise ValueError(f"need angles and kappa >= 0, got {len(angles)} angles, kappa={kappa}")

    def kernel(difference):  # 1 - cos as a square of the sine: no cancellation at small differences
        return np.exp(-2 * kappa * np.sin(difference / 2) ** 2)

    # I_0(kappa) exp(-kappa) is the kernel's mean over the circle. Equal steps give the mean of a
    # periodic function to rounding error once they are finer than the kernel by some margin.
    scaled_bessel = kernel(np.linspace(0, 2 * np.pi, 64 + int(10 * kappa**0.5), False)).mean()
    total = sum(kernel(grid[:, None] - chunk).sum(axis=1) for chunk in _chunks(angles))
    return total / (len(angles) * 2 * np.pi * scaled_bessel)


def gaussian_kde_2d(points: np.ndarray, grid: np.ndarray, bandwidth: float) -> np.ndarray:
    """Density of points of the plane, by an isotropic Gaussian kernel around each.

    Args:
      points: [n, 2].
      grid: [g], the coordinates at which both axes are sampled.
      bandwidth: the kernel's standard deviation, above 0.

    Returns:
      [g, g], per unit area, at (x, y) = (grid[column], grid[row]).

    Raises:
      ValueError: if there are no points, or the bandwidth is not positive.
    """
    if len(points) == 0 or bandwidth <= 0:
        raise ValueError(
            f"need points and bandwidth > 0, got {len(points)} points, bandwidth={bandwidth}"
        )

    def kernel(values):  # [g, chunk]
        return np.exp(-(((grid[:, None] - values) / bandwidth) ** 2) / 2)

    # The kernel is a product over x and y, so the sum over points is a matrix product.
    total = sum(kernel(chunk[:, 1]) @ kernel(chunk[:, 0]).T for chunk in _chunks(points))
    return total / (len(points) * 2 * np.pi * bandwidth**2)


def _chunks(samples: np.ndarray) -> Iterator[np.ndarray]:
    return (samples[start : start + CHUNK] for start in range(0, len(samples), CHUNK))
