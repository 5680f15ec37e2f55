"""Layers of the encoders: convolution, dense layer, batch norm."""

import jax
import jax.numpy as jnp
from flax import nnx

from hypersphere_jax.configs import ModelConfig
from hypersphere_jax.models.norm import BatchNorm
from hypersphere_jax.models.ops import convolution, dot_general


class Normed(nnx.Module):
    """A convolution or dense layer without bias, then batch normalization, then an activation."""

    def __init__(self, layer, features: int, *, activation=nnx.relu, **options):
        self.layer = layer
        self.norm = BatchNorm(features, **options)
        self.activation = activation

    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        if self.activation is nnx.relu:
            return self.norm(self.layer(x), train, relu=True)
        return self.activation(self.norm(self.layer(x), train))


def conv(inputs, outputs, *, side=3, strides=1, init, dtype, rngs, **options) -> Normed:
    """Return a convolution of odd side, padded with zeros so that stride 1 keeps the size."""
    layer = nnx.Conv(
        inputs,
        outputs,
        (side, side),
        strides=strides,
        padding=side // 2,
        use_bias=False,
        kernel_init=init.conv,
        conv_general_dilated=convolution,
        dtype=dtype,
        rngs=rngs,
    )
    return Normed(layer, outputs, **options)


def dense(inputs, outputs, *, init, dtype, rngs, **options) -> Normed:
    """Return a fully connected layer with batch norm."""
    layer = nnx.Linear(
        inputs,
        outputs,
        use_bias=False,
        kernel_init=init.normed,
        dot_general=dot_general,
        dtype=dtype,
        rngs=rngs,
    )
    return Normed(layer, outputs, **options)


def linear(inputs, outputs, *, init, **options) -> nnx.Linear:
    """Return a fully connected layer with a bias and without batch norm."""
    return nnx.Linear(
        inputs,
        outputs,
        kernel_init=init.linear,
        bias_init=init.bias(inputs),
        dot_general=dot_general,
        **options,
    )


def channels(base: int, config: ModelConfig) -> int:
    """Return a number of channels, multiplied by the width of the config."""
    return max(1, round(base * config.width))


def flatten(x: jax.Array) -> jax.Array:
    """Return an array `[n, ...]` as `[n, features]`."""
    return jnp.reshape(x, (x.shape[0], -1))
