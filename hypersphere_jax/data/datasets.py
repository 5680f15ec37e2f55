"""Data sets by name or path: `load` opens the data that a config describes."""

import logging
import pkgutil
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hypersphere_jax.configs import DataConfig, UserError, require
from hypersphere_jax.configs.base import did_you_mean
from hypersphere_jax.data import arrays, channels, image_files, subsets, tfds
from hypersphere_jax.data.source import Source

logger = logging.getLogger("hypersphere_jax")

# Augmentation recipes of data sets by name. Other names belong to TensorFlow Datasets.
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
DEFAULT_RECIPE = "stl10"
EMBEDDED = {"digits": "embedded", "random_bits": "made on the fly"}
RANDOM_BITS_COUNT = 50_000  # like CIFAR-10's training images
SUFFIXES = (".npz", ".npy", ".zip", ".mat")
OPEN_MAT = "hypersphere_jax.depth.nyu:open_mat"  # resolved on use, because imports go down
DEFAULT_FOLDS = 10  # without splits, one of them is the test split


class Dataset(NamedTuple):
    """A data set."""

    train: Source  # with labels, for probes
    test: Source | None
    pretrain: Source  # for encoders: the training split, or more images without labels
    recipe: str  # default augmentation recipe

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the labels, in their order."""
        return self.train.class_names

    @property
    def origin(self) -> str:
        """Name of the training split in messages."""
        return self.train.origin

    def digest(self) -> str:
        """Return the fingerprint of all images and labels."""
        sources = (self.train, self.test, self.pretrain)
        return "-".join(dict.fromkeys(s.digest for s in sources if s is not None))


def load(config: DataConfig, cache_dir: Path | None = None) -> Dataset:
    """Load the data that a config describes, with its subset, fold, channels and bits.

    The interpretation of folders and zip files without splits is logged.

    Args:
      config: the config.
      cache_dir: folder that keeps the shape of image files.

    Raises:
      UserError: for an unknown name, or missing or invalid data.
    """
    whole = _open(config, cache_dir)
    train, test = _split(whole, config)
    train = _subset(train, config)
    pretrain = whole.pretrain
    if pretrain is whole.train or config.classes is not None:
        pretrain = train
    elif train is not whole.train:
        unlabeled = np.flatnonzero(pretrain.labels < 0)
        pretrain = subsets.Concatenated([train, subsets.Subset(pretrain, unlabeled, "unlabeled")])
    converted = _convert(train, config, 0)
    pretrain = converted if pretrain is train else _convert(pretrain, config, 2)
    if test is not None:
        test = _convert(test, config, 1)
    return Dataset(converted, test, pretrain, whole.recipe)


def load_raw_splits(config: DataConfig) -> tuple[Source, Source | None]:
    """Load the training and the test images without subset, folds and channels.

    The test split may be None.
    """
    dataset = _open(config)
    return dataset.train, dataset.test


def located(config: DataConfig) -> dict[str, str | None]:
    """Return the folders and files of the data with absolute paths."""
    found = {"data_dir": config.data_dir, "classes": config.classes}
    if config.source is None and _is_path(config.data):
        found["data"] = config.data
    paths = {name: path for name, path in found.items() if path is not None}
    return {name: str(Path(path).expanduser().resolve()) for name, path in paths.items()}


def _open(config: DataConfig, cache_dir: Path | None = None) -> Dataset:
    """Open all images of the data set of a config."""
    if config.source is not None:
        require(
            not isinstance(config.source, str),
            f"the data are the custom {config.source}: pass them to hypersphere_jax.train, or name "
            "others with data=",
        )
        return config.source.value
    name = config.data
    recipe = NAMED.get(name, DEFAULT_RECIPE)
    path = _path(config)
    if path is not None:
        require(path.exists(), f"no file or folder {path}")
        suffix = path.suffix.lower()
        if suffix == ".mat":
            recipe = NAMED["nyu_depth_v2"]
            train, test = pkgutil.resolve_name(OPEN_MAT)(path)
        elif suffix in (".npz", ".npy") or (path / "train_images.npy").is_file():
            train, test = arrays.open_arrays(path)
        else:
            train, test = image_files.open_image_files(path, cache_dir, _classes(config))
            for split in filter(None, (train, test)):
                if config.bad_images == "error":
                    split.require_content()
    elif name == "digits":
        train, test = arrays.digits()
    elif name == "random_bits":
        options = {"n": RANDOM_BITS_COUNT, "k": config.bits, "seed": config.subset_seed}
        train, test = (channels.random_bits(**options, part=part) for part in (0, 1))
    else:
        try:
            return Dataset(*tfds.open_tfds(name, config.data_dir), recipe)
        except tfds.NotPrepared as error:
            hint = "" if name in NAMED else did_you_mean(name, NAMED)
            raise UserError(f"{error}{hint}") from error
    return Dataset(train, test, train, recipe)


def _path(config: DataConfig) -> Path | None:
    """Return the file or folder of the images, or None for a data set by name."""
    is_path = _is_path(config.data)
    if config.data_dir is None:
        return Path(config.data).expanduser() if is_path else None
    require(
        not is_path and config.data not in EMBEDDED,
        f"data_dir= is the folder of a data set by name, and data={config.data} does not need it",
    )
    folder = Path(config.data_dir).expanduser()
    is_images = folder.suffix.lower() in SUFFIXES or image_files.is_image_tree(folder)
    return folder if is_images else None


def _split(whole: Dataset, config: DataConfig) -> tuple[Source, Source | None]:
    """Return the chosen classes of the training and the test part: a fold, or the splits."""
    train = whole.train
    test = whole.test
    names = _classes(config)
    if names is not None:
        train = subsets.by_class(train, names)
        if test is not None:
            test = subsets.by_class(test, names)
    layout = getattr(whole.train, "layout", "")  # only image files without splits have one
    folds = config.folds
    if layout and folds == 1:
        folds = min(DEFAULT_FOLDS, len(train))
    if folds == 1:
        return train, test
    part, held_out = subsets.fold(train, folds, config.fold, config.subset_seed)
    if layout:
        logger.warning(
            "%s: %s; no splits: %s images to train on, %s held out (fold %d of %d, see folds=; for "
            "another split make folders train and test)",
            *(whole.origin, layout, f"{len(part):,}", f"{len(held_out):,}", config.fold, folds),
        )
    return part, held_out


def _classes(config: DataConfig) -> tuple[str, ...] | None:
    """Return the names of the chosen classes, or None for all."""
    if config.classes is None:
        return None
    return image_files.read_classes(Path(config.classes).expanduser())


def _subset(source: Source, config: DataConfig) -> Source:
    seed = config.subset_seed
    if config.subset == "long_tailed":
        source = subsets.long_tailed(source, seed)
    elif config.subset == "uniform":
        size = config.subset_size or len(subsets.long_tailed(source, seed))
        source = subsets.uniform(source, seed, size)
    if config.fraction < 1:
        source = subsets.fraction(source, config.fraction, seed)
    return source


def _convert(source: Source, config: DataConfig, part: int) -> Source:
    """Convert the channels of a split, and add random bits, which differ between parts."""
    if config.channels is not None:
        source = channels.with_channels(source, config.channels)
    if config.extra_channels:
        source = channels.with_bits(source, config.bits, config.subset_seed, part)
    return source


def _is_path(name: str) -> bool:
    """Return whether this is a file or folder; names of TFDS may contain a slash."""
    looks_like_path = name.lower().endswith(SUFFIXES) or name.startswith((".", "~", "/"))
    return name not in NAMED and (looks_like_path or Path(name).exists())
