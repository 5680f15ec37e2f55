"""What all configs share: errors, checks of values, and conversion to and from JSON."""

import ast
import dataclasses
import difflib
import functools
import inspect
import itertools
import json
import operator
import shlex
import sys
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SEEDS = f"[0, {2**32})"


class UserError(Exception):
    """Invalid input: one line that says what is wrong, where, and what to do."""


class Diverged(UserError):
    """A run with numbers that are not finite: `reason` says which and where, without the advice."""

    def __init__(self, reason: str, advice: str):
        super().__init__(f"{reason}: {advice}")
        self.reason = reason


class Stopped(Exception):
    """A run that was asked to stop and has saved its state; the text says how to continue."""


def require(condition: bool, message: str) -> None:
    """Raise `UserError(message)` unless the condition holds."""
    if not condition:
        raise UserError(message)


def program() -> str:
    """How the command line was called, such as `python run.py` or `hypersphere-jax`."""
    called = Path(sys.argv[0])
    if called.name == "hypersphere-jax":
        return called.name
    if called.name == "__main__.py" and called.parent.name == "hypersphere_jax":
        return "python -m hypersphere_jax"
    return f"python {shlex.quote(sys.argv[0])}" if called.name == "run.py" else "python run.py"


def check_range(config: Any, interval: str, *names: str) -> None:
    """Raise UserError unless these fields are None or in an interval, such as "[0, 1)".

    Of a tuple, every number must be in it.
    """
    low, high = map(float, interval[1:-1].split(","))
    above = operator.ge if interval[0] == "[" else operator.gt
    below = operator.le if interval[-1] == "]" else operator.lt
    for name in names:
        value = getattr(config, name)
        numbers = value if isinstance(value, tuple) else (value,)
        require(
            all(x is None or (above(x, low) and below(x, high)) for x in numbers),
            f"{flag_of(name)} {value}: must be in {interval}",
        )


def flag_of(name: str) -> str:
    """The command line's flag of a field: `--ema-decay` of `ema_decay`."""
    return f"--{name.replace('_', '-')}"


def changed(config: Any) -> list[str]:
    """Names of the fields that differ from their defaults."""
    fields = dataclasses.fields(config)
    return [field.name for field in fields if getattr(config, field.name) != field.default]


def refuse(config: Any, names: Iterable[str], reason: str) -> None:
    """Raise UserError, "--flag REASON", if one of these fields differs from its default."""
    for name in changed(config):
        prefix = "no_" if getattr(config, name) is False else ""
        require(name not in names, f"{flag_of(prefix + name)} {reason}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint at the known name that is nearest to a wrong one; empty where none is near."""
    by_plain = {plain(each): each for each in known}
    near = difflib.get_close_matches(plain(name), by_plain, n=1)
    return f"; did you mean {by_plain[near[0]]!r}?" if near else ""


def plain(name: str) -> str:
    """A name as people know it: without capitals, hyphens and underscores."""
    return name.lower().replace("-", "").replace("_", "")


class Custom:
    """An object of the user's in a config, such as a network: written by its name, equal to itself.

    Attributes:
      value: the object.
      name: its module and qualified name, or those of its class.
    """

    def __init__(self, value: Any, name: str | None = None):
        self.value, self.name = value, name or _name_of(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Custom) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def _name_of(value: Any) -> str:
    if isinstance(value, functools.partial):
        options = [f"{name}={option!r}" for name, option in value.keywords.items()]
        return f"{_name_of(value.func)}({', '.join([*map(repr, value.args), *options])})"
    if type(value) is tuple:
        return ", ".join(map(_name_of, value))
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def hold_custom(config: Any, name: str) -> None:
    """Wraps a field of a config in `Custom`; None, and the name that a file has, stay."""
    value = getattr(config, name)
    if not isinstance(value, Custom | str | None):
        object.__setattr__(config, name, Custom(value))


@typing.dataclass_transform(frozen_default=True)
def config(cls: type) -> type:
    """A frozen dataclass; the text below each field is its help, in one line."""
    made: Any = dataclasses.dataclass(frozen=True, init="__init__" not in vars(cls))(cls)
    definition: Any = ast.parse(inspect.getsource(cls)).body[0]
    for field, text in itertools.pairwise(definition.body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            # Otherwise tyro would break lines where the source does.
            help_text = " ".join(ast.literal_eval(text.value).split())
            made.__dataclass_fields__[ast.unparse(field.target)].metadata = {"help": help_text}
    return made


def to_dict(config: Any) -> dict[str, Any]:
    """A config as plain JSON values."""
    return json.loads(json.dumps(_fields(config), default=_plain))


def _fields(config: Any) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}


def _plain(value: Any) -> Any:
    return value.name if isinstance(value, Custom) else _fields(value)


def from_dict(cls: type, values: dict[str, Any]) -> Any:
    """Inverse of `to_dict`; raises UserError for an unknown key."""
    types = {field.name: field.type for field in dataclasses.fields(cls)}
    unknown = sorted(set(values) - set(types))
    require(not unknown, f"unknown entries in the {cls.__name__} of a config file: {unknown}")
    made = {}
    for name, value in values.items():
        if dataclasses.is_dataclass(types[name]):
            value = from_dict(types[name], value)
        made[name] = tuple(value) if isinstance(value, list) else value
    return cls(**made)


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """Lines such as `optimizer.epochs: 200 -> 100` for what differs between two config dicts."""
    lines = []
    for key in [*old, *(key for key in new if key not in old)]:
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            lines += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            lines.append(f"{prefix}{key}: {a} -> {b}")
    return lines
