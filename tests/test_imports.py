"""Imports go down the layers, and importing the package is light and has no side effects."""

import ast
from pathlib import Path

import processes
import pytest

PACKAGE = Path(__file__).parent.parent / "hypersphere_jax"
# A module imports from its own line and the lines above it.
LAYERS = (
    "configs utils",
    "losses moco theory",
    "augment data models",
    "depth encoder evaluation pretrained text training",
    "reporting run",
    "cli data_command __main__",
)
LAYER = {name: number for number, names in enumerate(LAYERS) for name in names.split()}


def imported_entries(path):
    """Return the entries of the package, such as "models", that a file imports."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    parts = [name.split(".") for name in names if name.startswith("hypersphere_jax.")]
    return {part[1] for part in parts} & LAYER.keys()


def test_imports_go_down():
    for path in PACKAGE.rglob("*.py"):
        entry = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if entry != "__init__":
            upward = {name for name in imported_entries(path) if LAYER[name] > LAYER[entry]}
            assert not upward, path


def run(code):
    done = processes.python("-c", code)
    assert done.returncode == 0, done.stderr


def test_importing_loads_jax_and_numpy_only():
    run("""
import sys
import jax, jax.numpy, numpy
before = set(sys.modules)
from hypersphere_jax import align_loss, moco, theory, uniform_loss
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
assert loaded - set(sys.stdlib_module_names) == {"hypersphere_jax"}, loaded
""")


def test_help_does_not_import_jax():
    run("""
import contextlib, sys
from hypersphere_jax import cli
for command in cli.COMMANDS:
    with contextlib.suppress(SystemExit):
        cli.main([command, "--help"])
assert "jax" not in sys.modules
""")


@pytest.mark.slow
def test_importing_changes_nothing_in_the_process():
    """JAX stays unused: `jax.distributed.initialize` must come before its first use."""
    modules = [path.relative_to(PACKAGE.parent).with_suffix("") for path in PACKAGE.rglob("*.py")]
    names = sorted(".".join(module.parts) for module in modules if module.stem != "__init__")
    run(f"""
import importlib, logging, os, signal, sys, warnings
import jax, grain, matplotlib.pyplot, orbax.checkpoint, scipy.stats, sklearn.datasets, tensorboardX
import flax.nnx, h5py, tyro
from jax._src import xla_bridge
def state():
    root = logging.getLogger()
    signals = [signal.getsignal(number) for number in signal.valid_signals()]
    hooks = [sys.excepthook, sys.unraisablehook]
    settings = dict(jax.config.values), dict(os.environ)
    return root.level, root.handlers[:], signals, hooks, warnings.filters[:], settings
before = state()
for name in {names}:
    importlib.import_module(name)
assert state() == before, (before, state())
assert not xla_bridge.backends_are_initialized()
""")
