"""Image files of a folder or a zip file, by layout: SPLIT/CLASS/file, CLASS/file, or flat."""

import collections
import contextlib
import functools
import logging
import os
import posixpath
import unicodedata
import zipfile
from collections.abc import Iterable
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import IO, NamedTuple

from hypersphere_jax.configs import UserError, require
from hypersphere_jax.utils.files import open_file

logger = logging.getLogger("hypersphere_jax")

EXTENSIONS = ("jpg", "jpeg", "png", "ppm", "pgm", "pbm", "bmp", "tif", "tiff", "webp", "gif")
# Names of splits, in any case. The first test split with classes is used.
TRAIN = ("train", "training")
TEST = ("test", "testing", "val", "valid", "validation")
LAYOUTS = "expected SPLIT/CLASS/file with the splits train and test, CLASS/file, or images only"
# Ignored in any case, like names that start with a dot.
JUNK = ("__macosx", "thumbs.db", "ehthumbs.db", "desktop.ini", "@eadir", "$recycle.bin")
THREADS = 16  # for listing folders and reading headers, which may wait for a file server
UTF8_FLAG = 0x800  # bit of a zip file's member with a UTF-8 name

# Names are compared in this form, because macOS decomposes letters.
nfc = functools.partial(unicodedata.normalize, "NFC")


class Folder:
    """The files in and below a folder. Links are followed, except to folders above."""

    readers = THREADS

    def __init__(self, path: Path):
        self.path = os.path.abspath(path)

    def __reduce__(self) -> tuple:
        return Folder, (Path(self.path),)  # processes that read need no list of all files

    @functools.cached_property
    def files(self) -> dict[str, tuple[int, int]]:
        """Size in bytes by name; there is no checksum (0)."""
        paths: list[str] = []
        for path, folders, names in os.walk(self.path, onerror=_raise, followlinks=True):
            folders[:] = [
                name for name in folders if not (_is_junk(name) or _is_loop(f"{path}/{name}"))
            ]
            paths += [f"{path}/{name}" for name in names if not _is_junk(name)]
        with ThreadPool(THREADS) as pool:
            sizes = pool.map(_size, paths)
        start = len(self.path.rstrip("/")) + 1
        return {path[start:]: (size, 0) for path, size in zip(paths, sizes, strict=True)}

    def open(self, name: str) -> IO[bytes]:
        return open_file(f"{self.path}/{name}")


class Archive:
    """The files in a zip file."""

    readers = 1  # others would wait for each other

    def __init__(self, path: Path | str):
        self.path = os.path.abspath(path)
        open_file(path).close()  # refuses pipes
        try:
            self._archive = zipfile.ZipFile(path)
        except Exception as error:  # a damaged directory raises many types
            message = f"{path} is not a complete zip file ({error})"
            raise UserError(f"{message}; pass a folder or a zip file of images") from error
        self._members = {_member_name(member): member for member in self._archive.infolist()}

    def __reduce__(self) -> tuple:
        return Archive, (self.path,)

    @functools.cached_property
    def files(self) -> dict[str, tuple[int, int]]:
        """Size in bytes and checksum by name."""
        return {
            name: (member.file_size, member.CRC)
            for name, member in self._members.items()
            if not name.endswith("/") and not any(map(_is_junk, name.split("/")))
        }

    def open(self, name: str) -> IO[bytes]:
        return self._archive.open(self._members[name])


def _member_name(member: zipfile.ZipInfo) -> str:
    """Return the name of a member with slashes, relative to the zip file."""
    name = member.filename
    if not member.flag_bits & UTF8_FLAG:
        with contextlib.suppress(UnicodeError):  # macOS writes UTF-8 without the flag
            name = name.encode("cp437").decode()
    return name.replace("\\", "/").removeprefix("./").lstrip("/")


class Listing(NamedTuple):
    """The images of a split, or all images of data without splits."""

    place: Folder | Archive
    prefix: str  # start of the names in `place`
    images: list[str]  # names below the prefix: CLASS/file or file
    classes: set[str]  # names of the class folders in the form NFC; empty without labels
    layout: str = ""  # interpretation of data without splits

    @property
    def origin(self) -> str:
        """Path of the folder of the images, through the zip file if they are in one."""
        return f"{self.place.path}/{self.prefix}".rstrip("/")

    def of_classes(self, names: set[str]) -> "Listing":
        """Leave out the images of other classes."""
        if not self.classes:
            return self
        images = [name for name in self.images if nfc(name.partition("/")[0]) in names]
        return self._replace(images=images, classes=self.classes & names)


def find_splits(root: Path) -> tuple[Listing, Listing | None]:
    """List the images of a folder or a zip file.

    Returns:
      The training split, and the test split or None. For data without splits all images, and None.

    Raises:
      UserError: without images, or if splits cannot be distinguished from classes.
    """
    require(root.is_file() or root.is_dir(), f"{root} is neither a folder nor a zip file of images")
    place = Archive(root) if root.is_file() else Folder(root)
    splits = _splits_in(place)
    if "" in splits:
        return splits[""], None
    for path in sorted(root.glob("*.[zZ][iI][pP]")):
        name = path.stem.lower()
        if name in TRAIN + TEST:
            archive = Archive(path)
            splits[name] = _splits_in(archive).get(name) or _split(archive, "")
    kinds = _other_kinds(place.files)
    require(bool(splits), f"{root} contains no images ({kinds or 'no files'}); {LAYOUTS}")
    train = [splits[name] for name in TRAIN if name in splits]
    test = [splits[name] for name in TEST if name in splits]
    require(bool(train), f"{root} has no split 'train', only {', '.join(splits)}; {LAYOUTS}")
    with_classes = [listing for listing in test if listing.classes]
    return train[0], next(iter(with_classes or test), None)


def _splits_in(place: Folder | Archive) -> dict[str, Listing]:
    """Return the splits by their names in lower case, or data without splits under the name ""."""
    images = [name for name in place.files if is_image(name)]
    if not images:
        return {}
    if kinds := _other_kinds(place.files):
        logger.warning("%s: ignored files that are not images (%s)", place.path, kinds)
    base = _common_folder(images)
    folders = _folders(_below(images, base))
    names = {name.lower(): name for name in sorted(folders) if name.lower() in TRAIN + TEST}
    if not names:
        return {"": _without_splits(place, base, _below(images, base))}
    splits = {name: _split(place, f"{base}{names[name]}/") for name in names}
    beside = sorted(folders - set(names.values()))
    flat = [name for name in TRAIN if name in splits and not splits[name].classes]
    require(
        not (beside and flat),
        f"{place.path}: {flat} has no class folders, but {beside[:3]} contain images; if all are "
        "classes, move them into a folder train",
    )
    return splits


def _split(place: Folder | Archive, prefix: str) -> Listing:
    """List a split: its folders are classes, and images outside of them are ignored."""
    names = _below(place.files, prefix)
    images = [name for name in names if is_image(name)]
    classes = _folders(images)
    if classes:
        images = [name for name in images if "/" in name]
        if empty := sorted(_folders(names) - classes):
            message = "%s: left out %d class folders without images (%s)"
            logger.warning(message, place.path, len(empty), ", ".join(empty[:3]))
    return Listing(place, prefix, images, set(map(nfc, classes)))


def _without_splits(place: Folder | Archive, prefix: str, images: list[str]) -> Listing:
    """List data without splits.

    Folders are classes if each contains images itself, and no image is outside of them.
    """
    folders = _folders(images)
    outside = {name for name in images if "/" not in name}
    nested = folders - {name.rpartition("/")[0] for name in images}
    if not (outside or nested):
        layout = f"{len(folders):,} classes, a folder each"
        return Listing(place, prefix, images, set(map(nfc, folders)), layout)
    layout = "images without labels"
    if folders:
        layout += f" (no class folders, because of {min(outside | nested)})"
    return Listing(place, prefix, images, set(), layout)


def _common_folder(images: list[str]) -> str:
    """Return the folder that contains all images, or the folder above a split."""
    parts: list[str] = []
    for part in posixpath.commonpath([posixpath.dirname(name) for name in images]).split("/"):
        if part.lower() in ("", *TRAIN, *TEST):
            break
        parts.append(f"{part}/")
    return "".join(parts)


def _below(names: Iterable[str], prefix: str) -> list[str]:
    """Return the names below a folder, relative to it."""
    return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]


def _folders(names: Iterable[str]) -> set[str]:
    """Return the first folder of each name that has one."""
    return {name.partition("/")[0] for name in names if "/" in name}


def _other_kinds(names: Iterable[str]) -> str:
    """Return the extensions of files that are not images, such as ".heic, .txt"."""
    others = [Path(name).suffix.lower() or "other" for name in names if not is_image(name)]
    return ", ".join(kind for kind, _ in collections.Counter(others).most_common(5))


def is_image(name: str) -> bool:
    """Return whether a file is an image by its extension, in upper or lower case."""
    return name.rpartition(".")[2].lower() in EXTENSIONS


def _is_junk(name: str) -> bool:
    """Return whether a file or folder is hidden, or metadata of an operating system."""
    return name.startswith(".") or name.lower() in JUNK


def _is_loop(folder: str) -> bool:
    """Return whether a folder is a link to a folder above it, perhaps through other links."""
    target = os.path.realpath(folder)
    return any(os.path.realpath(parent) == target for parent in Path(folder).parents)


def _raise(error: OSError) -> None:
    raise error


def _size(path: str) -> int:
    with contextlib.suppress(OSError):  # a broken link
        return os.path.getsize(path)
    return 0
