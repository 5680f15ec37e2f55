"""The blocks that the encoders are built of."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from hypersphere_jax.config import ModelConfig
from hypersphere_jax.models.convolution import convolution

# He et al.: the variance that keeps activations constant through ReLU.
he_normal = nnx.initializers.variance_scaling(2.0, "fan_in", "truncated_normal")
# The same for gradients: PyTorch's for ResNets.
he_normal_out = nnx.initializers.variance_scaling(2.0, "fan_out", "normal")


class Normed(nnx.Module):
    """A convolution or dense layer without bias, then batch normalization, then an activation."""

    def __init__(self, layer: nnx.Module, norm: nnx.Module, activation: Callable = nnx.relu):
        self.layer = layer
        self.norm = norm
        self.activation = activation

    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        return self.activation(self.norm(self.layer(x), train))


def conv(
    inputs: int,
    outputs: int,
    *,
    side: int = 3,
    strides: int = 1,
    init: Callable = he_normal,
    activation: Callable = nnx.relu,
    norm: Callable,
    dtype: str,
    rngs: nnx.Rngs,
    **options,
) -> Normed:
    """A convolution of odd side, padded with zeros so that stride 1 keeps the size.

    Args:
      inputs: channels that enter.
      outputs: channels that leave.
      side: of the kernel.
      strides: in both directions.
      init: of the kernel.
      activation: after batch normalization.
      norm: makes the normalization of so many channels, with `options`; see `norm.BatchNorm`.
      dtype: to compute in.
      rngs: of the initialization.
      **options: of the normalization.
    """
    layer = nnx.Conv(
        inputs,
        outputs,
        (side, side),
        strides=strides,
        padding=side // 2,
        use_bias=False,
        kernel_init=init,
        conv_general_dilated=convolution,
        dtype=dtype,
        rngs=rngs,
    )
    return Normed(layer, norm(outputs, **options), activation)


def dense(
    inputs: int,
    outputs: int,
    *,
    activation: Callable = nnx.relu,
    norm: Callable,
    dtype: str,
    rngs: nnx.Rngs,
    **options,
) -> Normed:
    """A fully connected layer, with the options of `conv`."""
    layer = nnx.Linear(
        inputs, outputs, use_bias=False, kernel_init=he_normal, dtype=dtype, rngs=rngs
    )
    return Normed(layer, norm(outputs, **options), activation)


def channels(base: int, config: ModelConfig) -> int:
    """A channel count times the config's width."""
    return max(1, round(base * config.width))


def max_pool(x: jax.Array, padding: int = 0) -> jax.Array:
    """Maximum over 3x3 windows with stride 2; without padding side s becomes (s - 1) // 2."""
    return nnx.max_pool(x, (3, 3), strides=(2, 2), padding=((padding, padding),) * 2)


def flatten(x: jax.Array) -> jax.Array:
    """`[n, ...]` to `[n, all]`."""
    return jnp.reshape(x, (x.shape[0], -1))
