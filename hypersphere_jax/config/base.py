"""What all configs share: errors that a user can mend, checks, and the way to and from JSON."""

import ast
import dataclasses
import inspect
import itertools
import math
from typing import Any


class UserError(Exception):
    """A mistake that the user can mend: one line that says what is wrong, where, and what to do."""


class Diverged(UserError):
    """A run with numbers that are not finite.

    Args:
      found: what is not finite and where, without advice.
      advice: what to do.
    """

    def __init__(self, found: str, advice: str):
        super().__init__(f"{found}: {advice}")
        self.found = found


class Stopped(Exception):
    """A run that was asked to stop and has saved its state; the text says how to continue."""


def require(condition: bool, message: str) -> None:
    """Raise `UserError(message)` unless the condition holds."""
    if not condition:
        raise UserError(message)


def positive(flag: str, value: float) -> None:
    name = flag.replace("_", "-")
    require(0 < value < math.inf, f"--{name} {value}: must be finite and positive")


def at_least_one(flag: str, value: int | None) -> None:
    require(value is None or value >= 1, f"--{flag.replace('_', '-')} {value}: must be at least 1")


def valid_seed(seed: int, flag: str = "seed") -> None:
    require(0 <= seed < 2**32, f"--{flag} {seed}: must be from 0 to 2^32 - 1")


def given(config: Any) -> list[str]:
    """Names of the fields that differ from their defaults, as flags: `--ema-decay`."""
    return [
        f"--{field.name.replace('_', '-')}"
        for field in dataclasses.fields(config)
        if getattr(config, field.name) != field.default
    ]


def config(cls: type) -> type:
    """A frozen dataclass; the text below each field is its help, in one line."""
    made = dataclasses.dataclass(frozen=True)(cls)
    (definition,) = ast.parse(inspect.getsource(cls)).body
    for field, text in itertools.pairwise(definition.body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            # Otherwise tyro would break lines where the source does.
            help_text = " ".join(text.value.value.split())
            made.__dataclass_fields__[field.target.id].metadata = {"help": help_text}
    return made


def to_dict(config: Any) -> dict[str, Any]:
    """A config as plain JSON values."""
    plain = dataclasses.asdict(config)
    return _lists(plain)


def from_dict(cls: type, values: dict[str, Any]) -> Any:
    """Inverse of `to_dict`.

    Raises:
      UserError: when a key is unknown, as in a file of another version.
    """
    fields = {field.name: field for field in dataclasses.fields(cls)}
    unknown = sorted(set(values) - set(fields))
    require(not unknown, f"unknown entries in the {cls.__name__} of a config file: {unknown}")
    made = {}
    for name, value in values.items():
        if dataclasses.is_dataclass(fields[name].type):
            value = from_dict(fields[name].type, value)
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


def _lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lists(item) for key, item in value.items()}
    return list(value) if isinstance(value, tuple) else value
