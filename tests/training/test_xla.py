"""XLA's flags, and freeing compiled programs."""

import processes

from hypersphere_jax.utils import xla


def test_flags_are_added_to_the_users_before_jax_starts():
    code = """
import os
from hypersphere_jax.utils import xla
xla.use_eigen()
xla.prepare(devices=3, deterministic=True)
import jax
print(jax.device_count(), jax.config.values["jax_persistent_cache_enable_xla_caches"])
print(os.environ["XLA_FLAGS"])
"""
    users = "--xla_gpu_autotune_level=3"
    done = processes.python("-c", code, env=processes.environment(XLA_FLAGS=users))
    devices, caches, *flags = done.stdout.split()
    assert (devices, caches) == ("3", "none"), done.stderr
    assert {users, f"{xla.DETERMINISTIC}=true"} <= set(flags)
    assert any(flag.startswith(xla.CPU_KERNELS) for flag in flags)
