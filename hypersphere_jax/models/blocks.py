"""The blocks that the encoders are built of."""

import itertools

import jax
import jax.numpy as jnp
from flax import nnx

from hypersphere_jax.config import ModelConfig
from hypersphere_jax.models.convolution import convolution


class Normed(nnx.Module):
    """A convolution or dense layer without bias, then batch normalization, then an activation.

    `norm` makes the normalization of so many features, with `options`; see `norm.BatchNorm`.
    """

    def __init__(self, layer, features: int, *, norm, activation=nnx.relu, **options):
        self.layer = layer
        self.norm = norm(features, **options)
        self.activation = activation

    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        if self.activation is nnx.relu:
            return self.norm(self.layer(x), train, relu=True)
        return self.activation(self.norm(self.layer(x), train))


def conv(inputs, outputs, *, side=3, strides=1, init, dtype, rngs, **options) -> Normed:
    """A convolution of odd side, padded with zeros so that stride 1 keeps the size."""
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
    """A fully connected layer."""
    layer = nnx.Linear(
        inputs, outputs, use_bias=False, kernel_init=init.normed, dtype=dtype, rngs=rngs
    )
    return Normed(layer, outputs, **options)


def linear(inputs, outputs, *, init, **options) -> nnx.Linear:
    """A fully connected layer with a bias, and no normalization."""
    draws = {"kernel_init": init.linear, "bias_init": init.bias(inputs)}
    return nnx.Linear(inputs, outputs, **draws, **options)


def channels(base: int, config: ModelConfig) -> int:
    """A channel count times the config's width."""
    return max(1, round(base * config.width))


def max_pool(x: jax.Array, padding: int = 0) -> jax.Array:
    """Maximum over 3x3 windows with stride 2; without padding side s becomes (s - 1) // 2."""
    if jax.default_backend() == "gpu":
        return _max_of_slices(x, padding)
    return nnx.max_pool(x, (3, 3), strides=(2, 2), padding=((padding, padding),) * 2)


def _max_of_slices(x: jax.Array, padding: int) -> jax.Array:
    """The same of nine slices, one for each place in a window; of equal numbers the first counts.

    On GPUs XLA scatters the other form's gradient: in no fixed order, so that its bits differ from
    call to call, and three times the bytes are moved.
    """
    sides = ((0, 0), (padding, padding), (padding, padding), (0, 0))
    x = jnp.pad(x, sides, constant_values=-jnp.inf)
    _, h, w, _ = x.shape
    ends = h - (h - 3) % 2, w - (w - 3) % 2
    largest = x[:, : ends[0] - 2 : 2, : ends[1] - 2 : 2]
    for i, j in itertools.product(range(3), range(3)):
        y = x[:, i : ends[0] - 2 + i : 2, j : ends[1] - 2 + j : 2]
        largest = jnp.where((y > largest) | jnp.isnan(y), y, largest)
    return largest


def flatten(x: jax.Array) -> jax.Array:
    """`[n, ...]` to `[n, all]`."""
    return jnp.reshape(x, (x.shape[0], -1))
