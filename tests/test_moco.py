"""The queue of keys is MoCo's Algorithm 1, on any number of devices; the average is the paper's."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec
from points import sphere

from hypersphere_jax.moco import (
    KeyQueue,
    ema_update,
    momentum_schedule,
    queue_init,
    queue_push,
    queue_statistics,
)

DIM = 3
# Sizes of a queue, and of the batches that are pushed into it.
PUSHES = [
    (7, [3] * 12),  # no divisor of the queue: five wrap-arounds, each elsewhere
    (8, [4] * 6),  # a divisor, as MoCo's code demands
    (5, [2, 5, 2, 13, 13, 2]),  # the whole queue, from its middle; more: only the newest 5 stay
    (1, [3, 3]),
]
push = jax.jit(queue_push)


def first_in_first_out(start, batches, at=0):
    """MoCo's Algorithm 1, a key at a time: the newest takes the place of the oldest."""
    ring = np.array(start)
    for key in np.concatenate(batches):
        ring[at] = key
        at = 0 if at == len(ring) - 1 else at + 1
    return ring, at


def assert_same(queue, expected, case=""):
    keys, ptr = expected
    np.testing.assert_array_equal(queue.keys, keys, err_msg=str(case))
    assert int(queue.ptr) == ptr, case
    assert queue.keys.dtype == jnp.float32 and queue.ptr.dtype == jnp.int32
    assert queue.ptr.shape == ()


def test_queue_is_algorithm_1(rng):
    for case in PUSHES:
        start, pushed = sphere(rng, case[0], DIM), [sphere(rng, n, DIM) for n in case[1]]
        queue = KeyQueue(start, np.int32(0))
        for number, keys in enumerate(pushed):
            queue = push(queue, keys)
            assert_same(queue, first_in_first_out(start, pushed[: number + 1]), case)


def test_queue_begins_uniform_on_the_sphere():
    queue, other = (queue_init(jax.random.key(seed), 4000, DIM) for seed in (1, 2))
    assert queue.keys.shape == (4000, DIM) and int(queue.ptr) == 0
    assert queue.ptr.dtype == jnp.int32 and queue.keys.dtype == jnp.float32
    np.testing.assert_allclose(np.linalg.norm(queue.keys, axis=1), 1, rtol=1e-6)
    # Mean 0 and covariance I / d, to five standard errors.
    np.testing.assert_allclose(np.mean(queue.keys, axis=0), 0, atol=5 * (1 / 3 / 4000) ** 0.5)
    np.testing.assert_allclose(np.cov(queue.keys.T), np.eye(DIM) / DIM, atol=0.03)
    assert not np.array_equal(queue.keys, other.keys)


def test_keys_take_the_type_of_the_queue():
    # Without `jit`, as arrays of NumPy come, too.
    queue = queue_push(KeyQueue(np.zeros((4, DIM), np.float32), np.int32(3)), jnp.ones((2, DIM)))
    assert_same(queue, (np.array([[1] * 3, [0] * 3, [0] * 3, [1] * 3], np.float32), 1))
    half = KeyQueue(jnp.zeros((4, DIM), jnp.bfloat16), jnp.int32(0))
    assert push(half, np.ones((2, DIM), np.float32)).keys.dtype == jnp.bfloat16


def test_scan_and_vmap(rng):
    """Many queues, at pointers of their own, along many steps."""
    starts, ptrs = sphere(rng, 4 * 7, DIM).reshape(4, 7, DIM), np.arange(3, 7, dtype=np.int32)
    pushed = sphere(rng, 4 * 6 * 3, DIM).reshape(4, 6, 3, DIM)

    @jax.jit
    @jax.vmap
    def pushes(queue, batches):
        return jax.lax.scan(lambda q, keys: (queue_push(q, keys), None), queue, batches)[0]

    found = pushes(KeyQueue(starts, ptrs), pushed)
    for i, ptr in enumerate(ptrs):
        expected = first_in_first_out(starts[i], pushed[i], ptr)
        assert_same(KeyQueue(found.keys[i], found.ptr[i]), expected, i)


def test_every_device_has_the_queue_of_one(rng):
    mapped = jax.pmap(functools.partial(queue_push, axis_name="data"), axis_name="data")
    for size in (5, 20):  # less than a batch, and more
        batches, start = [sphere(rng, 16, DIM) for _ in range(3)], sphere(rng, size, DIM)
        each = KeyQueue(np.stack([start] * 8), np.zeros(8, np.int32))
        for keys in batches:
            each = mapped(each, keys.reshape(8, -1, DIM))
        expected = first_in_first_out(start, batches)
        for device in range(8):
            assert_same(KeyQueue(each.keys[device], each.ptr[device]), expected, size)


def test_shard_map_over_two_axes_knows_that_the_queue_is_everywhere_the_same(rng):
    keys, queue = sphere(rng, 16, DIM), KeyQueue(sphere(rng, 20, DIM), np.int32(0))
    names, whole = ("host", "device"), PartitionSpec()
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), names)
    specs = {"in_specs": (whole, PartitionSpec(names)), "out_specs": whole}
    one = functools.partial(queue_push, axis_name=names)
    found = jax.jit(jax.shard_map(one, mesh=mesh, **specs))(queue, keys)
    assert_same(found, first_in_first_out(queue.keys, [keys]))


def test_no_gradient_flows_through_queue_and_average(rng):
    held, keys, query = sphere(rng, 12, DIM).reshape(3, 4, DIM)

    @jax.jit
    @functools.partial(jax.grad, argnums=(0, 1, 2, 3))
    def slopes(query, keys, held, online):
        negatives = queue_push(KeyQueue(held, np.int32(0)), keys[:2]).keys
        average = ema_update(held, online, 0.5)
        return jnp.sum((query @ negatives.T) ** 2) + jnp.sum((query @ average.T) ** 2)

    to_query, *others = slopes(query, keys, held, keys)
    assert np.abs(to_query).max() > 0.01 and not np.any(others)


def test_queue_statistics_are_those_of_a_simulation():
    for batch, size in ((3, 7), (4, 8), (5, 5), (9, 4)):
        steps = np.arange(12)
        found = jax.jit(jax.vmap(lambda s, b=batch, k=size: queue_statistics(s, b, k)))(steps)
        ages = []  # oldest first
        for step in steps:
            case = f"{batch} of {size} keys, step {step}"
            np.testing.assert_allclose(found["queue_filled"][step], len(ages) / size, err_msg=case)
            age = np.mean(ages or [0])
            np.testing.assert_allclose(found["queue_age"][step], age, rtol=1e-6, err_msg=case)
            ages = ([age + 1 for age in ages] + [0] * batch)[-size:]
    # A product of step and batch beyond int32; MoCo's queue of 65536 has 256 batches of 256.
    long = queue_statistics(jnp.int32(2**31 - 1), 256, 65536)
    assert float(long["queue_filled"]) == 1 and float(long["queue_age"]) == 127.5


def test_average_is_a_geometric_series(rng):
    start, goal = rng.standard_normal((2, 4, 5)).astype(np.float32)
    first, online = {"a": [start], "b": (start[0],)}, {"a": [goal], "b": (goal[0],)}
    target, update = first, jax.jit(ema_update)
    for _ in range(50):
        target = update(target, online, 0.9)
    share = 0.9**50
    np.testing.assert_allclose(target["a"][0], share * start + (1 - share) * goal, rtol=1e-5)
    np.testing.assert_allclose(target["b"][0], target["a"][0][0], rtol=1e-6)
    for decay, expected in ((0.0, goal), (1.0, start)):  # one of both, to the bit
        np.testing.assert_array_equal(update(first, online, decay)["a"][0], expected)


def test_average_keeps_types_and_copies_counts(rng):
    old, new = (jnp.asarray(rng.standard_normal(100), jnp.bfloat16) for _ in range(2))
    target = {"w": old, "n": jnp.int32(1), "on": jnp.array(False)}
    online = {"w": new.astype(jnp.float32), "n": jnp.int32(7), "on": jnp.array(True)}
    found = ema_update(target, online, 0.99)
    assert found["n"].dtype == jnp.int32 and int(found["n"]) == 7 and bool(found["on"])
    # Rounded once, after the average in float32.
    expected = 0.99 * old.astype(jnp.float32) + (1 - 0.99) * new.astype(jnp.float32)
    np.testing.assert_array_equal(found["w"], expected.astype(jnp.bfloat16))
    assert found["w"].dtype == jnp.bfloat16


def test_decay_rises_by_half_a_cosine():
    steps = np.array([0, 1, 37, 50, 99, 100, 250])
    # BYOL: 1 - (1 - base) (cos(pi k / K) + 1) / 2.
    expected = 1 - (1 - 0.99) * (np.cos(np.pi * np.minimum(steps, 100) / 100) + 1) / 2
    schedule = momentum_schedule(0.99, 1.0, 100)
    np.testing.assert_allclose(jax.jit(jax.vmap(schedule))(steps), expected, atol=1e-7)
    down = momentum_schedule(0.8, 0.4, 10)
    np.testing.assert_allclose([down(0), down(5), down(10)], [0.8, 0.6, 0.4], rtol=1e-6)
    constant = momentum_schedule(0.999, 0.999, 100)
    assert [constant(s) for s in (0, 50, 1000)] == [0.999] * 3


def test_mistakes():
    zeros, key = jnp.zeros, jax.random.key(0)
    queue, none = (KeyQueue(zeros((k, DIM)), jnp.int32(0)) for k in (4, 0))
    w = {"w": zeros(3)}
    for words, call in (
        (r"\(2, 4\) and \(4, 3\)", lambda: queue_push(queue, zeros((2, 4)))),
        (r"\(3,\) and \(4, 3\)", lambda: queue_push(queue, zeros(3))),
        (r"\(1, 2, 3\) and \(4, 3\)", lambda: queue_push(queue, zeros((1, 2, 3)))),
        (r"k >= 1.*\(0, 3\)", lambda: queue_push(none, zeros((2, 3)))),
        ("size=0", lambda: queue_init(key, 0, DIM)),
        ("dim=0", lambda: queue_init(key, 4, 0)),
        ("batch=0", lambda: queue_statistics(1, 0, 4)),
        ("size=0", lambda: queue_statistics(1, 4, 0)),
        (r"\['w'\] is \(3,\) in target, \(1,\) in", lambda: ema_update(w, {"w": zeros(1)}, 0.9)),
        ("pytree", lambda: ema_update(w, {"v": zeros(3)}, 0.9)),
        *((r"in \[0, 1\]", functools.partial(ema_update, w, w, m)) for m in (-0.1, 1.1, np.nan)),
        ("momentum_schedule", lambda: momentum_schedule(-0.1, 1, 10)),
        ("momentum_schedule", lambda: momentum_schedule(0.9, 1.1, 10)),
        ("momentum_schedule", lambda: momentum_schedule(0.9, 1, 0)),
    ):
        with pytest.raises(ValueError, match=words):
            call()
