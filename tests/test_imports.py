"""Imports go down the floors only, heavy packages stay in their places, and importing is light."""

import ast
import sys

from processes import ROOT, python

PACKAGE = ROOT / "hypersphere_jax"
TREES = [(path, ast.parse(path.read_text())) for path in sorted(PACKAGE.rglob("*.py"))]
FLOORS = (
    {"config"},
    {"aborts", "bounds", "losses", "moco", "packing", "shuffle", "theory"},
    {"augment", "data", "hosts", "models", "progress", "sharding", "signals"},
    {"assembly", "checkpoint", "feed", "optimizers", "pairwise", "runs", "train_step"},
    {"evaluation", "finetune", "interchange", "session", "training"},
    {"datasheet", "plots", "report"},
)
FLOOR_OF = {name: floor for floor, names in enumerate(FLOORS) for name in names}
FLOOR_OF["__init__"] = 1  # the package itself re-exports floor 1
OF_FLOOR_1 = {"jax", "numpy", "hypersphere_jax", *sys.stdlib_module_names}
# Third-party package: where alone it may be imported.
HOMES = {name: {"data"} for name in ("sklearn", "h5py", "scipy", "tensorflow_datasets", "grain")}
HOMES |= {"PIL": {"data", "augment"}, "flax": {"models"}, "orbax": {"checkpoint"}}
HOMES |= {"tyro": {"config"}, "matplotlib": {"plots"}, "torch": {"interchange"}}
HOMES |= {"tensorboardX": {"runs"}, "experiments": {}, "benchmarks": {}, "run": {}}


def imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_imports_go_down():
    assert len(TREES) > 100
    for path, tree in TREES:
        here = path.relative_to(PACKAGE).parts[0].removesuffix(".py")  # `models` for models/x.py
        floor, names = FLOOR_OF[here], set(imported(tree))
        for name in names:
            top, *rest = name.split(".")
            below = top != "hypersphere_jax" or not rest or rest[0] in (here, "__version__")
            below = below or FLOOR_OF[rest[0]] < floor + (floor != 2)  # on 2 no neighbour
            assert below and here in HOMES.get(top, {here}), (path, name)
            assert floor != 1 or top in OF_FLOOR_1, (path, name)
        # Only `sharding` says pmap, and only `hosts` says distributed.
        names |= {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert here == "sharding" or "jax.pmap" not in names, path
        assert here in ("hosts", "aborts") or "distributed" not in path.read_text(), path


def test_importing_brings_jax_and_numpy_only():
    code = """
import sys
import jax, jax.numpy, numpy
before = set(sys.modules)
from hypersphere_jax import moco, theory
new = {name.split(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
assert new == {"hypersphere_jax"}, new
from jax._src import xla_bridge  # nothing is computed, so that hosts can still find each other
assert not xla_bridge.backends_are_initialized()
import hypersphere_jax.data
late = {"tensorflow_datasets", "tensorflow", "grain", "h5py", "scipy.io", "sklearn"}
assert not late & set(sys.modules)
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
