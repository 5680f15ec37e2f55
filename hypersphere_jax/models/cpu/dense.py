"""Product with a wide kernel whose gradient is fast on CPUs."""

import jax
import jax.numpy as jnp
from jax.lax import optimization_barrier

MIN_SIZE = 2**20  # weights of a kernel from which the gradient below is faster than XLA's


def is_faster(x: jax.Array, kernel: jax.Array) -> bool:
    """Return whether `product` is faster than XLA's product of these arrays."""
    return x.dtype == kernel.dtype == jnp.float32 and kernel.size >= MIN_SIZE


@jax.custom_vjp
def product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Return `x [n, k] @ kernel [k, m]`, with reverse-mode derivatives only."""
    return x @ kernel


def _forward(x, kernel):
    return x @ kernel, (x, kernel)


def _backward(residuals, cotangent):
    x, kernel = residuals
    # XLA would compute `cotangent @ kernel.T`, where Eigen reads the kernel across its rows and
    # takes three times as long. The barriers keep XLA from undoing the transposition.
    x_gradient = optimization_barrier(kernel @ optimization_barrier(cotangent.T))
    return x_gradient.T, x.T @ cotangent


product.defvjp(_forward, _backward)
