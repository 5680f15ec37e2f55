"""Description of a source: sizes, classes, channel statistics, and the speed of reading."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from multiprocessing.pool import ThreadPool
from typing import Any

import numpy as np

from hypersphere_jax.configs import require
from hypersphere_jax.data.pipeline import BadImages
from hypersphere_jax.data.source import Shape, Source, UnreadableImage


def describe(
    source: Source,
    bad: BadImages,
    sample: int | None = None,
    track: Callable[[Sequence[int]], Iterable[int]] = iter,
) -> dict[str, Any]:
    """Count the images of a source, and read some of them.

    Args:
      source: the images.
      bad: receives the unreadable images.
      sample: number of images to read, evenly spread. Defaults to all.
      track: passes items through and shows the progress.

    Returns:
      `n`, `unlabeled` and `class_counts` of all images; and from the images that were read the
      counts `read` and `unreadable`, the `smallest` and `largest` shape by size, `mean` and `std`
      of each channel with values in [0, 1], `is_gray`, and `images_per_s` by all threads.

    Raises:
      UserError: for images with different numbers of channels, or if none can be read.
    """
    n = len(source)
    count = min(sample or n, n)
    indices = (np.arange(count) * n // max(count, 1)).tolist()
    started = time.perf_counter()
    found = []
    with ThreadPool() as pool:
        results = pool.imap(partial(_moments, source), indices)
        for index, result in zip(track(indices), results, strict=True):
            if isinstance(result, str):
                bad.report({index: result})
            else:
                found.append(result)
    seconds = time.perf_counter() - started
    require(bool(found), f"no image of {source.origin} can be read")
    shapes = sorted({shape for shape, _, _ in found})
    channels = {shape[2] for shape in shapes}
    require(len(channels) == 1, f"images of {source.origin} have {sorted(channels)} channels")
    pixels, sums, squares = np.sum([moments for _, moments, _ in found], axis=0)
    mean = sums / pixels
    std = np.sqrt(np.maximum(squares / pixels - mean**2, 0))
    labels = source.labels
    counts = np.bincount(labels[labels >= 0], minlength=len(source.class_names))
    return {
        "n": n,
        "class_counts": dict(zip(source.class_names, counts.tolist(), strict=True)),
        "unlabeled": int(np.sum(labels < 0)),
        "read": len(found),
        "unreadable": len(bad.reasons),
        "smallest": min(shapes, key=math.prod),
        "largest": max(shapes, key=math.prod),
        "mean": (mean / 255).tolist(),
        "std": (std / 255).tolist(),
        "images_per_s": count / seconds,
        "is_gray": all(is_gray for _, _, is_gray in found),
    }


def _moments(source: Source, index: int) -> tuple[Shape, np.ndarray, bool] | str:
    """Return shape, moments (float64 `[3, c]`) and whether an image is gray, or why it is bad."""
    try:
        image = source[index]["image"]
    except UnreadableImage as error:
        return str(error)
    # Sums of squared bytes are exact in 64 bits.
    values = image.reshape(-1, image.shape[-1]).astype(np.int64)
    pixels = np.full(image.shape[2], len(values))
    moments = np.stack([pixels, values.sum(0), (values**2).sum(0)]).astype(float)
    return image.shape, moments, bool((image == image[..., :1]).all())
