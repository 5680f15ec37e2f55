"""Files in a folder or a zip file, without junk, under the same names on every system."""

import contextlib
import functools
import os
import unicodedata
import zipfile
from pathlib import Path
from typing import IO, NamedTuple

from hypersphere_jax.configs import UserError
from hypersphere_jax.data.threads import thread_pool
from hypersphere_jax.utils.files import open_file

# Ignored in any case, like names that start with a dot.
JUNK = ("__macosx", "thumbs.db", "ehthumbs.db", "desktop.ini", "@eadir", "$recycle.bin")
THREADS = 16  # for listing folders and reading headers, which may wait for a file server
UTF8_FLAG = 0x800  # bit of a zip file's member with a UTF-8 name

nfc = functools.partial(unicodedata.normalize, "NFC")


class File(NamedTuple):
    """A file, or a folder if its name ends with a slash."""

    name: str
    size: int  # bytes; 0 if the file cannot be read
    checksum: int  # CRC-32 in a zip file, 0 in a folder


class Folder:
    """The files in and below a folder."""

    def __init__(self, path: Path):
        self.path = os.path.abspath(path)

    def files(self) -> list[File]:
        """List files and folders, level by level. Links are followed, except to folders above."""
        files = []
        level = [""]
        with thread_pool(THREADS) as pool:
            while level:
                found = [file for scanned in pool.map(self._scan, level) for file in scanned]
                level = [file.name for file in found if file.name.endswith("/")]
                files += found
        return files

    def open(self, name: str) -> IO[bytes]:
        """Open a listed file."""
        return open_file(f"{self.path}/{name}")

    def _scan(self, prefix: str) -> list[File]:
        files = []
        here = os.path.realpath(f"{self.path}/{prefix}") + "/"
        with os.scandir(here) as entries:
            for entry in entries:
                name = prefix + entry.name
                if is_junk(entry.name):
                    continue
                if not _is_folder(entry):
                    files.append(File(name, _size(entry), 0))
                elif not here.startswith(os.path.realpath(entry.path) + "/"):
                    files.append(File(f"{name}/", 0, 0))
        return files


class Archive:
    """The files in a zip file."""

    def __init__(self, path: Path):
        self.path = os.path.abspath(path)
        self._modified = os.stat(path).st_mtime_ns

    def files(self) -> list[File]:
        """List files, and folders that have an entry."""
        return [
            File(name, member.file_size, member.CRC)
            for name, member in self._open()[1].items()
            if name and not any(map(is_junk, name.split("/")))
        ]

    def open(self, name: str) -> IO[bytes]:
        """Open a listed file."""
        archive, members = self._open()
        return archive.open(members[name])

    def _open(self) -> tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]:
        return _open_zip(self.path, self._modified, os.getpid())


@functools.lru_cache(maxsize=64)
def _open_zip(
    path: str, modified: int, process: int
) -> tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]:
    """Open a zip file once per process and modification, and return its members by name."""
    open_file(path).close()  # refuses pipes
    try:
        archive = zipfile.ZipFile(path)
    except Exception as error:  # a damaged directory raises many types
        message = f"{path} is not a complete zip file ({error}); copy or download it again"
        raise UserError(message) from error
    return archive, {_member_name(member): member for member in archive.infolist()}


def _member_name(member: zipfile.ZipInfo) -> str:
    """Return the name of a member with slashes, relative to the zip file."""
    name = member.filename
    if not member.flag_bits & UTF8_FLAG:
        with contextlib.suppress(UnicodeError):  # macOS writes UTF-8 without the flag
            name = name.encode("cp437").decode()
    return name.replace("\\", "/").removeprefix("./").lstrip("/")


def open_place(path: Path) -> Folder | Archive:
    """Open a folder or a zip file; UserError for any other file."""
    if path.is_dir():
        return Folder(path)
    is_zip = path.is_file() and zipfile.is_zipfile(path)  # reading a pipe would wait for ever
    if path.suffix.lower() != ".zip" and not is_zip:
        raise UserError(f"{path} is neither a folder nor a zip file of images")
    return Archive(path)


def is_junk(name: str) -> bool:
    """Return whether a file or folder is hidden, or metadata of an operating system."""
    return name.startswith(".") or name.lower() in JUNK


def _is_folder(entry: os.DirEntry) -> bool:
    with contextlib.suppress(OSError):  # a loop of links
        return entry.is_dir()
    return False


def _size(entry: os.DirEntry) -> int:
    with contextlib.suppress(OSError):  # a broken link
        return entry.stat().st_size
    return 0
