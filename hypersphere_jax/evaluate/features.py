"""Features of a data set: layers of images as evaluation sees them, of random views, of pairs."""

import functools
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hypersphere_jax import __version__, augment, models
from hypersphere_jax.configs import (
    DataConfig,
    ModelConfig,
    PretrainConfig,
    require,
    section,
    to_dict,
)
from hypersphere_jax.configs.base import holds_custom
from hypersphere_jax.data import Source
from hypersphere_jax.data.pipeline import Batch, TwoCrops
from hypersphere_jax.evaluate import feature_cache
from hypersphere_jax.evaluate.feature_cache import Features
from hypersphere_jax.training import distributed
from hypersphere_jax.training.batches import eval_batches
from hypersphere_jax.training.run_dir import RunEncoder
from hypersphere_jax.utils.terminal import track

PER_DEVICE = 256  # images at once, at most: enough to fill a device, little enough to fit
# Of outputs `[n, h, w, c]`; all are flattened after it.
POOLS: dict[str, Callable] = {
    "none": lambda x: x,
    "mean": lambda x: jnp.mean(x, axis=(1, 2)),
    "max": lambda x: jnp.max(x, axis=(1, 2)),
}

# A dict of layers `[b, d]` of each view of the images, and the labels `[b]`.
Layers = tuple[tuple[dict[str, np.ndarray], ...], np.ndarray]


class Extraction(NamedTuple):
    """Features of some layers, and how they were made."""

    features: dict[str, Features]  # by layer
    pools: dict[str, str]  # how each layer was pooled: "none" where it has no space
    computed: list[str]  # layers; the others come from the cache
    seconds: float
    data_wait: float | None  # share of the time that passed waiting for images, if it computed


def make_forward(
    apply: Callable,
    config: PretrainConfig,
    source: Source,
    devices: Sequence[jax.Device],
    pools: Mapping[str, str],
    views: Literal["evaluation", "random", "pairs"] = "evaluation",
    seed: int = 0,
) -> tuple[Callable[..., Iterator[Batch]], Callable[..., Iterator[Layers]]]:
    """Makes two functions: one reads the images of a source, one computes layers of them.

    Args:
      apply: of the network, see `models.create`.
      config: of its run, with all sizes filled in.
      source: of images, or of sentences.
      devices: of this process. Their number changes no view and no feature.
      pools: the layers to compute, and how each is pooled: a key of `POOLS`.
      views: "evaluation": the image as it is; "random": one view by the crop and flip of the
        recipe, without its colours; "pairs": two views by the whole recipe.
      seed: of random views, with the epoch and the image's number.

    Returns:
      `read(epoch=0)`, the batches, and `forward(params, stats, batches, epoch=0)`: batch by batch
      the layers of each view and the labels, on the host, of the images that could be read.
    """
    config = config.replace(source=None)  # other images share compiled programs
    side = None if config.reads_text else config.image_size
    size = batch_size(source, devices)
    cropped = source.image_shape is None
    data_config = section(config, DataConfig)
    made_of = apply, data_config, side, cropped, views
    map_layers = _mapped_layers.__wrapped__ if holds_custom(config) else _mapped_layers
    mapped = map_layers(*made_of, tuple(pools.items()), tuple(devices))

    def read(epoch: int = 0) -> Iterator[Batch]:
        crop = None
        if cropped:
            crops = augment.host_crops(_recipe(data_config, views), side)
            crop = functools.partial(_cropped, crops, views, seed, epoch, size)
        return eval_batches(config, source, size, devices, crop)

    def forward(params, stats, batches: Iterable[Batch], epoch: int = 0) -> Iterator[Layers]:
        key = jax.random.key(seed)
        key = jax.random.fold_in(key, epoch) if views == "random" else key
        shared, before = distributed.replicate(((params, stats), key), devices), None
        for number, batch in enumerate(batches):
            numbers = np.arange(size, dtype=np.int32) + number * size
            padding = [(0, size - len(batch.images)), *[(0, 0)] * (batch.images.ndim - 1)]
            parts = [np.pad(batch.images, padding), numbers]
            parts = [part.reshape(len(devices), -1, *part.shape[1:]) for part in parts]
            result = mapped(shared, *distributed.split(parts, devices))
            # One batch computes while the one before comes to the host.
            if before is not None:
                yield _on_host(*before)
            before = result, batch
        yield _on_host(*before)

    return read, forward


@functools.lru_cache(maxsize=8)  # encoders of one network share compiled programs
def _mapped_layers(
    apply: Callable, data: DataConfig, side: int | None, cropped: bool, views: str, pools, devices
) -> Callable:
    """((weights, key), images, their numbers) -> layers of each view, on a device.

    `side` is that of the network's images; None: of sentences.
    """
    options = {"cropped": cropped, "extra_channels": data.extra_channels}

    def make_views(key, images, numbers) -> Sequence[jax.Array]:
        if side is None:
            return [images]
        recipe = _recipe(data, views)
        if views == "evaluation":
            return [jax.vmap(augment.make_evaluate(recipe, side, **options))(images)]
        transform = augment.make_augment(recipe, side, **options)
        if views == "pairs":
            return augment.two_views(transform, key, images, numbers)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, numbers)
        return [jax.vmap(transform)(keys, images)]

    def per_device(shared, images, numbers):
        weights, key = shared
        layers = []
        for view in make_views(key, images, numbers):
            outputs, _ = apply(*weights, view, False)
            pooled = {layer: POOLS[pool](outputs[layer]) for layer, pool in pools}
            layers.append({layer: x.reshape(len(view), -1) for layer, x in pooled.items()})
        return tuple(layers)

    return distributed.pmap(per_device, devices)


def _recipe(data: DataConfig, views: str) -> augment.Recipe:
    recipe = augment.recipe_of(data)
    return augment.crop_flip(recipe) if views == "random" else recipe


def batch_size(source: Source, devices: Sequence[jax.Device]) -> int:
    """Images at once, a multiple of the devices."""
    return min(PER_DEVICE, -(-len(source) // len(devices))) * len(devices)


def joined(batches: Iterable[Layers]) -> Layers:
    """The layers of each view, and the labels, of all batches."""
    return jax.tree.map(lambda *parts: np.concatenate(parts), *batches)


@distributed.isolated()
def split_features(
    encoder: RunEncoder,
    source: Source,
    layers: Sequence[str],
    devices: Sequence[jax.Device],
    pool: str = "none",
) -> Extraction:
    """Features of images without random augmentation, from the cache if it has them.

    The other layers are computed in one pass over the images and written to disk batch by batch.
    Outputs are flattened, and float32; `pool` is over the space of outputs `[h, w, c]`: "none",
    "mean" or "max". The number of devices changes no feature.

    Raises:
      UserError: for a layer that the encoder does not have.
    """
    began, wait = time.perf_counter(), None
    pools, key = _pools(encoder, layers, pool), _cache_key(encoder, source, devices)
    names = {layer: layer if how == "none" else f"{layer}-{how}" for layer, how in pools.items()}
    files = {layer: encoder.folder / "features" / f"{names[layer]}-{key}.npy" for layer in pools}
    config = encoder.config
    if config.network is not None or config.preprocess is not None:
        files = dict.fromkeys(pools)  # the user's own code may change: a temporary file
    features = {layer: file and feature_cache.read(file) for layer, file in files.items()}
    missing = [layer for layer in pools if features[layer] is None]
    if missing:
        computed = {layer: pools[layer] for layer in missing}
        read, forward = make_forward(encoder.apply, encoder.config, source, devices, computed)
        waits: list[float] = []
        batches = _tracked(_timed(read(), waits), source, devices)
        layers_of_batches = forward(encoder.params, encoder.stats, batches)
        files = {layer: files[layer] for layer in missing}
        features |= feature_cache.write(layers_of_batches, files)
        wait = sum(waits) / (time.perf_counter() - began)
    return Extraction(features, pools, missing, time.perf_counter() - began, wait)


def augmented_features(
    encoder: RunEncoder,
    source: Source,
    layer: str,
    devices: Sequence[jax.Device],
    seed: int,
    pool: str = "none",
) -> Callable[[int], Features]:
    """Maps epochs, from 0, to features of one random view of each image, in temporary files.

    Views have the random crop and flip of the run's recipe without its colours (Wang & Isola, B.1).
    Arguments and errors are those of `split_features`; sentences have no views.
    """
    pools, config = _pools(encoder, [layer], pool), encoder.config
    require(not config.reads_text, "augment= is for images, not sentences")
    read, forward = make_forward(encoder.apply, config, source, devices, pools, "random", seed)

    @distributed.isolated()
    def features(epoch: int) -> Features:
        batches = forward(encoder.params, encoder.stats, read(epoch), epoch)
        return feature_cache.write(batches, {layer: None})[layer]

    return features


def pair_features(
    encoder: RunEncoder, source: Source, devices: Sequence[jax.Device], seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Outputs of two random views of each image: positive pairs, each `[n, dim]`."""
    network, pools = (encoder.apply, encoder.config), {"output": "none"}
    read, forward = make_forward(*network, source, devices, pools, "pairs", seed)
    batches = _tracked(read(), source, devices)
    (view1, view2), _ = joined(forward(encoder.params, encoder.stats, batches))
    return view1["output"], view2["output"]


def _cropped(crops, views, seed, epoch, size, image, step, position) -> np.ndarray:
    """What the host crops of an image of any size, drawn by the image's number: uint8."""
    number = step * size + position
    random_crop, crop = crops
    if views == "evaluation":
        return crop(image)
    if views == "pairs":
        return TwoCrops(random_crop, seed)(image, 0, number)
    return random_crop(np.random.default_rng([seed, epoch, number]), image)


def _on_host(result: Any, batch: Batch) -> Layers:
    """The rows of images that could be read."""
    rows = np.flatnonzero(batch.indices >= 0)
    layers = jax.tree.map(lambda x: np.asarray(x).reshape(-1, *x.shape[2:])[rows], result)
    return layers, batch.labels[rows]


def _tracked(batches: Iterable[Batch], source: Source, devices) -> Iterator[Batch]:
    return track(batches, "features", -(-len(source) // batch_size(source, devices)))


def _timed(batches: Iterator[Batch], waits: list[float]) -> Iterator[Batch]:
    """The same batches; adds the seconds that each was waited for."""
    began = time.perf_counter()
    for batch in batches:
        waits.append(time.perf_counter() - began)
        yield batch
        began = time.perf_counter()


def _pools(encoder: RunEncoder, layers: Sequence[str], pool: str) -> dict[str, str]:
    """How each layer is pooled: not at all where an output has no space."""
    for layer in layers:
        models.check_layer(encoder.config, layer)
    shapes = models.layers(encoder.config)
    return {layer: pool if len(shapes[layer]) == 3 else "none" for layer in layers}


def _cache_key(encoder: RunEncoder, source: Source, devices: Sequence[jax.Device]) -> str:
    """Changes with all that shapes the features, but for the layer and its pooling."""
    config = encoder.config
    recipe = None if config.reads_text else augment.find(config.recipe).evaluate
    parts = [__version__, jax.__version__, devices[0].device_kind, source.digest, recipe]
    parts += [config.extra_channels, to_dict(section(config, ModelConfig))]
    digest = hashlib.sha256(json.dumps(parts).encode())
    for array in jax.tree.leaves((encoder.params, encoder.stats)):
        digest.update(np.ascontiguousarray(array).view(np.uint8))
    return digest.hexdigest()[:16]
