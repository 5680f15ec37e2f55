"""Features on disk: written row by row, memory-mapped when read, there whole or not at all.

A file is three arrays in NumPy's format, one after the other: the features (all that `numpy.load`
reads of it), the labels, and a checksum of both. So one rename puts them in place together.
"""

import contextlib
import io
import logging
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.lib import format as npy

from hypersphere_jax.files import is_full, whole_file

logger = logging.getLogger("hypersphere_jax")

# What reading meets in a file that was cut short or altered.
DAMAGED = (ValueError, EOFError, TypeError, OverflowError)


class Features(NamedTuple):
    """`x` float32 `[n, d]`, on disk, and `labels` int32 `[n]` of the images that could be read."""

    x: np.ndarray
    labels: np.ndarray


def read(file: Path) -> Features | None:
    """The features in a file; None when there is none, or it is not as it was written."""
    try:
        with open(file, "rb") as stream:
            return _mapped(stream)
    except OSError:
        return None
    except DAMAGED as error:
        logger.warning("%s is damaged (%s): it is made anew", file, error)
        return None


class Writer:
    """Appends rows to a file that is open for writing and reading.

    Args:
      stream: the file, empty.
      d: dimensions of a row.
    """

    def __init__(self, stream: BinaryIO, d: int):
        self._stream, self._d = stream, d
        self._n, self._checksum = 0, 0
        self._labels: list[np.ndarray] = []
        self._write_header()

    def add(self, x: np.ndarray, labels: np.ndarray) -> None:
        """Writes float32 `[m, d]` and keeps int32 `[m]` for the end."""
        raw = _bytes(x)
        self._stream.write(raw)
        self._checksum = zlib.crc32(raw, self._checksum)
        self._labels.append(labels)
        self._n += len(x)

    def finish(self) -> Features:
        """Writes what comes after the rows, and maps them."""
        labels = np.concatenate(self._labels)
        checksum = np.array(zlib.crc32(_bytes(labels), self._checksum), np.uint32)
        self._stream.write(_npy(labels) + _npy(checksum))
        self._write_header()
        self._stream.flush()
        return _mapped(self._stream)

    def _write_header(self) -> None:
        # NumPy leaves room in it, so that the number of rows can grow.
        shape = (self._n, self._d)
        self._stream.seek(0)
        described = {"descr": "<f4", "fortran_order": False, "shape": shape}
        npy.write_array_header_1_0(self._stream, described)


@contextlib.contextmanager
def writer(file: Path | None, d: int) -> Iterator[Writer]:
    """A writer to a file that takes its place when all went well.

    Where the folder cannot be written (a full disk apart, which is an error), and with no file, it
    writes to a temporary one, which goes when nobody uses its features any more.
    """
    with contextlib.ExitStack() as stack:
        try:
            stream = file and stack.enter_context(whole_file(file))
        except OSError as error:
            if is_full(error):
                raise
            logger.warning("features are not kept for the next time: %s", error)
            stream = None
        yield Writer(stream or stack.enter_context(tempfile.TemporaryFile()), d)


def _mapped(stream: BinaryIO) -> Features:
    """The features of an open file.

    Raises:
      ValueError, EOFError, TypeError, OverflowError: when they are not as they were written.
    """
    stream.seek(0)
    if npy.read_magic(stream) != (1, 0):
        raise ValueError("another version of NumPy's format")
    shape, _, dtype = npy.read_array_header_1_0(stream)
    x = np.memmap(stream, dtype, "r", stream.tell(), shape)
    stream.seek(x.offset + x.nbytes)
    labels, checksum = (npy.read_array(stream, allow_pickle=False) for _ in range(2))
    if zlib.crc32(_bytes(labels), zlib.crc32(_bytes(x))) != checksum or len(labels) != len(x):
        raise ValueError("its checksum differs")
    return Features(x, labels)


def _bytes(array: np.ndarray) -> memoryview:
    return memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def _npy(array: np.ndarray) -> bytes:
    # Not straight to the file: NumPy's own way to do that loses the reason when a disk is full.
    stream = io.BytesIO()
    npy.write_array(stream, array, allow_pickle=False)
    return stream.getvalue()
