"""Image data sets of TensorFlow Datasets (TFDS): prepared with TensorFlow, read without it."""

import functools
import importlib.util
import os
import re
import time
from pathlib import Path
from typing import Any

import numpy as np

from hypersphere_jax.configs import UserError, require
from hypersphere_jax.configs.base import program
from hypersphere_jax.data.decode import decode, reason
from hypersphere_jax.data.source import Sample, Source, UnreadableImage
from hypersphere_jax.data.subsets import Concatenated, fold
from hypersphere_jax.utils import caches
from hypersphere_jax.utils.extras import how_to_install

FORMAT = "array_record"  # the format with random access
MODES = {1: "L", 4: "RGBA"}  # Pillow's mode by the number of channels, otherwise RGB
DIGEST_BYTES = 16384  # at both ends of each file


class NotPrepared(UserError):
    """A data set that is not in the folder of prepared data sets, or not in a readable format."""


class TfdsSource:
    """One split of a prepared data set; gray images are `[h, w, 1]`.

    A sample also contains the other features, such as `depth` of nyu_depth_v2.

    Args:
      folder: folder of a version, see `find_prepared`.
      split: split in TFDS's notation: `train`, `train+unlabelled`, `train[:10%]`.
    """

    def __init__(self, folder: Path, split: str):
        import tensorflow_datasets as tfds

        self._folder = Path(folder)
        self._split = split
        builder = tfds.builder_from_directory(self._folder)
        features = builder.info.features
        self._image = _feature_name(features, tfds.features.Image, "image")
        self._label = _feature_name(features, tfds.features.ClassLabel, "label")
        require(
            self._image is not None and features[self._image].np_dtype == np.uint8,
            f"{folder}: needs one uint8 image feature, has {features}",
        )
        is_image = {name: isinstance(features[name], tfds.features.Image) for name in features}
        encoded = {name: tfds.decode.SkipDecoding() for name in features if is_image[name]}
        self._records = builder.as_data_source(split, decoders=encoded)
        self._shards = builder.info.splits[split].file_instructions
        missing = [s.filename for s in self._shards if not Path(s.filename).is_file()]
        require(not missing, f"{missing[:1]} is missing: prepare {builder.name} again")
        shape = features[self._image].shape
        self.image_shape = None if None in shape else tuple(shape)
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


def open_tfds(name: str, data_dir: Path | None = None) -> tuple[Source, Source, Source]:
    """Open a prepared data set: the training, test and pretraining split.

    The test split is `test`, or `validation` if `test` is missing or has no labels (imagenet2012),
    otherwise a tenth of each class of `train`. The pretraining split is the training split with the
    images of `unlabelled`, if that exists (stl10).

    Args:
      name: name in TFDS's notation: `cifar10`, `name/config`, `stl10:1.0.0`.
      data_dir: folder of prepared data sets. Defaults to TFDS's own.
    """
    folder, splits = find_prepared(name, data_dir)
    require("train" in splits, f"{folder} has no split 'train', only {', '.join(splits)}")
    train = TfdsSource(folder, "train")
    tests = [TfdsSource(folder, split) for split in ("test", "validation") if split in splits]
    labeled = [test for test in tests if not train.class_names or test[0]["label"] >= 0]
    unlabeled = [split for split in splits if split in ("unlabelled", "unlabeled")]
    if labeled and unlabeled:
        return train, labeled[0], TfdsSource(folder, f"train+{unlabeled[0]}")
    if labeled:
        return train, labeled[0], train
    part, held_out = fold(train, folds=10, number=0, seed=0)
    if unlabeled:
        return part, held_out, Concatenated([part, TfdsSource(folder, unlabeled[0])])
    return part, held_out, part


def find_prepared(name: str, data_dir: Path | str | None = None) -> tuple[Path, list[str]]:
    """Return the folder of a prepared data set, in its newest version by default, and its splits.

    Raises:
      NotPrepared: for a data set that must be prepared first.
      UserError: for a damaged data set, or without TFDS.
    """
    try:
        from tensorflow_datasets.core.read_only_builder import builder_from_files
        from tensorflow_datasets.core.registered import DatasetNotFoundError
    except ModuleNotFoundError as error:
        how = f"for data sets by name, {how_to_install('tensorflow_datasets')}"
        raise UserError(f"{name} is not a file or folder; {how}") from error

    root = data_root(data_dir)
    option = f" --data-dir {data_dir}" if data_dir else ""
    command = f"`{program()} data prepare {name}{option}`"
    try:
        builder = builder_from_files(name, data_dir=str(root))
        formats = [available.value for available in builder.info.available_file_formats()]
    except Exception as error:  # TFDS documents no common type
        exists = (root / re.split("[/:]", name)[0]).is_dir()
        if exists and not isinstance(error, DatasetNotFoundError):
            message = f"{name} in {root} cannot be read ({reason(error)})"
            raise UserError(f"{message}: move it away, then run {command}") from error
        message = f"{name} is not prepared in {root}: run {command}"
        if exists:
            message += f", or name a config as {name}/CONFIG"
        elif not data_dir:
            message += ", or name the folder of its images with data_dir="
        raise NotPrepared(message) from error
    if FORMAT not in formats:
        message = f"{builder.data_path} is prepared as {', '.join(formats)}, not as {FORMAT}"
        raise NotPrepared(f"{message}: move it away, then run {command}")
    return Path(builder.data_path), sorted(builder.info.splits)


def prepare(name: str, data_dir: Path | str | None = None) -> Path:
    """Download and prepare a data set unless it is prepared already, and return its folder."""
    try:
        return find_prepared(name, data_dir)[0]
    except NotPrepared:
        pass
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


def _feature_name(features: Any, kind: type, default: str) -> str | None:
    """Return the name of the feature of a kind: the default name, or the only one."""
    names = [name for name, feature in features.items() if type(feature) is kind]
    if default in names:
        return default
    return names[0] if len(names) == 1 else None
