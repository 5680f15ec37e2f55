"""Pictures of a run's data: augmented views, and nearest neighbours of its outputs."""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

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


def draw_pictures(folder: Path, config: PretrainConfig | None = None, redraw: bool = True) -> None:
    """Draw views and neighbours of a run into its figures/, or log a warning.

    Args:
      folder: Folder of the run.
      config: Config of the run with custom functions; defaults to config.json.
      redraw: Replace existing pictures.
    """
    try:
        saved = config or run_dir.read_config(folder)
        draw = {"augmented_views.png": draw_views, "nearest_neighbours.png": draw_neighbours}
        if saved.reads_text:
            draw = {"nearest_sentences.json": write_sentences}
        missing = [name for name in draw if redraw or not (folder / "figures" / name).is_file()]
        if missing:
            dataset = run_dir.open_data(config) if config else run_dir.load_data(folder)
            encoder = run_dir.load_encoder(folder, config=saved)
            for name in missing:
                draw[name](encoder, dataset, folder / "figures" / name)
    except (UserError, OSError, ValueError, RuntimeError) as error:  # e.g. out of memory
        logger.warning("%s: its page has no pictures of the data: %s", folder, error)


def draw_views(encoder: RunEncoder, dataset: Dataset, path: Path | None = None) -> Any:
    """Draw training images, each with two random views as the network receives them."""
    config = encoder.config
    size = config.image_size
    images, names = spread_images(dataset.pretrain, IMAGES, config.bad_images)
    recipe = augment.recipe_of(config)
    views = random_views(images, recipe, size, config.seed, config.extra_channels)
    low = min(0.0, views.min())  # a user's function may have any range
    high = max(1.0, views.max())
    title = f"{config.name}: views by {config.augment or config.recipe}, {size} pixels"
    images = [image / 255 for image in images]
    return plots.view_sheet(title, names, images, (views - low) / (high - low), path)


def draw_neighbours(encoder: RunEncoder, dataset: Dataset, path: Path | None = None) -> Any:
    """Draw test images, each with the training images of the highest cosine similarity.

    The queries are spread over the classes. Without a test split they are training images.
    """
    train = dataset.train
    queries = dataset.test or train
    rows = []
    for query, members, cosines in _nearest(encoder, train, queries, NEIGHBOURS):
        rows.append(_tiles(queries, [query], [None]) + _tiles(train, members, cosines))
    title = f"{encoder.config.name}, step {encoder.step}: nearest of {_bank(train)} training images"
    return plots.neighbour_sheet(title, rows, path)


def _tiles(source: Source, numbers: Sequence[int], cosines: Sequence[float | None]) -> list[Tile]:
    images, names = _read_images(source, numbers, "skip")
    parts = zip(images, names, source.labels[numbers], cosines, strict=True)
    return [Tile(image / 255, *rest) for image, *rest in parts]


def write_sentences(encoder: RunEncoder, dataset: Dataset, path: Path) -> None:
    """Write held-out sentences, each with its nearest training sentences, as JSON."""
    train: Any = dataset.train
    queries: Any = dataset.test or train
    rows = []
    for query, members, cosines in _nearest(encoder, train, queries, SENTENCES):
        for number, cosine in zip(members, cosines, strict=True):
            rows.append([queries.text(query), train.text(number), float(cosine)])
    columns = ["sentence", f"nearest of {_bank(train)}", "cosine"]
    write_json(path, {"columns": columns, "rows": rows})


def _bank(train: Source) -> str:
    return f"{min(BANK, len(train)):,}"


def _nearest(
    encoder: RunEncoder, train: Source, queries: Source, count: int
) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """Return a few queries with the indices and the cosines of their nearest training samples."""
    by_class = np.argsort(queries.labels, kind="stable")
    asked = by_class[spread(len(queries), QUERIES)]
    bank = spread(len(train), BANK)
    sample = Concatenated([Subset(train, bank, "a sample"), Subset(queries, asked, "queries")])
    features, numbers = _outputs(encoder, sample)
    is_member = numbers < len(bank)
    members = bank[numbers[is_member]]
    found = []
    for number, query in zip(numbers[~is_member] - len(bank), features[~is_member], strict=True):
        cosines = features[is_member] @ query
        order = np.argsort(-cosines, kind="stable")
        if queries is train:
            order = order[members[order] != asked[number]]  # not the query itself
        nearest = order[:count]
        found.append((int(asked[number]), members[nearest], cosines[nearest]))
    return found


def _outputs(encoder: RunEncoder, source: Source) -> tuple[np.ndarray, np.ndarray]:
    """Return outputs `[n, dim]` of unit norm of the readable samples, and their indices `[n]`."""
    devices = distributed.local_devices(1)
    extractor = Extractor(encoder.apply, encoder.config, source, devices, {"output": "none"})
    batches = list(extractor.read())
    (layers,), _ = concatenate_layers(extractor.forward(encoder.params, encoder.stats, batches))
    indices = np.concatenate([batch.indices for batch in batches])
    norms = np.linalg.norm(layers["output"], axis=1, keepdims=True)
    return layers["output"] / np.maximum(norms, 1e-12), indices[indices >= 0]


def spread(n: int, count: int) -> np.ndarray:
    """Return at most `count` evenly spread indices below n."""
    count = min(count, n)
    return np.arange(count) * n // max(1, count)


def spread_images(
    source: Source, count: int, on_bad: Literal["error", "skip"]
) -> tuple[list[np.ndarray], list[str]]:
    """Read at most `count` evenly spread images, and name each by its class, file or index."""
    return _read_images(source, spread(len(source), count), on_bad)


def _read_images(
    source: Source, numbers: Iterable[int], on_bad: Literal["error", "skip"]
) -> tuple[list[np.ndarray], list[str]]:
    bad = BadImages(source, on_bad)
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
    images: list[np.ndarray], recipe: Recipe, size: int, seed: int, extra_channels: int
) -> np.ndarray:
    """Return two views of each image `[n, 2, size, size, c]`, without normalization."""
    train: Any = recipe.train
    if not callable(train):
        train = tuple(step for step in train if step[0] != "normalize")
    cropped = len({image.shape for image in images}) > 1
    if cropped:
        crops = TwoCrops(augment.host_crops(recipe, size)[0], seed)
        images = [crops(image, 0, position) for position, image in enumerate(images)]
    transform = augment.make_augment(
        Recipe(train, ()), size, cropped=cropped, extra_channels=extra_channels
    )
    views = jax.jit(
        lambda images, positions: augment.two_views(
            transform, jax.random.key(seed), images, positions
        )
    )
    return np.stack(views(np.stack(images), jnp.arange(len(images))), axis=1)
