"""The layouts of images in folders and zip files: SPLIT/CLASS/file, CLASS/file, and flat."""

import collections
import logging
import posixpath
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from hypersphere_jax.configs import UserError, require
from hypersphere_jax.data.listing import Archive, File, Folder, nfc, open_place

logger = logging.getLogger("hypersphere_jax")

EXTENSIONS = ("jpg", "jpeg", "png", "ppm", "pgm", "pbm", "bmp", "tif", "tiff", "webp", "gif")
# Names of splits, in any case. The first test split with classes is used.
TRAIN = ("train", "training")
TEST = ("test", "testing", "val", "valid", "validation")
LAYOUTS = "expected SPLIT/CLASS/file with the splits train and test, CLASS/file, or images only"


class Listing(NamedTuple):
    """The images of a split, or all images of data without splits."""

    place: Folder | Archive
    prefix: str  # start of the names of the files in `place`
    images: list[File]  # with names below the prefix: CLASS/file or file
    classes: list[str]  # names of the class folders; empty for images without labels
    layout: str = ""  # interpretation of data without splits

    @property
    def origin(self) -> str:
        """Path of the folder of the images, through the zip file if they are in one."""
        return f"{self.place.path}/{self.prefix}".rstrip("/")


def find_splits(root: Path) -> tuple[Listing, Listing | None]:
    """List the images of a folder or a zip file.

    Returns:
      The training split, and the test split or None. For data without splits all images, and None.

    Raises:
      UserError: without images, or if splits cannot be distinguished from classes.
    """
    splits = _splits_in(open_place(root))
    if "" in splits:
        return splits[""], None
    for path in sorted(root.glob("*.[zZ][iI][pP]")):
        name = path.stem.lower()
        if name in TRAIN + TEST:
            archive = Archive(path)
            splits[name] = _splits_in(archive).get(name) or _split(archive, "", archive.files())
    if not splits:
        kinds = _kinds(open_place(root).files())
        raise UserError(f"{root} contains no images ({kinds}); {LAYOUTS}")
    train = [splits[name] for name in TRAIN if name in splits]
    test = [splits[name] for name in TEST if name in splits]
    require(bool(train), f"{root} has no split 'train', only {', '.join(splits)}; {LAYOUTS}")
    with_classes = [listing for listing in test if listing.classes]
    return train[0], next(iter(with_classes or test), None)


def is_image(name: str) -> bool:
    """Return whether a file is an image by its extension, in upper or lower case."""
    return name.rpartition(".")[2].lower() in EXTENSIONS


def _splits_in(place: Folder | Archive) -> dict[str, Listing]:
    """Return the splits by their names in lower case, or data without splits under the name ""."""
    files = place.files()
    images = [file for file in files if is_image(file.name)]
    if not images:
        return {}
    others = sum(not file.name.endswith("/") for file in files) - len(images)
    if others:
        logger.warning("%s: ignored files that are not images (%s)", place.path, _kinds(files))
    base = _common_folder(images)
    images = _below(images, base)
    folders = _folders(images)
    names = {name.lower(): name for name in sorted(folders) if name.lower() in TRAIN + TEST}
    if not names:
        return {"": _without_splits(place, base, images)}
    splits = {name: _split(place, f"{base}{names[name]}/", files) for name in names}
    beside = sorted(folders - set(names.values()))
    flat = [name for name in TRAIN if name in splits and not splits[name].classes]
    require(
        not (beside and flat),
        f"{place.path}: {flat} has no class folders, but {beside[:3]} contain images; if all are "
        "classes, move them into a folder train",
    )
    return splits


def _split(place: Folder | Archive, prefix: str, files: list[File]) -> Listing:
    """List a split: its folders are classes, and images outside of them are ignored."""
    inside = _below(files, prefix)
    classes = sorted(_folders(inside))
    images = [file for file in inside if is_image(file.name)]
    if classes:
        images = [file for file in images if "/" in file.name]
    return Listing(place, prefix, images, classes)


def _without_splits(place: Folder | Archive, prefix: str, images: list[File]) -> Listing:
    """List data without splits.

    Folders are classes if each contains images itself, and no image is outside of them.
    """
    folders = _folders(images)
    outside = [file.name for file in images if "/" not in file.name]
    parents = {file.name.rpartition("/")[0] for file in images}
    layout = "images without labels"
    if folders and outside:
        layout += f" (no class folders: {min(outside)} is in none)"
    elif folders - parents:
        layout += f" (no class folders: {min(folders - parents)} contains only folders)"
    elif folders:
        layout = f"{len(set(map(nfc, folders))):,} classes, a folder each"
        return Listing(place, prefix, images, sorted(folders), layout)
    return Listing(place, prefix, images, [], layout)


def _common_folder(images: list[File]) -> str:
    """Return the folder that contains all images, or the folder above a split."""
    parents = {file.name.rpartition("/")[0] for file in images}
    kept = []
    for part in posixpath.commonpath(parents).split("/"):
        if part.lower() in ("", *TRAIN, *TEST):
            break
        kept.append(f"{part}/")
    return "".join(kept)


def _below(files: Iterable[File], prefix: str) -> list[File]:
    """Return the files below a folder, with names relative to it."""
    return [
        file._replace(name=file.name.removeprefix(prefix))
        for file in files
        if file.name.startswith(prefix) and file.name != prefix
    ]


def _folders(files: Iterable[File]) -> set[str]:
    """Return the first folder of each name that has one."""
    return {file.name.partition("/")[0] for file in files if "/" in file.name}


def _kinds(files: list[File]) -> str:
    """Count the files that are not images by their extensions, such as "3 .heic, 1 .txt"."""
    names = [file.name for file in files if not file.name.endswith("/")]
    kinds = [Path(name).suffix.lower() or "other" for name in names if not is_image(name)]
    counts = collections.Counter(kinds).most_common(5)
    return ", ".join(f"{count:,} {kind}" for kind, count in counts) or "no files"
