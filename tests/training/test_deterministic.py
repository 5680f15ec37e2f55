"""What XLA is told, in time and not against the user: `--deterministic`, and of convolutions."""

import os

import jax
import processes
import pytest

from hypersphere_jax import config as C
from hypersphere_jax.training import sharding

EIGEN = "--xla_cpu_experimental_ynn_fusion_type=-LIBRARY_FUSION_TYPE_INDIVIDUAL_CONVOLUTION"
# As where JAX has no accelerator's plugin.
NO_PLUGIN = """
import importlib.util
found, names = importlib.util.find_spec, ("jax_plugins", "libtpu")
importlib.util.find_spec = lambda name: None if name in names else found(name)
"""


def test_deterministic_kernels_are_asked_for_before_jax_begins():
    """In a process of its own, where the user's flags stay."""
    code = """
import os, sys
from hypersphere_jax import cli, config
from hypersphere_jax.training import loop

def train(*_, **__):
    import jax
    caches = jax.config.values["jax_persistent_cache_enable_xla_caches"]
    raise config.Stopped(f"{jax.device_count()} {caches} {os.environ['XLA_FLAGS'].split()}")

loop.train = train
sys.exit(cli.main(sys.argv[1:]))
"""
    mine = "--xla_gpu_autotune_level=3"
    options = {"env": processes.environment(XLA_FLAGS=mine)}
    done = processes.python(
        "-c", NO_PLUGIN + code, "pretrain", "--deterministic", "--devices", "3", **options
    )
    flags = [mine, EIGEN, "--xla_gpu_deterministic_ops=true"]
    assert done.stderr == f"3 none {flags}\n", done.stderr


def test_convolutions_are_eigens():
    """In `XLA_FLAGS`, and then a wide convolution is no sum over patches; each choice stands."""
    code = """
import importlib.util, os
from hypersphere_jax import xla_flags

def asked(given, plugin=None, platforms=""):
    os.environ.update(XLA_FLAGS=given, JAX_PLATFORMS=platforms)
    importlib.util.find_spec = lambda name: plugin == name or None
    xla_flags.prefer_eigen_convolutions()
    print(os.environ["XLA_FLAGS"])

found = importlib.util.find_spec
others, own = "--xla_cpu_ftz=true", "--xla_cpu_experimental_ynn_fusion_type="
for case in (others,), (own,), ("flags.txt",), ("", "libtpu"), ("", "jax_plugins", "cpu"):
    asked(*case)
importlib.util.find_spec = found
import jax, jax.numpy as jnp
asked("")
importlib.util.find_spec = found
from hypersphere_jax.models.convolution import convolution

def is_direct():
    shapes = jnp.ones((1, 4, 4, 16)), jnp.ones((3, 3, 16, 2))
    given = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
    form = jax.jit(lambda *a: convolution(*a, (1, 1), ((1, 1), (1, 1)), **given))
    return "stablehlo.convolution" in form.lower(*shapes).as_text()

print(is_direct())
asked("")  # in use
importlib.util.find_spec = found
print(is_direct())
"""
    done = processes.python("-c", code)
    assert done.stdout.splitlines() == [
        f"--xla_cpu_ftz=true {EIGEN}",
        "--xla_cpu_experimental_ynn_fusion_type=",
        "flags.txt",
        "",
        *(EIGEN, EIGEN, "True", "", "False"),
    ], done.stderr


def test_deterministic_kernels_against_the_users_flags(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_autotune_level=4 --xla_gpu_deterministic_ops=false")
    with pytest.raises(C.UserError, match="XLA_FLAGS has false: take it out there"):
        sharding.use_deterministic_kernels()
    monkeypatch.setenv("XLA_FLAGS", "flags.txt")
    with pytest.raises(C.UserError, match="names a file: list the flags there"):
        sharding.use_deterministic_kernels()
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_autotune_level=4")
    sharding.use_deterministic_kernels()  # on CPU, in use: nothing is to be done
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with pytest.raises(C.UserError, match=r"in use already.*XLA_FLAGS=--xla_gpu_determ"):
        sharding.use_deterministic_kernels()
    assert os.environ["XLA_FLAGS"] == "--xla_gpu_autotune_level=4"
