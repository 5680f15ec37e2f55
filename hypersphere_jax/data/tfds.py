"""Image sets of TensorFlow Datasets (TFDS): prepared once with TensorFlow, read without it."""

import contextlib
import functools
import hashlib
import importlib.util
import json
import os
import re
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
from hypersphere_jax.utils.files import read_json

FORMAT = "array_record"
MODES = {1: "L", 4: "RGBA"}  # of Pillow, by number of channels, other than RGB
# Keys of Python's classes in `features.json`, today's and former ones: TFDS imports their modules.
CLASSES = {"pythonClassName", "python_class_name", "type"}
OWN_CLASS = re.compile(r"tensorflow_datasets\.core\.features(\.\w+)+")
DIGEST_BYTES = 16384  # of both ends of each file


class NotPrepared(UserError):
    """A data set that is to be prepared: what is there, if anything, is not one that is read."""


class Unknown(NotPrepared):
    """There is nothing of that name."""


class TfdsSource:
    """One split of a prepared data set.

    A sample holds all other features, too (`depth` of nyu_depth_v2). Grey images are `[h, w, 1]`.

    Args:
      folder: of the version, as `find_prepared` gives it.
      split: in TFDS's notation: `train`, `train+unlabelled`, `train[:10%]`.
    """

    def __init__(self, folder: Path, split: str):
        import tensorflow_datasets as tfds

        self._folder, self._split = Path(folder), split
        builder = _builder(self._folder)
        features = builder.info.features
        self._image = _name_of(features, tfds.features.Image, "image")
        self._label = _name_of(features, tfds.features.ClassLabel, "label")
        require(
            self._image is not None and features[self._image].np_dtype == np.uint8,
            f"{folder}: one feature must be the image, of uint8; there are {features}",
        )
        undecoded = {
            name: tfds.decode.SkipDecoding()
            for name, feature in features.items()
            if isinstance(feature, tfds.features.Image)
        }
        try:
            self._records = builder.as_data_source(split, decoders=undecoded)
            self._parts = builder.info.splits[split].file_instructions
        except Exception as error:  # TFDS names no common kind
            raise UserError(f"split {split!r} of {folder} cannot be read: {error}") from error
        missing = [part.filename for part in self._parts if not Path(part.filename).is_file()]
        lost = f"{len(missing)} of {len(self._parts)} files are missing, such as {missing[:1]}"
        require(not missing, f"{lost}: prepare {builder.name} again")
        shape = features[self._image].shape
        self.image_shape = None if None in shape else tuple(shape)
        self._mode = MODES.get(shape[-1], "RGB")
        self.class_names = tuple(features[self._label].names or ()) if self._label else ()
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
        except Exception as error:  # damaged records bring about many types
            raise UnreadableImage(f"image {i} of {self.origin}: {reason(error)}") from error
        return {**sample, "image": image, "label": sample[self._label] if self._label else -1}

    @functools.cached_property
    def labels(self) -> np.ndarray:
        """All labels, int32 `[n]`; read from all records once, then kept in a file beside them."""
        if self._label is None:
            return np.full(len(self), -1, np.int32)
        file = self._folder / f"labels-{self.digest}.npy"
        if kept := caches.read(file):
            return kept[0]
        try:
            labels = np.array([record[self._label] for record in self._records], np.int32)
        except Exception as error:  # damaged records bring about many types
            raise UserError(f"labels of {self.origin}: {reason(error)}") from error
        with contextlib.suppress(OSError):
            caches.write(file, labels)
        return labels

    @functools.cached_property
    def digest(self) -> str:
        """Of the split's files: names, sizes, and the content of both ends."""
        digest = hashlib.sha256()
        for part in self._parts:
            file = Path(part.filename)
            size = file.stat().st_size
            digest.update(f"{file.name} {size} {part.skip} {part.take}\n".encode())
            with open(file, "rb") as stream:
                digest.update(stream.read(DIGEST_BYTES))
                stream.seek(max(0, size - DIGEST_BYTES))
                digest.update(stream.read())
        return digest.hexdigest()[:16]


def open_tfds(name: str, data_dir: Path | None = None) -> tuple[Source, Source, Source]:
    """The splits of a prepared data set: train, test, and that for pretraining.

    Test is `test`, or `validation` where there is no `test` or one without labels (imagenet2012).
    Where there is neither, a tenth of each class of `train` is the test split. Pretraining takes
    the training images, and those of `unlabelled` where that exists (stl10).

    Args:
      name: as TFDS has it: `cifar10`, `name/config`, `stl10:1.0.0`.
      data_dir: of TFDS; None: its own default.
    """
    folder, splits = find_prepared(name, data_dir)
    require("train" in splits, f"{folder} has no split 'train', only {', '.join(splits)}")
    train = TfdsSource(folder, "train")
    tests = [TfdsSource(folder, split) for split in ("test", "validation") if split in splits]
    labelled = [test for test in tests if not train.class_names or test[0]["label"] >= 0]
    unlabelled = "+".join(split for split in splits if split in ("unlabelled", "unlabeled"))
    if labelled:
        whole = TfdsSource(folder, f"train+{unlabelled}") if unlabelled else train
        return train, labelled[0], whole
    train, test = fold(train, folds=10, number=0, seed=0)
    whole = Concatenated([train, TfdsSource(folder, unlabelled)]) if unlabelled else train
    return train, test, whole


def find_prepared(name: str, data_dir: Path | str | None = None) -> tuple[Path, list[str]]:
    """Folder of a prepared data set, the newest version unless the name says it; its splits."""
    try:
        from tensorflow_datasets.core.read_only_builder import _find_builder_dir
        from tensorflow_datasets.core.utils.error_utils import record_error_context
    except ModuleNotFoundError as error:
        how = f"for data sets by name, {how_to_install('tensorflow_datasets')}"
        raise UserError(f"{name} is no file or folder here; {how}") from error

    root = data_root(data_dir)
    where = f" --data-dir {data_dir}" if data_dir else ""
    command = f"`{program()} data prepare {name}{where}`"
    todo = f"{name} is not prepared in {root}: run {command}"
    try:
        with record_error_context():
            found = _find_builder_dir(name, data_dir=str(root))
        if found is None:
            raise FileNotFoundError("of several configs specify the config name")
        builder = _builder(Path(found))
    except UserError:
        raise
    except Exception as error:  # TFDS names no common kind
        if (root / name.partition("/")[0].partition(":")[0]).is_dir():  # of it something is there
            line = str(error).partition("\n")[0]
            raise NotPrepared(f"{todo} ({line})") from error
        or_folder = "" if data_dir else ", or name the folder of its images with data_dir="
        raise Unknown(todo + or_folder) from error
    folder, formats = Path(builder.data_path), builder.info.available_file_formats()
    formats = [form.value for form in formats]
    if FORMAT not in formats:
        form = f"prepared as {', '.join(formats)}, which cannot be read image by image"
        raise NotPrepared(f"{folder} is {form}: move it away, then run {command}")
    return folder, sorted(builder.info.splits)


def prepare(name: str, data_dir: Path | str | None = None) -> Path:
    """Downloads a data set and makes it ready to be read, unless it is; returns its folder."""
    try:
        return find_prepared(name, data_dir)[0]
    except NotPrepared:
        pass  # any other error stays: `tfds.builder` would open what is there unchecked
    import tensorflow_datasets as tfds

    needed = f"preparing {name} needs TensorFlow: pip install -r requirements-prepare.txt"
    require(importlib.util.find_spec("tensorflow") is not None, needed)
    root = data_root(data_dir)
    try:
        builder = tfds.builder(name, data_dir=str(root))
        builder.download_and_prepare(download_dir=str(root / "downloads"), file_format=FORMAT)
    except Exception as error:  # of the name, a network, an archive, a disk, a missing library, …
        message = (
            f"TFDS could not prepare {name}: {reason(error)[:600]}; files downloaded by hand go"
        )
        raise UserError(f"{message} into {root / 'downloads' / 'manual'}") from error
    return find_prepared(name, data_dir)[0]


def data_root(data_dir: Path | str | None) -> Path:
    """The folder of all data sets: as given, or that of TFDS."""
    standard = os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    return Path(data_dir or standard).expanduser().absolute()


def _name_of(features: Any, kind: type, usual: str) -> str | None:
    """Of the features of a kind, the one with the usual name, or the only one."""
    names = [name for name, feature in features.items() if type(feature) is kind]
    return usual if usual in names else names[0] if len(names) == 1 else None


def _builder(folder: Path) -> Any:
    """TFDS's view of a version's folder: the only place that has TFDS open one.

    Raises:
      UserError: for damaged JSON, and for features of classes that are not TFDS's: it runs those.
    """
    import tensorflow_datasets as tfds

    advice = f"move {folder} away, then prepare the data set again"
    read_json(folder / "dataset_info.json", ("name", "version"), advice)
    file = folder / "features.json"
    values: list[Any] = [read_json(file, advice=advice)]
    while values:
        value = values.pop()
        if isinstance(value, dict):
            for key in CLASSES & value.keys():
                if isinstance(value[key], str) and not OWN_CLASS.fullmatch(value[key]):
                    what = "code from elsewhere than TensorFlow Datasets, which is not run"
                    raise UserError(f"{file} names {value[key]!r}, {what}: take data without it")
            values += value.values()
        elif isinstance(value, list):
            values += value
        elif isinstance(value, str) and value.lstrip()[:1] in ("{", "["):  # JSON inside JSON
            with contextlib.suppress(ValueError, RecursionError):
                values.append(json.loads(value))
    return tfds.builder_from_directory(folder)
