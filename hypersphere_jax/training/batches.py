"""Batches on the devices: all images once, and the indices of each step, or the step's images.

The step takes `(images, labels, indices)` and gathers its part of the batch itself; of streamed
images it takes all, in their order.
"""

import functools
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hypersphere_jax import augment, text
from hypersphere_jax.configs import PretrainConfig
from hypersphere_jax.data import Dataset, Source
from hypersphere_jax.data.pipeline import BadImages, Batch, TwoCrops, in_memory, stream
from hypersphere_jax.data.sampling import Sampler
from hypersphere_jax.data.source import Arrays
from hypersphere_jax.training import distributed
from hypersphere_jax.utils.terminal import track

RESIDENT_SHARE = 0.25  # `auto` keeps images resident up to this share of a device's memory
AHEAD = 2  # batches that are on the devices before the step that takes them


def device_batches(
    config: PretrainConfig,
    dataset: Dataset,
    sampler: Any,
    steps: range,
    devices: Sequence[jax.Device],
    resident: bool,
) -> Generator[tuple[Any, Any, Any]]:
    """`(images, labels, indices)` of each step, as the steps of `training/step.py` take them.

    Args:
      config: of the run, with all sizes filled in.
      dataset: of which `pretrain` is read.
      sampler: gives the indices of the batch of a step.
      steps: counted from 0.
      devices: of all processes; each reads the rows of its own.
      resident: whether all images stay on the devices, see `is_resident`.

    Raises:
      UserError: for images that cannot be read, or differ in size though they are resident.
    """
    source = dataset.pretrain
    if config.reads_text:
        return _ahead(text.sentence_batches(source, sampler, steps, devices))
    rows = distributed.local_rows(sampler.batch_size, devices)
    if resident:
        images, labels = _resident(config, source, devices)
        return ((images, labels, _rows(sampler(step)[rows], devices)) for step in steps)
    bad, crops = BadImages(source, config.bad_images), None
    if source.image_shape is None:
        recipe = augment.recipe_of(config)
        train_crop, _ = augment.host_crops(recipe, config.image_size)
        crops = TwoCrops(train_crop, config.seed)
    batches = stream(source, sampler, steps, bad, prepare=crops, rows=rows, workers=config.workers)
    each = np.arange(sampler.batch_size // len(devices))
    every = _rows(np.tile(each, len(distributed.local(devices))), devices)
    return _ahead(
        (_rows(batch.images, devices), _rows(batch.labels, devices), every) for batch in batches
    )


def call_batches(
    config: PretrainConfig,
    dataset: Dataset,
    sampler: Sampler,
    calls: Iterable[range],
    at_once: int,
    devices: Sequence[jax.Device],
) -> Generator[tuple[Any, ...]]:
    """`(images, labels, indices, count)` of each call of several steps, as `make_steps` takes them.

    As `device_batches`, of images that are resident; `indices` have an axis of `at_once` steps
    after that of the devices, and are filled up.
    """
    rows = distributed.local_rows(sampler.batch_size, devices)
    parts = len(distributed.local(devices))
    images, labels = _resident(config, dataset.pretrain, devices)

    @functools.cache  # on the devices, as most calls have as many steps
    def count(steps):
        return distributed.split(np.full(parts, steps, np.int32), devices)

    def indices(call):
        taken = [sampler(step)[rows] for step in call]
        taken += [taken[-1]] * (at_once - len(taken))
        each = np.stack(taken).reshape(at_once, parts, -1)
        return distributed.split(each.swapaxes(0, 1), devices)

    return ((images, labels, indices(call), count(len(call))) for call in calls)


def vmapped_batches(
    config: PretrainConfig,
    dataset: Dataset,
    samplers: Sequence[Sampler],
    steps: range,
    devices: Sequence[jax.Device],
) -> Generator[tuple[Any, Any, Any]]:
    """As `device_batches`, for vmapped runs: one process, and resident images.

    `indices` have an axis of the runs after that of the devices, with the batch of each sampler.
    """
    images, labels = _resident(config, dataset.pretrain, devices)

    def indices(step):
        parts = [np.split(sampler(step), len(devices)) for sampler in samplers]
        return distributed.split(np.stack(parts, axis=1), devices)

    return ((images, labels, indices(step)) for step in steps)


def eval_batches(
    config: PretrainConfig,
    source: Source,
    size: int,
    devices: Sequence[jax.Device],
    prepare: Callable | None = None,
) -> Iterator[Batch]:
    """All images, or sentences, of a source in batches; an unreadable image has the index -1.

    Args:
      config: of the run whose encoder will see them.
      source: of the images.
      size: of a batch; the last one may be shorter.
      devices: their memory decides whether the images are decoded once and kept.
      prepare: as in `pipeline.stream`, for images that differ in size.
    """
    n = len(source)
    order, steps = functools.partial(_consecutive, n, size), range(-(-n // size))
    if config.reads_text:
        yield from text.sentence_eval_batches(source, size)
        return
    bad = BadImages(source, config.bad_images)
    asked = config.pipeline if source.image_shape is not None else "auto"
    if not is_resident(source, asked, devices):
        options = {"prepare": prepare, "replace": False, "workers": config.workers}
        yield from stream(source, order, steps, bad, **options)
        return
    arrays = _decoded(config, source, bad)
    indices = np.arange(n, dtype=np.int32)
    indices[list(bad.reasons)] = -1
    for rows in map(order, steps):
        rows = slice(rows[0], rows[-1] + 1)
        yield Batch(arrays.images[rows], arrays.labels[rows], indices[rows])


def _resident(config, source, devices) -> tuple[Any, Any]:
    arrays = _decoded(config, source, BadImages(source, config.bad_images))
    return distributed.replicate((arrays.images, arrays.labels), devices)


def _decoded(config: PretrainConfig, source: Source, bad: BadImages) -> Arrays:
    return in_memory(source, bad, image_cache(config), lambda items: track(items, "decoding"))


def _consecutive(n: int, size: int, step: int) -> np.ndarray:
    return np.arange(step * size, min(n, (step + 1) * size))


def image_cache(config: PretrainConfig) -> Path:
    """Where decoded images are kept, and what else takes long to find in their files."""
    return Path(config.cache_dir).expanduser() / "images"


def is_resident(source: Source, pipeline: str, devices: Sequence[jax.Device]) -> bool:
    """Return whether all images stay on the devices."""
    if pipeline != "auto" or source.image_shape is None:
        return pipeline == "resident"
    limit = RESIDENT_SHARE * distributed.device_memory(distributed.local(devices))
    return len(source) * int(np.prod(source.image_shape)) <= limit


def _rows(batch: np.ndarray, devices: Sequence[jax.Device]) -> jax.Array:
    """This process's rows `[n, …]` cut into equal parts for its devices."""
    parts = len(distributed.local(devices))
    return distributed.split(batch.reshape(parts, -1, *batch.shape[1:]), devices)


def _ahead(items: Iterable) -> Generator:
    """The same items, each made a few steps before its turn: it is on its way meanwhile."""
    ready: deque = deque()
    for item in items:
        ready.append(item)
        if len(ready) > AHEAD:
            yield ready.popleft()
    yield from ready
