"""Imports go down the floors only, and the names of heavy packages stay in their places."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "hypersphere_jax"
FLOORS = {
    "config": 0,
    "aborts": 1,
    "losses": 1,
    "moco": 1,
    "packing": 1,
    "theory": 1,
    "bounds": 1,
    "shuffle": 1,
    "models": 2,
    "data": 2,
    "augment": 2,
    "sharding": 2,
    "hosts": 2,
    "progress": 2,
    "signals": 2,
    "pairwise": 3,
    "train_step": 3,
    "optimizers": 3,
    "checkpoint": 3,
    "runs": 3,
    "feed": 3,
    "assembly": 3,
    "session": 4,
    "training": 4,
    "finetune": 4,
    "interchange": 4,
    "datasheet": 5,
    "evaluation": 4,
    "report": 5,
    "plots": 5,
}
# Third-party package: where alone it may be imported.
HOMES = {
    "flax": ("models",),
    "orbax": ("checkpoint",),
    "tyro": ("config",),
    "matplotlib": ("plots",),
    "sklearn": ("data",),
    "PIL": ("data", "augment"),
    "h5py": ("data",),
    "scipy": ("data",),
    "tensorboardX": ("runs",),
    "tensorflow_datasets": ("data",),
    "grain": ("data",),
    "torch": ("interchange",),
}
FILES = sorted(PACKAGE.rglob("*.py"))


def part(path):
    """The top-level module or sub-package of a file: `models` for hypersphere_jax/models/x.py."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down(path):
    here = part(path)
    floor = FLOORS.get(here, 1)  # the package's own __init__ re-exports floor 1
    for name in imports(path):
        top, *rest = name.split(".")
        assert top not in ("experiments", "benchmarks", "run"), f"{path} imports {name}"
        if top == "hypersphere_jax" and rest and rest[0] != "__version__":
            other = rest[0]
            if other == here:
                continue
            assert FLOORS[other] <= floor, f"{path} (floor {floor}) imports {name}"
            assert not (floor == 2 and FLOORS[other] == 2), f"{path} imports its neighbour {name}"
        if top in HOMES:
            assert here in HOMES[top], f"{path} imports {top}"
        if floor == 1:
            assert top in ("jax", "numpy", "hypersphere_jax") or top in sys.stdlib_module_names


def test_only_sharding_says_pmap():
    for path in FILES:
        nodes = list(ast.walk(ast.parse(path.read_text())))
        said = {
            node.value.id
            for node in nodes
            if isinstance(node, ast.Attribute)
            and node.attr == "pmap"
            and isinstance(node.value, ast.Name)
        }
        assert "jax" not in said or part(path) == "sharding", path
        assert "jax.pmap" not in imports(path), path


def test_only_hosts_says_distributed():
    for path in FILES:
        assert part(path) in ("hosts", "aborts") or "distributed" not in path.read_text(), path


def test_import_is_light():
    code = """
import sys, time
import jax, jax.numpy, numpy
began = time.perf_counter()
before = set(sys.modules)
import hypersphere_jax
from hypersphere_jax import moco, theory
took = time.perf_counter() - began
new = {name.split(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
assert new == {"hypersphere_jax"}, new
assert took < 0.5, took
heavy = {"flax", "optax", "orbax", "tyro", "matplotlib", "sklearn", "tensorboardX", "rich"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
