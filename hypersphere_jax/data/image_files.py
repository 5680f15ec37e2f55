"""Image files as a source, in a folder or a zip file."""

import contextlib
import functools
import hashlib
import time
from collections.abc import Collection
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import IO

import numpy as np

from hypersphere_jax.configs import UserError, require
from hypersphere_jax.data.decode import decode, image_size, reason
from hypersphere_jax.data.layouts import TRAIN, Folder, Listing, find_splits, nfc
from hypersphere_jax.data.source import Sample, UnreadableImage
from hypersphere_jax.data.subsets import check_classes
from hypersphere_jax.utils import caches
from hypersphere_jax.utils.files import open_file

# The fingerprint of a larger folder contains the content of this number of files only.
DIGEST_BYTES = 2**28
DIGEST_FILES = 500


class ImageFiles:
    """Images of a listing, with the labels of their class folders.

    Files are in the order of their names, as in torchvision's ImageFolder. `cache_dir` keeps the
    shape of the images.
    """

    def __init__(self, listing: Listing, class_names: tuple[str, ...], cache_dir: Path | None):
        import PIL  # noqa: F401  fails here rather than for each image

        self._place = listing.place
        self._prefix = listing.prefix
        self._cache_dir = cache_dir
        self.origin = listing.origin
        self.layout = listing.layout
        self.class_names = class_names
        # Files of inner folders come last, as in torchvision.
        self._images = sorted(listing.images, key=lambda name: (nfc(name).rpartition("/"), name))
        self.labels = np.full(len(self._images), -1, np.int32)
        if listing.classes:
            label_of = {name: label for label, name in enumerate(class_names)}
            folders = [nfc(name.partition("/")[0]) for name in self._images]
            self.labels[:] = [label_of[folder] for folder in folders]

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, i: int) -> Sample:
        try:
            with self._open(i) as stream:
                image = decode(stream.read())
        except Exception as error:  # damaged files raise many types
            raise UnreadableImage(f"{self.file(i)}: {reason(error)}") from error
        return {"image": image, "label": int(self.labels[i]), "file": self.file(i)}

    def require_content(self) -> None:
        """Raise UserError for empty files."""
        files = self._place.files
        empty = [name for name in self._images if files[self._prefix + name][0] == 0]
        what = f"{self.origin} has {len(empty)} empty or unreadable files: {', '.join(empty[:3])}"
        require(not empty, f"{what}; remove them, or leave them out with bad_images=skip")

    def file(self, i: int) -> str:
        """Return the path of an image, through its zip file if it is in one."""
        return f"{self._place.path}/{self._prefix}{self._images[i]}"

    @functools.cached_property
    def image_shape(self) -> tuple[int, int, int] | None:
        """Shape of all images by their headers, None if shapes differ."""
        file = self._cache_dir and self._cache_dir / f"{self.digest}-shape.npy"
        if cached := caches.read(file):
            return tuple(cached[0].tolist())
        started = time.monotonic()
        sizes = set()
        with ThreadPool(self._place.readers) as pool:
            for size in pool.imap_unordered(self._image_size, range(len(self)), chunksize=16):
                sizes.add(size)
                if len(sizes - {None}) > 1:
                    return None
        shapes = [(*size, 3) for size in sizes if size is not None]
        if not shapes:
            return None
        if None not in sizes:  # an unreadable image may be repaired
            caches.write_if_slow(file, started, np.array(shapes[0]))
        return shapes[0]

    @functools.cached_property
    def digest(self) -> str:
        """Fingerprint of names, sizes and contents; in a large folder of some contents."""
        files = self._place.files
        about = [files[self._prefix + name] for name in self._images]
        parts: list[str | bytes] = [repr(self.class_names)]
        for name, (size, checksum) in zip(self._images, about, strict=True):
            parts.append(f"{nfc(name)}\0{size}\0{checksum}\0")
        if isinstance(self._place, Folder):  # without checksums
            step = 1
            if sum(size for size, _ in about) > DIGEST_BYTES:
                step = max(1, len(self) // DIGEST_FILES)
            with ThreadPool(self._place.readers) as pool:
                parts += pool.map(self._content_digest, range(0, len(self), step))
        return caches.fingerprint(*parts)

    def _open(self, i: int) -> IO[bytes]:
        return self._place.open(self._prefix + self._images[i])

    def _content_digest(self, i: int) -> bytes:
        with contextlib.suppress(Exception), self._open(i) as stream:
            return hashlib.sha256(stream.read()).digest()
        return b""  # the error is reported when the image is decoded

    def _image_size(self, i: int) -> tuple[int, int] | None:
        with contextlib.suppress(Exception), self._open(i) as stream:
            return image_size(stream)
        return None  # the error is reported when the image is decoded


def open_image_files(
    root: Path, cache_dir: Path | None = None, classes: Collection[str] | None = None
) -> tuple[ImageFiles, ImageFiles | None]:
    """Open the training and the test split, if any, of a folder or zip file, with the same labels.

    `classes` are the names of the classes to open, by default all. Data without splits are returned
    as the training split, with a `layout`.
    """
    try:
        train, test = find_splits(root)
    except OSError as error:
        raise UserError(f"{root} cannot be read: {error}") from error
    if classes is not None:
        train = train.of_classes(set(classes))
        test = test and test.of_classes(set(classes))
    names = tuple(sorted(train.classes))
    train_images = ImageFiles(train, names, cache_dir)
    if test is None:
        return train_images, None
    check_classes(test.classes, names, f"{train.origin} (unlike {test.origin})")
    return train_images, ImageFiles(test, names, cache_dir)


def is_image_tree(root: Path) -> bool:
    """Return whether a path looks like a zip file, or a folder with a training split of images."""
    if root.suffix.lower() == ".zip":
        return root.is_file()
    splits = [path for path in root.glob("*") if path.stem.lower() in TRAIN]
    return any(path.is_dir() or path.suffix.lower() == ".zip" for path in splits)


def read_classes(path: Path) -> tuple[str, ...]:
    """Read names of classes, one per line or in the first column of a CSV file; `#` comments.

    Raises:
      UserError: for a missing file, or one without names.
    """
    try:
        with open_file(path) as stream:
            lines = stream.read().decode("utf-8-sig").splitlines()
    except (UserError, UnicodeDecodeError) as error:
        raise UserError(f"the list of classes {path} cannot be read: {error}") from error
    cells = [line.partition("#")[0].partition(",")[0].strip().strip('"') for line in lines]
    names = tuple(nfc(name) for name in cells if name)
    require(bool(names), f"the list of classes {path} contains no names; write one per line")
    return names
