"""What is in folders and zip files of images, and what it is taken for: splits, classes."""

import collections
import contextlib
import functools
import itertools
import logging
import os
import posixpath
import re
import stat
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from hypersphere_jax.configs import UserError, require
from hypersphere_jax.data.subsets import nfc, some
from hypersphere_jax.data.threads import thread_pool
from hypersphere_jax.utils.files import open_file

logger = logging.getLogger("hypersphere_jax")

EXTENSIONS = ("jpg", "jpeg", "png", "ppm", "pgm", "pbm", "bmp", "tif", "tiff", "webp", "gif")
SPLITS = {"train": ("train",), "test": ("test", "val", "valid", "validation")}  # and their names
LAYOUTS = (
    "accepted are train/CLASS/file and test/CLASS/file (or val/), CLASS/file, and images without "
    "class folders; in a folder, a zip file or several"
)
# Names of splits that others use, but for digits and punctuation; they are asked to be changed.
TRAIN_WORDS = "(seg|img|images?)?train(ing)?(set|data|images?)?"
TEST_WORDS = "(seg|img|images?)?(test(ing)?|val(id(ation)?)?|dev)(set|data|images?)?"
HIDDEN = ("__MACOSX", "Thumbs.db", "desktop.ini")  # besides names that start with a dot
THREADS = 16  # for listing and reading headers: a file server takes its time
UNSAFE = re.compile(r"^[A-Za-z]:|[\\\0]|(^|/)\.{0,2}(/|$)")  # of names in a zip file
UTF8_FLAG = 0x800  # of a zip file's member, by the standard
MAX_BYTES = 2**30  # of one file: more than the largest image has without compression


class NoSplit(UserError):
    """There is no such split."""


class Place(NamedTuple):
    """A folder or zip file that images are in."""

    shown: str  # in messages
    archive: tuple[str, int] | None  # for `open_zip`
    prefix: str  # of a file's name, to open it
    folder: str = ""  # that the names of its files begin with, and is not in it


class File(NamedTuple):
    name: str  # CLASS/file
    size: int  # bytes
    checksum: int  # of a zip file's member; 0 in a folder
    fault: str | None  # why it cannot be read, as far as that is known without reading it
    place: int = 0  # number of its place in the listing


class Listing(NamedTuple):
    """What is in a folder or in zip files."""

    origin: str
    places: list[Place]
    folders: list[str]  # at its top: classes
    files: Callable[[str], list[File]]  # in one of them and below it
    loose: list[File]  # at its top
    layout: str = ""  # of data without splits: what they were taken for


def list_split(root: Path, split: str) -> Listing:
    """The images of a split.

    Raises:
      NoSplit: when there is no such split.
      UserError: when it is not clear which folder it is, or for a zip file that is damaged.
    """
    if root.is_file():
        return _list_zips([root], split)

    def named(split: str) -> list[str]:
        places = [root / name for part in SPLITS[split] for name in (part, f"{part}.zip")]
        return [p.name for p in places if (p.is_file() if p.suffix else p.is_dir())]

    splits = named(split)
    if not splits and not named("train"):
        zips = zips_alone(root)
        shards = [path for path in zips if is_shard(path, split)]
        if zips:
            return _list_zips(shards or zips, split, bool(shards))
    # ImageNet's own `test` has no classes, as its labels are secret: `val` is the one to use.
    with_classes = [n for n in splits if n.endswith(".zip") or next((root / n).glob("*/"), None)]
    path = root / _choose_split(root, split, with_classes or splits, os.listdir(root))
    return _list_folder(path) if path.is_dir() else _list_zips([path], split)


def _list_folder(path: Path) -> Listing:
    def listed(name: str) -> tuple[list[str], list[File]]:
        with os.scandir(path / name) as entries:
            shown = [entry for entry in entries if not _is_hidden(entry.name)]
        inner = {entry.name: f"{name}/{entry.name}" if name else entry.name for entry in shown}
        folders = [inner[entry.name] for entry in shown if _is_dir(entry)]
        return folders, [_file(inner[entry.name], entry) for entry in shown if not _is_dir(entry)]

    def files(name: str, above: tuple[str, ...] = (os.path.realpath(path),)) -> list[File]:
        real = os.path.realpath(path / name)
        if any(f"{folder}/".startswith(f"{real}/") for folder in above):  # a loop of links
            return []
        folders, found = listed(name)
        return found + [file for folder in folders for file in files(folder, (*above, real))]

    folders, loose = listed("")
    place = Place(str(path), None, os.path.abspath(path) + "/")
    return Listing(str(path), [place], folders, files, loose)


def _list_zips(paths: list[Path], split: str | None, are_shards: bool = False) -> Listing:
    """The members of zip files, as if these were unpacked into one folder.

    All of them, or those of a split. Shards are zip files whose names begin with the split's.
    """
    root = paths[0] if len(paths) == 1 else paths[0].parent
    read = [_read_zip(path) for path in paths]
    if split is None:
        part, starts = "", [{"": ""}] * len(paths)
    else:
        starts = [_starts(*of, split, are_shards) for of in zip(paths, read, strict=True)]
        parts = list(dict.fromkeys(part for of_zip in starts for part in of_zip))
        tops = {member.filename.partition("/")[0] for members in read for member in members}
        part = _choose_split(root, split, parts, sorted(tops))
    places: list[Place] = []
    folders: dict[str, list[File]] = {}
    loose: list[File] = []
    for path, members, of_zip in zip(paths, read, starts, strict=True):
        if part not in of_zip:
            continue
        start, shown = of_zip[part], f"{path}/{of_zip[part]}".rstrip("/")
        for member in members:
            name = member.filename.removeprefix(start)
            if member.filename.startswith(start) and name:
                top, slash, _ = name.partition("/")
                among = folders.setdefault(top, []) if slash else loose
                if not member.is_dir():
                    fault = "is encrypted" if member.flag_bits & 1 else _fault(member.file_size)
                    number = len(places)
                    among.append(File(name, member.file_size, member.CRC, fault, number))
        places.append(Place(shown, _archive(path), start))
    if len(places) > 1:
        _check_copies(root, places, [*loose, *itertools.chain(*folders.values())])
    origin = places[0].shown if len(places) == 1 else f"{root} ({len(places)} zip files)"
    return Listing(origin, places, list(folders), folders.__getitem__, loose)


def list_all(root: Path) -> Listing:
    """All images of data without splits, and what they were taken for: classes, or no labels.

    Raises:
      UserError: when there is no image, or what there is looks like splits by other names.
    """
    listing = _list_everything(root)
    every = [*listing.loose, *below(listing, listing.folders)]
    found = only_images(every, listing.origin)
    names = _kinds(file.name for file in every)
    lacks = f"has no image, but {names}" if names else "has no files"
    require(bool(found), f"{root} {lacks}: {LAYOUTS}")
    common = posixpath.commonpath({file.name.rpartition("/")[0] for file in found})
    start = f"{common}/" if common else ""
    places = [
        place._replace(shown=f"{place.shown}/{start}".rstrip("/"), prefix=place.prefix + start)
        for place in listing.places
    ]
    files = [file._replace(name=file.name.removeprefix(start)) for file in found]
    folders = {file.name.rpartition("/")[0] for file in files}
    of_class = "folder"
    stems = [Path(place.archive[0]).stem for place in places if place.archive]
    if folders == {""} and len({re.sub(r"[\W\d_]", "", stem) for stem in stems}) > 1:
        of_class, folders = "zip file", set(stems)
        places = [p._replace(folder=f"{stem}/") for p, stem in zip(places, stems, strict=True)]
        files = [file._replace(name=places[file.place].folder + file.name) for file in files]
    tops = {folder.partition("/")[0] for folder in folders}
    _check_split_names(f"{root}/{start}".rstrip("/"), tops)
    origin, layout, by_class = listing.origin, "images without labels", dict[str, list[File]]()
    if "" in folders:
        loose = min(file.name for file in files if "/" not in file.name)
        layout += f" (no class folders: {loose} is in none)" if len(folders) > 1 else ""
    elif not tops <= folders:
        layout += f" (no class folders: {min(tops - folders)} has no image right in it)"
    else:
        for file in files:
            by_class.setdefault(nfc(file.name.partition("/")[0]), []).append(file)
        files, layout = [], f"{len(by_class):,} classes, a {of_class} each"
    return Listing(origin, places, list(by_class), by_class.__getitem__, files, layout)


def _list_everything(root: Path) -> Listing:
    zips = [root] if root.is_file() else zips_alone(root)
    return _list_zips(zips, None) if zips else _list_folder(root)


def below(listing: Listing, folders: Iterable[str]) -> list[File]:
    """The files in some folders of a listing and below them."""
    with thread_pool(THREADS) as pool:
        return [file for files in pool.map(listing.files, folders) for file in files]


def only_images(files: Sequence[File], origin: str) -> list[File]:
    """Those that are images by their names; the others are logged, if there is an image."""
    found = [file for file in files if _is_image(file.name)]
    if found and (others := sorted({file.name for file in files} - {file.name for file in found})):
        message = "%s: left out files that are no images (%s): %s"
        logger.warning(message, origin, _kinds(others), some(others))
    return found


def _kinds(names: Iterable[str]) -> str:
    kinds = collections.Counter(Path(name).suffix.lower() or "other" for name in names)
    return ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common(5))


def _check_split_names(where: str, folders: set[str]) -> None:
    """Raises UserError for folders that are splits by other names, or further below."""
    words = {name: re.sub(r"[\W\d_]", "", name.lower()) for name in sorted(folders)}
    train, test = (
        [name for name, word in words.items() if re.fullmatch(pattern, word)]
        for pattern in (TRAIN_WORDS, TEST_WORDS)
    )
    require(
        not (train and test),
        f"{where} holds {' and '.join(map(repr, train + test))}: if these are splits, call them "
        f"train and test, and name {where}; if they are classes, move all classes into a folder "
        "train",
    )


def check_beside(root: Path) -> None:
    """Raises UserError if `train` without classes may be a class itself, beside others."""
    listing = _list_everything(root)
    others = set(listing.folders) - {*SPLITS["train"], *SPLITS["test"]}
    folders = {
        file.name.rpartition("/")[0] for file in below(listing, others) if _is_image(file.name)
    }
    beside = sorted(folders & others) if "train" in listing.folders else []
    require(
        not beside,
        f"{root}: 'train' has no class folders, and there are images in {some(beside)} beside it: "
        "if all of these are classes, move them into a folder train; call a test split test",
    )


def warn_of_others(root: Path, used: Sequence[Place]) -> None:
    """Logs the folders with images that lie beside those of the splits, and are left out."""
    if root.is_dir():
        with os.scandir(root) as entries:
            tops = {e.name for e in entries if _is_dir(e) and not _is_hidden(e.name)}
        tops -= {Path(place.shown).relative_to(root).parts[0] for place in used}
        others = [top for top in tops if _has_image(root / top)]
    else:
        above = used[0].prefix.rstrip("/").rpartition("/")[0]
        start = f"{above}/" if above else ""
        names = (member.filename for member in _read_zip(root))
        images = [n for n in names if n.startswith(start) and _is_image(n)]
        images = [n for n in images if not any(n.startswith(place.prefix) for place in used)]
        others = list({n.removeprefix(start).partition("/")[0] for n in images if "/" in n})
    if others:
        splits = " and ".join(Path(place.shown).name for place in used)
        message = "%s: left out folders with images beside %s: %s"
        logger.warning(message, root, splits, some(sorted(others)))


def _has_image(folder: Path) -> bool:
    return any(_is_image(name) for *_, names in os.walk(folder) for name in names)


def _check_copies(root: Path, places: list[Place], files: list[File]) -> None:
    """Raises UserError for images that are in several zip files."""
    seen: dict[tuple, int] = {}
    copies: dict[tuple[int, int], list[str]] = {}
    for file in files:
        if _is_image(file.name):
            first = seen.setdefault((nfc(file.name), file.size, file.checksum), file.place)
            if first != file.place:
                copies.setdefault((first, file.place), []).append(file.name)
    for pair, names in copies.items():
        first, second = (Path(places[number].shown).relative_to(root) for number in pair)
        raise UserError(
            f"{root}: {first} and {second} hold the same images ({len(names):,}): {some(names)}; "
            "remove one of the two"
        )


def zips_alone(root: Path) -> list[Path]:
    """The zip files of a folder that has neither folders nor images beside them, sorted."""
    with os.scandir(root) as listed:
        entries = [entry for entry in listed if not _is_hidden(entry.name)]
    if any(_is_dir(entry) or _is_image(entry.name) for entry in entries):
        return []
    return sorted(Path(entry.path) for entry in entries if entry.name.lower().endswith(".zip"))


def is_shard(path: Path, split: str) -> bool:
    """Whether the name of a zip file begins with that of a split: `train-000.zip`."""
    return any(re.fullmatch(rf"{part}([^a-zA-Z].*)?", path.stem) for part in SPLITS[split])


def _starts(
    path: Path, members: Sequence[zipfile.ZipInfo], split: str, is_shard: bool
) -> dict[str, str]:
    """What a zip file has of a split: how the names of its members begin, by what it is called."""
    folders = {member.filename.rpartition("/")[0] + "/" for member in members}
    tops = {folder.partition("/")[0] for folder in folders} - {""}
    starts = {
        part: f"{start}{part}/"
        for part in SPLITS[split]
        for start in (*(f"{top}/" for top in tops if len(tops) == 1), "")
        if any(folder.startswith(f"{start}{part}/") for folder in folders)
    }
    if not starts and (is_shard or path.stem in SPLITS[split]):
        return {next(part for part in SPLITS[split] if path.stem.startswith(part)): ""}
    return starts


def _archive(path: Path) -> tuple[str, int]:
    return os.path.abspath(path), os.stat(path).st_mtime_ns


def _read_zip(path: Path) -> list[zipfile.ZipInfo]:
    """The members of a zip file, but for hidden ones."""
    members = open_zip(*_archive(path), os.getpid()).infolist()
    unsafe = [member.orig_filename for member in members if _is_unsafe(member)]
    require(
        not unsafe,
        f"{path} has members that are links or no plain names below it ({len(unsafe)}): "
        f"{some(unsafe)}; make the zip file anew",
    )
    counts = collections.Counter(member.filename for member in members if not member.is_dir())
    twice = [name for name, count in counts.items() if count > 1]
    require(not twice, f"{path} has members twice ({len(twice)}): {some(twice)}")
    return [m for m in members if not any(map(_is_hidden, m.filename.split("/")))]


@functools.lru_cache(maxsize=256)
def open_zip(path: str, stamp: int, process: int) -> zipfile.ZipFile:
    """A zip file that stays open for all threads of a process; `stamp` is its time of change."""
    try:
        open_file(path).close()
        archive = zipfile.ZipFile(path)
    except Exception as error:  # a damaged directory brings about many types
        message = f"{path} is no whole zip file ({error}): cut short, or still being copied?"
        raise UserError(message) from error
    for member in archive.infolist():
        if not member.flag_bits & UTF8_FLAG:
            with contextlib.suppress(UnicodeError):  # macOS writes UTF-8 without the flag
                member.filename = member.filename.encode("cp437").decode("utf-8")
    archive.NameToInfo = {member.filename: member for member in archive.infolist()}
    return archive


def _choose_split(root: Path, split: str, splits: Sequence[str], names: Sequence[str]) -> str:
    """Of these folders and zip files, the one called as the split, else the only other."""
    if not splits:
        names = [name for name in names if not _is_hidden(name)]
        raise NoSplit(f"{root} has no split {split!r}, but {some(names) or 'nothing'}: {LAYOUTS}")
    choice = [name for name in splits if Path(name).stem == split] or splits
    require(
        len(choice) == 1,
        f"{root} holds {' and '.join(choice)}: which one is the split {split!r}? Rename the other",
    )
    return choice[0]


def _is_unsafe(member: zipfile.ZipInfo) -> bool:
    """Whether it is a link or a device, or its name is absolute, of Windows, or has a `..`."""
    is_file = stat.S_IFMT(member.external_attr >> 16) in (0, stat.S_IFREG, stat.S_IFDIR)
    return not is_file or UNSAFE.search(member.orig_filename.removesuffix("/")) is not None


def _is_dir(entry: os.DirEntry) -> bool:
    with contextlib.suppress(OSError):  # a loop of links
        return entry.is_dir()
    return False


def _file(name: str, entry: os.DirEntry) -> File:
    try:
        size = entry.stat().st_size
    except OSError as error:  # a link to no file
        return File(name, 0, 0, f"cannot be read ({error.strerror})")
    return File(name, size, 0, _fault(size))


def _fault(size: int) -> str | None:
    if size == 0:
        return "is empty"
    return None if size <= MAX_BYTES else f"has {size:,} bytes, more than an image can have"


def _is_image(name: str) -> bool:
    return name.rpartition(".")[2].lower() in EXTENSIONS


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name in HIDDEN
