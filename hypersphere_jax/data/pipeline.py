"""Batches of a source: decoded once into memory, or streamed batch by batch."""

import dataclasses
import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing import connection, parent_process
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from hypersphere_jax.configs import PretrainConfig, UserError, require
from hypersphere_jax.data.source import Arrays, Source, UnreadableImage
from hypersphere_jax.utils import caches

logger = logging.getLogger("hypersphere_jax")

MAX_BAD_SHARE = 0.1  # a larger share of unreadable images ends the run
DECODER = "v1"  # part of the names of cached images; changes with the pixels that `decode` returns


class Batch(NamedTuple):
    """Samples of a source."""

    images: np.ndarray  # uint8 [n, …]
    labels: np.ndarray  # int32 [n]
    indices: np.ndarray  # int32 [n]; -1 for an unreadable image that does not count


class BadImages:
    """The unreadable images of a source: `reasons` by index. Each is logged once."""

    def __init__(self, source: Source, on_bad: Literal["error", "skip"]):
        self.reasons: dict[int, str] = {}
        self._source = source
        self._on_bad = on_bad

    def report(self, reasons: Mapping[int, str]) -> None:
        """Log images; UserError for the first one with on_bad="error", otherwise for too many."""
        for index, why in reasons.items():
            require(
                self._on_bad == "skip",
                f"{why}; repair or remove this image, or skip such images with bad_images=skip",
            )
            if index not in self.reasons:
                self.reasons[index] = why
                logger.warning("%s; skipped (%d so far)", why, len(self.reasons))
        count = len(self.reasons)
        n = len(self._source)
        origin = self._source.origin
        require(count <= MAX_BAD_SHARE * n, f"{count} of the {n} images of {origin} cannot be read")


@dataclasses.dataclass(frozen=True)
class TwoCrops:
    """Two random crops of an image, for sources whose images differ in size."""

    crop: Callable[[np.random.Generator, np.ndarray], np.ndarray]
    seed: int

    def __call__(self, image: np.ndarray, step: int, position: int) -> np.ndarray:
        """Return uint8 `[2, s, s, c]`, a function of the seed, the step and the position."""
        rngs = [np.random.default_rng([self.seed, step, position, view]) for view in (0, 1)]
        return np.stack([self.crop(rng, image) for rng in rngs])


def stream(
    source: Source,
    order: Callable[[int], np.ndarray],
    steps: range,
    bad: BadImages,
    *,
    prepare: Callable[[np.ndarray, int, int], np.ndarray] | None = None,
    replace: bool = True,
    rows: slice | np.ndarray = slice(None),
    workers: int = 0,
) -> Iterator[Batch]:
    """Yield the batches of some steps, read ahead in the background.

    Args:
      source: the images.
      order: function from a step to the indices of its batch.
      steps: the steps.
      bad: receives the unreadable images.
      prepare: (image, step, position in the batch) -> uint8 array, such as `TwoCrops`.
      replace: replace an unreadable image by the next readable one; otherwise it has index -1.
      rows: the rows of each batch to read. Positions are those in the whole batch.
      workers: number of processes that read; 0 for threads of this process.
    """
    iterator = _read_ahead(_LoadBatch(source, order, rows, prepare, replace), steps, workers)
    try:
        for batch, reasons in iterator:
            bad.report(reasons)
            if workers:  # the arrays are in shared memory, which Grain reuses
                batch = tuple(map(np.array, batch))
            yield Batch(*batch)
    except RuntimeError as error:
        if "Worker process" not in str(error):
            raise
        message = "a process that reads images ended, perhaps for lack of memory; lower workers="
        raise UserError(message) from error
    finally:
        iterator.close()
        del iterator
        gc.collect()  # releases the last batches in shared memory, which are in a reference cycle


def _read_ahead(load: Callable[[int], tuple], steps: range, workers: int) -> Any:
    """Return Grain's iterator over `load(step)`."""
    import grain
    from absl import flags

    batches = grain.MapDataset.range(steps.start, steps.stop).map(load)
    if not workers:
        threads = os.cpu_count() or 1
        return iter(batches.to_iter_dataset(grain.ReadOptions(threads, threads + 2)))
    if not flags.FLAGS.is_parsed():  # Grain's workers read absl's flags
        flags.FLAGS.mark_as_parsed()
    options = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=2)
    batches = batches.to_iter_dataset(grain.ReadOptions(1, 2))
    return iter(batches.mp_prefetch(options, worker_init_fn=_start_worker))


def _start_worker(index: int, count: int) -> None:
    """Ignore Ctrl-C, which the parent process handles, and end with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


def end_with_parent() -> None:
    """End this child process as soon as its parent process ends."""
    parent: Any = parent_process()

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@dataclasses.dataclass(frozen=True)
class _LoadBatch:
    """Function from a step to its batch and the reasons for unreadable images; see `stream`.

    The batch is None if too many images are unreadable.
    """

    source: Source
    order: Callable[[int], np.ndarray]
    rows: slice | np.ndarray
    prepare: Callable | None
    replace: bool

    def __call__(self, step: int) -> tuple[tuple[np.ndarray, ...] | None, dict[int, str]]:
        order = self.order(step)
        samples = []
        reasons: dict[int, str] = {}
        for position in np.arange(len(order))[self.rows].tolist():
            sample, missing = read(self.source, int(order[position]))
            reasons |= missing
            if not sample:
                return None, reasons
            if self.prepare is not None:
                sample["image"] = self.prepare(sample["image"], step, position)
            if missing and not self.replace:
                sample |= {"label": -1, "index": -1}
            samples.append(sample)
        images = np.stack([sample["image"] for sample in samples])
        labels = np.array([sample["label"] for sample in samples], np.int32)
        indices = np.array([sample["index"] for sample in samples], np.int32)
        return (images, labels, indices), reasons


def read(source: Source, index: int) -> tuple[dict[str, Any], dict[int, str]]:
    """Read a sample, or the next readable one.

    Returns:
      The sample with its "index", empty if too many images are unreadable; and the reasons why
      others cannot be read, by index.
    """
    missing: dict[int, str] = {}
    while len(missing) <= MAX_BAD_SHARE * len(source):
        number = (index + len(missing)) % len(source)
        try:
            return {**source[number], "index": number}, missing
        except UnreadableImage as error:
            missing[number] = str(error)
    return {}, missing


def decode_all(
    config: PretrainConfig,
    source: Source,
    track: Callable[[Sequence[int]], Iterable[int]] = iter,
) -> tuple[Arrays, BadImages]:
    """Decode all images of a run's source, see `in_memory`; also return the unreadable ones."""
    bad = BadImages(source, config.bad_images)
    cache_dir = Path(config.cache_dir).expanduser() / "images"
    return in_memory(source, bad, cache_dir, track), bad


def in_memory(
    source: Source,
    bad: BadImages,
    cache_dir: Path | None = None,
    track: Callable[[Sequence[int]], Iterable[int]] = iter,
) -> Arrays:
    """Decode all images of a source, which have one size, into memory.

    Unreadable images are reported to `bad` and replaced as in `stream`. `cache_dir` keeps the
    decoded images, and `track` passes items through and shows the progress.
    """
    if isinstance(source, Arrays):
        return source
    require(
        source.image_shape is not None,
        f"the images of {source.origin} differ in size: use pipeline=streaming",
    )
    file = cache_dir and cache_dir / f"{source.digest}-{DECODER}.npy"
    if cached := caches.read(file):
        return Arrays(*cached, source.labels, source.class_names, source.origin)
    started = time.monotonic()
    n = len(source)
    images = np.empty((n, *source.image_shape), np.uint8)
    labels = np.empty(n, np.int32)
    with ThreadPool() as pool:
        results = pool.imap(partial(_decode_into, images, labels, source), range(n))
        for _, missing in zip(track(range(n)), results, strict=True):
            bad.report(missing)
    if not bad.reasons:  # an unreadable image may be repaired
        caches.write_if_slow(file, started, images)
    return Arrays(images, labels, source.class_names, source.origin)


def _decode_into(images: np.ndarray, labels: np.ndarray, source: Source, i: int) -> dict[int, str]:
    """Write sample i into the arrays; return the reasons for unreadable images."""
    sample, missing = read(source, i)
    if sample:
        images[i] = sample["image"]
        labels[i] = sample["label"]
    return missing
