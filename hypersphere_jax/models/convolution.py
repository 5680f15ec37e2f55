"""A convolution that is also fast on CPU, in the place of `jax.lax.conv_general_dilated`."""

import functools
from typing import Any

import jax
import jax.numpy as jnp


def convolution(
    x: jax.Array, kernel: jax.Array, strides: tuple[int, int], padding: Any, **options: Any
) -> jax.Array:
    """Convolves `[n, h, w, c]` with a kernel `[kh, kw, c, features]`; zero padding in pairs.

    On CPU, XLA's convolutions of this size and their gradients run at a fraction of the speed of
    its matrix product (`python run.py bench convolution` measures it); gathering the patches and
    multiplying is faster throughout. Elsewhere, and for dilated or grouped convolutions, this is
    `jax.lax.conv_general_dilated`.
    """
    dilations = (*(options.get("lhs_dilation") or ()), *(options.get("rhs_dilation") or ()))
    plain = all(d == 1 for d in dilations) and options.get("feature_group_count", 1) == 1
    if jax.default_backend() != "cpu" or not plain:
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
