"""All devices' points as one set: what is global about the losses."""

import operator
from collections.abc import Callable
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax import lax

from hypersphere_jax.losses.blocks import Blocking
from hypersphere_jax.losses.products import Precision, on_cpu

AxisName = str | tuple[str, ...] | None

# Points in a block where the losses may choose: of points among themselves, and between two sets.
# Measured on CPUs, see docs/performance.md. On accelerators a block's traffic is that of its logits
# alone from some 4,096 points on.
ON_CPU, ON_ACCELERATORS = (1024, 2048), (4096, 8192)


class PairOptions(NamedTuple):
    """How the pairs of all devices' points are formed.

    Attributes:
      block_size: points in a block, at most; None chooses.
      axis_name: the mapped axis over which points are spread; None for one device.
      ring: pass the devices' points along a ring, rather than gathering them on each.
      precision: of products, see `products.product`.
    """

    block_size: int | None = None
    axis_name: AxisName = None
    ring: bool = False
    precision: Precision = "highest"

    @property
    def among(self) -> Blocking:
        """Of points among themselves."""
        return self._blocking(0)

    @property
    def between(self) -> Blocking:
        """Of two sets of points."""
        return self._blocking(1)

    def _blocking(self, case: int) -> Blocking:
        sizes = ON_CPU if on_cpu() else ON_ACCELERATORS
        return Blocking(self.block_size or sizes[case], self.precision, self.axis_name is None)


def pair_options(
    block_size: int | None = None,
    axis_name: AxisName = None,
    ring: bool = False,
    precision: Precision = "highest",
) -> PairOptions:
    """The options that the pairwise losses share, or ValueError."""
    if precision not in get_args(Precision):
        names = ", ".join(get_args(Precision))
        raise ValueError(f"precision must be one of {names}, got {precision!r}")
    if ring and axis_name is None:
        raise ValueError("ring=True needs axis_name, the mapped axis that the ring goes around")
    if block_size is not None:
        integer = hasattr(block_size, "__index__") and not isinstance(block_size, bool)
        if not integer or operator.index(block_size) < 1:
            raise ValueError(f"block_size must be None or an integer >= 1, got {block_size!r}")
        block_size = operator.index(block_size)
    return PairOptions(block_size, axis_name, ring, precision)


def all_gather(x: jax.Array, axis_name: AxisName) -> jax.Array:
    """`[n, ...]` of each device to `[devices * n, ...]` of all, in the devices' order."""
    if axis_name is None:
        return x
    # A sum of arrays that are zero but for one device's rows: unlike of `lax.all_gather`'s result,
    # `shard_map` knows of a sum that it is the same on every device.
    spread = jnp.zeros((lax.axis_size(axis_name), *x.shape), x.dtype)
    gathered = lax.psum(spread.at[lax.axis_index(axis_name)].set(x), axis_name)
    return gathered.reshape(-1, *x.shape[1:])


def global_mean(value: jax.Array, axis_name: AxisName) -> jax.Array:
    """The mean over devices.

    It also ends losses whose value is the same on every device already: the mean leaves value and
    gradient as they are under `pmap`, and tells `shard_map` that the result is replicated.
    """
    return value if axis_name is None else lax.pmean(value, axis_name)


def global_sum(value: jax.Array, axis_name: AxisName) -> jax.Array:
    """The sum over devices."""
    return value if axis_name is None else lax.psum(value, axis_name)


def mean_of(values: jax.Array, shares: jax.Array | None, axis_name: AxisName) -> jax.Array:
    """The mean of all devices' `[n, ...]`, or their sum with shares `[n]`, which add up to one."""
    if shares is None:
        return global_mean(jnp.mean(values, axis=0), axis_name)
    return global_sum(jnp.matmul(shares, values, precision=lax.Precision.HIGHEST), axis_name)


def over_devices(
    pair_sums: Callable,
    local: Any,
    local_sums: tuple[Any, Any],
    combine: Callable,
    options: PairOptions,
) -> tuple[Any, Any]:
    """Sums over the pairs of this device's points with those of all devices.

    Args:
      pair_sums: maps other devices' `local` arrays, one device's after the other's, to the sums
        for this device's points and those for theirs, or None.
      local: arrays of this device's points, `[n, ...]` each.
      local_sums: both kinds of sums over the pairs of this device's points among themselves.
      combine: adds up, as `combine(stacked, axis=0)`.
      options: of the pairs.
    """
    axis_name = options.axis_name
    if axis_name is None:
        return local_sums
    devices, me = lax.axis_size(axis_name), lax.axis_index(axis_name)
    # Inside `shard_map` a type says what varies over the axis: so does all that devices exchange.
    varying = 0.0 * me
    local, local_sums = jax.tree.map(lambda array: array + varying, (local, local_sums))

    def add(*parts):
        return jax.tree.map(lambda *leaves: combine(jnp.stack(leaves), axis=0), *parts)

    if options.ring:
        return _ring(pair_sums, local, local_sums, add, axis_name)

    def others(array):
        gathered = lax.all_gather(array, axis_name, tiled=True)
        return jnp.roll(gathered, -me * len(array), axis=0)[len(array) :]

    def reduce_scatter(local, given):
        """Each device's part of the sum over devices of what each gives to all."""
        every = jnp.roll(jnp.concatenate([local, given]), me * len(local), axis=0)
        every = every.reshape(devices, *local.shape)
        return combine(lax.all_to_all(every, axis_name, 0, 0), axis=0)

    if devices == 1:
        return local_sums
    to_me, to_them = pair_sums(jax.tree.map(others, local))
    return add(local_sums[0], to_me), jax.tree.map(reduce_scatter, local_sums[1], to_them)


def _ring(
    pair_sums: Callable, local: Any, local_sums: tuple, add: Callable, axis_name: AxisName
) -> tuple:
    """Passes arrays, and the sums for them so far, from device to device."""
    devices = lax.axis_size(axis_name)
    ring = [(i, (i + 1) % devices) for i in range(devices)]

    def step(_, carry):
        mine, sent = carry
        theirs, remote = lax.ppermute(sent, axis_name, ring)
        to_me, to_them = pair_sums(remote)
        return add(mine, to_me), (add(theirs, to_them), remote)

    mine, (theirs, _) = lax.fori_loop(0, devices - 1, step, (local_sums[0], (local_sums[1], local)))
    return mine, lax.ppermute(theirs, axis_name, ring)
