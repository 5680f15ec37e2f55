"""Image data sets of TensorFlow Datasets (TFDS): prepared with TensorFlow, read without it."""

import contextlib
import functools
import importlib.util
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hypersphere_jax.configs import UserError, require
from hypersphere_jax.configs.base import program
from hypersphere_jax.data.decode import decode, reason
from hypersphere_jax.data.source import Sample, Shape, Source, UnreadableImage
from hypersphere_jax.data.subsets import Concatenated, fold
from hypersphere_jax.utils import caches
from hypersphere_jax.utils.extras import how_to_install
from hypersphere_jax.utils.files import read_json

FORMAT = "array_record"  # the format with random access
MODES = {1: "L", 4: "RGBA"}  # Pillow's mode by the number of channels, otherwise RGB
DIGEST_BYTES = 16384  # at both ends of each file
CLASS_KEYS = ("pythonClassName", "python_class_name", "type")  # keys of `features.json`
TFDS_CLASS = re.compile(r"tensorflow_datasets\.core\.features(\.\w+)+")


class NotPrepared(UserError):
    """A data set that is not in the folder of prepared data sets, or not in a readable format."""


class TfdsSource:
    """One split of a prepared data set; gray images are `[h, w, 1]`.

    A sample also contains the other features, such as `depth` of nyu_depth_v2. `folder` is the
    folder of a version, see `find_prepared`.
    """

    def __init__(self, folder: Path, split: str):
        import tensorflow_datasets as tfds

        self._folder = Path(folder)
        self._split = split
        builder = _open_builder(self._folder)
        features = builder.info.features
        self._image = _feature_name(features, tfds.features.Image, "image")
        self._label = _feature_name(features, tfds.features.ClassLabel, "label")
        is_found = self._image is not None and features[self._image].np_dtype == np.uint8
        require(is_found, f"{folder}: needs one uint8 image feature, has {features}")
        images = [name for name in features if isinstance(features[name], tfds.features.Image)]
        encoded = dict.fromkeys(images, tfds.decode.SkipDecoding())
        self._records = builder.as_data_source(split, decoders=encoded)
        self._shards = builder.info.splits[split].file_instructions
        missing = [s.filename for s in self._shards if not Path(s.filename).is_file()]
        require(not missing, f"{missing[:1]} is missing: prepare {builder.name} again")
        shape = features[self._image].shape
        self.image_shape: Shape | None = None if None in shape else tuple(shape)
        self._mode = MODES.get(shape[-1], "RGB")
        self.class_names: tuple[str, ...] = ()
        if self._label is not None:
            self.class_names = tuple(features[self._label].names or ())
        self.origin = f"TensorFlow Datasets {builder.info.full_name}, {split}, in {folder}"

    def __reduce__(self):
        return TfdsSource, (self._folder, self._split)

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, i: int) -> Sample:
        i = range(len(self))[i]
        try:
            sample = self._records[i]
            image = decode(sample[self._image], self._mode)
        except Exception as error:  # damaged records raise many types
            raise UnreadableImage(f"image {i} of {self.origin}: {reason(error)}") from error
        return {**sample, "image": image, "label": sample.get(self._label, -1)}

    @functools.cached_property
    def labels(self) -> np.ndarray:
        """All labels, int32 `[n]`, cached next to the records if reading takes long."""
        if self._label is None:
            return np.full(len(self), -1, np.int32)
        file = self._folder / f"labels-{self.digest}.npy"
        if cached := caches.read(file):
            return cached[0]
        started = time.monotonic()
        labels = np.array([record[self._label] for record in self._records], np.int32)
        caches.write_if_slow(file, started, labels)
        return labels

    @functools.cached_property
    def digest(self) -> str:
        """Fingerprint of the files of the split: names, sizes, and the content of both ends."""
        parts: list[str | bytes] = []
        for shard in self._shards:
            file = Path(shard.filename)
            size = file.stat().st_size
            parts.append(f"{file.name} {size} {shard.skip} {shard.take}\n")
            with open(file, "rb") as stream:
                parts.append(stream.read(DIGEST_BYTES))
                stream.seek(max(0, size - DIGEST_BYTES))
                parts.append(stream.read())
        return caches.fingerprint(*parts)


def open_tfds(name: str, data_dir: Path | str | None = None) -> tuple[Source, Source, Source]:
    """Open a prepared data set: the training, test and pretraining split.

    The test split is `test`, or `validation` if `test` is missing or has no labels (imagenet2012),
    otherwise a tenth of each class of `train`. The pretraining split is the training split with the
    images of `unlabelled`, if that exists (stl10).
    """
    folder, splits = find_prepared(name, data_dir)
    require("train" in splits, f"{folder} has no split 'train', only {', '.join(splits)}")
    train: Source = TfdsSource(folder, "train")
    others = [TfdsSource(folder, split) for split in ("test", "validation") if split in splits]
    labeled = [source for source in others if not train.class_names or source[0]["label"] >= 0]
    if labeled:
        test: Source = labeled[0]
    else:
        train, test = fold(train, folds=10, number=0, seed=0)
    if "unlabelled" not in splits:
        return train, test, train
    return train, test, Concatenated([train, TfdsSource(folder, "unlabelled")])


def find_prepared(name: str, data_dir: Path | str | None = None) -> tuple[Path, list[str]]:
    """Return the folder of a prepared data set and its splits.

    Args:
      name: name in TFDS's notation: `cifar10`, `name/config`, `stl10:1.0.0`.
      data_dir: folder of prepared data sets. Defaults to TFDS's own.

    Raises:
      NotPrepared: for a data set that must be prepared first.
      UserError: for a damaged data set, or without TFDS.
    """
    try:
        from tensorflow_datasets.core.read_only_builder import _find_builder_dir
        from tensorflow_datasets.core.utils.error_utils import record_error_context
    except ModuleNotFoundError as error:
        how = f"for data sets by name, {how_to_install('tensorflow_datasets')}"
        raise UserError(f"{name} is not a file or folder; {how}") from error

    root = data_root(data_dir)
    command = f"`{program()} data prepare {name} --data-dir {root}`"
    folder = None
    with contextlib.suppress(Exception), record_error_context():  # without a common type
        folder = _find_builder_dir(name, data_dir=str(root))
    if folder is None:
        advice = "or name the folder of its images with data_dir="
        if (root / name).is_dir():
            advice = f"or name a config as {name}/CONFIG"
        message = f"{name} is neither a file or folder nor prepared in {root}: run {command}"
        raise NotPrepared(f"{message}, {advice}")
    info = _open_builder(Path(folder)).info
    formats = [available.value for available in info.available_file_formats()]
    if FORMAT not in formats:
        message = f"{folder} is prepared as {', '.join(formats)}, not as {FORMAT}"
        raise NotPrepared(f"{message}: move it away, then run {command}")
    return Path(folder), sorted(info.splits)


def prepare(name: str, data_dir: Path | str | None = None) -> Path:
    """Download and prepare a data set unless it is prepared already, and return its folder."""
    with contextlib.suppress(NotPrepared):
        return find_prepared(name, data_dir)[0]
    needed = f"preparing {name} needs TensorFlow: pip install -r requirements-prepare.txt"
    require(importlib.util.find_spec("tensorflow") is not None, needed)
    import tensorflow_datasets as tfds

    root = data_root(data_dir)
    try:
        builder = tfds.builder(name, data_dir=str(root))
        builder.download_and_prepare(download_dir=str(root / "downloads"), file_format=FORMAT)
    except Exception as error:  # such as an unknown name, or no network
        raise UserError(f"TFDS could not prepare {name}: {reason(error)[:600]}") from error
    return find_prepared(name, data_dir)[0]


def data_root(data_dir: Path | str | None) -> Path:
    """Return the folder of prepared data sets; defaults to TFDS's own."""
    default = os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    return Path(data_dir or default).expanduser().absolute()


def _open_builder(folder: Path) -> Any:
    """Return TFDS's builder of a folder, unless that would run code of others.

    TFDS imports the modules of all classes that `features.json` names.
    """
    import tensorflow_datasets as tfds

    advice = f"move {folder} away, then prepare the data set again"
    file = folder / "features.json"
    for name in _class_names(read_json(file, advice=advice)):
        message = f"{file} names {name!r}, which is not a class of TensorFlow Datasets: {advice}"
        require(TFDS_CLASS.fullmatch(name) is not None, message)
    try:
        return tfds.builder_from_directory(folder)
    except Exception as error:  # TFDS documents no common type
        raise UserError(f"{folder} cannot be read ({reason(error)}): {advice}") from error


def _class_names(value: Any) -> Iterator[str]:
    """Yield the names of classes in JSON, also in JSON inside of strings."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        with contextlib.suppress(ValueError, RecursionError):
            yield from _class_names(json.loads(value))
    elif isinstance(value, list):
        for item in value:
            yield from _class_names(item)
    elif isinstance(value, dict):
        yield from (value[key] for key in CLASS_KEYS if isinstance(value.get(key), str))
        for item in value.values():
            yield from _class_names(item)


def _feature_name(features: Any, kind: type, default: str) -> str | None:
    """Return the name of the feature of a kind: the default name, or the only one."""
    names = [name for name, feature in features.items() if type(feature) is kind]
    if default in names:
        return default
    return names[0] if len(names) == 1 else None
