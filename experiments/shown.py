"""What a reproduced item shows: a table, pictures, and sentences about them."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats


class Shown(NamedTuple):
    """One table or figure of a paper, as it came out here.

    Attributes:
      title: what it is, on one line.
      columns: names of the table's columns.
      rows: one value a column; None where there is none.
      figures: a PNG and its caption, each.
      text: plain sentences, a paragraph each: the claim, what was computed, what was found.
      verdict: whether the claim shows, in a few words; empty where nothing is claimed.
    """

    title: str
    columns: list[str]
    rows: list[list]
    figures: list[tuple[Path, str]]
    text: list[str]
    verdict: str = ""


def with_interval(values: Sequence[float]) -> str:
    """The mean ± half of its 95% interval by Student's t over runs."""
    mean = f"{np.mean(values):.2f}"
    return mean if len(values) < 2 else f"{mean} ± {half_interval(values):.2f}"


def half_interval(values: Sequence[float]) -> float:
    """Half of the 95% interval of a mean, by Student's t over runs; NaN for a single one."""
    if len(values) < 2:
        return math.nan
    quantile = stats.t.ppf(0.975, len(values) - 1)
    return float(quantile * np.std(values, ddof=1) / math.sqrt(len(values)))


class Difference(NamedTuple):
    """Of two means, with the 95% interval of Welch's test."""

    value: float
    low: float
    high: float

    @property
    def sure(self) -> bool:
        """Whether zero is outside of the interval."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        interval = f"95% interval {self.low:+.2f} to {self.high:+.2f}, Welch, over seeds"
        return f"{self.value:+.2f} points ({interval})"


def difference(a: Sequence[float], b: Sequence[float]) -> Difference | None:
    """Of the mean of a from that of b, two runs each at least; None with fewer."""
    if min(len(a), len(b)) < 2:
        return None
    interval = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    return Difference(float(np.mean(a) - np.mean(b)), float(interval.low), float(interval.high))


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's; NaN where all values on one side are the same."""
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return math.nan
    return float(stats.spearmanr(a, b).statistic)


def between(row: Mapping[str, Any], score: str) -> str | None:
    """The 95% interval of a run's score over the test images."""
    low, high = row.get(f"{score}_low"), row.get(f"{score}_high")
    return None if low is None else f"{low:.2f} to {high:.2f}"


def by(rows: Sequence[Mapping[str, Any]], *names: str) -> dict[Any, list[Mapping[str, Any]]]:
    """The rows that are done, in groups of equal value (or values), in the order of the first."""
    groups: dict[Any, list] = {}
    for row in rows:
        if row["status"] == "done":
            key = row[names[0]] if len(names) == 1 else tuple(row[name] for name in names)
            groups.setdefault(key, []).append(row)
    return groups
