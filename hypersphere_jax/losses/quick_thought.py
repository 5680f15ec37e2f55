"""Losses of Quick-Thought Vectors: consecutive sentences, two encoders (Wang & Isola, B.3).

`f` and `g` hold what the two encoders make of the same K consecutive sentences. The positives of
f's sentence i are g's sentences i - 1 and i + 1, with weight 1/2 each; the first and the last
sentence have one neighbour, with weight 1.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from hypersphere_jax.losses.alignment_uniformity import distance_power, uniform_loss
from hypersphere_jax.losses.common import at_least, features
from hypersphere_jax.losses.devices import AxisName, global_mean, pair_options
from hypersphere_jax.losses.mesh import on_mesh
from hypersphere_jax.losses.pairs import mean_log_sums_between, plain_points
from hypersphere_jax.losses.products import Precision


@on_mesh("f", "g")
def quick_thought_contrastive_loss(
    f: jax.Array,
    g: jax.Array,
    tau: float = 1.0,
    *,
    axis_name: AxisName = None,
    mesh_axis: AxisName = None,
    block_size: int | None = None,
    precision: Precision = "highest",
    ring: bool = False,
) -> jax.Array:
    r"""Cross entropy between a sentence's neighbours and the softmax over all K sentences.

    .. math::
        \frac{1}{K} \sum_i \Big( \log \sum_j e^{f_i^\top g_j / \tau} -
        \sum_{j = i \pm 1} w_{ij} f_i^\top g_j / \tau \Big)

    (Wang & Isola, B.3; Quick-Thought Vectors.) The sentence itself, j = i, counts in the
    denominator: the original masks it, which unit norm makes unnecessary.

    Args:
      f: `[K, d]` features of consecutive sentences by one encoder, unit norm in the paper.
      g: `[K, d]` features of the same sentences by the other encoder.
      tau: temperature, > 0.
      axis_name: a mapped axis: the devices' sentences follow each other in the axis' order.
      mesh_axis: of global arrays, the axis of the mesh that they are sharded along.
      block_size: points in a block, at most. None chooses.
      precision: of matrix products: "highest", "high" or "default", see docs/losses.md.
      ring: pass the devices' points along a ring, rather than gathering them on each.

    Returns:
      float32 (or float64) scalar; `log K` when all features coincide.

    Raises:
      ValueError: for shapes that differ, fewer than two sentences, or tau that is not positive.

    >>> import jax.numpy as jnp
    >>> f = jnp.array([[1.0, 0.0], [0.0, 1.0]])
    >>> round(float(quick_thought_contrastive_loss(f, f[::-1], tau=1.0)), 4)
    0.3133
    """
    f, g = _sentences(f, g, "quick_thought_contrastive_loss", axis_name)
    f = f / tau
    options = pair_options(block_size, axis_name, ring, precision)
    sums = mean_log_sums_between(plain_points(f), plain_points(g), options, columns=False)
    similarities = (
        weight * jnp.sum(f * neighbour, axis=-1) for neighbour, weight in _neighbours(g, axis_name)
    )
    return sums - global_mean(jnp.mean(sum(similarities)), axis_name)


@on_mesh("f", "g")
def quick_thought_align_loss(
    f: jax.Array,
    g: jax.Array,
    alpha: float = 2.0,
    *,
    axis_name: AxisName = None,
    mesh_axis: AxisName = None,
) -> jax.Array:
    r"""Alignment of neighbouring sentences.

    .. math:: \frac{1}{K} \sum_i \sum_{j = i \pm 1} w_{ij} \|f_i - g_j\|_2^\alpha

    (Wang & Isola, B.3.) The sum that is printed there takes f before g only and counts the pairs
    unevenly; here a positive has the weight that it has in the contrastive loss, as the text says.

    Args:
      f: `[K, d]` features of consecutive sentences by one encoder, unit norm in the paper.
      g: `[K, d]` features of the same sentences by the other encoder.
      alpha: power of the distance, > 0.
      axis_name: a mapped axis: the devices' sentences follow each other in the axis' order.
      mesh_axis: of global arrays, the axis of the mesh that they are sharded along.

    Returns:
      float32 (or float64) scalar.

    Raises:
      ValueError: for shapes that differ, fewer than two sentences, or alpha that is not positive.

    >>> import jax.numpy as jnp
    >>> f = jnp.array([[1.0, 0.0], [0.0, 1.0]])
    >>> float(quick_thought_align_loss(f, f))
    2.0
    """
    f, g = _sentences(f, g, "quick_thought_align_loss", axis_name)
    distances = (
        weight * distance_power(f, neighbour, alpha)
        for neighbour, weight in _neighbours(g, axis_name)
    )
    return global_mean(jnp.mean(sum(distances)), axis_name)


@on_mesh("f", "g")
def quick_thought_uniform_loss(
    f: jax.Array,
    g: jax.Array,
    t: float = 2.0,
    *,
    axis_name: AxisName = None,
    mesh_axis: AxisName = None,
    block_size: int | None = None,
    precision: Precision = "highest",
    ring: bool = False,
) -> jax.Array:
    r"""Uniformity of one encoder's features plus that of the other's.

    .. math:: \mathcal{L}_{uniform}(f; t) + \mathcal{L}_{uniform}(g; t)

    (Wang & Isola, B.3, which prints the mean potentials without their logs. A sum and not a mean:
    these are two encoders.)

    Args:
      f: `[K, d]` features of sentences by one encoder, unit norm in the paper.
      g: `[K, d]` features of the same sentences by the other encoder.
      t: scale of the potential, > 0.
      axis_name: a mapped axis: the sentences are those of all devices.
      mesh_axis: of global arrays, the axis of the mesh that they are sharded along.
      block_size: points in a block, at most. None chooses.
      precision: of matrix products: "highest", "high" or "default", see docs/losses.md.
      ring: pass the devices' points along a ring, rather than gathering them on each.

    Returns:
      float32 (or float64) scalar, at most 0.

    Raises:
      ValueError: for shapes that differ, fewer than two sentences, or t that is not positive.

    >>> import jax.numpy as jnp
    >>> f = jnp.array([[1.0, 0.0], [-1.0, 0.0]])
    >>> float(quick_thought_uniform_loss(f, f))
    -16.0
    """
    f, g = _sentences(f, g, "quick_thought_uniform_loss", axis_name)
    options: dict[str, Any] = {
        "axis_name": axis_name,
        "block_size": block_size,
        "precision": precision,
        "ring": ring,
    }
    return uniform_loss(f, t, **options) + uniform_loss(g, t, **options)


def _sentences(f: jax.Array, g: jax.Array, loss: str, axis_name: AxisName) -> tuple[jax.Array, ...]:
    f, g = features(f, g, names="f, g")
    at_least(2, loss, "sentence", f, axis_name=axis_name)
    return f, g


def _neighbours(g: jax.Array, axis_name: AxisName) -> list[tuple[jax.Array, jax.Array]]:
    """The sentence before and the one after each, `[K, d]`, and their weights `[K]`."""
    k, devices, me = g.shape[0], 1, 0
    before, after = g[-1:], g[:1]
    if axis_name is not None:
        devices, me = lax.axis_size(axis_name), lax.axis_index(axis_name)
        ahead = [(i, (i + 1) % devices) for i in range(devices)]
        before = lax.ppermute(before, axis_name, ahead)
        after = lax.ppermute(after, axis_name, [(to, of) for of, to in ahead])
    position = me * k + jnp.arange(k)
    first, last = position == 0, position == devices * k - 1
    return [
        (jnp.concatenate([before, g[:-1]]), jnp.where(first, 0.0, jnp.where(last, 1.0, 0.5))),
        (jnp.concatenate([g[1:], after]), jnp.where(last, 0.0, jnp.where(first, 1.0, 0.5))),
    ]
