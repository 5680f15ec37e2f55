"""Files below a folder, or in a zip file: listed with care, since both may come from anybody.

A listing (`FolderListing`, `ZipListing`) is made once; what reads the files later (`FolderReader`,
`ZipReader`) is small and goes to other processes. Between them, a file is its name and a row of
numbers, of which the first two are its size and a stamp that changes with its contents.
"""

import concurrent.futures
import io
import os
import re
import stat
import struct
import threading
import weakref
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

from hypersphere_jax.config import UserError, require
from hypersphere_jax.data.source import UnreadableImage

File = tuple[str, tuple[int, ...]]  # name below the split's folder, numbers

MAX_BYTES = 2**30  # of one file: more than the largest image has without compression
HEAD_BYTES = 2**16
IRREGULAR = -1  # in the place of a size
OUTSIDE = -1  # in the place of an offset
ENCRYPTED = -1  # in the place of a compression method
HEADER = struct.Struct("<4s22sHH")  # of a zip's member: signature, …, lengths of name and extra
THREADS = 16  # wait for a file server
JUNK = ("__MACOSX", "Thumbs.db", "desktop.ini")


def is_junk(name: str) -> bool:
    """Hidden files and what operating systems leave behind."""
    return name.startswith(".") or name in JUNK


def some(items: Sequence[str]) -> str:
    """The first few of many, for one line."""
    more = f" and {len(items) - 3:,} more" if len(items) > 3 else ""
    return ", ".join(items[:3]) + more


def printable(name: str) -> str:
    return name if name.isprintable() else repr(name)


def is_inside(root: str | Path, path: str | Path) -> bool:
    """Whether a path stays in a folder when all symbolic links are followed."""
    root = os.path.realpath(root)
    return os.path.commonpath([root, os.path.realpath(path)]) == root


class FolderListing:
    """The classes and files of a split that is a folder.

    Args:
      root: everything has to lie in there, symbolic links and all.
      path: of the split's folder.
    """

    def __init__(self, root: Path, path: Path):
        self._root = os.path.realpath(root)
        self._path = os.path.abspath(path)
        self.origin = str(path)
        self.reader = FolderReader(self._path)
        self._astray: list[str] = []
        self.classes: list[str] = []
        self.strays: list[str] = []
        self._check_link(self._path)
        for entry in self._entries(""):
            (self.classes if entry.is_dir() else self.strays).append(entry.name)
        self._refuse_astray()

    def files(self, classes: Iterable[str]) -> list[File]:
        """All files of some classes, in any order."""
        with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
            real = [os.path.realpath(self._path)]
            found = list(pool.map(lambda name: self._below(name, real), classes))
        self._refuse_astray()
        return [file for files in found for file in files]

    def _below(self, name: str, above: list[str]) -> list[File]:
        real = os.path.realpath(os.path.join(self._path, name))
        if real in above:
            self._astray.append(f"{printable(name)} (a link to a folder it lies in)")
            return []
        files: list[File] = []
        for entry in self._entries(name):
            inner = f"{name}/{entry.name}"
            if entry.is_dir():
                files += self._below(inner, [*above, real])
            else:
                files.append((inner, _stat(entry)))
        return files

    def _entries(self, name: str) -> list[os.DirEntry]:
        path = os.path.join(self._path, name)
        try:
            with os.scandir(path) as entries:
                found = [entry for entry in entries if not is_junk(entry.name)]
        except OSError as error:
            raise UserError(f"{printable(path)} cannot be listed: {error.strerror}") from error
        return [entry for entry in found if not entry.is_symlink() or self._check_link(entry.path)]

    def _check_link(self, path: str) -> bool:
        inside = is_inside(self._root, path)
        if not inside:
            self._astray.append(f"{printable(path)} (to {printable(os.path.realpath(path))})")
        return inside

    def _refuse_astray(self) -> None:
        require(
            not self._astray,
            f"{self._root} has symbolic links that lead out of it or in a circle "
            f"({len(self._astray)}): {some(self._astray)}; pass the folder that holds the images "
            "themselves (and a list of classes for a part of them)",
        )


def _stat(entry: os.DirEntry) -> tuple[int, int]:
    try:
        about = entry.stat()
    except OSError:  # gone already, or a link to nothing
        return IRREGULAR, 0
    return about.st_size if stat.S_ISREG(about.st_mode) else IRREGULAR, about.st_mtime_ns


class FolderReader:
    """Reads files of a folder; numbers are size and time of the last change."""

    stamps_are_times = True

    def __init__(self, path: str):
        self._path = path

    def title(self, name: str) -> str:
        return printable(os.path.join(self._path, name))

    def fault(self, numbers: Sequence[int]) -> str | None:
        """Why a file cannot be read, as far as that is known without opening it."""
        return _fault_of_size(numbers[0])

    def read(self, name: str, numbers: Sequence[int]) -> bytes:
        """A whole file.

        Raises:
          UnreadableImage: when it is gone, or not as long as it was when it was listed.
        """
        size = numbers[0]
        with self.head(name, numbers) as stream:
            try:
                data = stream.read(size + 1)
            except OSError as error:
                raise UnreadableImage(f"{self.title(name)}: {error.strerror}") from error
        if len(data) != size:
            raise UnreadableImage(
                f"{self.title(name)}: is no longer the {size} bytes that it was at the start"
            )
        return data

    def head(self, name: str, numbers: Sequence[int]) -> BinaryIO:
        """A stream of the file."""
        fault = self.fault(numbers)
        if fault:
            raise UnreadableImage(f"{self.title(name)}: {fault}")
        try:
            return open(os.path.join(self._path, name), "rb")
        except OSError as error:
            raise UnreadableImage(f"{self.title(name)}: {error.strerror}") from error


class ZipListing:
    """The classes and files of a split in a zip file.

    Args:
      path: of the zip file.
      splits: names of the split's folder, the preferred one first.

    Attributes:
      splits: those of the names that are there, by the folder to be entered.
    """

    def __init__(self, path: Path, splits: Sequence[str]):
        files = _members(path)
        self.origin = str(path)
        tops = {name.partition("/")[0] for name in files if "/" in name}
        starts = ["", *(f"{top}/" for top in tops if len(tops) == 1)]
        folders = {name[: name.rfind("/") + 1] for name in files}
        self.splits = {
            split: f"{start}{split}/"
            for split in splits
            for start in starts
            if any(folder.startswith(f"{start}{split}/") for folder in folders)
        }
        if not self.splits and path.stem in splits:
            self.splits = {path.stem: ""}
        self.tops = sorted(tops)
        self._files = files
        self._path = os.path.abspath(path)

    def enter(self, split: str) -> None:
        """Takes one of `splits` as the folder of the classes."""
        start = self.splits[split]
        if start:
            self.origin += f" ({start})"
        self.reader = ZipReader(self._path, start)
        names = [name[len(start) :] for name in self._files if name.startswith(start)]
        self.classes = sorted({name.partition("/")[0] for name in names if "/" in name})
        self.strays = sorted(name for name in names if name and "/" not in name)

    def files(self, classes: Iterable[str]) -> list[File]:
        """All files of some classes, in any order."""
        start, wanted = self.reader.start, set(classes)
        files = []
        for name, numbers in self._files.items():
            inner = name[len(start) :]
            folder, slash, _ = inner.partition("/")
            if name.startswith(start) and slash and folder in wanted and not name.endswith("/"):
                files.append((inner, numbers))
        return files


def _members(path: Path) -> dict[str, tuple[int, ...]]:
    """Numbers of all files and folders in a zip file, after a check of all names."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
        length = os.path.getsize(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    # A damaged directory makes zipfile raise nearly anything.
    except Exception as error:
        raise UserError(
            f"{path} is no whole zip file ({error}): cut short, or still being copied?"
        ) from error
    unsafe = [repr(m.orig_filename) for m in members if _is_unsafe(m)]
    require(
        not unsafe,
        f"{path} has members that are links or no plain names below it ({len(unsafe)}): "
        f"{some(unsafe)}; make the zip file anew",
    )
    found: dict[str, tuple[int, ...]] = {}
    twice = []
    for m in members:
        if m.filename in found and not m.is_dir():
            twice.append(repr(m.filename))
        if not any(is_junk(part) for part in m.filename.split("/")):
            end = m.header_offset + 30 + len(m.filename.encode()) + m.compress_size
            inside = m.header_offset >= 0 and end <= length
            method = m.compress_type if not m.flag_bits & 1 else ENCRYPTED
            offset = m.header_offset if inside else OUTSIDE
            found[m.filename] = (m.file_size, m.CRC, offset, m.compress_size, method)
    require(not twice, f"{path} has members twice ({len(twice)}): {some(twice)}")
    return found


def _is_unsafe(member: zipfile.ZipInfo) -> bool:
    name = member.orig_filename
    kind = stat.S_IFMT(member.external_attr >> 16)
    return (
        kind not in (0, stat.S_IFREG, stat.S_IFDIR)
        or re.match(r"[A-Za-z]:|.*[\\\0]", name, re.DOTALL) is not None
        or any(part in ("", ".", "..") for part in name.removesuffix("/").split("/"))
    )


class ZipReader:
    """Reads members of a zip file, from any thread at once, also after a fork or pickling.

    Numbers are size, CRC, offset, size in the zip file, and compression method.
    """

    stamps_are_times = False

    def __init__(self, path: str, start: str):
        self._path = path
        self.start = start
        self._open_lock = threading.Lock()
        self._handle: int | None = None

    def __reduce__(self) -> tuple:
        return ZipReader, (self._path, self.start)

    def title(self, name: str) -> str:
        return f"{self._path}: {printable(self.start + name)}"

    def fault(self, numbers: Sequence[int]) -> str | None:
        """Why a member cannot be read, as far as the directory says."""
        size, _, offset, _, method = numbers
        if method == ENCRYPTED:
            return "is encrypted"
        if method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            return f"is compressed by method {method}, only `deflate` can be read"
        if offset == OUTSIDE:
            return "lies beyond the end of the zip file: cut short?"
        return _fault_of_size(size)

    def read(self, name: str, numbers: Sequence[int]) -> bytes:
        """A whole member.

        Raises:
          UnreadableImage: when it is not what the zip file's directory says, to the last bit.
        """
        size, crc, _, packed, _ = numbers
        data = self._unpack(name, numbers, packed, size + 1)
        if len(data) != size or zlib.crc32(data) != crc:
            raise UnreadableImage(f"{self.title(name)}: is damaged in the zip file (CRC or size)")
        return data

    def head(self, name: str, numbers: Sequence[int]) -> BinaryIO:
        """A stream of the member's beginning."""
        packed = min(HEAD_BYTES, numbers[3])
        return io.BytesIO(self._unpack(name, numbers, packed, HEAD_BYTES))

    def _unpack(self, name: str, numbers: Sequence[int], packed: int, most: int) -> bytes:
        fault = self.fault(numbers)
        try:
            if fault:
                raise ValueError(fault)
            offset, method = numbers[2], numbers[4]
            signature, *_, name_length, extra = HEADER.unpack(self._pread(HEADER.size, offset))
            if signature != b"PK\3\4":
                raise ValueError("is not where the zip file's directory says: a damaged zip file?")
            data = self._pread(packed, offset + HEADER.size + name_length + extra)
            if method == zipfile.ZIP_DEFLATED:
                return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, most)
            return data[:most]
        except (OSError, EOFError, ValueError, zlib.error, MemoryError) as error:
            why = getattr(error, "strerror", None) or error
            raise UnreadableImage(f"{self.title(name)}: {why}") from error

    def _pread(self, count: int, offset: int) -> bytes:
        with self._open_lock:
            if self._handle is None:
                self._handle = os.open(self._path, os.O_RDONLY)
                weakref.finalize(self, os.close, self._handle)
        data = os.pread(self._handle, count, offset)
        if len(data) < count:
            raise EOFError("the zip file has been cut short")
        return data


def _fault_of_size(size: int) -> str | None:
    if size == IRREGULAR:
        return "is no file, or a link to nothing"
    if size == 0:
        return "is empty"
    return None if size <= MAX_BYTES else f"has {size:,} bytes, more than an image can have"
