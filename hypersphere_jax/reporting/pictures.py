"""Pictures of a run's data: augmented views, and nearest neighbours of its outputs."""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hypersphere_jax import augment
from hypersphere_jax.augment.recipes import Recipe
from hypersphere_jax.configs import PretrainConfig, UserError
from hypersphere_jax.data import Dataset, Source
from hypersphere_jax.data.pipeline import BadImages, TwoCrops, read
from hypersphere_jax.data.subsets import Concatenated, Subset
from hypersphere_jax.evaluation.features import Extractor, concatenate_layers
from hypersphere_jax.reporting import plots
from hypersphere_jax.reporting.plots.images import Tile
from hypersphere_jax.training import distributed, run_dir
from hypersphere_jax.training.run_dir import RunEncoder
from hypersphere_jax.utils.files import write_json

logger = logging.getLogger("hypersphere_jax")

IMAGES = 12  # images shown with their views
QUERIES = 8
NEIGHBOURS = 6  # per image
SENTENCES = 3  # neighbours per sentence
BANK = 2000  # maximum number of training samples among which neighbours are searched


def draw_pictures(
    folder: str | Path, config: PretrainConfig | None = None, redraw: bool = True
) -> None:
    """Draw views and neighbours of a run into its figures/, or log a warning.

    Args:
      folder: Folder of the run.
      config: Config of the run with custom functions; defaults to config.json.
      redraw: Replace existing pictures.
    """
    folder = Path(folder)
    try:
        saved = config or run_dir.read_config(folder)
        drawn = {"augmented_views.png": draw_views, "nearest_neighbours.png": draw_neighbours}
        if saved.reads_text:
            drawn = {"nearest_sentences.json": write_sentences}
        files = {folder / "figures" / name: draw for name, draw in drawn.items()}
        missing = {file: draw for file, draw in files.items() if redraw or not file.is_file()}
        if missing:
            dataset = run_dir.open_data(config) if config else run_dir.load_data(folder)
            encoder = run_dir.load_encoder(folder, config=saved)
            for file, draw in missing.items():
                draw(encoder, dataset, file)
    except (UserError, OSError, ValueError, RuntimeError) as error:  # e.g. out of memory
        logger.warning("%s: its page has no pictures of the data: %s", folder, error)


def draw_views(encoder: RunEncoder, dataset: Dataset, path: Path | None = None) -> Any:
    """Draw training images, each with two random views as the network receives them."""
    config = encoder.config
    source = dataset.pretrain
    size = config.image_size
    bad = BadImages(source, config.bad_images)
    images, names = read_images(source, spread(len(source), IMAGES), bad)
    recipe = augment.recipe_of(config)
    views = random_views(source, images, recipe, size, config.seed, config.extra_channels)
    low = min(0.0, views.min())  # a user's function may have any range
    high = max(1.0, views.max())
    title = f"{config.name}: views by {config.augment or config.recipe}, {size} pixels"
    images = [image / 255 for image in images]
    return plots.view_sheet(title, names, images, (views - low) / (high - low), path)


def draw_neighbours(encoder: RunEncoder, dataset: Dataset, path: Path | None = None) -> Any:
    """Draw test images, each with the training images of the highest cosine similarity.

    The queries are spread over the classes. Without a test split they are training images.
    """
    source, found = _nearest(encoder, dataset, NEIGHBOURS)
    bad = BadImages(source, "skip")
    rows = []
    for numbers, cosines in found:
        images, names = read_images(source, numbers, bad)
        parts = zip(images, names, source.labels[numbers], [None, *cosines], strict=True)
        rows.append([Tile(image / 255, *rest) for image, *rest in parts])
    bank = min(BANK, len(dataset.train))
    title = f"{encoder.config.name}, step {encoder.step}: nearest of {bank:,} training images"
    return plots.neighbour_sheet(title, rows, path)


def write_sentences(encoder: RunEncoder, dataset: Dataset, path: Path) -> None:
    """Write held-out sentences, each with its nearest training sentences, as JSON."""
    source, found = _nearest(encoder, dataset, SENTENCES)
    parts: Any = source.sources
    texts = [part.source.text(index) for part in parts for index in part.indices]
    rows = []
    for (query, *neighbours), cosines in found:
        for number, cosine in zip(neighbours, cosines, strict=True):
            rows.append([texts[query], texts[number], float(cosine)])
    columns = ["sentence", f"nearest of {min(BANK, len(dataset.train)):,}", "cosine"]
    write_json(path, {"columns": columns, "rows": rows})


def _nearest(
    encoder: RunEncoder, dataset: Dataset, count: int
) -> tuple[Concatenated, list[tuple[np.ndarray, np.ndarray]]]:
    """Find the nearest training samples of a few queries by the cosine similarity.

    Returns:
      A source of bank and queries. For each query the indices of itself and of its neighbours
      `[1 + count]`, and the similarities `[count]`.
    """
    train = dataset.train
    queries = dataset.test or train
    bank = Subset(train, spread(len(train), BANK), "a sample")
    by_class = np.argsort(queries.labels, kind="stable")
    asked = by_class[spread(len(queries), QUERIES)]
    source = Concatenated([bank, Subset(queries, asked, "queries")])
    features, numbers = _outputs(encoder, source)
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    features = features / np.maximum(norms, 1e-12)
    in_bank = numbers < len(bank)
    members = numbers[in_bank]
    rows = numbers[~in_bank]
    similarity = features[~in_bank] @ features[in_bank].T
    if dataset.test is None:
        is_query_itself = asked[rows - len(bank)][:, None] == bank.indices[members]
        similarity[is_query_itself] = -np.inf
    found = []
    for row, cosines in zip(rows, similarity, strict=True):
        nearest = np.argsort(-cosines, kind="stable")[:count]
        nearest = nearest[cosines[nearest] > -np.inf]
        found.append((np.array([row, *members[nearest]]), cosines[nearest]))
    return source, found


def spread(n: int, count: int) -> np.ndarray:
    """Return at most `count` evenly spread indices below n."""
    count = min(count, n)
    return np.arange(count) * n // max(1, count)


def read_images(
    source: Source, numbers: Iterable[int], bad: BadImages
) -> tuple[list[np.ndarray], list[str]]:
    """Read images and name each by its class, file or index.

    An unreadable image is replaced by the next one, or refused by `bad` with a UserError.
    """
    images = []
    names = []
    for number in numbers:
        sample, missing = read(source, int(number))
        bad.report(missing)
        images.append(sample["image"])
        name = Path(sample.get("file", f"image {sample['index']}")).stem
        if sample["label"] >= 0:
            name = source.class_names[sample["label"]]
        names.append(name)
    return images, names


def random_views(
    source: Source, images: list[np.ndarray], recipe: Recipe, size: int, seed: int, extra: int
) -> np.ndarray:
    """Return two views of each image `[n, 2, size, size, c]`, without normalization."""
    train: Any = recipe.train
    if not callable(train):
        train = tuple(step for step in train if step[0] != "normalize")
    cropped = source.image_shape is None
    transform = augment.make_augment(Recipe(train, ()), size, cropped=cropped, extra_channels=extra)
    if cropped:
        prepare = TwoCrops(augment.host_crops(recipe, size)[0], seed)
        images = [prepare(image, 0, position) for position, image in enumerate(images)]
    key = jax.random.key(seed)
    positions = jnp.arange(len(images))
    two_views = jax.jit(lambda images: augment.two_views(transform, key, images, positions))
    return np.stack(two_views(np.stack(images)), axis=1)


def _outputs(encoder: RunEncoder, source: Source) -> tuple[np.ndarray, np.ndarray]:
    """Return outputs `[n, dim]` of the readable samples, and their indices `[n]`."""
    devices = distributed.local_devices(1)
    pools = {"output": "none"}
    extractor = Extractor(encoder.apply, encoder.config, source, devices, pools)
    batches = list(extractor.read())
    outputs = extractor.forward(encoder.params, encoder.stats, batches)
    (layers,), _ = concatenate_layers(outputs)
    indices = np.concatenate([batch.indices for batch in batches])
    return layers["output"], indices[indices >= 0]
