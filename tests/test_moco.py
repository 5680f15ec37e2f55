"""MoCo's queue of keys, the momentum encoder, and shuffled batches."""

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
    """MoCo's Algorithm 1, one key at a time: the newest replaces the oldest."""
    keys = np.array(start)
    pushed = np.concatenate(batches)
    for number, key in enumerate(pushed):
        keys[number % len(keys)] = key
    return KeyQueue(keys, np.int32(len(pushed) % len(keys)))


def assert_same(queue, expected):
    jax.tree.map(np.testing.assert_array_equal, queue, expected)
    assert queue.ptr.shape == () and queue.ptr.dtype == jnp.int32


@pytest.mark.parametrize(
    ("size", "batches"), [(8, [4] * 6), (7, [3] * 6), (5, [2, 5, 2, 13, 13, 2])]
)
def test_queue_wraps_around(size, batches, rng):
    """Batches that divide the queue, that do not, and that are longer than the queue."""
    start = sphere(rng, size, DIM)
    queue = KeyQueue(start, np.int32(0))
    pushed = []
    for n in batches:
        pushed.append(sphere(rng, n, DIM))
        queue = jax.jit(queue_push)(queue, pushed[-1])
        assert_same(queue, first_in_first_out(start, pushed))


@pytest.mark.parametrize("size", [5, 20])
def test_every_device_has_the_keys_of_all(size, rng):
    """In a queue that is smaller than a batch, and in a larger one."""
    devices = jax.device_count()
    start = sphere(rng, size, DIM)
    batches = [sphere(rng, 2 * devices, DIM) for _ in range(3)]
    push = jax.pmap(functools.partial(queue_push, axis_name="data"), "data", in_axes=(None, 0))
    queue = KeyQueue(start, np.int32(0))
    for keys in batches:
        queues = push(queue, keys.reshape(devices, 2, DIM))
        queue = jax.tree.map(lambda leaf: leaf[-1], queues)
        assert (queues.keys == queue.keys[None]).all()
    assert_same(queue, first_in_first_out(start, batches))


def test_initial_queue_is_uniform_on_the_sphere():
    keys, ptr = moco.queue_init(jax.random.key(1), 4000, DIM)
    assert keys.shape == (4000, DIM) and int(ptr) == 0
    np.testing.assert_allclose(np.linalg.norm(keys, axis=1), 1, rtol=1e-6)
    # Mean 0 and covariance I / d, to five standard errors.
    np.testing.assert_allclose(np.mean(keys, axis=0), 0, atol=5 * (1 / 3 / 4000) ** 0.5)
    np.testing.assert_allclose(np.cov(keys.T), np.eye(DIM) / DIM, atol=0.03)


def test_no_gradient_flows_through_queue_and_average(rng):
    old, keys, query = sphere(rng, 12, DIM).reshape(3, 4, DIM)

    @functools.partial(jax.grad, argnums=(0, 1, 2, 3))
    def gradients(query, keys, old, online):
        negatives = queue_push(KeyQueue(old, np.int32(0)), keys[:2]).keys
        average = ema_update(old, online, 0.5)
        return jnp.sum((query @ negatives.T) ** 2) + jnp.sum((query @ average.T) ** 2)

    query_gradient, *others = jax.jit(gradients)(query, keys, old, keys)
    assert np.abs(query_gradient).max() > 0.01
    assert not np.any(others)


def test_average_is_a_geometric_series(rng):
    start, goal = rng.standard_normal((2, 4, 5)).astype(np.float32)
    np.testing.assert_array_equal(ema_update({"a": start}, {"a": goal}, 0.0)["a"], goal)
    np.testing.assert_array_equal(ema_update({"a": start}, {"a": goal}, 1.0)["a"], start)
    average = start
    for _ in range(50):
        average = jax.jit(ema_update)(average, goal, 0.9)
    np.testing.assert_allclose(average, 0.9**50 * start + (1 - 0.9**50) * goal, rtol=1e-5)


def test_average_keeps_dtypes_and_copies_counts(rng):
    old, new = (jnp.asarray(rng.standard_normal(100), jnp.bfloat16) for _ in range(2))
    online = {"w": new.astype(jnp.float32), "n": jnp.int32(7)}
    found = ema_update({"w": old, "n": jnp.int32(1)}, online, 0.99)
    assert found["n"].dtype == jnp.int32 and int(found["n"]) == 7
    # Rounded once, after the average in float32.
    expected = 0.99 * old.astype(jnp.float32) + (1 - 0.99) * new.astype(jnp.float32)
    assert found["w"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(found["w"], expected.astype(jnp.bfloat16))


def test_momentum_schedule_is_byols():
    steps = np.array([0, 1, 37, 50, 99, 100, 250])
    expected = 1 - (1 - 0.99) * (np.cos(np.pi * np.minimum(steps, 100) / 100) + 1) / 2
    found = jax.vmap(moco.momentum_schedule(0.99, 1.0, 100))(steps)
    np.testing.assert_allclose(found, expected, atol=1e-7)


@pytest.mark.parametrize(("n", "groups"), [(12, 2), (12, 4)])
def test_permutation_spreads_each_group_over_the_others(n, groups):
    size = n // groups
    draw = jax.jit(jax.vmap(lambda seed: permutation(jax.random.key(seed), n, groups)))
    orders = np.asarray(draw(np.arange(100)))
    assert len(np.unique(orders, axis=0)) > 50
    for order in orders:
        np.testing.assert_array_equal(np.sort(order), np.arange(n))
        shared = np.zeros((groups, groups), int)  # samples of one group that are now in another
        np.add.at(shared, (order // size, np.arange(n) // size), 1)
        # The smallest possible number; of two groups, half of each stay.
        assert shared.max() == -(-size // max(groups - 1, 2))
        assert groups == 2 or not shared.diagonal().any()


@pytest.mark.parametrize(("devices", "groups"), [(1, 4), (4, None)])
def test_shuffle_is_independent_of_devices_and_undone(devices, groups, rng):
    """Groups default to one per device."""
    if jax.device_count() < devices:
        pytest.skip("too few devices")
    x = {"image": rng.standard_normal((12, 2, 3)), "label": np.arange(12)}
    key = jax.random.key(5)

    def there_and_back(x, key):
        shuffled, undo = shuffle(x, key, groups=groups, axis_name="data")
        return shuffled, undo({"label": 2 * shuffled["label"]})

    mesh = Mesh(np.array(jax.devices()[:devices]), ("data",))
    specs = {
        "in_specs": (PartitionSpec("data"), PartitionSpec()),
        "out_specs": PartitionSpec("data"),
    }
    shuffled, back = jax.jit(jax.shard_map(there_and_back, mesh=mesh, **specs))(x, key)
    order = permutation(key, 12, 4)
    np.testing.assert_array_equal(shuffled["label"], order)
    np.testing.assert_allclose(shuffled["image"], x["image"][order], rtol=1e-6)
    np.testing.assert_array_equal(back["label"], 2 * x["label"])
