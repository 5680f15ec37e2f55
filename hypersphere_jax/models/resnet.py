"""ResNet-18, -34 and -50 (He et al. 2016), in the form of torchvision, for large or small images.

In a bottleneck block the 3x3 convolution has the stride ("version 1.5").
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from hypersphere_jax.config import ModelConfig
from hypersphere_jax.models import heads
from hypersphere_jax.models.blocks import channels, conv, he_normal_out, max_pool


class Basic(nnx.Module):
    """Two 3x3 convolutions around which the input is added; ReLU comes after the sum."""

    expansion = 1

    def __init__(self, inputs: int, base: int, strides: int, last: dict, **common):
        plain = {"activation": jax.nn.identity, **common}
        self.conv1 = conv(inputs, base, strides=strides, **common)
        self.conv2 = conv(base, base, **last, **plain)
        self.downsample = _shortcut(inputs, base, strides, **plain)

    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        return _joined(self, x, self.conv2(self.conv1(x, train), train), train)


class Bottleneck(nnx.Module):
    """1x1, 3x3 and 1x1 convolutions, the last to four times the channels, and the sum as above."""

    expansion = 4

    def __init__(self, inputs: int, base: int, strides: int, last: dict, **common):
        plain = {"activation": jax.nn.identity, **common}
        outputs = base * self.expansion
        self.conv1 = conv(inputs, base, side=1, **common)
        self.conv2 = conv(base, base, strides=strides, **common)
        self.conv3 = conv(base, outputs, side=1, **last, **plain)
        self.downsample = _shortcut(inputs, outputs, strides, **plain)

    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        inner = self.conv2(self.conv1(x, train), train)
        return _joined(self, x, self.conv3(inner, train), train)


class Stage(nnx.Module):
    """Blocks of one size, the first of which may halve it: `block0`, `block1` and so on."""

    def __init__(self, block: type, depth: int, inputs: int, base: int, strides: int, **common):
        self.depth = depth
        for number in range(depth):
            made = block(inputs, base, strides if number == 0 else 1, **common)
            setattr(self, f"block{number}", made)
            inputs = base * block.expansion

    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        for number in range(self.depth):
            x = getattr(self, f"block{number}")(x, train)
        return x


class ResNet(nnx.Module):
    """The stem ("conv1", with its pool), four stages ("layer1" to "layer4"), their average, a head.

    The layer "backbone" is the average over all places of "layer4": 512 features, or 2048 of
    bottlenecks. The stem is a 3x3 convolution ("cifar", He et al. 4.2 and SimCLR B.9), or a 7x7
    convolution with stride 2 and a 3x3 maximum pool with stride 2 ("imagenet").
    """

    min_image_size = 8
    layers = ("conv1", "layer1", "layer2", "layer3", "layer4", "backbone", *heads.LAYERS)
    block: type
    depths: tuple[int, int, int, int]

    def __init__(self, config: ModelConfig, *, norm: Callable, rngs: nnx.Rngs):
        common = {"norm": norm, "dtype": config.dtype, "rngs": rngs}
        options = {"init": he_normal_out, **common}
        width = channels(64, config)
        self.pooled = config.stem == "imagenet"
        stem = {"side": 7, "strides": 2} if self.pooled else {}
        self.conv1 = conv(config.channels, width, **stem, **options)
        last = {"scale": 0.0} if config.zero_init_residual else {}
        inputs = width
        for number, depth in enumerate(self.depths):
            base = channels(64 * 2**number, config)
            stage = Stage(
                self.block, depth, inputs, base, 1 if number == 0 else 2, last=last, **options
            )
            setattr(self, f"layer{number + 1}", stage)
            inputs = base * self.block.expansion
        self.head = heads.Head(inputs, config, layer="backbone", **common)

    def __call__(self, x: jax.Array, train: bool) -> dict[str, jax.Array]:
        outputs = {}
        x = self.conv1(x, train)
        outputs["conv1"] = x = max_pool(x, padding=1) if self.pooled else x
        for name in ("layer1", "layer2", "layer3", "layer4"):
            outputs[name] = x = getattr(self, name)(x, train)
        outputs["backbone"] = jnp.mean(x, axis=(1, 2), dtype=jnp.float32)
        return {**outputs, **self.head(outputs["backbone"], train)}


class ResNet18(ResNet):
    """11,176,512 parameters before the head (ImageNet stem, three channels)."""

    block = Basic
    depths = (2, 2, 2, 2)


class ResNet34(ResNet):
    """21,284,672 parameters before the head (ImageNet stem, three channels)."""

    block = Basic
    depths = (3, 4, 6, 3)


class ResNet50(ResNet):
    """23,508,032 parameters before the head (ImageNet stem, three channels)."""

    block = Bottleneck
    depths = (3, 4, 6, 3)


def _shortcut(inputs: int, outputs: int, strides: int, **options) -> nnx.Module | None:
    if strides == 1 and inputs == outputs:
        return None
    return conv(inputs, outputs, side=1, strides=strides, **options)


def _joined(block: nnx.Module, x: jax.Array, inner: jax.Array, train: bool) -> jax.Array:
    shortcut = x if block.downsample is None else block.downsample(x, train)
    return nnx.relu(inner + shortcut)
