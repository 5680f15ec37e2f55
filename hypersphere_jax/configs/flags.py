"""Flags of the command line, parsed by tyro, and files of options."""

import dataclasses
import re
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import docstring_parser
import tyro
import yaml

from hypersphere_jax.configs.base import (
    Config,
    UserError,
    check_names,
    checked,
    field_types,
    require,
)


def parse_flags(
    cls: type[Config],
    program: str,
    description: str,
    arguments: Sequence[str],
    default: Any = None,
) -> Any:
    """Return a config from flags. The help groups them by the sections that `cls` is composed of.

    Args:
      cls: A config class.
      program: Program and command, for the help.
      description: Text of the help.
      arguments: The flags.
      default: Config that contains the values of omitted flags.
    """
    join_help_lines(cls)
    markers = (tyro.conf.OmitArgPrefixes,)
    texts: dict[str, Any] = {"prog": program, "description": description, "config": markers}
    sections = [base for base in cls.__bases__ if base is not Config]
    if len(sections) < 2:
        return tyro.cli(cls, args=arguments, **texts)
    sections.sort(key=lambda section: not has_required_field(section))
    fields: list[tuple[str, type, Any]] = []
    for section in sections:
        title = section.__name__.removesuffix("Config").removesuffix("Options").lower()
        value = dataclasses.field()
        if default is not None:
            value = dataclasses.field(default=unchecked(section, vars(default)))
        elif not has_required_field(section):
            value = dataclasses.field(default=section())
        fields.append((title, section, value))
    grouped = dataclasses.make_dataclass("Options", fields)
    values: dict[str, Any] = {}
    for part in vars(tyro.cli(grouped, args=arguments, **texts)).values():
        values |= vars(part)
    return cls(**values)


def has_required_field(cls: type) -> bool:
    """Return whether a config class has an option without a default."""
    return any(field.default is dataclasses.MISSING for field in dataclasses.fields(cls))


def join_help_lines(cls: type[Config]) -> None:
    """Join the lines of attribute docstrings, which tyro prints as the source wraps them."""
    for base in cls.__mro__:
        if dataclasses.is_dataclass(base):
            for option in docstring_parser.parse_from_object(base).params:
                text = " ".join((option.description or "").split())
                field = base.__dataclass_fields__[option.arg_name]
                field.metadata = types.MappingProxyType({"help": text})


def with_file(cls: type[Config], file: str, default: Any) -> Any:
    """Return a config with the options of a file in place of those of `default`, if given.

    Only names and types are checked: a file may need flags to be complete.
    """
    values = read_config_file(file)
    kinds = field_types(cls)  # type: ignore[arg-type]
    try:
        check_names(cls, values)
        values = {name: checked(name, value, kinds[name]) for name, value in values.items()}
    except UserError as error:
        raise UserError(f"--config {file}: {error}") from error
    defaults = {field.name: field.default for field in dataclasses.fields(cls)}
    if default is not None:
        defaults = vars(default)
    return unchecked(cls, defaults | values)


def unchecked(cls: type[Config], values: Mapping[str, Any]) -> Any:
    """Return a config that tyro takes as defaults, without the checks of its class."""
    config = object.__new__(cls)
    for field in dataclasses.fields(cls):
        value = values[field.name]
        if value is dataclasses.MISSING:
            value = tyro.MISSING
        object.__setattr__(config, field.name, value)
    return config


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-3 is a number, as in YAML 1.2 and JSON."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def read_config_file(file: str | Path) -> dict[str, Any]:
    """Return the options in a YAML or JSON file, or in the `config` of a run's config.json.

    Raises:
      UserError: for a file that cannot be read, or is not a mapping of options.
    """
    try:
        text = Path(file).read_text(encoding="utf-8-sig")
        values = yaml.load(text, Loader=_Loader)
    except (OSError, UnicodeError, yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"--config {file}: cannot be read as YAML or JSON: {reason}") from error
    require(isinstance(values, dict), f"--config {file}: must contain options, as NAME: VALUE")
    if isinstance(values.get("config"), dict):
        values = values["config"]
    return {str(name).replace("-", "_"): value for name, value in values.items()}


def with_flags(message: str) -> str:
    """Return a message with flags instead of Python's options: `--force` for `force=True`.

    Calls of functions stay as they are.
    """
    call = r"\w\([^)]*\)"
    option = r"(?<!\S)([a-z]\w*)=(True\b|False\b|[^\s,;:.)]?)"
    return re.sub(f"{call}|{option}", _flag, message)


def _flag(found: re.Match) -> str:
    name, value = found.groups()
    if name is None:  # a call
        return found[0]
    flag = name.replace("_", "-")
    if value == "False":
        return f"--no-{flag}"
    if value in ("", "True"):
        return f"--{flag}"
    return f"--{flag} {value}"
