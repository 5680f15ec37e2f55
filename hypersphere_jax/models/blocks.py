"""The blocks that the encoders are built of."""

import functools
import itertools

import jax
import jax.numpy as jnp
from flax import nnx

from hypersphere_jax.configs import ModelConfig
from hypersphere_jax.models.convolution import convolution
from hypersphere_jax.models.dense import product
from hypersphere_jax.models.norm import BatchNorm


class Normed(nnx.Module):
    """A convolution or dense layer without bias, then batch normalization, then an activation."""

    def __init__(self, layer, features: int, *, activation=nnx.relu, **options):
        self.layer = layer
        self.norm = BatchNorm(features, **options)
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
        inputs,
        outputs,
        use_bias=False,
        kernel_init=init.normed,
        dot_general=product,
        dtype=dtype,
        rngs=rngs,
    )
    return Normed(layer, outputs, **options)


def linear(inputs, outputs, *, init, **options) -> nnx.Linear:
    """A fully connected layer with a bias, and no normalization."""
    draws = {"kernel_init": init.linear, "bias_init": init.bias(inputs)}
    return nnx.Linear(inputs, outputs, dot_general=product, **draws, **options)


def channels(base: int, config: ModelConfig) -> int:
    """A channel count times the config's width."""
    return max(1, round(base * config.width))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def max_pool(x: jax.Array, padding: int = 0) -> jax.Array:
    """Maximum over 3x3 windows with stride 2; without padding side s becomes (s - 1) // 2.

    Of equal numbers the first counts. XLA's gradient scatters: on CPUs it takes longer than the
    convolution before, on GPUs its order is not fixed, so that bits differ from call to call. Here
    each number looks up the windows that hold it, at most four.
    """
    return _largest(x, padding)[0]


@max_pool.defjvp
def _(padding, primals, tangents):
    (x,), (moved,) = primals, tangents
    largest, place = _largest(x, padding)
    back = functools.partial(_to_the_largest, place, padding, x.shape[1:3])
    # In reverse this is transposed once more, to `back`.
    return largest, jax.linear_transpose(back, largest)(moved)[0]


def _largest(x: jax.Array, padding: int) -> tuple[jax.Array, jax.Array]:
    """The maxima, and where each is in its window, 0 to 8."""
    around = ((0, 0), (padding, padding), (padding, padding), (0, 0))
    x = jnp.pad(x, around, constant_values=-jnp.inf)
    h, w = (side - (side - 3) % 2 for side in x.shape[1:3])
    largest, place = x[:, : h - 2 : 2, : w - 2 : 2], jnp.uint8(0)
    for k, (i, j) in enumerate(itertools.product(range(3), range(3))):
        y = x[:, i : h - 2 + i : 2, j : w - 2 + j : 2]
        larger = (y > largest) | jnp.isnan(y)
        largest, place = jnp.where(larger, y, largest), jnp.where(larger, jnp.uint8(k), place)
    return largest, place


def _to_the_largest(
    place: jax.Array, padding: int, sides: tuple[int, int], gradient: jax.Array
) -> jax.Array:
    """The gradient of a pool's input, of these sides, from that of its output."""
    odd = [jnp.arange(padding, padding + side) % 2 for side in sides]
    rows, columns = odd[0][None, :, None, None], odd[1][None, None, :, None]
    # Each window twice along both axes, as a number is in one or two along either.
    places, gradients = _doubled(place), _doubled(gradient)
    total = jnp.zeros((), gradient.dtype)
    for i, j in itertools.product((0, 2), (0, 2)):
        within = (rows + i < 3) & (columns + j < 3)
        here = jnp.where(within, 3 * (rows + i) + columns + j, 9).astype(jnp.uint8)
        first = padding + 2 - i, padding + 2 - j
        down, right = (slice(at, at + side) for at, side in zip(first, sides, strict=True))
        total += jnp.where(places[:, down, right] == here, gradients[:, down, right], 0)
    return total


def _doubled(x: jax.Array) -> jax.Array:
    x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    return jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)


def flatten(x: jax.Array) -> jax.Array:
    """`[n, ...]` to `[n, all]`."""
    return jnp.reshape(x, (x.shape[0], -1))
