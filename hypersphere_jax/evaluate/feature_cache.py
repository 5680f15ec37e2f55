"""Features on disk: written batch by batch, memory-mapped when read, there whole or not at all.

A file is a cache (`cache_files`) of two arrays: the features and the labels.
"""

import contextlib
import logging
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.lib import format as npy

from hypersphere_jax.utils import caches
from hypersphere_jax.utils.arrays import mapped
from hypersphere_jax.utils.files import atomic_write

logger = logging.getLogger("hypersphere_jax")


class Features(NamedTuple):
    """`x` float32 `[n, d]`, on disk, and `labels` int32 `[n]` of the images that could be read."""

    x: np.ndarray
    labels: np.ndarray


def read(file: Path) -> Features | None:
    """The features in a file; None when there is none, or none that can be taken."""
    arrays = caches.read(file)
    return Features(*arrays) if arrays else None


def write(
    batches: Iterable[tuple[tuple[dict[str, np.ndarray]], np.ndarray]],
    files: dict[str, Path | None],
) -> dict[str, Features]:
    """Writes each layer to its file, which gets its name when it is complete.

    Batches are of the layers float32 `[b, d]` of one view, and labels int32 `[b]`. A layer without
    a file, or whose file cannot be opened, has a temporary one.
    """
    labels, widths = [], {}
    with contextlib.ExitStack() as stack:
        streams = {layer: _opened(file, stack) for layer, file in files.items()}
        for (layers,), labels_of_batch in batches:
            for layer, x in layers.items():
                if layer not in widths:
                    widths[layer] = x.shape[1]
                    write_header(streams[layer], (0, x.shape[1]))
                streams[layer].write(np.ascontiguousarray(x).data)
            labels.append(labels_of_batch)
        y = np.concatenate(labels).astype("<i4")
        for layer, stream in streams.items():
            npy.write_array(stream, y)
            stream.seek(0)
            write_header(stream, (len(y), widths[layer]))
            caches.seal(stream, getattr(files[layer], "name", ""))
            stream.seek(0)
        return {layer: Features(mapped(s), mapped(s)) for layer, s in streams.items()}


def _opened(file: Path | None, stack: contextlib.ExitStack) -> BinaryIO:
    try:
        if file is not None:
            return stack.enter_context(atomic_write(file))
    except OSError as error:
        logger.warning("features are not kept for the next time: %s", error)
    return stack.enter_context(tempfile.TemporaryFile())


def write_header(stream: BinaryIO, shape: tuple[int, int]) -> None:
    """NumPy's header of float32 `shape`, which has room for the number of rows to grow."""
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(stream, header)
