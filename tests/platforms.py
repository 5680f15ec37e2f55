"""What is different where the suite runs on accelerators: `python -m pytest --platform gpu`."""

import fnmatch
import os

import jax
import numpy as np
import pytest

LEVEL = "--xla_backend_optimization_level"
# Sums come in other orders there, and exponentials by other approximations: so many times as wide
# are the tolerances of `assert_allclose`. Products are of float32 (`begin`), not TF32 or bfloat16.
LOOSER = {"cpu": 1, "gpu": 10, "tpu": 10}
# Tests that need so many devices.
DEVICES: dict[str, int] = {}
# Tests of what is on CPU alone.
ON_CPU: dict[str, str] = {}


def begin(platform: str, devices: int) -> None:
    """Starts JAX on the devices of a platform; on CPU makes them.

    JAX makes them here: else the first test that gives `--devices` would set their number.
    """
    if platform == "cpu":
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", devices)
        if LEVEL not in os.environ.get("XLA_FLAGS", ""):
            os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {LEVEL}=0".strip()
        assert jax.device_count() == devices
        return
    # Several processes share a device's memory: pytest's, and those that tests start.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("JAX_DEFAULT_MATMUL_PRECISION", "highest")
    jax.config.update("jax_default_matmul_precision", os.environ["JAX_DEFAULT_MATMUL_PRECISION"])
    try:
        found = jax.default_backend()
    except RuntimeError as error:
        found = str(error).splitlines()[0]
    if found != platform:
        raise pytest.UsageError(
            f"--platform {platform}: JAX finds none here ({found}); see docs/accelerators.md"
        )


def allclose(platform, actual, desired, rtol=1e-7, atol=0, *arguments, **options):
    """`numpy.testing.assert_allclose` with the tolerances of a platform."""
    rtol, atol = (LOOSER[platform] * tolerance for tolerance in (rtol, atol))
    _allclose(actual, desired, rtol, atol, *arguments, **options)


_allclose = np.testing.assert_allclose


def reason_to_leave_out(test: str, platform: str) -> str | None:
    """Why a test cannot run here, if so."""
    reasons = ON_CPU if platform != "cpu" else {}
    for pattern, reason in reasons.items():
        if fnmatch.fnmatch(test, f"*{pattern}*"):
            return reason
    count = jax.device_count()
    for pattern, needed in DEVICES.items():
        if count < needed and fnmatch.fnmatch(test, f"*{pattern}*"):
            return f"needs {needed} devices, of which {count} are here"
    return None
