"""Images in files: SPLIT/CLASS/file, CLASS/file or files alone, in folders and zip files."""

import contextlib
import functools
import hashlib
import logging
import os
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Literal

import numpy as np

from hypersphere_jax.configs import UserError, require
from hypersphere_jax.data.decode import decode, image_size, reason
from hypersphere_jax.data.listing import (
    EXTENSIONS,
    LAYOUTS,
    THREADS,
    Listing,
    NoSplit,
    below,
    check_beside,
    is_shard,
    list_all,
    list_split,
    only_images,
    open_zip,
    warn_of_others,
    zips_alone,
)
from hypersphere_jax.data.source import Sample, UnreadableImage
from hypersphere_jax.data.subsets import check_classes, nfc, some
from hypersphere_jax.data.threads import thread_pool
from hypersphere_jax.utils import caches
from hypersphere_jax.utils.files import open_file

logger = logging.getLogger("hypersphere_jax")

HEADERS = 16  # read by a thread at a time
# The digest of a folder reads all files of so many bytes in total; of more, so many files.
DIGEST_BYTES = 2**28
DIGEST_FILES = 500


class ImageFiles:
    """A source over images in a folder or in zip files: over one split of them, or over all.

    A folder holds SPLIT/CLASS/file (files may lie deeper still), SPLIT.zip, zip files whose names
    begin with the split (`train-000.zip`, …), or other zip files, which count as one with all that
    is in them. A zip file holds SPLIT/CLASS/file, perhaps below one common folder, or CLASS/file if
    its name is that of the split. Where there is no `test`, `val`, `valid` or `validation` is it.
    Without folders of classes the images of a split have no labels.

    Data without splits hold CLASS/file, perhaps below one common folder, where each folder of a
    class has images of its own (and perhaps more below it): else the images have no labels. Of zip
    files with images alone each is a class, unless their names differ in digits alone.

    Classes and files are numbered in sorted order, as torchvision's ImageFolder does.

    Args:
      root: the folder or zip file.
      split: "train" or "test"; None: all images of data without splits.
      classes: names of the classes to keep, in any order; None: all.
      on_bad: whether empty files, encrypted ones, and classes without an image are an error, or
        are logged: such files then raise `UnreadableImage` when they are read.
      like: the training split, whose classes and labels are this split's too.
      cache_dir: keeps the shape of the images for the next time, if finding it took a while.

    Attributes:
      layout: of data without splits, what they were taken for, in words.
      places: the folder, or the zip files, that its images are in.

    Raises:
      NoSplit: when there is no such split.
      UserError: for files that are not as described.
    """

    def __init__(
        self,
        root: Path,
        split: str | None,
        classes: Sequence[str] | None = None,
        on_bad: Literal["error", "skip"] = "error",
        like: "ImageFiles | None" = None,
        cache_dir: Path | None = None,
    ):
        import PIL  # noqa: F401  without Pillow, each image would count as a damaged one

        try:
            listing = list_all(Path(root)) if split is None else list_split(Path(root), split)
            self.class_names = _choose_classes(listing, classes, like)
            label_of = {name: label for label, name in enumerate(self.class_names)}
            folders = [name for name in listing.folders if nfc(name) in label_of]
            files = below(listing, folders) if listing.folders else listing.loose
        except OSError as error:
            raise UserError(f"{root} cannot be read: {error}") from error
        self.origin, self.layout, self.places = listing.origin, listing.layout, listing.places
        self._cache_dir = cache_dir
        # By folder, then by name: files of inner folders come last.
        files = sorted(files, key=lambda f: (nfc(f.name).rpartition("/"), f.name, f.place))
        images = only_images(files, self.origin)
        require(len(images) > 0, f"{self.origin} has no image ({', '.join(EXTENSIONS)})")
        self._names = [file.name for file in images]
        self._sizes = np.array([file.size for file in images], np.int64)
        self._checksums = np.array([file.checksum for file in images], np.int64)
        self._place_of = np.array([file.place for file in images], np.uint16)
        self._faults = {i: file.fault for i, file in enumerate(images) if file.fault}
        self.labels = np.full(len(images), -1, np.int32)
        if listing.folders:
            self.labels[:] = [label_of[nfc(name.partition("/")[0])] for name in self._names]
        present = {label_of[nfc(name)] for name in folders}
        empty = [self.class_names[k] for k in sorted(present - set(self.labels.tolist()))]
        faults = [f"{self._names[i]} {fault}" for i, fault in self._faults.items()]
        for bad, what in ((empty, "classes without an image"), (faults, "unreadable images")):
            if bad:
                text = f"{self.origin}: {what} ({len(bad)}): {some(bad)}"
                require(on_bad == "skip", f"{text}; remove them, or pass bad_images=skip")
                logger.warning("%s", text)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, i: int) -> Sample:
        try:
            image = decode(self._read(i))
        except Exception as error:  # damaged files bring about many types
            raise UnreadableImage(f"{self.file(i)}: {reason(error)}") from error
        return {"image": image, "label": int(self.labels[i]), "file": self.file(i)}

    def file(self, i: int) -> str:
        """The path of an image, through its zip file if it is in one."""
        place = self.places[self._place_of[i]]
        return f"{place.shown}/{self._names[i].removeprefix(place.folder)}"

    @functools.cached_property
    def image_shape(self) -> tuple[int, int, int] | None:
        """From the headers of all images, up to the first that differs; None: one does."""
        file = None
        if self._cache_dir is not None:
            file = self._cache_dir / f"{self.digest}-shape.npy"
            if kept := caches.read(file):
                return tuple(kept[0].tolist())
        began, sizes = time.monotonic(), self._header_sizes()
        shapes = [(*size, 3) for size in sizes if size]
        slow = time.monotonic() - began > caches.SLOW_SECONDS
        # An image that cannot be read today may be readable tomorrow, and of another shape.
        if file is not None and slow and len(shapes) == len(sizes) == 1:
            with contextlib.suppress(OSError):
                caches.write(file, np.array(shapes[0]))
        return shapes[0] if len(shapes) == 1 else None

    def _header_sizes(self) -> set[tuple[int, int] | None]:
        """Heights and widths, up to the first that differs; None: of what cannot be read."""
        sizes: set[tuple[int, int] | None] = set()
        parts = [range(len(self))[i : i + HEADERS] for i in range(0, len(self), HEADERS)]
        # Of one zip file threads would wait for each other, and take longer.
        one_zip = len(self.places) == 1 and self.places[0].archive is not None
        with thread_pool(1 if one_zip else THREADS) as pool:
            for others in pool.map(lambda part: set(map(self._image_size, part)), parts):
                sizes |= others
                if len(sizes - {None}) > 1:
                    break
        return sizes

    @functools.cached_property
    def digest(self) -> str:
        """Of names, sizes and contents; of a large folder, of some contents, evenly spread."""
        digest = hashlib.sha256(repr(self.class_names).encode())
        names = map(nfc, self._names)
        for file in zip(names, self._sizes.tolist(), self._checksums.tolist(), strict=True):
            digest.update("{}\0{}\0{}\0".format(*file).encode(errors="surrogateescape"))
        if self.places[0].archive is None:
            is_large = self._sizes.sum() > DIGEST_BYTES
            step = max(1, len(self) // DIGEST_FILES) if is_large else 1
            with thread_pool(THREADS) as pool:
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
            with self._open(i) as stream:
                return image_size(stream)
        except Exception:  # reported when the image is read
            return None

    def _open(self, i: int) -> IO[bytes]:
        if i in self._faults:
            raise ValueError(self._faults[i])
        place = self.places[self._place_of[i]]
        name = place.prefix + self._names[i].removeprefix(place.folder)
        if place.archive is None:
            return open_file(name)
        return open_zip(*place.archive, os.getpid()).open(name)

    def _read(self, i: int) -> bytes:
        with self._open(i) as stream:
            return stream.read()


def open_image_files(
    root: Path,
    classes: Sequence[str] | None = None,
    on_bad: Literal["error", "skip"] = "error",
    cache_dir: Path | None = None,
) -> tuple[ImageFiles, ImageFiles | None]:
    """Training and test split with the same labels; None where there is no test split.

    Of data without splits it is all images, with a `layout`, and None. See `ImageFiles`.
    """
    is_file = root.is_file() and root.suffix.lower() != ".zip" and not zipfile.is_zipfile(root)
    require(not is_file, f"{root} is neither a folder nor a zip file: {LAYOUTS}")
    try:
        train = ImageFiles(root, "train", classes, on_bad, cache_dir=cache_dir)
    except NoSplit as no_train:
        try:
            list_split(root, "test")
        except NoSplit:
            return ImageFiles(root, None, classes, on_bad, cache_dir=cache_dir), None
        raise no_train  # a test split alone
    if not train.class_names:
        check_beside(root)
    test = None
    with contextlib.suppress(NoSplit):
        test = ImageFiles(root, "test", classes, on_bad, train, cache_dir)
    if len(train.places) == 1:  # of several zips all is taken
        warn_of_others(root, [train.places[0], *(test.places[:1] if test else ())])
    return train, test


def is_image_tree(root: Path) -> bool:
    """Whether a path looks like a zip file, or a folder with a training split of images."""
    if root.suffix == ".zip":
        return root.is_file()
    if (root / "train").is_dir() or (root / "train.zip").is_file():
        return True
    return root.is_dir() and any(is_shard(path, "train") for path in zips_alone(root))


def read_classes(path: Path) -> tuple[str, ...]:
    """Names of classes from a file: one a line, or the first column of a CSV file; `#` comments.

    Raises:
      UserError: when there is no such file, or no name in it.
    """
    try:
        with open_file(path) as stream:
            lines = stream.read().decode("utf-8-sig").splitlines()
    except (UserError, UnicodeDecodeError) as error:
        raise UserError(f"the list of classes {path} cannot be read: {error}") from error
    cells = (line.partition("#")[0].partition(",")[0].strip().strip('"') for line in lines)
    names = tuple(nfc(name) for name in cells if name)
    require(bool(names), f"the list of classes {path} has no name in it; one is expected a line")
    return names


def _choose_classes(
    listing: Listing, classes: Sequence[str] | None, like: ImageFiles | None
) -> tuple[str, ...]:
    known = set(map(nfc, listing.folders))
    wanted = known if classes is None else set(map(nfc, classes))
    if like is None:
        check_classes(wanted, known, listing.origin)
        return tuple(sorted(wanted))
    if classes is None:
        check_classes(known, like.class_names, f"{like.origin} (unlike {listing.origin})")
    return like.class_names
