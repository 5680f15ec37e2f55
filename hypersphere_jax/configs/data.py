"""Data sets, and the augmentation of images."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from tyro.conf import Positional, Suppress, arg

from hypersphere_jax.configs.base import (
    Auto,
    Config,
    check_at_least,
    check_at_most,
    check_seed,
    check_share,
    hold_custom,
    refuse,
    require,
)

MAX_TOKENS = 512


@dataclass(frozen=True)
class DataConfig(Config):
    """Data set and augmentation."""

    data: str = "digits"
    """`digits` (embedded); a folder or .zip of images, as SPLIT/CLASS/file, CLASS/file or without
    classes; an .npz file or folder of .npy files with train_images, train_labels, test_images,
    test_labels (uint8 [n, h, w, c], integers [n]); an .npy file of images; `random_bits`;
    text: .txt or .txt.gz, a folder of them, or one made by `data prepare-text`; or the name of a
    TensorFlow data set: cifar10, stl10, … (`data list`)."""
    data_dir: Auto[str] = None
    """Folder or .zip of a data set given by name: where it was prepared, or its images
    (nyu_depth_v2: nyu_depth_v2_labeled.mat; books: text). Defaults to TensorFlow Datasets' own."""
    recipe: Auto[str] = None
    """Augmentation recipe: `digits`, `stl10`, `cifar10`, `nyu_depth`, `moco`, `moco_v2`,
    `simclr_cifar`, `simclr_imagenet` (`…_torchvision`: torchvision's crops), `balanced_cifar`,
    `balanced_imagenet`, `balanced_no_blur`, `balanced_no_color`, `balanced_cutout`,
    `balanced_rotation`, or `none` (each view is the image itself). `NAME:crop_flip` uses only the
    crop and the flip of a recipe. Defaults to the recipe of the data set."""
    channels: Auto[int] = None
    """1: gray images; the recipe is used without its color operations. 3: RGB. Defaults to RGB for
    image files, and to the channels of arrays."""
    classes: str | None = None
    """File with the names of the classes to keep, one per line."""
    subset: Literal["all", "long_tailed", "uniform"] = "all"
    """Training images to keep: all; long-tailed as ImageNet-LT (Pareto, alpha 6, 1280 to 5 per
    class); or the same number of each class."""
    subset_size: Auto[int] = None
    """Number of images of a `uniform` subset. Defaults to the size of the long-tailed one."""
    fraction: float = 1.0
    """Share of the training images to keep, the same of each class."""
    folds: int = 1
    """Above 1: cut the training images into this many folds, one of which replaces the test split.
    Images without splits always hold out a tenth."""
    fold: int = 0
    """Number of the held-out fold, from 0."""
    bits: int = 0
    """Random bits per image: of `random_bits`, or as further channels (Chen et al., Section 5)."""
    subset_seed: int = 0
    """Seed of subset, fraction, folds and bits."""
    bad_images: Literal["error", "skip"] = "error"
    """Unreadable images: stop, or replace them in training and leave them out of evaluation."""
    vocabulary: int = 50_000
    """Largest vocabulary of raw text."""
    max_tokens: int = 64
    """Longest sentence of raw text, with its end token; longer ones are cut."""
    source: Annotated[Any, Suppress] = None
    """A `data.Dataset` instead of `data`; from Python only."""
    augment: Annotated[Any, Suppress] = None
    """Training augmentation instead of the recipe's; from Python only."""
    preprocess: Annotated[Any, Suppress] = None
    """Preparation of evaluation images instead of the recipe's; from Python only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("source", "augment", "preprocess"):
            hold_custom(self, name)
        check_at_least(self, 1, "subset_size", "folds", "vocabulary")
        check_at_least(self, 0, "fold", "bits")
        check_at_most(self, 256, "bits")
        check_at_least(self, 2, "max_tokens")
        check_at_most(self, MAX_TOKENS, "max_tokens")
        check_share(self, "fraction")
        check_seed(self, "subset_seed")
        require(bool(self.data), "data=: give a name, a folder or a file")
        is_known = self.channels in (None, 1, 3)
        require(is_known, f"channels={self.channels}: must be 1 (gray) or 3 (RGB)")
        require(self.fold < self.folds, f"fold={self.fold}: must be below folds={self.folds}")
        if self.subset != "uniform":
            refuse(self, ["subset_size"], "needs subset=uniform")
        require(self.data != "random_bits" or self.bits > 0, "data=random_bits needs bits= above 0")

    @property
    def extra_channels(self) -> int:
        """Channels that `bits` adds to images of another data set."""
        return 0 if self.data == "random_bits" else self.bits


@dataclass(frozen=True)
class InspectConfig(DataConfig):
    """Data set to inspect or to show."""

    data: Annotated[Positional[str], arg(metavar="NAME|PATH")] = "digits"
    """Name of a data set, or a folder or file, as `--data` of `pretrain`."""


@dataclass(frozen=True)
class PrepareConfig(Config):
    """Data set to download and prepare."""

    data: Annotated[Positional[str], arg(metavar="NAME")]
    """A data set of TensorFlow Datasets: cifar10, stl10, imagenet2012, nyu_depth_v2, …"""
    data_dir: Auto[str] = None
    """Folder of the prepared data. Defaults to TensorFlow Datasets' own."""
