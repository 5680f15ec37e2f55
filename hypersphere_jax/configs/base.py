"""Errors, and what all configs share: checks of types and ranges, conversion to and from JSON."""

import dataclasses
import difflib
import functools
import inspect
import json
import math
import operator
import os
import re
import shlex
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from tyro.conf import arg

from hypersphere_jax import __version__

WRITER = f"hypersphere_jax {__version__}"  # files that this package wrote begin with it
HOLDS = {
    "at_least": operator.ge,
    "above": operator.gt,
    "at_most": operator.le,
    "below": operator.lt,
}


class UserError(Exception):
    """Invalid input. The message is one line: what is wrong, then what to do."""


class Diverged(UserError):
    """A run with numbers that are not finite; `reason` is the message without the advice."""

    def __init__(self, reason: str, advice: str):
        super().__init__(reason, advice)
        self.reason = reason

    def __str__(self) -> str:
        return ": ".join(self.args)


class Stopped(KeyboardInterrupt):
    """A run that was asked to stop and has saved its state. The text says how to resume."""


def require(condition: bool, message: str) -> None:
    """Raise `UserError(message)` unless the condition is true."""
    if not condition:
        raise UserError(message)


@dataclasses.dataclass(frozen=True)
class Config:
    """Base of all configs. It checks types; subclasses check ranges in `__post_init__`."""

    def __post_init__(self) -> None:
        for name, value in dict(vars(self)).items():
            object.__setattr__(self, name, checked(type(self), name, value))

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values; UserError for an unknown field or an invalid value."""
        check_names(type(self), changes)
        return dataclasses.replace(self, **changes)

    @property
    def holds_custom(self) -> bool:
        """Whether this contains code of the user's, which may change between two calls."""
        return any(isinstance(value, Custom) for value in vars(self).values())


C = TypeVar("C", bound=Config)
T = TypeVar("T")
# An option whose default is chosen later. Its text says how, so the help omits "(default: None)".
Auto = Annotated[T | None, arg(help_behavior_hint="")]


@functools.cache
def field_types(cls: Any) -> dict[str, Any]:
    """Return the type of each field of a config class, without annotations for tyro."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def checked(cls: type[Config], name: str, value: Any) -> Any:
    """Return the value of an option: lists as tuples, paths as text, other objects as `Custom`."""
    kind = field_types(cls)[name]  # type: ignore[arg-type]
    if kind is Any:
        return value if isinstance(value, Custom | str | None) else Custom(value)
    kinds = (kind, *typing.get_args(kind))
    if isinstance(value, list | tuple):
        value = tuple(os.fspath(item) if isinstance(item, Path) else item for item in value)
    elif isinstance(value, str | Path) and Path in kinds:
        value = Path(value)
    elif isinstance(value, Path):
        value = os.fspath(value)
    require(has_type(value, kind), f"{name}={value!r}: must be {describe_type(kind)}")
    return value


def describe_type(kind: Any) -> str:
    """Return a type in words, such as "one of resident, streaming"."""
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(describe_type, arguments))
    if origin is Literal:
        return f"one of {', '.join(arguments)}"
    if origin is tuple:
        return f"a list, each {describe_type(arguments[0])}"
    words = {bool: "true or false", int: "an integer", float: "a finite number", str: "text"}
    words[types.NoneType] = "None"
    return words.get(kind, kind.__name__)


def has_type(value: Any, kind: Any) -> bool:
    """Return whether a value has a type. An int is a float; a bool is neither; NaN is no number."""
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return any(has_type(value, argument) for argument in arguments)
    if origin is Literal:
        return isinstance(value, str) and value in arguments
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if arguments[-1] is ...:
            arguments = arguments[:1] * len(value)
        return len(value) == len(arguments) and all(map(has_type, value, arguments))
    if kind is float and isinstance(value, float):
        return math.isfinite(value)
    if kind in (int, float):
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    return isinstance(value, kind)


def check_range(config: Config, *names: str, **bounds: Any) -> None:
    """Raise UserError if one of these numbers, or of their items, is beyond a bound. None passes.

    Bounds are `at_least`, `above`, `at_most` and `below`.
    """
    words = " and ".join(f"{name.replace('_', ' ')} {bound}" for name, bound in bounds.items())
    for name in names:
        value = getattr(config, name)
        numbers = value if isinstance(value, tuple) else (value,)
        for number in (number for number in numbers if number is not None):
            is_inside = all(HOLDS[kind](number, bound) for kind, bound in bounds.items())
            require(is_inside, f"{name}={number}: must be {words}")


def check_folder_name(config: Config, name: str) -> None:
    """Raise UserError if a text is not the plain name of a folder."""
    text = getattr(config, name)
    is_plain = bool(text) and text not in (".", "..") and "/" not in text and text.isprintable()
    require(is_plain, f"{name}={text!r}: must be a plain folder name")


def changed(config: Config, cls: type | None = None) -> list[str]:
    """Return names of fields that differ from their defaults, of one section or of all."""
    fields = dataclasses.fields(cls or type(config))
    return [field.name for field in fields if getattr(config, field.name) != field.default]


def refuse(config: Config, names: Iterable[str], reason: str) -> None:
    """Raise UserError, `name=VALUE REASON`, if one of these fields differs from its default."""
    different = changed(config)
    for name in names:
        require(name not in different, f"{name}={getattr(config, name)} {reason}")


def check_names(cls: type, names: Iterable[str]) -> None:
    """Raise UserError for a name that is not a field of a config class."""
    known = [field.name for field in dataclasses.fields(cls)]
    for name in names:
        if name not in known:
            raise UserError(f"{cls.__name__} has no option {name!r}{did_you_mean(name, known)}")


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


def check_output(path: Path | None, *endings: str, flag: str = "out=") -> None:
    """Raise UserError if a file has none of these endings, or exists and may be the user's.

    A file that this package wrote (see `WRITER`) is replaced.
    """
    if path is None:
        return
    has_ending = path.suffix.lower() in endings
    require(has_ending, f"{flag}{path}: must be a file that ends in {' or '.join(endings)}")
    is_free = not os.path.lexists(path)
    if path.is_file():
        with path.open("rb") as file:
            is_free = re.search(rb"hypersphere_jax \d", file.read(1000)) is not None
    require(is_free, f"{flag}{path} exists: name another file, or remove that one")
    folder = next(filter(Path.exists, path.absolute().parents))
    is_usable = folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
    require(is_usable, f"{flag}{path}: {folder} is not a folder that can be written to")


def section(config: Config, cls: type[C]) -> C:
    """Return the part of a config that a base class of its class defines."""
    return cls(**{field.name: getattr(config, field.name) for field in dataclasses.fields(cls)})


def to_dict(config: Config) -> dict[str, Any]:
    """Return a config as JSON values. Objects of the user's are written by their name."""
    return json.loads(json.dumps(vars(config), default=str))


def from_dict(cls: type[C], values: Mapping[str, Any]) -> C:
    """Return the config of JSON or YAML values, the inverse of `to_dict`."""
    is_mapping = isinstance(values, Mapping)
    require(is_mapping, f"{cls.__name__}: must be options by name, not {values!r:.50}")
    check_names(cls, values)
    return cls(**values)


class Custom:
    """An object of the user's in a config, such as a network, and its qualified name."""

    def __init__(self, value: Any, name: str | None = None):
        self.value = value
        self.name = name or _name_of(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Custom) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)

    def __str__(self) -> str:
        return self.name


def _name_of(value: Any) -> str:
    if isinstance(value, functools.partial):
        options = [f"{name}={option!r}" for name, option in value.keywords.items()]
        return f"{_name_of(value.func)}({', '.join([*map(repr, value.args), *options])})"
    if type(value) is tuple:
        return ", ".join(map(_name_of, value))
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def described(value: Any) -> str:
    """Return the type of a value, such as "float32 [3, 4]" or "tuple"."""
    is_array = hasattr(value, "dtype")
    return f"{value.dtype} {list(value.shape)}" if is_array else type(value).__name__


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return a hint at the known name nearest to a wrong one, or an empty text."""
    by_plain = {_plain(each): each for each in known}
    near = difflib.get_close_matches(_plain(name), by_plain, n=1, cutoff=cutoff)
    return f"; did you mean {by_plain[near[0]]!r}?" if near else ""


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def program() -> str:
    """Return how the command line was called, such as `python run.py` or `hypersphere-jax`."""
    called = Path(sys.argv[0])
    if called.name == "hypersphere-jax":
        return called.name
    if called.name == "__main__.py" and called.parent.name == "hypersphere_jax":
        return "python -m hypersphere_jax"
    return f"python {shlex.quote(sys.argv[0])}" if called.name == "run.py" else "python run.py"
