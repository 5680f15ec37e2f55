"""Text as the data of a run: a prepared corpus, or text files that are prepared on the fly."""

import contextlib
import itertools
import json
import logging
import shutil
from pathlib import Path

from hypersphere_jax.configs import DataConfig, UserError, require
from hypersphere_jax.configs.base import refuse
from hypersphere_jax.data import NAMED, Dataset
from hypersphere_jax.data.layouts import EXTENSIONS
from hypersphere_jax.text.corpus import RECORD, Corpus, open_corpus
from hypersphere_jax.text.prepare import PrepareTextConfig, prepare_text
from hypersphere_jax.text.text_files import is_text_name, text_files, visible_files
from hypersphere_jax.utils.caches import fingerprint
from hypersphere_jax.utils.files import locked

logger = logging.getLogger("hypersphere_jax")

BOOKS = "books"  # name of the text in `data_dir`
CACHE = "~/.cache/hypersphere_jax/text"
MAX_LISTED = 10_000  # files of a folder that are listed to tell text from images
FORMAT = 2  # changes with the tokenizer and with the files of a corpus
# Options of `DataConfig` that apply to images only.
IMAGE_OPTIONS = (
    *("channels", "classes", "subset", "subset_size", "fraction", "folds", "bits"),
    *("bad_images", "recipe", "source", "augment", "preprocess"),
)


def find_text(config: DataConfig) -> Path | None:
    """Return the path of the text that a config names, or None if it names images."""
    if config.data == BOOKS:
        return text_path(config)
    if config.source is not None or config.data in NAMED:
        return None
    path = text_path(config)
    return path if is_text(path) else None


def text_path(config: DataConfig) -> Path:
    """Return the file or folder that contains the text of a config."""
    if config.data != BOOKS:
        return Path(config.data).expanduser()
    needed = "a folder of .txt or .txt.gz files, or a prepared corpus"
    require(config.data_dir is not None, f"data={BOOKS} needs data_dir=, {needed}")
    return Path(config.data_dir).expanduser()


def is_text(path: Path) -> bool:
    """Return whether a path is a text file, a corpus, or a folder that mostly contains text.

    A folder of images with a few text files for each is not text.
    """
    if path.is_file():
        return is_text_name(path.name)
    files = list(itertools.islice(visible_files(path), MAX_LISTED))
    texts = sum(is_text_name(file.name) for file in files)
    images = sum(file.suffix[1:].lower() in EXTENSIONS for file in files)
    is_mostly_text = 2 * texts > len(files) and 10 * images < texts
    return is_mostly_text or (path / RECORD).is_file()


def load_text(config: DataConfig) -> Dataset:
    """Load the text that a config names.

    Raises:
      UserError: for missing text, and for options that apply to images only or do not fit the
        corpus.
    """
    path = text_path(config)
    refuse(config, IMAGE_OPTIONS, f"is for images, and {path} is text: omit it")
    train, held_out = load_corpus(path, config.vocabulary, config.max_tokens)
    for name in ("vocabulary", "max_tokens"):
        value = getattr(config, name)
        prepared = train.options[name]
        require(
            value in (prepared, getattr(DataConfig, name)),
            f"{name}={value}: {path} was prepared with {prepared}; omit the option, or prepare the "
            "text again",
        )
    return Dataset(train, held_out, train, "none")


def load_corpus(path: Path, vocabulary: int, max_tokens: int) -> tuple[Corpus, Corpus | None]:
    """Open a corpus, or prepare the corpus of text files and keep it in `CACHE`.

    Args:
      path: folder of a corpus, or text as for `prepare_text`.
      vocabulary: largest vocabulary of text.
      max_tokens: longest sentence of text.

    Returns:
      As `open_corpus`.
    """
    if (path / RECORD).is_file():
        return open_corpus(path)
    options = {"vocabulary": vocabulary, "max_tokens": max_tokens}
    stats = [(str(file.resolve()), file.stat()) for file in text_files(path)]
    files = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
    folder = Path(CACHE).expanduser() / fingerprint(json.dumps([FORMAT, files, options]))
    with locked(folder.with_suffix(".lock")):
        if folder.exists():
            with contextlib.suppress(UserError):
                return open_corpus(folder)
            shutil.rmtree(folder)
        logger.info("preparing the text in %s once; its corpus is kept in %s", path, folder)
        prepare_text(PrepareTextConfig(str(path), str(folder), **options))
        return open_corpus(folder)
