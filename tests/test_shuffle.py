"""Shuffled keys: who meets whom, and the way back, on one device and on many."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from hypersphere_jax.shuffle import permutation as uncompiled
from hypersphere_jax.shuffle import shuffle

permutation = jax.jit(uncompiled, static_argnums=(1, 2))
SIZES = [(4, 2), (6, 2), (6, 3), (8, 8), (20, 5), (24, 8), (32, 4), (64, 8)]


def meetings(order, groups):
    """`[g, g]`: how many samples of one group are in another one after shuffling."""
    size = len(order) // groups
    counts = np.zeros((groups, groups), int)
    for place, sample in enumerate(order):
        counts[sample // size, place // size] += 1
    return counts


@pytest.mark.parametrize(("n", "groups"), SIZES)
def test_key_and_query_share_no_group(n, groups):
    size = n // groups
    for seed in range(20):
        order = np.asarray(permutation(jax.random.key(seed), n, groups))
        np.testing.assert_array_equal(np.sort(order), np.arange(n))
        counts = meetings(order, groups)
        if groups == 2:
            assert counts.max() == -(-size // 2)
        else:
            assert not counts.diagonal().any()
            assert counts.max() == -(-size // (groups - 1))


def test_with_many_groups_no_two_samples_meet_again():
    for n, groups in ((20, 5), (24, 8), (240, 16)):
        order = np.asarray(permutation(jax.random.key(1), n, groups))
        size = n // groups
        before = np.arange(n) // size
        after = np.argsort(order) // size
        for i in range(n):
            together = (before == before[i]) & (after == after[i])
            assert together.sum() == 1, (n, groups, i)


def test_every_key_gives_another_order_and_every_group_is_reached():
    orders = [np.asarray(permutation(jax.random.key(seed), 12, 4)) for seed in range(200)]
    assert len({tuple(order) for order in orders}) > 150
    where = np.array([np.argsort(order) // 3 for order in orders])
    for sample in range(12):
        shares = np.bincount(where[:, sample], minlength=4) / len(orders)
        others = np.arange(4) != sample // 3
        assert shares[~others] == 0 and (abs(shares[others] - 1 / 3) < 0.12).all()


def test_one_device(rng):
    x = {"image": rng.standard_normal((12, 2, 3)), "label": np.arange(12)}

    @jax.jit
    def there_and_back(x, key):
        mine, undo = shuffle(x, key, groups=4)
        return mine, undo(mine), undo({"twice": 2 * mine["label"]})

    key = jax.random.key(5)
    mine, back, other = there_and_back(x, key)
    order = permutation(key, 12, 4)
    np.testing.assert_array_equal(mine["label"], order)
    np.testing.assert_allclose(mine["image"], x["image"][order], rtol=1e-6)
    np.testing.assert_allclose(back["image"], x["image"], rtol=1e-6)
    np.testing.assert_array_equal(other["twice"], 2 * x["label"])


def step(x, key, groups=None):
    """What a device gets, and what comes back of its squares."""
    mine, undo = shuffle(x, key, groups=groups, axis_name="data")
    return mine, undo(mine**2)


@pytest.mark.parametrize(("devices", "groups"), [(2, None), (4, 8), (8, None)])
def test_pmap(devices, groups):
    x = jnp.arange(48.0)[:, None]
    key = jax.random.key(3)
    mapped = jax.pmap(
        lambda x, key: step(x, key, groups),
        axis_name="data",
        in_axes=(0, None),
        devices=jax.devices()[:devices],
    )
    mine, squares = mapped(x.reshape(devices, -1, 1), key)
    order = permutation(key, 48, groups or devices)
    np.testing.assert_array_equal(mine.reshape(48), order)
    np.testing.assert_array_equal(squares.reshape(48, 1), x**2)
    if devices > 2 and groups is None:
        owners = np.arange(48) // (48 // devices)
        assert (owners[np.asarray(order)] != owners).all()


@pytest.mark.parametrize("check_vma", [True, False])
def test_shard_map(check_vma):
    x = jnp.arange(24.0)[:, None]
    key = jax.random.key(4)
    part = PartitionSpec("data")
    mapped = jax.shard_map(
        step,
        mesh=Mesh(np.array(jax.devices()[:4]), ("data",)),
        in_specs=(part, PartitionSpec()),
        out_specs=part,
        check_vma=check_vma,
    )
    mine, squares = jax.jit(mapped)(x, key)
    np.testing.assert_array_equal(mine[:, 0], permutation(key, 24, 4))
    np.testing.assert_array_equal(squares, x**2)


def test_errors():
    x, key = jnp.zeros((6, 1)), jax.random.key(0)
    with pytest.raises(ValueError, match="6 does not divide into 4 groups"):
        shuffle(x, key, groups=4)
    with pytest.raises(ValueError, match=r"1 group\(s\).*at least 2"):
        shuffle(x, key)
