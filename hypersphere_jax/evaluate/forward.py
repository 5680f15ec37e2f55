"""A network over all images of a source: batch by batch, over the devices."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from hypersphere_jax import augment
from hypersphere_jax.config import PretrainConfig
from hypersphere_jax.data import Source
from hypersphere_jax.data.pipeline import Batch, OneCrop
from hypersphere_jax.train import sharding
from hypersphere_jax.train.progress import track
from hypersphere_jax.train.run_folder import Encoder

# At most this many images a device at once: enough to fill it, little enough to fit.
PER_DEVICE = 256


class Waited:
    """The items of an iterator, and the seconds that passed waiting for them."""

    def __init__(self, items: Iterable):
        self._items, self.seconds = iter(items), 0.0

    def __iter__(self) -> Iterator:
        return self

    def __next__(self) -> Any:
        began = time.perf_counter()
        try:
            return next(self._items)
        finally:
            self.seconds += time.perf_counter() - began


def batch_size(source: Source, devices: Sequence[jax.Device]) -> int:
    """Images at once, a multiple of the devices."""
    return min(PER_DEVICE, -(-len(source) // len(devices))) * len(devices)


def one_crop(config: PretrainConfig, source: Source) -> OneCrop | None:
    """How the host crops images that differ in size for evaluation; None where it need not."""
    if source.image_shape is not None:
        return None
    return OneCrop(augment.host_crops(config.data.recipe, config.model.image_size)[1])


def as_seen(config: PretrainConfig, source: Source) -> Callable[[jax.Array], jax.Array]:
    """What the network sees of images `[b, …]` in evaluation; of sentences their words."""
    if config.model.reads_text:
        return lambda words: words
    return jax.vmap(
        augment.make_evaluate(
            config.data.recipe,
            config.model.image_size,
            cropped=source.image_shape is None,
            extra_channels=config.data.extra_channels,
        )
    )


def make_mapped(function: Callable, devices: Sequence[jax.Device], rows: int) -> Callable:
    """Maps a function over batches of at most `rows` rows; compiled once for all of them.

    Args:
      function: (shared, *parts `[b, ...]` of one device) -> tree of `[b, ...]`, row by row.
      devices: of this host.
      rows: a multiple of the devices; shorter batches are filled up with zeros.

    Returns:
      (shared from `sharding.replicate`, *parts on the host) -> tree on the devices, which `on_host`
      takes back.
    """
    mapped = sharding.pmap(function, devices)

    def call(shared, *parts):
        padded = [_padded(part, rows) for part in parts]
        dealt = [part.reshape(len(devices), -1, *part.shape[1:]) for part in padded]
        return mapped(shared, *sharding.split(dealt, devices))

    return call


def on_host(result: Any, n: int) -> Any:
    """The first n rows of what a mapped function gave, as NumPy arrays."""
    return jax.tree.map(lambda x: np.asarray(x).reshape(-1, *x.shape[2:])[:n], result)


def shown(batches: Iterable, source: Source, rows: int) -> Iterator:
    """The batches of a source, `rows` images each, while showing how far they are."""
    return track(batches, "features", -(-len(source) // rows))


def over_batches(
    function: Callable, encoder: Encoder, devices: Sequence[jax.Device], rows: int
) -> Callable[[Iterable[Batch], jax.Array], Iterator[tuple[Any, np.ndarray]]]:
    """Maps `function(apply, key, images, numbers) -> tree of [b, ...]` over batches.

    Args:
      function: of one device's images `[b, ...]`, their numbers in the source `[b]`, and
        `apply(x) -> outputs`, the encoder's.
      encoder: from `runs.load_encoder`.
      devices: to compute on.
      rows: of a batch, a multiple of the devices; a last one that is shorter is filled up.

    Returns:
      (batches, key) -> iterator over the function's values as NumPy arrays and the labels, of the
      images of a batch that could be read. Another call with other batches compiles nothing.
    """

    def per_device(shared, images, numbers):
        weights, key = shared

        def apply(x):
            return encoder.apply(*weights, x, False)[0]

        return function(apply, key, images, numbers)

    mapped = make_mapped(per_device, devices, rows)
    weights = sharding.replicate((encoder.params, encoder.stats), devices)

    def results(batches, key):
        shared, pending = (weights, sharding.replicate(key, devices)), None
        for number, batch in enumerate(batches):
            numbers = np.arange(len(batch.images), dtype=np.int32) + number * rows
            result = mapped(shared, batch.images, numbers)
            # One batch computes while the one before comes to the host.
            if pending is not None:
                yield _readable(*pending)
            pending = result, batch
        yield _readable(*pending)

    return results


def _readable(result: Any, batch: Batch) -> tuple[Any, np.ndarray]:
    rows = batch.indices >= 0
    return jax.tree.map(lambda x: x[rows], on_host(result, len(rows))), batch.labels[rows]


def _padded(part: np.ndarray, size: int) -> np.ndarray:
    missing = size - len(part)
    return np.concatenate([part, np.zeros((missing, *part.shape[1:]), part.dtype)])
