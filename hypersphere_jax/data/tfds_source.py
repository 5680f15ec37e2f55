"""Image sets of TensorFlow Datasets (TFDS), read without TensorFlow.

They are prepared once (see `tfds_prepare`) as ArrayRecord files, which give any image by its
number. The library is imported where it is first used: other data do not wait for it.
"""

import contextlib
import difflib
import functools
import hashlib
import io
import json
import os
import re
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from rich.console import Console
from rich.progress import track

from hypersphere_jax.config import UserError, require
from hypersphere_jax.data.decode import decode
from hypersphere_jax.data.source import Sample, Source, UnreadableImage
from hypersphere_jax.data.subsets import fold

FORMAT = "array_record"
NAME = re.compile(r"(?P<name>\w+)(/(?P<config>[\w\-.]+))?(:(?P<version>\d+\.\d+\.\d+))?", re.ASCII)
VERSION = re.compile(r"\d+\.\d+\.\d+", re.ASCII)
# Pillow's name of 8-bit pixels with so many channels, other than the three of RGB.
MODES = {1: "L", 4: "RGBA"}
# Of each file, so much of both ends goes into the digest, bytes.
DIGEST_BYTES = 16384
# Labels stand in the records beside the images: they are read so many records at a time.
LABEL_BATCH = 1000
# Above so many, reading the labels shows how far it is.
MANY = 100_000


class Name(NamedTuple):
    """What `name/config:version` says."""

    name: str
    config: str | None
    version: str | None


class TfdsSource:
    """One split of a prepared data set.

    A sample holds, besides image and label, the further features that are arrays of numbers
    (`depth` of nyu_depth_v2). Images stay as they are stored: grey ones are `[h, w, 1]`.

    Args:
      folder: of the version, as `find_prepared` gives it.
      split: in TFDS's notation: `train`, `train+unlabelled`, `train[:10%]`.

    Raises:
      UserError: when the folder lacks files, or has no such split or no 8-bit images.
    """

    def __init__(self, folder: Path, split: str):
        tfds = import_tfds()
        from tensorflow_datasets.proto import tf_example_pb2

        self._folder, self._split = Path(folder), split
        self._parse = tf_example_pb2.Example.FromString
        try:
            builder = tfds.builder_from_directory(self._folder)
            builder.info.set_file_format(FORMAT, override=True, override_if_initialized=True)
            features = builder.info.features
        except Exception as error:  # TFDS names no common kind
            raise UserError(f"{folder} is no readable data set of TFDS: {error}") from error
        self._image, self._label, self._others = _choose(tfds, features, folder)
        self._pieces = self._open(builder)
        shape = features[self._image].shape
        self.image_shape = None if None in shape else tuple(shape)
        self._channels = shape[-1]
        label = features[self._label] if self._label else None
        self.class_names = tuple(label.names) if label and label.num_classes else ()
        self.origin = f"TensorFlow Datasets {builder.info.full_name}, {split}, in {folder}"

    def _open(self, builder: Any) -> list[tuple[Path, int, int]]:
        """Opens the records; (file, first, number) of those in the split."""
        splits = builder.info.splits
        known = f"{self._folder} has the splits {', '.join(sorted(splits))}"
        try:
            parts = splits[self._split].file_instructions
        except (KeyError, ValueError, AssertionError) as error:
            raise UserError(f"no split {self._split!r}: {known}") from error
        require(bool(parts), f"no images in split {self._split!r}: {known}")
        missing = [part.filename for part in parts if not Path(part.filename).is_file()]
        require(
            not missing,
            f"{len(missing)} of {len(parts)} files are missing, such as {missing[:1]}: prepare "
            f"{builder.name} again",
        )
        from array_record.python.array_record_data_source import ArrayRecordDataSource

        self._records = ArrayRecordDataSource(parts)
        return [(Path(part.filename), part.skip, part.take) for part in parts]

    def __reduce__(self):
        return TfdsSource, (self._folder, self._split)

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, i: int) -> Sample:
        i = range(len(self))[i]
        try:
            record = self._records[i]
            example = self._parse(record).features.feature
            image = self._decode(example[self._image].bytes_list.value[0], f"image {i}")
            label = self._label_of(example)
            others = self._others.deserialize_example_np(record) if self._others else {}
        except UnreadableImage as error:
            raise UnreadableImage(f"{error} ({self.origin})") from error
        except Exception as error:  # damaged records bring about many types
            raise UnreadableImage(f"image {i}: {error} ({self.origin})") from error
        return {**others, "image": image, "label": label}

    def _decode(self, encoded: bytes, name: str) -> np.ndarray:
        if self._channels not in MODES:
            return decode(encoded, name)
        with Image.open(io.BytesIO(encoded)) as image:
            pixels = np.array(image.convert(MODES[self._channels]))
        return pixels.reshape(*pixels.shape[:2], self._channels)

    def _label_of(self, example: Any) -> int:
        return example[self._label].int64_list.value[0] if self._label else -1

    @functools.cached_property
    def labels(self) -> np.ndarray:
        """All labels, int32 `[n]`; -1 where there is none.

        They stand in the records, so all are read once; the result is kept beside them, if that
        folder may be written to.
        """
        if self._label is None:
            return np.full(len(self), -1, np.int32)
        file = self._folder / f"labels-{self.digest}.npy"
        with contextlib.suppress(OSError, ValueError, EOFError):
            kept = np.load(file)
            if kept.shape == (len(self),) and kept.dtype == np.int32:
                return kept
        batches = track(
            range(0, len(self), LABEL_BATCH),
            description=f"labels of {self._split}",
            console=Console(stderr=True),
            disable=len(self) < MANY,
        )
        labels = np.array(
            [
                self._label_of(self._parse(record).features.feature)
                for first in batches
                for record in self._records.__getitems__(
                    range(first, min(first + LABEL_BATCH, len(self)))
                )
            ],
            np.int32,
        )
        with contextlib.suppress(OSError):
            part = file.with_suffix(f".{os.getpid()}.npy")
            np.save(part, labels)
            part.replace(file)  # only a whole file bears the name
        return labels

    @functools.cached_property
    def digest(self) -> str:
        """Of the split's files: names, sizes, and the content of both ends."""
        digest = hashlib.sha256()
        for file, first, number in self._pieces:
            size = file.stat().st_size
            digest.update(f"{file.name} {size} {first} {number}\n".encode())
            with open(file, "rb") as stream:
                digest.update(stream.read(DIGEST_BYTES))
                stream.seek(max(0, size - DIGEST_BYTES))
                digest.update(stream.read())
        return digest.hexdigest()[:16]


def open_tfds(name: str, data_dir: Path | None = None) -> tuple[Source, Source, Source]:
    """The splits of a prepared data set: train, test, and that for pretraining.

    Test is `test`, or `validation` where there is no `test` or one without labels (imagenet2012).
    Where there is neither, a tenth of each class of `train` is the test split. Pretraining takes
    `train+unlabelled` where that exists (stl10), else `train`.

    Args:
      name: as TFDS has it: `cifar10`, `name/config`, `stl10:1.0.0`.
      data_dir: of TFDS; None: its own default.

    Raises:
      UserError: when it is not prepared, or there is no split `train`.
    """
    folder = find_prepared(name, data_dir)
    splits = {split["name"] for split in _info(folder)["splits"]}
    require("train" in splits, f"{folder} has no split 'train', only {', '.join(sorted(splits))}")
    train = TfdsSource(folder, "train")
    tests = [TfdsSource(folder, split) for split in ("test", "validation") if split in splits]
    labelled = [test for test in tests if not train.class_names or test[0]["label"] >= 0]
    unlabelled = sorted(splits & {"unlabelled", "unlabeled"})
    whole = TfdsSource(folder, "+".join(["train", *unlabelled])) if unlabelled else train
    if labelled:
        return train, labelled[0], whole
    train, test = fold(train, folds=10, number=0, seed=0)
    return train, test, whole if unlabelled else train


def find_prepared(name: str, data_dir: Path | None = None) -> Path:
    """Folder of a prepared data set: of its newest version, unless the name says which.

    Raises:
      UserError: when there is none in the format that is read here; says how to get it.
    """
    wanted, root = parse(name), data_root(data_dir)
    folder = version_folder(wanted, root)
    command = prepare_command(name, data_dir)
    if folder is None:
        raise UserError(_not_prepared(wanted, root, command))
    require(
        FORMAT in formats(folder),
        f"{folder} is prepared as {', '.join(formats(folder))}, which cannot be read image by "
        f"image: `{command}` adds file_format={FORMAT} from these files",
    )
    return folder


def version_folder(wanted: Name, root: Path) -> Path | None:
    """Folder of a data set's newest, or wanted, version in any format; None without one.

    Raises:
      UserError: when there are several configs, and none is the default.
    """
    base = root / wanted.name
    found = _versions(base / wanted.config if wanted.config else base)
    if not found and not wanted.config:
        configs = [folder for folder in sorted(base.glob("*")) if _versions(folder)]
        if len(configs) > 1:
            default = _default_config(base)
            names = [folder.name for folder in configs]
            require(
                default in names,
                f"{base} has the configs {', '.join(names)}: name one, as {wanted.name}/{names[0]}",
            )
            configs = [base / default]
        found = _versions(configs[0]) if configs else []
    found = [folder for folder in found if wanted.version in (None, folder.name)]
    return found[-1] if found else None


def parse(name: str) -> Name:
    """Inverse of `name/config:version`, of which config and version may be absent."""
    match = NAME.fullmatch(name)
    if match is None:
        raise UserError(
            f"{name!r} is no name of TFDS: they are as cifar10, name/config, stl10:1.0.0"
        )
    return Name(**match.groupdict())


def data_root(data_dir: Path | None) -> Path:
    """The folder of all data sets: as given, or that of TFDS."""
    standard = os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    return Path(data_dir or standard).expanduser().absolute()


def prepare_command(name: str, data_dir: Path | None) -> str:
    """The command line that prepares a data set."""
    return f"python run.py data prepare {name}" + (f" --data-dir {data_dir}" if data_dir else "")


def formats(folder: Path) -> list[str]:
    """The file formats that a data set is there in."""
    info = _info(folder)
    return [info.get("fileFormat", "tfrecord"), *info.get("alternativeFileFormats", [])]


def import_tfds() -> ModuleType:
    """The library, told to stay off the network.

    Raises:
      UserError: when it, or what it forgets to require, is not installed.
    """
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise UserError(
            f"reading data sets of TFDS needs its library ({error}): "
            "pip install -r requirements.txt"
        ) from error
    tfds.core.utils.gcs_utils._is_gcs_disabled = True
    return tfds


def unknown(name: str) -> str | None:
    """A line that TFDS does not know a data set, with near names; None if it does."""
    known = import_tfds().list_builders(with_community_datasets=False)
    if name in known:
        return None
    near = difflib.get_close_matches(name, known, n=3)
    meant = f" (did you mean {' or '.join(near)}?)" if near else ""
    return f"TensorFlow Datasets has no data set {name!r}{meant}"


def _not_prepared(wanted: Name, root: Path, command: str) -> str:
    base = root / wanted.name
    if wanted.version and (other := version_folder(wanted._replace(version=None), root)):
        return f"version {wanted.version} is not in {other.parent}, but {other.name} is"
    if not base.exists() and (line := unknown(wanted.name)):
        return f"{line}, and none of that name is prepared in {root}"
    where = base / wanted.config if wanted.config else base
    return f"{wanted.name} is not prepared: looked in {where}; run `{command}`"


def _choose(tfds: ModuleType, features: Any, folder: Path) -> tuple[str, str | None, Any]:
    """Names of the image and the label, and the further features."""
    kinds = tfds.features
    images = [key for key, feature in features.items() if type(feature) is kinds.Image]
    classes = [key for key, feature in features.items() if isinstance(feature, kinds.ClassLabel)]
    image = "image" if "image" in images else images[0] if len(images) == 1 else None
    label = "label" if "label" in classes else classes[0] if len(classes) == 1 else None
    require(
        image is not None,
        f"{folder}: one feature must be the image; there are {', '.join(features)}, of which "
        f"{len(images)} are images",
    )
    dtype = np.dtype(features[image].np_dtype)
    require(dtype == np.uint8, f"{folder}: the images must be uint8, not {dtype}")
    others = {
        key: feature
        for key, feature in features.items()
        if key not in ("image", "label", image, label)
        and type(feature) in (kinds.Tensor, kinds.Scalar)
        and np.issubdtype(feature.np_dtype, np.number)
    }
    return image, label, kinds.FeaturesDict(others) if others else None


def _info(folder: Path) -> dict[str, Any]:
    try:
        return json.loads((folder / "dataset_info.json").read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} is no readable data set of TFDS: {error}") from error


def _versions(folder: Path) -> list[Path]:
    """Folders of the versions, oldest first."""
    found = [
        path
        for path in folder.glob("*.*.*")
        if VERSION.fullmatch(path.name) and (path / "features.json").is_file()
    ]
    return sorted(found, key=lambda path: [int(part) for part in path.name.split(".")])


def _default_config(base: Path) -> str | None:
    try:
        return json.loads((base / ".config" / "metadata.json").read_text())["default_config_name"]
    except (OSError, ValueError, KeyError):
        return None
