"""Reductions over all pairs of blocks of points by a block function.

A sweep computes the logits of each block of rows and block of columns once. The block function
reduces them to a part for the rows and a part for the columns, which the sweep adds up. Blocks of
one set of points with themselves are symmetric: each two blocks meet once.
"""

import abc
import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hypersphere_jax.losses._pairwise.logits import LogitForm
from hypersphere_jax.losses._pairwise.points import (
    HIGHEST,
    MASKED_LOGIT,
    OptionalArray,
    Points,
    log_or_masked,
)

# Larger blocks have a multiple of `ALIGNMENT` points, for which accelerators copy nothing.
LARGE = 2048
ALIGNMENT = 128


@dataclasses.dataclass(frozen=True)
class BlockFunction(abc.ABC):
    """Reduces a block of logits to a part for its rows and a part for its columns."""

    form: LogitForm

    @abc.abstractmethod
    def parts(self, logits: jax.Array, rows: Points, columns: Points) -> tuple[Any, Any]:
        """Return the parts of a block's rows and columns."""

    def zeros(self, blocks: Points) -> Any:
        """Return the totals of no pairs."""
        return jnp.zeros_like(blocks.bias)

    def add(self, total: jax.Array, part: jax.Array) -> jax.Array:
        return total + part

    def finish(self, totals: Any) -> Any:
        """Return the result of the totals over all pairs."""
        return totals


class LogSumExp(BlockFunction):
    """Log-sum-exp of the rows and of the columns."""

    def parts(self, logits: jax.Array, rows: Points, columns: Points) -> tuple[Any, Any]:
        return jax.nn.logsumexp(logits, 1), jax.nn.logsumexp(logits, 0)

    def zeros(self, blocks: Points) -> jax.Array:
        return jnp.full_like(blocks.bias, MASKED_LOGIT)

    def add(self, total: jax.Array, part: jax.Array) -> jax.Array:
        return jnp.logaddexp(total, part)


class PlainLogSumExp(BlockFunction):
    """Log-sum-exp of logits whose exponentials float32 represents without a shift."""

    def parts(self, logits: jax.Array, rows: Points, columns: Points) -> tuple[Any, Any]:
        values = jnp.exp(logits)
        return jnp.sum(values, 1), jnp.sum(values, 0)

    def finish(self, totals: jax.Array) -> jax.Array:
        return log_or_masked(totals)


class WeightedSums(BlockFunction):
    """Gradients of the logits summed over rows and columns, with the weights `exp_weights`."""

    def parts(self, logits: jax.Array, rows: Points, columns: Points) -> tuple[Any, Any]:
        weights = exp_weights(logits, rows.shift, columns.shift)
        return (
            self.form.gradient_sums(weights, rows, columns),
            self.form.gradient_sums(weights.T, columns, rows),
        )

    def zeros(self, blocks: Points) -> Any:
        return self.form.zeros(blocks)

    def finish(self, totals: Any) -> Points:
        return self.form.unpack(totals)


def exp_weights(
    logits: jax.Array, row_shift: OptionalArray, column_shift: OptionalArray
) -> jax.Array:
    """Sum `exp(l_ij - shift)` over the shifts of row i and column j; without any, `exp(l_ij)`.

    Exponents are capped: logits around 1e10 round by thousands and would overflow.
    """
    if row_shift is None and column_shift is None:
        return jnp.exp(jnp.minimum(logits, HIGHEST))
    weights: Any = 0.0
    if row_shift is not None:
        weights += jnp.exp(jnp.minimum(logits - row_shift[:, None], 0.0))
    if column_shift is not None:
        weights += jnp.exp(jnp.minimum(logits - column_shift[None, :], 0.0))
    return weights


def reduce_pairs(
    block: BlockFunction, rows: Points, columns: Points | None, exclude: int, limit: int
) -> tuple[Any, Any]:
    """Apply a block function to all pairs and return the results of the rows and of the columns.

    Args:
      block: the block function.
      rows: n points.
      columns: m points, or None for the rows themselves.
      exclude: size of the groups of consecutive points that form no pairs with each other.
      limit: points in a block, at most.
    """
    row_blocks = split_blocks(rows, limit, exclude)
    if columns is None:
        totals = block.finish(_sweep_within(block, row_blocks, exclude))
        sums = join_blocks(totals, rows.bias.shape[0])
        return sums, sums
    column_blocks = split_blocks(columns, limit, exclude)
    row_totals, column_totals = _sweep_between(block, row_blocks, column_blocks, exclude)
    return (
        join_blocks(block.finish(row_totals), rows.bias.shape[0]),
        join_blocks(block.finish(column_totals), columns.bias.shape[0]),
    )


def _sweep_within(block: BlockFunction, points: Points, exclude: int) -> Any:
    count = points.bias.shape[0]
    if count == 1:
        total, _ = _meet(block, points, points, exclude, 0, 0)
        return jax.tree.map(lambda array: array[None], total)

    def meet_itself(i: Any, totals: Any) -> Any:
        part, _ = _meet(block, points, points, exclude, i, i)
        return _add_at(block, totals, i, part)

    rows = lax.fori_loop(0, count, meet_itself, block.zeros(points))
    # Rows and columns have separate totals: one array would be copied at each step.
    totals = (rows, block.zeros(points))
    rows, columns = _meet_all(block, points, points, np.triu_indices(count, 1), totals)
    return jax.tree.map(block.add, rows, columns)


def _sweep_between(
    block: BlockFunction, rows: Points, columns: Points, exclude: int
) -> tuple[Any, Any]:
    counts = (rows.bias.shape[0], columns.bias.shape[0])
    if counts == (1, 1):
        totals = _meet(block, rows, columns, exclude, 0, 0)
        return jax.tree.map(lambda array: array[None], totals)

    totals = (block.zeros(rows), block.zeros(columns))
    indices = np.indices(counts).reshape(2, -1)
    if exclude:
        diagonal = np.arange(counts[0])
        totals = _meet_all(block, rows, columns, (diagonal, diagonal), totals, exclude)
        indices = indices[:, indices[0] != indices[1]]
    return _meet_all(block, rows, columns, indices, totals)


def _meet_all(
    block: BlockFunction,
    rows: Points,
    columns: Points,
    indices: Any,
    totals: tuple[Any, Any],
    exclude: int = 0,
) -> tuple[Any, Any]:
    """Add the parts of the pairs of blocks with these indices to the totals."""
    first, second = (jnp.asarray(index, jnp.int32) for index in indices)

    def step(k: Any, totals: tuple[Any, Any]) -> tuple[Any, Any]:
        i = first[k]
        j = second[k]
        row_part, column_part = _meet(block, rows, columns, exclude, i, j)
        row_totals, column_totals = totals
        return (
            _add_at(block, row_totals, i, row_part),
            _add_at(block, column_totals, j, column_part),
        )

    return lax.fori_loop(0, len(first), step, totals)


def _meet(
    block: BlockFunction, rows: Points, columns: Points, exclude: int, i: Any, j: Any
) -> tuple[Any, Any]:
    """Apply the block function to two blocks; only blocks with i = j have excluded pairs."""
    row = jax.tree.map(lambda blocks: blocks[i], rows)
    column = jax.tree.map(lambda blocks: blocks[j], columns)
    logits = block.form.logits(row, column)
    if exclude:
        # Mask and value depend on the block, because XLA would keep constants as arrays.
        size = row.bias.shape[0]
        group = (i * size + jnp.arange(size)) >> (exclude - 1)
        logits = jnp.where(group[:, None] == group[None, :], MASKED_LOGIT - i, logits)
    return block.parts(logits, row, column)


def _add_at(block: BlockFunction, totals: Any, i: Any, part: Any) -> Any:
    return jax.tree.map(lambda total, p: total.at[i].set(block.add(total[i], p)), totals, part)


def split_blocks(points: Points, limit: int, exclude: int) -> Points:
    """Split `[n, ...]` into `[blocks, size, ...]`; masked points pad the last block."""
    n = points.bias.shape[0]
    if not isinstance(n, int):  # A symbolic n of `jax.export` stays one block.
        return jax.tree.map(lambda array: array[None], points)
    size = math.ceil(n / math.ceil(n / limit))
    if LARGE < size < limit:
        size += -size % ALIGNMENT
    if exclude:
        size += size % exclude  # No border between blocks separates an excluded pair.
    count = math.ceil(n / size)
    if count * size > n:
        missing = (0, count * size - n)
        points = Points(
            jnp.pad(points.x, (missing, (0, 0))),
            jnp.pad(points.bias, missing, constant_values=MASKED_LOGIT),
            jax.tree.map(lambda shift: jnp.pad(shift, missing), points.shift),
        )
    return jax.tree.map(lambda array: array.reshape(count, size, *array.shape[1:]), points)


def join_blocks(blocks: Any, n: int) -> Any:
    """Undo `split_blocks` for a tree of arrays."""
    return jax.tree.map(lambda array: array.reshape(-1, *array.shape[2:])[:n], blocks)
