"""From an encoder's spatial features to a depth map: Table 6 of Wang & Isola."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from hypersphere_jax.models.blocks import he_normal
from hypersphere_jax.models.convolution import convolution
from hypersphere_jax.models.norm import BatchNorm

# Of the 3 rows (or columns) of a transposed convolution's kernel with stride 2, those that the
# input's row i and i + 1 meet in the output's row 2i, and in 2i + 1. The last one is zero.
_TAPS = np.array([[1, 3], [2, 0]])


class DepthPredictor(nnx.Module):
    """Blocks that double the sides and halve the channels, then a convolution to one channel.

    A block is a transposed convolution (3x3, stride 2, padding 1), batch norm and ReLU. The paper's
    encoder divides the sides by a power of 2, and so many blocks give them back. For others, whose
    sides become 15 and 7 of 64, the number of blocks is the nearest whole one, and the depth map is
    resized (bilinear) to the sides that are asked for.
    """

    def __init__(self, channels: int, side: int, size: int, *, rngs: nnx.Rngs):
        self.size = size
        self.blocks = max(0, round(math.log2(size / side)))
        for number in range(self.blocks):
            halved = max(1, channels // 2)
            setattr(self, f"block{number + 1}", _Doubling(channels, halved, rngs=rngs))
            channels = halved
        self.depth = nnx.Conv(
            channels, 1, (3, 3), padding=1, conv_general_dilated=convolution, rngs=rngs
        )

    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        for number in range(self.blocks):
            x = getattr(self, f"block{number + 1}")(x, train)
        depth = self.depth(x)[..., 0]
        return jax.image.resize(depth, (len(x), self.size, self.size), "bilinear")


class _Doubling(nnx.Module):
    def __init__(self, inputs: int, outputs: int, *, rngs: nnx.Rngs):
        self.kernel = nnx.Param(he_normal(rngs.params(), (3, 3, inputs, outputs), jnp.float32))
        self.norm = BatchNorm(outputs)

    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        return nnx.relu(self.norm(doubled(x, self.kernel[...]), train))


def doubled(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Transposed convolution with stride 2, padding 1, and the output's sides twice the input's.

    In each direction, out[2i - 1 + k] sums x[i] kernel[k] over k = 0, 1, 2, as in PyTorch (with
    `output_padding=1`). The four kinds of output places, even and odd in both directions, are the
    channels of one ordinary convolution of 2x2: a quarter of the work of convolving the input with
    zeros between its rows and columns.

    Args:
      x: `[n, h, w, c]`.
      kernel: `[3, 3, c, features]`.

    Returns:
      `[n, 2h, 2w, features]`.
    """
    n, h, w, inputs = x.shape
    outputs = kernel.shape[-1]
    padded = jnp.pad(kernel, ((0, 1), (0, 1), (0, 0), (0, 0)))
    # [even or odd row, row, even or odd column, column, c, features]: the kinds become channels.
    taps = padded[_TAPS][:, :, _TAPS].transpose(1, 3, 4, 0, 2, 5)
    found = convolution(
        x,
        taps.reshape(2, 2, inputs, 4 * outputs),
        (1, 1),
        ((0, 1), (0, 1)),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    found = found.reshape(n, h, w, 2, 2, outputs)
    return jnp.swapaxes(found, 2, 3).reshape(n, 2 * h, 2 * w, outputs)


def create(
    shape: tuple[int, int, int], size: int, key: jax.Array, mean: float = 0.0
) -> tuple[Callable, dict[str, Any], dict[str, Any]]:
    """A predictor with fresh parameters.

    Args:
      shape: of the features of one image, `(side, side, channels)`.
      size: side of the depth map, pixels.
      key: random key of the initialization.
      mean: that of the depths: the initial bias of the last convolution. (From 0, some hundred
        steps of Adam at the paper's rate would go by before the bias is there.)

    Returns:
      apply: `apply(params, stats, x, train) -> (depth, stats)`, with `x` float32
        `[n, side, side, channels]` and `depth` float32 `[n, size, size]`. When training, batch
        norm uses the statistics of the batch, and the running ones come back updated.
      params: nested dict of float32 arrays.
      stats: running statistics of batch norm, nested dict of float32 arrays.
    """
    apply, initial = _functions(shape, size)
    return apply, *initial(key, mean)


@functools.lru_cache(maxsize=8)  # compiled once for all folds
def _functions(shape: tuple[int, int, int], size: int) -> tuple[Callable, Callable]:
    side, _, channels = shape

    def built(key, mean):
        model = DepthPredictor(channels, side, size, rngs=nnx.Rngs(key))
        model.depth.bias[...] = jnp.full(1, mean, jnp.float32)
        return nnx.split(model, nnx.Param, nnx.BatchStat)

    @jax.jit
    def initial(key, mean):
        _, params, stats = built(key, mean)
        return nnx.to_pure_dict(params), nnx.to_pure_dict(stats)

    graphdef, _, _ = nnx.eval_shape(lambda: built(jax.random.key(0), 0.0))

    def apply(params, stats, x, train):
        model = nnx.merge(graphdef, params, stats, copy=True)
        depth = model(x, train)
        return depth, nnx.to_pure_dict(nnx.state(model, nnx.BatchStat))

    return apply, initial
