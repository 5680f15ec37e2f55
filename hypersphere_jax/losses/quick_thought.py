"""Losses of Quick-Thought Vectors: consecutive sentences, two encoders (Wang & Isola, B.3).

`f` and `g` are the features of the same K consecutive sentences by two encoders. The positives of
f's sentence i are g's sentences i - 1 and i + 1, with weight 1/2 each; the first and the last
sentence have one neighbor, with weight 1. With `axis_name`, the sentences of the devices follow
each other in the order of the axis.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from hypersphere_jax.losses._pairwise.collectives import (
    global_positions,
    global_size,
    weighted_mean,
)
from hypersphere_jax.losses._pairwise.options import AxisName, PairOptions
from hypersphere_jax.losses._pairwise.pair_sets import PairsBetween
from hypersphere_jax.losses._pairwise.points import make_points
from hypersphere_jax.losses._pairwise.precision import Precision
from hypersphere_jax.losses._pairwise.reductions import mean_row_logsumexp
from hypersphere_jax.losses._pairwise.sharding import shard_over_mesh
from hypersphere_jax.losses._pairwise.validation import count_points, validate_features
from hypersphere_jax.losses.alignment_uniformity import distance_power, uniform_loss


@shard_over_mesh(sharded=("f", "g"), positive=("tau",))
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
    r"""Cross entropy between the neighbors of a sentence and the softmax over all K sentences.

    .. math::
        \frac{1}{K} \sum_i \Big( \log \sum_j e^{f_i^\top g_j / \tau} -
        \sum_{j = i \pm 1} w_{ij} f_i^\top g_j / \tau \Big)

    (Wang & Isola, B.3; Quick-Thought Vectors.) The denominator includes the sentence itself, j = i:
    the original masks it, which unit norm makes unnecessary. Shared options: see
    `hypersphere_jax.losses`.

    Args:
      f: `[K, d]` features of K >= 2 consecutive sentences, unit norm in the paper.
      g: `[K, d]` features of the same sentences by the other encoder.
      tau: temperature, > 0.

    Returns:
      float32 (or float64) scalar; `log K` when all features coincide.

    >>> f = jnp.array([[1.0, 0.0], [0.0, 1.0]])
    >>> round(float(quick_thought_contrastive_loss(f, f[::-1], tau=1.0)), 4)
    0.3133
    """
    f, g = _validate_sentences(f, g, axis_name)
    f = f / tau
    pairs = PairsBetween(PairOptions(axis_name, block_size, precision, ring))
    sums = mean_row_logsumexp(pairs, make_points(f), make_points(g))
    similarities: Any = sum(
        weight * jnp.sum(f * neighbor, axis=-1) for neighbor, weight in _neighbors(g, axis_name)
    )
    return sums - weighted_mean(similarities, None, axis_name)


@shard_over_mesh(sharded=("f", "g"), positive=("alpha",))
def quick_thought_align_loss(
    f: jax.Array,
    g: jax.Array,
    alpha: float = 2.0,
    *,
    axis_name: AxisName = None,
    mesh_axis: AxisName = None,
) -> jax.Array:
    r"""Alignment of neighboring sentences.

    .. math:: \frac{1}{K} \sum_i \sum_{j = i \pm 1} w_{ij} \|f_i - g_j\|_2^\alpha

    (Wang & Isola, B.3.) The sum that is printed there takes f before g only and counts the pairs
    unevenly; here a positive has the weight that it has in the contrastive loss, as the text says.
    Shared options: see `hypersphere_jax.losses`.

    Args:
      f: `[K, d]` features of K >= 2 consecutive sentences, unit norm in the paper.
      g: `[K, d]` features of the same sentences by the other encoder.
      alpha: power of the distance, > 0.

    Returns:
      float32 (or float64) scalar.

    >>> f = jnp.array([[1.0, 0.0], [0.0, 1.0]])
    >>> float(quick_thought_align_loss(f, f))
    2.0
    """
    f, g = _validate_sentences(f, g, axis_name)
    powers: Any = sum(
        weight * distance_power(f, neighbor, alpha) for neighbor, weight in _neighbors(g, axis_name)
    )
    return weighted_mean(powers, None, axis_name)


@shard_over_mesh(sharded=("f", "g"), positive=("t",))
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
    r"""Uniformity of the features of one encoder plus uniformity of the features of the other.

    .. math:: \mathcal{L}_{uniform}(f; t) + \mathcal{L}_{uniform}(g; t)

    (Wang & Isola, B.3, which prints the mean potentials without their logs. A sum and not a mean:
    these are two encoders.) Shared options: see `hypersphere_jax.losses`.

    Args:
      f: `[K, d]` features of K >= 2 sentences by one encoder, unit norm in the paper.
      g: `[K, d]` features of the same sentences by the other encoder.
      t: scale of the potential, > 0.

    Returns:
      float32 (or float64) scalar, at most 0.

    >>> f = jnp.array([[1.0, 0.0], [-1.0, 0.0]])
    >>> float(quick_thought_uniform_loss(f, f))
    -16.0
    """
    f, g = _validate_sentences(f, g, axis_name)
    uniform = functools.partial(
        uniform_loss,
        t=t,
        axis_name=axis_name,
        block_size=block_size,
        precision=precision,
        ring=ring,
    )
    return uniform(f) + uniform(g)


def _validate_sentences(
    f: jax.Array, g: jax.Array, axis_name: AxisName
) -> tuple[jax.Array, jax.Array]:
    f, g = validate_features(f, g, names="f, g")
    count_points(f, 2, "sentences", axis_name)
    return f, g


def _neighbors(g: jax.Array, axis_name: AxisName) -> list[tuple[jax.Array, jax.Array]]:
    """Return the sentence before and the sentence after each, `[K, d]`, and their weights `[K]`."""
    before = g[-1:]
    after = g[:1]
    if axis_name is not None:
        devices = lax.axis_size(axis_name)
        ahead = [(i, (i + 1) % devices) for i in range(devices)]
        behind = [((i + 1) % devices, i) for i in range(devices)]
        before = lax.ppermute(before, axis_name, ahead)
        after = lax.ppermute(after, axis_name, behind)
    position = global_positions(g.shape[0], axis_name)
    first = position == 0
    last = position == global_size(g.shape[0], axis_name) - 1
    weight_before = jnp.where(first, 0.0, jnp.where(last, 1.0, 0.5))
    weight_after = jnp.where(last, 0.0, jnp.where(first, 1.0, 0.5))
    return [
        (jnp.concatenate([before, g[:-1]]), weight_before),
        (jnp.concatenate([g[1:], after]), weight_after),
    ]
