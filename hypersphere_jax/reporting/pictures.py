"""Pictures of a run's data: augmented views, and nearest neighbours of its outputs."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from hypersphere_jax import augment
from hypersphere_jax.augment.recipes import Recipe
from hypersphere_jax.configs import DataConfig, PretrainConfig, UserError
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


def draw_views(encoder: RunEncoder, dataset: Dataset, path: Path) -> None:
    """Draw training images, each with two random views as the network receives them."""
    config = encoder.config
    size = config.image_size
    title = f"{config.name}: views by {config.augment or config.recipe}, {size} pixels"
    tiles = read_tiles(dataset.pretrain, spread(len(dataset.pretrain), IMAGES), config.bad_images)
    plots.view_sheet(title, tiles, random_views(tiles, config, size, config.seed), path)


def draw_neighbours(encoder: RunEncoder, dataset: Dataset, path: Path | None = None) -> Any:
    """Draw test images, each with the training images of the highest cosine similarity.

    The queries are spread over the classes. Without a test split they are training images.
    """
    train = dataset.train
    queries = dataset.test or train
    rows = []
    for query, members, cosines in _nearest(encoder, train, queries, NEIGHBOURS):
        neighbours = read_tiles(train, members, "skip")
        row = [tile._replace(cosine=x) for tile, x in zip(neighbours, cosines, strict=True)]
        rows.append(read_tiles(queries, [query], "skip") + row)
    title = f"{encoder.config.name}, step {encoder.step}: nearest of {_bank(train)} training images"
    return plots.neighbour_sheet(title, rows, path)


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
    return np.arange(min(count, n)) * n // min(count, n)


def read_tiles(
    source: Source, numbers: Sequence[int] | np.ndarray, on_bad: Literal["error", "skip"]
) -> list[Tile]:
    """Read images, and name each by its class, file or index."""
    bad = BadImages(source, on_bad)
    tiles = []
    for number in numbers:
        sample, missing = read(source, int(number))
        bad.report(missing)
        name = Path(sample.get("file", f"image {sample['index']}")).stem
        if sample["label"] >= 0:
            name = source.class_names[sample["label"]]
        tiles.append(Tile(sample["image"], name, sample["label"]))
    return tiles


def random_views(tiles: Sequence[Tile], config: DataConfig, size: int, seed: int) -> np.ndarray:
    """Return two views of each image `[n, 2, size, size, c]` in [0, 1], without normalization."""
    recipe = augment.recipe_of(config)
    train: Any = recipe.train
    if not callable(train):
        train = tuple(step for step in train if step[0] != "normalize")
    images = [tile.image for tile in tiles]
    is_cropped = len({image.shape for image in images}) > 1
    if is_cropped:
        crops = TwoCrops(augment.host_crops(recipe, size)[0], seed)
        images = [crops(image, 0, position) for position, image in enumerate(images)]
    options = {"cropped": is_cropped, "extra_channels": config.extra_channels}
    transform = augment.make_augment(Recipe(train, ()), size, **options)
    draw = jax.jit(augment.two_views, static_argnums=0)
    views = draw(transform, jax.random.key(seed), np.stack(images), jnp.arange(len(images)))
    low = np.minimum(0, np.min(views))  # a user's function may have any range
    high = np.maximum(1, np.max(views))
    return (np.stack(views, axis=1) - low) / (high - low)
