"""The command `data`: data sets by name, their description, and pictures of their views."""

import contextlib
import functools
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from hypersphere_jax import data, text
from hypersphere_jax.configs import InspectConfig, PrepareConfig, UserError, require
from hypersphere_jax.configs.base import WRITER, check_output, program
from hypersphere_jax.data import tfds
from hypersphere_jax.data.describe import describe
from hypersphere_jax.data.pipeline import BadImages
from hypersphere_jax.reporting.tables import print_table
from hypersphere_jax.text.prepare import PrepareTextConfig
from hypersphere_jax.utils.files import write_json
from hypersphere_jax.utils.terminal import printable, track

MAX_CLASSES = 20  # more classes are not listed one by one
SENTENCES = 6  # printed


def list_names(data_dir: str | None = None) -> None:
    """List the data sets by name, and where they are.

    Args:
      data_dir: Folder of prepared data. Defaults to TensorFlow Datasets' own.
    """
    root = tfds.data_root(data_dir)
    rows = []
    for name, recipe in data.NAMED.items():
        place = data.EMBEDDED.get(name, "not prepared")
        if name not in data.EMBEDDED and (root / name).is_dir():
            with contextlib.suppress(UserError):
                place = str(tfds.find_prepared(name, root)[0])
        rows.append((name, recipe, place))
    print_table(["name", "recipe", "where"], rows)
    print(f"\nFolder of prepared data: {root}. Other names belong to TensorFlow Datasets.")
    print("Folders, files and text: see --data in pretrain --help.")


def prepare(config: PrepareConfig) -> None:
    """Download a data set of TensorFlow Datasets and prepare it for reading."""
    folder = tfds.prepare(config.data, config.data_dir)
    where = "" if config.data_dir is None else f" --data-dir {config.data_dir}"
    print(f"prepared: {folder}\ninspect it: {program()} data inspect {config.data}{where}")


def prepare_text(config: PrepareTextConfig) -> None:
    """Turn text files into a corpus of sentences as token ids, to train on."""
    text.prepare_text(config)
    print(f"prepared: {config.out}\ninspect it: {program()} data inspect {config.out}")


def inspect(config: InspectConfig, sample: int = 5000, out: Path | None = None) -> None:
    """Describe a data set: sizes, classes, mean and deviation of the channels, speed of reading.

    For text: documents, sentences and words, and some sentences.

    Args:
      config: The data.
      sample: Images of each split to decode, evenly spread; 0 for all.
      out: Also write these numbers to this JSON file.
    """
    check_output(out, ".json")
    if text.find_text(config) is not None:
        splits = _describe_text(config)
    else:
        splits = _describe_images(config, sample)
    if out is not None:
        write_json(out, {"written_by": WRITER} | splits)
    keys = dict.fromkeys(key for values in splits.values() for key in values)
    rows = [[key, *(_shown(values.get(key)) for values in splits.values())] for key in keys]
    print()
    print_table(["", *splits], rows)


def _describe_images(config: InspectConfig, sample: int) -> dict[str, dict[str, Any]]:
    """Return the statistics of each split."""
    dataset = data.load(config)
    splits = {"train": dataset.train, "test": dataset.test}
    if dataset.pretrain is not dataset.train:
        splits["pretrain"] = dataset.pretrain
    progress = functools.partial(track, name="reading")
    described = {}
    for name, source in splits.items():
        if source is not None:
            bad = BadImages(source, config.bad_images)
            described[name] = describe(source, bad, sample or None, progress)
            print(f"{name}: {source.origin}")
    print(f"recipe: {config.recipe or dataset.recipe}")
    return described


def _describe_text(config: InspectConfig) -> dict[str, dict[str, Any]]:
    """Return the statistics of each split, and print sentences of the training split."""
    dataset = text.load_text(config)
    corpus: Any = dataset.train  # a text.corpus.Corpus
    described = {"train": corpus.statistics()}
    if dataset.test is not None:
        described["test"] = dataset.test.statistics()
    print(f"{corpus.origin}: {len(corpus.vocabulary):,} words")
    for number in np.unique(np.linspace(0, len(corpus) - 1, SENTENCES, dtype=int)):
        sentence = printable(corpus.text(number), 1000)
        print(textwrap.fill(sentence, 96, initial_indent="- ", subsequent_indent="  "))
    return described


def _shown(value: Any) -> Any:
    """Return the counts of classes as text, and other statistics as they are."""
    if not isinstance(value, dict):
        return value
    if len(value) <= MAX_CLASSES:
        return ", ".join(f"{name}: {count:,}" for name, count in value.items())
    return f"{len(value):,} classes of {min(value.values()):,} to {max(value.values()):,}"


def show(
    config: InspectConfig,
    image_size: int | None = None,
    count: int = 12,
    seed: int = 0,
    out: Path | None = None,
    runs_dir: str = "runs",
) -> None:
    """Draw images of the training split, each with two views by a recipe.

    Args:
      config: The data and the recipe.
      image_size: Side of the views in pixels. Defaults to the longest side of an image shown.
      count: Number of images, evenly spread over the split.
      seed: Seed of the views.
      out: The picture (PNG). Defaults to RUNS_DIR/data/NAME-RECIPE.png.
      runs_dir: Folder of all runs.
    """
    check_output(out, ".png")
    require(count >= 1, f"count={count}: must be at least 1")
    from hypersphere_jax.reporting import pictures, plots

    require(text.find_text(config) is None, f"{config.data} is text: use data inspect")
    dataset = data.load(config)
    config = config.replace(recipe=config.recipe or dataset.recipe)
    numbers = pictures.spread(len(dataset.pretrain), count)
    tiles = pictures.read_tiles(dataset.pretrain, numbers, config.bad_images)
    size = image_size or max(max(tile.image.shape[:2]) for tile in tiles)
    try:
        views = pictures.random_views(tiles, config, size, seed)
    except ValueError as error:
        raise UserError(f"recipe={config.recipe}: {error}") from error
    stem = Path(config.data).stem
    path = out or Path(runs_dir, "data", f"{stem}-{config.recipe}.png")
    plots.view_sheet(f"{stem}: views by {config.recipe}, {size} pixels", tiles, views, path)
    print(path)


# Parts of the command by name.
PARTS = {
    "list": list_names,
    "prepare": prepare,
    "prepare-text": prepare_text,
    "inspect": inspect,
    "show": show,
}
