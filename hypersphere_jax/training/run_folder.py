"""A run's folder: its config, its data, its encoder. docs/runs.md has the layout."""

import contextlib
import dataclasses
import platform
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

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
from hypersphere_jax.config.base import did_you_mean
from hypersphere_jax.config.runtime import RENAMED
from hypersphere_jax.files import atomic_write, locked, read_json, write_json
from hypersphere_jax.training import checkpoint

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "pillow")
VOCABULARY = "vocabulary.txt"
# Where a run is kept and how it is carried out: not part of `training_config`.
NOT_COMPARED = ("name", "runs_dir", "runtime", "evaluate")


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


def find(name: str) -> Path:
    """The folder of a run given as a path, or as a name under `runs/`.

    Raises:
      UserError: when there is none, or several.
    """
    folders = find_all(name)
    names = ", ".join(map(str, folders))
    require(len(folders) == 1, f"{name!r} is a folder of runs: name one of {names}")
    return folders[0]


def find_all(name: str) -> list[Path]:
    """The folders of a run, or of all runs in a folder; each as for `find`.

    Raises:
      UserError: when there is none, with the nearest name.
    """
    for folder in (Path(name), Path("runs", name)):
        if (folder / "config.json").is_file():
            return [folder]
        if inside := sorted(file.parent for file in folder.glob("*/config.json")):
            return inside
    require(
        not Path(name).is_file(),
        f"{name!r} is a file, and a run is a folder: `import-torch` makes one of PyTorch's files",
    )
    records = [*Path(name).parent.glob("*/config.json"), *Path("runs").glob("*/config.json")]
    hint = did_you_mean(Path(name).name, [file.parent.name for file in records])
    raise UserError(f"no run {name!r}: no config.json in that folder{hint}")


def open_folder(
    config: PretrainConfig,
    devices: Sequence[jax.Device],
    digest: str,
    command: str,
    imported: dict[str, Any] | None = None,
) -> Path:
    """Makes the folder of a run, or checks that the existing one is of the same run.

    Args:
      config: with the model's sizes filled in.
      devices: to train on.
      digest: of the data.
      command: what the user typed, for the record.
      imported: for the record, where parameters come from that were not trained here.

    Raises:
      UserError: when the folder holds another run; nothing is changed then.
    """
    folder = folder_of(config)
    file = folder / "config.json"
    record: dict[str, Any] = {"config": to_dict(config), "data_digest": digest, "sessions": []}
    if file.is_file():
        record = _read_record(file)
        _check_continues(folder, record, config, len(devices), digest)
    else:
        require(
            not checkpoint.steps(folder / "checkpoints"),
            f"{folder} holds checkpoints but no config.json: restore it, or choose another --name",
        )
    folder.mkdir(parents=True, exist_ok=True)
    record["config"]["data"] = to_dict(config)["data"]  # which may have moved
    kind = devices[0].device_kind
    session = {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": command,
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in PACKAGES},
        "device": {"kind": kind, "count": len(devices), "processes": jax.process_count()},
    }
    record["sessions"].append(session | ({} if imported is None else {"imported": imported}))
    write_json(file, record)
    return folder


def read_config(folder: Path) -> PretrainConfig:
    """The config of the run in a folder."""
    values = _read_record(folder / "config.json")["config"]
    runtime = {RENAMED.get(name, name): value for name, value in values.get("runtime", {}).items()}
    return from_dict(PretrainConfig, values | {"runtime": runtime})


def load_data(folder: Path, data_dir: str | None = None) -> data.Dataset:
    """The data of the run in a folder.

    Args:
      folder: of the run.
      data_dir: where the data are now, if they were moved.

    Raises:
      UserError: when they are missing, or have changed since.
    """
    try:
        dataset = data.load(moved(read_config(folder).data, data_dir))
    except UserError as error:
        hint = "; if the data of this run were moved, say where with --data-dir"
        raise UserError(f"{error}{hint}") from error
    require(
        dataset.digest() == _read_record(folder / "config.json")["data_digest"],
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
    words, known = tuple(text.split("\n")[:-1]), read_config(folder).model.vocabulary
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
    """Raises UserError for a run of sentences, where a verb needs images."""
    text = read_config(folder).model.reads_text
    require(not text, f"{verb} is for encoders of images, and {folder} is of sentences")


def test_split(dataset: data.Dataset) -> data.Source:
    """The images, or sentences, that a result is reported on; UserError when there are none."""
    how = "add one to the data, or pretrain with --folds, which holds a part of the training images"
    if isinstance(dataset.train, data.Corpus):
        how = "prepare the text with --held-out above 0, which holds a part of the sentences"
    require(dataset.test is not None, f"{dataset.origin} has no test split: {how} out")
    return dataset.test


def training_config(config: PretrainConfig) -> dict[str, Any]:
    """The part of a config that determines the results: must not change between two sessions."""
    kept = {key: value for key, value in to_dict(config).items() if key not in NOT_COMPARED}
    # Of the data the digest is compared: they may have moved.
    places: dict[str, Any] = {"data_dir": None, "classes": None, "bad_images": None}
    if "/" in kept["data"]["name"]:
        places["name"] = "a path"
    return kept | {"data": kept["data"] | places}


def lock(folder: Path) -> contextlib.AbstractContextManager:
    """Locks a run's folder; UserError when another process has it locked."""
    message = f"another process is training in {folder}: wait for it, or choose another --name"
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
    apply, params, stats = models.abstract(config.model)
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
    folder = find(config.init_from)
    encoder = read_config(folder).model
    require(
        vocabulary is None or (encoder.reads_text and read_vocabulary(folder) == tuple(vocabulary)),
        f"--init-from {config.init_from}: it knows other words than {config.data.name}; "
        "prepare that text as the run's was",
    )
    classifier = {"num_classes": encoder.num_classes, "classifier_layer": encoder.classifier_layer}
    source = dataclasses.replace(config.model, **classifier)
    like = dict(zip(("params", "stats"), models.abstract(source)[1:], strict=True))
    _, tree = checkpoint.restore(folder / "checkpoints", like, config.init_step)
    if source != config.model:  # in their classifiers, that is
        tree["params"] = models.with_classifier(tree["params"], params)
    return tree["params"], tree["stats"]


def _check_continues(
    folder: Path, record: dict[str, Any], config: PretrainConfig, devices: int, digest: str
) -> None:
    """Raises UserError unless the run in a folder may be continued with a config."""
    # Read as a config, that of an older version has the fields that came since.
    changed = differences(training_config(read_config(folder)), training_config(config))
    first = record["sessions"][0]
    other_data = record["data_digest"] != digest
    begun, local = first["device"]["count"], config.model.batch_norm == "local"
    reasons = {
        "holds a run, and --resume is 'never'": config.runtime.resume == "never",
        "holds an imported encoder, which --init-from begins with": "imported" in first,
        f"holds a run with another config ({'; '.join(changed)})": changed,
        f"is of images or labels that {config.data.name} no longer has": other_data,
        f"was begun with --batch-norm local: give --devices {begun}": local and begun != devices,
    }
    for reason, applies in reasons.items():
        require(not applies, f"{folder} {reason}, or choose another --name")


def require_own(config: PretrainConfig) -> None:
    """Raises UserError when the run of a config has parts of the user's own that it lacks."""
    folder = folder_of(config)
    if not (folder / "config.json").is_file():
        return
    lacking = [name for name, old, new in _own(read_config(folder), config) if old and not new]
    require(
        not lacking,
        f"{folder} was trained with your own {' and '.join(lacking)}: go on from Python, with "
        f"hypersphere_jax.train(config, {', '.join(f'{name}=…' for name in lacking)})",
    )


def _own(*configs: PretrainConfig) -> list[tuple[str, ...]]:
    """The user's own parts by the names that `train` has for them, and what each config has."""
    places = {
        "network": ("model", "network"),
        "loss": ("objective", "function"),
        "augment": ("data", "augment"),
        "preprocess": ("data", "preprocess"),
        "data": ("data", "source"),
    }
    return [
        (name, *(getattr(getattr(config, part), field) for config in configs))
        for name, (part, field) in places.items()
    ]


def _read_record(file: Path) -> dict[str, Any]:
    record = read_json(file)
    lacking = [key for key in ("config", "data_digest", "sessions") if key not in record]
    require(not lacking, f"{file} is no record of a run: it lacks {', '.join(lacking)}")
    return record
