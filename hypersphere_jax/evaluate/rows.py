"""Features that are read when they are needed, in pieces, by the threads of the host.

They may be a memory map that is larger than memory. What is read counts as float32, and comes in
float64.
"""

import functools
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np

from hypersphere_jax.evaluate.checks import check_finite, check_matrix

CHUNK = 2**15  # elements in float64 at once: larger arrays do not stay in a core's cache


class Rows(NamedTuple):
    """Features `[n, d]`, and the squared norms `[n]` of their rows in float64."""

    x: Any
    squares: np.ndarray

    def read(self, rows) -> np.ndarray:
        """float64 `[b, d]`, or `[d]` of one row."""
        with np.errstate(over="ignore"):  # what float32 cannot hold is an infinity, to be reported
            return np.asarray(self.x[rows]).astype(np.float32, copy=False).astype(np.float64)

    def norms(self, rows) -> np.ndarray:
        """Norms `[b]`, 1 in place of 0."""
        return np.sqrt(or_one(self.squares[rows]))


def features(name: str, x) -> Any:
    """What has rows `[n, d]` to be read.

    Raises:
      UserError: for another shape or dtype, by this name.
    """
    if not hasattr(x, "shape") or isinstance(x, jax.Array):
        x = np.asarray(x)
    check_matrix(name, x)
    return x


def scan(name: str, x, unit: bool) -> tuple[Rows, np.ndarray]:
    """Features with their squared norms; and their mean row `[d]`, of unit rows if so asked.

    Raises:
      UserError: for rows with NaN or infinity, by this name.
    """
    n, d = x.shape
    rows = Rows(x, np.empty(n))

    def total(part: slice) -> np.ndarray:
        values = rows.read(part)
        rows.squares[part] = np.vecdot(values, values)
        weights = 1 / rows.norms(part) if unit else np.ones(len(values))
        with np.errstate(invalid="ignore"):  # infinities are reported below
            return weights @ values

    mean = sum(in_threads(total, chunks(n, d)), np.zeros(d)) / n
    check_finite(name, np.isfinite(rows.squares))
    return rows, mean


def rows_of(x) -> int:
    """How many rows features have, of whatever shape they are: 0 for a number."""
    shape = np.shape(x)
    return shape[0] if shape else 0


def or_one(x: np.ndarray) -> np.ndarray:
    """What to divide by where x may be 0."""
    return np.where(x > 0, x, 1.0)


def chunks(n: int, d: int, most: int = CHUNK) -> list[slice]:
    """Slices of n rows of d elements, of this many elements at most: for the caches of a core."""
    size = max(1, most // d)
    return [slice(begin, min(begin + size, n)) for begin in range(0, n, size)]


def in_threads(function: Callable, items: Iterable) -> Iterator:
    """What the function returns for each item, in order; it begins at once with all of them."""
    return _threads().map(function, items)


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count())
