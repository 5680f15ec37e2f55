"""Options in a file, YAML or JSON: `--config FILE`."""

import dataclasses
import json
import re
import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml

from hypersphere_jax.config.base import UserError, did_you_mean, require
from hypersphere_jax.config.pretrain import NAMED
from hypersphere_jax.config.runtime import RENAMED

# What a value must be, in words.
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "text"}


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-3 is a number, as it is in YAML 1.2 and in JSON."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+"),
    list("-+.0123456789"),
)


def with_file(config: Any, file: str) -> Any:
    """A config with the values of a file in place of its own, not validated yet.

    The file has the options of a config as `config.json` has them, in parts, or as flags are named,
    without parts; all of them or some. A run's `config.json` may be given as it is.

    Args:
      config: whose values stay where the file has none.
      file: YAML or JSON.

    Returns:
      A config of the same class. What goes together is checked when all is known: call its class.

    Raises:
      UserError: for a file that cannot be read, an unknown option, or a value of the wrong kind.
    """
    values = _read(file)
    if isinstance(values.get("config"), dict):  # a run's record
        values = values["config"]
    return _with(config, values, file)


def blank(cls: type, missing: Any) -> Any:
    """A config of defaults, with `missing` where a field has none; not validated."""
    fields = dataclasses.fields(cls)
    lacking = dataclasses.MISSING
    return _made(cls, {f.name: missing if f.default is lacking else f.default for f in fields})


def _read(file: str) -> dict[str, Any]:
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "is no text"
        raise UserError(f"--config {file}: {reason}") from error
    try:
        values = json.loads(text) if file.endswith(".json") else yaml.load(text, Loader=_Loader)
    except json.JSONDecodeError as error:
        raise UserError(f"--config {file} is not JSON: {error}") from error
    except (yaml.YAMLError, ValueError) as error:  # the latter for dates that do not exist
        mark, problem = (getattr(error, name, None) for name in ("problem_mark", "problem"))
        where = f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark else error
        raise UserError(f"--config {file} is not YAML: {where}") from error
    require(
        isinstance(values, dict),
        f"--config {file}: must hold options with their values, such as `epochs: 10`",
    )
    return values


def _with(config: Any, values: dict[str, Any], file: str, prefix: str = "") -> Any:
    """A config with values of a file; `prefix` is of the part that it is."""
    cls: Any = type(config)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    parts = {name for name, field in fields.items() if dataclasses.is_dataclass(field.type)}
    kinds: dict[str, Any] = {part: fields[part].type for part in parts}
    ordered = [name for name in reversed(fields) if name in parts]  # of two, the first has a name
    part_of = {f.name: part for part in ordered for f in dataclasses.fields(kinds[part])}
    made, of_parts = dict(vars(config)), dict[str, dict[str, Any]]()
    for key, value in values.items():
        name = str(key).replace("-", "_")
        if prefix == "runtime.":
            name = RENAMED.get(name, name)
        if name in parts and isinstance(value, dict):
            of_parts[name] = of_parts.get(name, {}) | value
        elif name in NAMED and name in parts and isinstance(value, str):
            of_parts.setdefault(name, {})[NAMED[name]] = value
        elif name in fields:
            made[name] = _value(value, fields[name].type, f"--config {file}: {prefix}{key}")
        elif name in part_of:
            of_parts.setdefault(part_of[name], {})[name] = value
        else:
            hint = did_you_mean(name, [*fields, *part_of])
            raise UserError(f"--config {file}: no option '{prefix}{key}'{hint}")
    for part, changes in of_parts.items():
        made[part] = _with(made[part], changes, file, f"{part}.")
    return _made(cls, made)


def _made(cls: type, values: dict[str, Any]) -> Any:
    config: Any = object.__new__(cls)
    for name, value in values.items():
        object.__setattr__(config, name, value)
    return config


def _value(value: Any, kind: Any, where: str) -> Any:
    """A value as a field has it; UserError if it is of another kind."""
    if kind is Any or (get_origin(kind) is Annotated and get_args(kind)[0] is Any):
        own = f"{where} is your own {value}, which only Python can give: hypersphere_jax.train(…)"
        require(value is None, own)
    require(
        _fits(value, kind), f"{where} is {json.dumps(value, default=str)}: must be {_words(kind)}"
    )
    if isinstance(value, list):
        return tuple(value)
    return value


def _fits(value: Any, kind: Any) -> bool:
    origin, of = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin is Annotated:
        return _fits(value, of[0])
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in of)
    if origin is Literal:
        return any(value == one and type(value) is type(one) for one in of)
    if origin is tuple:
        kinds = of[:1] * len(value) if of[-1] is ... and isinstance(value, list) else of
        return (
            isinstance(value, list) and len(value) == len(kinds) and all(map(_fits, value, kinds))
        )
    if kind in (int, float):
        numbers = int if kind is int else (int, float)
        return isinstance(value, numbers) and not isinstance(value, bool)
    return isinstance(value, str if kind is Path else kind)


def _words(kind: Any) -> str:
    """What a value of a kind is, for a message."""
    origin, of = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _words(of[0])
    if origin in (Union, types.UnionType):
        return " or ".join("null" if one is types.NoneType else _words(one) for one in of)
    if origin is Literal:
        return f"one of {', '.join(map(str, of))}"
    if origin is tuple:
        number = "" if of[-1] is ... else f" of {len(of)} values"
        return f"a list{number}, each {_words(of[0])}"
    return WORDS.get(kind, "options with their values")
