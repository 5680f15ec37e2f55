"""A run's folder: its config, its data, its encoder. docs/runs.md has the layout."""

import contextlib
import math
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax

from hypersphere_jax import data, models
from hypersphere_jax.configs import (
    DataConfig,
    EvaluateConfig,
    ModelConfig,
    PretrainConfig,
    RuntimeConfig,
    UserError,
    differences,
    from_dict,
    require,
    section,
    to_dict,
)
from hypersphere_jax.configs.base import C, Custom, did_you_mean
from hypersphere_jax.data.batches import image_cache
from hypersphere_jax.files import atomic_write, locked, read_json, write_json
from hypersphere_jax.training import checkpoint, processes

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "pillow")
D = TypeVar("D", bound=DataConfig)
SHOWN = 8  # names of runs in a message
VOCABULARY = "vocabulary.txt"
# Options that do not change the numbers of a run.
NOT_COMPARED = {"name", "runs_dir"}
for _section in (RuntimeConfig, EvaluateConfig):
    NOT_COMPARED |= {field.name for field in fields(_section)}
# Of the runtime: of one session alone, and not kept as options of the run.
PROCESSES = ("processes", "coordinator", "num_processes", "process_index")
SCHEDULE = ("epochs", "decay_at")  # options of the optimizer that may change with extend=True
OF_SESSION = ("resume", "extend", "profile", *PROCESSES)
# Of config.json, what is read.


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


def find(name: str, runs_dir: str | Path = "runs") -> Path:
    """The folder of a run given as a path, or as a name in the folder of all runs.

    Raises:
      UserError: when there is none, or several.
    """
    folders = find_all(name, runs_dir)
    names = ", ".join(map(str, folders))
    require(len(folders) == 1, f"{name!r} is a folder of runs: name one of {names}")
    return folders[0]


def find_all(name: str, runs_dir: str | Path = "runs") -> list[Path]:
    """The folders of a run, or of all runs in a folder; each as for `find`.

    Raises:
      UserError: when there is none, with the nearest name or those of all that are there.
    """
    for folder in (Path(name), Path(runs_dir, name)):
        if (folder / "config.json").is_file():
            return [folder]
        if inside := sorted(file.parent for file in folder.glob("*/config.json")):
            return inside
    require(
        not Path(name).is_file(),
        f"{name!r} is a file, and a run is a folder: `import-torch` makes one of PyTorch's files",
    )
    raise UserError(_no_run(name, runs_dir))


def saved_steps(config: PretrainConfig) -> list[int]:
    """Steps of the checkpoints that a config's run continues from, in order."""
    overwrite = config.resume == "overwrite"
    return [] if overwrite else checkpoint.steps(folder_of(config) / "checkpoints")


def remove(folder: Path) -> None:
    """Remove a run if it exists: rename its folder, so that no half of it remains, then delete it.

    Raises:
      UserError: for a folder of anything else, and when another process trains in it.
    """
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    other = f"{folder} is not a run, and is not overwritten: choose another name="
    require((folder / "config.json").is_file(), other)
    read_record(folder)
    with (
        lock(folder),
        tempfile.TemporaryDirectory(prefix=".overwritten-", dir=folder.parent) as aside,
    ):
        folder.rename(Path(aside, folder.name))


def open_folder(
    config: PretrainConfig,
    devices: Sequence[jax.Device],
    digest: str,
    command: str,
    imported: dict[str, Any] | None = None,
    steps_per_epoch: int = 1,
    dataset: data.Dataset | None = None,
) -> Path:
    """Makes the folder of a run, or checks that the existing one is of the same run.

    Args:
      config: with the model's sizes filled in.
      devices: to train on.
      digest: of the data.
      command: what the user typed, for the record.
      imported: for the record, where parameters come from that were not trained here.
      steps_per_epoch: of a run that trains.
      dataset: for the record, whether it has labels and a test split.

    Raises:
      UserError: when the folder holds another run; nothing is changed then.
    """
    folder = folder_of(config)
    file = folder / "config.json"
    record: dict[str, Any] = {"config": {}, "data_digest": digest, "sessions": []}
    saved, extended = checkpoint.steps(folder / "checkpoints"), False
    if file.is_file():
        record, old = read_record(folder), read_config(folder)
        _check_continues(folder, record, old, config, len(devices), digest)
        done = checkpoint.newest(folder / "checkpoints", checkpoint.STEP)[0] if saved else 0
        extended = _has_other_schedule(folder, old, config, done / steps_per_epoch)
    else:
        require(
            not saved,
            f"{folder} holds checkpoints but no config.json: restore it, or choose another name=",
        )
    folder.mkdir(parents=True, exist_ok=True)
    if dataset is not None:
        has_test = dataset.test is not None
        record["data"] = {"labels": bool(dataset.class_names), "test_split": has_test}
    record["config"] = to_dict(of_all_sessions(config))
    kind = devices[0].device_kind
    session: dict[str, Any] = {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": command,
        "python": platform.python_version(),
        "versions": dict(_versions()),
        "device": {"kind": kind, "count": len(devices), "processes": jax.process_count()},
    }
    if imported is not None:
        session["imported"] = imported
    if extended:
        session["extended"] = True
    record["sessions"].append(session)
    write_json(file, record)
    return folder


def _versions() -> Iterator[tuple[str, str]]:
    """Of the packages that are there: Pillow may not be, where images come as arrays."""
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            yield name, metadata.version(name)


def record_start(folder: Path, step: int) -> None:
    """Record the step that a session starts from."""
    record = read_record(folder)
    record["sessions"][-1]["from_step"] = step
    write_json(folder / "config.json", record)


def of_all_sessions(config: C) -> C:
    """Return a config without the options that apply to one session only."""
    return config.replace(**{name: getattr(RuntimeConfig, name) for name in OF_SESSION})


def read_config(folder: Path) -> PretrainConfig:
    """The config of the run in a folder."""
    try:
        return from_dict(PretrainConfig, read_record(folder)["config"])
    except UserError as error:
        raise UserError(f"{folder / 'config.json'}: {error}") from error


def load_data(folder: Path, data_dir: str | None = None) -> data.Dataset:
    """The data of the run in a folder.

    Args:
      folder: of the run.
      data_dir: where the data are now, if they were moved.

    Raises:
      UserError: when they are missing, or have changed since.
    """
    try:
        config = read_config(folder)
        dataset = data.load(moved(config, data_dir), cache_dir=image_cache(config))
    except UserError as error:
        hint = "; if the data of this run were moved, say where with data_dir="
        raise UserError(f"{error}{hint}") from error
    require(
        dataset.digest() == read_record(folder)["data_digest"],
        f"{folder} is of images or labels that {dataset.origin} no longer has: restore them",
    )
    return dataset


def write_vocabulary(folder: Path, vocabulary: Sequence[str]) -> None:
    """Keeps the words of a run of text, one a line."""
    with atomic_write(folder / VOCABULARY) as file:
        file.write("".join(f"{word}\n" for word in vocabulary).encode())


def read_vocabulary(folder: Path) -> tuple[str, ...]:
    """The words of a run of text, by number; UserError when their file is missing or cut."""
    file = folder / VOCABULARY
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    words, known = tuple(text.split("\n")[:-1]), read_config(folder).vocabulary_size
    require(
        len(words) == known,
        f"{file} has {len(words)} words, and the encoder knows {known}: the same `pretrain` "
        "command writes it again",
    )
    return words


def moved(config: D, data_dir: str | None) -> D:
    """The config of the same data in another place, or in its own where that is None."""
    if data_dir is None:
        return config
    field = "data" if Path(config.data).is_absolute() else "data_dir"
    return config.replace(**{field: data_dir})


def require_images(folder: Path, verb: str) -> None:
    """Raises UserError for a run of sentences, where a verb needs images."""
    text = read_config(folder).reads_text
    require(not text, f"{verb} is for encoders of images, and {folder} is of sentences")


def test_split(dataset: data.Dataset) -> data.Source:
    """The images, or sentences, that a result is reported on; UserError when there are none."""
    how = "add one to the data, or pretrain with folds=, which holds a part of the training images"
    if isinstance(dataset.train, data.Corpus):
        how = "prepare the text with held_out= above 0, which holds a part of the sentences"
    require(dataset.test is not None, f"{dataset.origin} has no test split: {how} out")
    return dataset.test


def training_config(config: PretrainConfig) -> dict[str, Any]:
    """The part of a config that determines the results: must not change between two sessions."""
    kept = {key: value for key, value in to_dict(config).items() if key not in NOT_COMPARED}
    # The data may have moved; their digest is compared.
    for name in ("data_dir", "classes", "bad_images"):
        del kept[name]
    if "/" in kept["data"]:
        kept["data"] = "a path"
    return kept


def lock(folder: Path) -> contextlib.AbstractContextManager:
    """Locks a run's folder; UserError when another process has it locked."""
    message = f"another process is training in {folder}: wait for it, or choose another name="
    return locked(folder / ".lock", message)


def load_encoder(
    folder: Path, step: int | None = None, config: PretrainConfig | None = None
) -> Encoder:
    """The encoder of a run, newest sound checkpoint or step; errors as `checkpoint.restore`.

    Args:
      folder: of the run.
      step: None: the newest sound checkpoint.
      config: of the run, with what is the user's own in it; None: as it is on disk.
    """
    config = config or read_config(folder)
    apply, params, stats = models.abstract(config)
    like = {"params": params, "stats": stats}
    step, tree = checkpoint.restore(folder / "checkpoints", like, step)
    return Encoder(apply, tree["params"], tree["stats"], config, folder, step)


def initial_encoder(
    config: PretrainConfig, params: Any, vocabulary: Sequence[str] | None = None
) -> tuple[Any, Any]:
    """Parameters and statistics of the run to start from; the classifier stays as it is.

    Args:
      config: with `init_from`.
      params: at random, from which the classifier is taken.
      vocabulary: words that an encoder of text must know, by number.

    Raises:
      UserError: for a run of another encoder, or of other words than the vocabulary.
    """
    folder = find(config.init_from, config.runs_dir)
    encoder = read_config(folder)
    require(
        vocabulary is None or (encoder.reads_text and read_vocabulary(folder) == tuple(vocabulary)),
        f"init_from={config.init_from}: it knows other words than {config.data}; "
        "prepare that text as the run's was",
    )
    classifier = {"num_classes": encoder.num_classes, "classifier_layer": encoder.classifier_layer}
    model = section(config, ModelConfig)
    source = model.replace(**classifier)
    like = dict(zip(("params", "stats"), models.abstract(source)[1:], strict=True))
    _, tree = checkpoint.restore(folder / "checkpoints", like, config.init_step)
    if source != model:  # the classifiers differ
        tree["params"] = models.with_classifier(tree["params"], params)
    return tree["params"], tree["stats"]


def _check_continues(
    folder: Path,
    record: dict[str, Any],
    old: PretrainConfig,
    config: PretrainConfig,
    devices: int,
    digest: str,
) -> None:
    """Raise UserError unless a config may resume the run in a folder, whatever its schedule."""
    before, now = training_config(old), training_config(config)
    changed = differences(before, now)
    for values in (before, now):
        for name in SCHEDULE:
            del values[name]
    first = record["sessions"][0]
    begun, local = first["device"]["count"], config.batch_norm == "local"
    other_name = "choose another name="
    for applies, reason in (
        (config.resume == "never", f"holds a run, and resume=never: {other_name}"),
        (
            "imported" in first,
            f"holds an imported encoder: {other_name}, and begin with it by init_from=",
        ),
        (
            before != now,
            f"holds a run with another config ({'; '.join(changed)}): leave that as it was, or "
            f"{other_name}",
        ),
        (
            record["data_digest"] != digest,
            f"is of images or labels that {config.data} no longer has: restore them, or "
            f"{other_name}",
        ),
        (
            local and begun != devices,
            f"was begun with batch_norm=local: give devices={begun}, or {other_name}",
        ),
    ):
        require(not applies, f"{folder} {reason}")


def _has_other_schedule(
    folder: Path, old: PretrainConfig, new: PretrainConfig, epochs_done: float
) -> bool:
    """Whether a resumed run follows another schedule, which `extend=True` allows."""
    before, now = ({k: getattr(c, k) for k in SCHEDULE} for c in (old, new))
    changes = "; ".join(differences(before, now))
    if not changes:
        return False
    least = math.ceil(epochs_done)
    require(
        new.epochs >= least,
        f"{folder} is at epoch {epochs_done:.4g}: give epochs={least} or more",
    )
    require(
        new.extend,
        f"{folder} has another schedule ({changes}): resume it by the new one with extend=True, or "
        "choose another name=",
    )
    return True


def require_known(config: PretrainConfig) -> None:
    """Raises UserError for a config that lacks its run, or parts of the user's own that it has."""
    folder = folder_of(config)
    if config.resume == "overwrite":
        return
    if not (folder / "config.json").is_file():
        missing = config.extend and processes.is_first()
        require(not missing, f"extend=True: {_no_run(config.name, config.runs_dir)}")
        return
    parts = _own(read_config(folder), config)  # names alone, as read from a file
    lacking = [name for name, old, new in parts if old and not isinstance(new, Custom)]
    require(
        not lacking,
        f"{folder} was trained with your own {' and '.join(lacking)}: go on from Python, with "
        f"hypersphere_jax.train(config, {', '.join(f'{name}=…' for name in lacking)})",
    )


def _own(*configs: PretrainConfig) -> list[tuple[Any, ...]]:
    """The user's own parts by the names that `train` has for them, and what each config has."""
    fields_by_name = {
        "network": "network",
        "loss": "function",
        "augment": "augment",
        "preprocess": "preprocess",
        "data": "source",
    }
    return [
        (name, *(getattr(config, field) for config in configs))
        for name, field in fields_by_name.items()
    ]


def _no_run(name: str, runs_dir: str | Path) -> str:
    """That a run is not there, and which one is, for a message."""
    here = sorted(file.parent.name for file in Path(runs_dir).glob("*/config.json"))
    near = [file.parent.name for file in Path(name).parent.glob("*/config.json")]
    if hint := did_you_mean(Path(name).name, [*here, *near]):
        return f"no run {name!r}{hint}"
    if not here:
        return f"no run {name!r}, nor any other in {runs_dir}: give its folder, or runs_dir="
    more = f" and {len(here) - SHOWN} more" if len(here) > SHOWN else ""
    return f"no run {name!r}; the runs in {runs_dir} are {', '.join(here[:SHOWN])}{more}"


def read_record(folder: Path) -> dict[str, Any]:
    """The config.json of a run; UserError where it is none."""
    file = folder / "config.json"
    keys = ("config", "data_digest", "sessions")
    return read_json(file, keys, "take it from a copy of the run")
