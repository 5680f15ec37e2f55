"""The faults of `faults.py` fit the package and its tests."""

import ast
import builtins

import faults
import pytest

CASES = [pytest.param(fault, id=f"{fault.target}: {fault.what}") for fault, _ in faults.CASES]


def undefined_names(tree):
    loaded = set()
    defined = set(dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            loaded.add(node.id)
        else:
            defined |= {getattr(node, field, None) for field in ("id", "arg", "name", "asname")}
    return loaded - defined


@pytest.mark.parametrize("fault", CASES)
def test_fault_changes_its_function(fault):
    definition = faults.find(fault.target)
    faulty = faults.faulty_tree(fault, definition)
    assert ast.unparse(faulty) != ast.unparse(ast.parse(definition.path.read_text()))
    assert not undefined_names(faulty)


@pytest.mark.parametrize("paths", faults.FAULTS)
def test_tests_of_faults_exist(paths):
    assert all((faults.ROOT / path).exists() for path in paths.split())
