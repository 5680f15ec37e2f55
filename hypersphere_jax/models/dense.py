"""A product with wide weights whose gradient is fast on CPUs, in the place of `lax.dot_general`."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.lax import optimization_barrier

from hypersphere_jax.models.convolution import is_sharded, on_cpu

WIDE = 2**20  # weights from which it pays
ROWS_BY_COLUMNS = (((1,), (0,)), ((), ()))


def product(x: jax.Array, kernel: jax.Array, dimensions: Any, **options: Any) -> jax.Array:
    """`x [n, k] @ kernel [k, m]`, or what `lax.dot_general` makes of such arguments.

    On CPU, wide float32 ones that are not sharded have derivatives in reverse mode alone.
    """
    plain = x.ndim == 2 and dimensions == ROWS_BY_COLUMNS and not any(options.values())
    wide = x.dtype == kernel.dtype == jnp.float32 and kernel.size >= WIDE
    if plain and wide and on_cpu() and not any(map(is_sharded, (x, kernel))):
        return _product(x, kernel)
    return jax.lax.dot_general(x, kernel, dimensions, **options)


@jax.custom_vjp
def _product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return x @ kernel


def _forward(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return x @ kernel, (x, kernel)


def _backward(
    kept: tuple[jax.Array, jax.Array], cotangent: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, kernel = kept
    # Else the weights would be read across their rows, for which Eigen takes thrice as long.
    slopes = optimization_barrier(kernel @ optimization_barrier(cotangent.T))
    return slopes.T, x.T @ cotangent


_product.defvjp(_forward, _backward)
