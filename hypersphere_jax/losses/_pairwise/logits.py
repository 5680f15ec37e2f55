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

from hypersphere_jax.losses._pairwise.far_points import squared_distances, weighted_differences
from hypersphere_jax.losses._pairwise.points import Points
from hypersphere_jax.losses._pairwise.precision import Precision, matmul, on_cpu

BIAS_PARTS = 3  # bfloat16 parts that represent a float32


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
