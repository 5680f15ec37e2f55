"""A small convolutional network for images of 8 to 16 pixels."""

import jax
from flax import nnx

from hypersphere_jax.configs import ModelConfig
from hypersphere_jax.models import heads
from hypersphere_jax.models.blocks import channels, conv, flatten
from hypersphere_jax.models.initializers import scheme_of


class SmallCNN(nnx.Module):
    """Three 3x3 convolutions with batch norm and GELU (32, 64, 128 channels; strides 1, 2, 2).

    The background of a digit is one value in many pixels. With ReLU, rounding near the kink would
    decide about all of these pixels at once; runs on different numbers of devices would diverge.
    """

    min_image_size = 4
    layers = ("conv1", "conv2", "conv3", "backbone", *heads.LAYERS)

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        c1, c2, c3 = (channels(base, config) for base in (32, 64, 128))
        common = {"init": scheme_of(config), "dtype": config.dtype, "rngs": rngs}
        self.conv1 = conv(config.in_channels, c1, activation=nnx.gelu, **common)
        self.conv2 = conv(c1, c2, strides=2, activation=nnx.gelu, **common)
        self.conv3 = conv(c2, c3, strides=2, activation=nnx.gelu, **common)
        side = -(-config.image_size // 4)
        self.head = heads.Head(side * side * c3, config, layer="backbone", **common)

    def __call__(self, x: jax.Array, train: bool) -> dict[str, jax.Array]:
        outputs = {}
        for name in ("conv1", "conv2", "conv3"):
            outputs[name] = x = getattr(self, name)(x, train)
        outputs["backbone"] = flatten(x)
        return {**outputs, **self.head(outputs["backbone"], train)}
