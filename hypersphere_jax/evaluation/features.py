"""Features of data sets: layers of an encoder for evaluation images, random views, or pairs."""

import contextlib
import functools
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hypersphere_jax import __version__, augment, models
from hypersphere_jax.configs import DataConfig, ModelConfig, PretrainConfig, require
from hypersphere_jax.configs.base import section, to_dict
from hypersphere_jax.data import Source
from hypersphere_jax.data.pipeline import Batch, TwoCrops
from hypersphere_jax.training import distributed
from hypersphere_jax.training.batches import eval_batches
from hypersphere_jax.training.run_dir import RunEncoder
from hypersphere_jax.utils import caches
from hypersphere_jax.utils.terminal import track

logger = logging.getLogger("hypersphere_jax")

PER_DEVICE = 256  # largest number of images on a device at once
POOLS: dict[str, Callable] = {"mean": jnp.mean, "max": jnp.max}  # over the positions of a layer

ViewKind = Literal["evaluation", "random", "pairs"]
# For each view of the images a dict of layers `[b, d]`, and the labels `[b]`.
Layers = tuple[tuple[dict[str, np.ndarray], ...], np.ndarray]


class Features(NamedTuple):
    """Features and labels of the images that could be read."""

    x: np.ndarray  # float32 [n, d], on disk
    labels: np.ndarray  # int32 [n]


class Extraction(NamedTuple):
    """Features of some layers, and how they were obtained."""

    features: dict[str, Features]  # by layer
    pools: dict[str, str]  # pooling of each layer, "none" for layers without space
    computed: list[str]  # layers that were not cached


class Extractor:
    """Computes layers of the images (or sentences) of a source over local devices.

    Neither views nor features depend on the number of devices.

    Args:
      apply: function of the network, see `models.create`.
      config: config of its run, with all sizes filled in.
      source: images or sentences.
      devices: local devices.
      pools: the layers to compute, and the pooling of each: "none", "mean" or "max".
      views: "evaluation" for the image as evaluation sees it; "random" for one view by the crop and
        flip of the recipe, without its colours; "pairs" for two views by the whole recipe.
      seed: seed of random views, used with the epoch and the image's number.
    """

    def __init__(
        self,
        apply: Callable,
        config: PretrainConfig,
        source: Source,
        devices: Sequence[jax.Device],
        pools: Mapping[str, str],
        views: ViewKind = "evaluation",
        seed: int = 0,
    ):
        self._config = config
        self._source = source
        self._devices = devices
        self._views = views
        self._seed = seed
        self._size = min(PER_DEVICE, -(-len(source) // len(devices))) * len(devices)
        self._is_cropped = source.image_shape is None
        self._compute = compile_layers(apply, config, self._is_cropped, views, pools, devices)
        self.indices: list[np.ndarray] = []  # images of each batch of the last `read`

    def read(self, epoch: int = 0) -> Iterator[Batch]:
        """Yield the batches of images."""
        self.indices = []
        crop = None
        if self._is_cropped:
            crops = augment.host_crops(_recipe(self._config, self._views), self._config.image_size)
            crop = functools.partial(_crop, crops, self._views, self._seed, epoch, self._size)
        batches = eval_batches(self._config, self._source, self._size, self._devices, crop)
        for batch in track(batches, "features", -(-len(self._source) // self._size)):
            self.indices.append(batch.indices[batch.indices >= 0])
            yield batch

    def forward(
        self, params: Any, stats: Any, batches: Iterable[Batch], epoch: int = 0
    ) -> Iterator[Layers]:
        """Yield the layers of each view and the labels of readable images, batch by batch."""
        key = jax.random.key(self._seed)
        if self._views == "random":
            key = jax.random.fold_in(key, epoch)
        shared = distributed.replicate(((params, stats), key), self._devices)
        previous = None
        for number, batch in enumerate(batches):
            positions = np.arange(self._size, dtype=np.int32) + number * self._size
            padded = np.zeros((self._size, *batch.images.shape[1:]), batch.images.dtype)
            padded[: len(batch.images)] = batch.images
            parts = [x.reshape(len(self._devices), -1, *x.shape[1:]) for x in (padded, positions)]
            layers = self._compute(shared, *distributed.split(parts, self._devices))
            # The devices compute one batch while the previous one is copied to the host.
            if previous is not None:
                yield _on_host(*previous)
            previous = (layers, batch)
        yield _on_host(*previous)


def compile_layers(
    apply: Callable,
    config: PretrainConfig,
    cropped: bool,
    views: ViewKind,
    pools: Mapping[str, str],
    devices: Sequence[jax.Device],
) -> Callable:
    """Return a mapped function: ((weights, key), images, positions) -> flat layers of each view.

    `cropped`: whether the host has cropped the images. For other arguments see `Extractor`.
    """
    config = config.replace(source=None)  # other images share compiled programs
    compile_cached = _compile_layers
    if config.holds_custom:
        compile_cached = _compile_layers.__wrapped__
    side = None if config.reads_text else config.image_size
    data = section(config, DataConfig)
    return compile_cached(apply, data, side, cropped, views, tuple(pools.items()), tuple(devices))


@functools.lru_cache(maxsize=8)  # encoders of one network share compiled programs
def _compile_layers(apply, data, side, cropped, views, pools, devices) -> Callable:
    def per_device(shared, images, positions):
        weights, key = shared
        layers = []
        for view in _make_views(data, side, cropped, views, key, images, positions):
            outputs, _ = apply(*weights, view, False)
            layers.append({layer: _flatten(outputs[layer], pool) for layer, pool in pools})
        return tuple(layers)

    return distributed.pmap(per_device, devices)


def _flatten(x: jax.Array, pool: str) -> jax.Array:
    """Pool a layer `[n, h, w, c]`, or the patches of a ViT `[n, 1 + patches, c]`: `[n, d]`."""
    if pool != "none":
        if x.ndim == 3:
            x = x[:, 1:, None]  # without the class token
        x = POOLS[pool](x, axis=(1, 2))
    return x.reshape(len(x), -1)


def _make_views(
    data: DataConfig, side: int | None, cropped: bool, views: ViewKind, key, images, positions
) -> Sequence[jax.Array]:
    if side is None:
        return [images]
    recipe = _recipe(data, views)
    options = {"cropped": cropped, "extra_channels": data.extra_channels}
    if views == "evaluation":
        return [jax.vmap(augment.make_evaluate(recipe, side, **options))(images)]
    transform = augment.make_augment(recipe, side, **options)
    if views == "pairs":
        return augment.two_views(transform, key, images, positions)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, positions)
    return [jax.vmap(transform)(keys, images)]


def _recipe(data: DataConfig, views: ViewKind) -> augment.Recipe:
    recipe = augment.recipe_of(data)
    return augment.crop_flip(recipe) if views == "random" else recipe


def _crop(crops, views: ViewKind, seed, epoch, size, image, step, position) -> np.ndarray:
    """Return a host crop of an image of any size, drawn by the image's number: uint8."""
    number = step * size + position
    random_crop, evaluation_crop = crops
    if views == "evaluation":
        return evaluation_crop(image)
    if views == "pairs":
        return TwoCrops(random_crop, seed)(image, 0, number)
    return random_crop(np.random.default_rng([seed, epoch, number]), image)


def _on_host(layers: Any, batch: Batch) -> Layers:
    """Return the rows of images that could be read."""
    rows = np.flatnonzero(batch.indices >= 0)
    layers = jax.tree.map(lambda x: np.asarray(x).reshape(-1, *x.shape[2:])[rows], layers)
    return layers, batch.labels[rows]


def concatenate_layers(batches: Iterable[Layers]) -> Layers:
    """Return the layers of each view, and the labels, of all batches."""
    return jax.tree.map(lambda *parts: np.concatenate(parts), *batches)


def collect_features(batches: Iterable[Layers], folder: Path | None = None) -> dict[str, Features]:
    """Return the layers of a single view on disk, in temporary files without names.

    Args:
      batches: layers and labels, see `Extractor.forward`.
      folder: existing folder of the temporary files. Defaults to the system's.
    """
    labels = []
    files: dict[str, BinaryIO] = {}
    with contextlib.ExitStack() as stack:
        for (layers,), batch_labels in batches:
            labels.append(batch_labels)
            for layer, x in layers.items():
                if layer not in files:
                    files[layer] = stack.enter_context(tempfile.TemporaryFile(dir=folder))
                files[layer].write(np.ascontiguousarray(x).data)
        y = np.concatenate(labels)
        features = {}
        for layer, file in files.items():
            file.flush()
            x = np.memmap(file, np.float32, "r").reshape(len(y), -1)
            features[layer] = Features(x, y)
        return features


@distributed.isolated()
def split_features(
    encoder: RunEncoder,
    source: Source,
    layers: Sequence[str],
    devices: Sequence[jax.Device],
    pool: str = "none",
) -> Extraction:
    """Return features of images without random augmentation, from the run's cache if possible.

    Other layers are computed in one pass over the images. Memory does not grow with the number of
    images, and features do not depend on the number of devices.

    Args:
      encoder: encoder of a run.
      source: images or sentences.
      layers: names of layers.
      devices: local devices.
      pool: pooling of layers `[h, w, c]` or `[tokens, c]` before flattening: "none", "mean" or
        "max".

    Raises:
      UserError: for a layer that the encoder does not have.
    """
    pools = _layer_pools(encoder, layers, pool)
    files = _cache_files(encoder, source, devices, pools)
    cached = {layer: caches.read(file) for layer, file in files.items()}
    features = {layer: Features(*arrays) for layer, arrays in cached.items() if arrays is not None}
    missing = {layer: pools[layer] for layer in pools if layer not in features}
    if missing:
        extractor = Extractor(encoder.apply, encoder.config, source, devices, missing)
        batches = extractor.forward(encoder.params, encoder.stats, extractor.read())
        folder = encoder.folder / "features"
        with contextlib.suppress(OSError):
            folder.mkdir(exist_ok=True)
        found = collect_features(batches, folder if os.access(folder, os.W_OK) else None)
        try:
            for layer, arrays in found.items():
                if files[layer] is not None:
                    caches.write(files[layer], *arrays)
        except OSError as error:
            logger.warning("features are not cached: %s", error)
        features |= found
    return Extraction(features, pools, list(missing))


def augmented_features(
    encoder: RunEncoder,
    source: Source,
    layer: str,
    devices: Sequence[jax.Device],
    seed: int,
    pool: str = "none",
) -> Callable[[int], Features]:
    """Return a function of epochs, from 0, to features of one random view of each image.

    Views have the random crop and flip of the run's recipe without its colours (Wang & Isola, B.1).
    See `split_features` for arguments and errors; sentences have no views.
    """
    require(not encoder.config.reads_text, "augment= is for images, not sentences")
    pools = _layer_pools(encoder, [layer], pool)
    extractor = Extractor(
        encoder.apply, encoder.config, source, devices, pools, views="random", seed=seed
    )

    @distributed.isolated()
    def features(epoch: int) -> Features:
        batches = extractor.forward(encoder.params, encoder.stats, extractor.read(epoch), epoch)
        return collect_features(batches)[layer]

    return features


def pair_features(
    encoder: RunEncoder, source: Source, devices: Sequence[jax.Device], seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return outputs of two random views of each image: positive pairs, each `[n, dim]`."""
    pools = {"output": "none"}
    extractor = Extractor(
        encoder.apply, encoder.config, source, devices, pools, views="pairs", seed=seed
    )
    batches = extractor.forward(encoder.params, encoder.stats, extractor.read())
    (view1, view2), _ = concatenate_layers(batches)
    return view1["output"], view2["output"]


def _layer_pools(encoder: RunEncoder, layers: Sequence[str], pool: str) -> dict[str, str]:
    """Return the pooling of each layer, "none" for vectors."""
    for layer in layers:
        models.check_layer(encoder.config, layer)
    shapes = models.layers(encoder.config)
    spatial = [layer for layer in layers if len(shapes[layer]) > 1]
    return dict.fromkeys(layers, "none") | dict.fromkeys(spatial, pool)


def _cache_files(
    encoder: RunEncoder, source: Source, devices: Sequence[jax.Device], pools: Mapping[str, str]
) -> dict[str, Path | None]:
    """Return the file of each layer; its name depends on everything that shapes the features."""
    config = encoder.config
    if config.network is not None or config.preprocess is not None:
        return dict.fromkeys(pools)  # custom code may change
    parts = [__version__, jax.__version__, devices[0].device_kind, source.digest]
    parts += [config.extra_channels, to_dict(section(config, ModelConfig))]
    if not config.reads_text:
        parts.append(augment.find(config.recipe).evaluate)
    arrays = map(np.asarray, jax.tree.leaves((encoder.params, encoder.stats)))
    digest = caches.fingerprint(json.dumps(parts), *arrays)
    files: dict[str, Path | None] = {}
    for layer, pool in pools.items():
        name = "-".join(part for part in (layer, pool, digest) if part != "none")
        files[layer] = encoder.folder / "features" / f"{name}.npy"
    return files
