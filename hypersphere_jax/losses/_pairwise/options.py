"""Options of the pairwise losses."""

import dataclasses
import enum
import operator
from typing import Any, get_args

from hypersphere_jax.losses._pairwise.precision import Precision, on_cpu

AxisName = str | tuple[str, ...] | None


class Exclude(enum.IntEnum):
    """Pairs that do not count: the size of groups of consecutive points without pairs."""

    NONE = 0
    SELF = 1  # a point with itself
    VIEWS = 2  # also the points 2i and 2i + 1 with each other, the views of an image


@dataclasses.dataclass(frozen=True)
class PairOptions:
    """Options of the pairwise losses, see `hypersphere_jax.losses`."""

    axis_name: AxisName = None
    block_size: int | None = None
    precision: Precision = "highest"
    ring: bool = False

    def __post_init__(self) -> None:
        if self.precision not in get_args(Precision):
            names = get_args(Precision)
            raise ValueError(f"precision must be one of {names}, got {self.precision!r}")
        if self.ring and self.axis_name is None:
            raise ValueError("ring=True needs axis_name, the mapped axis that the ring goes around")
        if self.block_size is not None and not _is_positive_integer(self.block_size):
            raise ValueError(f"block_size must be None or an integer >= 1, got {self.block_size!r}")

    def block_limit(self, same_points: bool) -> int:
        """Return the largest number of points in a block, for pairs of one set or of two.

        The defaults were measured on CPUs, see docs/performance.md. On accelerators, logits are
        all of a block's traffic from about 4,096 points on.
        """
        if self.block_size is not None:
            return operator.index(self.block_size)
        size = 1024 if on_cpu() else 4096
        if not same_points:
            size *= 2
        return size


def _is_positive_integer(value: Any) -> bool:
    is_integer = hasattr(value, "__index__") and not isinstance(value, bool)
    return is_integer and operator.index(value) >= 1
