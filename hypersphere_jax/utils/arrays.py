"""NumPy's files of integers and floating-point numbers, and checksums of arrays."""

import contextlib
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
    with _loaded(path) as array:
        if isinstance(array, np.lib.npyio.NpzFile):
            names = array.files
            if name is None and len(names) == 1:
                (name,) = names
            if names.count(name) != 1:
                wanted = name or "a single array"
                raise ValueError(f"expected {wanted}, found {', '.join(names[:8]) or 'no arrays'}")
            array = array[name]
        if not isinstance(array, np.ndarray):  # NumPy returns other members of a zip file as bytes
            raise ValueError("it contains no array")
        if array.dtype.kind not in "fiu":
            raise ValueError(f"its dtype is {array.dtype}; use integers or floating-point numbers")
        return array


def array_names(path: str | Path) -> list[str]:
    """Return the names of the arrays in an `.npz` file; an empty list for other files."""
    with _loaded(path) as loaded:
        return list(getattr(loaded, "files", []))


@contextlib.contextmanager
def _loaded(path: str | Path) -> Iterator[Any]:
    """Load a file, and turn the many kinds of exceptions for damaged files into UserError."""
    with open_file(path) as stream:
        start = stream.read(6)
        stream.seek(0)
        is_archive = start.startswith(b"PK")
        try:
            if not (is_archive or start == b"\x93NUMPY"):
                raise ValueError("it is not an .npy or .npz file")
            if is_archive:
                with np.load(stream, allow_pickle=False) as archive:
                    yield archive
            else:
                yield np.load(path, mmap_mode="r", allow_pickle=False)
        except Exception as error:
            line = str(error).partition("\n")[0]
            raise UserError(f"{path} cannot be read as a NumPy array: {line}") from error


def entry(array: np.ndarray) -> dict[str, Any]:
    """Return dtype, shape and checksum of an array as JSON values."""
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return {"dtype": str(array.dtype), "shape": list(array.shape), "crc32": zlib.crc32(raw)}


def checksum(record: dict[str, Any]) -> int:
    """Return the checksum of a dict of JSON values, independent of the order of its keys."""
    return zlib.crc32(json.dumps(record, sort_keys=True).encode())
