"""Features of a whole split, computed once over all devices and kept on disk."""

import contextlib
import difflib
import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hypersphere_jax import __version__, augment, models, runs, sharding
from hypersphere_jax.config import UserError
from hypersphere_jax.runs import Encoder

logger = logging.getLogger("hypersphere_jax")


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
    encoder: Encoder, images: np.ndarray, layer: str, devices: Sequence[jax.Device]
) -> np.ndarray:
    """Features of images as they are (without random augmentation), from the cache if it has them.

    Args:
      encoder: from `runs.load_encoder`.
      images: uint8 `[n, h, w, c]`.
      layer: name of a layer; its output is flattened.
      devices: to compute on.

    Returns:
      float32 `[n, d]`.
    """
    check_layer(encoder, layer)
    file = encoder.folder / "features" / f"{layer}-{_fingerprint(encoder, images, layer)}.npy"
    # A file that was cut short is made anew.
    with contextlib.suppress(FileNotFoundError, ValueError, EOFError):
        return np.load(file)
    evaluate = augment.make_evaluate(encoder.config.data.recipe, encoder.config.model.image_size)

    def outputs(apply, images):
        found = apply(jax.vmap(evaluate)(images))[layer]
        return jnp.reshape(found, (len(found), -1))

    found = _over_batches(outputs, encoder, [images], devices)
    try:
        with runs.whole_file(file) as stream:
            np.save(stream, found)
    except OSError as error:  # a folder that can only be read, say
        logger.warning("features are not kept for the next time: %s", error)
    return found


def pair_features(
    encoder: Encoder, images: np.ndarray, devices: Sequence[jax.Device], seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Outputs of two random views of each image: positive pairs, each `[n, dim]`."""
    transform = augment.make_augment(encoder.config.data.recipe, encoder.config.model.image_size)

    def outputs(apply, images, positions):
        key = jax.random.key(seed)
        view1, view2 = augment.two_views(transform, key, images, positions)
        return jnp.stack([apply(view1)["output"], apply(view2)["output"]], axis=1)

    positions = np.arange(len(images), dtype=np.int32)
    pairs = _over_batches(outputs, encoder, [images, positions], devices)
    return pairs[:, 0], pairs[:, 1]


def _over_batches(
    function: Callable, encoder: Encoder, arrays: list[np.ndarray], devices: Sequence[jax.Device]
) -> np.ndarray:
    """Applies `function(apply, *parts) -> [b, ...]` to batches, spread over the devices."""
    n = len(arrays[0])
    # At most this many images a device at once: enough to fill it, little enough to fit.
    per_device = min(256, -(-n // len(devices)))
    batch = per_device * len(devices)

    def per_device_function(params, stats, *parts):
        def apply(x):
            return encoder.apply(params, stats, x, False)[0]

        return function(apply, *parts)

    mapped = sharding.pmap(per_device_function, devices)
    weights = sharding.replicate((encoder.params, encoder.stats), devices)
    results: list[Any] = []
    for start in range(0, n, batch):
        parts = [_padded(array[start : start + batch], batch) for array in arrays]
        parts = [part.reshape(len(devices), per_device, *part.shape[1:]) for part in parts]
        results.append(mapped(*weights, *sharding.split(parts, devices)))
        if len(results) > 1:  # One batch computes while the one before comes to the host.
            results[-2] = np.asarray(results[-2])
    stacked = [np.asarray(result).reshape(batch, *result.shape[2:]) for result in results]
    return np.concatenate(stacked)[:n]


def _padded(part: np.ndarray, size: int) -> np.ndarray:
    """The last batch filled up with zeros, whose results are cut off."""
    missing = size - len(part)
    return np.concatenate([part, np.zeros((missing, *part.shape[1:]), part.dtype)])


def _fingerprint(encoder: Encoder, images: np.ndarray, layer: str) -> str:
    """Changes with everything that shapes the features."""
    digest = hashlib.sha256()
    config = encoder.config
    shaping = [__version__, jax.__version__, config.data.recipe, layer, list(images.shape)]
    model = {"name": config.model.name, "image_size": config.model.image_size}
    digest.update(json.dumps([*shaping, model]).encode())
    for array in [*jax.tree.leaves((encoder.params, encoder.stats)), images]:
        digest.update(np.ascontiguousarray(array).view(np.uint8))
    return digest.hexdigest()[:16]
