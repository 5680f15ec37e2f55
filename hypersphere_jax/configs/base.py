"""Errors, and what all configs share: checks of types and ranges, conversion to and from JSON."""

import dataclasses
import difflib
import functools
import inspect
import json
import math
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
MAX_SEED = 2**32 - 1


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
    """Base of all configs.

    A config is a frozen dataclass. Its fields are the options of a command and the keys of a config
    file. Types are checked here; each class checks the ranges of its fields in `__post_init__`.
    """

    def __post_init__(self) -> None:
        for name, kind in field_types(type(self)).items():  # type: ignore[arg-type]
            object.__setattr__(self, name, checked(name, getattr(self, name), kind))

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values.

        Raises:
          UserError: for an unknown field or an invalid value.
        """
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


def matches(value: Any, kind: Any) -> bool:
    """Return whether a value has a type. An int is a float; numbers must be finite."""
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if kind is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(matches(value, one) for one in arguments)
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in arguments)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if arguments[-1] is ...:
            arguments = arguments[:1] * len(value)
        return len(value) == len(arguments) and all(map(matches, value, arguments))
    if isinstance(value, bool):  # not a number
        return kind is bool
    if isinstance(value, int):
        return kind in (int, float) and abs(value) < 2**63
    if isinstance(value, float):
        return kind is float and math.isfinite(value)
    return isinstance(value, kind)


def checked(name: str, value: Any, kind: Any) -> Any:
    """Return the value of an option, with lists as tuples and paths as text.

    Raises:
      UserError: for a value of another type.
    """
    value = _converted(value, kind)
    if not matches(value, kind):
        raise UserError(f"{name}={value!r}: must be {described_type(kind)}")
    return value


def described_type(kind: Any) -> str:
    """Return a type in words, for messages."""
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(described_type(one) for one in arguments)
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin is tuple:
        return f"a list, each {described_type(arguments[0])}"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return words.get(kind, "None" if kind is types.NoneType else kind.__name__)


def _converted(value: Any, kind: Any) -> Any:
    """Return lists as tuples, and paths as text where the field is text."""
    if kind is Any:  # an object of the user's
        return value
    if isinstance(value, list):
        value = tuple(value)
    if isinstance(value, tuple):
        return tuple(os.fspath(item) if isinstance(item, os.PathLike) else item for item in value)
    if isinstance(value, os.PathLike) and Path not in (kind, *typing.get_args(kind)):
        return os.fspath(value)
    if isinstance(value, str) and Path in (kind, *typing.get_args(kind)):
        return Path(value)
    return value


def check_at_least(config: Config, minimum: float, *names: str) -> None:
    """Raise UserError if one of these numbers, or of their items, is below the minimum."""
    for name, number in _numbers(config, names):
        require(number >= minimum, f"{name}={number:g}: must be at least {minimum:g}")


def check_at_most(config: Config, maximum: float, *names: str) -> None:
    """Raise UserError if one of these numbers, or of their items, is above the maximum."""
    for name, number in _numbers(config, names):
        require(number <= maximum, f"{name}={number:g}: must be at most {maximum:g}")


def check_positive(config: Config, *names: str) -> None:
    """Raise UserError if one of these numbers, or of their items, is not above 0."""
    for name, number in _numbers(config, names):
        require(number > 0, f"{name}={number:g}: must be above 0")


def check_share(config: Config, *names: str) -> None:
    """Raise UserError if one of these numbers, or of their items, is not in (0, 1]."""
    for name, number in _numbers(config, names):
        require(0 < number <= 1, f"{name}={number:g}: must be above 0 and at most 1")


def check_below_one(config: Config, *names: str) -> None:
    """Raise UserError if one of these numbers, or of their items, is not in [0, 1)."""
    for name, number in _numbers(config, names):
        require(0 <= number < 1, f"{name}={number:g}: must be at least 0 and below 1")


def check_seed(config: Config, *names: str) -> None:
    """Raise UserError if one of these numbers is not a seed."""
    for name, number in _numbers(config, names):
        require(0 <= number <= MAX_SEED, f"{name}={number}: must be a seed from 0 to {MAX_SEED}")


def check_folder_name(config: Config, name: str) -> None:
    """Raise UserError if a text is not the plain name of a folder."""
    text = getattr(config, name)
    is_plain = bool(text) and text not in (".", "..") and "/" not in text and text.isprintable()
    require(is_plain, f"{name}={text!r}: must be a plain folder name")


def _numbers(config: Config, names: Iterable[str]) -> list[tuple[str, float]]:
    found = []
    for name in names:
        value = getattr(config, name)
        items = value if isinstance(value, tuple) else (value,)
        found += [(name, item) for item in items if item is not None]
    return found


def changed(config: Config, cls: type | None = None) -> list[str]:
    """Return names of fields that differ from their defaults, of one section or of all."""
    fields = dataclasses.fields(cls or type(config))
    return [field.name for field in fields if getattr(config, field.name) != field.default]


def refuse(config: Config, names: Iterable[str], reason: str) -> None:
    """Raise UserError, `name=VALUE REASON`, if one of these fields differs from its default."""
    for name in names:
        default = config.__dataclass_fields__[name].default
        value = getattr(config, name)
        require(value == default, f"{name}={value} {reason}")


def section(config: Config, cls: type[C]) -> C:
    """Return the part of a config that a base class of its class defines."""
    return cls(**{field.name: getattr(config, field.name) for field in dataclasses.fields(cls)})


def check_names(cls: type, names: Iterable[str]) -> None:
    """Raise UserError for a name that is not a field of a config class."""
    known = [field.name for field in dataclasses.fields(cls)]
    for name in names:
        if name not in known:
            raise UserError(f"{cls.__name__} has no option {name!r}{did_you_mean(name, known)}")


def to_dict(config: Config) -> dict[str, Any]:
    """Return a config as JSON values. Objects of the user's are written by their name."""
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return json.loads(json.dumps(values, default=str))


def from_dict(cls: type[C], values: Mapping[str, Any]) -> C:
    """Return the config of JSON or YAML values, the inverse of `to_dict`.

    Raises:
      UserError: for an unknown key or an invalid value.
    """
    require(
        isinstance(values, Mapping), f"{cls.__name__}: must be options by name, not {values!r:.50}"
    )
    check_names(cls, values)
    return cls(**values)


class Custom:
    """An object of the user's in a config, such as a network; equal only to itself.

    Attributes:
      value: the object.
      name: its module and qualified name, or its class's.
    """

    def __init__(self, value: Any, name: str | None = None):
        self.value = value
        self.name = name or _name_of(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Custom) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)

    def __deepcopy__(self, memo: dict) -> "Custom":
        return self

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


def hold_custom(config: Config, name: str) -> None:
    """Wrap the value of a field in `Custom`, unless it is None or a name read from a file."""
    value = getattr(config, name)
    if not isinstance(value, Custom | str | None):
        object.__setattr__(config, name, Custom(value))


def described(value: Any) -> str:
    """Return the type of a value for a message, such as "float32 [3, 4]" or "tuple"."""
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


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return a hint at the known name nearest to a wrong one, or an empty text."""
    by_plain = {plain(each): each for each in known}
    near = difflib.get_close_matches(plain(name), by_plain, n=1, cutoff=cutoff)
    return f"; did you mean {by_plain[near[0]]!r}?" if near else ""


def plain(name: str) -> str:
    """Return a name in lower case without hyphens and underscores."""
    return name.lower().replace("-", "").replace("_", "")


def program() -> str:
    """Return how the command line was called, such as `python run.py` or `hypersphere-jax`."""
    called = Path(sys.argv[0])
    if called.name == "hypersphere-jax":
        return called.name
    if called.name == "__main__.py" and called.parent.name == "hypersphere_jax":
        return "python -m hypersphere_jax"
    return f"python {shlex.quote(sys.argv[0])}" if called.name == "run.py" else "python run.py"


def check_output(path: Path | None, *endings: str, flag: str = "out=") -> None:
    """Raise UserError unless a file with one of these endings can be written.

    A file that this package wrote (see `WRITER`) is replaced, another one is not.
    """
    if path is None:
        return
    what = f"{flag}{path}"
    has_ending = path.suffix.lower() in endings
    require(has_ending, f"{what}: must be a file that ends in {' or '.join(endings)}")
    is_free = not os.path.lexists(path)
    if path.is_file():
        with path.open("rb") as file:
            is_free = re.search(rb"hypersphere_jax \d", file.read(1000)) is not None
    require(is_free, f"{what} exists and may be yours: name another file, or remove that one")
    folder = next(filter(Path.exists, path.absolute().parents))
    is_usable = folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
    require(is_usable, f"{what}: {folder} is not a folder that can be written to")
