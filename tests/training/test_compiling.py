"""What XLA is told of programs with networks in them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hypersphere_jax import xla_flags
from hypersphere_jax.training import sharding


def product(x):
    return jnp.sin(x @ x)


TRAINED_TWICE = """
import collections, sys
import jax, numpy as np
events = collections.Counter()
jax.monitoring.register_event_listener(lambda name, **_: events.update([name.split("/")[-1]]))
import hypersphere_jax as hj
folder, *cache = sys.argv[1:]
if cache:
    jax.config.update("jax_compilation_cache_dir", cache[0])
names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
settings = [jax.config.values[name] for name in names]
config = hj.PretrainConfig(
    model="small_cnn", width=0.1, dim=3, epochs=1, batch_size=8, cache_dir=f"{folder}/cache",
    runs_dir=f"{folder}/runs",
)
images = np.zeros((8, 8, 8, 1), np.uint8)
for number in (1, 2):
    run = hj.train(config, images=images + np.uint8(number), overwrite=True)
    run.encoder(images)
    print(events["cache_misses"], [jax.config.values[name] for name in names] == settings)
jax.jit(lambda x: x + 17)(3.0)
print(events["cache_misses"])
"""


def test_products_of_networks_are_eigens():
    """On CPU; others are YNNPACK's."""
    devices = sharding.local_devices(1)
    x = np.ones((1, 256, 256), np.float32)
    network = sharding.pmap(product, devices, network=True).compile(x)
    other = sharding.pmap(product, devices).lower(x).compile()
    assert "ynn" not in network.as_text()
    assert ("ynn" in other.as_text()) == (jax.default_backend() == "cpu")
    np.testing.assert_allclose(network(x), other(x), rtol=1e-5)


def test_each_shape_and_type_has_a_program(rng):
    devices, traced = sharding.local_devices(1), []

    def function(x, more):
        traced.append((x.shape, x.dtype.name))
        return x + more["y"]

    mapped = sharding.pmap(function, devices, donate=(0,), network=True)
    for n, kind in ((2, "float32"), (3, "float32"), (2, "float32"), (2, "int32")):
        x = (9 * rng.standard_normal((1, n))).astype(kind)
        placed = sharding.split(x, devices)
        np.testing.assert_array_equal(mapped(placed, {"y": x}), 2 * x)
        assert placed.is_deleted()
    assert traced == [((2,), "float32"), ((3,), "float32"), ((2,), "int32")]
    assert jax.eval_shape(mapped, x, {"y": x}).shape == x.shape


def test_programs_are_freed_with_others(monkeypatch):
    monkeypatch.setattr(jax, "clear_caches", lambda: None)  # which other tests need
    devices = sharding.local_devices(1)
    mapped = sharding.pmap(product, devices, network=True)
    mapped(np.ones((1, 2, 2), np.float32))
    assert bool(mapped._programs) == (jax.default_backend() == "cpu")
    sharding.forget_compiled(share=0.0)
    assert not mapped._programs


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
