"""Eight virtual CPU devices, and no silent rank promotion, in every test."""

import tempfile

import jax
import numpy as np
import pytest

from hypersphere_jax import sharding

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")

# What one test compiled, the next one loads: runs of one config are many here.
CACHE = tempfile.TemporaryDirectory()
jax.config.update("jax_compilation_cache_dir", CACHE.name)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)

# JAX makes its devices here: else the first test that gives `--devices` would set their number.
assert jax.device_count() == 8


@pytest.fixture(scope="module", autouse=True)
def few_programs():
    """Compiled programs of a thousand tests are more than Linux has memory maps for a process."""
    yield
    sharding.forget_compiled(0.3)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def sphere(rng, n, d):
    """Points on the unit sphere, float32."""
    x = rng.standard_normal((n, d))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
