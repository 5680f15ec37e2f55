"""Images in files, in the ImageFolder layout: SPLIT/CLASS/file in a folder or a zip file."""

import collections
import concurrent.futures
import functools
import hashlib
import logging
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

import numpy as np

from hypersphere_jax.config import UserError, require
from hypersphere_jax.data.decode import decode, image_size, reason
from hypersphere_jax.data.pipeline import in_order
from hypersphere_jax.data.source import Sample, UnreadableImage
from hypersphere_jax.data.subsets import check_classes, some

logger = logging.getLogger("hypersphere_jax")

EXTENSIONS = ("jpg", "jpeg", "png", "ppm", "pgm", "pbm", "bmp", "tif", "tiff", "webp", "gif")
# What a split may be called, besides its own name.
SYNONYMS = {"test": ("val", "validation"), "val": ("validation", "test")}
HIDDEN = ("__MACOSX", "Thumbs.db", "desktop.ini")  # besides names that start with a dot
THREADS = 16  # for listing and reading headers: a file server takes its time
HEADERS = 16  # read by a thread at a time
MAX_BYTES = 2**30  # of one file: more than the largest image has without compression
# The digest of a folder reads all files of so many bytes in total; of more, so many files.
DIGEST_BYTES = 2**28
DIGEST_FILES = 500


class NoSplit(UserError):
    """There is no such split; everything else may be in order."""


class ImageFiles:
    """A source over one split of a folder or zip file of images.

    A folder holds SPLIT/CLASS/file (files may lie deeper still), or SPLIT.zip. A zip file holds
    SPLIT/CLASS/file, perhaps below one common folder, or CLASS/file if it is called SPLIT.zip.
    Where there is no folder `test`, `val` or `validation` is it. Labels number the classes in
    sorted order, and files are sorted, as torchvision's ImageFolder does. Hidden files are ignored;
    files without an image's extension are left out and logged.

    Args:
      root: the folder or zip file; no name and no link leads out of it.
      split: "train", "test" or "val".
      classes: names of the classes to keep, in any order; None: all, or those of `like`.
      on_bad: whether empty files, encrypted ones, and classes without an image are an error, or
        are logged: such files then raise `UnreadableImage` when they are read.
      like: the training split, whose classes and labels are this split's too. Classes without an
        image here are in order then.

    Raises:
      NoSplit: when there is no such split.
      UserError: for files that are not as described.
    """

    def __init__(
        self,
        root: Path,
        split: str,
        classes: Sequence[str] | None = None,
        on_bad: Literal["error", "skip"] = "error",
        like: "ImageFiles | None" = None,
    ):
        try:
            listing = _list_split(Path(root), split)
            self.origin, self._reader = listing.origin, listing.reader
            self._is_part = classes is not None or (like is not None and like._is_part)
            self.class_names = self._choose_classes(listing.classes, classes, like)
            with_folder = set(self.class_names) & set(listing.classes)
            files = listing.files(with_folder)
        except OSError as error:
            raise UserError(f"{root} cannot be read: {error}") from error
        # By folder, then by name: files of inner folders come last.
        files = sorted(files, key=lambda file: file.name.rpartition("/"))
        images = [file for file in files if _is_image(file.name)]
        others = [file.name for file in files if not _is_image(file.name)] + listing.strays
        if others:
            logger.warning(
                "%s: left out files that are no images in a class folder (%d): %s",
                *(self.origin, len(others), some(others)),
            )
        self._names = [file.name for file in images]
        self._sizes = np.array([file.size for file in images], np.int64)
        self._stamps = np.array([file.stamp for file in images], np.int64)
        self._faults = {file.name: file.fault for file in images if file.fault}
        label_of = {name: label for label, name in enumerate(self.class_names)}
        labels = (label_of[name.partition("/")[0]] for name in self._names)
        self.labels = np.fromiter(labels, np.int32, len(images))
        require(len(self) > 0, f"{self.origin} has no image ({', '.join(EXTENSIONS)})")
        with_images = {self.class_names[label] for label in np.unique(self.labels)}
        empty = sorted(with_folder - with_images)
        for bad, what in (
            (empty, "classes without an image"),
            ([f"{name} {fault}" for name, fault in self._faults.items()], "unreadable images"),
        ):
            if bad:
                text = f"{self.origin}: {what} ({len(bad)}): {some(bad)}"
                require(
                    on_bad == "skip",
                    f"{text}; repair or remove them, or skip them: --bad-images skip",
                )
                logger.warning("%s", text)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, i: int) -> Sample:
        try:
            image = decode(self._read(i))
            known = self.__dict__.get("image_shape")
            if known is not None and image.shape != known:
                raise ValueError(f"has the shape {image.shape}, all others {known}")
        except Exception as error:  # damaged files bring about many types
            name = f"{self.origin}{self._reader.separator}{self._names[i]}"
            raise UnreadableImage(f"{name}: {reason(error)}") from error
        return {"image": image, "label": int(self.labels[i])}

    @functools.cached_property
    def image_shape(self) -> tuple[int, int, int] | None:
        """From the headers of all images, up to the first that differs."""
        sizes: set[tuple[int, int]] = set()
        parts = [range(len(self))[i : i + HEADERS] for i in range(0, len(self), HEADERS)]
        with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
            for found in in_order(pool, lambda part: set(map(self._image_size, part)), parts):
                sizes |= found - {None}
                if len(sizes) > 1:
                    return None
        return (*sizes.pop(), 3) if sizes else None

    @functools.cached_property
    def digest(self) -> str:
        """Of names, sizes and contents; it does not depend on where the files are.

        A zip file gives the CRC of each content. Of a large folder only some contents are read,
        evenly spread, and the times of the last change of all: copying it has to keep the times.
        """
        digest = hashlib.sha256(repr(self.class_names).encode())
        is_folder = isinstance(self._reader, _FolderReader)
        in_part = is_folder and np.maximum(self._sizes, 0).sum() > DIGEST_BYTES
        stamps = np.zeros_like(self._stamps) if is_folder and not in_part else self._stamps
        for file in zip(self._names, self._sizes.tolist(), stamps.tolist(), strict=True):
            digest.update("{}\0{}\0{}\0".format(*file).encode(errors="surrogateescape"))
        if is_folder:
            step = max(1, len(self) // DIGEST_FILES) if in_part else 1
            with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
                for content in pool.map(self._content_digest, range(0, len(self), step)):
                    digest.update(content)
        return digest.hexdigest()[:16]

    def _content_digest(self, i: int) -> bytes:
        try:
            return hashlib.sha256(self._read(i)).digest()
        except Exception:  # reported when the image is read
            return b""

    def _image_size(self, i: int) -> tuple[int, int] | None:
        try:
            with self._reader.open(self._checked_name(i)) as stream:
                return image_size(stream)
        except Exception:  # reported when the image is read
            return None

    def _read(self, i: int) -> bytes:
        data = self._reader.read(self._checked_name(i))
        if len(data) != self._sizes[i]:
            raise ValueError(f"no longer has the {self._sizes[i]} bytes that it had at first")
        return data

    def _checked_name(self, i: int) -> str:
        name = self._names[i]
        if name in self._faults:
            raise ValueError(self._faults[name])
        return name

    def _choose_classes(
        self, there: Sequence[str], classes: Sequence[str] | None, like: "ImageFiles | None"
    ) -> tuple[str, ...]:
        if like is None:
            check_classes(classes or (), there, self.origin)
            return tuple(sorted(there if classes is None else set(classes)))
        if not self._is_part:
            unknown = sorted(set(there) - set(like.class_names))
            require(
                not unknown,
                f"{self.origin} has classes that {like.origin} lacks ({len(unknown)}): "
                f"{some(unknown)}",
            )
        missing = sorted(set(like.class_names) - set(there))
        if missing:
            logger.warning(
                "%s: no folder for some classes (%d of %d): %s",
                *(self.origin, len(missing), len(like.class_names), some(missing)),
            )
        return like.class_names


def open_image_files(
    root: Path,
    classes: Sequence[str] | None = None,
    on_bad: Literal["error", "skip"] = "error",
) -> tuple[ImageFiles, ImageFiles | None]:
    """Training and test split with the same labels; None where there is no test split."""
    train = ImageFiles(root, "train", classes, on_bad)
    try:
        return train, ImageFiles(root, "test", on_bad=on_bad, like=train)
    except NoSplit:
        return train, None


def is_image_tree(root: Path) -> bool:
    """Whether a path looks like a zip file, or a folder with a training split of images."""
    if root.suffix == ".zip":
        return root.is_file()
    return (root / "train").is_dir() or (root / "train.zip").is_file()


def read_classes(path: Path) -> tuple[str, ...]:
    """Names of classes from a file: one a line, or the first column of a CSV file.

    Empty lines and what follows a `#` do not count.

    Raises:
      UserError: when there is no such file, or no name in it.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the list of classes {path} cannot be read: {error}") from error
    cells = (line.partition("#")[0].partition(",")[0].strip().strip('"') for line in lines)
    names = tuple(name for name in cells if name)
    require(bool(names), f"the list of classes {path} has no name in it; one is expected a line")
    return names


class _File(NamedTuple):
    name: str  # below the split's folder
    size: int  # bytes; -1 where it is no file
    stamp: int  # time of the last change; of a zip file's member, its CRC
    fault: str | None  # why it cannot be read, as far as that is known without reading it


class _FolderReader(NamedTuple):
    """Reads files of a folder by their names below it, from any thread or process."""

    folder: str
    separator = "/"

    def open(self, name: str) -> BinaryIO:
        return open(os.path.join(self.folder, name), "rb")

    def read(self, name: str) -> bytes:
        with self.open(name) as stream:
            return stream.read()


class _ZipReader(NamedTuple):
    """Reads members of a zip file by their names below `start`, from any thread or process."""

    path: str
    start: str
    stamp: tuple[int, int]
    separator = ": "

    def open(self, name: str) -> BinaryIO:
        return _archive(self.path, os.getpid(), self.stamp).open(self.start + name)

    def read(self, name: str) -> bytes:
        """As `ZipFile.read`, 10 us faster: a tenth of the time that an image of CIFAR-10 takes."""
        archive = _archive(self.path, os.getpid(), self.stamp)
        member, handle = archive.getinfo(self.start + name), archive.fp.fileno()
        # The lengths of the name and the extra field, which end the local header of 30 bytes.
        lengths = os.pread(handle, 4, member.header_offset + 26)
        begin = member.header_offset + 30 + sum(struct.unpack("<HH", lengths))
        data = os.pread(handle, member.compress_size, begin)
        if member.compress_type == zipfile.ZIP_DEFLATED:
            data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, member.file_size + 1)
        if zlib.crc32(data) != member.CRC:
            raise zipfile.BadZipFile("is damaged in the zip file (CRC)")
        return data


class _Listing(NamedTuple):
    origin: str
    reader: _FolderReader | _ZipReader
    classes: list[str]
    strays: list[str]  # files beside the classes
    files: Callable[[Iterable[str]], list[_File]]  # of some classes, in any order


def _list_split(root: Path, split: str) -> _Listing:
    """The folder or zip file of a split."""
    if root.is_file():
        return _list_zip(root, split)
    require(root.is_dir(), f"no file or folder {root}")
    places = [root / name for part in _synonyms(split) for name in (part, f"{part}.zip")]
    found = [p.name for p in places if (p.is_file() if p.suffix else p.is_dir())]
    # ImageNet's own `test` has no classes, as its labels are secret: `val` is the one to use.
    with_classes = [f for f in found if f.endswith(".zip") or next((root / f).glob("*/"), None)]
    path = root / _choose_split(root, split, with_classes or found, os.listdir(root))
    _check_inside(root, path)
    return _list_folder(root, path) if path.is_dir() else _list_zip(path, split)


def _list_folder(root: Path, path: Path) -> _Listing:
    """The files of a folder; symbolic links may not lead out of `root`."""
    folder = os.path.abspath(path)

    def entries(name: str) -> list[os.DirEntry]:
        with os.scandir(os.path.join(folder, name)) as listed:
            found = [entry for entry in listed if not _is_hidden(entry.name)]
        for entry in found:
            if entry.is_symlink():
                _check_inside(root, entry.path)
        return found

    def below(name: str) -> list[_File]:
        files: list[_File] = []
        for entry in entries(name):
            inner = f"{name}/{entry.name}"
            files += below(inner) if entry.is_dir() else [_stat(inner, entry)]
        return files

    def files(classes: Iterable[str]) -> list[_File]:
        with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
            return [file for files in pool.map(below, classes) for file in files]

    top = {entry.name: entry.is_dir() for entry in entries("")}
    classes = [name for name, is_class in top.items() if is_class]
    strays = [name for name, is_class in top.items() if not is_class]
    return _Listing(str(path), _FolderReader(folder), classes, strays, files)


def _stat(name: str, entry: os.DirEntry) -> _File:
    try:
        about = entry.stat()
        if stat.S_ISREG(about.st_mode):
            return _File(name, about.st_size, about.st_mtime_ns, _fault_of_size(about.st_size))
        stamp = about.st_mtime_ns
    except OSError:
        stamp = 0
    return _File(name, -1, stamp, "is no file, or a link to nothing")


def _list_zip(path: Path, split: str) -> _Listing:
    """The files of a split in a zip file, after a check of all names in it."""
    archive, about = os.path.abspath(path), os.stat(path)
    stamp = (about.st_mtime_ns, about.st_size)
    all_members = _archive(archive, os.getpid(), stamp).infolist()
    unsafe = [member.orig_filename for member in all_members if _is_unsafe(member)]
    require(
        not unsafe,
        f"{path} has members that are links or no plain names below it ({len(unsafe)}): "
        f"{some(unsafe)}; make the zip file anew",
    )
    members = {
        member.filename: member
        for member in all_members
        if not any(map(_is_hidden, member.filename.split("/")))
    }
    counts = collections.Counter(m.filename for m in all_members if not m.is_dir())
    twice = [name for name, count in counts.items() if count > 1]
    require(not twice, f"{path} has members twice ({len(twice)}): {some(twice)}")
    folders = {name.rpartition("/")[0] + "/" for name in members}
    tops = {folder.partition("/")[0] for folder in folders} - {""}
    found = {
        part: f"{start}{part}/"
        for part in _synonyms(split)
        for start in (*(f"{top}/" for top in tops if len(tops) == 1), "")
        if any(folder.startswith(f"{start}{part}/") for folder in folders)
    }
    if not found and path.stem in _synonyms(split):
        found = {path.stem: ""}
    start = found[_choose_split(path, split, list(found), sorted(tops))]

    inner = {name[len(start) :]: m for name, m in members.items() if name.startswith(start)}

    def files(classes: Iterable[str]) -> list[_File]:
        wanted = set(classes)
        return [
            _File(name, member.file_size, member.CRC, _fault_of_member(member))
            for name, member in inner.items()
            if name.partition("/")[0] in wanted and "/" in name and not member.is_dir()
        ]

    classes = sorted({name.partition("/")[0] for name in inner if "/" in name})
    strays = sorted(name for name in inner if name and "/" not in name)
    origin = f"{path} ({start})" if start else str(path)
    return _Listing(origin, _ZipReader(archive, start, stamp), classes, strays, files)


@functools.lru_cache(maxsize=4)
def _archive(path: str, process: int, stamp: tuple[int, int]) -> zipfile.ZipFile:
    """A zip file that stays open for all threads of a process."""
    try:
        return zipfile.ZipFile(path)
    except OSError:
        raise
    except Exception as error:  # a damaged directory brings about many types
        raise UserError(
            f"{path} is no whole zip file ({error}): cut short, or still being copied?"
        ) from error


def _choose_split(root: Path, split: str, found: Sequence[str], names: Sequence[str]) -> str:
    """Of the folders and zip files found, the one called as the split, else the only other."""
    if not found:
        names = [name for name in names if not _is_hidden(name)]
        raise NoSplit(
            f"{root} has no split {split!r}: images are expected as train/CLASS/file and "
            "test/CLASS/file (or val/), in a folder or a zip file. There is "
            f"{some(names) or 'nothing'}; if these are the classes, move them into train/, and a "
            "part of the images into test/"
        )
    choice = [name for name in found if Path(name).stem == split] or found
    require(
        len(choice) == 1,
        f"{root} holds {' and '.join(choice)}: which one is the split {split!r}? Rename the other",
    )
    return choice[0]


def _check_inside(root: Path, path: str | Path) -> None:
    folder, target = os.path.realpath(root), os.path.realpath(path)
    require(
        os.path.commonpath([folder, target]) == folder,
        f"{path} is a symbolic link that leads out of {root}, to {target}: pass the folder that "
        "holds the images themselves (and a list of classes for a part of them)",
    )


def _is_unsafe(member: zipfile.ZipInfo) -> bool:
    """Whether it is a link or a device, or its name is absolute, of Windows, or has a `..`."""
    name = member.orig_filename
    kind = stat.S_IFMT(member.external_attr >> 16)
    return (
        kind not in (0, stat.S_IFREG, stat.S_IFDIR)
        or re.match(r"[A-Za-z]:|.*[\\\0]", name, re.DOTALL) is not None
        or any(part in ("", ".", "..") for part in name.removesuffix("/").split("/"))
    )


def _fault_of_member(member: zipfile.ZipInfo) -> str | None:
    if member.flag_bits & 1:
        return "is encrypted"
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return f"is compressed by method {member.compress_type}, only `deflate` can be read"
    return _fault_of_size(member.file_size)


def _fault_of_size(size: int) -> str | None:
    if size == 0:
        return "is empty"
    return None if size <= MAX_BYTES else f"has {size:,} bytes, more than an image can have"


def _synonyms(split: str) -> tuple[str, ...]:
    return (split, *SYNONYMS.get(split, ()))


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name in HIDDEN


def _is_image(name: str) -> bool:
    return name.rpartition(".")[2].lower() in EXTENSIONS
