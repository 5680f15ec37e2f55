"""Which images or sentences, and how two views are made of each image."""

import dataclasses
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from hypersphere_jax.config.base import at_least_one, config, require, valid_seed

# Text has sentences, in the order of its documents: what chooses or changes images is not for it.
OF_IMAGES = ("classes", "subset", "subset_size", "fraction", "folds", "bits", "bad_images")
TEXT_RECIPE = "sentences"


def valid_text(vocabulary: int, max_tokens: int) -> None:
    require(1 <= vocabulary < 2**31, f"--vocabulary {vocabulary}: must be from 1 to 2^31 - 1")
    require(2 <= max_tokens <= 512, f"--max-tokens {max_tokens}: must be from 2 to 512")


@config
class DataConfig:
    """The images, and how two views are made of each; or the sentences."""

    name: Annotated[str, arg(name="data")] = "digits"
    """`digits` (embedded); a folder or .zip of images in SPLIT/CLASS/file; an .npz file, or a
    folder of .npy files, with train_images, train_labels, test_images, test_labels (uint8
    [n, h, w, c] and integers [n]); an .npy file of images alone; `random_bits`; text: a folder of
    .txt or .txt.gz files, such a file, or a folder that `run.py data prepare-text` made; or a data
    set of TensorFlow Datasets by name: cifar10, stl10, … (`run.py data list`)."""
    data_dir: str | None = None
    """Where a data set with a name lies: the folder it was prepared in, or a folder or .zip of its
    images (of nyu_depth_v2, nyu_depth_v2_labeled.mat; of books, text, raw or prepared). None:
    TensorFlow Datasets' own folder."""
    recipe: str | None = None
    """Augmentation recipe: `digits`; for photographs `stl10`, `cifar10`, `nyu_depth`, `moco`,
    `moco_v2`, `simclr_cifar`, `simclr_imagenet`, `balanced_cifar`, `balanced_imagenet` (and
    `balanced_no_blur`, `_no_color`, `_cutout`, `_rotation`), each also as `NAME:crop_flip`, its
    crop and flip alone; or `none` (both views are the image itself). None: the one that suits the
    data."""
    classes: str | None = None
    """A file with the names of the classes to keep, one a line."""
    subset: Literal["all", "long_tailed", "uniform"] = "all"
    """Training images to keep: all; long-tailed over the classes as in ImageNet-LT (Pareto, alpha
    6, 1280 to 5 a class); or equally many of each class."""
    subset_size: int | None = None
    """How many images a `long_tailed` or `uniform` subset has. None: as the former gives."""
    fraction: float = 1.0
    """Share of the training images to keep, of each class alike."""
    folds: int = 1
    """Above 1, the training images are cut in as many folds, and one of them takes the place of
    the test split."""
    fold: int = 0
    """Which one, counted from 0."""
    bits: int = 0
    """Random bits of each image: those of `random_bits`, or as channels added to other data (Chen
    et al., C and E)."""
    subset_seed: int = 0
    """Seed of subset, fraction, folds and bits."""
    bad_images: Literal["error", "skip"] = "error"
    """What to do with an image that cannot be read: stop, or count it and take the next one in
    training, none in evaluation."""
    vocabulary: int = 50_000
    """How many words get a number, at most: of raw text, when it is prepared on the fly."""
    max_tokens: int = 64
    """Longer sentences are cut there, their end token counted: of raw text, when it is prepared on
    the fly."""

    def __post_init__(self):
        require(0 < self.fraction <= 1, f"--fraction {self.fraction}: must be in (0, 1]")
        at_least_one("subset_size", self.subset_size)
        require(
            self.subset_size is None or self.subset != "all",
            "--subset-size needs --subset long_tailed or uniform",
        )
        require(
            self.folds >= 1 and 0 <= self.fold < self.folds,
            f"--fold {self.fold} of --folds {self.folds}: folds are counted from 0",
        )
        require(0 <= self.bits <= 256, f"--bits {self.bits}: must be from 0 to 256")
        require(
            self.name != "random_bits" or self.bits > 0, "--data random_bits needs --bits above 0"
        )
        valid_seed(self.subset_seed, "subset-seed")
        valid_text(self.vocabulary, self.max_tokens)

    @property
    def extra_channels(self) -> int:
        """Channels that `bits` adds to images of something else."""
        return 0 if self.name == "random_bits" else self.bits

    def check_text(self) -> None:
        """Refuses what is for images only."""
        fields = {field.name: field.default for field in dataclasses.fields(self)}
        for name in OF_IMAGES:
            require(
                getattr(self, name) == fields[name],
                f"--{name.replace('_', '-')} is for images, and {self.data_dir or self.name} is "
                "text: leave it out",
            )
        require(
            self.recipe in (None, TEXT_RECIPE),
            f"--recipe {self.recipe} is for images, and {self.data_dir or self.name} is text: "
            "leave it out",
        )


@config
class LookedAt(DataConfig):
    """Data to look at; the name stands by itself."""

    name: Annotated[Positional[str], arg(metavar="NAME|PATH")] = "digits"
    """As `--data` of `pretrain`: the name of a data set, or a folder or file."""


@config
class PrepareConfig:
    """Data to download and prepare."""

    name: Positional[str]
    """A data set of TensorFlow Datasets: cifar10, stl10, imagenet2012, nyu_depth_v2, …"""
    data_dir: str | None = None
    """Folder to put it in; None: TensorFlow Datasets' own."""


@config
class PrepareTextConfig:
    """Text to turn into numbers of words, once, for any number of runs."""

    raw: Annotated[Positional[str], arg(metavar="FOLDER|FILE")]
    """A .txt or .txt.gz file, or a folder of such, also in folders below it; each file is a
    document. UTF-8, else Latin-1."""
    out: str
    """The folder to put the corpus in, new or empty. After an interruption the same command goes
    on from the last finished piece."""
    vocabulary: int = 50_000
    """How many words get a number, at most: the most frequent ones of the training part."""
    max_tokens: int = 64
    """Longer sentences are cut there, their end token counted."""
    held_out: float = 0.05
    """The last sentences of each document, this share of them, are held out from training."""
    form: Literal["auto", "prose", "sentences"] = "auto"
    """What a line is: a sentence each (`sentences`), or a part of a paragraph, with blank lines
    between paragraphs (`prose`). `auto`: for each file what its first lines look like."""

    def __post_init__(self):
        valid_text(self.vocabulary, self.max_tokens)
        require(0 <= self.held_out < 1, f"--held-out {self.held_out}: must be in [0, 1)")
