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

    On CPU, wide 3 x 3 ones with strides of 1 take Winograd's products, which have derivatives in
    reverse mode alone, and all others a product of their patches; both are faster than XLA's
    convolution and its gradients: see `python run.py bench convolution`. Elsewhere, and for dilated
    or grouped convolutions, this is `jax.lax.conv_general_dilated`.
    """
    dilations = (*(options.get("lhs_dilation") or ()), *(options.get("rhs_dilation") or ()))
    plain = all(d == 1 for d in dilations) and options.get("feature_group_count", 1) == 1
    if not on_cpu() or not plain:
        return jax.lax.conv_general_dilated(x, kernel, strides, padding, **options)
    padding = tuple(tuple(pair) for pair in padding)
    local = not any(map(is_sharded, (x, kernel)))
    if local and tuple(strides) == (1, 1) and winograd.pays(x, kernel, padding):
        return winograd.convolution(x, kernel, padding)
    return _by_patches(x, kernel, tuple(strides), padding, in_blocks=local)


def on_cpu() -> bool:
    return jax.default_backend() == "cpu"


def is_sharded(x: jax.Array) -> bool:
    """Whether its type says so: under `shard_map`, or along explicit axes of a mesh."""
    aval = jax.typeof(x)
    explicit = any(axis is not None for axis in aval.sharding.spec)
    return explicit or bool(aval.manual_axis_type.varying)


def _by_patches(x, kernel, strides, padding, in_blocks):
    kh, kw, inputs, outputs = kernel.shape
    h, w = (side + sum(pair) for side, pair in zip(x.shape[1:3], padding, strict=True))
    size = (h - kh) // strides[0] + 1, (w - kw) // strides[1] + 1

    def of_images(x):
        return _product(x, kernel, strides, padding, size)

    # Of few numbers gathering takes little time.
    if not in_blocks or kh * kw == 1 or kh * kw * inputs <= outputs:
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
