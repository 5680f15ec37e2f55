"""The command `data`: data sets by name, their description, and pictures of their views."""

import contextlib
import dataclasses
import functools
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from hypersphere_jax import data, text
from hypersphere_jax.configs import InspectConfig, PrepareConfig, UserError, require
from hypersphere_jax.configs.base import WRITER, check_output, program
from hypersphere_jax.data import tfds
from hypersphere_jax.data.pipeline import BadImages
from hypersphere_jax.reporting.tables import print_table
from hypersphere_jax.text.prepare import PrepareTextConfig
from hypersphere_jax.utils.files import write_json
from hypersphere_jax.utils.terminal import say, track

MAX_CLASSES = 20  # more classes are not listed one by one
WORDS, SENTENCES = 40, 6  # of text, printed


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
    say(
        f"\nFolder of prepared data: {root}.\n"
        "Other names belong to TensorFlow Datasets. --data also takes a folder or .zip of "
        "images (SPLIT/CLASS/file, CLASS/file, or images only), .npz and .npy files, and a folder "
        "or file of text."
    )


def prepare(config: PrepareConfig) -> None:
    """Download a data set of TensorFlow Datasets and prepare it for reading."""
    folder = tfds.prepare(config.data, config.data_dir)
    where = "" if config.data_dir is None else f" --data-dir {config.data_dir}"
    say(f"prepared: {folder}\ninspect it: {program()} data inspect {config.data}{where}")


def prepare_text(config: PrepareTextConfig) -> None:
    """Turn text files into a corpus of sentences as token ids, to train on."""
    text.prepare_text(config)
    say(f"prepared: {config.out}\nlook at it: {program()} data inspect {config.out}")


def inspect(config: InspectConfig, sample: int = 5000, out: Path | None = None) -> None:
    """Describe a data set: sizes, classes, mean and deviation of the channels, speed of reading.

    For text: documents, sentences and words, the start of the vocabulary, and some sentences.

    Args:
      config: The data.
      sample: Images of each split to decode, evenly spread; 0 for all.
      out: Also write these numbers to this JSON file.
    """
    check_output(out, ".json")
    from hypersphere_jax.data.describe import describe

    if text.find_text(config) is not None:
        _inspect_text(config, out)
        return
    dataset = data.load(config)
    splits = {"train": dataset.train, "test": dataset.test}
    if dataset.pretrain is not dataset.train:
        splits["pretrain"] = dataset.pretrain
    progress = functools.partial(track, name="reading")
    results = {}
    for name, source in splits.items():
        if source is not None:
            bad = BadImages(source, config.bad_images)
            results[name] = describe(source, bad, sample or None, progress)
            say(f"{name}: {source.origin}")
    if out is not None:
        write_json(out, {"written_by": WRITER} | results)
    _print_descriptions(results)
    say(f"\nrecipe: {config.recipe or dataset.recipe}")
    train = results["train"]
    if train["is_gray"] and train["smallest"][2] == 3:
        say("all images are gray; --channels 1 makes encoders of one channel")


def _print_descriptions(results: dict[str, dict[str, Any]]) -> None:
    counts = []
    pixels = []
    for name, result in results.items():
        sizes = sorted(result["class_counts"].values())
        spread = f"{sizes[0]:,} to {sizes[-1]:,}" if sizes else None
        shapes = ["x".join(map(str, result[key])) for key in ("smallest", "largest")]
        shape = " to ".join(dict.fromkeys(shapes))
        counts.append((name, result["n"], result["unlabeled"], len(sizes), spread, shape))
        mean, std = (" ".join(f"{x:.4f}" for x in result[key][:3]) for key in ("mean", "std"))
        rate = round(result["images_per_s"])
        pixels.append((name, result["read"], result["unreadable"], mean, std, rate))
    print()
    print_table(["split", "images", "unlabeled", "classes", "in a class", "pixels"], counts)
    print()
    print_table(["split", "decoded", "unreadable", "mean", "std", "images/s"], pixels)
    classes = list(results["train"]["class_counts"])
    if 0 < len(classes) <= MAX_CLASSES:
        print()
        of_class = [[r["class_counts"].get(name) for r in results.values()] for name in classes]
        rows = [[name, *counts] for name, counts in zip(classes, of_class, strict=True)]
        print_table(["class", *results], rows)


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
    from hypersphere_jax import augment
    from hypersphere_jax.reporting import pictures, plots

    is_text = text.find_text(config) is not None
    require(not is_text, f"{config.data} is text: use data inspect")
    dataset = data.load(config)
    source = dataset.pretrain
    bad = BadImages(source, config.bad_images)
    recipe = config.recipe or dataset.recipe
    images, names = pictures.read_images(source, pictures.spread(len(source), count), bad)
    size = image_size or max(max(image.shape[:2]) for image in images)
    try:
        steps = augment.recipe_of(dataclasses.replace(config, recipe=recipe))
        views = pictures.random_views(source, images, steps, size, seed, config.extra_channels)
    except ValueError as error:
        raise UserError(f"--recipe {recipe}: {error}") from error
    stem = Path(config.data).stem
    path = out or Path(runs_dir, "data", f"{stem}-{recipe}.png")
    title = f"{stem}: views by recipe {recipe}, {size} pixels"
    plots.view_sheet(title, names, [image / 255 for image in images], views, path)
    say(str(path))


def _inspect_text(config: InspectConfig, out: Path | None) -> None:
    dataset = text.load_text(config)
    statistics = {}
    rows = []
    corpus: Any  # a text.corpus.Corpus
    for name, corpus in (("train", dataset.train), ("test", dataset.test)):
        if corpus is None:
            continue
        statistics[name] = corpus.statistics()
        counts = [f"{statistics[name][key]:,}" for key in ("documents", "sentences", "tokens")]
        lengths = [f"{statistics[name][key]:.1f}" for key in ("words_mean", "words_95")]
        shares = [f"{statistics[name][key]:.2%}" for key in ("unknown_share", "cut_share")]
        rows.append([name, *counts, *lengths, *shares])
        say(f"{name}: {corpus.origin}")
    if out is not None:
        write_json(out, {"written_by": WRITER} | statistics)
    columns = ["split", "documents", "sentences", "tokens", "words", "95% have", "unknown", "cut"]
    print()
    print_table(columns, rows)
    corpus = dataset.train
    words = " ".join(corpus.vocabulary[:WORDS])
    print(f"\nvocabulary ({len(corpus.vocabulary):,}):")
    say(textwrap.fill(words, 96, initial_indent="  ", subsequent_indent="  "))
    # The middle of the largest document contains no title page.
    largest = int(np.argmax(np.diff(corpus.documents)))
    start, end = corpus.documents[largest : largest + 2].tolist()
    middle = range(start, end)[max(0, (end - start - SENTENCES) // 2) :][:SENTENCES]
    print(f"\nsentences {middle[0]} to {middle[-1]}:")
    for i in middle:
        say(textwrap.fill(corpus.text(i), 96, initial_indent="- ", subsequent_indent="  "))
