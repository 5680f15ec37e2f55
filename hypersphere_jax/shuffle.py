"""Shuffling the keys of a batch, so that batch norm's statistics do not give the positives away.

A query and its key that are normalized among the same images carry the same statistics, and by
these the key can be told from negatives without looking at what is in the image (He et al. 2020,
MoCo, 3.3). So keys are put into other groups before they are encoded, and their features are
brought back afterwards.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def shuffle(
    x: Any, key: jax.Array, *, groups: int | None = None, axis_name: str | None = None
) -> tuple[Any, Callable[[Any], Any]]:
    """Deals the samples of every group out over the other groups, see `permutation`.

    Groups are those of batch norm: equal parts of the global batch, consecutive in the devices'
    order. Samples are gathered from all devices, as MoCo does; `x` may be what they are made
    of, such as their numbers, which saves the images' way.

    Args:
      x: arrays `[m, ...]`, an array or a tree of them: this device's part of the batch.
      key: random key, the same on all devices, another one each step.
      groups: number of groups of the global batch; None: one a device.
      axis_name: a mapped axis, over which the batch lies.

    Returns:
      The same arrays of the samples that are now this device's, and `undo(y)`, which takes arrays
      `[m, ...]` of these samples and gives those of the samples in `x`, in their order.

    Raises:
      ValueError: when the batch does not divide into the groups, or there is but one group.
    """
    devices = 1 if axis_name is None else jax.lax.axis_size(axis_name)
    share = len(jax.tree.leaves(x)[0])
    order = permutation(key, share * devices, devices if groups is None else groups)

    def take(tree, order):
        start = 0
        if axis_name is not None:
            tree = jax.tree.map(lambda a: jax.lax.all_gather(a, axis_name, tiled=True), tree)
            start = share * jax.lax.axis_index(axis_name)
        mine = jax.lax.dynamic_slice_in_dim(order, start, share)
        return jax.tree.map(lambda a: jnp.take(a, mine, axis=0), tree)

    return take(x, order), lambda y: take(y, jnp.argsort(order))


def permutation(key: jax.Array, n: int, groups: int) -> jax.Array:
    """A random order of n samples that separates those of each group.

    With g groups of s = n / g consecutive samples each, sample `order[p]` goes to place p, so from
    group `order[p] // s` to group `p // s`. For three groups or more

    - no sample stays in its group,
    - of the samples of one group, at most ceil(s / (g - 1)) meet again in another group, which is
      the least that is possible: none meet again if there are more groups than samples in one.

    Of two groups both cannot be had: if no sample stays, they only change names. Then half of each
    stays, so that ceil(s / 2) samples of a group are together again.

    Every group's samples are dealt out in a random order, in turns, to the groups that come 1, 2,
    …, g - 1 places after it in a random circle, these steps being in random order too. All
    groups deal in the same steps, so that all get the same number.

    Args:
      key: random key.
      n: samples.
      groups: number of groups, at least 2.

    Returns:
      The order, integers `[n]`.

    Raises:
      ValueError: when n does not divide into the groups, or there is but one.
    """
    if groups < 2:
        raise ValueError(f"{groups} group(s): shuffling needs at least 2")
    if n % groups:
        raise ValueError(f"a batch of {n} does not divide into {groups} groups")
    size = n // groups
    ranks_key, steps_key, circle_key = jax.random.split(key, 3)
    ranks = jax.vmap(lambda key: jax.random.permutation(key, size))(
        jax.random.split(ranks_key, groups)
    )
    steps = jax.random.permutation(steps_key, jnp.arange(1 if groups > 2 else 0, groups))
    circle = jax.random.permutation(circle_key, groups)
    places = jnp.argsort(circle)[:, None] + steps[ranks % len(steps)]
    return jnp.argsort(circle[places % groups].ravel())
