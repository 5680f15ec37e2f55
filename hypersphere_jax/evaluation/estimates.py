"""Estimates with standard errors, and 95% intervals of differences between two results."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special

Z = 1.959963984540054  # 97.5% quantile of the normal distribution


class Estimate(NamedTuple):
    """A value and its standard error due to the sample size; NaN where it is unknown."""

    value: float
    standard_error: float


UNKNOWN_ESTIMATE = Estimate(math.nan, math.nan)


def entries(name: str, estimate: Estimate) -> dict[str, float]:
    """Return the entries `name` and `name_standard_error` of a result."""
    return {name: estimate.value, f"{name}_standard_error": estimate.standard_error}


def mean_estimate(values: np.ndarray) -> Estimate:
    """Return the mean of independent values `[n]` with its standard error."""
    error = math.nan
    if len(values) > 1:
        error = float(values.std(ddof=1)) / math.sqrt(len(values))
    return Estimate(float(values.mean()), error)


def jsonable(value: Any) -> Any:
    """Return a result that JSON can contain: arrays as lists, NaN as None."""
    if isinstance(value, dict):
        return {key: jsonable(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list):
        return [jsonable(item) for item in value]
    is_nan = value != value
    return None if is_nan else value


class Difference(NamedTuple):
    """A difference and the ends of its 95% interval."""

    value: float
    low: float
    high: float


def paired(correct: np.ndarray, other_correct: np.ndarray) -> Difference:
    """Return the difference of two accuracies, in percent, on the same samples.

    The interval is the adjusted Wald interval for matched pairs (Agresti & Min, 2005), which adds
    half a sample to each cell of the 2 x 2 table. If only the first classifier is correct on b of n
    samples and only the second on c, the difference is (b - c) / n and its interval, with
    m = n + 2, is (b - c) / m +- 1.96 sqrt(b + c + 1 - (b - c)^2 / m) / m.

    Args:
      correct: booleans `[n]`, whether the classifier is correct on each sample.
      other_correct: booleans `[n]` of the classifier to subtract.
    """
    b = int(np.sum(correct & ~other_correct))
    c = int(np.sum(other_correct & ~correct))
    m = len(correct) + 2
    middle = (b - c) / m
    half = Z * math.sqrt(b + c + 1 - (b - c) ** 2 / m) / m
    low = max(-1.0, middle - half)
    high = min(1.0, middle + half)
    return Difference(100 * (b - c) / len(correct), 100 * low, 100 * high)


def from_errors(value: float, error: float, other: float, other_error: float) -> Difference:
    """Return the difference of two independent values with standard errors."""
    half = Z * math.hypot(error, other_error)
    return Difference(value - other, value - other - half, value - other + half)


def welch(values: Sequence[float], others: Sequence[float]) -> Difference:
    """Return the difference of two means, each over two or more runs, by Welch's t interval."""
    parts = [(float(np.var(runs, ddof=1)) / len(runs), len(runs) - 1) for runs in (values, others)]
    return students_t(float(np.mean(values) - np.mean(others)), parts)[0]


def students_t(value: float, parts: Sequence[tuple[float, float]]) -> tuple[Difference, float]:
    """Return a value with its 95% interval, and the two-sided p-value of the value being 0.

    Args:
      value: the estimate.
      parts: terms of its variance, each with its degrees of freedom. The degrees of freedom of the
        sum follow Satterthwaite (1946).
    """
    variance = sum(part for part, _ in parts)
    if variance == 0:
        return Difference(value, value, value), float(value == 0)
    freedom = variance**2 / sum(part**2 / df for part, df in parts)
    error = math.sqrt(variance)
    half = float(special.stdtrit(freedom, 0.975)) * error
    p_value = 2 * float(special.stdtr(freedom, -abs(value) / error))
    return Difference(value, value - half, value + half), p_value
