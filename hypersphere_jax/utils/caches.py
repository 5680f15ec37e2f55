"""Caches: files of arrays that are taken only whole, and only as what they were written for.

A file is arrays in NumPy's format, of which `numpy.load` reads the first, and a last line with the
name that it was written under, which says all that shaped the arrays, and a checksum.
"""

import logging
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

from hypersphere_jax.utils.arrays import mapped
from hypersphere_jax.utils.files import atomic_write

logger = logging.getLogger("hypersphere_jax")

SLOW_SECONDS = 1.0  # what took longer to find is worth a file


def read(file: Path) -> list[np.ndarray] | None:
    """The arrays in a file, mapped; None when there is none, or none that can be taken."""
    if not file.is_file():
        return None
    try:
        with open(file, "rb") as stream:
            content = np.memmap(stream, np.uint8, "r")
            end = max(0, len(content) - len(_last_line(file.name, b"")))
            if content[end:].tobytes() != _last_line(file.name, content[:end]):
                raise ValueError("damaged, or of something else")
            stream.seek(0)
            arrays = []
            while stream.tell() < end:
                arrays.append(mapped(stream))
            return arrays
    except (OSError, ValueError) as error:
        logger.warning("%s cannot be used (%s): it is computed again", file, error)
        return None


def write(file: Path, *arrays: np.ndarray) -> None:
    """Keeps arrays for the next time."""
    with atomic_write(file) as stream:
        for array in arrays:
            np.save(stream, array)
        seal(stream, file.name)


def seal(stream: BinaryIO, name: str) -> None:
    """Ends a file of arrays that is to have this name."""
    stream.flush()
    content = np.memmap(stream, np.uint8, "r")
    stream.seek(0, 2)
    stream.write(_last_line(name, content))
    stream.flush()


def _last_line(name: str, content: bytes | np.ndarray) -> bytes:
    return f"\n{name} {zlib.crc32(content):08x}\n".encode()
