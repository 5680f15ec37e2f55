"""MoCo's queue of keys and moving average; shuffled keys, and the way back."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec
from points import sphere

from hypersphere_jax import moco
from hypersphere_jax.moco import KeyQueue, ema_update, permutation, queue_push, shuffle

DIM = 3


def first_in_first_out(start, batches):
    """MoCo's Algorithm 1, a key at a time: the newest takes the place of the oldest."""
    ring, at = np.array(start), 0
    for key in np.concatenate(batches):
        ring[at] = key
        at = 0 if at == len(ring) - 1 else at + 1
    return ring, at


def assert_same(queue, expected):
    np.testing.assert_array_equal(queue.keys, expected[0])
    assert (queue.ptr.shape, int(queue.ptr)) == ((), expected[1])
    assert queue.keys.dtype == jnp.float32 and queue.ptr.dtype == jnp.int32


def test_queue_is_algorithm_1(rng):
    # Batches divide the queue (as MoCo's code demands), or do not, or are longer: 5 keys stay.
    for size, lengths in ((8, [4] * 6), (7, [3] * 6), (5, [2, 5, 2, 13, 13, 2])):
        start, pushed = sphere(rng, size, DIM), [sphere(rng, n, DIM) for n in lengths]
        queue, push = KeyQueue(start, np.int32(0)), jax.jit(queue_push)
        for number, keys in enumerate(pushed):
            queue = push(queue, keys)
            assert_same(queue, first_in_first_out(start, pushed[: number + 1]))


def test_queue_begins_uniform_on_the_sphere():
    (keys, ptr), other = (moco.queue_init(jax.random.key(seed), 4000, DIM) for seed in (1, 2))
    assert keys.shape == (4000, DIM) and int(ptr) == 0 and not np.array_equal(keys, other.keys)
    np.testing.assert_allclose(np.linalg.norm(keys, axis=1), 1, rtol=1e-6)
    # Mean 0 and covariance I / d, to five standard errors.
    np.testing.assert_allclose(np.mean(keys, axis=0), 0, atol=5 * (1 / 3 / 4000) ** 0.5)
    np.testing.assert_allclose(np.cov(keys.T), np.eye(DIM) / DIM, atol=0.03)


def test_every_device_has_the_queue_of_one(rng):
    mapped = jax.pmap(functools.partial(queue_push, axis_name="data"), axis_name="data")
    for size in (5, 20):  # less than a batch, and more
        batches, start = [sphere(rng, 16, DIM) for _ in range(3)], sphere(rng, size, DIM)
        each = KeyQueue(np.stack([start] * 8), np.zeros(8, np.int32))
        for keys in batches:
            each = mapped(each, keys.reshape(8, -1, DIM))
        for one in map(KeyQueue, *each):
            assert_same(one, first_in_first_out(start, batches))


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


@pytest.mark.parametrize("batch, size", [(3, 7), (4, 8), (5, 5), (9, 4)])
def test_queue_statistics_are_those_of_a_simulation(batch, size):
    found = jax.jit(jax.vmap(lambda step: moco.queue_statistics(step, batch, size)))(np.arange(12))
    ages = []  # oldest first
    for filled, age in zip(found["queue_filled"], found["queue_age"], strict=True):
        np.testing.assert_allclose([filled, age], [len(ages) / size, np.mean(ages or [0])], 1e-6)
        ages = ([age + 1 for age in ages] + [0] * batch)[-size:]
    # A product of step and batch beyond int32; MoCo's queue of 65536 has 256 batches of 256.
    long = moco.queue_statistics(jnp.int32(2**31 - 1), 256, 65536)
    assert float(long["queue_filled"]) == 1 and float(long["queue_age"]) == 127.5


def test_average_is_a_geometric_series(rng):
    start, goal = rng.standard_normal((2, 4, 5)).astype(np.float32)
    target, update = {"a": [start]}, jax.jit(ema_update)
    for decay, expected in ((0.0, goal), (1.0, start)):  # one of both, to the bit
        found = update(target, {"a": [goal]}, decay)["a"][0]
        np.testing.assert_array_equal(found, expected)
    for _ in range(50):
        target = update(target, {"a": [goal]}, 0.9)
    expected = 0.9**50 * start + (1 - 0.9**50) * goal
    np.testing.assert_allclose(target["a"][0], expected, rtol=1e-5)


def test_average_keeps_types_and_copies_counts(rng):
    old, new = (jnp.asarray(rng.standard_normal(100), jnp.bfloat16) for _ in range(2))
    online = {"w": new.astype(jnp.float32), "n": jnp.int32(7), "on": jnp.array(True)}
    found = ema_update({"w": old, "n": jnp.int32(1), "on": jnp.array(False)}, online, 0.99)
    assert found["n"].dtype == jnp.int32 and int(found["n"]) == 7 and bool(found["on"])
    # Rounded once, after the average in float32.
    expected = 0.99 * old.astype(jnp.float32) + (1 - 0.99) * new.astype(jnp.float32)
    np.testing.assert_array_equal(found["w"], expected.astype(jnp.bfloat16))
    assert found["w"].dtype == jnp.bfloat16


def test_decay_rises_by_half_a_cosine():
    steps = np.array([0, 1, 37, 50, 99, 100, 250])
    # BYOL: 1 - (1 - base) (cos(pi k / K) + 1) / 2.
    expected = 1 - (1 - 0.99) * (np.cos(np.pi * np.minimum(steps, 100) / 100) + 1) / 2
    schedule = moco.momentum_schedule(0.99, 1.0, 100)
    np.testing.assert_allclose(jax.jit(jax.vmap(schedule))(steps), expected, atol=1e-7)


COUNT = 200  # orders of shuffled keys


@functools.cache
def orders(n, groups):
    """`[COUNT, n]`: the orders of the keys 0, 1, 2, …"""
    draw = jax.vmap(lambda seed: permutation(jax.random.key(seed), n, groups))
    return np.asarray(jax.jit(draw)(np.arange(COUNT)))


@pytest.mark.slow
def test_key_and_query_share_no_group_and_every_key_gives_another_order():
    for n, groups in ((12, 2), (12, 4), (18, 3), (8, 8)):
        size = n // groups
        for order in orders(n, groups):
            np.testing.assert_array_equal(np.sort(order), np.arange(n))
            met = np.zeros((groups, groups), int)  # samples of one group that are now in another
            np.add.at(met, (order // size, np.arange(n) // size), 1)
            # The least that is possible; of two groups, half of each stay.
            assert met.max() == -(-size // max(groups - 1, 2))
            assert groups == 2 or not met.diagonal().any()
    found = orders(12, 4)
    assert len({tuple(order) for order in found}) > 0.75 * COUNT
    where = np.argsort(found, axis=1) // 3
    for sample in range(12):  # every other group is reached
        shares = np.bincount(where[:, sample], minlength=4) / COUNT
        others = np.arange(4) != sample // 3
        assert shares[~others] == 0 and (abs(shares[others] - 1 / 3) < 0.13).all(), shares


def test_who_stays_together_is_drawn():
    """Of two groups of six, three stay: two of a group are together in two of five orders."""
    where = np.argsort(orders(12, 2), axis=1) // 6
    for group in (where[:, :6], where[:, 6:]):
        together = (group[:, :, None] == group[:, None]).mean(axis=0)
        assert (abs(together[~np.eye(6, dtype=bool)] - 2 / 5) < 0.14).all(), together


@pytest.mark.slow
def test_any_number_of_devices_shuffles_as_one(rng):
    """Each gets its part of the same order, and has its own samples' features back."""
    x, order = {"image": rng.standard_normal((12, 2, 3)), "label": np.arange(12)}, orders(12, 4)[5]

    def there_and_back(groups, axis_name, x, key):
        mine, undo = shuffle(x, key, groups=groups, axis_name=axis_name)
        return mine, undo(mine), undo({"twice": 2 * mine["label"]})

    part = PartitionSpec("data")
    specs = {"in_specs": (part, PartitionSpec()), "out_specs": part}
    for devices, groups in ((None, 4), (2, 4), (4, None)):  # None: one a device
        step = functools.partial(there_and_back, groups, devices and "data")
        if devices:
            mesh = Mesh(np.array(jax.devices()[:devices]), ("data",))
            step = jax.shard_map(step, mesh=mesh, **specs)
        mine, back, other = jax.jit(step)(x, jax.random.key(5))
        np.testing.assert_array_equal(mine["label"], order)
        np.testing.assert_allclose(mine["image"], x["image"][order], rtol=1e-6)
        np.testing.assert_allclose(back["image"], x["image"], rtol=1e-6)
        np.testing.assert_array_equal(other["twice"], 2 * x["label"])
