"""The devices that tests run on: virtual CPU devices, or accelerators with `--platform gpu`."""

import functools
import os

import jax
import numpy as np
import pytest

from hypersphere_jax.utils.xla import DETERMINISTIC, flags, is_file

LEVEL = "--xla_backend_optimization_level"
ADDED = (f"{LEVEL}=0", f"{DETERMINISTIC}=true")  # to XLA_FLAGS, for the process of the tests
# Accelerators sum in another order and approximate exponentials: factor of all tolerances.
TOLERANCE_FACTOR = {"cpu": 1, "gpu": 10, "tpu": 10}


def begin(platform: str, devices: int) -> None:
    """Start JAX on a platform, with this number of devices if it is the CPU."""
    if platform == "cpu":
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", devices)
        if not is_file() and LEVEL not in flags():
            os.environ["XLA_FLAGS"] = f"{flags()} {LEVEL}=0".strip()
        assert jax.device_count() == devices
        return
    os.environ["XLA_FLAGS"] = f"{flags()} {DETERMINISTIC}=true".strip()
    # Several processes share a device's memory.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    # Products in float32 rather than TF32 or bfloat16, also in the processes that tests start.
    os.environ.setdefault("JAX_DEFAULT_MATMUL_PRECISION", "highest")
    jax.config.update("jax_default_matmul_precision", os.environ["JAX_DEFAULT_MATMUL_PRECISION"])
    if jax.default_backend() != platform:
        raise pytest.UsageError(f"--platform {platform}: JAX found {jax.default_backend()}")
    np.testing.assert_allclose = functools.partial(allclose, TOLERANCE_FACTOR[platform])


def allclose(factor, actual, desired, rtol=1e-7, atol=0, *arguments, **options):
    """Call `numpy.testing.assert_allclose` with scaled tolerances."""
    _allclose(actual, desired, factor * rtol, factor * atol, *arguments, **options)


_allclose = np.testing.assert_allclose


@functools.cache
def has_float16() -> bool:
    """Return whether XLA converts float16; JAX 0.10 does not under --xla_cpu_max_isa=SSE4_2."""
    try:
        jax.block_until_ready(jax.numpy.ones(3, "float16").astype("float32"))
    except jax.errors.JaxRuntimeError:
        return False
    return True
