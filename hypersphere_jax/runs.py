"""A run's folder: its config, its metrics, its encoder. The layout stands in docs/runs.md."""

import contextlib
import difflib
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax

from hypersphere_jax import checkpoint, models
from hypersphere_jax.config import (
    PretrainConfig,
    UserError,
    differences,
    from_dict,
    require,
    to_dict,
)

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
# Where a run lies and how it is carried out, which shapes no number.
IDENTITY = ("name", "runs_dir", "runtime")


class Encoder(NamedTuple):
    """An encoder from a checkpoint; `apply` as `models.create` gives it."""

    apply: Callable
    params: Any
    stats: Any
    config: PretrainConfig
    folder: Path
    step: int


def folder_of(config: PretrainConfig) -> Path:
    """Where a config's run is."""
    return Path(config.runs_dir) / config.name


def find(run: str) -> Path:
    """The folder of a run given as a path, or as a name under `runs/`.

    Raises:
      UserError: when there is none, with the nearest name.
    """
    for folder in (Path(run), Path("runs") / run):
        if (folder / "config.json").is_file():
            return folder
    parent = Path(run).parent if Path(run).parent != Path(".") else Path("runs")
    known = sorted(path.parent.name for path in parent.glob("*/config.json"))
    near = difflib.get_close_matches(Path(run).name, known, n=1)
    hint = f"did you mean {str(parent / near[0])!r}?" if near else "`pretrain` makes one"
    raise UserError(f"no run {run!r}: no config.json there or in runs/{run}; {hint}")


def open_folder(config: PretrainConfig, devices: Sequence[jax.Device]) -> Path:
    """Makes the folder of a run, or checks that the one that is there is the same run.

    Args:
      config: with the model's sizes filled in.
      devices: for the record.

    Raises:
      UserError: when the folder holds a run with another config; nothing is changed then.
    """
    folder = folder_of(config)
    file = folder / "config.json"
    record = {"config": to_dict(config), "sessions": []}
    if file.is_file():
        require(
            config.runtime.resume == "auto",
            f"{folder} holds a run already, and --resume is 'never': choose another --name, "
            "or --resume auto to continue it",
        )
        record = read_json(file)
        changed = differences(_shaping(record["config"]), _shaping(to_dict(config)))
        require(
            not changed,
            f"{folder} holds a run with another config ({'; '.join(changed)}): choose another "
            f"name, such as --name {_free_name(folder)}, or the same options to continue it",
        )
    folder.mkdir(parents=True, exist_ok=True)
    record["sessions"].append(
        {
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "python": platform.python_version(),
            "versions": {name: metadata.version(name) for name in PACKAGES},
            "device": {
                "kind": devices[0].device_kind,
                "count": len(devices),
                "hosts": jax.process_count(),
            },
        }
    )
    write_json(file, record)
    return folder


def read_config(folder: Path) -> PretrainConfig:
    """The config of the run in a folder."""
    return from_dict(PretrainConfig, read_json(folder / "config.json")["config"])


def load_encoder(folder: Path, step: int | None = None) -> Encoder:
    """The encoder of a run from its newest sound checkpoint, or from that of a step.

    Raises:
      UserError: as `checkpoint.restore`.
    """
    config = read_config(folder)
    apply, params, stats = models.abstract(config.model)
    step, tree = checkpoint.restore(
        folder / "checkpoints", {"params": params, "stats": stats}, step
    )
    return Encoder(apply, tree["params"], tree["stats"], config, folder, step)


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(json.dumps(value, indent=2) + "\n")
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
      UserError: when there is something else.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{file} is not JSON ({error}): run again what wrote it") from error
    require(isinstance(content, dict), f"{file} holds no JSON object: run again what wrote it")
    return content


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """The records of metrics.jsonl; a line that was cut short by a kill is left out."""
    file = folder / "metrics.jsonl"
    records = []
    for line in file.read_bytes().splitlines() if file.is_file() else []:
        with contextlib.suppress(ValueError):
            records.append(json.loads(line))
    return records


class MetricsWriter:
    """Appends to metrics.jsonl and to TensorBoard's files, both cut back to `step` on resuming."""

    def __init__(self, folder: Path, step: int):
        # Here, so that evaluation does without it. And not its SummaryWriter: that one writes from
        # a thread, which dies on a full disk, whereupon the run would wait for it for ever.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.summary import scalar

        kept = [record for record in read_metrics(folder) if record["step"] <= step]
        partial = folder / ".metrics.jsonl"
        partial.write_text("".join(json.dumps(record) + "\n" for record in kept))
        os.replace(partial, folder / "metrics.jsonl")
        self._file = open(folder / "metrics.jsonl", "a")  # noqa: SIM115  closed in `close`
        self._events = EventsWriter(str(folder / "events"), filename_suffix=f".{os.getpid()}")
        self._event, self._scalar, self._flushed = Event, scalar, time.monotonic()
        if step:
            start = SessionLog(status=SessionLog.START)
            self._events.write_event(Event(step=step + 1, session_log=start))

    def write(self, record: dict[str, float]) -> None:
        """Adds a line; it is on disk when this returns, in TensorBoard's files within seconds."""
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        for name, value in record.items():
            if name != "step":
                summary = self._scalar(name, value)
                event = self._event(wall_time=time.time(), step=record["step"], summary=summary)
                self._events.write_event(event)
        if time.monotonic() - self._flushed > 5:
            self._events.flush()
            self._flushed = time.monotonic()

    def close(self) -> None:
        """Closes the files; raises OSError when the disk is full."""
        try:
            self._file.close()
        finally:
            self._events.close()


def _shaping(config: dict[str, Any]) -> dict[str, Any]:
    """What must not change between two sessions of a run."""
    return {key: value for key, value in config.items() if key not in IDENTITY}


def _free_name(folder: Path) -> str:
    stem, number = folder.name, 2
    while folder.with_name(f"{stem}-{number}").exists():
        number += 1
    return f"{stem}-{number}"
