"""The blocks that the encoders are built of."""

import jax
import jax.numpy as jnp
from flax import nnx

from hypersphere_jax.config import ModelConfig
from hypersphere_jax.losses import l2_normalize
from hypersphere_jax.models.convolution import convolution

# He et al.: the variance that keeps activations constant through ReLU.
he_normal = nnx.initializers.variance_scaling(2.0, "fan_in", "truncated_normal")


class Normed(nnx.Module):
    """A convolution or dense layer without bias, then batch normalization, then an activation.

    Momentum (0.9 of the old statistics) and epsilon are PyTorch's defaults, which the papers used.
    """

    def __init__(
        self, layer: nnx.Module, features: int, *, activation=nnx.relu, axis_name, rngs: nnx.Rngs
    ):
        self.layer = layer
        self.activation = activation
        # The variance in two passes: E[x^2] - E[x]^2 cancels in channels that hardly vary, and
        # then rounding, which differs with the number of devices, is blown up by the division.
        self.norm = nnx.BatchNorm(
            features,
            momentum=0.9,
            epsilon=1e-5,
            use_fast_variance=False,
            axis_name=axis_name,
            rngs=rngs,
        )

    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        return self.activation(self.norm(self.layer(x), use_running_average=not train))


def conv(inputs: int, outputs: int, *, strides: int = 1, rngs: nnx.Rngs, **options) -> Normed:
    """A 3x3 convolution with zero padding 1, with `Normed`'s options."""
    layer = nnx.Conv(
        inputs,
        outputs,
        (3, 3),
        strides=strides,
        padding=1,
        use_bias=False,
        kernel_init=he_normal,
        conv_general_dilated=convolution,
        rngs=rngs,
    )
    return Normed(layer, outputs, rngs=rngs, **options)


def dense(inputs: int, outputs: int, *, rngs: nnx.Rngs, **options) -> Normed:
    """A fully connected layer, with `Normed`'s options."""
    layer = nnx.Linear(inputs, outputs, use_bias=False, kernel_init=he_normal, rngs=rngs)
    return Normed(layer, outputs, rngs=rngs, **options)


class Head(nnx.Module):
    """The linear map to the hypersphere, and a linear classifier on it when there are classes."""

    def __init__(self, inputs: int, config: ModelConfig, *, rngs: nnx.Rngs):
        self.output = nnx.Linear(inputs, config.dim, rngs=rngs)
        if config.num_classes:
            self.classifier = nnx.Linear(config.dim, config.num_classes, rngs=rngs)
        self.supervised = bool(config.num_classes)

    def __call__(self, x: jax.Array) -> dict[str, jax.Array]:
        output = l2_normalize(self.output(x))
        if self.supervised:
            return {"output": output, "logits": self.classifier(output)}
        return {"output": output}


def channels(base: int, config: ModelConfig) -> int:
    """A channel count times the config's width."""
    return max(1, round(base * config.width))


def max_pool(x: jax.Array) -> jax.Array:
    """Maximum over 3x3 windows with stride 2, without padding: side s becomes (s - 1) // 2."""
    return nnx.max_pool(x, (3, 3), strides=(2, 2))


def flatten(x: jax.Array) -> jax.Array:
    """`[n, ...]` to `[n, all]`."""
    return jnp.reshape(x, (x.shape[0], -1))
