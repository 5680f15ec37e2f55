"""Read integer and floating-point arrays from NumPy's files."""

import contextlib
import json
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from hypersphere_jax.configs import UserError
from hypersphere_jax.utils.files import open_file

MAX_DEFLATED = 1032  # bytes that one compressed byte can expand to
# NumPy and zipfile raise many kinds of exceptions for damaged files.
DAMAGED = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    EOFError,
    MemoryError,
    OverflowError,
    RuntimeError,
    SyntaxError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


def open_array(path: str | Path, name: str | None = None) -> np.ndarray:
    """Return an array of integers or floating-point numbers.

    Args:
      path: `.npy` file, which is memory-mapped read-only, or `.npz` file.
      name: name of the array in an `.npz` file; may be left out if the file contains one array.

    Raises:
      UserError: for a missing or damaged file, an unknown name, or another kind of array.
    """
    with open_file(path) as stream, _readable(path):
        if _is_archive(stream):
            return _member(stream, name)
        return _checked(np.load(path, mmap_mode="r", allow_pickle=False))


def array_names(path: str | Path) -> list[str]:
    """Return the names of the arrays in an `.npz` file; an empty list for other files."""
    with open_file(path) as stream, _readable(path):
        if not _is_archive(stream):
            return []
        with np.load(stream, allow_pickle=False) as archive:
            return list(archive.files)


def mapped(stream: BinaryIO) -> np.ndarray:
    """Memory-map the next array of a file that `numpy.save` wrote, and advance past it.

    Raises:
      ValueError: for a damaged array.
    """
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("an array of another version of the format")
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    order: Any = "F" if is_fortran else "C"
    array = np.empty(shape, dtype, order)
    start = stream.tell()
    if array.nbytes:
        array = np.memmap(stream, dtype, "r", start, shape, order)
    stream.seek(start + array.nbytes)
    return _checked(array)


def entry(array: np.ndarray) -> dict[str, Any]:
    """Return dtype, shape and checksum of an array as JSON values."""
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return {"dtype": str(array.dtype), "shape": list(array.shape), "crc32": zlib.crc32(raw)}


def checksum(record: dict[str, Any]) -> int:
    """Return the checksum of a dict of JSON values, independent of the order of its keys."""
    return zlib.crc32(json.dumps(record, sort_keys=True).encode())


def _member(stream: BinaryIO, name: str | None) -> np.ndarray:
    with np.load(stream, allow_pickle=False) as archive:
        names = archive.files
        if name is None and len(names) == 1:
            (name,) = names
        if name is None or names.count(name) != 1:
            wanted = name or "a single array"
            raise ValueError(f"expected {wanted}, found {', '.join(names[:8]) or 'no arrays'}")
        return _checked(archive[name])


def _checked(array: Any) -> np.ndarray:
    if not isinstance(array, np.ndarray):  # NumPy returns other members of a zip file as bytes
        raise ValueError("it contains no array")
    if array.dtype.kind not in "fiu":
        raise ValueError(f"its dtype is {array.dtype}; use integers or floating-point numbers")
    return array


def _is_archive(stream: BinaryIO) -> bool:
    start = stream.read(6)
    stream.seek(0)
    if not start.startswith((b"PK", b"\x93NUMPY")):
        raise ValueError("it is not an .npy or .npz file")
    return start.startswith(b"PK")


@contextlib.contextmanager
def _readable(path: str | Path) -> Iterator[None]:
    try:
        yield
    except DAMAGED as error:
        line = str(error).partition("\n")[0]
        raise UserError(f"{path} cannot be read as a NumPy array: {line}") from error
