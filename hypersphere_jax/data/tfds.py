"""Image sets of TensorFlow Datasets (TFDS): prepared once with TensorFlow, read without it.

They are prepared as ArrayRecord files, which give any image by its number. The library is imported
where it is first used: other data do not wait for it.
"""

import contextlib
import functools
import hashlib
import importlib.util
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from hypersphere_jax.config import UserError, require
from hypersphere_jax.data.decode import decode, reason
from hypersphere_jax.data.source import Sample, Source, UnreadableImage
from hypersphere_jax.data.subsets import Concatenated, fold
from hypersphere_jax.files import atomic_write

FORMAT = "array_record"
MODES = {1: "L", 4: "RGBA"}  # Pillow's names by number of channels, other than RGB
DIGEST_BYTES = 16384  # of both ends of each file
LABEL_BATCH = 1000  # records read at a time for their labels


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
        import tensorflow_datasets as tfds
        from tensorflow_datasets.proto import tf_example_pb2

        self._folder, self._split = Path(folder), split
        self._parse = tf_example_pb2.Example.FromString
        try:
            builder = tfds.builder_from_directory(self._folder)
            self._records = builder.as_data_source(
                split, deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES
            )
            self._parts = builder.info.splits[split].file_instructions
        except Exception as error:  # TFDS names no common kind
            raise UserError(f"split {split!r} of {folder} cannot be read: {error}") from error
        missing = [part.filename for part in self._parts if not Path(part.filename).is_file()]
        require(
            not missing,
            f"{len(missing)} of {len(self._parts)} files are missing, such as {missing[:1]}: "
            f"prepare {builder.name} again",
        )
        features = builder.info.features
        self._image, self._label, self._others = _choose_features(features, folder)
        shape = features[self._image].shape
        self.image_shape = None if None in shape else tuple(shape)
        self._channels = shape[-1]
        self.class_names = tuple(features[self._label].names or ()) if self._label else ()
        self.origin = f"TensorFlow Datasets {builder.info.full_name}, {split}, in {folder}"

    def __reduce__(self):
        return TfdsSource, (self._folder, self._split)

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, i: int) -> Sample:
        i = range(len(self))[i]
        try:
            record = self._records[i]
            example = self._parse(record).features.feature
            image = self._decode(example[self._image].bytes_list.value[0])
            label = self._label_of(example)
            others = self._others.deserialize_example_np(record) if self._others else {}
        except Exception as error:  # damaged records bring about many types
            raise UnreadableImage(f"image {i} of {self.origin}: {reason(error)}") from error
        return {**others, "image": image, "label": label}

    def _decode(self, encoded: bytes) -> np.ndarray:
        if self._channels not in MODES:
            return decode(encoded)
        with Image.open(io.BytesIO(encoded)) as image:
            pixels = np.array(image.convert(MODES[self._channels]))
        return pixels.reshape(*pixels.shape[:2], self._channels)

    def _label_of(self, example: Any) -> int:
        return example[self._label].int64_list.value[0] if self._label else -1

    @functools.cached_property
    def labels(self) -> np.ndarray:
        """All labels, int32 `[n]`; read from all records once, then kept in a file beside them."""
        if self._label is None:
            return np.full(len(self), -1, np.int32)
        file = self._folder / f"labels-{self.digest}.npy"
        with contextlib.suppress(OSError, ValueError, EOFError):
            kept = np.load(file)
            if kept.shape == (len(self),) and kept.dtype == np.int32:
                return kept
        every = range(len(self))
        batches = [list(every[start : start + LABEL_BATCH]) for start in every[::LABEL_BATCH]]
        records = (record for rows in batches for record in self._records.__getitems__(rows))
        labels = [self._label_of(self._parse(record).features.feature) for record in records]
        labels = np.array(labels, np.int32)
        with contextlib.suppress(OSError), atomic_write(file) as stream:
            np.save(stream, labels)
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

    Raises:
      UserError: when it is not prepared, or there is no split `train`.
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


def find_prepared(name: str, data_dir: Path | None = None) -> tuple[Path, list[str]]:
    """Folder of a prepared data set, and its splits; the newest version, unless the name says it.

    Raises:
      UserError: when there is none in the format that is read here; says how to get it.
    """
    _require_library()
    from tensorflow_datasets.core.read_only_builder import builder_from_files

    root = data_root(data_dir)
    where = f" --data-dir {data_dir}" if data_dir else ""
    command = f"`python run.py data prepare {name}{where}`"
    try:
        builder = builder_from_files(name, data_dir=str(root))
    except Exception as error:  # TFDS names no common kind
        line = str(error).partition("\n")[0]
        raise UserError(f"{name} is not prepared in {root}: run {command} ({line})") from error
    folder, formats = Path(builder.data_path), builder.info.available_file_formats()
    formats = [form.value for form in formats]
    require(
        FORMAT in formats,
        f"{folder} is prepared as {', '.join(formats)}, which cannot be read image by image: move "
        f"it away, then run {command}",
    )
    return folder, sorted(builder.info.splits)


def prepare(name: str, data_dir: Path | None = None) -> Path:
    """Downloads a data set and makes it ready to be read, unless it is; returns its folder.

    Args:
      name: as TFDS has it: `cifar10`, `name/config`, `stl10:1.0.0`.
      data_dir: of TFDS; None: its own default.

    Raises:
      UserError: when TensorFlow is not installed, TFDS does not have the data set, or its files
        cannot be downloaded, or must be fetched by hand.
    """
    with contextlib.suppress(UserError):
        return find_prepared(name, data_dir)[0]
    _require_library()
    import tensorflow_datasets as tfds

    require(
        importlib.util.find_spec("tensorflow") is not None,
        f"preparing {name} needs TensorFlow (reading it will not): "
        "pip install -r requirements-prepare.txt",
    )
    root = data_root(data_dir)
    try:
        builder = tfds.builder(name, data_dir=str(root))
        builder.download_and_prepare(download_dir=str(root / "downloads"), file_format=FORMAT)
    except Exception as error:  # of the name, a network, an archive, a disk, a missing library, …
        raise UserError(
            f"TFDS could not prepare {name}: {reason(error)[:600]}; files that were downloaded by "
            f"hand go into {root / 'downloads' / 'manual'}"
        ) from error
    return find_prepared(name, data_dir)[0]


def data_root(data_dir: Path | None) -> Path:
    """The folder of all data sets: as given, or that of TFDS."""
    standard = os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    return Path(data_dir or standard).expanduser().absolute()


def _require_library() -> None:
    try:
        import tensorflow_datasets  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"reading data sets of TFDS needs its library ({error}): "
            "pip install -r requirements.txt"
        ) from error


def _choose_features(features: Any, folder: Path) -> tuple[str, str | None, Any]:
    """Names of the image and the label, and the further features."""
    from tensorflow_datasets import features as kinds

    images = [key for key, feature in features.items() if type(feature) is kinds.Image]
    classes = [key for key, feature in features.items() if isinstance(feature, kinds.ClassLabel)]
    image = "image" if "image" in images else images[0] if len(images) == 1 else None
    label = "label" if "label" in classes else classes[0] if len(classes) == 1 else None
    require(
        image is not None and features[image].np_dtype == np.uint8,
        f"{folder}: one feature must be the image, of uint8; there are {features}",
    )
    others = {
        key: feature
        for key, feature in features.items()
        if key not in ("image", "label", image, label)
        and type(feature) in (kinds.Tensor, kinds.Scalar)
        and np.issubdtype(feature.np_dtype, np.number)
    }
    return image, label, kinds.FeaturesDict(others) if others else None
