"""What XLA is told by `--deterministic`, in time and not against the user."""

import os

import jax
import processes
import pytest

from hypersphere_jax import configs as C
from hypersphere_jax.training import sharding


def test_deterministic_kernels_are_asked_for_before_jax_begins():
    """In a process of its own, where the user's flags stay."""
    code = """
import os, sys
from hypersphere_jax import cli, configs
from hypersphere_jax.training import train as training

def train(*_, **__):
    import jax
    caches = jax.config.values["jax_persistent_cache_enable_xla_caches"]
    raise configs.Stopped(f"{jax.device_count()} {caches} {os.environ['XLA_FLAGS'].split()}")

training.train = train
sys.exit(cli.main(sys.argv[1:]))
"""
    mine = "--xla_gpu_autotune_level=3"
    options = {"env": processes.environment(XLA_FLAGS=mine)}
    done = processes.python("-c", code, "pretrain", "--deterministic", "--devices", "3", **options)
    flags = [mine, "--xla_gpu_deterministic_ops=true"]
    assert done.stderr == f"3 none {flags}\n", done.stderr


def test_deterministic_kernels_against_the_users_flags(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_autotune_level=4 --xla_gpu_deterministic_ops=false")
    with pytest.raises(C.UserError, match="XLA_FLAGS has false: take it out there"):
        sharding.use_deterministic_kernels()
    monkeypatch.setenv("XLA_FLAGS", "flags.txt")
    with pytest.raises(C.UserError, match="deterministic=True"):
        sharding.use_deterministic_kernels()
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_autotune_level=4")
    sharding.use_deterministic_kernels()  # on CPU, in use: nothing is to be done
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with pytest.raises(C.UserError, match=r"in use already.*XLA_FLAGS=--xla_gpu_determ"):
        sharding.use_deterministic_kernels()
    assert os.environ["XLA_FLAGS"] == "--xla_gpu_autotune_level=4"
