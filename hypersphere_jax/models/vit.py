"""ViT-Tiny and ViT-Small (Dosovitskiy et al. 2021; Touvron et al. 2021) as in timm."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from hypersphere_jax.configs import ModelConfig
from hypersphere_jax.models import heads
from hypersphere_jax.models.blocks import channels
from hypersphere_jax.models.initializers import SCHEMES, scheme_of

EPSILON = 1e-6  # added to the variance in layer normalization
MLP_RATIO = 4
normal = nnx.initializers.normal(0.02)


class Block(nnx.Module):
    """Self-attention and a two-layer MLP with GELU, each after a layer norm and with a residual."""

    def __init__(self, width: int, attention_heads: int, dtype: Any, rngs: nnx.Rngs):
        self.heads = attention_heads
        self.norm1 = layer_norm(width, dtype, rngs)
        self.qkv = linear(width, 3 * width, dtype, rngs)
        self.proj = linear(width, width, dtype, rngs)
        self.norm2 = layer_norm(width, dtype, rngs)
        self.fc1 = linear(width, MLP_RATIO * width, dtype, rngs)
        self.fc2 = linear(MLP_RATIO * width, width, dtype, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self._attend(self.norm1(x))
        return x + self.fc2(nnx.gelu(self.fc1(self.norm2(x)), approximate=False))

    def _attend(self, x: jax.Array) -> jax.Array:
        qkv = self.qkv(x).reshape(*x.shape[:2], 3, self.heads, -1)
        query, key, value = jnp.moveaxis(qkv, 2, 0)
        attended = jax.nn.dot_product_attention(query, key, value)
        return self.proj(attended.reshape(x.shape))


class ViT(nnx.Module):
    """Patches, twelve blocks ("block1" to "block12"), layer norm of the pooled tokens, head.

    A block returns `[tokens, width]`, the class token first. "backbone" is the class token, or the
    mean over the other tokens (`pool` of the config), after the layer norm.
    """

    min_image_size = 4
    depth = 12
    layers = (*(f"block{number}" for number in range(1, 13)), "backbone", *heads.LAYERS)
    attention_heads: int  # each has 64 channels

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        width = self.attention_heads * channels(64, config)
        patch = config.patch_size
        inputs = patch * patch * config.in_channels
        tokens = 1 + (config.image_size // patch) ** 2
        self.pool = config.pool
        self.remat = config.remat
        # PyTorch's initialization of convolutions.
        self.patches = nnx.Conv(
            config.in_channels,
            width,
            (patch, patch),
            strides=patch,
            padding="VALID",
            kernel_init=SCHEMES["torch"].conv,
            bias_init=SCHEMES["torch"].bias(inputs),
            conv_general_dilated=_multiply_patches,
            dtype=config.dtype,
            rngs=rngs,
        )
        shape = (1, tokens, width)
        self.position_embedding = nnx.Param(normal(rngs.params(), shape, jnp.float32))
        small = nnx.initializers.normal(1e-6)
        self.class_token = nnx.Param(small(rngs.params(), (1, 1, width), jnp.float32))
        for number in range(1, self.depth + 1):
            block = Block(width, self.attention_heads, config.dtype, rngs)
            setattr(self, f"block{number}", block)
        self.norm = layer_norm(width, jnp.float32, rngs)
        common = {"init": scheme_of(config), "dtype": config.dtype, "rngs": rngs}
        self.head = heads.Head(width, config, layer="backbone", **common)

    def __call__(self, x: jax.Array, train: bool) -> dict[str, jax.Array]:
        outputs = {}
        x = self.patches(x)
        n, *_, width = x.shape
        token = jnp.broadcast_to(self.class_token[...].astype(x.dtype), (n, 1, width))
        x = jnp.concatenate([token, x.reshape(n, -1, width)], axis=1)
        x = x + self.position_embedding[...].astype(x.dtype)
        call = Block.__call__
        if self.remat and train:
            call = nnx.remat(call)
        for number in range(1, self.depth + 1):
            name = f"block{number}"
            outputs[name] = x = call(getattr(self, name), x)
        pooled = x[:, 0]
        if self.pool == "mean":
            pooled = jnp.mean(x[:, 1:], axis=1, dtype=jnp.float32)
        outputs["backbone"] = self.norm(pooled)
        return {**outputs, **self.head(outputs["backbone"], train)}


class ViTTiny(ViT):
    """5,524,416 parameters before the head (patches of 16 in images of 224 pixels)."""

    attention_heads = 3


class ViTSmall(ViT):
    """21,665,664 parameters before the head (patches of 16 in images of 224 pixels)."""

    attention_heads = 6


def layer_norm(width: int, dtype: Any, rngs: nnx.Rngs) -> nnx.LayerNorm:
    """Return a layer norm with float32 statistics, whose variance is of the centered features."""
    return nnx.LayerNorm(width, epsilon=EPSILON, dtype=dtype, use_fast_variance=False, rngs=rngs)


def linear(inputs: int, outputs: int, dtype: Any, rngs: nnx.Rngs) -> nnx.Linear:
    """Return a fully connected layer with a bias and timm's initialization."""
    return nnx.Linear(inputs, outputs, kernel_init=normal, dtype=dtype, rngs=rngs)


def _multiply_patches(x: jax.Array, kernel: jax.Array, strides, padding, **options) -> jax.Array:
    """Convolve with a stride of the kernel's size, as one matrix product."""
    side, _, channels, features = kernel.shape
    n, height, width, _ = x.shape
    x = x.reshape(n, height // side, side, width // side, side, channels)
    x = x.transpose(0, 1, 3, 2, 4, 5).reshape(n, height // side, width // side, -1)
    return x @ kernel.reshape(-1, features)
