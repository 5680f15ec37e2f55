"""What all configs share: errors, checks of values, and conversion to and from JSON."""

import ast
import dataclasses
import difflib
import functools
import inspect
import itertools
import json
import os
import re
import shlex
import sys
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from hypersphere_jax import __version__
from hypersphere_jax.config.values import Option, wrong
from hypersphere_jax.terminal import printable

WRITER = f"hypersphere_jax {__version__}"  # pages, pictures and tables say so at their beginning


class UserError(Exception):
    """Invalid input: one line that says what is wrong, where, and what to do."""


class Diverged(UserError):
    """A run with numbers that are not finite: `reason` says which and where, without the advice."""

    def __init__(self, reason: str, advice: str):
        super().__init__(reason, advice)  # as they are, for other processes
        self.reason = reason

    def __str__(self) -> str:
        return ": ".join(self.args)


class Stopped(KeyboardInterrupt):
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


def check_values(values: Mapping[str, Any], kinds: Mapping[str, Any]) -> None:
    """Raise UserError, "name=VALUE: must be …", for a value that is not of its kind."""
    for name, value in values.items():
        plain = isinstance(value, int | float | str | None)
        if said := (_wrong_plain if plain else wrong)(value, kinds[name], Option()):
            marks = getattr(kinds[name], "__metadata__", ())
            named = next((mark.name for mark in marks if getattr(mark, "name", None)), name)
            option = f"{name.upper()} " if Positional in marks else f"{named}="
            shown = shlex.join(map(str, value)) if isinstance(value, tuple) else value
            shown = repr(value) if isinstance(value, str) else shown
            raise UserError(f"{option}{printable(shown)}: {said.removesuffix(' or null')}")


# Sweeps have thousands of configs of few values. Typed: 1, 1.0 and True are not the same.
_wrong_plain = functools.lru_cache(maxsize=10_000, typed=True)(wrong)


def check_output(path: Path | None, *endings: str, flag: str = "out=") -> None:
    """Raise UserError unless a file can be written there, of such an ending and in place of none.

    What is there may be written anew if it says at its beginning that it is ours (`WRITER`). A file
    of arrays has no place for that.
    """
    if path is None:
        return
    what = f"{flag}{path}"
    right = path.suffix.lower() in endings
    require(right, f"{what}: must be a file that ends in {' or '.join(endings)}")
    free = not os.path.lexists(path)
    if path.is_file():
        with path.open("rb") as file:
            free = re.search(rb"hypersphere_jax \d", file.read(1000)) is not None
    require(free, f"{what} is there, and may be yours: name another file, or remove that one")
    folder = next(filter(Path.exists, path.absolute().parents))
    usable = folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
    require(usable, f"{what}: {folder} is no folder that can be written to")


def flag_of(name: str) -> str:
    """The command line's flag of a field: `--ema-decay` of `ema_decay`."""
    return f"--{name.replace('_', '-')}"


def changed(config: Any) -> list[str]:
    """Names of the fields that differ from their defaults."""
    fields = dataclasses.fields(config)
    return [field.name for field in fields if getattr(config, field.name) != field.default]


def refuse(config: Any, names: Iterable[str], reason: str) -> None:
    """Raise UserError, "name= REASON", if one of these fields differs from its default."""
    for name in changed(config):
        value = "False" if getattr(config, name) is False else ""
        require(name not in names, f"{name}={value} {reason}")


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """A hint at the known name that is nearest to a wrong one; empty where none is near."""
    by_plain = {plain(each): each for each in known}
    near = difflib.get_close_matches(plain(name), by_plain, n=1, cutoff=cutoff)
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

    def __deepcopy__(self, memo: dict) -> "Custom":
        return self


def _name_of(value: Any) -> str:
    if isinstance(value, functools.partial):
        options = [f"{name}={option!r}" for name, option in value.keywords.items()]
        return f"{_name_of(value.func)}({', '.join([*map(repr, value.args), *options])})"
    if type(value) is tuple:
        return ", ".join(map(_name_of, value))
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def described(value: Any) -> str:
    """The type of a value for a message, such as "float32 [3, 4]" or "tuple"."""
    is_array = hasattr(value, "dtype")
    return f"{value.dtype} {list(value.shape)}" if is_array else type(value).__name__


def check_call(function: Any, name: str, form: str, *arguments: Any, **options: Any) -> None:
    """Raise UserError unless a function can be called with these arguments, described by `form`."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a function written in C may have none
        return
    try:
        signature.bind(*arguments, **options)
    except TypeError as error:
        raise UserError(f"{name} must be callable as {form}: {error}") from error


def hold_custom(config: Any, name: str) -> None:
    """Wraps a field of a config in `Custom`; None, and the name that a file has, stay."""
    value = getattr(config, name)
    if not isinstance(value, Custom | str | None):
        object.__setattr__(config, name, Custom(value))


def holds_custom(config: Any) -> bool:
    """Whether some of it is the user's own code, which may change between two calls."""
    values = vars(config).values()
    return any(
        isinstance(value, Custom) or (dataclasses.is_dataclass(value) and holds_custom(value))
        for value in values
    )


@typing.dataclass_transform(frozen_default=True)
def config(cls: type) -> type:
    """A frozen dataclass; the text below each field is its help, in one line."""
    check_more = getattr(cls, "__post_init__", None)

    def check(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            object.__setattr__(self, field.name, _plain_value(value, field.type))
        check_values(_fields(self), {field.name: field.type for field in dataclasses.fields(self)})
        if check_more is not None:
            check_more(self)

    cls.__post_init__ = check  # type: ignore[attr-defined]
    made: Any = dataclasses.dataclass(frozen=True, init="__init__" not in vars(cls))(cls)
    for field, text in itertools.pairwise(_classes(cls.__module__)[cls.__name__].body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            # Otherwise tyro would break lines where the source does.
            help_text = " ".join(ast.literal_eval(text.value).split())
            made.__dataclass_fields__[ast.unparse(field.target)].metadata = {"help": help_text}
    return made


def _plain_value(value: Any, kind: Any) -> Any:
    """Return lists as tuples, and paths as text where a field has text."""
    if isinstance(value, list):
        value = tuple(value)
    if isinstance(value, tuple) and any(isinstance(each, os.PathLike) for each in value):
        return tuple(map(os.fspath, value))
    is_path = isinstance(value, os.PathLike) and Path not in (kind, *typing.get_args(kind))
    return os.fspath(value) if is_path else value


@functools.cache  # `inspect.getsource` of a class would parse all of its module each time
def _classes(module: str) -> dict[str, ast.ClassDef]:
    """The classes of a module as they are written."""
    source = inspect.getsource(sys.modules[module])
    return {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}


def to_dict(config: Any) -> dict[str, Any]:
    """A config as plain JSON values."""
    return json.loads(json.dumps(_fields(config), default=_plain))


def _fields(config: Any) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}


def _plain(value: Any) -> Any:
    return value.name if isinstance(value, Custom) else _fields(value)


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
