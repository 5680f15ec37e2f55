"""NumPy's files of integers and floating-point numbers, and checksums of arrays."""

import contextlib
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from hypersphere_jax.configs import UserError
from hypersphere_jax.utils.files import open_file


def open_array(path: str | Path, name: str | None = None) -> np.ndarray:
    """Return an array of integers or floating-point numbers.

    Args:
      path: `.npy` file, which is memory-mapped read-only, or `.npz` file.
      name: name of the array in an `.npz` file; may be left out if the file contains one array.

    Raises:
      UserError: for a missing or damaged file, an unknown name, or another kind of array.
    """
    with open_file(path) as stream, _readable(path):
        if not _is_archive(stream):
            return _checked(np.load(path, mmap_mode="r", allow_pickle=False))
        with np.load(stream, allow_pickle=False) as archive:
            names = archive.files
            if name is None and len(names) == 1:
                (name,) = names
            if names.count(name) != 1:
                wanted = name or "a single array"
                raise ValueError(f"expected {wanted}, found {', '.join(names[:8]) or 'no arrays'}")
            return _checked(archive[name])


def array_names(path: str | Path) -> list[str]:
    """Return the names of the arrays in an `.npz` file; an empty list for other files."""
    with open_file(path) as stream, _readable(path):
        if not _is_archive(stream):
            return []
        with np.load(stream, allow_pickle=False) as archive:
            return list(archive.files)


def entry(array: np.ndarray) -> dict[str, Any]:
    """Return dtype, shape and checksum of an array as JSON values."""
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return {"dtype": str(array.dtype), "shape": list(array.shape), "crc32": zlib.crc32(raw)}


def checksum(record: dict[str, Any]) -> int:
    """Return the checksum of a dict of JSON values, independent of the order of its keys."""
    return zlib.crc32(json.dumps(record, sort_keys=True).encode())


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
    """Turn the many kinds of exceptions for damaged files into UserError."""
    try:
        yield
    except Exception as error:
        line = str(error).partition("\n")[0]
        raise UserError(f"{path} cannot be read as a NumPy array: {line}") from error
