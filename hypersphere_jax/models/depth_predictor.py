"""From an encoder's spatial features to a depth map: Table 6 of Wang & Isola."""

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

# Rows (or columns) of a transposed convolution's 3x3 kernel with stride 2, padded to 4 by a zero:
# those by which the input's rows i and i + 1 enter the output's row 2i, and its row 2i + 1.
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
    `output_padding=1`). The four parities of an output position, even and odd in both directions,
    are the channels of one ordinary 2x2 convolution: a quarter of the work of convolving the input
    with zeros between its rows and columns.

    Args:
      x: `[n, h, w, c]`.
      kernel: `[3, 3, c, features]`.

    Returns:
      `[n, 2h, 2w, features]`.
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


def create(
    shape: tuple[int, int, int], size: int, key: jax.Array, mean: float = 0.0
) -> tuple[Callable, functional.Tree, functional.Tree]:
    """A predictor with fresh parameters.

    Args:
      shape: of the features of one image, `(side, side, channels)`.
      size: side of the depth map, pixels.
      key: random key of the initialization.
      mean: of the depths: the initial bias of the last convolution, which Adam at the paper's
        rate would take some hundred steps to reach from 0.

    Returns:
      apply: `apply(params, stats, x, train) -> (depth, stats)`, with `x` float32
        `[n, side, side, channels]` and `depth` float32 `[n, size, size]`. When training, batch
        norm uses the statistics of the batch, and the running ones come back updated.
      params: nested dict of float32 arrays.
      stats: running statistics of batch norm, nested dict of float32 arrays.
    """
    apply, initial = _functions(shape, size)
    params, stats = initial(key)
    params["depth"]["bias"] = jnp.full(1, mean, jnp.float32)
    return apply, params, stats


@functools.lru_cache(maxsize=8)  # compiled once for all folds
def _functions(shape: tuple[int, int, int], size: int) -> tuple[Callable, Callable]:
    side, _, channels = shape

    def build(key):
        return DepthPredictor(channels, side, size, rngs=nnx.Rngs(key))

    builder = functional.Builder(build)
    return functools.partial(functional.call, builder.abstract()[0]), builder
