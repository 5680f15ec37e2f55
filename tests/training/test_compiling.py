"""XLA's flags, and freeing compiled programs."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hypersphere_jax.training import distributed
from hypersphere_jax.utils import xla


@pytest.mark.parametrize("flags", ["", "--xla_cpu_enable_fast_math=false"])
def test_eigen_is_added_to_the_users_flags(flags, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", flags)
    monkeypatch.setattr(xla, "add", lambda flag: added.append(flag))
    added = []
    xla.use_eigen()
    assert len(added) == 1 and added[0].startswith(f"{xla.CPU_KERNELS}=")


@pytest.mark.parametrize("flags", [f"{xla.CPU_KERNELS}=", "flags.txt"])
def test_the_users_choice_of_kernels_stays(flags, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", flags)
    xla.use_eigen()
    assert os.environ["XLA_FLAGS"] == flags


def test_programs_are_freed_when_they_take_too_many_memory_maps():
    traced = []

    def function(x):
        traced.append(x.shape)
        return jnp.sin(x)

    mapped = distributed.pmap(function, distributed.local_devices(1))
    x = np.ones((1, 2), np.float32)
    for share, times in ((1.0, 1), (0.0, 2)):
        xla.free_compiled(share)
        for _ in range(2):
            assert jax.device_get(mapped(x)) == pytest.approx(np.sin(x))
        assert len(traced) == times
