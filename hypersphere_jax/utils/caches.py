"""Caches: files of arrays that are written atomically and read only if their checksum matches.

A cache file contains arrays in NumPy's format, of which `numpy.load` reads the first, and a last
line with the name of the file and a checksum. The name contains a fingerprint of everything that
the arrays depend on.
"""

import contextlib
import hashlib
import logging
import time
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from hypersphere_jax.utils.files import atomic_write

logger = logging.getLogger("hypersphere_jax")

SLOW_SECONDS = 1.0  # arrays that take less time to compute are not cached


def fingerprint(*parts: str | bytes | np.ndarray) -> str:
    """Return 16 hexadecimal digits that identify the concatenated bytes of the parts."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            part = part.encode(errors="surrogateescape")
        elif isinstance(part, np.ndarray):
            part = np.ascontiguousarray(part)
        digest.update(part)
    return digest.hexdigest()[:16]


def read(file: Path | None) -> list[np.ndarray] | None:
    """Return the arrays of a cache file, memory-mapped, or None if it is missing or damaged."""
    if file is None or not file.is_file():
        return None
    try:
        with open(file, "rb") as stream:
            content = np.memmap(stream, np.uint8, "r")
            end = max(0, len(content) - len(_last_line(file.name, b"")))
            if content[end:].tobytes() != _last_line(file.name, content[:end]):
                raise ValueError("the checksum does not match")
            stream.seek(0)
            arrays = []
            while stream.tell() < end:
                arrays.append(_mapped(stream))
            return arrays
    except (OSError, ValueError) as error:
        logger.warning("%s cannot be used (%s): it is computed again", file, error)
        return None


def write(file: Path, *arrays: np.ndarray) -> None:
    """Write a cache file."""
    with atomic_write(file) as stream:
        for array in arrays:
            np.save(stream, array)
        stream.flush()
        content = np.memmap(stream, np.uint8, "r")
        stream.seek(0, 2)
        stream.write(_last_line(file.name, content))


def write_if_slow(file: Path | None, started: float, *arrays: np.ndarray) -> None:
    """Cache arrays whose computation took more than `SLOW_SECONDS`, or replace a damaged file.

    `started` is `time.monotonic()` at the start of the computation. A full disk is ignored.
    """
    if file is not None and (time.monotonic() - started > SLOW_SECONDS or file.exists()):
        with contextlib.suppress(OSError):
            write(file, *arrays)


def _last_line(name: str, content: bytes | np.ndarray) -> bytes:
    return f"\n{name} {zlib.crc32(content):08x}\n".encode()


def _mapped(stream: BinaryIO) -> np.ndarray:
    """Memory-map the next array of a file that `numpy.save` wrote, and advance past it."""
    np.lib.format.read_magic(stream)
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    order: Any = "F" if is_fortran else "C"
    array = np.empty(shape, dtype, order)
    start = stream.tell()
    if array.nbytes:
        array = np.memmap(stream, dtype, "r", start, shape, order)
    stream.seek(start + array.nbytes)
    return array
