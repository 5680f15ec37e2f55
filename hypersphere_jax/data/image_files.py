"""Images in files, in the ImageFolder layout: SPLIT/CLASS/file in a folder or a zip file."""

import collections
import concurrent.futures
import functools
import hashlib
import logging
import os
import re
import stat
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Literal, NamedTuple

import numpy as np

from hypersphere_jax.config import UserError, require
from hypersphere_jax.data.decode import decode, image_size, reason
from hypersphere_jax.data.source import Sample, UnreadableImage
from hypersphere_jax.data.subsets import check_classes, some

logger = logging.getLogger("hypersphere_jax")

EXTENSIONS = ("jpg", "jpeg", "png", "ppm", "pgm", "pbm", "bmp", "tif", "tiff", "webp", "gif")
SPLITS = {"train": ("train",), "test": ("test", "val", "validation")}  # and what they are called
HIDDEN = ("__MACOSX", "Thumbs.db", "desktop.ini")  # besides names that start with a dot
THREADS = 16  # for listing and reading headers: a file server takes its time
HEADERS = 16  # read by a thread at a time
MAX_BYTES = 2**30  # of one file: more than the largest image has without compression
# The digest of a folder reads all files of so many bytes in total; of more, so many files.
DIGEST_BYTES = 2**28
DIGEST_FILES = 500


class NoSplit(UserError):
    """There is no such split."""


class ImageFiles:
    """A source over one split of a folder or zip file of images.

    A folder holds SPLIT/CLASS/file (files may lie deeper still), or SPLIT.zip. A zip file holds
    SPLIT/CLASS/file, perhaps below one common folder, or CLASS/file if it is called SPLIT.zip.
    Where there is no folder `test`, `val` or `validation` is it. Classes and files are numbered in
    sorted order, as torchvision's ImageFolder does.

    Args:
      root: the folder or zip file.
      split: "train" or "test".
      classes: names of the classes to keep, in any order; None: all.
      on_bad: whether empty files, encrypted ones, and classes without an image are an error, or
        are logged: such files then raise `UnreadableImage` when they are read.
      like: the training split, whose classes and labels are this split's too.

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
            self.class_names = _choose_classes(listing, classes, like)
            present = set(self.class_names) & set(listing.classes)
            with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
                files = [file for files in pool.map(listing.files, present) for file in files]
        except OSError as error:
            raise UserError(f"{root} cannot be read: {error}") from error
        self.origin, self._archive, self._prefix = listing.origin, listing.archive, listing.prefix
        # By folder, then by name: files of inner folders come last.
        files = sorted(files, key=lambda file: file.name.rpartition("/"))
        images = [file for file in files if file.name.rpartition(".")[2].lower() in EXTENSIONS]
        if others := sorted({file.name for file in files} - {file.name for file in images}):
            message = "%s: left out files that are no images (%d): %s"
            logger.warning(message, self.origin, len(others), some(others))
        require(len(images) > 0, f"{self.origin} has no image ({', '.join(EXTENSIONS)})")
        self._names = [file.name for file in images]
        self._sizes = np.array([file.size for file in images], np.int64)
        self._checksums = np.array([file.checksum for file in images], np.int64)
        self._faults = {file.name: file.fault for file in images if file.fault}
        label_of = {name: label for label, name in enumerate(self.class_names)}
        labels = [label_of[name.partition("/")[0]] for name in self._names]
        self.labels = np.array(labels, np.int32)
        empty = sorted(present - {self.class_names[label] for label in set(labels)})
        faults = [f"{name} {fault}" for name, fault in self._faults.items()]
        for bad, what in ((empty, "classes without an image"), (faults, "unreadable images")):
            if bad:
                text = f"{self.origin}: {what} ({len(bad)}): {some(bad)}"
                require(on_bad == "skip", f"{text}; remove them, or pass --bad-images skip")
                logger.warning("%s", text)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, i: int) -> Sample:
        try:
            image = decode(self._read(i))
        except Exception as error:  # damaged files bring about many types
            raise UnreadableImage(f"{self.origin}/{self._names[i]}: {reason(error)}") from error
        return {"image": image, "label": int(self.labels[i])}

    @functools.cached_property
    def image_shape(self) -> tuple[int, int, int] | None:
        """From the headers of all images, up to the first that differs."""
        sizes: set[tuple[int, int] | None] = {None}
        parts = [range(len(self))[i : i + HEADERS] for i in range(0, len(self), HEADERS)]
        with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
            for others in pool.map(lambda part: set(map(self._image_size, part)), parts):
                sizes |= others
                if len(sizes) > 2:
                    return None
        return next(((*size, 3) for size in sizes if size), None)

    @functools.cached_property
    def digest(self) -> str:
        """Of names, sizes and contents; of a large folder, of some contents, evenly spread."""
        digest = hashlib.sha256(repr(self.class_names).encode())
        for file in zip(self._names, self._sizes.tolist(), self._checksums.tolist(), strict=True):
            digest.update("{}\0{}\0{}\0".format(*file).encode(errors="surrogateescape"))
        if self._archive is None:
            is_large = self._sizes.sum() > DIGEST_BYTES
            step = max(1, len(self) // DIGEST_FILES) if is_large else 1
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
            with self._open(self._names[i]) as stream:
                return image_size(stream)
        except Exception:  # reported when the image is read
            return None

    def _open(self, name: str) -> IO[bytes]:
        if self._archive is None:
            return open(self._prefix + name, "rb")
        return _open_zip(*self._archive, os.getpid()).open(self._prefix + name)

    def _read(self, i: int) -> bytes:
        name = self._names[i]
        if name in self._faults:
            raise ValueError(self._faults[name])
        with self._open(name) as stream:
            return stream.read()


def open_image_files(
    root: Path,
    classes: Sequence[str] | None = None,
    on_bad: Literal["error", "skip"] = "error",
) -> tuple[ImageFiles, ImageFiles | None]:
    """Training and test split with the same labels; None where there is no test split."""
    train = ImageFiles(root, "train", classes, on_bad)
    try:
        return train, ImageFiles(root, "test", classes, on_bad, like=train)
    except NoSplit:
        return train, None


def is_image_tree(root: Path) -> bool:
    """Whether a path looks like a zip file, or a folder with a training split of images."""
    if root.suffix == ".zip":
        return root.is_file()
    return (root / "train").is_dir() or (root / "train.zip").is_file()


def read_classes(path: Path) -> tuple[str, ...]:
    """Names of classes from a file: one a line, or the first column of a CSV file; `#` comments.

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
    name: str  # CLASS/file
    size: int  # bytes
    checksum: int  # of a zip file's member; 0 in a folder
    fault: str | None  # why it cannot be read, as far as that is known without reading it


class _Listing(NamedTuple):
    """What is in the folder or zip file of a split."""

    origin: str
    archive: tuple[str, int] | None  # for `_open_zip`
    prefix: str  # of a file's name, to open it
    classes: list[str]
    files: Callable[[str], list[_File]]  # of a class


def _list_split(root: Path, split: str) -> _Listing:
    if root.is_file():
        return _list_zip(root, split)
    places = [root / name for part in SPLITS[split] for name in (part, f"{part}.zip")]
    splits = [p.name for p in places if (p.is_file() if p.suffix else p.is_dir())]
    # ImageNet's own `test` has no classes, as its labels are secret: `val` is the one to use.
    with_classes = [n for n in splits if n.endswith(".zip") or next((root / n).glob("*/"), None)]
    path = root / _choose_split(root, split, with_classes or splits, os.listdir(root))
    return _list_folder(path) if path.is_dir() else _list_zip(path, split)


def _list_folder(path: Path) -> _Listing:
    def entries(name: str) -> list[os.DirEntry]:
        with os.scandir(path / name) as listed:
            return [entry for entry in listed if not _is_hidden(entry.name)]

    def files(name: str) -> list[_File]:
        listed = []
        for entry in entries(name):
            inner = f"{name}/{entry.name}"
            if entry.is_dir():
                listed += files(inner)
            else:
                size = entry.stat().st_size
                listed.append(_File(inner, size, 0, _fault(size)))
        return listed

    classes = [entry.name for entry in entries("") if entry.is_dir()]
    return _Listing(str(path), None, os.path.abspath(path) + "/", classes, files)


def _list_zip(path: Path, split: str) -> _Listing:
    archive = os.path.abspath(path), os.stat(path).st_mtime_ns
    members = _open_zip(*archive, os.getpid()).infolist()
    unsafe = [member.orig_filename for member in members if _is_unsafe(member)]
    require(
        not unsafe,
        f"{path} has members that are links or no plain names below it ({len(unsafe)}): "
        f"{some(unsafe)}; make the zip file anew",
    )
    counts = collections.Counter(member.filename for member in members if not member.is_dir())
    twice = [name for name, count in counts.items() if count > 1]
    require(not twice, f"{path} has members twice ({len(twice)}): {some(twice)}")
    members = [m for m in members if not any(map(_is_hidden, m.filename.split("/")))]
    folders = {member.filename.rpartition("/")[0] + "/" for member in members}
    tops = {folder.partition("/")[0] for folder in folders} - {""}
    splits = {
        part: f"{start}{part}/"
        for part in SPLITS[split]
        for start in (*(f"{top}/" for top in tops if len(tops) == 1), "")
        if any(folder.startswith(f"{start}{part}/") for folder in folders)
    }
    if not splits and path.stem in SPLITS[split]:
        splits = {path.stem: ""}
    start = splits[_choose_split(path, split, list(splits), sorted(tops))]
    files: dict[str, list[_File]] = {}
    for member in members:
        name = member.filename.removeprefix(start)
        if member.filename.startswith(start) and "/" in name:
            in_class = files.setdefault(name.partition("/")[0], [])
            if not member.is_dir():
                fault = "is encrypted" if member.flag_bits & 1 else _fault(member.file_size)
                in_class.append(_File(name, member.file_size, member.CRC, fault))
    origin = f"{path}/{start}".rstrip("/")
    return _Listing(origin, archive, start, list(files), files.__getitem__)


@functools.lru_cache(maxsize=4)
def _open_zip(path: str, stamp: int, process: int) -> zipfile.ZipFile:
    """A zip file that stays open for all threads of a process; `stamp` is its time of change."""
    try:
        return zipfile.ZipFile(path)
    except Exception as error:  # a damaged directory brings about many types
        message = f"{path} is no whole zip file ({error}): cut short, or still being copied?"
        raise UserError(message) from error


def _choose_split(root: Path, split: str, splits: Sequence[str], names: Sequence[str]) -> str:
    """Of these folders and zip files, the one called as the split, else the only other."""
    if not splits:
        names = [name for name in names if not _is_hidden(name)]
        raise NoSplit(
            f"{root} has no split {split!r}, but {some(names) or 'nothing'}: images are expected "
            "as train/CLASS/file and test/CLASS/file (or val/), in a folder or a zip file"
        )
    choice = [name for name in splits if Path(name).stem == split] or splits
    require(
        len(choice) == 1,
        f"{root} holds {' and '.join(choice)}: which one is the split {split!r}? Rename the other",
    )
    return choice[0]


def _choose_classes(
    listing: _Listing, classes: Sequence[str] | None, like: ImageFiles | None
) -> tuple[str, ...]:
    if like is None:
        check_classes(classes or (), listing.classes, listing.origin)
        return tuple(sorted(listing.classes if classes is None else set(classes)))
    if classes is None:
        check_classes(listing.classes, like.class_names, f"{like.origin} (unlike {listing.origin})")
    return like.class_names


def _is_unsafe(member: zipfile.ZipInfo) -> bool:
    """Whether it is a link or a device, or its name is absolute, of Windows, or has a `..`."""
    is_file = stat.S_IFMT(member.external_attr >> 16) in (0, stat.S_IFREG, stat.S_IFDIR)
    parts = member.orig_filename.removesuffix("/").split("/")
    is_plain = re.search(r"^[A-Za-z]:|[\\\0]", member.orig_filename) is None
    return not is_file or not is_plain or not {"", ".", ".."}.isdisjoint(parts)


def _fault(size: int) -> str | None:
    if size == 0:
        return "is empty"
    return None if size <= MAX_BYTES else f"has {size:,} bytes, more than an image can have"


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name in HIDDEN
