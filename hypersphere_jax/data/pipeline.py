"""From sources to batches, the same ones in memory and read from batch to batch."""

import contextlib
import dataclasses
import functools
import gc
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from hypersphere_jax.configs import UserError, require
from hypersphere_jax.data.source import Arrays, Source, UnreadableImage
from hypersphere_jax.data.threads import end_with_parent, thread_pool
from hypersphere_jax.utils import caches

logger = logging.getLogger("hypersphere_jax")

MOST_BAD = 0.1  # share of unreadable images from which on a run ends
DECODER = "v1"  # changes when `decode` gives other pixels: files in the cache have it in their name


class Batch(NamedTuple):
    """Images of a source."""

    images: np.ndarray  # uint8 [n, …]
    labels: np.ndarray  # int32 [n]
    indices: np.ndarray  # int32 [n]; -1 where one could not be read and was not replaced


class BadImages:
    """Counts and reports the images of a source that cannot be read."""

    def __init__(self, source: Source, on_bad: Literal["error", "skip"]):
        self.reasons: dict[int, str] = {}  # why an image cannot be read, by its index
        self._source, self._on_bad = source, on_bad

    def report(self, reasons: Mapping[int, str]) -> None:
        """Logs each image once.

        Raises:
          UserError: at the first one where they are errors, else when there are too many.
        """
        for index, why in reasons.items():
            require(
                self._on_bad == "skip",
                f"{why}; repair or remove that image, or leave such images out: bad_images=skip",
            )
            if index not in self.reasons:
                self.reasons[index] = why
                logger.warning("%s; left out (%d so far)", why, len(self.reasons))
        count, n = len(self.reasons), len(self._source)
        message = f"{count} of the {n} images of {self._source.origin} cannot be read"
        require(count <= MOST_BAD * n, message)


@dataclasses.dataclass(frozen=True)
class TwoCrops:
    """Two random crops of an image, for sources whose images differ in size."""

    crop: Callable[[np.random.Generator, np.ndarray], np.ndarray]
    seed: int

    def __call__(self, image: np.ndarray, step: int, position: int) -> np.ndarray:
        """uint8 `[2, s, s, c]`."""
        rngs = (np.random.default_rng([self.seed, step, position, view]) for view in (0, 1))
        return np.stack([self.crop(rng, image) for rng in rngs])


def stream(
    source: Source,
    order: Callable[[int], np.ndarray],
    steps: range,
    bad: BadImages,
    *,
    prepare: Callable[[np.ndarray, int, int], np.ndarray] | None = None,
    replace: bool = True,
    rows: slice = slice(None),
    workers: int = 0,
) -> Iterator[Batch]:
    """The batches of some steps, read ahead in the background.

    Args:
      source: of the images.
      order: indices of the images in the batch of a step.
      steps: which.
      bad: gets the images that cannot be read.
      prepare: (image, step, position in the batch) -> uint8 array, such as `TwoCrops`.
      replace: unreadable images by the next readable one.
      rows: the part of each batch to read; positions count in the whole batch.
      workers: processes that read; 0: threads of this process.
    """
    import grain
    from absl import flags

    load = functools.partial(_load, source, order, rows, prepare, replace)
    batches = grain.MapDataset.range(steps.start, steps.stop).map(load)
    if workers:
        if not flags.FLAGS.is_parsed():  # Grain's processes ask for flags, which absl's apps parse
            flags.FLAGS.mark_as_parsed()
        batches = batches.to_iter_dataset(grain.ReadOptions(1, 2)).mp_prefetch(
            grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=2),
            worker_init_fn=_follow_parent,
        )
    else:
        threads = os.cpu_count() or 1
        batches = batches.to_iter_dataset(grain.ReadOptions(threads, threads + 2))
    iterator = iter(batches)
    try:
        for batch, reasons in iterator:
            bad.report(dict(reasons))
            # What workers send is in shared memory, which Grain takes back.
            copied = Batch(*(map(np.array, batch) if workers else batch))
            del batch
            yield copied
    except RuntimeError as error:
        if "Worker process" not in str(error):
            raise
        message = "a process that reads images was lost, for lack of memory? Take fewer workers="
        raise UserError(message) from error
    finally:
        iterator.close()
        del iterator
        gc.collect()  # it is part of a cycle, with the last batches of shared memory


def in_memory(
    source: Source,
    bad: BadImages,
    cache_dir: Path | None = None,
    track: Callable[[Sequence[int]], Iterable[int]] = iter,
) -> Arrays:
    """All images of a source, of one size, decoded once; unreadable ones replaced as in `stream`.

    Args:
      source: of the images.
      bad: gets the images that cannot be read.
      cache_dir: keeps the decoded images for the next time, if decoding them took a while.
      track: shows how far the work is.
    """
    if isinstance(source, Arrays):
        return source
    require(
        source.image_shape is not None,
        f"the images of {source.origin} differ in size: take pipeline=streaming",
    )
    file = None if cache_dir is None else cache_dir / f"{source.digest}-{DECODER}.npy"
    if file is not None and (kept := caches.read(file)):
        return Arrays(*kept, source.labels, source.class_names, source.origin)
    began, n = time.monotonic(), len(source)
    images, labels = np.empty((n, *source.image_shape), np.uint8), np.empty(n, np.int32)
    unreadable: dict[int, str] = {}

    def decode(i: int) -> dict[int, str]:
        sample, missing = read(source, i)
        if sample:
            images[i], labels[i] = sample["image"], sample["label"]
        return missing

    with thread_pool(os.cpu_count()) as pool:
        for _, missing in zip(track(range(n)), pool.map(decode, range(n)), strict=True):
            unreadable |= missing
            bad.report(missing)
    slow = time.monotonic() - began > caches.SLOW_SECONDS
    # An image that cannot be read today may be readable tomorrow.
    if file is not None and not unreadable and (slow or file.exists()):
        with contextlib.suppress(OSError):
            caches.write(file, images)
    return Arrays(images, labels, source.class_names, source.origin)


def read(source: Source, index: int, replace: bool = True) -> tuple[dict[str, Any], dict[int, str]]:
    """Sample `index`, or the next that can be read, with its "index"; why others could not."""
    missing: dict[int, str] = {}
    for offset in range(len(source) if replace else 1):
        number = (index + offset) % len(source)
        try:
            return {**source[number], "index": number}, missing
        except UnreadableImage as error:
            missing[number] = str(error)
        if len(missing) > MOST_BAD * len(source):
            break
    return {}, missing


def _load(source, order, rows, prepare, replace, step: int) -> tuple[tuple, tuple]:
    """The batch of a step, and why some of its images could not be read."""
    wanted = order(step)
    images, labels, indices, reasons = [], [], [], {}
    for position in range(len(wanted))[rows]:
        sample, missing = read(source, int(wanted[position]), replace)
        reasons |= missing
        image = sample.get("image")
        if image is not None and prepare is not None:
            image = prepare(image, step, position)
        images.append(image)
        labels.append(sample.get("label", -1))
        indices.append(sample.get("index", -1))
    blank = next((image for image in images if image is not None), None)
    if blank is None:
        readable = read(source, int(wanted[0]))[0]
        blank = np.zeros_like(readable["image"]) if readable else np.zeros((64, 64, 3), np.uint8)
        blank = blank if prepare is None else prepare(blank, 0, 0)
    images = np.stack([np.zeros_like(blank) if image is None else image for image in images])
    batch = Batch(images, np.array(labels, np.int32), np.array(indices, np.int32))
    return tuple(batch), tuple(reasons.items())


def _follow_parent(index: int, count: int) -> None:
    """Ignore Ctrl-C, which the parent process answers, and end with that process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
