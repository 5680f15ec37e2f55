"""Config files: `--config FILE`."""

import re
from pathlib import Path
from typing import Any

import yaml

from hypersphere_jax.configs.base import UserError, require


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
