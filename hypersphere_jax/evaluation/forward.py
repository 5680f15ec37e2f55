"""A network over all images of a source: batch by batch, over the devices."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from hypersphere_jax import sharding
from hypersphere_jax.data import Source
from hypersphere_jax.data.pipeline import Batch
from hypersphere_jax.progress import track
from hypersphere_jax.runs import Encoder


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
    """Images at once: enough to fill the devices, few enough to fit."""
    return min(256, -(-len(source) // len(devices))) * len(devices)


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

    def per_device(params, stats, key, images, numbers):
        def apply(x):
            return encoder.apply(params, stats, x, False)[0]

        return function(apply, key, images, numbers)

    mapped = sharding.pmap(per_device, devices)
    weights = sharding.replicate((encoder.params, encoder.stats), devices)

    def results(batches, key):
        keys, pending = sharding.replicate(key, devices), None
        for number, batch in enumerate(batches):
            numbers = np.arange(rows, dtype=np.int32) + number * rows
            parts = [_padded(batch.images, rows), numbers]
            parts = [part.reshape(len(devices), -1, *part.shape[1:]) for part in parts]
            result = mapped(*weights, keys, *sharding.split(parts, devices))
            # One batch computes while the one before comes to the host.
            if pending is not None:
                yield _on_host(*pending)
            pending = result, batch
        yield _on_host(*pending)

    return results


def _on_host(result: Any, batch: Batch) -> tuple[Any, np.ndarray]:
    readable = batch.indices >= 0

    def rows(x):
        return np.asarray(x).reshape(-1, *x.shape[2:])[: len(readable)][readable]

    return jax.tree.map(rows, result), batch.labels[readable]


def _padded(part: np.ndarray, size: int) -> np.ndarray:
    missing = size - len(part)
    return np.concatenate([part, np.zeros((missing, *part.shape[1:]), part.dtype)])
