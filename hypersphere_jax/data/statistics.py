"""Sizes, classes, means and deviations of a source, and how fast it is read."""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from hypersphere_jax.configs import require
from hypersphere_jax.data.pipeline import BadImages, read
from hypersphere_jax.data.source import Source
from hypersphere_jax.data.threads import thread_pool


class Statistics(NamedTuple):
    """Of a source; shapes and values are of the images that were read."""

    n: int
    class_counts: dict[str, int]
    unlabelled: int
    read: int
    unreadable: int
    smallest: tuple[int, int, int]  # (h, w, c), by area
    largest: tuple[int, int, int]
    mean: tuple[float, ...]  # of each channel over all pixels, values in [0, 1]
    std: tuple[float, ...]
    images_per_s: float  # read by all threads of this process
    grey: bool  # whether the channels of each image are alike


def statistics(
    source: Source,
    bad: BadImages,
    sample: int | None = None,
    track: Callable[[Sequence[int]], Iterable[int]] = iter,
) -> Statistics:
    """Counts a source's images, and reads `sample` of them (None: all), evenly spread.

    Raises:
      UserError: for images whose numbers of channels differ, or when none can be read.
    """
    n = len(source)
    count = min(sample or n, n)
    chosen = (np.arange(count) * n // max(count, 1)).tolist()
    shapes: set[tuple[int, int, int]] = set()
    totals, all_grey = np.zeros(()), True
    began = time.perf_counter()
    with thread_pool(os.cpu_count()) as pool:
        results = pool.map(lambda i: _moments(source, i), chosen)
        for _, (missing, of_image) in zip(track(chosen), results, strict=True):
            bad.report(missing)
            for shape, moments, grey in of_image:
                shapes.add(shape)
                channels = sorted({shape[2] for shape in shapes})
                require(len(channels) == 1, f"images of {source.origin} have {channels} channels")
                totals, all_grey = totals + moments, all_grey and grey
    seconds = time.perf_counter() - began
    require(bool(shapes), f"no image of {source.origin} was read")
    mean, squares = totals[1:] / totals[0]
    std = np.sqrt(np.maximum(squares - mean**2, 0))
    by_area = sorted(shapes, key=lambda shape: (shape[0] * shape[1], shape))
    labels = source.labels
    counts = np.bincount(labels[labels >= 0], minlength=len(source.class_names))
    return Statistics(
        n,
        dict(zip(source.class_names, counts.tolist(), strict=True)),
        int(np.sum(labels < 0)),
        count - len(bad.reasons),
        len(bad.reasons),
        by_area[0],
        by_area[-1],
        tuple((mean / 255).tolist()),
        tuple((std / 255).tolist()),
        count / seconds,
        all_grey,
    )


def _moments(source: Source, index: int) -> tuple[dict[int, str], list[tuple]]:
    """Of an image that can be read: shape; pixels, sums and sums of squares `[3, c]`; if grey."""
    sample, missing = read(source, index, replace=False)
    if not sample:
        return missing, []
    image = sample["image"]
    # Exact: sums of bytes and of their squares fit 64 bits.
    values = image.reshape(-1, image.shape[-1]).astype(np.int64)
    moments = np.stack([np.full(image.shape[2], len(values)), values.sum(0), (values**2).sum(0)])
    grey = bool((image == image[..., :1]).all())
    return missing, [(image.shape, moments.astype(float), grey)]
