"""Rows of runs, and statistics over them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

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


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's; NaN where all values on one side are the same."""
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return math.nan
    return float(scipy.stats.spearmanr(a, b).statistic)
