"""From sources to batches: all images in memory, or read from batch to batch.

Both ways give the same batches: which images they hold is a function of the step (see `sampling`),
and what the host draws for a sample depends on the seed, the step and its place in the batch.
"""

import concurrent.futures
import dataclasses
import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from hypersphere_jax.config import UserError, require
from hypersphere_jax.data.source import Arrays, Source, UnreadableImage

logger = logging.getLogger("hypersphere_jax")

OnBad = Literal["error", "skip"]
# Of a split, more unreadable images than this share are no accident.
MOST_BAD = 0.1
# Changes with what `decode` makes of a file: kept images of another version are not read.
DECODER = "v1"
# Images whose decoding took longer are kept on disk.
SLOW_SECONDS = 1.0


class Batch(NamedTuple):
    """`images` uint8 `[n, …]`, `labels` int32 `[n]`, `indices` int32 `[n]`: numbers in the source.

    Where an image could not be read and was not replaced, the index is -1.
    """

    images: np.ndarray
    labels: np.ndarray
    indices: np.ndarray


class Bad:
    """Counts and reports the images of a source that cannot be read.

    Attributes:
      found: why an image cannot be read, by its number.
    """

    def __init__(self, source: Source, on_bad: OnBad):
        self.found: dict[int, str] = {}
        self._source = source
        self._on_bad = on_bad

    def report(self, found: Mapping[int, str]) -> None:
        """Logs each image once.

        Raises:
          UserError: at the first one where they are errors, else when there are too many.
        """
        for index, why in found.items():
            require(
                self._on_bad == "skip",
                f"{why}; mend or remove that image, or leave such images out: --bad-images skip",
            )
            if index not in self.found:
                self.found[index] = why
                logger.warning("%s; left out (%d so far)", why, len(self.found))
        require(
            len(self.found) <= MOST_BAD * len(self._source),
            f"{len(self.found)} of the {len(self._source)} images of {self._source.origin} cannot "
            "be read: more than a tenth is no accident",
        )


@dataclasses.dataclass(frozen=True)
class TwoCrops:
    """Two random crops of an image, for sources whose images differ in size."""

    crop: Callable[[np.random.Generator, np.ndarray], np.ndarray]
    seed: int

    def __call__(self, image: np.ndarray, step: int, position: int) -> np.ndarray:
        """uint8 `[2, s, s, c]`."""
        rngs = (np.random.default_rng([self.seed, step, position, view]) for view in (0, 1))
        return np.stack([self.crop(rng, image) for rng in rngs])


@dataclasses.dataclass(frozen=True)
class OneCrop:
    """The crop of an image that evaluation sees."""

    crop: Callable[[np.ndarray], np.ndarray]

    def __call__(self, image: np.ndarray, step: int, position: int) -> np.ndarray:
        """uint8 `[s, s, c]`."""
        return self.crop(image)


def stream(
    source: Source,
    order: Callable[[int], np.ndarray],
    steps: range,
    bad: Bad,
    *,
    prepare: Callable[[np.ndarray, int, int], np.ndarray] | None = None,
    replace: bool = True,
    rows: slice = slice(None),
    workers: int = 0,
) -> Iterator[Batch]:
    """The batches of some steps, read ahead in the background.

    Args:
      source: of the images.
      order: numbers of the images in the batch of a step.
      steps: which.
      bad: is told of images that cannot be read.
      prepare: (image, step, position in the batch) -> uint8 array, such as `TwoCrops`.
      replace: put the next readable image in the place of an unreadable one.
      rows: the part of each batch to read; positions count in the whole batch.
      workers: processes that read; 0: threads of this process.
    """
    import grain
    from absl import flags

    load = _Load(source, order, rows, prepare, replace)
    batches = grain.MapDataset.range(steps.start, steps.stop).map(load)
    threads = os.cpu_count() or 1
    if workers:
        if not flags.FLAGS.is_parsed():  # Grain's processes ask for flags, which absl's apps parse
            flags.FLAGS.mark_as_parsed()
        batches = batches.to_iter_dataset(grain.ReadOptions(1, 2)).mp_prefetch(
            grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=2),
            worker_init_fn=_follow_parent,
        )
    else:
        batches = batches.to_iter_dataset(grain.ReadOptions(threads, threads + 2))
    iterator = iter(batches)
    try:
        for batch, found in iterator:
            bad.report(dict(found))
            # What workers send lies in shared memory, which Grain takes back.
            copied = Batch(*(map(np.array, batch) if workers else batch))
            del batch
            yield copied
    except RuntimeError as error:
        if "Worker process" not in str(error):
            raise
        raise UserError(
            "a process that reads images was lost, perhaps for lack of memory: the same command "
            "goes on from the last checkpoint, if need be with fewer --workers"
        ) from error
    finally:
        iterator.close()
        del iterator
        gc.collect()  # it is part of a cycle, with the last batches of shared memory


def in_memory(
    source: Source,
    bad: Bad,
    cache_dir: Path | None = None,
    track: Callable[[Sequence[int]], Iterable[int]] = iter,
) -> Arrays:
    """All images of a source whose images have one size, decoded once.

    The place of an unreadable image is taken by the next one, as in `stream`.

    Args:
      source: of the images.
      bad: is told of images that cannot be read.
      cache_dir: keeps the decoded images for the next time, if decoding them took a while.
      track: shows how far the work is.
    """
    if isinstance(source, Arrays):
        return source
    require(
        source.image_shape is not None,
        f"the images of {source.origin} differ in size, so they cannot stay in memory as one "
        "array: take --pipeline streaming",
    )
    file = None if cache_dir is None else cache_dir / f"{source.digest}-{DECODER}.npy"
    found = None if file is None else _cached(file)
    began = time.monotonic()
    if found is None:
        images = np.empty((len(source), *source.image_shape), np.uint8)
        labels, unreadable = np.empty(len(source), np.int32), {}

        def decode(i: int) -> dict[int, str]:
            sample, missing = read(source, i)
            if sample:
                images[i], labels[i] = sample["image"], sample["label"]
            return missing

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            try:
                for missing in in_order(pool, decode, track(range(len(source)))):
                    unreadable |= missing
                    bad.report(missing)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        # What could not be read today may be readable tomorrow.
        if file is not None and not unreadable and time.monotonic() - began > SLOW_SECONDS:
            _keep(file, images, labels)
    else:
        images, labels = found
    return Arrays(images, labels, source.class_names, source.origin)


def read(source: Source, index: int, replace: bool = True) -> tuple[dict[str, Any], dict[int, str]]:
    """Sample `index` with its number as "index", or the next one that can be read.

    Returns:
      The sample, empty if there is none, and why images before it could not be read.
    """
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


def in_order(pool: concurrent.futures.Executor, function: Callable, items: Iterable) -> Iterator:
    """Results of a function in the order of the items, with little more than needed in flight."""
    waiting: list[concurrent.futures.Future] = []
    for item in items:
        waiting.append(pool.submit(function, item))
        if len(waiting) >= 256:
            yield waiting.pop(0).result()
    for future in waiting:
        yield future.result()


class _Load:
    """Reads the batch of a step; picklable, as worker processes need it."""

    def __init__(self, source, order, rows, prepare, replace):
        self._source, self._order, self._rows = source, order, rows
        self._prepare, self._replace = prepare, replace

    def __call__(self, step: int) -> tuple[tuple, tuple]:
        wanted = self._order(step)
        images, labels, indices, bad = [], [], [], {}
        for position in range(len(wanted))[self._rows]:
            sample, missing = read(self._source, int(wanted[position]), self._replace)
            bad |= missing
            image = sample.get("image")
            if image is not None and self._prepare is not None:
                image = self._prepare(image, step, position)
            images.append(image)
            labels.append(sample.get("label", -1))
            indices.append(sample.get("index", -1))
        read_ones = [image for image in images if image is not None]
        blank = np.zeros_like(read_ones[0] if read_ones else self._blank())
        images = np.stack([blank if image is None else image for image in images])
        found = Batch(images, np.array(labels, np.int32), np.array(indices, np.int32))
        return tuple(found), tuple(bad.items())

    def _blank(self) -> np.ndarray:
        shape = self._source.image_shape or (64, 64, 3)
        blank = np.zeros(shape, np.uint8)
        return blank if self._prepare is None else self._prepare(blank, 0, 0)


def _follow_parent(index: int, count: int) -> None:
    """Leaves Ctrl-C, which a terminal sends to all, to the parent process; ends when that does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()

    def watch():
        while os.getppid() == parent:
            time.sleep(2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _cached(file: Path) -> tuple[np.ndarray, np.ndarray] | None:
    """Images and labels of an earlier time; None if they are not there whole."""
    try:
        labels = np.load(_labels_file(file))
        images = np.load(file, mmap_mode="r")
    except (OSError, ValueError, EOFError):
        return None
    whole = images.dtype == np.uint8 and images.ndim == 4 and len(images) == len(labels)
    return (images, labels) if whole else None


def _keep(file: Path, images: np.ndarray, labels: np.ndarray) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        for path, array in ((_labels_file(file), labels), (file, images)):
            part = path.with_suffix(f".{os.getpid()}.part")
            try:
                with open(part, "wb") as stream:
                    np.save(stream, array)
                os.replace(part, path)  # only whole files bear the name
            finally:
                part.unlink(missing_ok=True)
        logger.info("decoded images are kept in %s", file)
    except OSError as error:
        logger.warning("decoded images are not kept for the next time: %s", error)


def _labels_file(file: Path) -> Path:
    return file.with_name(f"{file.stem}-labels.npy")
