"""Edits of the syntax trees of functions, which `faults.py` applies."""

import ast
from collections.abc import Callable
from typing import Any, NamedTuple

Edit = Callable[[ast.AST], ast.AST]  # maps each node of a function to itself or to a new node


class Fault(NamedTuple):
    """An error in a function of the package.

    Attributes:
      what: the error.
      target: end of the function's dotted name, such as `moco.queue_push` or `Class.method`.
      edit: change of the function's nodes.
    """

    what: str
    target: str
    edit: Edit


def argument_of(function: str, index: int = 0) -> Edit:
    """Replace calls of a function by one of their arguments."""

    def edit(node: ast.AST) -> ast.AST:
        return node.args[index] if _calls(node, function) else node

    return edit


def argument(function: str, index: int, value: str) -> Edit:
    """Replace a positional argument of calls of a function."""

    def edit(node: ast.AST) -> ast.AST:
        if _calls(node, function) and len(node.args) > index:
            node.args[index] = _expression(value)
        return node

    return edit


def keyword(function: str, name: str, value: str | None = None) -> Edit:
    """Replace a keyword argument of calls of a function, or drop it without a value."""

    def edit(node: ast.AST) -> ast.AST:
        if _calls(node, function):
            others = [item for item in node.keywords if item.arg != name]
            if value is not None:
                others.append(ast.keyword(name, _expression(value)))
            node.keywords = others
        return node

    return edit


def assigned(variable: str, value: str) -> Edit:
    """Assign another value to a variable."""

    def edit(node: ast.AST) -> ast.AST:
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        if isinstance(node, ast.Assign | ast.AnnAssign) and _is_name(targets[0], variable):
            node.value = _expression(value)
        return node

    return edit


def returns(value: str) -> Edit:
    """Return another value."""

    def edit(node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Return):
            node.value = _expression(value)
        return node

    return edit


def renamed(old: str, new: str) -> Edit:
    """Read another variable, or another attribute."""

    def edit(node: ast.AST) -> ast.AST:
        if _is_name(node, old) and isinstance(node.ctx, ast.Load):
            node.id = new
        if isinstance(node, ast.Attribute) and node.attr == old:
            node.attr = new
        return node

    return edit


def constant(old: Any, new: Any) -> Edit:
    """Replace a number or a string."""

    def edit(node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Constant) and (type(node.value), node.value) == (type(old), old):
            node.value = new
        return node

    return edit


def operator(old: type, new: type) -> Edit:
    """Replace an operator of `ast`, such as `ast.Add`."""

    def edit(node: ast.AST) -> ast.AST:
        return new() if isinstance(node, old) else node

    return edit


def _calls(node: ast.AST, function: str) -> bool:
    if not isinstance(node, ast.Call):
        return False
    return function in (getattr(node.func, "attr", None), getattr(node.func, "id", None))


def _is_name(node: ast.AST | None, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body
