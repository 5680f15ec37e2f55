"""ResNet-18, -34 and -50 (He et al. 2016) as in torchvision, for large and small images.

The 3x3 convolution of a bottleneck block has the stride ("version 1.5").
"""

import jax
import jax.numpy as jnp
from flax import nnx

from hypersphere_jax.configs import ModelConfig
from hypersphere_jax.models import heads
from hypersphere_jax.models.blocks import channels, conv
from hypersphere_jax.models.initializers import scheme_of
from hypersphere_jax.models.ops import max_pool


@jax.custom_jvp
def relu_of_sum(x: jax.Array) -> jax.Array:
    """ReLU of a sum; the derivative reads the result, because XLA would compute the sum again."""
    return nnx.relu(x)


@relu_of_sum.defjvp
def _(primals, tangents):
    y = jax.lax.optimization_barrier(relu_of_sum(*primals))
    return y, jnp.where(y > 0, tangents[0], jnp.zeros_like(y))


class Block(nnx.Module):
    """Residual block: convolutions, to whose result the input is added, then ReLU.

    With `expansion` 1 a basic block, of two 3x3 convolutions; with 4 a bottleneck, of 1x1, 3x3 and
    1x1 convolutions, the last with four times the channels.
    """

    def __init__(self, inputs: int, base: int, strides: int, *, expansion, last, **common):
        outputs = base * expansion
        self.bottleneck = expansion > 1
        plain = {"activation": jax.nn.identity, **common}
        if self.bottleneck:
            self.conv1 = conv(inputs, base, side=1, **common)
            self.conv2 = conv(base, base, strides=strides, **common)
            self.conv3 = conv(base, outputs, side=1, **last, **plain)
        else:
            self.conv1 = conv(inputs, base, strides=strides, **common)
            self.conv2 = conv(base, base, **last, **plain)
        if strides == 1 and inputs == outputs:
            self.downsample = None
        else:
            self.downsample = conv(inputs, outputs, side=1, strides=strides, **plain)

    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        inner = self.conv2(self.conv1(x, train), train)
        if self.bottleneck:
            inner = self.conv3(inner, train)
        if self.downsample is not None:
            x = self.downsample(x, train)
        return relu_of_sum(inner + x)


class Stage(nnx.Module):
    """Blocks with the same channels: `block0` (which has the stride), `block1` and so on."""

    def __init__(self, depth: int, inputs: int, base: int, strides: int, *, remat, **options):
        self.depth = depth
        self.remat = remat
        for number in range(depth):
            setattr(self, f"block{number}", Block(inputs, base, strides, **options))
            inputs = base * options["expansion"]
            strides = 1

    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        call = Block.__call__
        if self.remat and train:
            call = nnx.remat(call, static_argnums=2)
        for number in range(self.depth):
            x = call(getattr(self, f"block{number}"), x, train)
        return x


class ResNet(nnx.Module):
    """Stem ("conv1"), four stages ("layer1" to "layer4"), spatial average ("backbone"), head.

    The backbone has 512 features, or 2048 with bottlenecks. The stem is a 3x3 convolution ("cifar",
    He et al. 4.2 and SimCLR B.9), or a 7x7 convolution with stride 2 and a 3x3 maximum pool with
    stride 2 ("imagenet").
    """

    min_image_size = 8
    layers = ("conv1", "layer1", "layer2", "layer3", "layer4", "backbone", *heads.LAYERS)
    expansion: int
    depths: tuple[int, int, int, int]

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        init = scheme_of(config)
        common = {"init": init, "dtype": config.dtype, "rngs": rngs}
        width = channels(64, config)
        self.pooled = config.stem == "imagenet"
        stem = {}
        if self.pooled:
            stem = {"side": 7, "strides": 2}
        self.conv1 = conv(config.in_channels, width, **stem, **common)
        blocks = {"expansion": self.expansion, "remat": config.remat, "last": {}, **common}
        if config.zero_init_residual or init.zero_residual:
            blocks["last"] = {"scale": 0.0}
        strides = 1
        for number, depth in enumerate(self.depths):
            base = channels(64 * 2**number, config)
            setattr(self, f"layer{number + 1}", Stage(depth, width, base, strides, **blocks))
            width = base * self.expansion
            strides = 2
        self.head = heads.Head(width, config, layer="backbone", **common)

    def __call__(self, x: jax.Array, train: bool) -> dict[str, jax.Array]:
        outputs = {}
        x = self.conv1(x, train)
        if self.pooled:
            x = max_pool(x, padding=1)
        outputs["conv1"] = x
        for name in ("layer1", "layer2", "layer3", "layer4"):
            outputs[name] = x = getattr(self, name)(x, train)
        outputs["backbone"] = jnp.mean(x, axis=(1, 2), dtype=jnp.float32)
        return {**outputs, **self.head(outputs["backbone"], train)}


class ResNet18(ResNet):
    """11,176,512 parameters before the head (ImageNet stem, three channels)."""

    expansion, depths = 1, (2, 2, 2, 2)


class ResNet34(ResNet):
    """21,284,672 parameters before the head (ImageNet stem, three channels)."""

    expansion, depths = 1, (3, 4, 6, 3)


class ResNet50(ResNet):
    """23,508,032 parameters before the head (ImageNet stem, three channels)."""

    expansion, depths = 4, (3, 4, 6, 3)
