"""Log-sum-exps and weighted sums over the pairs of one device, in the form that suits the points.

Distances are inner products around the center, unless points are so far from it that these cancel;
then they are sums of squared differences. On accelerators exponentials are summed without a shift
where float32 represents them, if possible by the kernel of Hopper GPUs.

Arguments of both functions:

- `a`: the n points of the rows.
- `b`: the m points of the columns, or None for `a` itself, whose columns equal its rows.
- `options`: block size and precision.
- `scale`: factor of squared distances, or None for inner products.
- `exclude`: size of the groups of consecutive points that form no pairs with each other.
"""

import functools
from typing import Any

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
from hypersphere_jax.losses._pairwise.logits import Differences, inner_products
from hypersphere_jax.losses._pairwise.options import PairOptions
from hypersphere_jax.losses._pairwise.points import (
    Points,
    Scale,
    any_of_batch,
    center_points,
    within_range,
)
from hypersphere_jax.losses._pairwise.precision import on_cpu


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
            _sums_of_differences(columns, _columns(centered_a, centered_b), scale),
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


def _columns(a: Points, b: Points | None) -> Points:
    return a if b is None else b


def _exceeds_range(a: Points, b: Points | None) -> jax.Array:
    return any_of_batch(~within_range(a, _columns(a, b)))


def _kernel_applies(a: Points, b: Points | None, options: PairOptions) -> bool:
    if jax.default_backend() != "gpu" or options.precision != "high":
        return False
    # Inside `shard_map` and `pmap`, blocks are used.
    return options.axis_name is None and hopper.is_supported(a.x, _columns(a, b).x)
