"""The queue against MoCo's Algorithm 1, the moving average against its geometric series."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import sphere
from jax.sharding import Mesh, PartitionSpec

from hypersphere_jax.losses import info_nce_loss
from hypersphere_jax.moco import (
    KeyQueue,
    ema_update,
    momentum_schedule,
    queue_init,
    queue_push,
    queue_statistics,
)

DIM = 3


def first_in_first_out(start, batches):
    """MoCo's Algorithm 1, a key at a time: the newest takes the place of the oldest."""
    ring, at = [list(map(float, key)) for key in start], 0
    for key in itertools.chain.from_iterable(batches):
        ring[at] = list(map(float, key))
        at = 0 if at == len(ring) - 1 else at + 1
    return np.array(ring, np.float32), at


def numbered(sizes):
    """Batches of keys that all differ: 1, 2, 3, … in every entry."""
    ends = np.cumsum(sizes)
    return [
        np.repeat(np.arange(end - n + 1, end + 1, dtype=np.float32)[:, None], DIM, axis=1)
        for n, end in zip(sizes, ends, strict=True)
    ]


def assert_same(queue, expected):
    keys, ptr = expected
    np.testing.assert_array_equal(queue.keys, keys)
    assert int(queue.ptr) == ptr
    assert queue.keys.dtype == jnp.float32 and queue.ptr.dtype == jnp.int32
    assert queue.ptr.shape == ()


@pytest.mark.parametrize(
    "size, batches",
    [
        (7, [3] * 12),  # no divisor of the queue: five wrap-arounds, each elsewhere
        (8, [4] * 6),  # a divisor, as MoCo's code demands
        (5, [5, 5, 5]),  # the whole queue
        (5, [2, 5, 5]),  # the whole queue, from its middle
        (4, [9]),  # more than the queue: only the newest 4 stay
        (4, [3, 9, 4, 11, 2]),
        (6, [4, 0, 1, 13, 6, 5, 27]),
        (1, [1, 2, 3]),
    ],
)
@pytest.mark.parametrize("jit", [False, True])
def test_queue_is_algorithm_1(size, batches, jit):
    push = jax.jit(queue_push) if jit else queue_push
    queue = queue_init(jax.random.key(0), size, DIM)
    start = np.asarray(queue.keys)
    pushed = numbered(batches)
    for number, keys in enumerate(pushed):
        queue = push(queue, keys)
        assert_same(queue, first_in_first_out(start, pushed[: number + 1]))
    # Seen from the pointer on, the newest keys stand last and in their order.
    count = min(size, sum(batches))
    in_order = np.roll(queue.keys, -int(queue.ptr), axis=0)[size - count :, 0]
    np.testing.assert_array_equal(in_order, sum(batches) - count + 1 + np.arange(count))


def test_queue_begins_uniform_on_the_sphere():
    queue = queue_init(jax.random.key(1), 4000, DIM)
    assert queue.keys.shape == (4000, DIM) and int(queue.ptr) == 0
    assert queue.ptr.dtype == jnp.int32 and queue.keys.dtype == jnp.float32
    np.testing.assert_allclose(np.linalg.norm(queue.keys, axis=1), 1, rtol=1e-6)
    # Mean 0 and covariance I / d, to five standard errors.
    np.testing.assert_allclose(np.mean(queue.keys, axis=0), 0, atol=5 * (1 / 3 / 4000) ** 0.5)
    np.testing.assert_allclose(np.cov(queue.keys.T), np.eye(DIM) / DIM, atol=0.03)
    other = queue_init(jax.random.key(2), 4000, DIM)
    assert not np.array_equal(queue.keys, other.keys)


def test_keys_take_the_type_of_the_queue():
    queue = KeyQueue(np.zeros((4, DIM), np.float32), np.int32(3))
    queue = queue_push(queue, jnp.ones((2, DIM), jnp.bfloat16))
    assert_same(queue, (np.array([[1] * 3, [0] * 3, [0] * 3, [1] * 3], np.float32), 1))
    half = KeyQueue(jnp.zeros((4, DIM), jnp.bfloat16), jnp.int32(0))
    assert queue_push(half, np.ones((2, DIM), np.float32)).keys.dtype == jnp.bfloat16


def test_queue_is_a_pytree():
    queue = queue_init(jax.random.key(0), 4, DIM)
    leaves, tree = jax.tree.flatten(queue)
    assert [leaf.shape for leaf in leaves] == [(4, DIM), ()]
    again = jax.tree.unflatten(tree, leaves)
    assert isinstance(again, KeyQueue) and again.keys is queue.keys and again.ptr is queue.ptr


def test_scan_and_donation():
    queue = queue_init(jax.random.key(0), 7, DIM)
    start, pushed = np.asarray(queue.keys), numbered([3] * 8)
    expected = first_in_first_out(start, pushed)
    scanned, _ = jax.lax.scan(lambda q, keys: (queue_push(q, keys), None), queue, np.stack(pushed))
    assert_same(scanned, expected)
    push = jax.jit(queue_push, donate_argnums=0)
    for keys in pushed:
        before, queue = queue, push(queue, keys)
    assert_same(queue, expected)
    assert before.keys.is_deleted()


def test_vmap_is_a_queue_for_each():
    queues = [queue_init(jax.random.key(i), 5, DIM)._replace(ptr=jnp.int32(i)) for i in range(4)]
    keys = np.random.default_rng(0).standard_normal((4, 3, DIM)).astype(np.float32)
    together = jax.vmap(queue_push)(jax.tree.map(lambda *leaves: jnp.stack(leaves), *queues), keys)
    for i, queue in enumerate(queues):
        alone = queue_push(queue, keys[i])
        np.testing.assert_array_equal(together.keys[i], alone.keys)
        assert together.ptr[i] == alone.ptr


@pytest.mark.parametrize("devices", [2, 4, 8])
@pytest.mark.parametrize("size", [5, 20, 64])
def test_every_device_has_the_queue_of_one(devices, size, rng):
    batches = [sphere(rng, 16, DIM) for _ in range(3)]
    start = alone = queue_init(jax.random.key(0), size, DIM)
    mapped = jax.pmap(
        functools.partial(queue_push, axis_name="data"),
        axis_name="data",
        devices=jax.devices()[:devices],
    )
    each = jax.tree.map(lambda leaf: np.stack([leaf] * devices), start)
    for keys in batches:
        alone = queue_push(alone, keys)
        each = mapped(each, keys.reshape(devices, -1, DIM))
    for device in range(devices):
        assert_same(KeyQueue(each.keys[device], each.ptr[device]), (alone.keys, int(alone.ptr)))


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("axes", ["data", ("host", "device")])
def test_shard_map_has_the_queue_of_one(axes, check_vma, rng):
    keys = sphere(rng, 16, DIM)
    start = queue_init(jax.random.key(0), 20, DIM)
    names = (axes,) if isinstance(axes, str) else axes
    shape = (4,) if len(names) == 1 else (2, 2)
    mapped = jax.jit(
        jax.shard_map(
            functools.partial(queue_push, axis_name=axes),
            mesh=Mesh(np.array(jax.devices()[:4]).reshape(shape), names),
            in_specs=(PartitionSpec(), PartitionSpec(axes)),
            out_specs=PartitionSpec(),
            check_vma=check_vma,
        )
    )
    alone = queue_push(queue_push(start, keys), keys)
    assert_same(mapped(mapped(start, keys), keys), (alone.keys, int(alone.ptr)))


def test_no_gradient_flows_through_the_queue(rng):
    queue = queue_init(jax.random.key(0), 6, DIM)
    query, keys = sphere(rng, 4, DIM), sphere(rng, 4, DIM)

    def loss(query, keys, held):
        negatives = queue_push(KeyQueue(held, queue.ptr), keys).keys
        return info_nce_loss(query, jax.lax.stop_gradient(keys), negatives)

    to_query, to_keys, to_held = jax.grad(loss, argnums=(0, 1, 2))(query, keys, queue.keys)
    assert np.abs(to_query).max() > 0.01
    np.testing.assert_array_equal(to_keys, 0)
    np.testing.assert_array_equal(to_held, 0)


def test_queue_mistakes():
    queue = queue_init(jax.random.key(0), 4, DIM)
    for shape in ((2, DIM + 1), (DIM,), (1, 2, DIM)):
        with pytest.raises(ValueError) as error:
            queue_push(queue, jnp.zeros(shape))
        assert str(shape) in str(error.value) and "(4, 3)" in str(error.value)
    with pytest.raises(ValueError, match=r"k >= 1.*\(0, 3\)"):
        queue_push(KeyQueue(jnp.zeros((0, DIM)), jnp.int32(0)), jnp.zeros((2, DIM)))
    with pytest.raises(ValueError, match="size=0"):
        queue_init(jax.random.key(0), 0, DIM)
    with pytest.raises(ValueError, match="dim=0"):
        queue_init(jax.random.key(0), 4, 0)
    with pytest.raises(ValueError, match="batch=0"):
        queue_statistics(1, 0, 4)


@pytest.mark.parametrize("batch, size", [(3, 7), (4, 8), (5, 5), (9, 4), (1, 6)])
def test_queue_statistics_are_those_of_a_simulation(batch, size):
    ages = []  # oldest first
    statistics = jax.jit(functools.partial(queue_statistics, batch=batch, size=size))
    for step in range(12):
        for found in (queue_statistics(step, batch, size), statistics(jnp.int32(step))):
            np.testing.assert_allclose(found["queue_filled"], len(ages) / size, rtol=1e-6)
            np.testing.assert_allclose(found["queue_age"], np.mean(ages or [0]), rtol=1e-6)
        ages = ([age + 1 for age in ages] + [0] * batch)[-size:]


def test_queue_statistics_of_a_long_run():
    # The product of step and batch is beyond int32; MoCo's queue of 65536 has 256 batches of 256.
    found = queue_statistics(jnp.int32(2**31 - 1), 256, 65536)
    assert float(found["queue_filled"]) == 1 and float(found["queue_age"]) == 127.5


def test_ema_is_a_geometric_series(rng):
    start, goal = rng.standard_normal((2, 4, 5)).astype(np.float32)
    target, online = {"a": [start], "b": (start[0],)}, {"a": [goal], "b": (goal[0],)}
    update = jax.jit(ema_update)
    for _ in range(50):
        target = update(target, online, 0.9)
    share = 0.9**50
    np.testing.assert_allclose(target["a"][0], share * start + (1 - share) * goal, rtol=1e-5)
    np.testing.assert_allclose(target["b"][0], target["a"][0][0], rtol=1e-6)
    # A goal that moves: the sum of (1 - m) m^(T - s) x_s.
    path = rng.standard_normal(30).astype(np.float32)
    average = np.float32(0)
    for value in path:
        average = ema_update(average, value, 0.8)
    expected = sum(0.2 * 0.8 ** (29 - s) * float(x) for s, x in enumerate(path))
    np.testing.assert_allclose(average, expected, rtol=1e-5)


def test_ema_keeps_types_and_copies_counts(rng):
    target = {"w": jnp.zeros(3, jnp.bfloat16), "n": jnp.int32(1), "on": jnp.array(False)}
    online = {"w": jnp.full(3, 8.0), "n": jnp.int32(7), "on": jnp.array(True)}
    found = ema_update(target, online, 0.75)
    assert found["w"].dtype == jnp.bfloat16 and found["n"].dtype == jnp.int32
    np.testing.assert_array_equal(found["w"].astype(jnp.float32), 2)
    assert int(found["n"]) == 7 and bool(found["on"])
    # Rounded once, after the average in float32.
    old, new = (jnp.asarray(rng.standard_normal(100), jnp.bfloat16) for _ in range(2))
    expected = 0.99 * old.astype(jnp.float32) + (1 - 0.99) * new.astype(jnp.float32)
    np.testing.assert_array_equal(ema_update(old, new, 0.99), expected.astype(jnp.bfloat16))


def test_ema_ends():
    old, new = jnp.asarray([1.0, -2.0]), jnp.asarray([3.0, 5.0])
    np.testing.assert_array_equal(ema_update(old, new, 0), new)
    np.testing.assert_array_equal(ema_update(old, new, 1), old)
    gradient = jax.grad(lambda x: jnp.sum(ema_update(old, x, 0.5)))(new)
    np.testing.assert_array_equal(gradient, 0)


def test_ema_mistakes():
    with pytest.raises(ValueError, match=r"\['w'\] is \(3,\) in target, \(1,\) in online"):
        ema_update({"w": jnp.zeros(3)}, {"w": jnp.zeros(1)}, 0.9)
    with pytest.raises(ValueError):
        ema_update({"w": jnp.zeros(3)}, {"v": jnp.zeros(3)}, 0.9)
    for decay in (-0.1, 1.1, float("nan"), jnp.float32(2)):
        with pytest.raises(ValueError, match=r"in \[0, 1\]"):
            ema_update(jnp.zeros(3), jnp.zeros(3), decay)


def test_momentum_schedule():
    steps = np.array([0, 1, 37, 50, 99, 100, 250])
    # BYOL: 1 - (1 - base) (cos(pi k / K) + 1) / 2.
    expected = 1 - (1 - 0.99) * (np.cos(np.pi * np.minimum(steps, 100) / 100) + 1) / 2
    schedule = momentum_schedule(0.99, 1.0, 100)
    for read in (schedule, jax.jit(schedule)):
        np.testing.assert_allclose([read(int(s)) for s in steps], expected, atol=1e-7)
    down = momentum_schedule(0.8, 0.4, 10)
    np.testing.assert_allclose([down(0), down(5), down(10)], [0.8, 0.6, 0.4], rtol=1e-6)
    constant = momentum_schedule(0.999, 0.999, 100)
    assert [constant(s) for s in (0, 50, 1000)] == [0.999] * 3
    for wrong in ((-0.1, 1, 10), (0.9, 1.1, 10), (0.9, 1, 0)):
        with pytest.raises(ValueError, match="momentum_schedule"):
            momentum_schedule(*wrong)
