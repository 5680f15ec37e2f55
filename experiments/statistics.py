"""Rows of runs, and statistics over them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy

Rows = list[dict[str, Any]]  # one a run, or one a checkpoint of a run


def done(rows: Rows) -> Rows:
    """The rows of runs that did not fail."""
    return [row for row in rows if row["status"] == "done"]


def by(rows: Rows, *names: str) -> dict[Any, Rows]:
    """The rows that are done, in groups of equal value (or values), in the order of the first."""
    groups: dict[Any, Rows] = {}
    for row in done(rows):
        key = row[names[0]] if len(names) == 1 else tuple(row[name] for name in names)
        groups.setdefault(key, []).append(row)
    return groups


def values(rows: Rows, name: str) -> list:
    """A column."""
    return [row[name] for row in rows]


def interval(row: Mapping[str, Any], score: str) -> str | None:
    """The 95% interval of a run's score over the test samples; None if it has none."""
    low, high = row.get(f"{score}_low"), row.get(f"{score}_high")
    return None if low is None else f"{low:.2f} to {high:.2f}"


def with_interval(scores: Sequence[float]) -> str:
    """The mean ± half of its 95% interval by Student's t over runs; a single one has none."""
    mean = f"{np.mean(scores):.2f}"
    if len(scores) < 2:
        return mean
    half = scipy.stats.t.ppf(0.975, len(scores) - 1) * scipy.stats.sem(scores)
    return f"{mean} ± {half:.2f}"


def with_deviation(scores: Sequence[float]) -> str:
    """The mean ± the standard deviation over runs; a single one has none."""
    deviation = f" ± {np.std(scores, ddof=1):.3f}" if len(scores) > 1 else ""
    return f"{np.mean(scores):.3f}{deviation}"


def means(rows: Rows, *scores: str) -> list[str | None]:
    """`with_interval` of columns; None without rows."""
    return [with_interval(values(rows, score)) if rows else None for score in scores]


class Difference(NamedTuple):
    """Of two means, with the 95% interval of Welch's test."""

    value: float
    low: float
    high: float

    @property
    def significant(self) -> bool:
        """Whether zero is outside of the interval."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        interval = f"95% interval {self.low:+.2f} to {self.high:+.2f}, Welch, over seeds"
        return f"{self.value:+.2f} points ({interval})"


def difference(a: Sequence[float], b: Sequence[float]) -> Difference | None:
    """Mean of a less mean of b, two runs each at least; None with fewer."""
    if min(len(a), len(b)) < 2:
        return None
    ends = scipy.stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    return Difference(float(np.mean(a) - np.mean(b)), float(ends.low), float(ends.high))


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's; NaN where all values on one side are the same."""
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return math.nan
    return float(scipy.stats.spearmanr(a, b).statistic)
