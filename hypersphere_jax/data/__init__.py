# ruff: noqa: F401  (names for import from here)
"""Data sets: sources of images with labels, by index, and batches of them.

`load` opens what a config names. The sources are in `arrays`, `image_files` (folders and zips),
`tfds` and `synthetic`; `subsets` makes parts of them, `pipeline` makes batches.
"""

import functools
import os
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hypersphere_jax.configs import DataConfig, UserError, require
from hypersphere_jax.configs.base import did_you_mean, plain
from hypersphere_jax.data import arrays, image_files, subsets, synthetic, tfds
from hypersphere_jax.data.channels import with_channels
from hypersphere_jax.data.source import Arrays, Source
from hypersphere_jax.utils.terminal import say

# Data sets with a name, and their augmentation recipes. Other names are TensorFlow Datasets'.
NAMED = {
    "digits": "digits",
    "random_bits": "none",
    "cifar10": "cifar10",
    "cifar100": "cifar10",
    "stl10": "stl10",
    "imagenet2012": "moco_v2",
    "nyu_depth_v2": "nyu_depth",
    "books": "none",
}
EMBEDDED = {"digits": "embedded", "random_bits": "made on the fly"}
BITS_SIZE, BITS_COUNT = 32, 50_000  # of random_bits: as CIFAR-10's training images
HELD_OUT = 10  # data without a split have so many folds, of which one is the test split
# Functions that open files of other folders of the package, since imports go down.
READERS = {".mat": "hypersphere_jax.depth.nyu:open_mat"}


class Dataset(NamedTuple):
    """A data set: what encoders are evaluated on, and perhaps more to train them on."""

    train: Source  # with labels: for probes
    test: Source | None
    pretrain: Source  # for encoders: the training split, or that and more without labels
    recipe: str  # of augmentation, by default

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.train.class_names

    @property
    def origin(self) -> str:
        return self.train.origin

    def digest(self) -> str:
        """Changes with any image or label."""
        sources = (self.train, self.test, self.pretrain)
        different = dict.fromkeys(source.digest for source in sources if source is not None)
        return "-".join(different)


@functools.cache
def _say_once(line: str) -> None:
    say(line, sys.stderr)


def load(
    config: DataConfig, say: Callable[[str], None] = _say_once, cache_dir: Path | None = None
) -> Dataset:
    """The data set that a config describes, with its subset, fold, channels and bits.

    Args:
      config: of the data.
      say: takes a line about folders and zip files without splits: what they were taken for, and
        what is held out. By default it goes to stderr, once.
      cache_dir: see `ImageFiles`.

    Raises:
      UserError: for an unknown name, or data that are not there or not as described there.
    """
    train, test, pretrain, recipe = _open(config, cache_dir)
    part = _of_classes(train, config)
    layout = train.layout if isinstance(train, image_files.ImageFiles) else ""
    folds = min(HELD_OUT, len(part)) if layout and config.folds == 1 else config.folds
    if folds > 1:
        part, test = subsets.fold(part, folds, config.fold, config.subset_seed)
        if layout:
            what = f"{os.path.realpath(train.origin)}: {layout}"  # as runs name it, so said once
            say(_held_out(what, part, test, folds, config.fold))
    elif test is not None:
        test = _of_classes(test, config)
    part = _subset(part, config)
    require(len(part) > 0, f"no training image is left of {train.origin}")
    if pretrain is train or config.classes is not None:
        pretrain = part
    elif part is not train:  # the part, and all images that have no label
        unlabelled = np.flatnonzero(pretrain.labels < 0)
        pretrain = subsets.Concatenated([part, subsets.Subset(pretrain, unlabelled, "unlabelled")])
    same = pretrain is part
    if config.channels is not None:
        part, test, pretrain = (
            source and with_channels(source, config.channels) for source in (part, test, pretrain)
        )
    if config.extra_channels:
        part, test, pretrain = (
            source and synthetic.BitChannels(source, config.bits, config.subset_seed, number)
            for number, source in enumerate((part, test, pretrain))
        )
    return Dataset(part, test, part if same else pretrain, recipe)


def _held_out(what: str, train: Source, test: Source, folds: int, fold: int) -> str:
    """A line on what data without splits were taken for, and how to have it otherwise."""
    return (
        f"{what}; no split of its own: {len(train):,} images to train on, {len(test):,} held out "
        f"(fold {fold} of {folds}, see folds=; for your own split make folders train and test)"
    )


def as_they_lie(config: DataConfig) -> tuple[Source, Source | None]:
    """Both splits of the images that a config names, all of them; None: there is no test split."""
    train, test, *_ = _open(config)
    return train, test


def located(config: DataConfig) -> dict[str, str | None]:
    """Name and folder of the data by whole paths, for use from any folder."""

    def whole(path: str | None) -> str | None:
        return None if path is None else str(_path(path).resolve())

    is_path = config.source is None and _is_path(config.data)
    name = whole(config.data) if is_path else config.data
    return {"data": name, "data_dir": whole(config.data_dir), "classes": whole(config.classes)}


def _of_classes(source: Source, config: DataConfig) -> Source:
    if config.classes is None or isinstance(source, image_files.ImageFiles):
        return source  # it has only these already
    return subsets.by_class(source, image_files.read_classes(_path(config.classes)))


def _subset(source: Source, config: DataConfig) -> Source:
    seed, size = config.subset_seed, config.subset_size
    if config.subset == "long_tailed":
        source = subsets.long_tailed(source, seed, size)
    elif config.subset == "uniform":
        size = size or len(subsets.long_tailed(source, seed))
        source = subsets.uniform(source, seed, size)
    return source if config.fraction == 1 else subsets.fraction(source, config.fraction, seed)


def _open(
    config: DataConfig, cache_dir: Path | None = None
) -> tuple[Source, Source | None, Source, str]:
    """Train, test and pretraining split, and the recipe."""
    if config.source is not None:
        require(
            not isinstance(config.source, str),
            f"the data are your own {config.source}: give them to hypersphere_jax.train, or name "
            "others with data=",
        )
        return tuple(config.source.value)
    name, where = config.data, _path(config.data_dir)
    recipe = NAMED.get(name, "nyu_depth" if name.endswith(".mat") else "stl10")
    require(
        where is None or not (name in EMBEDDED or _is_path(name)),
        f"data_dir= says where a data set with a name lies, and {name} says that itself",
    )
    if name == "digits":
        train, test = arrays.digits()
        return train, test, train, recipe
    if name == "random_bits":
        train, test = (
            synthetic.RandomBits(BITS_COUNT, config.bits, BITS_SIZE, config.subset_seed, number)
            for number in (0, 1)
        )
        return train, test, train, recipe
    by_name = where is not None and (where.suffix or image_files.is_image_tree(where))
    if by_name or _is_path(name):
        train, test = _open_path(where if by_name else _path(name), config, cache_dir)
        return train, test, train, recipe
    try:
        return *tfds.open_tfds(name, where), recipe
    except UserError as error:
        hint, line = "" if name in NAMED else did_you_mean(name, NAMED), str(error)
        if hint and plain(name) in map(plain, NAMED):
            line = f"no data set {name!r}"
        elif isinstance(error, tfds.Unknown) and name not in NAMED:
            root = tfds.data_root(where)
            line = f"no file or folder {name}, and no data set of that name is prepared in {root}"
            line += " (see `data list`, `data prepare`)"
        raise UserError(line + hint) from error


def _open_path(
    path: Path, config: DataConfig, cache_dir: Path | None
) -> tuple[Source, Source | None]:
    require(path.exists(), f"no file or folder {path}")
    if path.suffix == ".npz":
        return arrays.from_npz(path)
    if path.suffix == ".npy":
        return arrays.from_npy(path), None
    if path.suffix in READERS:
        return pkgutil.resolve_name(READERS[path.suffix])(path)
    if (path / "train_images.npy").is_file():
        return arrays.from_npy_folder(path)
    names = None if config.classes is None else image_files.read_classes(_path(config.classes))
    return image_files.open_image_files(path, names, config.bad_images, cache_dir)


def _is_path(name: str) -> bool:
    """Whether this is a file or folder rather than a name; TFDS has names with a slash, too."""
    looks = name.endswith((".npz", ".npy", ".zip", *READERS)) or name.startswith((".", "~", "/"))
    return name not in NAMED and (looks or Path(name).exists())


def _path(path: str | None) -> Path | None:
    return None if path is None else Path(path).expanduser()
