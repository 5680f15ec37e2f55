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

from hypersphere_jax.configs.base import Config, UserError, check_names, checked, require


def parse_flags(
    cls: type[Config],
    program: str,
    description: str,
    arguments: Sequence[str],
    defaults: Mapping[str, Any] | None = None,
) -> Any:
    """Return a config from flags. The help groups them by the sections that `cls` is composed of.

    `defaults` has values of omitted flags; the others have the defaults of `cls`.
    """
    sections = [base for base in cls.__bases__ if base is not Config]
    if len(sections) < 2:
        sections = [cls]
    sections.sort(key=_has_required_option, reverse=True)
    groups: list[tuple[str, type, Any]] = []
    for section in sections:
        join_help_lines(section)
        title = section.__name__.removesuffix("Config").removesuffix("Options").lower()
        default = dataclasses.field(default=_unchecked(section, defaults or {}))
        groups.append((title, section, default))
    parsed: Any = tyro.cli(
        dataclasses.make_dataclass("Options", groups),
        prog=program,
        description=description,
        args=arguments,
        config=(tyro.conf.OmitArgPrefixes,),
    )
    values: dict[str, Any] = {}
    for part in vars(parsed).values():
        values |= vars(part)
    return cls(**values)


def join_help_lines(cls: type[Config]) -> None:
    """Join the lines of attribute docstrings, which tyro prints as the source wraps them."""
    for base in filter(dataclasses.is_dataclass, cls.__mro__):
        for option in docstring_parser.parse_from_object(base).params:
            text = " ".join((option.description or "").split())
            field = base.__dataclass_fields__[option.arg_name]
            field.metadata = types.MappingProxyType({"help": text})


def _has_required_option(cls: type) -> bool:
    return any(field.default is dataclasses.MISSING for field in dataclasses.fields(cls))


def _unchecked(cls: type[Config], values: Mapping[str, Any]) -> Any:
    """Return a config for tyro's defaults, which may lack required options."""
    config = object.__new__(cls)
    for field in dataclasses.fields(cls):
        value = values.get(field.name, field.default)
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


def read_options(cls: type[Config], file: str | Path) -> dict[str, Any]:
    """Return the options of a config in a YAML or JSON file, or in a run's config.json.

    Only names and types are checked, because a file may need flags to be complete.
    """
    try:
        values = yaml.load(Path(file).read_text(encoding="utf-8-sig"), Loader=_Loader)
    except (OSError, UnicodeError, yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"--config {file}: cannot be read as YAML or JSON: {reason}") from error
    require(isinstance(values, dict), f"--config {file}: must contain options, as NAME: VALUE")
    if isinstance(values.get("config"), dict):
        values = values["config"]
    values = {str(name).replace("-", "_"): value for name, value in values.items()}
    try:
        check_names(cls, values)
        return {name: checked(cls, name, value) for name, value in values.items()}
    except UserError as error:
        raise UserError(f"--config {file}: {error}") from error


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
