"""A run's images for its page: training images with their views, and nearest neighbours."""

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hypersphere_jax import augment, data, plots
from hypersphere_jax.augment.host import middle_crop
from hypersphere_jax.augment.recipes import Recipe
from hypersphere_jax.configs import PretrainConfig, UserError
from hypersphere_jax.data import Dataset, Source
from hypersphere_jax.data.pipeline import BadImages, Batch, TwoCrops, read
from hypersphere_jax.data.subsets import Concatenated, Subset
from hypersphere_jax.evaluate.features import joined, make_forward
from hypersphere_jax.files import write_json
from hypersphere_jax.training import run_folder, sharding
from hypersphere_jax.training.run_folder import Encoder

logger = logging.getLogger("hypersphere_jax")

VIEWS, NEIGHBOURS = "augmented_views.png", "nearest_neighbours.png"  # files of `figures/`
SENTENCE_TABLE = "nearest_sentences.json"
IMAGES = 12  # that are shown with their views
QUERIES, NEAREST, SENTENCES = 8, 6, 3
BANK = 2000  # training images or sentences, at most, among which neighbours are sought
LETTERS = 12  # of a name above an image, at most
SIDE = 64  # pixels of an image on a page, at most


def draw(folder: str | Path, config: PretrainConfig | None = None, redraw: bool = True) -> None:
    """Draws a run's augmented views and nearest neighbours into its `figures/`.

    Of sentences the neighbours alone, as a table. What cannot be drawn is warned of, and an older
    picture stays.

    Args:
      folder: of the run.
      config: of the run, with what is the user's own in it; None: as it is on disk.
      redraw: also what is drawn already.
    """
    folder = Path(folder)
    try:
        own, config = config, config or run_folder.read_config(folder)
        names = [SENTENCE_TABLE] if config.reads_text else [VIEWS, NEIGHBOURS]
        files = {name: folder / "figures" / name for name in names}
        files = {name: file for name, file in files.items() if redraw or not file.is_file()}
        if not files:
            return
        dataset = run_folder.load_data(folder) if own is None else data.load(config)
        if VIEWS in files:
            draw_views(config, dataset, files.pop(VIEWS))
        for file in files.values():
            encoder = run_folder.load_encoder(folder, config=config)
            (write_sentences if config.reads_text else draw_neighbours)(encoder, dataset, file)
    except (UserError, OSError, ValueError, RuntimeError) as error:  # such as too little memory
        logger.warning("%s: its page lacks pictures of images: %s", folder, error)


def draw_views(config: PretrainConfig, dataset: Dataset, path: Path | None = None) -> Any:
    """Some of the images that a run trains on, each with two views as the network sees them."""
    source, size, recipe = dataset.pretrain, config.image_size, augment.recipe_of(config)
    numbers, bad = spread(len(source), IMAGES), BadImages(source, config.bad_images)
    images, names = read_images(source, numbers, bad)
    views = random_views(source, images, recipe, size, config.seed, config.extra_channels)
    low, high = min(0.0, views.min()), max(1.0, views.max())  # of one's own function
    views = np.round(255 * (views - low) / (high - low)).astype(np.uint8)
    how = f"own {config.augment}" if config.augment else f"recipe {config.recipe}"
    title = f"{config.name}: views by {how}, {size} pixels"
    shown = np.array([[_small(view) for view in pair] for pair in views])
    return plots.view_sheet(title, names, list(map(_small, images)), shown, path)


def draw_neighbours(encoder: Encoder, dataset: Dataset, path: Path | None = None) -> Any:
    """Images of the test split, each with its nearest training images by the cosine of outputs.

    Queries are spread over the classes. Without a test split they are training images, too.
    """
    source, found = _neighbours(encoder, dataset, NEAREST)
    rows, bad = [], BadImages(source, "skip")
    for numbers, cosines in found:
        images, names = read_images(source, numbers, bad)
        label, *others = source.labels[numbers].tolist()
        right = [None if min(label, other) < 0 else other == label for other in others]
        details = zip(map(_small, images), names, [None, *right], [None, *cosines], strict=True)
        rows.append(list(details))
    what = "training" if dataset.test is None else "test"
    title = f"{encoder.config.name}, step {encoder.step}: {what} images, each with its nearest"
    title += f" (cosine) of {min(BANK, len(dataset.train)):,} training images"
    return plots.neighbour_sheet(title, rows, path)


def write_sentences(encoder: Encoder, dataset: Dataset, path: Path) -> None:
    """Held-out sentences, each with its nearest training sentences, as JSON."""
    source, found = _neighbours(encoder, dataset, SENTENCES)
    rows: list[list] = []
    for numbers, cosines in found:
        texts = [_text(source, number) for number in numbers]
        firsts = [texts[0], *[""] * (len(cosines) - 1)]
        rows += map(list, zip(firsts, texts[1:], map(float, cosines), strict=True))
    columns = ["sentence", f"nearest of {min(BANK, len(dataset.train)):,}", "cosine"]
    write_json(path, {"columns": columns, "rows": rows})


def _neighbours(
    encoder: Encoder, dataset: Dataset, count: int
) -> tuple[Concatenated, list[tuple[np.ndarray, np.ndarray]]]:
    """A source of bank and queries; of each query the numbers, its own first, and the cosines."""
    train, queries = dataset.train, dataset.test or dataset.train
    bank = Subset(train, spread(len(train), BANK), "a sample")
    asked = np.argsort(queries.labels, kind="stable")[spread(len(queries), QUERIES)]
    source = Concatenated([bank, Subset(queries, asked, "queries")])
    features, numbers = _outputs(encoder, source)
    # Outputs without a unit norm, and those of the two encoders of sentences beside each other.
    features = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    members, rows = np.flatnonzero(numbers < len(bank)), np.flatnonzero(numbers >= len(bank))
    similarity = features[rows] @ features[members].T
    if dataset.test is None:
        same = asked[numbers[rows] - len(bank)][:, None] == bank.indices[numbers[members]]
        similarity[same] = -np.inf
    nearest = np.argsort(-similarity, axis=1, kind="stable")[:, :count]
    found = []
    for row, places, cosines in zip(rows, nearest, similarity, strict=True):
        places = places[cosines[places] > -np.inf]
        found.append((numbers[[row, *members[places]]], cosines[places]))
    return source, found


def _text(source: Concatenated, number: int) -> str:
    bank, queries = source.sources
    part: Any
    part, place = (bank, number) if number < len(bank) else (queries, number - len(bank))
    return part.source.text(part.indices[place])


def spread(n: int, count: int) -> np.ndarray:
    """At most so many numbers below n, evenly spread."""
    count = min(count, n)
    return np.arange(count) * n // max(1, count)


def read_images(
    source: Source, numbers: Iterable[int], bad: BadImages
) -> tuple[list[np.ndarray], list[str]]:
    """Images of a source, or the next that can be read, with names: of class, file or number.

    Raises:
      UserError: as `bad` does.
    """
    images, names = [], []
    for number in numbers:
        sample, missing = read(source, int(number))
        bad.report(missing)
        images.append(sample["image"])
        label, file = sample["label"], Path(sample.get("file", f"image {sample['index']}")).stem
        # Of long names of files the ends differ.
        short = file if len(file) <= LETTERS else f"…{file[1 - LETTERS :]}"
        names.append(source.class_names[label] if label >= 0 else short)
    return images, names


def random_views(
    source: Source, images: list[np.ndarray], recipe: Recipe, size: int, seed: int, extra: int
) -> np.ndarray:
    """Two views of each image `[n, 2, size, size, c]`, without the recipe's normalization."""
    train: Any = recipe.train
    if not callable(train):
        train = tuple(step for step in train if step[0] != "normalize")
    shown, cropped = Recipe(train, ()), source.image_shape is None
    transform = augment.make_augment(shown, size, cropped=cropped, extra_channels=extra)
    if cropped:
        prepare = TwoCrops(augment.host_crops(recipe, size)[0], seed)
        images = [prepare(image, 0, position) for position, image in enumerate(images)]
    key, positions = jax.random.key(seed), jnp.arange(len(images))
    two_views = jax.jit(lambda images: augment.two_views(transform, key, images, positions))
    return np.stack(two_views(np.stack(images)), axis=1)


def _outputs(encoder: Encoder, source: Source) -> tuple[np.ndarray, np.ndarray]:
    """Outputs `[n, dim]` of the images that can be read, and their numbers `[n]`."""
    devices, numbers = sharding.local_devices(1), []
    read_batches, forward = make_forward(
        encoder.apply, encoder.config, source, devices, {"output": "none"}
    )

    def noted() -> Iterator[Batch]:
        for batch in read_batches():
            numbers.append(batch.indices[batch.indices >= 0])
            yield batch

    (layers,), _ = joined(forward(encoder.params, encoder.stats, noted()))
    return layers["output"], np.concatenate(numbers)


def _small(image: np.ndarray) -> np.ndarray:
    """An image uint8 `[h, w, c]` with values in [0, 1]; of a large one the middle, made smaller."""
    if min(image.shape[:2]) > SIDE:
        image = middle_crop(image, size=SIDE, factor=1.0)
    return image / 255
