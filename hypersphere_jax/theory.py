"""Closed forms that losses and metrics are compared with. NumPy and the standard library only."""

import math

import numpy as np


def uniformity_optimum(d: int, t: float = 2.0) -> float:
    r"""The least possible uniformity in d dimensions, that of the uniform distribution.

    .. math:: -2t + \log {}_0F_1(; d/2; t^2)

    (Wang & Isola, Corollary 1 with points on the sphere in R^d.) A finite sample can lie lower
    with estimator (9), which leaves out the pairs of a point with itself.

    Args:
      d: dimension of the space that holds the sphere, >= 1.
      t: scale of the Gaussian potential, > 0.

    Returns:
      The optimum, in the units of `uniform_loss`.

    Raises:
      ValueError: for d < 1 or t that is not positive.

    >>> round(uniformity_optimum(32, 2.0), 4)
    -3.7518
    """
    if d < 1 or not t > 0:
        raise ValueError(f"uniformity_optimum needs d >= 1 and t > 0, got d={d}, t={t}")
    # 0F1(; b; z) = sum_k z^k / ((b)_k k!), all terms positive: summed in the log domain it neither
    # overflows nor cancels. The terms peak before k = t and have long died at 4t + 50.
    b, log_z = d / 2, 2 * math.log(t)
    k = np.arange(int(4 * t) + 50)
    log_terms = np.cumsum(
        np.concatenate([[0.0], log_z - np.log(b + k[:-1]) - np.log(k[1:].astype(float))])
    )
    peak = log_terms.max()
    return -2 * t + float(peak + np.log(np.sum(np.exp(log_terms - peak))))
