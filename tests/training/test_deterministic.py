"""`--deterministic`: XLA's flag is set before JAX begins, and never against the user's flags."""

import os

import jax
import processes
import pytest

from hypersphere_jax import configs as C
from hypersphere_jax.utils import xla


def test_flag_is_set_before_jax_begins_and_the_users_flags_stay():
    code = """
import os, sys
from hypersphere_jax import cli, configs
from hypersphere_jax.training import train as training

def train(*_, **__):
    import jax
    caches = jax.config.values["jax_persistent_cache_enable_xla_caches"]
    raise configs.Stopped(f"{jax.device_count()} {caches} {os.environ['XLA_FLAGS']}")

training.train = train
sys.exit(cli.main(sys.argv[1:]))
"""
    mine = "--xla_gpu_autotune_level=3"
    options = {"env": processes.environment(XLA_FLAGS=mine)}
    done = processes.python("-c", code, "pretrain", "--deterministic", "--devices", "3", **options)
    devices, caches, *flags = done.stderr.split()
    assert (devices, caches) == ("3", "none"), done.stderr
    assert {mine, "--xla_gpu_deterministic_ops=true"} <= set(flags)


@pytest.mark.parametrize("flags", ["--xla_gpu_deterministic_ops=false", "flags.txt"])
def test_flags_that_forbid_it_are_an_error(flags, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", flags)
    with pytest.raises(C.UserError, match="deterministic"):
        xla.use_deterministic_kernels()


def test_in_use_already_is_an_error_on_gpus_alone(monkeypatch):
    jax.devices()
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_autotune_level=4")
    xla.use_deterministic_kernels()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with pytest.raises(C.UserError, match="deterministic"):
        xla.use_deterministic_kernels()
    assert os.environ["XLA_FLAGS"] == "--xla_gpu_autotune_level=4"
