"""Two results compared: their difference, with its 95% interval."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

Z = 1.959963984540054  # the normal distribution's 97.5% quantile


class Difference(NamedTuple):
    """A difference and the ends of its 95% interval."""

    value: float
    low: float
    high: float


def wilson(share: float, n: int) -> tuple[float, float]:
    """Wilson's 95% interval of a share, from 0 to 1, of n samples."""
    middle = (share + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * math.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def newcombe(top1: float, n: int, other: float, other_n: int) -> Difference:
    """The difference of two accuracies in percent, by Newcombe's hybrid score interval.

    Newcombe (1998), method 10, of two independent sets of samples. Where both are of the same
    images, as of two encoders on one test split, accuracies mostly vary together, and the interval
    is too wide rather than too narrow: see `paired`.

    Args:
      top1: of n samples.
      n: samples.
      other: the accuracy that is subtracted, of `other_n` samples.
      other_n: samples.
    """
    a, b = top1 / 100, other / 100
    (a_low, a_high), (b_low, b_high) = wilson(a, n), wilson(b, other_n)
    low = a - b - math.hypot(a - a_low, b_high - b)
    high = a - b + math.hypot(a_high - a, b - b_low)
    return Difference(100 * (a - b), 100 * low, 100 * high)


def paired(right: np.ndarray, other: np.ndarray) -> Difference:
    """The difference of two accuracies on the same samples, in percent, by matched pairs.

    Agresti & Min (2005), the adjusted Wald interval: half a sample is added to each cell of the 2 x
    2 table. Where the first alone is right about b of n samples, and the other alone about c, the
    difference is (b - c) / n and its interval, with m = n + 2, (b - c) / m +- 1.96
    sqrt(b + c + 1 - (b - c)^2 / m) / m.

    Args:
      right: booleans `[n]`, whether each sample is classified right.
      other: likewise, by the classifier that is subtracted.
    """
    b, c, m = int(np.sum(right & ~other)), int(np.sum(other & ~right)), len(right) + 2
    middle, half = (b - c) / m, Z * math.sqrt(b + c + 1 - (b - c) ** 2 / m) / m
    low, high = max(-1.0, middle - half), min(1.0, middle + half)
    return Difference(100 * (b - c) / len(right), 100 * low, 100 * high)


def of_errors(value: float, error: float, other: float, other_error: float) -> Difference:
    """The difference of two values with standard errors, as if these were independent."""
    half = Z * math.hypot(error, other_error)
    return Difference(value - other, value - other - half, value - other + half)


def welch(values: Sequence[float], others: Sequence[float]) -> Difference:
    """The difference of two means, over two or more runs each, by Welch's t interval."""
    parts = [(float(np.var(x, ddof=1)) / len(x), len(x) - 1) for x in (values, others)]
    return students_t(float(np.mean(values) - np.mean(others)), parts)[0]


def students_t(value: float, parts: Sequence[tuple[float, float]]) -> tuple[Difference, float]:
    """A value with its 95% interval, and the two-sided p-value of its being 0.

    Args:
      value: the estimate.
      parts: of its variance, each with its degrees of freedom; those of the sum are
        Satterthwaite's (1946).
    """
    variance = sum(part for part, _ in parts)
    if variance == 0:  # all that was drawn gave the same
        return Difference(value, value, value), float(value == 0)
    freedom = variance**2 / sum(part**2 / df for part, df in parts)
    error = math.sqrt(variance)
    half = float(special.stdtrit(freedom, 0.975)) * error
    p = 2 * float(special.stdtr(freedom, -abs(value) / error))
    return Difference(value, value - half, value + half), p
