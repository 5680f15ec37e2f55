"""Images in files, in the ImageFolder layout: SPLIT/CLASS/file in a folder or a zip file."""

import concurrent.futures
import difflib
import functools
import hashlib
import io
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from hypersphere_jax.config import UserError, require
from hypersphere_jax.data.decode import decode, image_size
from hypersphere_jax.data.source import Sample, UnreadableImage
from hypersphere_jax.data.storage import (
    THREADS,
    FolderListing,
    ZipListing,
    is_inside,
    is_junk,
    printable,
    some,
)

logger = logging.getLogger("hypersphere_jax")

EXTENSIONS = ("jpg", "jpeg", "png", "ppm", "pgm", "pbm", "bmp", "tif", "tiff", "webp", "gif")
# What a split may be called, besides its own name.
SYNONYMS = {"test": ("val", "validation"), "val": ("validation", "test")}
HEADERS = 64  # are read by a thread at a time
# Contents of a folder that its digest reads in whole: as many bytes at most; else so many files.
DIGEST_BYTES = 2**28
DIGEST_FILES = 500


class NoSplit(UserError):
    """There is no such split; everything else may be in order."""


class ImageFiles:
    """A source over one split of a folder or zip file of images.

    A folder holds SPLIT/CLASS/file (files may lie deeper still), or SPLIT.zip. A zip file holds
    SPLIT/CLASS/file, perhaps below one common folder, or CLASS/file if it is called SPLIT.zip.
    Where there is no folder `test`, `val` or `validation` is it. Labels number the classes in
    sorted order, and files are sorted, as torchvision's ImageFolder does. What is hidden does not
    count. Files that are no images by their name are left out and logged.

    Everything that can be checked without opening the images is checked here.

    Args:
      root: the folder or zip file; no name and no link leads out of it.
      split: "train", "test" or "val".
      classes: names of the classes to keep, in any order; None: all.
      on_bad: files that cannot be read as far as is known at the start, and classes without an
        image, are an error, or are logged: the files then raise `UnreadableImage` when they are
        read, the classes keep their labels.
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
        if classes is not None and like is not None:
            raise ValueError("classes are those of `like`, or given")
        listing = _listing(Path(root), split)
        self.origin = listing.origin
        self._reader = listing.reader
        self._is_part = classes is not None or (like is not None and like._is_part)
        if like is not None:
            self.class_names = like.class_names
            self._check_like(listing.classes, like)
        else:
            self.class_names = _kept(listing.classes, classes, self.origin)

        present = sorted(set(self.class_names) & set(listing.classes))
        files = listing.files(present)
        images = sorted((f for f in files if _is_image(f[0])), key=lambda f: f[0].rpartition("/"))
        others = [name for name, _ in files if not _is_image(name)] + listing.strays
        if others:
            logger.warning(
                "%s: left out files that are no images in a class folder (%d): %s",
                *(self.origin, len(others), some([printable(name) for name in others])),
            )
        label_of = {name: label for label, name in enumerate(self.class_names)}
        self._names = [name for name, _ in images]
        self._numbers = np.array([numbers for _, numbers in images], np.int64)
        folders = (name.partition("/")[0] for name in self._names)
        self.labels = np.fromiter((label_of[folder] for folder in folders), np.int32, len(images))
        self._check(present, on_bad)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, i: int) -> Sample:
        name, numbers = self._names[i], self._numbers[i].tolist()
        image = decode(self._reader.read(name, numbers), self._reader.title(name))
        known = self.__dict__.get("image_shape")
        if known is not None and image.shape != known:
            raise UnreadableImage(
                f"{self._reader.title(name)}: has the shape {image.shape}, all others {known}"
            )
        return {"image": image, "label": int(self.labels[i])}

    @functools.cached_property
    def image_shape(self) -> tuple[int, int, int] | None:
        """From the headers of all images, up to the first that differs."""
        shape = None
        parts = [range(len(self))[i : i + HEADERS] for i in range(0, len(self), HEADERS)]
        with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
            for start in range(0, len(parts), THREADS):
                for sizes in pool.map(self._sizes, parts[start : start + THREADS]):
                    for size in sizes:
                        if shape not in (None, (*size, 3)):
                            return None
                        shape = (*size, 3)
        return shape

    @functools.cached_property
    def digest(self) -> str:
        """Of names, sizes and contents; it does not depend on where the files lie.

        A zip file gives the CRC of each content. Of a large folder only some contents are read,
        evenly spread, and the files' times of change stand for the rest: copying it has to keep
        the times.
        """
        digest = hashlib.sha256(repr(self.class_names).encode())
        sizes, stamps = self._numbers[:, 0], self._numbers[:, 1]
        in_part = self._reader.stamps_are_times and np.maximum(sizes, 0).sum() > DIGEST_BYTES
        for name, size, stamp in zip(self._names, sizes.tolist(), stamps.tolist(), strict=True):
            stamp = 0 if self._reader.stamps_are_times and not in_part else stamp
            digest.update(f"{name}\0{size}\0{stamp}\0".encode(errors="surrogateescape"))
        if self._reader.stamps_are_times:
            step = max(1, len(self) // DIGEST_FILES) if in_part else 1
            with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
                for content in pool.map(self._content, range(0, len(self), step)):
                    digest.update(content)
        return digest.hexdigest()[:16]

    def _content(self, i: int) -> bytes:
        """A digest of a file; of one that cannot be read, nothing."""
        try:
            return hashlib.sha256(
                self._reader.read(self._names[i], self._numbers[i].tolist())
            ).digest()
        except UnreadableImage:
            return b""

    def _sizes(self, numbers: Sequence[int]) -> list[tuple[int, int]]:
        """Sizes of some images, without those that cannot be read."""
        sizes = (self._size(i) for i in numbers)
        return [size for size in sizes if size is not None]

    def _size(self, i: int) -> tuple[int, int] | None:
        name, numbers = self._names[i], self._numbers[i].tolist()
        title = self._reader.title(name)
        try:
            with self._reader.head(name, numbers) as stream:
                return image_size(stream, title)
        except UnreadableImage:
            # Of a zip's member this was the beginning, which need not hold the size.
            try:
                return image_size(io.BytesIO(self._reader.read(name, numbers)), title)
            except UnreadableImage:
                return None

    def _check_like(self, found: Sequence[str], like: "ImageFiles") -> None:
        unknown = sorted(set(found) - set(like.class_names))
        require(
            self._is_part or not unknown,
            f"{self.origin} has classes that {like.origin} lacks ({len(unknown)}): "
            f"{some([repr(name) for name in unknown])}",
        )
        missing = sorted(set(like.class_names) - set(found))
        if missing:
            logger.warning(
                "%s: no folder for some classes (%d of %d): %s",
                *(self.origin, len(missing), len(like.class_names)),
                some([repr(name) for name in missing]),
            )

    def _check(self, present: Sequence[str], on_bad: str) -> None:
        require(len(self) > 0, f"{self.origin} has no image ({', '.join(EXTENSIONS)})")
        counts = np.bincount(self.labels, minlength=len(self.class_names))
        empty = {name for name, count in zip(self.class_names, counts, strict=True) if not count}
        empty = [repr(name) for name in sorted(empty & set(present))]
        faults = []
        for name, numbers in zip(self._names, self._numbers.tolist(), strict=True):
            why = self._reader.fault(numbers)
            if why:
                faults.append(f"{printable(name)} {why}")
        for found, what in (
            (empty, "classes without an image"),
            (faults, "images that cannot be read"),
        ):
            if found:
                text = f"{self.origin}: {what} ({len(found)}): {some(found)}"
                require(on_bad == "skip", f"{text}; mend them, or go on: --bad-images skip")
                logger.warning("%s", text)


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
      UserError: when there is no such file, no name in it, or one of them twice.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise UserError(f"the list of classes {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"the list of classes {path} is no text (UTF-8)") from error
    cells = (line.partition("#")[0].partition(",")[0].strip().strip('"') for line in lines)
    names = tuple(name for name in cells if name)
    require(bool(names), f"the list of classes {path} has no name in it; one is expected a line")
    twice = sorted({name for name in names if names.count(name) > 1})
    require(not twice, f"the list of classes {path} has {some(twice)} more than once")
    return names


def _is_image(name: str) -> bool:
    return name.rpartition(".")[2].lower() in EXTENSIONS


def _kept(found: Sequence[str], classes: Sequence[str] | None, origin: str) -> tuple[str, ...]:
    """The classes in sorted order, after a check of those that are asked for."""
    if classes is None:
        return tuple(sorted(found))
    unknown = [name for name in classes if name not in set(found)]
    near = difflib.get_close_matches(unknown[0], found, n=1) if unknown else []
    meant = f" (did you mean {near[0]!r}?)" if near else ""
    require(
        not unknown,
        f"{origin} lacks classes that are asked for ({len(unknown)} of {len(classes)}): "
        f"{some([repr(name) for name in unknown])}{meant}",
    )
    return tuple(sorted(set(classes)))


def _listing(root: Path, split: str) -> FolderListing | ZipListing:
    """The folder or zip file of a split."""
    splits = (split, *SYNONYMS.get(split, ()))
    try:
        names = sorted(os.listdir(root)) if root.is_dir() else []
        places = [root / name for part in splits for name in (part, f"{part}.zip")]
        found = [p.name for p in places if (p.is_file() if p.suffix else p.is_dir())]
        # ImageNet's own `test` has no classes, as its labels are secret: `val` is the one to use.
        found = [f for f in found if f.endswith(".zip") or _has_folders(root / f)] or found
    except OSError as error:
        raise UserError(f"{root} cannot be listed: {error.strerror}") from error
    if root.is_file():
        return _zip_listing(root, split, splits)
    require(root.is_dir(), f"no file or folder {root}")
    if not found:
        raise _no_split(root, split, names)
    path = root / _only(root, split, found)
    if path.is_dir():
        return FolderListing(root, path)
    require(is_inside(root, path), f"{path} is a link that leads out of {root}: pass its target")
    return _zip_listing(path, split, splits)


def _has_folders(path: Path) -> bool:
    with os.scandir(path) as entries:
        return any(entry.is_dir() and not is_junk(entry.name) for entry in entries)


def _zip_listing(path: Path, split: str, splits: Sequence[str]) -> ZipListing:
    listing = ZipListing(path, splits)
    if not listing.splits:
        raise _no_split(path, split, listing.tops)
    listing.enter(_only(path, split, list(listing.splits)))
    return listing


def _only(root: Path, split: str, found: Sequence[str]) -> str:
    """The one that is called as the split, else the only other."""
    exact = [name for name in found if Path(name).stem == split]
    choice = exact or found
    require(
        len(choice) == 1,
        f"{root} holds {' and '.join(choice)}: which one is the split {split!r}? Rename the other",
    )
    return choice[0]


def _no_split(root: Path, split: str, names: Sequence[str]) -> NoSplit:
    names = [repr(name) for name in names if not is_junk(name)]
    return NoSplit(
        f"{root} has no split {split!r}: images are expected as train/CLASS/file and test/CLASS/"
        f"file (or val/), in a folder or a zip file. There is {some(names) or 'nothing'}; if these "
        "are the classes, move them into train/, and a part of the images into test/"
    )
