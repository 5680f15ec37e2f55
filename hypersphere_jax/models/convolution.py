"""A convolution that is also fast on CPU, in the place of `jax.lax.conv_general_dilated`."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from hypersphere_jax.models import winograd


def convolution(
    x: jax.Array, kernel: jax.Array, strides: tuple[int, int], padding: Any, **options: Any
) -> jax.Array:
    """Convolves `[n, h, w, c]` with a kernel `[kh, kw, c, features]`; zero padding in pairs.

    On CPU, wide 3 x 3 ones with strides of 1 take Winograd's products, and all others a product of
    their patches, which is faster than XLA's convolution and its gradients: see
    `python run.py bench convolution`. Elsewhere, and for dilated or grouped convolutions, this is
    `jax.lax.conv_general_dilated`.
    """
    dilations = (*(options.get("lhs_dilation") or ()), *(options.get("rhs_dilation") or ()))
    plain = all(d == 1 for d in dilations) and options.get("feature_group_count", 1) == 1
    if jax.default_backend() != "cpu" or not plain:
        return jax.lax.conv_general_dilated(x, kernel, strides, padding, **options)
    padding = tuple(tuple(pair) for pair in padding)
    if tuple(strides) == (1, 1) and winograd.pays(x, kernel, padding):
        return winograd.convolution(x, kernel, padding)
    return _by_patches(x, kernel, tuple(strides), padding)


def _by_patches(x, kernel, strides, padding):
    kh, kw, inputs, outputs = kernel.shape
    (h, w), lows = x.shape[1:3], [sum(p) for p in padding]
    size = (h + lows[0] - kh) // strides[0] + 1, (w + lows[1] - kw) // strides[1] + 1

    def of_images(x):
        return _product(x, kernel, strides, padding, size)

    if kh * kw == 1 or kh * kw * inputs <= outputs:  # gathering takes little time
        return of_images(x)
    return winograd.in_blocks(of_images, size[0] * size[1] * kh * kw * inputs * 4, x)


# Checkpointed: the backward pass gathers the patches again, as they take kh * kw times the memory
# of the input, and gathering is cheap beside the product.
@functools.partial(jax.checkpoint, static_argnums=(2, 3, 4))
def _product(x, kernel, strides, padding, size):
    x = jnp.pad(x, ((0, 0), *padding, (0, 0)))
    kh, kw, inputs, outputs = kernel.shape
    (rows, columns), n = size, len(x)
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
