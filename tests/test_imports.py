"""Imports go down the floors only, heavy packages stay in their places, and importing is light."""

import ast
import functools
import sys
from pathlib import Path

import processes

PACKAGE = Path(__file__).parent.parent / "hypersphere_jax"
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
OF_DATA = ("sklearn", "h5py", "scipy", "tensorflow_datasets", "grain")
HOMES = {name: {"data"} for name in OF_DATA}
HOMES |= {"PIL": {"data", "augment"}, "flax": {"models"}, "orbax": {"checkpoint"}}
HOMES |= {"tyro": {"config"}, "matplotlib": {"plots"}, "tensorboardX": {"runs"}}
HOMES |= {"torch": {"interchange"}}


def part(path):
    """The top-level module or sub-package of a file: `models` for hypersphere_jax/models/x.py."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@functools.cache
def trees():
    return [(path, ast.parse(path.read_text())) for path in sorted(PACKAGE.rglob("*.py"))]


def test_imports_go_down():
    assert len(trees()) > 100 and {part(path) for path, _ in trees()} <= set(FLOOR_OF)
    for path, tree in trees():
        here, floor = part(path), FLOOR_OF[part(path)]
        for name in imported(tree):
            top, *rest = name.split(".")
            said = f"{path} (floor {floor}) imports {name}"
            assert top not in ("experiments", "benchmarks", "run"), said
            assert here in HOMES.get(top, {here}), said
            assert floor != 1 or top in OF_FLOOR_1, said
            if top == "hypersphere_jax" and rest and rest[0] not in (here, "__version__"):
                assert FLOOR_OF[rest[0]] <= floor, said
                assert not FLOOR_OF[rest[0]] == floor == 2, f"{said}, its neighbour"


def test_only_sharding_says_pmap_and_only_hosts_says_distributed():
    for path, tree in trees():
        said = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        is_said = "jax.pmap" in said | set(imported(tree))
        assert part(path) == "sharding" or not is_said, path
        assert part(path) in ("hosts", "aborts") or "distributed" not in path.read_text(), path


def test_importing_brings_jax_and_numpy_only():
    code = """
import sys
import jax, jax.numpy, numpy
before = set(sys.modules)
import hypersphere_jax
from hypersphere_jax import moco, theory
new = {name.split(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
assert new == {"hypersphere_jax"}, new
from jax._src import xla_bridge  # nothing is computed, so that hosts can still find each other
assert not xla_bridge.backends_are_initialized()
heavy = {"flax", "optax", "orbax", "tyro", "matplotlib", "sklearn", "tensorboardX", "rich"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
import hypersphere_jax.data
late = {"tensorflow_datasets", "tensorflow", "grain", "h5py", "scipy.io", "sklearn"}
assert not late & set(sys.modules), late & set(sys.modules)
"""
    done = processes.python("-c", code)
    assert done.returncode == 0, done.stderr
