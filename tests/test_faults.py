"""The faults of `faults.py` fit the package."""

import ast
import builtins

import faults
import pytest

FAULTS = [fault for group in faults.FAULTS.values() for fault in group]


def defined_names(tree: ast.AST) -> set[str]:
    """Return the names that are defined or used in a module."""
    fields = ("id", "arg", "name", "asname")
    return {getattr(node, field, None) for node in ast.walk(tree) for field in fields}


def used_names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.target}: {fault.what}")
def test_fault_changes_its_function(fault):
    definition = faults.find(fault.target)
    original = ast.parse(definition.path.read_text())
    faulty = faults.faulty_tree(fault, definition)
    assert ast.unparse(faulty) != ast.unparse(original)
    assert used_names(faulty) <= defined_names(original) | set(dir(builtins)), "undefined names"


def test_tests_of_faults_exist():
    for tests in faults.FAULTS:
        for path in tests.split():
            assert (faults.ROOT / path).exists(), path
