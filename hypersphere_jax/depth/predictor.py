"""Network from spatial features to a depth map (Wang & Isola, Table 6)."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from hypersphere_jax.models import functional
from hypersphere_jax.models.initializers import he_normal
from hypersphere_jax.models.norm import BatchNorm
from hypersphere_jax.models.ops import convolution

# Rows (or columns) of a 3x3 kernel, padded to 4 by a zero, in a transposed convolution with stride
# 2: the weights of input rows i and i + 1 in output row 2i, and in output row 2i + 1.
_TAPS = np.array([[1, 3], [2, 0]])


class DepthPredictor(nnx.Module):
    """Blocks that double the sides and halve the channels, and a convolution to one channel.

    A block is a transposed convolution (3x3, stride 2, padding 1), batch norm and ReLU. The number
    of blocks is log2(size / side), rounded, for features `[n, side, side, channels]`; the depth map
    is then resized to `[n, size, size]` (bilinear).
    """

    def __init__(self, channels: int, side: int, size: int, *, rngs: nnx.Rngs):
        self.size = size
        self.blocks = max(0, round(math.log2(size / side)))
        for number in range(self.blocks):
            halved = max(1, channels // 2)
            setattr(self, f"block{number + 1}", _Block(channels, halved, rngs=rngs))
            channels = halved
        self.depth = nnx.Conv(
            channels, 1, (3, 3), padding=1, conv_general_dilated=convolution, rngs=rngs
        )

    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        for number in range(self.blocks):
            x = getattr(self, f"block{number + 1}")(x, train)
        depth = self.depth(x)[..., 0]
        return jax.image.resize(depth, (len(x), self.size, self.size), "bilinear")


class _Block(nnx.Module):
    def __init__(self, inputs: int, outputs: int, *, rngs: nnx.Rngs):
        self.kernel = nnx.Param(he_normal(rngs.params(), (3, 3, inputs, outputs), jnp.float32))
        self.norm = BatchNorm(outputs)

    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        return nnx.relu(self.norm(transposed_convolution(x, self.kernel[...]), train))


def transposed_convolution(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Compute a 3x3 transposed convolution with stride 2 and padding 1 that doubles the sides.

    In each direction out[2i - 1 + k] sums x[i] kernel[k] over k = 0, 1, 2, like PyTorch with
    `output_padding=1`. The four parities of an output position are channels of one ordinary 2x2
    convolution, which takes a quarter of the work of convolving a dilated input. Shapes:
    `[n, h, w, c]` and `[3, 3, c, features]` to `[n, 2h, 2w, features]`.
    """
    n, h, w, inputs = x.shape
    outputs = kernel.shape[-1]
    padded = jnp.pad(kernel, ((0, 1), (0, 1), (0, 0), (0, 0)))
    # [even or odd row, row, even or odd column, column, c, features]: parities become channels.
    taps = padded[_TAPS][:, :, _TAPS].transpose(1, 3, 4, 0, 2, 5)
    parities = convolution(
        x,
        taps.reshape(2, 2, inputs, 4 * outputs),
        (1, 1),
        ((0, 1), (0, 1)),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    parities = parities.reshape(n, h, w, 2, 2, outputs)
    return jnp.swapaxes(parities, 2, 3).reshape(n, 2 * h, 2 * w, outputs)


@functools.lru_cache(maxsize=8)  # folds of any size share compiled programs
def make_predictor(shape: tuple[int, int, int], size: int) -> tuple[Callable, functional.Builder]:
    """Return `apply` and `initial` of a predictor.

    Args:
      shape: `(side, side, channels)` of the features of one image.
      size: side of the depth map in pixels.

    Returns:
      `apply(params, stats, x, train) -> (depth, stats)`, for `x` float32
      `[n, side, side, channels]`, and `initial(key) -> (params, stats)`.
    """
    side, _, channels = shape
    builder = functional.Builder(
        lambda key: DepthPredictor(channels, side, size, rngs=nnx.Rngs(key))
    )
    return functools.partial(functional.call, builder.abstract()[0]), builder
