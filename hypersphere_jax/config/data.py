"""Which images or sentences, and how two views are made of each image."""

from typing import Annotated, Any, Literal

from tyro.conf import Positional, Suppress, arg

from hypersphere_jax.config.base import config, hold_custom, refuse, require
from hypersphere_jax.config.values import Count, Share, Within

IMAGE_OPTIONS = (
    *("channels", "classes", "subset", "subset_size", "fraction", "folds", "bits", "bad_images"),
)
TEXT_RECIPE = "sentences"


Tokens = Annotated[int, Within("[2, 512]")]


@config
class DataConfig:
    """The images, and how two views are made of each; or the sentences."""

    name: Annotated[str, arg(name="data")] = "digits"
    """`digits` (embedded); a folder or .zip of images, in SPLIT/CLASS/file, CLASS/file or without
    classes; an .npz file or folder of .npy files with train_images, train_labels, test_images,
    test_labels (uint8 [n, h, w, c], integers [n]); an .npy file of images; `random_bits`;
    text: .txt or .txt.gz, a folder of them, or one that `run.py data prepare-text` made; or a data
    set of TensorFlow Datasets by name: cifar10, stl10, … (`run.py data list`)."""
    data_dir: str | None = None
    """Of a data set with a name: the folder it was prepared in, or a folder or .zip of its images
    (of nyu_depth_v2, nyu_depth_v2_labeled.mat; of books, text). None: TensorFlow Datasets' own."""
    recipe: str | None = None
    """Augmentation recipe: `digits`, `stl10`, `cifar10`, `nyu_depth`, `moco`, `moco_v2`,
    `simclr_cifar`, `simclr_imagenet` (`…_torchvision`: by torchvision's crops), `balanced_cifar`,
    `balanced_imagenet`, `balanced_no_blur`, `balanced_no_color`, `balanced_cutout`,
    `balanced_rotation`, or `none` (views are the image itself); `NAME:crop_flip` is its crop and
    flip alone. None: the one that suits the data."""
    channels: int | None = None
    """1: grey images, for networks of one channel; the recipe is without its colours. 3: RGB. None:
    RGB of image files; arrays and others as they are, and the recipe decides."""
    classes: str | None = None
    """A file with the names of the classes to keep, one a line."""
    subset: Literal["all", "long_tailed", "uniform"] = "all"
    """Training images to keep: all; long-tailed as in ImageNet-LT (Pareto, alpha 6, 1280 to 5 a
    class); or equally many of each class."""
    subset_size: Count | None = None
    """Images of a `long_tailed` or `uniform` subset. None: as many as the former gives."""
    fraction: Share = 1.0
    """Share of the training images to keep, of each class alike."""
    folds: Count = 1
    """Above 1: cut the training images in as many folds, of which one replaces the test split. Of
    folders and .zip files of images without splits one of 10 is held out if this is 1."""
    fold: int = 0
    """Which one, counted from 0."""
    bits: Annotated[int, Within("[0, 256]")] = 0
    """Random bits of each image: of `random_bits`, or channels added to other data (Chen)."""
    subset_seed: int = 0
    """Seed of subset, fraction, folds and bits."""
    bad_images: Literal["error", "skip"] = "error"
    """For unreadable images: stop, or take the next one in training and none in evaluation."""
    vocabulary: Count = 50_000
    """Of raw text, prepared on the fly: largest number of words that are known."""
    max_tokens: Tokens = 64
    """Of raw text: longer sentences are cut there, their end token counted."""
    source: Annotated[Any, Suppress] = None
    """A `data.Dataset` of one's own, in place of the name; from Python only."""
    augment: Annotated[Any, Suppress] = None
    """Training views of one's own, in place of the recipe's; from Python only."""
    preprocess: Annotated[Any, Suppress] = None
    """Evaluation images of one's own, in place of the recipe's; from Python only."""

    def __post_init__(self):
        for name in ("source", "augment", "preprocess"):
            hold_custom(self, name)
        known = self.channels in (None, 1, 3)
        require(known, f"channels={self.channels}: must be 1 (grey) or 3 (RGB)")
        require(self.fold < self.folds, f"fold={self.fold}: must be below folds={self.folds}")
        if self.subset == "all":
            refuse(self, ["subset_size"], "needs subset=long_tailed or uniform")
        require(self.name != "random_bits" or self.bits > 0, "data=random_bits needs bits= above 0")

    @property
    def extra_channels(self) -> int:
        """Channels that `bits` adds to images of something else."""
        return 0 if self.name == "random_bits" else self.bits

    def check_text(self) -> None:
        """Raises UserError for an option that is for images only."""
        refused = IMAGE_OPTIONS if self.recipe == TEXT_RECIPE else (*IMAGE_OPTIONS, "recipe")
        source = self.data_dir or self.name
        refuse(self, refused, f"is for images, and {source} is text: leave it out")


@config
class InspectConfig(DataConfig):
    """Data to inspect or to show; its name is a positional argument."""

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
    """A .txt or .txt.gz file, or a folder of such; each file is a document. UTF-8, else Latin-1."""
    out: str
    """The folder to put the corpus in, new or empty. After an interruption the same command goes
    on with the file that was being read."""
    vocabulary: Count = 50_000
    """Largest number of words that are known: the most frequent ones of the training part."""
    max_tokens: Tokens = 64
    """Longer sentences are cut there, their end token counted."""
    held_out: Annotated[float, Within("[0, 1)")] = 0.05
    """The last sentences of each document, this share of them, are held out from training."""
    form: Literal["auto", "prose", "sentences"] = "auto"
    """A line is a sentence (`sentences`), or a part of a paragraph, with blank lines between
    paragraphs (`prose`). `auto`: for each file what its first lines look like."""
