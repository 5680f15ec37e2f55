"""Batches on the devices: all images once, and the indices of each step, or the step's images.

The step takes `(images, labels, indices)` and gathers its part of the batch itself; of streamed
images it takes all, in their order. `devices` includes the devices of all
processes, and each process reads the rows of its devices.
"""

import functools
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from hypersphere_jax import augment, text
from hypersphere_jax.configs import PretrainConfig
from hypersphere_jax.data import Dataset, Source
from hypersphere_jax.data.pipeline import BadImages, Batch, TwoCrops, decode_all, stream
from hypersphere_jax.data.sampling import Sampler
from hypersphere_jax.training import distributed
from hypersphere_jax.utils.terminal import track

RESIDENT_SHARE = 0.25  # share of a device's memory up to which `auto` keeps images resident
AHEAD = 2  # batches that are moved to the devices before their step


def device_batches(
    config: PretrainConfig,
    dataset: Dataset,
    sampler: Any,
    steps: range,
    devices: Sequence[jax.Device],
    resident: bool,
) -> Generator[tuple[Any, Any, Any]]:
    """Return `(images, labels, indices)` of each step, the arguments of a step in `step.py`.

    Raises:
      UserError: If images cannot be read, or differ in size and should be resident.
    """
    source = dataset.pretrain
    if config.reads_text:
        return _ahead(text.sentence_batches(source, sampler, steps, devices))
    rows = distributed.local_rows(config.batch_size, devices, config.microbatches)
    if resident:
        images, labels = _resident(config, source, devices)
        return ((images, labels, _rows(sampler(step)[rows], devices)) for step in steps)
    crops = None
    if source.image_shape is None:
        train_crop, _ = augment.host_crops(augment.recipe_of(config), config.image_size)
        crops = TwoCrops(train_crop, config.seed)
    bad = BadImages(source, config.bad_images)
    batches = stream(source, sampler, steps, bad, prepare=crops, rows=rows, workers=config.workers)
    all_rows = np.arange(sampler.batch_size // len(devices))
    indices = _rows(np.tile(all_rows, len(distributed.local(devices))), devices)
    return _ahead(
        (_rows(batch.images, devices), _rows(batch.labels, devices), indices) for batch in batches
    )


def call_batches(
    config: PretrainConfig,
    dataset: Dataset,
    sampler: Sampler,
    calls: Iterable[range],
    at_once: int,
    devices: Sequence[jax.Device],
) -> Generator[tuple[Any, ...]]:
    """Return `(images, labels, indices, count)` of each call of several steps, see `make_steps`.

    Images are resident. `indices` have an axis of `at_once` steps after the axis of the devices.
    The last steps of a shorter call are repetitions.
    """
    images, labels = _resident(config, dataset.pretrain, devices)
    rows = distributed.local_rows(config.batch_size, devices, config.microbatches)

    def batch(call):
        steps = [sampler(step)[rows] for step in call]
        steps += [steps[-1]] * (at_once - len(steps))
        count = np.full(len(distributed.local(devices)), len(call), np.int32)
        return images, labels, _stacked_rows(steps, devices), distributed.split(count, devices)

    return (batch(call) for call in calls)


def vmapped_batches(
    config: PretrainConfig,
    dataset: Dataset,
    samplers: Sequence[Sampler],
    steps: range,
    devices: Sequence[jax.Device],
) -> Generator[tuple[Any, Any, Any]]:
    """Return `(images, labels, indices)` of each step of vmapped runs, in one process.

    Images are resident. `indices` have an axis of the runs after the axis of the devices.
    """
    images, labels = _resident(config, dataset.pretrain, devices)
    rows = distributed.local_rows(config.batch_size, devices, config.microbatches)

    def batch(step):
        runs = [sampler(step)[rows] for sampler in samplers]
        return images, labels, _stacked_rows(runs, devices)

    return (batch(step) for step in steps)


def eval_batches(
    config: PretrainConfig,
    source: Source,
    size: int,
    devices: Sequence[jax.Device],
    prepare: Callable | None = None,
) -> Iterator[Batch]:
    """Yield all images, or sentences, of a source in batches; an unreadable image has index -1.

    `prepare` crops images that differ in size, see `pipeline.stream`. Decoded images are kept if
    they fit into the memory of the devices.
    """
    if config.reads_text:
        yield from text.sentence_eval_batches(source, size)
        return
    n = len(source)
    has_one_size = source.image_shape is not None
    if not (has_one_size and is_resident(source, config.pipeline, devices)):
        order = functools.partial(_consecutive, n, size)
        steps = range(-(-n // size))
        bad = BadImages(source, config.bad_images)
        options = {"prepare": prepare, "replace": False, "workers": config.workers}
        yield from stream(source, order, steps, bad, **options)
        return
    arrays, bad = decode_all(config, source, _track_decoding)
    indices = np.arange(n, dtype=np.int32)
    indices[list(bad.reasons)] = -1
    for start in range(0, n, size):
        rows = slice(start, start + size)
        yield Batch(arrays.images[rows], arrays.labels[rows], indices[rows])


def _consecutive(n: int, size: int, step: int) -> np.ndarray:
    return np.arange(step * size, min(n, (step + 1) * size))


def _resident(config, source, devices) -> tuple[Any, Any]:
    arrays, _ = decode_all(config, source, _track_decoding)
    return distributed.replicate((arrays.images, arrays.labels), devices)


def _track_decoding(items: Sequence[int]) -> Iterable[int]:
    return track(items, "decoding")


def is_resident(source: Source, pipeline: str, devices: Sequence[jax.Device]) -> bool:
    """Return whether all images stay on the devices."""
    if pipeline != "auto" or source.image_shape is None:
        return pipeline == "resident"
    limit = RESIDENT_SHARE * distributed.device_memory(distributed.local(devices))
    return len(source) * int(np.prod(source.image_shape)) <= limit


def _rows(batch: np.ndarray, devices: Sequence[jax.Device]) -> jax.Array:
    """Split this process's rows `[n, …]` over its devices."""
    parts = len(distributed.local(devices))
    return distributed.split(batch.reshape(parts, -1, *batch.shape[1:]), devices)


def _stacked_rows(batches: Sequence[np.ndarray], devices: Sequence[jax.Device]) -> jax.Array:
    """Split this process's rows of several batches: `[local devices, batches, …]`."""
    parts = len(distributed.local(devices))
    stacked = np.stack(batches).reshape(len(batches), parts, -1)
    return distributed.split(stacked.swapaxes(0, 1), devices)


def _ahead(items: Iterable) -> Generator:
    """Yield the items, each of them made a few steps before its turn."""
    ready: deque = deque()
    for item in items:
        ready.append(item)
        if len(ready) > AHEAD:
            yield ready.popleft()
    yield from ready
