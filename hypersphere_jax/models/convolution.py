"""A convolution that is also fast on CPU, in the place of `jax.lax.conv_general_dilated`."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from hypersphere_jax import xla_flags

WIDE = 16  # input channels of a convolution that Eigen computes fast


def convolution(
    x: jax.Array, kernel: jax.Array, strides: tuple[int, int], padding: Any, **options: Any
) -> jax.Array:
    """Convolves `[n, h, w, c]` with a kernel `[kh, kw, c, features]`; zero padding in pairs.

    On CPU, gathering the patches and multiplying is faster than XLA's convolution and its gradients
    where there are few input channels, strides or a kernel of 1 x 1, and everywhere unless Eigen
    computes them (`xla_flags.prefer_eigen_convolutions`): see `python run.py bench convolution`.
    Else, and for dilated or grouped convolutions, this is `jax.lax.conv_general_dilated`.
    """
    dilations = (*(options.get("lhs_dilation") or ()), *(options.get("rhs_dilation") or ()))
    plain = all(d == 1 for d in dilations) and options.get("feature_group_count", 1) == 1
    kh, kw, inputs, _ = kernel.shape
    wide = tuple(strides) == (1, 1) and kh * kw > 1 and inputs >= WIDE
    by_eigen = wide and xla_flags.has_eigen_convolutions()
    if jax.default_backend() != "cpu" or not plain or by_eigen:
        return jax.lax.conv_general_dilated(x, kernel, strides, padding, **options)
    return _by_patches(x, kernel, tuple(strides), tuple(padding))


# Checkpointed: the backward pass gathers the patches again, as they take kh * kw times the memory
# of the input, and gathering is cheap beside the product.
@functools.partial(jax.checkpoint, static_argnums=(2, 3))
def _by_patches(x, kernel, strides, padding):
    x = jnp.pad(x, ((0, 0), *padding, (0, 0)))
    kh, kw, inputs, outputs = kernel.shape
    n, h, w, _ = x.shape
    rows, columns = (h - kh) // strides[0] + 1, (w - kw) // strides[1] + 1
    shifted = [
        jax.lax.slice(
            x,
            (0, i, j, 0),
            (n, i + (rows - 1) * strides[0] + 1, j + (columns - 1) * strides[1] + 1, inputs),
            (1, *strides, 1),
        )
        for i in range(kh)
        for j in range(kw)
    ]
    patches = jnp.concatenate(shifted, axis=-1).reshape(n * rows * columns, kh * kw * inputs)
    return (patches @ kernel.reshape(-1, outputs)).reshape(n, rows, columns, outputs)
