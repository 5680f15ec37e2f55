"""Momentum contrast (He et al., 2020): queue of keys, moving average of the encoder, shuffled keys.

Queue and average are state that goes in and comes out: the queue is a pytree that a step carries,
and a checkpoint holds, beside its parameters. The losses that take a queue are `info_nce_loss` and
`uniform_queue_loss`.

>>> import jax, jax.numpy as jnp
>>> queue = queue_init(jax.random.key(0), size=3, dim=2)
>>> queue = queue_push(queue, jnp.array([[1.0, 0.0], [0.0, 1.0]]))
>>> queue = queue_push(queue, jnp.array([[-1.0, 0.0], [0.0, -1.0]]))
>>> queue.keys.tolist(), int(queue.ptr)
([[0.0, -1.0], [0.0, 1.0], [-1.0, 0.0]], 1)
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from hypersphere_jax.losses import l2_normalize
from hypersphere_jax.losses._pairwise.collectives import all_gather
from hypersphere_jax.losses._pairwise.options import AxisName


class KeyQueue(NamedTuple):
    """The newest k keys, which serve as negatives.

    Attributes:
      keys: `[k, d]` float32.
      ptr: int32 scalar, the place that the next key takes: that of the oldest one.
    """

    keys: jax.Array
    ptr: jax.Array


def queue_init(rng: jax.Array, size: int, dim: int) -> KeyQueue:
    """A queue of random points on the unit hypersphere, as MoCo begins with.

    Args:
      rng: random key.
      size: number of keys k, >= 1.
      dim: dimension d of the features, >= 1.

    Returns:
      A queue whose next key takes place 0.

    Raises:
      ValueError: for a size or dim below 1.
    """
    if size < 1 or dim < 1:
        raise ValueError(f"queue_init needs size >= 1 and dim >= 1, got size={size}, dim={dim}")
    keys = l2_normalize(jax.random.normal(rng, (size, dim), jnp.float32))
    return KeyQueue(keys, jnp.zeros((), jnp.int32))


def queue_push(queue: KeyQueue, keys: jax.Array, *, axis_name: AxisName = None) -> KeyQueue:
    """Puts keys in the place of the oldest ones: first in, first out.

    The i-th key takes place `(ptr + i) mod k`, so a batch may run over the end of the queue, and
    its size need not divide k. Of a batch larger than the queue the last k keys stay. (MoCo's
    Algorithm 1; its released code demands a batch that divides the queue.) No gradient flows
    through the queue.

    Args:
      queue: of k keys.
      keys: `[n, d]`, any n; they take the type of the queue's keys.
      axis_name: a mapped axis: the keys of all devices enter, in the devices' order, the same on
        each device. The queue must be the same on each before.

    Returns:
      The queue with the n keys (of all devices), and `ptr` further by n, modulo k.

    Raises:
      ValueError: for shapes that do not fit.
    """
    held, new = jnp.asarray(queue.keys), jnp.asarray(keys)
    if held.ndim != 2 or new.ndim != 2 or held.shape[1] != new.shape[1] or not len(held):
        raise ValueError(
            f"queue_push needs keys [n, d] for a queue [k, d] with k >= 1, "
            f"got {new.shape} and {held.shape}"
        )
    new = all_gather(new.astype(held.dtype), axis_name)
    k, n = len(held), len(new)
    ptr = jnp.asarray(queue.ptr)
    left_out = max(n - k, 0)
    places = (ptr + left_out % k + jnp.arange(n - left_out, dtype=ptr.dtype)) % k
    held = held.at[places].set(new[left_out:], unique_indices=True)
    return KeyQueue(lax.stop_gradient(held), (ptr + n % k) % k)


def queue_statistics(step: jax.Array | int, batch: int, size: int) -> dict[str, jax.Array]:
    r"""How full a queue is, and how old its keys are, after a number of pushes of one size.

    With :math:`f = \min(s b, k)` keys from s steps of b keys, in a queue of k, of which
    :math:`q = \lfloor f / b \rfloor` whole batches and r = f - q b keys of one more,

    .. math::
        \mathrm{filled} = f / k, \qquad
        \mathrm{age} = \frac{1}{f} \Big( b \frac{q (q - 1)}{2} + r q \Big)

    A key's age is the number of pushes after its own: those of the newest batch have age 0. The
    random keys that a queue begins with have none, and an empty queue has age 0.

    Args:
      step: pushes done, s >= 0; may be traced.
      batch: keys in a push (of all devices), b >= 1.
      size: keys in the queue, k >= 1.

    Returns:
      `queue_filled`: share of the queue that holds keys of the encoder, in [0, 1].
      `queue_age`: mean age of these keys, in steps.

    Raises:
      ValueError: for a batch or size below 1.

    >>> {name: float(value) for name, value in queue_statistics(3, 2, 8).items()}
    {'queue_age': 1.0, 'queue_filled': 0.75}
    """
    if batch < 1 or size < 1:
        raise ValueError(
            f"queue_statistics needs batch >= 1 and size >= 1, got batch={batch}, size={size}"
        )
    # No later step changes anything; so their product with the batch stays within int32.
    steps = jnp.minimum(step, -(-size // batch))
    filled = jnp.minimum(steps * batch, size)
    whole, rest = jnp.divmod(filled, batch)
    whole, rest, keys = (count.astype(jnp.float32) for count in (whole, rest, filled))
    ages = batch * whole * (whole - 1) / 2 + rest * whole
    return {"queue_age": ages / jnp.maximum(keys, 1), "queue_filled": keys / size}


def ema_update(target: Any, online: Any, decay: jax.Array | float) -> Any:
    r"""The exponential moving average of parameters: the momentum encoder's.

    .. math:: \theta_{target} \leftarrow m \, \theta_{target} + (1 - m) \, \theta_{online}

    (MoCo, Eq. (2); m = 0.999 there and in Wang & Isola, B.2.) It is computed in float32 at least.
    No gradient flows through it.

    Args:
      target: pytree of arrays, the average so far.
      online: pytree of the same structure and shapes.
      decay: m in [0, 1], a float or a scalar array; see `momentum_schedule`.

    Returns:
      The new average, in the target's types. Leaves that are not floating point, such as counts,
      are those of `online`.

    Raises:
      ValueError: for trees or shapes that differ, or a decay out of range where it is known.

    >>> ema_update({"w": 1.0}, {"w": 3.0}, 0.75)["w"].item()
    1.5
    """
    if not isinstance(decay, jax.core.Tracer) and not 0 <= decay <= 1:
        raise ValueError(f"decay must be in [0, 1], got {decay}")

    def average(path: Any, old: Any, new: Any) -> jax.Array:
        old, new = jnp.asarray(old), jnp.asarray(new)
        if old.shape != new.shape:
            where = jax.tree_util.keystr(path)
            raise ValueError(f"ema_update: {where} is {old.shape} in target, {new.shape} in online")
        if not jnp.issubdtype(old.dtype, jnp.inexact):
            return new
        wide = jnp.promote_types(old.dtype, jnp.float32)
        mixed = decay * old.astype(wide) + (1 - decay) * new.astype(wide)
        return lax.stop_gradient(mixed.astype(old.dtype))

    return jax.tree_util.tree_map_with_path(average, target, online)


def momentum_schedule(
    base: float, final: float, steps: int
) -> Callable[[jax.Array | int], jax.Array | float]:
    r"""The momentum encoder's decay at each step of a run.

    .. math:: m_s = m_{final} - (m_{final} - m_{base}) \frac{1 + \cos(\pi s / S)}{2}

    With final = 1 it is BYOL's and MoCo v3's; with final = base it is MoCo's constant.

    Args:
      base: decay at step 0, in [0, 1].
      final: decay at step `steps` and after it, in [0, 1].
      steps: steps of the run S, >= 1.

    Returns:
      A function of the step, an integer or a traced one.

    Raises:
      ValueError: for a decay out of range, or no steps.

    >>> schedule = momentum_schedule(0.5, 1.0, steps=10)
    >>> [round(float(schedule(step)), 4) for step in (0, 5, 10)]
    [0.5, 0.75, 1.0]
    """
    if not (0 <= base <= 1 and 0 <= final <= 1 and steps >= 1):
        raise ValueError(
            f"momentum_schedule needs base and final in [0, 1] and steps >= 1, "
            f"got base={base}, final={final}, steps={steps}"
        )
    if base == final:
        # A Python float, so that one minus it keeps its digits.
        return lambda step: base
    return lambda step: (
        final - (final - base) * (1 + jnp.cos(math.pi * jnp.minimum(step, steps) / steps)) / 2
    )


def shuffle(
    x: Any, key: jax.Array, *, groups: int | None = None, axis_name: str | None = None
) -> tuple[Any, Callable[[Any], Any]]:
    """Deals the samples of every group out over the other groups, see `permutation`.

    A query and its key that are normalized among the same images carry the same statistics, and by
    these the key can be told from negatives without looking at what is in the image (MoCo, 3.3).
    So keys are put into other groups before they are encoded, and their features brought back.

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
    devices = 1 if axis_name is None else lax.axis_size(axis_name)
    share = len(jax.tree.leaves(x)[0])
    order = permutation(key, share * devices, devices if groups is None else groups)

    def take(tree: Any, order: jax.Array) -> Any:
        start = 0
        if axis_name is not None:
            tree = jax.tree.map(lambda a: lax.all_gather(a, axis_name, tiled=True), tree)
            start = share * lax.axis_index(axis_name)
        mine = lax.dynamic_slice_in_dim(order, start, share)
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
