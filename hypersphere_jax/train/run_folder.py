"""A run's folder: its config, its metrics, its encoder. The layout stands in docs/runs.md."""

import contextlib
import dataclasses
import difflib
import errno
import fcntl
import json
import os
import platform
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import jax

from hypersphere_jax import data, models
from hypersphere_jax.config import (
    DataConfig,
    PretrainConfig,
    UserError,
    differences,
    from_dict,
    require,
    to_dict,
)
from hypersphere_jax.train import checkpoint

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "pillow")
VOCABULARY = "vocabulary.txt"
# Where a run lies and how it is carried out, which shapes no number.
IDENTITY = ("name", "runs_dir", "runtime", "evaluate")


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
    require(
        not Path(run).is_file(),
        f"{run!r} is a file, and a run is a folder: `import-torch` makes one of PyTorch's files",
    )
    inside = [path.parent for top in (run, f"runs/{run}") for path in _runs_in(Path(top))]
    if inside:
        several = ", ".join(map(str, inside))
        raise UserError(f"{run!r} is no run, but a folder of runs: name one of {several}")
    parent = Path(run).parent if Path(run).parent != Path(".") else Path("runs")
    known = [path.parent.name for path in _runs_in(parent)]
    near = difflib.get_close_matches(Path(run).name, known, n=1)
    hint = f"did you mean {str(parent / near[0])!r}?" if near else "`pretrain` makes one"
    raise UserError(f"no run {run!r}, as there is no config.json in that folder: {hint}")


def find_all(name: str) -> list[Path]:
    """The folders of a run, or of all runs in a folder; each as for `find`.

    Raises:
      UserError: when there is none, with the nearest name.
    """
    for folder in (Path(name), Path("runs") / name):
        inside = [] if (folder / "config.json").is_file() else _runs_in(folder)
        if inside:
            return [file.parent for file in inside]
    return [find(name)]


def open_folder(
    config: PretrainConfig,
    devices: Sequence[jax.Device],
    digest: str,
    command: str,
    imported: dict[str, Any] | None = None,
) -> Path:
    """Makes the folder of a run, or checks that the one that is there is the same run.

    Args:
      config: with the model's sizes filled in.
      devices: to train on.
      digest: of the data.
      command: what the user typed, for the record.
      imported: where the parameters come from, for the record, when they were not trained here.

    Raises:
      UserError: when the folder holds another run; nothing is changed then.
    """
    folder = folder_of(config)
    file = folder / "config.json"
    record = {"config": to_dict(config), "data_digest": digest, "sessions": []}
    if not file.is_file():
        require(
            not checkpoint.steps(folder / "checkpoints"),
            f"{folder} holds checkpoints but no config.json: restore that file, or choose "
            f"another name, such as --name {_free_name(folder)}",
        )
    else:
        require(
            config.runtime.resume == "auto",
            f"{folder} holds a run already, and --resume is 'never': choose another --name, "
            "or --resume auto to continue it",
        )
        record = _read_record(file)
        require(
            "imported" not in record["sessions"][0],
            f"{folder} holds an encoder that was imported: choose another name, such as --name "
            f"{_free_name(folder)}, and --init-from {folder} to begin with it",
        )
        # Read as a config, that of an older version has the fields that came since.
        changed = differences(shaping(read_config(folder)), shaping(config))
        require(
            not changed,
            f"{folder} holds a run with another config ({'; '.join(changed)}): choose another "
            f"name, such as --name {_free_name(folder)}, or the same options to continue it",
        )
        require(
            record["data_digest"] == digest,
            f"the images or labels of {config.data.name} are no longer those that {folder} was "
            "trained on: restore them, or choose another --name",
        )
        count = record["sessions"][0]["device"]["count"]
        require(
            config.model.batch_norm != "local" or count == len(devices),
            f"{folder} was begun on {count} device(s) with --batch-norm local, so that "
            f"their number shapes it: continue it with --devices {count}",
        )
    folder.mkdir(parents=True, exist_ok=True)
    record["config"]["data"] = to_dict(config)["data"]  # which may have moved
    record["sessions"].append(
        {
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "command": command,
            "python": platform.python_version(),
            "versions": {name: metadata.version(name) for name in PACKAGES},
            "device": {
                "kind": devices[0].device_kind,
                "count": len(devices),
                "hosts": jax.process_count(),
            },
        }
        | ({} if imported is None else {"imported": imported})
    )
    write_json(file, record)
    return folder


def read_config(folder: Path) -> PretrainConfig:
    """The config of the run in a folder."""
    return from_dict(PretrainConfig, _read_record(folder / "config.json")["config"])


def load_data(folder: Path, data_dir: str | None = None) -> data.Dataset:
    """The data of the run in a folder.

    Args:
      folder: of the run.
      data_dir: where the data are now, if they were moved.

    Raises:
      UserError: when it is not there, or has changed since.
    """
    config = moved(read_config(folder).data, data_dir)
    try:
        dataset = data.load(config)
    except UserError as error:
        hint = "; if the data of this run were moved, say where with --data-dir"
        raise UserError(f"{error}{hint}") from error
    require(
        dataset.digest() == _read_record(folder / "config.json")["data_digest"],
        f"the images or labels of {dataset.origin} are no longer those that {folder} was trained "
        "on: restore them",
    )
    return dataset


def write_vocabulary(folder: Path, vocabulary: Sequence[str]) -> None:
    """Keeps the words that a run of text knows, one a line: with them it reads any sentence."""
    with whole_file(folder / VOCABULARY) as file:
        file.write("".join(f"{word}\n" for word in vocabulary).encode())


def read_vocabulary(folder: Path) -> tuple[str, ...]:
    """The words that a run of text knows, by their numbers.

    Raises:
      UserError: when their file is not there, or not whole.
    """
    file = folder / VOCABULARY
    require(file.is_file(), f"{file} is missing: the same `pretrain` command writes it again")
    words = tuple(file.read_text(encoding="utf-8").split("\n")[:-1])
    known = read_config(folder).model.vocabulary
    require(
        len(words) == known,
        f"{file} has {len(words)} words, and the encoder knows {known}: the same `pretrain` "
        "command writes it again",
    )
    return words


def moved(config: DataConfig, data_dir: str | None) -> DataConfig:
    """The config of the same data in another place, or in its own where that is None."""
    if data_dir is None:
        return config
    field = "name" if Path(config.name).is_absolute() else "data_dir"
    return dataclasses.replace(config, **{field: data_dir})


def require_images(folder: Path, verb: str) -> None:
    """Raises UserError when the run in a folder is of sentences, for which a verb is not."""
    text = read_config(folder).model.reads_text
    require(not text, f"{verb} is for encoders of images, and {folder} is of sentences")


def test_split(dataset: data.Dataset) -> data.Source:
    """The images, or sentences, that a result is reported on.

    Raises:
      UserError: when the data have none.
    """
    how = "add one to the data, or pretrain with --folds, which holds a part of the training images"
    if isinstance(dataset.train, data.Corpus):
        how = "prepare the text with --held-out above 0, which holds a part of the sentences"
    require(dataset.test is not None, f"{dataset.origin} has no test split: {how} out")
    return dataset.test


def shaping(config: PretrainConfig) -> dict[str, Any]:
    """What of a config shapes the numbers of its run: must not change between two sessions."""
    kept = {key: value for key, value in to_dict(config).items() if key not in IDENTITY}
    # Of the data their digest is compared: where they lie shapes nothing, nor does skipping images
    # that a run so far would have ended at.
    places = {"data_dir": None, "classes": None, "bad_images": None}
    if "/" in kept["data"]["name"]:
        places["name"] = "a path"
    return kept | {"data": kept["data"] | places}


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Holds a run's folder for this process; the system lets go when the process ends anyhow.

    Raises:
      UserError: when another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(
                f"another process is training in {folder}: wait for it, or choose another --name"
            ) from error
        yield


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
    with whole_file(path) as file:
        file.write((json.dumps(value, indent=2) + "\n").encode())


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, and read, that takes its place when it is complete, or not at all.

    Processes that write the same file do not disturb each other: the last one stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two containers that share a folder may give their processes the same number.
    partial = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with open(partial, "w+b") as file:
            yield file
        os.replace(partial, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)  # the name that the user knows
        raise


def is_full(error: OSError) -> bool:
    """Whether an error says that there is no room left on a disk."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


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
    return [record for record in records if isinstance(record, dict) and "step" in record]


class MetricsWriter:
    """Appends to metrics.jsonl and to TensorBoard's files, both cut back to `step` on resuming."""

    def __init__(self, folder: Path, step: int):
        # Here, so that evaluation does without it. And not its SummaryWriter: that one writes from
        # a thread, which dies on a full disk, whereupon the run would wait for it for ever.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.summary import scalar

        kept = [record for record in read_metrics(folder) if record["step"] <= step]
        with whole_file(folder / "metrics.jsonl") as file:
            file.writelines((json.dumps(record) + "\n").encode() for record in kept)
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


def _runs_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/config.json"))


def _read_record(file: Path) -> dict[str, Any]:
    record = read_json(file)
    for key, kind in (("config", dict), ("data_digest", str), ("sessions", list)):
        require(
            isinstance(record.get(key), kind), f"{file} is no record of a run: it lacks {key!r}"
        )
    return record


def _free_name(folder: Path) -> str:
    stem, number = folder.name, 2
    while folder.with_name(f"{stem}-{number}").exists():
        number += 1
    return f"{stem}-{number}"
