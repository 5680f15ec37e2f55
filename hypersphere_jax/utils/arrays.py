"""Arrays of real numbers in NumPy's files: what a header says is checked before it is believed."""

import contextlib
import json
import math
import os
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal

import numpy as np

from hypersphere_jax.configs import UserError
from hypersphere_jax.utils.files import open_file

HEADER = re.compile(
    r"(?=.*'descr': *'?(?P<dtype>[^',]*))(?=.*'fortran_order': *(?P<order>True|False))"
    r"(?=.*'shape': *\((?P<shape>[^)]*)\))\{[^{}]*\}\s*",
    re.ASCII | re.DOTALL,
)
MAX_HEADER, MAX_AXES = 10_000, 32
MAX_DEFLATED = 1032  # bytes from one that is packed
BLOCK = 2**20  # bytes that are unpacked at a time
DAMAGED = (OSError, ValueError, TypeError, EOFError, MemoryError)
DAMAGED += (RuntimeError, zipfile.BadZipFile, zlib.error)  # the first for encrypted members


def open_array(path: str | Path, name: str | None = None) -> np.ndarray:
    """An array of integers or of floating-point numbers.

    Args:
      path: an .npy file, which is mapped, to be read only; or an .npz file, which is unpacked.
      name: of the array in an .npz file; None if it has one only.

    Raises:
      UserError: in one line, for anything else, or what is damaged.
    """
    with open_file(path) as stream, _readable(path):
        if _is_zip(stream):
            return _member(stream, name)
        array = mapped(stream)
        if stream.read(1):
            raise ValueError("it is longer than its header says")
        return array


def array_names(path: str | Path) -> list[str]:
    """Names of the arrays in an .npz file; none for another file."""
    with open_file(path) as stream, _readable(path):
        return _names(zipfile.ZipFile(stream)) if _is_zip(stream) else []


def mapped(stream: BinaryIO) -> np.ndarray:
    """The array that begins at the place of a file, mapped; the place is behind it then.

    Raises:
      ValueError: where there is none, or less of it than its header says.
    """
    shape, order, dtype, nbytes = _header(stream, os.fstat(stream.fileno()).st_size)
    if nbytes == 0:  # cannot be mapped
        return np.empty(shape, dtype, order)
    begin = stream.tell()
    array = np.memmap(stream, dtype, "r", begin, shape, order)
    stream.seek(begin + nbytes)
    return array


def entry(array: np.ndarray) -> dict[str, Any]:
    """An array's dtype, shape and checksum, as JSON has them."""
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return {"dtype": str(array.dtype), "shape": list(array.shape), "crc32": zlib.crc32(raw)}


def checksum(record: dict[str, Any]) -> int:
    """Of a record of entries by name, in any order."""
    return zlib.crc32(json.dumps(record, sort_keys=True).encode())


def _member(stream: BinaryIO, name: str | None) -> np.ndarray:
    archive = zipfile.ZipFile(stream)
    names = _names(archive)
    name = names[0] if name is None and len(names) == 1 else name
    if name is None or names.count(name) != 1:
        wanted = "one array" if name is None else f"one {name!r}"
        raise ValueError(f"it should hold {wanted}, but has {', '.join(names[:8]) or 'none'}")
    member = archive.getinfo(f"{name}.npy")
    size = os.fstat(stream.fileno()).st_size
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{name} is packed in a way that NumPy does not use")
    if not member.file_size <= MAX_DEFLATED * member.compress_size <= MAX_DEFLATED * size:
        raise ValueError(f"{name} declares {member.file_size:,} bytes, more than can be in there")
    with archive.open(member) as unpacked:
        shape, order, dtype, nbytes = _header(unpacked, member.file_size)
        data = np.empty(nbytes, np.uint8)
        for begin in range(0, nbytes, BLOCK):
            part = data[begin : begin + BLOCK]
            if unpacked.readinto(part) < len(part):  # type: ignore[attr-defined]
                raise ValueError(f"{name} is cut short")
        if unpacked.read(1):
            raise ValueError(f"{name} is longer than its header says")
    return data.view(dtype).reshape(shape, order=order)


def _header(
    stream: IO[bytes], size: int
) -> tuple[tuple[int, ...], Literal["C", "F"], np.dtype, int]:
    """Shape, order, dtype and bytes of the array in a file of this size, of any version."""
    start = stream.read(8)
    if not re.match(rb"\x93NUMPY[\x01-\x03]\x00", start):
        raise ValueError("it is no .npy or .npz file")
    length = int.from_bytes(stream.read(2 if start[6] == 1 else 4), "little")
    text = stream.read(min(length, MAX_HEADER)).decode("latin1").replace('"', "'")
    found = HEADER.fullmatch(text)
    if found is None or len(text) < length:
        raise ValueError("its header is damaged")
    if not re.fullmatch(r"[<>|=]?[fiu][0-9]{1,2}", found["dtype"]):
        raise ValueError(f"it holds {found['dtype']!r}, not integers or floating-point numbers")
    numbers = re.findall("[0-9]+", found["shape"])
    if not re.fullmatch(r"([0-9]+L?(, *|\Z))*", found["shape"]) or len(numbers) > MAX_AXES:
        raise ValueError(f"its header has the shape ({found['shape']})")
    shape, dtype = tuple(map(int, numbers)), np.dtype(found["dtype"])
    nbytes, there = math.prod(shape) * dtype.itemsize, size - stream.tell()
    if nbytes > there:
        raise ValueError(f"its header declares {shape}, {nbytes:,} bytes, but {there:,} follow")
    return shape, "F" if found["order"] == "True" else "C", dtype, nbytes


def _is_zip(stream: BinaryIO) -> bool:
    start = stream.read(2)
    stream.seek(0)
    return start == b"PK"


def _names(archive: zipfile.ZipFile) -> list[str]:
    return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]


@contextlib.contextmanager
def _readable(path: str | Path) -> Iterator[None]:
    try:
        yield
    except DAMAGED as error:
        raise UserError(f"{path} cannot be read as an array of NumPy: {error}") from error
