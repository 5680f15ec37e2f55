"""Features `[n, d]` that are read in blocks of rows, because they may be larger than memory."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def as_float32(rows: Any) -> np.ndarray:
    """Return rows of any real dtype as float32, in which all probes compute."""
    return np.asarray(rows, np.float32)


def row_blocks(n: int, d: int, entries: int) -> list[slice]:
    """Return slices that cut n rows into blocks of at most `entries` numbers, or of one row."""
    size = max(1, entries // d)
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def row_shardings(devices: Sequence[jax.Device]) -> tuple[NamedSharding, NamedSharding]:
    """Return shardings that divide the first axis of arrays over devices, and that copy arrays."""
    mesh = Mesh(np.asarray(devices), ("rows",))
    return NamedSharding(mesh, PartitionSpec("rows")), NamedSharding(mesh, PartitionSpec())


class SelectedRows:
    """Rows of features by index; they are read when they are sliced.

    Args:
      x: `[n, d]` features, an array or a memory map.
      indices: integers `[m]`.
    """

    def __init__(self, x: Any, indices: np.ndarray):
        self._x = x
        self._indices = indices
        self.dtype = x.dtype
        self.shape = (len(indices), x.shape[1])

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, rows: Any) -> np.ndarray:
        return self._x[self._indices[rows]]
