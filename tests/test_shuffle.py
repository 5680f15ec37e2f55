"""Shuffled keys: who meets whom, and the way back, on one device and on many."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from hypersphere_jax.shuffle import permutation, shuffle

COUNT = 200


@functools.cache
def orders(n, groups):
    """`[COUNT, n]`: the orders of the keys 0, 1, 2, …"""

    @jax.jit
    @jax.vmap
    def draw(seed):
        return permutation(jax.random.key(seed), n, groups)

    return np.asarray(draw(np.arange(COUNT)))


@pytest.mark.parametrize(("n", "groups"), [(12, 2), (12, 4), (18, 3), (8, 8)])
def test_key_and_query_share_no_group(n, groups):
    size = n // groups
    for order in orders(n, groups):
        np.testing.assert_array_equal(np.sort(order), np.arange(n))
        met = np.zeros((groups, groups), int)  # samples of one group that are now in another
        np.add.at(met, (order // size, np.arange(n) // size), 1)
        if groups == 2:
            assert met.max() == -(-size // 2)
        else:
            assert not met.diagonal().any()
            assert met.max() == -(-size // (groups - 1))  # the least that is possible


def test_every_key_gives_another_order_and_every_group_is_reached():
    found = orders(12, 4)
    assert len({tuple(order) for order in found}) > 0.75 * COUNT
    where = np.argsort(found, axis=1) // 3
    for sample in range(12):
        shares = np.bincount(where[:, sample], minlength=4) / COUNT
        others = np.arange(4) != sample // 3
        assert shares[~others] == 0 and (abs(shares[others] - 1 / 3) < 0.13).all(), shares


def test_who_stays_together_is_drawn():
    """Of two groups of six, three stay: two of a group are together in two of five orders."""
    where = np.argsort(orders(12, 2), axis=1) // 6
    for group in (where[:, :6], where[:, 6:]):
        together = (group[:, :, None] == group[:, None]).mean(axis=0)
        pairs = together[~np.eye(6, dtype=bool)]
        assert (abs(pairs - 2 / 5) < 0.14).all(), pairs


def test_one_device(rng):
    x = {"image": rng.standard_normal((12, 2, 3)), "label": np.arange(12)}

    @jax.jit
    def there_and_back(x, key):
        mine, undo = shuffle(x, key, groups=4)
        return mine, undo(mine), undo({"twice": 2 * mine["label"]})

    mine, back, other = there_and_back(x, jax.random.key(5))
    order = orders(12, 4)[5]
    np.testing.assert_array_equal(mine["label"], order)
    np.testing.assert_allclose(mine["image"], x["image"][order], rtol=1e-6)
    np.testing.assert_allclose(back["image"], x["image"], rtol=1e-6)
    np.testing.assert_array_equal(other["twice"], 2 * x["label"])


@pytest.mark.parametrize(("devices", "groups"), [(2, 4), (4, None)])
def test_many_devices(devices, groups):
    """Each gets its part of the same order, and has its own samples' features back."""

    def step(x, key):
        mine, undo = shuffle(x, key, groups=groups, axis_name="data")
        return mine, undo(mine**2)

    x, key, part = jnp.arange(12.0)[:, None], jax.random.key(3), PartitionSpec("data")
    chosen = jax.devices()[:devices]
    if groups is None:  # one a device
        mesh, specs = Mesh(np.array(chosen), ("data",)), (part, PartitionSpec())
        mapped = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=part))
    else:
        x = x.reshape(devices, -1, 1)
        mapped = jax.pmap(step, "data", in_axes=(0, None), devices=chosen)
    mine, squares = mapped(x, key)
    np.testing.assert_array_equal(np.ravel(mine), orders(12, 4)[3])
    np.testing.assert_array_equal(np.ravel(squares), np.arange(12.0) ** 2)


def test_errors():
    x, key = jnp.zeros((6, 1)), jax.random.key(0)
    with pytest.raises(ValueError, match="6 does not divide into 4 groups"):
        shuffle(x, key, groups=4)
    with pytest.raises(ValueError, match=r"1 group\(s\).*at least 2"):
        shuffle(x, key)
