"""From text files to a corpus on disk: `prepare_text`.

Two passes. The first reads the text, which takes nearly all the time, and leaves pieces of about 16
MB: sentences as numbers of the words of that piece. The second counts the words of the training
sentences of all pieces, and writes the corpus. A piece that is written is not made again, so a
preparation that was stopped goes on from the last one. Memory does not grow with the text.
"""

import atexit
import contextlib
import dataclasses
import errno
import fcntl
import functools
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from hypersphere_jax.config import UserError, require
from hypersphere_jax.config.data import valid_text
from hypersphere_jax.data.text import pieces, reading
from hypersphere_jax.data.text.corpus import FORMAT, SPLITS, open_corpus, read_about

logger = logging.getLogger("hypersphere_jax")

UNFINISHED = "unfinished"  # the folder of the pieces
MAX_BYTES = 2**28  # of raw text that is prepared without being asked to
FORMS = ("auto", "prose", "sentences")
CACHE = "~/.cache/hypersphere_jax/text"

Track = Callable[[Iterable[None], int], Iterable[None]]


@dataclasses.dataclass(frozen=True)
class Options:
    """What shapes a corpus, besides its files; see `prepare_text`."""

    vocabulary: int = 50_000
    max_tokens: int = 64
    held_out: float = 0.05
    form: str = "auto"


def prepare_text(
    raw: Path,
    out: Path,
    *,
    vocabulary: int = 50_000,
    max_tokens: int = 64,
    held_out: float = 0.05,
    form: str = "auto",
    track: Track = lambda items, count: items,
) -> bool:
    """Makes a corpus of text files, for `open_corpus`.

    Each file is a document. Words are numbered from 3 on by their frequency in the training part,
    ties in alphabetical order; 0 is padding, 1 the end of a sentence, 2 every other word. When this
    is stopped, the same call goes on, to the same corpus bit by bit.

    Args:
      raw: a .txt or .txt.gz file, or a folder of such (also in folders below). UTF-8, else Latin-1.
      out: the folder for the corpus; not inside `raw`.
      vocabulary: how many words get a number, at most. Of text with more than five million
        different words, the rarest may be counted too low.
      max_tokens: of a sentence, with its end token; longer ones are cut there, and counted.
      held_out: the last sentences of each document, this share of them, rounded down, are the
        held-out split.
      form: "sentences" (one a line), "prose" (paragraphs between blank lines), or "auto": for each
        file what its first lines look like, see `rules.form`.
      track: shows how far the work is: passes on the items, of which there are so many.

    Returns:
      Whether there was anything to do: not if `out` holds this very corpus.

    Raises:
      UserError: when there is no text, a file cannot be read, or `out` holds something else.
    """
    require(0 <= held_out < 1, f"--held-out {held_out}: must be in [0, 1)")
    require(form in FORMS, f"--form {form}: must be one of {', '.join(FORMS)}")
    valid_text(vocabulary, max_tokens)
    options = Options(vocabulary, max_tokens, held_out, form)
    raw, out = Path(raw), Path(out)
    files = reading.text_files(raw)
    _check_apart(raw, out)
    plan = _plan(raw, files, options)
    if (out / "corpus.json").exists():
        _check_same(out, plan)
        shutil.rmtree(out / UNFINISHED, ignore_errors=True)
        return False
    work = out / UNFINISHED
    _check_free(out)
    work.mkdir(parents=True, exist_ok=True)
    with _locked(work / "lock", out):
        _check_plan(work / "plan.json", plan)
        sizes = [entry["bytes"] for entry in plan["files"]]
        written = []

        def passes():
            yield from pieces.read_all(files, work, max_tokens, form)
            written.append(
                (yield from pieces.write_all(sizes, work, vocabulary, max_tokens, held_out))
            )

        # Closed when this is stopped: a writer must not outlive the lock.
        with contextlib.closing(pieces.by_megabyte(passes())) as steps:
            for _ in track(steps, pieces.megabytes(sum(sizes))):
                pass
        ((parts, about),) = written
        for entry, known in zip(plan["files"], about.pop("files"), strict=True):
            entry |= known
        pieces.write_json(work / "corpus.json", plan | about)
        _put(work, [*parts, "corpus.json"], out)
    shutil.rmtree(work, ignore_errors=True)
    return True


def _plan(raw: Path, files: list[Path], options: Options) -> dict[str, Any]:
    """What a corpus is made of; the same corpus comes of the same plan."""
    root = raw if raw.is_dir() else raw.parent
    names = [file.relative_to(root).as_posix() for file in files]
    entries = [
        {"name": name, "bytes": file.stat().st_size}
        for name, file in zip(names, files, strict=True)
    ]
    return {"format": FORMAT, "options": dataclasses.asdict(options), "files": entries}


def _check_apart(raw: Path, out: Path) -> None:
    inner, outer = out.resolve(), raw.resolve()
    require(
        inner != outer and outer not in inner.parents,
        f"--out {out} lies in {raw}, whose files are read: name another folder",
    )


def _check_same(out: Path, plan: dict[str, Any]) -> None:
    about = read_about(out)
    made_of = [{key: file[key] for key in ("name", "bytes")} for file in about["files"]]
    require(
        about["options"] == plan["options"] and made_of == plan["files"],
        f"{out} holds a corpus of other files or options: name another --out, or remove it",
    )


def _check_free(out: Path) -> None:
    ours = {UNFINISHED, "vocabulary.txt", *SPLITS}
    others = sorted({path.name for path in out.iterdir()} - ours) if out.is_dir() else []
    known = (out / UNFINISHED).is_dir() or not out.exists() or not any(out.iterdir())
    require(
        known and not others and (out.is_dir() or not out.exists()),
        f"{out} holds something else: name an empty folder, or one to make",
    )


def _check_plan(file: Path, plan: dict[str, Any]) -> None:
    if not file.exists():
        pieces.write_json(file, plan)
    require(
        json.loads(file.read_text()) == plan,
        f"{file.parent.parent} holds a part of a corpus of other files or options: name another "
        "--out, or remove it",
    )


@contextlib.contextmanager
def _locked(file: Path, out: Path) -> Iterator[None]:
    with open(file, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                yield  # this file system has no locks
                return
            raise UserError(f"another process prepares {out} now: wait for it") from error
        yield


def _put(work: Path, parts: list[str], out: Path) -> None:
    """Moves the parts of a corpus to their place; the last, corpus.json, makes it whole."""
    for name in parts:
        if (out / name).is_dir():
            shutil.rmtree(out / name)
        os.replace(work / name, out / name)


def prepared(path: Path, vocabulary: int = 50_000, max_tokens: int = 64) -> Path:
    """The corpus of a folder or file of text, made now unless that was done before.

    Corpora are kept in ~/.cache/hypersphere_jax/text under a digest of the files' contents and the
    options, and a damaged one is made anew; where that cannot be written, in a folder that goes
    when the process ends.

    Args:
      path: raw text of at most 256 MB, or a prepared corpus, which is returned as it is.
      vocabulary: as for `prepare_text`.
      max_tokens: as for `prepare_text`.

    Raises:
      UserError: as `prepare_text`, and when there is more text.
    """
    if (path / "corpus.json").exists():
        return path
    options = Options(vocabulary, max_tokens)
    files = reading.text_files(path)
    size = sum(file.stat().st_size for file in files)
    require(
        size <= MAX_BYTES,
        f"{path} holds {size / 1e6:,.0f} MB of text, more than is prepared on the fly: "
        f"python run.py data prepare-text {path} --out DIR, then --data DIR",
    )
    key = _key(path, files, options)
    cache = Path(CACHE).expanduser()
    if _is_sound(cache / key, tell=True):
        return cache / key
    kept = f"kept for the next time in {cache / key}"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        own = Path(tempfile.mkdtemp(prefix=f"{key}.", dir=cache))
    except OSError as error:
        kept = f"not kept for the next time, as {cache} cannot be written: {error.strerror}"
        cache = _temporary()
        if _is_sound(cache / key):
            return cache / key
        own = Path(tempfile.mkdtemp(prefix=f"{key}.", dir=cache))
    logger.warning("the %.1f MB of text in %s are prepared now, and %s", size / 1e6, path, kept)
    # Another process may do the same: each works in a folder of its own, and the first one stays.
    try:
        prepare_text(path, own, vocabulary=vocabulary, max_tokens=max_tokens)
        own.chmod(0o755)
        _keep(own, cache / key)
    finally:
        shutil.rmtree(own, ignore_errors=True)
    return cache / key


def _is_sound(folder: Path, tell: bool = False) -> bool:
    """Whether a corpus is there and whole; of a damaged one, `tell` says so in a warning."""
    if not os.path.exists(folder):
        return False
    try:
        open_corpus(folder)
    except UserError as error:
        if tell:
            logger.warning("%s: it is made anew", str(error).rpartition(": ")[0])
        return False
    return True


def _keep(own: Path, place: Path) -> None:
    """Moves a corpus to its place in the cache, unless a sound one has come there meanwhile.

    Raises:
      UserError: when a damaged one is there and cannot be moved away.
    """
    aside = own.with_name(f"{own.name}.damaged")
    with _alone(place.parent):
        if _is_sound(place):
            return
        try:
            if place.exists():
                os.replace(place, aside)
            os.replace(own, place)
        except OSError as error:
            require(
                _is_sound(place),  # of a process without the lock, where there are none
                f"{place} is damaged and cannot be replaced ({error.strerror}): remove it",
            )
    shutil.rmtree(aside, ignore_errors=True)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Waits until no other process is in this block with the same folder."""
    lock = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some file systems have no locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


@functools.cache
def _temporary() -> Path:
    folder = tempfile.mkdtemp(prefix="hypersphere_jax_text_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _key(path: Path, files: list[Path], options: Options) -> str:
    plan = _plan(path, files, options)
    digest = hashlib.sha256(json.dumps(plan).encode())
    for file in files:
        try:
            with open(file, "rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        except OSError as error:
            raise UserError(f"{file} cannot be read: {error.strerror or error}") from error
    return digest.hexdigest()[:24]
