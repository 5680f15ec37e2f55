"""Log-sum-exps and weighted sums over pairs, in the form that suits the points.

`PairsWithin` and `PairsBetween` are sets of pairs whose points are sharded over devices. The other
functions sum over the pairs of one device. Distances are inner products around the center, unless
points are so far from it that these cancel; then they are sums of squared differences. On
accelerators exponentials are summed without a shift where float32 represents them, if possible by
the kernel of Hopper GPUs.

Common arguments:

- `a`: the n points of the rows.
- `b`: the m points of the columns, or None for `a` itself, whose columns equal its rows.
- `options`: devices, block size and precision.
- `scale`: factor of squared distances, or None for inner products.
- `exclude`: size of the groups of consecutive points that form no pairs with each other.
- `sides`: the points of a set of pairs: `(points,)` for pairs among themselves, otherwise
  `(rows, columns)`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from hypersphere_jax.losses._pairwise import hopper
from hypersphere_jax.losses._pairwise.block_sweep import (
    BlockFunction,
    LogSumExp,
    PlainLogSumExp,
    WeightedSums,
    reduce_pairs,
)
from hypersphere_jax.losses._pairwise.collectives import reduce_over_devices
from hypersphere_jax.losses._pairwise.logits import Differences, inner_products
from hypersphere_jax.losses._pairwise.options import Exclude, PairOptions, on_cpu
from hypersphere_jax.losses._pairwise.points import (
    Points,
    Scale,
    any_of_batch,
    center_points,
    within_range,
)

Sides = tuple[Points, ...]


@dataclasses.dataclass(frozen=True)
class PairsWithin:
    """Pairs of the points of all devices among themselves.

    Like `PairsBetween` it has two methods. `logsumexp` returns the log-sum-exp of each row, and of
    each column if columns are anchors. `weighted_sums` returns the gradients of the logits by each
    side, summed with the weights of `weighted_pair_sums`. A point of the first side takes `places`
    places of a pair.
    """

    options: PairOptions
    exclude: Exclude = Exclude.SELF
    places: ClassVar[int] = 2

    def logsumexp(self, sides: Sides, scale: Scale) -> tuple[jax.Array, ...]:
        return self._sum(pair_logsumexp, jax.nn.logsumexp, sides, scale)

    def weighted_sums(self, sides: Sides, scale: Scale) -> Sides:
        return self._sum(weighted_pair_sums, jnp.sum, sides, scale)

    def _sum(self, pair_sums: Callable, combine: Callable, sides: Sides, scale: Scale) -> Any:
        (points,) = sides

        def remote_sums(remote: Points) -> tuple[Any, None]:
            return pair_sums(points, remote, self.options, scale)[0], None

        local, _ = pair_sums(points, None, self.options, scale, self.exclude)
        return reduce_over_devices(remote_sums, points, (local, None), combine, self.options)[:1]


@dataclasses.dataclass(frozen=True)
class PairsBetween:
    """Pairs of two sets of points, rows and columns."""

    options: PairOptions
    columns_are_anchors: bool = False
    columns_are_replicated: bool = False  # the same on every device, not sharded
    exclude: Exclude = Exclude.NONE
    places: ClassVar[int] = 1

    def logsumexp(self, sides: Sides, scale: Scale) -> tuple[jax.Array, ...]:
        anchors = 1 + int(self.columns_are_anchors)
        return self._sum(pair_logsumexp, jax.nn.logsumexp, sides, scale, anchors)[:anchors]

    def weighted_sums(self, sides: Sides, scale: Scale) -> Sides:
        return self._sum(weighted_pair_sums, jnp.sum, sides, scale, anchors=2)

    def _sum(
        self, pair_sums: Callable, combine: Callable, sides: Sides, scale: Scale, anchors: int
    ) -> Any:
        a, b = sides

        def sums_with(columns: Points, exclude: int = 0) -> tuple[Any, Any]:
            sums = pair_sums(a, columns, self.options, scale, exclude)
            return sums if anchors == 2 else (sums[0], None)

        local = sums_with(b, self.exclude)
        if self.columns_are_replicated:
            return local
        return reduce_over_devices(sums_with, b, local, combine, self.options)


PairSet = PairsWithin | PairsBetween


def pair_logsumexp(
    a: Points, b: Points | None, options: PairOptions, scale: Scale = None, exclude: int = 0
) -> tuple[jax.Array, jax.Array]:
    """Return the log-sum-exp of the logits of each row `[n]` and of each column `[m]`."""
    if scale is None:
        return _logsumexp_of_products(a, b, options, exclude)
    centered_a, centered_b, far = center_points(a, b, scale)
    return lax.cond(
        far,
        lambda: _reduce(LogSumExp(Differences(scale)), exclude, options, a, b),
        lambda: _logsumexp_of_products(centered_a, centered_b, options, exclude),
    )


def _logsumexp_of_products(a: Points, b: Points | None, options: PairOptions, exclude: int) -> Any:
    form = inner_products(options.precision)
    logsumexp = functools.partial(_reduce, LogSumExp(form), exclude, options)
    if on_cpu():  # Plain sums are not faster there and take longer to compile.
        return logsumexp(a, b)
    plain = functools.partial(_reduce, PlainLogSumExp(form), exclude, options)
    if _kernel_applies(a, b, options):
        plain = hopper.with_fallback(functools.partial(hopper.kernel_logsumexp, exclude), plain)
    return lax.cond(_exceeds_range(a, b), logsumexp, plain, a, b)


def weighted_pair_sums(
    a: Points, b: Points | None, options: PairOptions, scale: Scale = None, exclude: int = 0
) -> tuple[Points, Points]:
    """Sum the gradients of all logits by the points with weights P, and P's rows and columns.

    The weights `P_ij` are the sum of `exp(l_ij - shift)` over the shifts of i and j; without any
    they are `exp(l_ij)`. Exponents must be at most 0 with a shift and `HIGHEST` without.

    Returns:
      `Points(P b [n, d], row sums of P [n])` and `Points(P^T a [m, d], column sums of P [m])`; with
      a scale, `scale P_ij (b_j - a_i)` is summed over j, and likewise over i.
    """
    if scale is None:
        return _weighted_sums_of_products(a, b, options, exclude)
    centered_a, centered_b, far = center_points(a, b, scale)

    def by_products() -> tuple[Points, Points]:
        rows, columns = _weighted_sums_of_products(centered_a, centered_b, options, exclude)
        return (
            _sums_of_differences(rows, centered_a, scale),
            _sums_of_differences(columns, centered_b or centered_a, scale),
        )

    block = WeightedSums(Differences(scale))
    return lax.cond(far, lambda: _reduce(block, exclude, options, a, b), by_products)


def _weighted_sums_of_products(
    a: Points, b: Points | None, options: PairOptions, exclude: int
) -> Any:
    block = WeightedSums(inner_products(options.precision))
    in_blocks = functools.partial(_reduce, block, exclude, options)
    if not _kernel_applies(a, b, options):
        return in_blocks(a, b)
    kernel = functools.partial(hopper.kernel_weighted_sums, exclude)
    kernel = hopper.with_fallback(kernel, in_blocks)
    return lax.cond(_exceeds_range(a, b), in_blocks, kernel, a, b)


def _sums_of_differences(sums: Points, points: Points, scale: jax.Array | float) -> Points:
    """Convert weighted sums of centered points to sums of scaled differences."""
    return Points(jnp.sqrt(scale) * (sums.x - sums.bias[:, None] * points.x), sums.bias)


def _reduce(
    block: BlockFunction, exclude: int, options: PairOptions, a: Points, b: Points | None
) -> tuple[Any, Any]:
    return reduce_pairs(block, a, b, exclude, options.block_limit(same_points=b is None))


def _exceeds_range(a: Points, b: Points | None) -> jax.Array:
    return any_of_batch(~within_range(a, b or a))


def _kernel_applies(a: Points, b: Points | None, options: PairOptions) -> bool:
    if jax.default_backend() != "gpu" or options.precision != "high":
        return False
    # Inside `shard_map` and `pmap`, blocks are used.
    return options.axis_name is None and hopper.is_supported(a.x, (b or a).x)
