"""Data sets, and the augmentation of images."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from tyro.conf import Positional, Suppress, arg

from hypersphere_jax.configs.base import Auto, Config, check_range, refuse, require

MAX_TOKENS = 512


@dataclass(frozen=True)
class DataConfig(Config):
    """Data set and augmentation."""

    data: str = "digits"
    """`digits` (embedded); a folder or .zip of images: SPLIT/CLASS/file, CLASS/file, or flat;
    an .npz file or folder of .npy files with train_images, train_labels, test_images, test_labels;
    an .npy file of images; `random_bits`; text (.txt, .txt.gz, a folder, or what `data
    prepare-text` wrote); or a TensorFlow data set: cifar10, stl10, … (`data list`)."""
    data_dir: Auto[str] = None
    """Folder or .zip of a data set given by name. Defaults to TensorFlow Datasets' own."""
    recipe: Auto[str] = None
    """Augmentation: `digits`, `stl10`, `cifar10`, `nyu_depth`, `moco`, `moco_v2`, `simclr_cifar`,
    `simclr_imagenet` (`…_torchvision`: torchvision crops), `balanced_cifar`, `balanced_imagenet`,
    `balanced_no_blur`, `balanced_no_color`, `balanced_cutout`, `balanced_rotation`, or `none`.
    `NAME:crop_flip` uses only a recipe's crop and flip. Defaults to the recipe of the data set."""
    channels: Auto[int] = None
    """1: gray images, without color operations. 3: RGB. Defaults to RGB for files of images."""
    classes: str | None = None
    """File with the names of the classes to keep, one per line."""
    subset: Literal["all", "long_tailed", "uniform"] = "all"
    """All; long-tailed as ImageNet-LT (Pareto, alpha 6, 1280 to 5 per class); or equal classes."""
    subset_size: Auto[int] = None
    """Number of images of a `uniform` subset. Defaults to the size of the long-tailed one."""
    fraction: float = 1.0
    """Share of the training images to keep, the same of each class."""
    folds: int = 1
    """Above 1: cut the training images into folds, one of which replaces the test split."""
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
        check_range(self, "subset_size", "folds", "vocabulary", at_least=1)
        check_range(self, "fold", at_least=0, below=self.folds)
        check_range(self, "bits", at_least=0, at_most=256)
        check_range(self, "max_tokens", at_least=2, at_most=MAX_TOKENS)
        check_range(self, "fraction", above=0, at_most=1)
        check_range(self, "subset_seed", at_least=0, below=2**32)
        require(bool(self.data), "data=: give a name, a folder or a file")
        is_known = self.channels in (None, 1, 3)
        require(is_known, f"channels={self.channels}: must be 1 (gray) or 3 (RGB)")
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
