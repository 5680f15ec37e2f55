"""Sets of pairs whose points are sharded over devices: their row sums, and gradients of these.

`sides` are the points of a set: `(points,)` for pairs among themselves, else `(rows, columns)`.
`logsumexp` returns the log-sum-exp of each row, and of each column if columns are anchors, too.
`weighted_sums` returns the gradients of the logits by each side, summed with the weights of
`sums.weighted_pair_sums`. `places` is how many places of a pair a point of the first side takes.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from hypersphere_jax.losses._pairwise.collectives import reduce_over_devices
from hypersphere_jax.losses._pairwise.options import Exclude, PairOptions
from hypersphere_jax.losses._pairwise.points import Points, Scale
from hypersphere_jax.losses._pairwise.sums import pair_logsumexp, weighted_pair_sums

Sides = tuple[Points, ...]


@dataclasses.dataclass(frozen=True)
class PairsWithin:
    """Pairs of the points of all devices among themselves."""

    options: PairOptions
    exclude: Exclude = Exclude.SELF
    places: ClassVar[int] = 2

    def logsumexp(self, sides: Sides, scale: Scale) -> tuple[jax.Array, ...]:
        (points,) = sides

        def remote_sums(remote: Points) -> tuple[jax.Array, None]:
            return pair_logsumexp(points, remote, self.options, scale)[0], None

        local, _ = pair_logsumexp(points, None, self.options, scale, self.exclude)
        sums = (local, None)
        return reduce_over_devices(remote_sums, points, sums, jax.nn.logsumexp, self.options)[:1]

    def weighted_sums(self, sides: Sides, scale: Scale) -> Sides:
        (points,) = sides

        def remote_sums(remote: Points) -> tuple[Points, None]:
            return weighted_pair_sums(points, remote, self.options, scale)[0], None

        local, _ = weighted_pair_sums(points, None, self.options, scale, self.exclude)
        return reduce_over_devices(remote_sums, points, (local, None), jnp.sum, self.options)[:1]


@dataclasses.dataclass(frozen=True)
class PairsBetween:
    """Pairs of two sets of points, rows and columns.

    Attributes:
      options: devices, block size and precision.
      columns_are_anchors: whether columns are anchors, too.
      columns_are_replicated: whether columns are the same on every device, not sharded.
      exclude: pairs that do not count.
    """

    options: PairOptions
    columns_are_anchors: bool = False
    columns_are_replicated: bool = False
    exclude: Exclude = Exclude.NONE
    places: ClassVar[int] = 1

    def logsumexp(self, sides: Sides, scale: Scale) -> tuple[jax.Array, ...]:
        a, b = sides

        def pair_sums(remote: Points, exclude: int = 0) -> tuple[jax.Array, jax.Array | None]:
            rows, columns = pair_logsumexp(a, remote, self.options, scale, exclude)
            if not self.columns_are_anchors:
                columns = None
            return rows, columns

        sums = pair_sums(b, self.exclude)
        if not self.columns_are_replicated:
            sums = reduce_over_devices(pair_sums, b, sums, jax.nn.logsumexp, self.options)
        rows, columns = sums
        return (rows,) if columns is None else (rows, columns)

    def weighted_sums(self, sides: Sides, scale: Scale) -> Sides:
        a, b = sides

        def pair_sums(remote: Points, exclude: int = 0) -> tuple[Points, Points]:
            return weighted_pair_sums(a, remote, self.options, scale, exclude)

        sums = pair_sums(b, self.exclude)
        if self.columns_are_replicated:
            return sums
        return reduce_over_devices(pair_sums, b, sums, jnp.sum, self.options)


PairSet = PairsWithin | PairsBetween
