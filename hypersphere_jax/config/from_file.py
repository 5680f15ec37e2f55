"""Options in a file, YAML or JSON: `--config FILE`."""

import dataclasses
import re
from typing import Any, get_args

import yaml

from hypersphere_jax.config.base import UserError, did_you_mean, require
from hypersphere_jax.config.kinds import check
from hypersphere_jax.config.pretrain import NAMED
from hypersphere_jax.files import MAX_RECORD, check_depth, open_file, read_json


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-3 is a number, as it is in YAML 1.2 and in JSON."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set[str]()
        for key, _ in node.value:
            if str(key.value) in seen:
                problem = f"{key.value!r} is there twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


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
        if file.endswith(".json"):
            return read_json(file, advice="correct it")
        with open_file(file) as stream:
            text = stream.read(MAX_RECORD)
        values = yaml.load(text.decode("utf-8-sig"), Loader=_Loader)
        check_depth(values)
        check(values, dict, f"{file}: ")
    except UserError as error:
        raise UserError(f"--config {error}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark, problem = (getattr(error, name, None) for name in ("problem_mark", "problem"))
        where = (
            f"line {mark.line + 1}, column {mark.column + 1}: {problem}"
            if mark
            else " ".join(str(error).split())
        )
        raise UserError(f"--config {file} is not YAML: {where}") from error
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
        if name in parts and isinstance(value, dict):
            of_parts[name] = of_parts.get(name, {}) | value
        elif name in NAMED and name in parts and isinstance(value, str):
            of_parts.setdefault(name, {})[NAMED[name]] = value
        elif name in fields:
            where = f"--config {file}: {prefix}{key}"
            own = f"your own {value}, which only Python can give: hypersphere_jax.train(…)"
            kind: Any = fields[name].type
            require(Any not in get_args(kind) or value is None, f"{where} is {own}")
            check(value, kind, where)
            made[name] = tuple(value) if isinstance(value, list) else value
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
