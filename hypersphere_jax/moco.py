"""Momentum contrast (He et al. 2020): queue of keys, momentum encoder, shuffled batches.

All functions are pure. The queue is a pytree, which a train step takes and returns and a checkpoint
contains. The losses that take a queue are `info_nce_loss` and `uniform_queue_loss`.

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
    """The newest k keys, which are the negatives.

    Attributes:
      keys: `[k, d]` float32.
      ptr: int32 scalar, index of the oldest key, which the next key replaces.
    """

    keys: jax.Array
    ptr: jax.Array


def queue_init(rng: jax.Array, size: int, dim: int) -> KeyQueue:
    """Return a queue of random points on the unit hypersphere, MoCo's initial queue.

    Args:
      rng: random key.
      size: number of keys k, >= 1.
      dim: dimension d of the features, >= 1.

    Returns:
      A queue whose next key replaces key 0.

    Raises:
      ValueError: for a size or dim below 1.
    """
    if size < 1 or dim < 1:
        raise ValueError(f"queue_init needs size >= 1 and dim >= 1, got size={size}, dim={dim}")
    keys = l2_normalize(jax.random.normal(rng, (size, dim), jnp.float32))
    return KeyQueue(keys, jnp.zeros((), jnp.int32))


def queue_push(queue: KeyQueue, keys: jax.Array, *, axis_name: AxisName = None) -> KeyQueue:
    """Replace the oldest keys of a queue (MoCo, Algorithm 1).

    The i-th key goes to index `(ptr + i) mod k`, so that a batch may wrap around the end of the
    queue and its size need not divide k, unlike in MoCo's released code. A batch larger than the
    queue leaves its last k keys. No gradient flows through the queue.

    Args:
      queue: queue of k keys, the same on all devices.
      keys: `[n, d]`, any n; cast to the dtype of the queue.
      axis_name: mapped axis; the keys of all devices are pushed, in the order of the devices.

    Returns:
      The queue with the n keys (of all devices). `ptr` advances by n, modulo k.

    Raises:
      ValueError: for shapes that do not fit.
    """
    old = jnp.asarray(queue.keys)
    new = jnp.asarray(keys)
    if old.ndim != 2 or new.ndim != 2 or old.shape[1] != new.shape[1] or not len(old):
        raise ValueError(
            f"queue_push needs keys [n, d] for a queue [k, d] with k >= 1, "
            f"got {new.shape} and {old.shape}"
        )
    new = all_gather(new.astype(old.dtype), axis_name)
    k = len(old)
    n = len(new)
    ptr = jnp.asarray(queue.ptr)
    dropped = max(n - k, 0)
    indices = (ptr + dropped % k + jnp.arange(n - dropped, dtype=ptr.dtype)) % k
    updated = old.at[indices].set(new[dropped:], unique_indices=True)
    return KeyQueue(lax.stop_gradient(updated), (ptr + n % k) % k)


def queue_statistics(step: jax.Array | int, batch: int, size: int) -> dict[str, jax.Array]:
    r"""Return the filled share of a queue and the mean age of its keys.

    After s pushes of b keys, a queue of k contains :math:`f = \min(s b, k)` keys: of
    :math:`q = \lfloor f / b \rfloor` whole batches, and r = f - q b keys of one more batch.

    .. math::
        \mathrm{filled} = f / k, \qquad
        \mathrm{age} = \frac{1}{f} \Big( b \frac{q (q - 1)}{2} + r q \Big)

    The age of a key is the number of later pushes: 0 for the newest batch. Random initial keys do
    not count. The age of an empty queue is 0.

    Args:
      step: number of pushes s, >= 0; may be traced.
      batch: keys per push (of all devices) b, >= 1.
      size: keys in the queue k, >= 1.

    Returns:
      `queue_filled`: share of the queue with keys of the encoder, in [0, 1].
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
    # Later steps change nothing. The limit keeps the product below within int32.
    steps = jnp.minimum(step, -(-size // batch))
    filled = jnp.minimum(steps * batch, size)
    whole, rest = jnp.divmod(filled, batch)
    whole = whole.astype(jnp.float32)
    rest = rest.astype(jnp.float32)
    keys = filled.astype(jnp.float32)
    ages = batch * whole * (whole - 1) / 2 + rest * whole
    return {"queue_age": ages / jnp.maximum(keys, 1), "queue_filled": keys / size}


def ema_update(target: Any, online: Any, decay: jax.Array | float) -> Any:
    r"""Return the exponential moving average of parameters: the update of the momentum encoder.

    .. math:: \theta_{target} \leftarrow m \, \theta_{target} + (1 - m) \, \theta_{online}

    Source: MoCo, Eq. (2); m = 0.999 there and in Wang & Isola, B.2. The average is computed in
    float32 or wider. No gradient flows through it.

    Args:
      target: pytree of arrays, the current average.
      online: pytree of the same structure and shapes.
      decay: m in [0, 1], a float or a scalar array; see `momentum_schedule`.

    Returns:
      The new average, in the dtypes of `target`. Leaves that are not floating point, such as
      counts, are copied from `online`.

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
    r"""Return the schedule of the momentum encoder's decay.

    .. math:: m_s = m_{final} - (m_{final} - m_{base}) \frac{1 + \cos(\pi s / S)}{2}

    final = 1 is the schedule of BYOL and MoCo v3; final = base is MoCo's constant decay.

    Args:
      base: decay at step 0, in [0, 1].
      final: decay from step `steps`, in [0, 1].
      steps: number of steps S, >= 1.

    Returns:
      A function from the step, which may be traced, to the decay.

    Raises:
      ValueError: for a decay or a number of steps out of range.

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
        # A Python float keeps the digits of 1 - base.
        return lambda step: base
    return lambda step: (
        final - (final - base) * (1 + jnp.cos(math.pi * jnp.minimum(step, steps) / steps)) / 2
    )


def shuffle(
    x: Any, key: jax.Array, *, groups: int | None = None, axis_name: str | None = None
) -> tuple[Any, Callable[[Any], Any]]:
    """Shuffle a batch over the groups of batch norm (MoCo, Section 3.3).

    If a query and its key are normalized in the same group, the group's statistics reveal the
    positive. Keys are therefore encoded in other groups than their queries, and their features
    brought back. `permutation` describes the order.

    Groups are equal parts of the global batch, consecutive in the order of the devices. Samples are
    gathered from all devices. To move less data, `x` may contain indices instead of images.

    Args:
      x: array or pytree of arrays `[m, ...]`, this device's part of the batch.
      key: random key, the same on all devices; a new one in each step.
      groups: number of groups of the global batch; defaults to one per device.
      axis_name: mapped axis of the global batch.

    Returns:
      The arrays of this device after shuffling, and `undo(y)`, which returns arrays `[m, ...]` of
      the shuffled samples to the order and the devices of `x`.

    Raises:
      ValueError: for a batch that does not divide into the groups, or fewer than two groups.
    """
    devices = 1
    if axis_name is not None:
        devices = lax.axis_size(axis_name)
    if groups is None:
        groups = devices
    share = len(jax.tree.leaves(x)[0])
    order = permutation(key, share * devices, groups)

    def take(tree: Any, order: jax.Array) -> Any:
        start = 0
        if axis_name is not None:
            tree = jax.tree.map(lambda a: lax.all_gather(a, axis_name, tiled=True), tree)
            start = share * lax.axis_index(axis_name)
        mine = lax.dynamic_slice_in_dim(order, start, share)
        return jax.tree.map(lambda a: jnp.take(a, mine, axis=0), tree)

    return take(x, order), lambda y: take(y, jnp.argsort(order))


def permutation(key: jax.Array, n: int, groups: int) -> jax.Array:
    """Return a random order of n samples that spreads each group over the other groups.

    With g groups of s = n / g consecutive samples each, sample `order[p]` goes to index p: from
    group `order[p] // s` to group `p // s`. For three or more groups

    - no sample stays in its group;
    - at most ceil(s / (g - 1)) samples of a group are together in another group. This is the
      smallest possible number.

    Two groups cannot satisfy both: if no sample stayed, the groups would only swap names. There,
    half of each group stays, so that at most ceil(s / 2) samples of a group are together.

    The groups form a random circle. Each group deals its samples, in random order, to the groups 1,
    2, …, g - 1 places further along the circle, in an order of places that is random and common to
    all groups. Every group thereby receives the same number of samples.

    Args:
      key: random key.
      n: number of samples.
      groups: number of groups, >= 2.

    Returns:
      Integers `[n]`.

    Raises:
      ValueError: for n that does not divide into the groups, or fewer than two groups.
    """
    if groups < 2:
        raise ValueError(f"{groups} group(s): shuffling needs at least 2")
    if n % groups:
        raise ValueError(f"a batch of {n} does not divide into {groups} groups")
    size = n // groups
    ranks_key, steps_key, circle_key = jax.random.split(key, 3)
    keys = jax.random.split(ranks_key, groups)
    ranks = jax.vmap(lambda key: jax.random.permutation(key, size))(keys)
    least_step = 1 if groups > 2 else 0
    steps = jax.random.permutation(steps_key, jnp.arange(least_step, groups))
    circle = jax.random.permutation(circle_key, groups)
    places = jnp.argsort(circle)[:, None] + steps[ranks % len(steps)]
    return jnp.argsort(circle[places % groups].ravel())
