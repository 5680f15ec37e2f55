"""The folder of a run: config.json, its sessions and lock, its data, its encoder (docs/runs.md)."""

import contextlib
import difflib
import platform
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax

from hypersphere_jax import data, models, text
from hypersphere_jax.configs import (
    DataConfig,
    EvaluateConfig,
    PretrainConfig,
    RuntimeConfig,
    UserError,
    from_dict,
    to_dict,
)
from hypersphere_jax.configs.base import Custom
from hypersphere_jax.configs.pretrain import CUSTOM
from hypersphere_jax.training import checkpoints
from hypersphere_jax.utils.files import locked, read_json, write_json

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "pillow")
D = TypeVar("D", bound=DataConfig)
MAX_NAMES = 8  # names of runs in a message
# Options that cannot change the numbers: where and how a run is carried out.
NOT_COMPARED = {"name", "runs_dir", "remat"}
for _section in (RuntimeConfig, EvaluateConfig):
    NOT_COMPARED |= {field.name for field in fields(_section)}
# Data may move, so their digest is compared instead of their location.
LOCATION = {"data_dir", "classes", "bad_images"}
# Runtime options of a single session, which the next session does not inherit.
SESSION_OPTIONS = ("resume", "force", "processes", "coordinator", "num_processes", "process_index")
RECORD = {"config": dict, "data_digest": str, "sessions": list}  # entries of config.json
ADVICE = "take it from a copy of the run"


class RunEncoder(NamedTuple):
    """An encoder from a checkpoint; `apply` is the function of `models.create`."""

    apply: Callable
    params: Any
    stats: Any
    config: PretrainConfig
    folder: Path
    step: int


def folder_of(config: PretrainConfig) -> Path:
    """Return the folder of a config's run."""
    return Path(config.runs_dir) / config.name


def find(name: str, runs_dir: str | Path = "runs") -> Path:
    """Return the folder of a run, given as a path or as a name in the folder of all runs."""
    folders = find_all(name, runs_dir)
    if len(folders) > 1:
        names = ", ".join(map(str, folders))
        raise UserError(f"{name!r} is a folder of runs: name one of {names}")
    return folders[0]


def find_all(name: str, runs_dir: str | Path = "runs") -> list[Path]:
    """Return the folder of a run, or the folders of all runs in a folder; names as in `find`."""
    for folder in (Path(name), Path(runs_dir, name)):
        if (folder / "config.json").is_file():
            return [folder]
        if inside := sorted(file.parent for file in folder.glob("*/config.json")):
            return inside
    if Path(name).is_file():
        raise UserError(
            f"{name!r} is a file, and a run is a folder: `import-torch` makes one of weights"
        )
    known = sorted(file.parent.name for file in Path(runs_dir).glob("*/config.json"))
    siblings = [file.parent.name for file in Path(name).parent.glob("*/config.json")]
    shown = difflib.get_close_matches(Path(name).name, [*known, *siblings]) or known[:MAX_NAMES]
    names = ", ".join(shown) or "none"
    raise UserError(f"no run {name!r}; runs in runs_dir={runs_dir}: {names}")


# Creating, resuming and removing the folder.


def lock(folder: Path) -> contextlib.AbstractContextManager:
    """Lock a run's folder; UserError when another process has locked it."""
    message = f"another process is training in {folder}: wait for it, or choose another name="
    return locked(folder / ".lock", message)


def remove(folder: Path) -> None:
    """Remove a run if it exists: rename its folder, so that no half of it remains, then delete it.

    Raises:
      UserError: If the folder is not a run, or another process trains in it.
    """
    if not any(folder.glob("[!.]*")):  # a killed session may leave hidden files
        return
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} is not a run, and is not overwritten: choose another name=")
    read_record(folder)
    with (
        lock(folder),
        tempfile.TemporaryDirectory(prefix=".overwritten-", dir=folder.parent) as aside,
    ):
        folder.rename(Path(aside, folder.name))


def training_config(config: PretrainConfig) -> dict[str, Any]:
    """Return the options that determine the numbers of a run; custom parts by name."""
    options = {}
    for name, value in vars(config).items():
        if name not in NOT_COMPARED | LOCATION:
            options[name] = str(value) if isinstance(value, Custom) else value
    if "/" in config.data:
        options["data"] = "a path"
    return options


def check_resume(config: PretrainConfig, devices: int, digest: str) -> list[str]:
    """Compare a complete config with the run in its folder, and return the forced differences.

    Raises:
      UserError: If the folder contains another run and `force` is not set.
    """
    folder = folder_of(config)
    other = "choose another name="
    if not (folder / "config.json").is_file():
        if checkpoints.steps(folder / "checkpoints"):
            raise UserError(f"{folder} has checkpoints but no config.json: restore it, or {other}")
        return []
    record = read_record(folder)
    first = record["sessions"][0]
    if config.resume == "never":
        raise UserError(f"{folder} contains a run, and resume=never: {other}")
    if "imported" in first:
        advice = f"{other}, and start from it with init_from="
        raise UserError(f"{folder} contains an imported encoder: {advice}")
    recorded = read_config(folder)
    require_custom(config, recorded)
    old = training_config(recorded)
    new = training_config(config)
    changes = [f"{name}: {old[name]} -> {new[name]}" for name in new if old[name] != new[name]]
    if record["data_digest"] != digest:
        changes.append(f"data: other images or labels than {config.data} had")
    if config.batch_norm == "local" and first["device"]["count"] != devices:
        changes.append(f"devices with batch_norm=local: {first['device']['count']} -> {devices}")
    if changes and not config.force:
        raise UserError(
            f"{folder} contains a run with other options or data ({'; '.join(changes)}): leave "
            f"them, {other}, or resume with force=True"
        )
    return changes


def require_custom(config: PretrainConfig, recorded: PretrainConfig) -> None:
    """Raise UserError if a config lacks custom parts that a recorded config names."""
    missing = {
        name: getattr(recorded, field)
        for name, field in CUSTOM.items()
        if getattr(recorded, field) and not isinstance(getattr(config, field), Custom)
    }
    if missing:
        parts = " and ".join(f"{name} {value}" for name, value in missing.items())
        arguments = ", ".join(f"{name}=…" for name in missing)
        raise UserError(
            f"{config.name} uses the custom {parts}: pass it to hypersphere_jax.train(config, "
            f"{arguments})"
        )


def add_session(
    config: PretrainConfig,
    devices: Sequence[jax.Device],
    digest: str,
    command: str,
    dataset: data.Dataset,
    details: Mapping[str, Any],
) -> None:
    """Write config.json: the complete config, and a session with `details` after earlier ones."""
    folder = folder_of(config)
    record: dict[str, Any] = {"sessions": []}
    if (folder / "config.json").is_file():
        record = read_record(folder)
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):  # Pillow is optional
            versions[name] = metadata.version(name)
    device = {"kind": devices[0].device_kind, "count": len(devices)}
    session = {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": command,
        "python": platform.python_version(),
        "versions": versions,
        "device": device | {"processes": jax.process_count()},
        **details,
    }
    splits = {"labels": bool(dataset.class_names), "test_split": dataset.test is not None}
    sessions = [*record["sessions"], session]
    inherited = to_dict(config) | {name: getattr(RuntimeConfig, name) for name in SESSION_OPTIONS}
    new = {"config": inherited, "data_digest": digest, "sessions": sessions, "data": splits}
    write_json(folder / "config.json", record | new)
    if config.reads_text:
        corpus: Any = dataset.pretrain
        text.write_vocabulary(folder / text.VOCABULARY, corpus.vocabulary)


# Reading the folder.


def read_record(folder: Path) -> dict[str, Any]:
    """Read the config.json of a run; UserError for a missing entry, or one of another type."""
    file = folder / "config.json"
    record = read_json(file, RECORD, ADVICE)
    for name, kind in RECORD.items():
        if not isinstance(record[name], kind) or not record[name]:
            raise UserError(f"{file}: {name} is damaged: {ADVICE}")
    if not all(isinstance(session, dict) and "device" in session for session in record["sessions"]):
        raise UserError(f"{file}: sessions is damaged: {ADVICE}")
    return record


def read_config(folder: Path) -> PretrainConfig:
    """Read the config of a run, which contains the names of custom parts."""
    values = read_record(folder)["config"]
    try:
        for field in CUSTOM.values():
            if not isinstance(values.get(field), str | None):
                raise UserError(f"{field}={values[field]!r:.50} is not a name")
        return from_dict(PretrainConfig, values)
    except UserError as error:
        raise UserError(f"{folder / 'config.json'}: {error}") from error


def load_data(folder: Path, data_dir: str | None = None) -> data.Dataset:
    """Load the data of a run, from `data_dir` if they were moved.

    Raises:
      UserError: If the data are missing, or have changed since.
    """
    try:
        dataset = open_data(moved(read_config(folder), data_dir))
    except UserError as error:
        hint = "; if the data of this run were moved, say where with data_dir="
        raise UserError(f"{error}{hint}") from error
    if dataset.digest() != read_record(folder)["data_digest"]:
        raise UserError(
            f"{folder} is of images or labels that {dataset.origin} no longer has: restore them"
        )
    return dataset


def open_data(config: PretrainConfig) -> data.Dataset:
    """Open the images, or sentences, that a config names."""
    if config.reads_text:
        return text.load_text(config)
    return data.load(config, cache_dir=Path(config.cache_dir).expanduser() / "images")


def moved(config: D, data_dir: str | None) -> D:
    """Return the config of the same data in another folder, if given."""
    if data_dir is None:
        return config
    if Path(config.data).is_absolute():
        return config.replace(data=data_dir)
    return config.replace(data_dir=data_dir)


def require_images(folder: Path, verb: str) -> None:
    """Raise UserError for a run of sentences, where a verb needs images."""
    if read_config(folder).reads_text:
        raise UserError(f"{verb} is for encoders of images, and {folder} is of sentences")


def test_split(dataset: data.Dataset) -> data.Source:
    """Return the split that results are reported on; UserError when there is none."""
    if dataset.test is None:
        advice = "add one, or pretrain with folds= (prepare text with held_out=)"
        raise UserError(f"{dataset.origin} has no test split: {advice}")
    return dataset.test


def load_encoder(
    folder: Path, step: int | None = None, config: PretrainConfig | None = None
) -> RunEncoder:
    """Load the encoder of a run from a checkpoint, by default the newest intact one.

    `config` contains the custom parts; it defaults to the recorded config.
    """
    config = config or read_config(folder)
    apply, params, stats = models.abstract(config)
    like = {"params": params, "stats": stats}
    step, tree = checkpoints.restore(folder / "checkpoints", like, step)
    return RunEncoder(apply, tree["params"], tree["stats"], config, folder, step)
