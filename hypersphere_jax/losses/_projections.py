"""Projections of points on directions, and distances between sorted ones of all devices."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

from hypersphere_jax.losses._pairwise.collectives import global_sum
from hypersphere_jax.losses._pairwise.options import AxisName

SORTED_TOGETHER = 2**20  # projections


def project(points: jax.Array, directions: jax.Array) -> jax.Array:
    """Return the projections `[k, n]` of points `[n, d]` on the rows of directions `[k, d]`."""
    return jnp.matmul(directions, points.T, precision=lax.Precision.HIGHEST)


def sorted_distance(ours: jax.Array, theirs: jax.Array, axis_name: AxisName) -> jax.Array:
    """Return the mean squared gap between two sets of sorted projections `[k, n]`.

    It is exact for the points of all devices: each device has the projections of its points along
    all directions, and sorts the projections of all points along its share of the directions.
    """
    projections = [ours, theirs]
    count = len(ours)
    if axis_name is not None:
        # Directions along which all points are zero pad the shares to one size.
        padding = ((0, -count % lax.axis_size(axis_name)), (0, 0))
        projections = [jnp.pad(rows, padding) for rows in projections]
        projections = lax.all_to_all(projections, axis_name, 0, 1, tiled=True)
    # The number of all projections may exceed float32's integers, so the mean has two steps.
    return global_sum(jnp.sum(_row_distances(*projections)), axis_name) / count


@jax.custom_jvp
def _row_distances(ours: jax.Array, theirs: jax.Array) -> jax.Array:
    """Mean squared gap between the sorted rows of `[k, n]` and their sorted partners, `[k]`."""

    def distance(our_row: jax.Array, their_row: jax.Array) -> jax.Array:
        return jnp.mean(jnp.square(_sort(our_row) - _sort(their_row)))

    return _map_rows(distance, ours, theirs)


def _row_distances_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, Any]:
    """Compute gradients together with the value, so that nothing else is kept for them."""
    slopes = []
    # The samples mostly have no gradient.
    for sides, tangent in ((primals, tangents[0]), (primals[::-1], tangents[1])):
        if not isinstance(tangent, SymbolicZero):
            distances, gradients = _map_rows(_distance_and_gradient, *sides)
            slopes.append(jnp.sum(gradients * tangent, axis=1))
    return distances, sum(slopes)


_row_distances.defjvp(_row_distances_jvp, symbolic_zeros=True)


def _distance_and_gradient(row: jax.Array, partner: jax.Array) -> tuple[jax.Array, jax.Array]:
    order = _argsort(row)
    gaps = row[order] - _sort(partner)
    slopes = 2 * gaps / gaps.shape[0]
    gradient = jnp.zeros_like(gaps).at[order].set(slopes, unique_indices=True)
    return jnp.mean(jnp.square(gaps)), gradient


@jax.custom_jvp
def _sort(row: jax.Array) -> jax.Array:
    return _sort_keys(lax.sort(_sort_keys(row), is_stable=False))


@_sort.defjvp
def _sort_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    order = _argsort(primals[0])
    return primals[0][order], tangents[0][order]


def _argsort(row: jax.Array) -> jax.Array:
    positions = jnp.arange(row.shape[0], dtype=jnp.int32)
    return lax.sort((_sort_keys(row), positions), num_keys=1, is_stable=False)[1]


def _sort_keys(numbers: jax.Array) -> jax.Array:
    """Map floats to integers of the same order, or back: CPUs sort integers much faster."""
    bits = 8 * numbers.dtype.itemsize
    integer = jnp.dtype(f"int{bits}")
    values = lax.bitcast_convert_type(numbers, integer)
    keys = values ^ ((values >> (bits - 1)) & jnp.iinfo(integer).max)
    if numbers.dtype == integer:
        return lax.bitcast_convert_type(keys, jnp.dtype(f"float{bits}"))
    return keys


def _map_rows(function: Callable[[jax.Array, jax.Array], Any], *rows: jax.Array) -> Any:
    """Apply a function to pairs of rows. Sorting copies its rows, so long ones go in batches."""
    count, length = rows[0].shape
    if not isinstance(length, int):  # A symbolic n of `jax.export`.
        return jax.vmap(function)(*rows)
    size = max(1, SORTED_TOGETHER // length)
    if count <= size:
        return jax.vmap(function)(*rows)
    return lax.map(lambda pair: function(*pair), rows, batch_size=size)
