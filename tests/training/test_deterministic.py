"""What XLA is told, in time and not against the user: `--deterministic`, and of convolutions."""

import os

import jax
import processes
import pytest

from hypersphere_jax import config as C
from hypersphere_jax.training import sharding

EIGEN = "--xla_cpu_experimental_ynn_fusion_type=-LIBRARY_FUSION_TYPE_INDIVIDUAL_CONVOLUTION"
# As where JAX has a plugin, and where it has none.
FEIGNED = """
import importlib.util, os
os.environ.pop("JAX_PLATFORMS", None)
found, names = importlib.util.find_spec, ("jax_plugins", "libtpu")
importlib.util.find_spec = lambda name: {there} if name in names else found(name)
"""
PLUGIN, NO_PLUGIN = (FEIGNED.format(there=there) for there in (True, None))


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


@pytest.mark.parametrize(
    ("given", "before", "flags"),
    [
        ("", "", EIGEN),
        ("--xla_cpu_ftz=true", "import jax", f"--xla_cpu_ftz=true {EIGEN}"),
        ("--xla_cpu_experimental_ynn_fusion_type=", "", "--xla_cpu_experimental_ynn_fusion_type="),
        ("", "import jax; jax.devices()", ""),
        ("/dev/null", "", "/dev/null"),
        ("", PLUGIN, ""),
    ],
    ids=["alone", "beside others", "the user's own", "in use", "a file", "with a plugin"],
)
def test_convolutions_are_eigens(given, before, flags):
    """In `XLA_FLAGS`, and then a wide convolution is no sum over patches; each choice stands."""
    code = f"""
{before if before == PLUGIN else NO_PLUGIN + before}
from hypersphere_jax import xla_flags
xla_flags.prefer_eigen_convolutions()
import os, jax, jax.numpy as jnp
from hypersphere_jax.models.convolution import convolution

shapes = jnp.ones((1, 4, 4, 16)), jnp.ones((3, 3, 16, 2))
dimensions = {{"dimension_numbers": ("NHWC", "HWIO", "NHWC")}}
text = jax.jit(lambda *a: convolution(*a, (1, 1), ((1, 1), (1, 1)), **dimensions)).lower(*shapes)
print(os.environ.get("XLA_FLAGS", ""), "stablehlo.convolution" in text.as_text())
"""
    done = processes.python("-c", code, env=processes.environment(XLA_FLAGS=given))
    assert done.stdout == f"{flags} {flags.endswith(EIGEN)}\n", done.stderr


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
