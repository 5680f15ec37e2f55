"""Batches of the host through a network on several devices, compiled once for all of them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hypersphere_jax import augment, sharding
from hypersphere_jax.config import PretrainConfig
from hypersphere_jax.data import Source
from hypersphere_jax.data.pipeline import OneCrop

# At most this many images a device at once: enough to fill it, little enough to fit.
PER_DEVICE = 256


def make_mapped(function: Callable, devices: Sequence[jax.Device], size: int) -> Callable:
    """Maps a function of parameters and rows over batches of at most `size` rows.

    Args:
      function: (params, stats, *rows `[b, …]`) -> a tree of `[b, …]`, row by row.
      devices: of this host.
      size: multiple of the number of devices. Shorter batches are filled up with zeros.

    Returns:
      (params and stats from `sharding.replicate`, *rows on the host) -> a tree on the host.
    """
    mapped = sharding.pmap(function, devices)

    def call(weights: tuple[Any, Any], *rows: np.ndarray) -> Any:
        n = len(rows[0])
        parts = [np.concatenate([r, np.zeros((size - n, *r.shape[1:]), r.dtype)]) for r in rows]
        parts = [part.reshape(len(devices), -1, *part.shape[1:]) for part in parts]
        found = mapped(*weights, *sharding.split(parts, devices))
        return jax.tree.map(lambda x: np.asarray(x).reshape(size, *x.shape[2:])[:n], found)

    return call


def make_layers(
    config: PretrainConfig,
    apply: Callable,
    layers: Iterable[str],
    devices: Sequence[jax.Device],
    size: int,
    cropped: bool,
) -> Callable:
    """Flattened layers of images as evaluation sees them: (weights, images) -> `{layer: [n, d]}`.

    Args:
      config: of the run, with its sizes.
      apply: of the network, see `models.create`.
      layers: their names.
      devices: of this host.
      size: of a batch at most, a multiple of the number of devices.
      cropped: whether the host has cropped the images.
    """
    evaluate = augment.make_evaluate(
        config.data.recipe,
        config.model.image_size,
        cropped=cropped,
        extra_channels=config.data.extra_channels,
    )
    layers = tuple(layers)

    def function(params, stats, images):
        outputs, _ = apply(params, stats, jax.vmap(evaluate)(images), False)
        return {name: jnp.reshape(outputs[name], (len(images), -1)) for name in layers}

    return make_mapped(function, devices, size)


def batch_size(n: int, devices: Sequence[jax.Device]) -> int:
    """Rows of a batch over the devices, when there are n in all."""
    return len(devices) * min(PER_DEVICE, -(-n // len(devices)))


def one_crop(config: PretrainConfig, source: Source) -> OneCrop | None:
    """How the host crops images that differ in size for evaluation; None where it need not."""
    if source.image_shape is not None:
        return None
    return OneCrop(augment.host_crops(config.data.recipe, config.model.image_size)[1])
