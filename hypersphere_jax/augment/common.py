"""What the operations share: random numbers, the order of the axes, products with weights."""

import jax
import jax.numpy as jnp


def units(key, *shape):
    """Uniform numbers in [0, 1), one draw for each operation: draws are slow to compile."""
    return jax.random.uniform(key, shape, jnp.float32)


def between(unit, low, high):
    """Spread numbers in [0, 1) over [low, high)."""
    return low + (high - low) * unit


def planes(image):
    """See [h, w, c] as [c, h, w].

    Three channels are too few to fill a processor's vectors: with the width last, colour operations
    run three times as fast on CPU. Operations take and give [h, w, c] all the same, as the compiler
    drops the change back and forth between one and the next.
    """
    return jnp.moveaxis(image, -1, 0)


def pixels(planes):
    """See [c, h, w] as [h, w, c]."""
    return jnp.moveaxis(planes, 0, -1)


def weigh(image, rows, columns):
    """Weighted sums over the rows and the columns of an image.

    Two matrix products: under vmap they stay batched products, where a gather would be slow. Full
    precision, because accelerators by default round the inputs to 8 or 11 bits.

    Args:
      image: [h, w, c].
      rows: weights [out_height, h].
      columns: weights [out_width, w].

    Returns:
      [out_height, out_width, c].
    """
    image = jnp.einsum("oh,hwc->cow", rows, image, precision="highest")
    return pixels(jnp.einsum("cow,pw->cop", image, columns, precision="highest"))
