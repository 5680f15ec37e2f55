"""Logits of one block of pairs, and weighted sums of their gradients, in three forms.

    l_ij = x_i . y_j + bias_i + bias_j                     InnerProducts, FoldedInnerProducts
    l_ij = -scale / 2 |x_i - y_j|^2 + bias_i + bias_j      Differences

`logits` is `[rows, columns]`. `gradient_sums` is `sum_j P_ij dl_ij/dx_i`, without the terms that
cancel for inner products, and `sum_j P_ij` for weights P.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from hypersphere_jax.losses._pairwise.points import Points
from hypersphere_jax.losses._pairwise.precision import Precision, matmul, on_cpu

BIAS_PARTS = 3  # bfloat16 parts that represent a float32
CHUNK = 16  # coordinates, or points, that one pass over a block adds up on accelerators


@dataclasses.dataclass(frozen=True)
class InnerProducts:
    """Inner products on a CPU."""

    def logits(self, a: Points, b: Points) -> jax.Array:
        return a.bias[:, None] + b.bias[None, :] + matmul(a.x, b.x.T)

    def gradient_sums(self, weights: jax.Array, a: Points, b: Points) -> Points:
        return Points(matmul(weights, b.x), jnp.sum(weights, 1))

    def zeros(self, blocks: Points) -> Points:
        return Points(jnp.zeros_like(blocks.x), jnp.zeros_like(blocks.bias))

    def unpack(self, sums: Points) -> Points:
        return sums


@dataclasses.dataclass(frozen=True)
class Differences(InnerProducts):
    """Squared distances from differences of coordinates, exact for far points."""

    scale: jax.Array | float

    def logits(self, a: Points, b: Points) -> jax.Array:
        biases = a.bias[:, None] + b.bias[None, :]
        return biases - squared_distances(a.x, b.x, jnp.sqrt(self.scale / 2))

    def gradient_sums(self, weights: jax.Array, a: Points, b: Points) -> Points:
        sums = self.scale * weighted_differences(weights, a.x, b.x)
        return Points(sums, jnp.sum(weights, 1))


@dataclasses.dataclass(frozen=True)
class FoldedInnerProducts:
    """Inner products on an accelerator, which spends its time on moving blocks of logits.

    Biases are columns of the points, and sums of weights are a column of the product, so that
    neither takes a pass over a block. The sums of both are one array.
    """

    precision: Precision

    def logits(self, a: Points, b: Points) -> jax.Array:
        ones_a = [jnp.ones_like(a.bias)] * BIAS_PARTS
        ones_b = [jnp.ones_like(b.bias)] * BIAS_PARTS
        rows = append_columns(a.x, *bias_parts(a.bias), *ones_a)
        columns = append_columns(b.x, *ones_b, *bias_parts(b.bias))
        return matmul(rows, columns.T, self.precision)

    def gradient_sums(self, weights: jax.Array, a: Points, b: Points) -> jax.Array:
        return matmul(weights, append_columns(b.x, jnp.ones_like(b.bias)), self.precision)

    def zeros(self, blocks: Points) -> jax.Array:
        return jnp.zeros_like(append_columns(blocks.x, blocks.bias))

    def unpack(self, sums: jax.Array) -> Points:
        return Points(sums[..., :-1], sums[..., -1])


LogitForm = InnerProducts | FoldedInnerProducts


def inner_products(precision: Precision) -> LogitForm:
    """Return the form of inner products for this backend."""
    return InnerProducts() if on_cpu() else FoldedInnerProducts(precision)


def append_columns(x: jax.Array, *columns: jax.Array) -> jax.Array:
    return jnp.concatenate([x, *(column[..., None] for column in columns)], -1)


def bias_parts(bias: jax.Array) -> list[jax.Array]:
    """Split biases into parts that products of any precision represent exactly."""
    parts = []
    for _ in range(BIAS_PARTS - 1):
        parts.append(lax.reduce_precision(lax.stop_gradient(bias), 8, 7))  # bfloat16
        bias = bias - parts[-1]
    return [*parts, bias]


@jax.checkpoint  # Otherwise reverse over reverse keeps the coordinates of each pair.
def squared_distances(x: jax.Array, y: jax.Array, factor: jax.Array) -> jax.Array:
    """Return `|factor (x_i - y_j)|^2`, `[n, m]`.

    The factor is inside the square so that no product follows it. XLA fuses such a product with a
    later sum in some programs only, and logits of 1e10 that differ in their last digit differ by
    thousands.
    """
    if on_cpu():
        return jnp.sum(jnp.square(factor * (x[:, None] - y[None])), -1)

    @jax.checkpoint
    def add_chunk(total: jax.Array, chunk: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        gaps = (x_k[:, None] - y_k[None] for x_k, y_k in zip(*chunk, strict=True))
        return total + sum(jnp.square(factor * gap) for gap in gaps), None

    # XLA takes minutes to compile a sum over the last of three axes of a large block for a GPU.
    coordinates = (_chunks(x.T, CHUNK), _chunks(y.T, CHUNK))
    zeros = jnp.zeros_like(x, shape=(x.shape[0], y.shape[0]))
    return lax.scan(add_chunk, zeros, coordinates)[0]


def weighted_differences(weights: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """Return `sum_j P_ij (y_j - x_i)`, `[n, d]`.

    CPUs take one j at a time: all at once is ten times as slow, and larger chunks take longer to
    compile than they save.
    """

    @jax.checkpoint
    def add_chunk(total: jax.Array, chunk: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        terms = (p_j[:, None] * (y_j[None] - x) for p_j, y_j in zip(*chunk, strict=True))
        return total + sum(terms), None

    size = 1 if on_cpu() else CHUNK
    chunks = (_chunks(weights.T, size), _chunks(y, size))
    return lax.scan(add_chunk, jnp.zeros_like(x), chunks)[0]


def _chunks(x: jax.Array, size: int) -> jax.Array:
    """Split `[n, m]` into `[chunks, size, m]`; zeros pad the last chunk."""
    chunks = -(-x.shape[0] // size)
    x = jnp.pad(x, ((0, chunks * size - x.shape[0]), (0, 0)))
    return x.reshape(chunks, size, x.shape[1])
