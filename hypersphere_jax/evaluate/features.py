"""Features of a whole split, computed once over all devices and kept on disk."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np

from hypersphere_jax import __version__, augment, models
from hypersphere_jax.config import UserError, require, to_dict
from hypersphere_jax.data import Source
from hypersphere_jax.data.batches import eval_batches, two_crops
from hypersphere_jax.data.pipeline import DECODER
from hypersphere_jax.evaluate import feature_cache, forward
from hypersphere_jax.evaluate.feature_cache import Features
from hypersphere_jax.files import is_full
from hypersphere_jax.train.run_folder import Encoder

# Of outputs `[n, h, w, c]`; all are flattened after it.
POOLS: dict[str, Callable] = {
    "none": lambda x: x,
    "mean": lambda x: jnp.mean(x, axis=(1, 2)),
    "max": lambda x: jnp.max(x, axis=(1, 2)),
}
# Of the model's config, what shapes no output of a trained encoder.
TRAINING_ONLY = ("zero_init_residual", "batch_norm", "bn_groups")


class Extraction(NamedTuple):
    """Features of some layers, and how they came about."""

    features: dict[str, Features]
    pools: dict[str, str]  # how each layer was pooled: "none" where it has no space
    computed: list[str]  # layers; the others come from the cache
    seconds: float
    data_wait: float | None  # share of the time that passed waiting for images, if it computed


def split_features(
    encoder: Encoder,
    source: Source,
    layers: Sequence[str],
    devices: Sequence[jax.Device],
    pool: str = "none",
) -> dict[str, Features]:
    """Features of images as they are (without random augmentation), from the cache if it has them.

    All layers that the cache lacks are computed in one pass over the images and written to disk
    as they come: memory does not grow with the number of images, nor does it when they are used.

    Args:
      encoder: from `runs.load_encoder`.
      source: of the images.
      layers: their names; outputs are flattened, and float32.
      devices: to compute on. Their number changes no feature.
      pool: what is done over the space of an output `[h, w, c]` first: "none", "mean" or "max".

    Returns:
      The features of each layer.

    Raises:
      UserError: for a layer that the encoder does not have, or when the disk is full.
    """
    return extract(encoder, source, layers, devices, pool).features


def extract(
    encoder: Encoder,
    source: Source,
    layers: Sequence[str],
    devices: Sequence[jax.Device],
    pool: str = "none",
) -> Extraction:
    """As `split_features`, with what it computed and how long that took."""
    began = time.perf_counter()
    pools = _pools(encoder, layers, pool)
    made_of = _fingerprint(encoder, source, devices)
    files = {layer: _file(encoder, layer, pools[layer], made_of) for layer in pools}
    found = {layer: feature_cache.read(file) for layer, file in files.items()}
    missing = {layer: pools[layer] for layer in pools if found[layer] is None}
    wait = None
    if missing:
        computed, wait = _compute(encoder, source, missing, files, devices)
        found |= computed
    return Extraction(found, pools, list(missing), time.perf_counter() - began, wait)


def augmented_features(
    encoder: Encoder,
    source: Source,
    layer: str,
    devices: Sequence[jax.Device],
    seed: int,
    pool: str = "none",
) -> Callable[[int], Features]:
    """Features of one random view of each image, fresh every epoch, for probes that train on them.

    Views have the random crop and flip of the run's recipe without its colours (Wang & Isola, B.1).
    They depend on the seed, the epoch and the image's number alone.

    Args:
      encoder: from `runs.load_encoder`.
      source: of the images.
      layer: its name.
      devices: to compute on. Their number changes no view.
      seed: of the views.
      pool: as for `split_features`.

    Returns:
      Epoch, from 0, to the features, in the order of `split_features`. They lie in a temporary
      file that goes with them.

    Raises:
      UserError: for a layer that the encoder does not have, or a recipe without crop and flip.
    """
    pools = _pools(encoder, [layer], pool)
    require(not encoder.config.model.reads_text, "--augment is for images, not sentences")
    data, size = encoder.config.data, encoder.config.model.image_size
    recipe = augment.find(f"{data.recipe}:crop_flip")
    require(
        any(name in augment.MOVING for name, _ in recipe.train),
        f"--augment: the recipe {data.recipe!r} of {encoder.folder} has no random crop or flip",
    )
    cropped = source.image_shape is None
    transform = augment.make_augment(
        recipe, size, cropped=cropped, extra_channels=data.extra_channels
    )

    def outputs(apply, key, images, numbers):
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, numbers)
        return _pooled(apply(jax.vmap(transform)(keys, images)), pools)

    rows = forward.batch_size(source, devices)
    over_batches = forward.over_batches(outputs, encoder, devices, rows)
    crop = augment.host_crops(recipe, size)[0] if cropped else None

    def features(epoch: int) -> Features:
        prepare = RandomCrop(crop, seed, epoch, rows) if cropped else None
        key = jax.random.fold_in(jax.random.key(seed), epoch)
        made = over_batches(eval_batches(encoder.config, source, rows, devices, prepare), key)
        return _written(made, {layer: None})[layer]

    return features


def pair_features(
    encoder: Encoder, source: Source, devices: Sequence[jax.Device], seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Outputs of two random views of each image: positive pairs, each `[n, dim]`."""
    recipe, size = encoder.config.data.recipe, encoder.config.model.image_size
    rows, crops = forward.batch_size(source, devices), two_crops(source, recipe, size, seed)
    transform = augment.make_augment(
        recipe,
        size,
        cropped=crops is not None,
        extra_channels=encoder.config.data.extra_channels,
    )

    def outputs(apply, key, images, numbers):
        view1, view2 = augment.two_views(transform, key, images, numbers)
        return apply(view1)["output"], apply(view2)["output"]

    prepare = None if crops is None else ByNumber(crops, rows)
    batches = eval_batches(encoder.config, source, rows, devices, prepare)
    over_batches = forward.over_batches(outputs, encoder, devices, rows)
    made = over_batches(forward.shown(batches, source, rows), jax.random.key(seed))
    pairs = [views for views, _ in made]
    first, second = (np.concatenate(view) for view in zip(*pairs, strict=True))
    return first, second


@dataclasses.dataclass(frozen=True)
class ByNumber:
    """Random crops on the host by an image's number, so that the batch's size changes none."""

    crops: Callable[[np.ndarray, int, int], np.ndarray]
    rows: int

    def __call__(self, image: np.ndarray, step: int, position: int) -> np.ndarray:
        return self.crops(image, 0, step * self.rows + position)


@dataclasses.dataclass(frozen=True)
class RandomCrop:
    """One random crop of an image on the host, another one each epoch."""

    crop: Callable[[np.random.Generator, np.ndarray], np.ndarray]
    seed: int
    epoch: int
    rows: int

    def __call__(self, image: np.ndarray, step: int, position: int) -> np.ndarray:
        """uint8 `[s, s, c]`."""
        number = step * self.rows + position
        return self.crop(np.random.default_rng([self.seed, self.epoch, number]), image)


def _compute(
    encoder: Encoder,
    source: Source,
    pools: dict[str, str],
    files: dict[str, Path],
    devices: Sequence[jax.Device],
) -> tuple[dict[str, Features], float]:
    """Features of some layers, and which share of the time passed waiting for images."""
    prepare = forward.one_crop(encoder.config, source)
    as_seen = forward.as_seen(encoder.config, source)

    def outputs(apply, _, images, __):
        return _pooled(apply(as_seen(images)), pools)

    began = time.perf_counter()
    rows = forward.batch_size(source, devices)
    batches = forward.Waited(eval_batches(encoder.config, source, rows, devices, prepare))
    over_batches = forward.over_batches(outputs, encoder, devices, rows)
    made = over_batches(forward.shown(batches, source, rows), jax.random.key(0))
    try:
        found = _written(made, {layer: files[layer] for layer in pools})
    except OSError as error:
        if not is_full(error):
            raise
        raise UserError(
            f"no room is left for the features of {len(source):,} images ({', '.join(pools)}) in "
            f"{encoder.folder / 'features'}: make room there (older files in it may go), or take "
            "--pool mean or fewer --layers"
        ) from error
    return found, batches.seconds / (time.perf_counter() - began)


def _written(
    made: Iterable[tuple[dict, np.ndarray]], files: dict[str, Path | None]
) -> dict[str, Features]:
    """Writes each layer's rows to its file as they come."""
    with contextlib.ExitStack() as stack:
        writers: dict[str, feature_cache.Writer] = {}
        for layers, labels in made:
            for layer, x in layers.items():
                if layer not in writers:
                    opened = feature_cache.writer(files[layer], x.shape[1])
                    writers[layer] = stack.enter_context(opened)
                writers[layer].add(x, labels)
        return {layer: writers[layer].finish() for layer in files}


def _pooled(outputs: dict[str, jax.Array], pools: dict[str, str]) -> dict[str, jax.Array]:
    """The layers that `pools` names, each float32 `[n, d]`."""
    found = {layer: POOLS[pool](outputs[layer]) for layer, pool in pools.items()}
    return {layer: jnp.reshape(x, (len(x), -1)) for layer, x in found.items()}


def _pools(encoder: Encoder, layers: Sequence[str], pool: str) -> dict[str, str]:
    """How each layer is pooled: not at all where an output has no space.

    Raises:
      UserError: for a layer that the encoder does not have, with the nearest name.
    """
    require(pool in POOLS, f"--pool {pool}: choose one of {', '.join(POOLS)}")
    for layer in layers:
        models.check_layer(encoder.config.model, layer)
    shapes = models.layers(encoder.config.model)
    return {layer: pool if len(shapes[layer]) == 3 else "none" for layer in layers}


def _file(encoder: Encoder, layer: str, pool: str, made_of: str) -> Path:
    name = layer if pool == "none" else f"{layer}-{pool}"
    return encoder.folder / "features" / f"{name}-{made_of}.npy"


@functools.cache
def _code() -> str:
    """Digest of the modules that make features of images and weights: they may be edited."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256(__version__.encode())
    for part in ("models", "augment", "evaluation"):
        for file in sorted((package / part).rglob("*.py")):
            if part != "evaluation" or file.name in ("features.py", "forward.py"):
                digest.update(file.read_bytes())
    return digest.hexdigest()


def _fingerprint(encoder: Encoder, source: Source, devices: Sequence[jax.Device]) -> str:
    """Changes with everything that shapes the features, but for the layer and its pooling."""
    config, digest = encoder.config, hashlib.sha256()
    model = {k: v for k, v in to_dict(config.model).items() if k not in TRAINING_ONLY}
    flags = [jax.config.jax_default_matmul_precision, jax.config.jax_enable_x64]
    recipe = None if config.model.reads_text else augment.find(config.data.recipe).evaluate
    versions = [_code(), jax.__version__, jaxlib.__version__, DECODER, devices[0].device_kind]
    shaping = [*versions, *flags, source.digest, recipe, config.data.extra_channels, model]
    digest.update(json.dumps(shaping).encode())
    for array in jax.tree.leaves((encoder.params, encoder.stats)):
        digest.update(np.ascontiguousarray(array).view(np.uint8))
    return digest.hexdigest()[:16]
