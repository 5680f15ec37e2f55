"""A run's folder: its config, its metrics, its encoder. The layout stands in docs/runs.md."""

import contextlib
import dataclasses
import difflib
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
from hypersphere_jax.files import locked, read_json, whole_file, write_json
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


def lock(folder: Path) -> contextlib.AbstractContextManager:
    """Holds a run's folder for this process; UserError when another one holds it."""
    message = f"another process is training in {folder}: wait for it, or choose another --name"
    return locked(folder / ".lock", message)


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


def initial_encoder(
    config: PretrainConfig, params: Any, vocabulary: Sequence[str] | None = None
) -> tuple[Any, Any]:
    """Parameters and statistics of the run to start from; a classifier of its own stays fresh.

    Args:
      config: with `init_from`.
      params: at random, from which the classifier is taken.
      vocabulary: words that an encoder of text must know, by number.

    Raises:
      UserError: for a run of another encoder, or of other words than the vocabulary.
    """
    folder = find(config.init_from)
    its = read_config(folder).model
    if vocabulary is not None:
        require(
            its.reads_text and read_vocabulary(folder) == tuple(vocabulary),
            f"--init-from {config.init_from}: it knows other words than {config.data.name}; "
            "prepare that text as the run's was",
        )
    classifier = {"num_classes": its.num_classes, "classifier_layer": its.classifier_layer}
    source = dataclasses.replace(config.model, **classifier)
    _, source_params, source_stats = models.abstract(source)
    like = {"params": source_params, "stats": source_stats}
    _, tree = checkpoint.restore(folder / "checkpoints", like, config.init_step)
    if source != config.model:  # in their classifiers, that is
        tree["params"] = models.with_classifier(tree["params"], params)
    return tree["params"], tree["stats"]


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
