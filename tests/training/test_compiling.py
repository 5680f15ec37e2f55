"""What XLA is told of programs with networks in them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hypersphere_jax import xla_flags
from hypersphere_jax.training import sharding


def product(x):
    return jnp.sin(x @ x)


def test_products_of_networks_are_eigens():
    """On CPU; others are YNNPACK's."""
    devices = sharding.local_devices(1)
    x = np.ones((1, 256, 256), np.float32)
    network = sharding.pmap(product, devices, network=True).compile(x)
    other = sharding.pmap(product, devices).lower(x).compile()
    assert "ynn" not in network.as_text()
    assert ("ynn" in other.as_text()) == (jax.default_backend() == "cpu")
    np.testing.assert_allclose(network(x), other(x), rtol=1e-5)


def test_each_shape_has_a_program(rng):
    devices, traced = sharding.local_devices(1), []

    def function(x, more):
        traced.append(x.shape)
        return x + more["y"]

    mapped = sharding.pmap(function, devices, network=True)
    for n in (2, 3, 2):
        x = rng.standard_normal((1, n)).astype("f4")
        placed = sharding.split(x, devices)
        np.testing.assert_array_equal(mapped(placed, {"y": x}), 2 * x)
    assert traced == [(2,), (3,)]


@pytest.mark.parametrize(
    ("platform", "flags", "wanted"),
    [
        ("cpu", "--xla_cpu_enable_fast_math=false", True),
        ("cpu", "--xla_cpu_experimental_ynn_fusion_type=", False),
        ("cpu", "flags.txt", False),
        ("gpu", "", False),
    ],
)
def test_where_xla_has_options(platform, flags, wanted, monkeypatch):
    """Not on accelerators, and not where the user has chosen."""
    monkeypatch.setenv("XLA_FLAGS", flags)
    assert bool(xla_flags.of_networks(platform)) == wanted
