"""Features of a whole split, computed once over all devices and kept on disk."""

import contextlib
import difflib
import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from zipfile import BadZipFile

import jax
import jax.numpy as jnp
import numpy as np

from hypersphere_jax import __version__, augment, feed, models, runs, sharding
from hypersphere_jax.config import UserError
from hypersphere_jax.data import Source
from hypersphere_jax.data.pipeline import OneCrop
from hypersphere_jax.progress import track
from hypersphere_jax.runs import Encoder

logger = logging.getLogger("hypersphere_jax")


class Features(NamedTuple):
    """`x` float32 `[n, d]` and `labels` int32 `[n]` of the images that could be read."""

    x: np.ndarray
    labels: np.ndarray


def check_layer(encoder: Encoder, layer: str) -> None:
    """Raises UserError, with the nearest name, unless the encoder has the layer."""
    layers = models.layers(encoder.config.model)
    if layer not in layers:
        near = difflib.get_close_matches(layer, layers, n=1)
        meant = f" (did you mean {near[0]!r}?)" if near else ""
        raise UserError(
            f"--layer {layer}: {encoder.config.model.name} has no such layer{meant}; "
            f"its layers are {', '.join(layers)}"
        )


def split_features(
    encoder: Encoder, source: Source, layer: str, devices: Sequence[jax.Device]
) -> Features:
    """Features of images as they are (without random augmentation), from the cache if it has them.

    Args:
      encoder: from `runs.load_encoder`.
      source: of the images.
      layer: name of a layer; its output is flattened.
      devices: to compute on.
    """
    check_layer(encoder, layer)
    file = encoder.folder / "features" / f"{layer}-{_fingerprint(encoder, source, layer)}.npz"
    # A file that was cut short is made anew.
    damaged = (FileNotFoundError, ValueError, EOFError, KeyError, BadZipFile)
    with contextlib.suppress(*damaged), open(file, "rb") as stream, np.load(stream) as kept:
        return Features(kept["x"], kept["labels"])
    recipe, size = encoder.config.data.recipe, encoder.config.model.image_size
    cropped, extra = source.image_shape is None, encoder.config.data.extra_channels
    evaluate = augment.make_evaluate(recipe, size, cropped=cropped, extra_channels=extra)
    prepare = OneCrop(augment.host_crops(recipe, size)[1]) if cropped else None

    def outputs(apply, images):
        found = apply(jax.vmap(evaluate)(images))[layer]
        return jnp.reshape(found, (len(found), -1))

    found = _over_batches(outputs, encoder, source, prepare, devices)
    try:
        with runs.whole_file(file) as stream:
            np.savez(stream, x=found.x, labels=found.labels)
    except OSError as error:  # a folder that can only be read, say
        logger.warning("features are not kept for the next time: %s", error)
    return found


def pair_features(
    encoder: Encoder, source: Source, devices: Sequence[jax.Device], seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Outputs of two random views of each image: positive pairs, each `[n, dim]`."""
    recipe, size = encoder.config.data.recipe, encoder.config.model.image_size
    prepare = feed.two_crops(source, recipe, size, seed)
    transform = augment.make_augment(
        recipe,
        size,
        cropped=prepare is not None,
        extra_channels=encoder.config.data.extra_channels,
    )

    def outputs(apply, images, positions):
        key = jax.random.key(seed)
        view1, view2 = augment.two_views(transform, key, images, positions)
        return jnp.stack([apply(view1)["output"], apply(view2)["output"]], axis=1)

    pairs = _over_batches(outputs, encoder, source, prepare, devices, numbered=True).x
    return pairs[:, 0], pairs[:, 1]


def _over_batches(
    function: Callable,
    encoder: Encoder,
    source: Source,
    prepare: Callable | None,
    devices: Sequence[jax.Device],
    numbered: bool = False,
) -> Features:
    """Applies `function(apply, images[, numbers]) -> [b, ...]` to all images that can be read."""
    n = len(source)
    # At most this many images a device at once: enough to fill it, little enough to fit.
    per_device = min(256, -(-n // len(devices)))
    size = per_device * len(devices)

    def per_device_function(params, stats, *parts):
        def apply(x):
            return encoder.apply(params, stats, x, False)[0]

        return function(apply, *parts)

    mapped = sharding.pmap(per_device_function, devices)
    weights = sharding.replicate((encoder.params, encoder.stats), devices)
    results: list[Any] = []
    labels, readable = [], []
    batches = feed.in_order(encoder.config, source, size, devices, prepare)
    for number, batch in enumerate(track(batches, "features", -(-n // size))):
        numbers = np.arange(size, dtype=np.int32) + number * size
        parts = [_padded(batch.images, size), numbers][: 1 + numbered]
        parts = [part.reshape(len(devices), per_device, *part.shape[1:]) for part in parts]
        results.append(mapped(*weights, *sharding.split(parts, devices)))
        labels.append(batch.labels)
        readable.append(batch.indices >= 0)
        if len(results) > 1:  # One batch computes while the one before comes to the host.
            results[-2] = np.asarray(results[-2])
    rows = np.concatenate(readable)
    stacked = [np.asarray(result).reshape(size, *result.shape[2:]) for result in results]
    return Features(np.concatenate(stacked)[:n][rows], np.concatenate(labels)[rows])


def _padded(part: np.ndarray, size: int) -> np.ndarray:
    """The last batch filled up with zeros, whose results are cut off."""
    missing = size - len(part)
    return np.concatenate([part, np.zeros((missing, *part.shape[1:]), part.dtype)])


def _fingerprint(encoder: Encoder, source: Source, layer: str) -> str:
    """Changes with everything that shapes the features."""
    digest = hashlib.sha256()
    config = encoder.config
    shaping = [__version__, jax.__version__, config.data.recipe, layer, source.digest]
    model = {"name": config.model.name, "image_size": config.model.image_size}
    digest.update(json.dumps([*shaping, model]).encode())
    for array in jax.tree.leaves((encoder.params, encoder.stats)):
        digest.update(np.ascontiguousarray(array).view(np.uint8))
    return digest.hexdigest()[:16]
