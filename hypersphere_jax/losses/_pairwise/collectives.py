"""Cross-device reductions: sharded features act as one batch."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from hypersphere_jax.losses._pairwise.options import AxisName, PairOptions


def all_gather(x: jax.Array, axis_name: AxisName) -> jax.Array:
    """Gather `[n, ...]` of each device as `[devices * n, ...]`, in the order of the devices."""
    if axis_name is None:
        return x
    # A sum of arrays that are zero except for the rows of one device: `shard_map` infers that a sum
    # is the same on every device, which it does not infer for `lax.all_gather`.
    rows = jnp.zeros((lax.axis_size(axis_name), *x.shape), x.dtype)
    gathered = lax.psum(rows.at[lax.axis_index(axis_name)].set(x), axis_name)
    return gathered.reshape(-1, *x.shape[1:])


def global_mean(value: jax.Array, axis_name: AxisName) -> jax.Array:
    """Return the mean over devices.

    Losses whose value is the same on every device also end with it: the mean keeps value and
    gradient under `pmap`, and shows `shard_map` that the result is replicated.
    """
    if axis_name is None:
        return value
    return lax.pmean(value, axis_name)


def global_sum(value: jax.Array, axis_name: AxisName) -> jax.Array:
    """Return the sum over devices."""
    if axis_name is None:
        return value
    return lax.psum(value, axis_name)


def global_max(value: jax.Array, axis_name: AxisName) -> jax.Array:
    """Return the largest value on all devices."""
    if axis_name is None:
        return value
    return lax.pmax(value, axis_name)


def global_logsumexp(x: jax.Array, axis_name: AxisName) -> jax.Array:
    """Return the log-sum-exp of the values of all devices."""
    if axis_name is None:
        return jax.nn.logsumexp(x)
    largest = global_max(lax.stop_gradient(jnp.max(x)), axis_name)
    return jnp.log(lax.psum(jnp.sum(jnp.exp(x - largest)), axis_name)) + largest


def weighted_mean(values: jax.Array, weights: jax.Array | None, axis_name: AxisName) -> jax.Array:
    """Return the mean of `[n, ...]` over all devices; normalized weights `[n]` sum to one."""
    if weights is None:
        return global_mean(jnp.mean(values, axis=0), axis_name)
    return global_sum(jnp.matmul(weights, values, precision=lax.Precision.HIGHEST), axis_name)


def global_size(n: int, axis_name: AxisName) -> Any:
    """Return the number of points on all devices; `jax.export` may not know it."""
    if axis_name is None:
        return n
    return n * lax.axis_size(axis_name)


def global_positions(n: int, axis_name: AxisName) -> jax.Array:
    """Return the positions `[n]` of this device's points among the points of all devices."""
    positions = jnp.arange(n)
    if axis_name is None:
        return positions
    return lax.axis_index(axis_name) * n + positions


def reduce_over_devices(
    pair_sums: Callable,
    local: Any,
    local_sums: tuple[Any, Any],
    combine: Callable,
    options: PairOptions,
) -> tuple[Any, Any]:
    """Sum over the pairs of the points of this device with the points of all devices.

    Args:
      pair_sums: maps `local` of other devices, concatenated, to the sums for the points of this
        device and the sums for theirs, or None.
      local: arrays `[n, ...]` of the points of this device.
      local_sums: both kinds of sums over the pairs within this device.
      combine: adds up, as `combine(stacked, axis=0)`.
      options: mapped axis, and whether points go along a ring or are gathered on each device.
    """
    axis_name = options.axis_name
    if axis_name is None:
        return local_sums
    # Types inside `shard_map` say what varies over the axis; all that devices exchange varies.
    varying = 0.0 * lax.axis_index(axis_name)
    local, local_sums = jax.tree.map(lambda array: array + varying, (local, local_sums))
    if lax.axis_size(axis_name) == 1:
        return local_sums
    if options.ring:
        return _reduce_along_ring(pair_sums, local, local_sums, combine, axis_name)

    remote = jax.tree.map(lambda array: _gather_others(array, axis_name), local)
    to_me, to_others = pair_sums(remote)
    return (
        _combine(combine, local_sums[0], to_me),
        jax.tree.map(
            lambda mine, sent: _reduce_scatter(combine, mine, sent, axis_name),
            local_sums[1],
            to_others,
        ),
    )


def _combine(combine: Callable, *parts: Any) -> Any:
    return jax.tree.map(lambda *leaves: combine(jnp.stack(leaves), axis=0), *parts)


def _gather_others(array: jax.Array, axis_name: AxisName) -> jax.Array:
    """Gather the rows of the other devices, starting with the next device."""
    n = len(array)
    gathered = lax.all_gather(array, axis_name, tiled=True)
    return jnp.roll(gathered, -lax.axis_index(axis_name) * n, axis=0)[n:]


def _reduce_scatter(
    combine: Callable, mine: jax.Array, sent: jax.Array, axis_name: AxisName
) -> jax.Array:
    """Combine what each device has for the rows of this device."""
    rows = jnp.concatenate([mine, sent])
    rows = jnp.roll(rows, lax.axis_index(axis_name) * len(mine), axis=0)
    rows = rows.reshape(lax.axis_size(axis_name), *mine.shape)
    return combine(lax.all_to_all(rows, axis_name, 0, 0), axis=0)


def _reduce_along_ring(
    pair_sums: Callable, local: Any, local_sums: tuple, combine: Callable, axis_name: AxisName
) -> tuple[Any, Any]:
    """Pass points, and the sums for them so far, from device to device."""
    devices = lax.axis_size(axis_name)
    ring = [(i, (i + 1) % devices) for i in range(devices)]

    def step(_: Any, carry: tuple) -> tuple:
        mine, sent = carry
        theirs, remote = lax.ppermute(sent, axis_name, ring)
        to_me, to_them = pair_sums(remote)
        return _combine(combine, mine, to_me), (_combine(combine, theirs, to_them), remote)

    carry = (local_sums[0], (local_sums[1], local))
    mine, (theirs, _) = lax.fori_loop(0, devices - 1, step, carry)
    return mine, lax.ppermute(theirs, axis_name, ring)
