"""From text files to a corpus on disk; a preparation that was stopped goes on with the next file.

The first pass leaves the sentences of each file in `unfinished`, as numbers of that file's own
words, and counts those of the training sentences; the second writes the corpus.
"""

import array
import collections
import hashlib
import itertools
import json
import logging
import shutil
from collections.abc import Callable, Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from hypersphere_jax.configs import PrepareTextConfig, UserError, require
from hypersphere_jax.data.text import reading, rules
from hypersphere_jax.data.text.corpus import (
    FILES,
    FORMAT,
    OPTIONS,
    SPLITS,
    digest_of,
    open_corpus,
    read_about,
    token_type,
)
from hypersphere_jax.data.text.packing import END, SPECIAL, UNKNOWN
from hypersphere_jax.utils import caches
from hypersphere_jax.utils.files import locked, write_json

logger = logging.getLogger("hypersphere_jax")

CACHE = "~/.cache/hypersphere_jax/text"
# Of a sentence, in the files of the first pass; the numbers of words come after these.
WHOLE_END, CUT_END = range(2)
# The files of a corpus; without the first one it is not whole.
WRITTEN = ["corpus.json", "vocabulary.txt"]
WRITTEN += [f"{split}/{name}" for split in SPLITS for name in FILES]

Track = Callable[[list[Path]], Iterable[Path]]


def prepare_text(config: PrepareTextConfig, track: Track = iter) -> bool:
    """Makes a corpus of text files, for `open_corpus`.

    Each file is a document. Words are numbered from 3 on by their frequency in the training part,
    ties in alphabetical order; 0 is padding, 1 the end of a sentence, 2 every other word.

    Args:
      config: the text, the folder for the corpus, and the options.
      track: passes on the files, and shows how many are read.

    Returns:
      Whether there was anything to do: not if the folder holds this very corpus.
    """
    raw, out = (Path(path).expanduser() for path in (config.raw, config.out))
    files = reading.text_files(raw)
    require(
        raw.resolve() not in (out.resolve(), *out.resolve().parents),
        f"out={out} lies in {raw}, whose files are read: name another folder",
    )
    root = raw if raw.is_dir() else raw.parent
    options = {name: getattr(config, name) for name in OPTIONS}
    sizes = [[file.relative_to(root).as_posix(), file.stat().st_size] for file in files]
    work, whole = out / "unfinished", out / "corpus.json"
    is_new = not whole.exists()
    if is_new:
        is_free = work.is_dir() or not out.exists() or not any(out.iterdir())
        require(is_free, f"{out} holds something else: name an empty folder, or one to make")
        with locked(work / "lock"):
            if not whole.exists():  # from the process that held the lock
                _prepare(options, sizes, files, out, track)
            shutil.rmtree(work, ignore_errors=True)
    about = read_about(out)
    require(
        (about["options"], about["files"]) == (options, sizes),
        f"{out} holds a corpus of other files or options: name another out=, or remove it",
    )
    return is_new


def _prepare(
    options: dict[str, Any], sizes: list[list[Any]], files: list[Path], out: Path, track: Track
) -> None:
    """Both passes; corpus.json, which makes a corpus whole, is written last."""
    vocabulary, max_tokens, held_out, form = options.values()
    kept = [out / "unfinished" / f"{_key([file], max_tokens, form)}.npy" for file in files]
    counts: collections.Counter[str] = collections.Counter()
    for file, path in zip(track(files), kept, strict=True):
        if caches.read(path) is None:
            _read_file(file, path, max_tokens, form)
        words, splits = _load(path, held_out)
        used = np.bincount(splits["train"][0], minlength=CUT_END + 1 + len(words))[CUT_END + 1 :]
        counts.update({word: n for word, n in zip(words, used.tolist(), strict=True) if n})
    require(bool(counts), "there is no sentence with a word in this text")
    words = [*SPECIAL, *sorted(counts, key=lambda word: (-counts[word], word))[:vocabulary]]
    (out / "vocabulary.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    about = {"format": FORMAT, "options": options, "files": sizes, "words": len(words)}
    for split in SPLITS:
        about[split] = _write_split(out, split, kept, words, options)
    write_json(out / "corpus.json", about)


def _key(files: list[Path], *options: Any) -> str:
    """A name for what is made of these files, as they are now, with these options."""
    stats = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(json.dumps([FORMAT, stats, options]).encode()).hexdigest()[:24]


def _read_file(file: Path, path: Path, max_tokens: int, form: str) -> None:
    encoding = reading.encoding_of(file)
    start, form = reading.read_head(file, encoding, form)
    numbers = collections.defaultdict(itertools.count(CUT_END + 1).__next__)
    tokens, offsets = array.array("I"), array.array("q", [0])
    for sentence in reading.read_sentences(file, encoding, start, form):
        if rules.has_word(sentence):
            words = rules.words(sentence)
            tokens.extend(map(numbers.__getitem__, words[: max_tokens - 1]))
            tokens.append(CUT_END if len(words) >= max_tokens else WHOLE_END)
            offsets.append(len(tokens))
    words = np.frombuffer(" ".join(numbers).encode(), np.uint8)
    caches.write(path, np.array(tokens), np.array(offsets), words)


def _load(path: Path, held_out: float) -> tuple[list[str], dict[str, tuple]]:
    """Words of a file; tokens, and offsets `[n + 1]` of its sentences in them, by split."""
    tokens, offsets, words = caches.read(path) or []
    n = len(offsets) - 1
    border = n - int(n * Fraction(str(held_out)))
    parts = zip(SPLITS, (offsets[: border + 1], offsets[border:]), strict=True)
    splits = {name: (tokens[part[0] : part[-1]], part - part[0]) for name, part in parts}
    return words.tobytes().decode().split(), splits


def _write_split(
    out: Path, split: str, kept: list[Path], words: list[str], options: dict[str, Any]
) -> dict[str, Any]:
    """Writes the files of one split; returns what corpus.json says of it."""
    (out / split).mkdir(exist_ok=True)
    number, kind = {word: i for i, word in enumerate(words)}, token_type(len(words))
    offsets, documents, content = [np.zeros(1, np.int64)], [0], hashlib.sha256()
    cut = unknown = 0
    with open(out / split / "tokens.bin", "wb") as file:
        for path in kept:
            own_words, splits = _load(path, options["held_out"])
            tokens, ends = splits[split]
            if len(ends) > 1:
                table = [END, END, *(number.get(word, UNKNOWN) for word in own_words)]
                numbered = np.array(table, kind)[tokens]
                numbered.tofile(file)
                content.update(numbered.tobytes())
                offsets.append(ends[1:] + offsets[-1][-1])
                documents.append(documents[-1] + len(ends) - 1)
                cut += int(np.sum(tokens == CUT_END))
                unknown += int(np.sum(numbered == UNKNOWN))
    offsets = np.concatenate(offsets)
    np.save(out / split / "offsets.npy", offsets)
    np.save(out / split / "documents.npy", np.array(documents, np.int64))
    rest = options["max_tokens"], words, documents
    return {
        "documents": len(documents) - 1,
        "sentences": len(offsets) - 1,
        "tokens": int(offsets[-1]),
        "cut": cut,
        "unknown": unknown,
        "digest": digest_of(offsets, content.digest(), *rest),
    }


def prepared(path: Path, vocabulary: int, max_tokens: int) -> Path:
    """The corpus of a folder or file of text (itself, if it is one), kept in `CACHE`."""
    if (path / "corpus.json").exists():
        return path
    files = reading.text_files(path)
    folder = Path(CACHE).expanduser() / _key(files, vocabulary, max_tokens)
    options = {"vocabulary": vocabulary, "max_tokens": max_tokens}
    config = PrepareTextConfig(str(path), str(folder), **options)
    whole = folder / "corpus.json"
    if whole.exists() and _damage(config):
        with locked(folder / "unfinished" / "lock"):
            if whole.exists() and (damage := _damage(config)):  # no other process was faster
                logger.warning("%s (it is prepared again)", damage)
                for name in WRITTEN:  # not in place: a process may read them, mapped
                    (folder / name).unlink(missing_ok=True)
    if not whole.exists():
        logger.info("text in %s is prepared now, and kept for the next time in %s", path, folder)
        prepare_text(config)
    return folder


def _damage(config: PrepareTextConfig) -> str:
    """What is wrong with a corpus; empty where nothing is."""
    try:
        train, _ = open_corpus(Path(config.out))
    except UserError as error:
        reason = getattr(error.__cause__, "__cause__", None)
        if isinstance(reason, OSError) and not isinstance(reason, FileNotFoundError):
            raise  # such as of too many open files
        return str(error)
    same = all(getattr(config, name) == train.options[name] for name in OPTIONS)
    return "" if same else f"{config.out} says other options"
