"""From text files to a corpus on disk: `prepare_text`.

Two passes. The first reads the text, which takes nearly all the time, and leaves the sentences of
each file in `unfinished`, as numbers of that file's own words. The second counts the words of the
training sentences of all files, and writes the corpus. A file that was read whole is not read
again, so a preparation that was stopped goes on with the next file.
"""

import array
import collections
import hashlib
import itertools
import json
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hypersphere_jax.config import PrepareTextConfig, UserError, require
from hypersphere_jax.data.text import reading, rules
from hypersphere_jax.data.text.corpus import FORMAT, SPLITS, read_about, token_type
from hypersphere_jax.files import locked, read_json, write_json
from hypersphere_jax.packing import END, SPECIAL, UNKNOWN

logger = logging.getLogger("hypersphere_jax")

OPTIONS = ("vocabulary", "max_tokens", "held_out", "form")
MAX_MB = 256  # of raw text that is prepared without being asked to
CACHE = "~/.cache/hypersphere_jax/text"
BLOCK = 2**18  # tokens in memory at once
# Of a sentence, in the files of the first pass; the numbers of words come after these.
WHOLE_END, CUT_END = range(2)

Track = Callable[[list[Path]], Iterable[Path]]


def prepare_text(config: PrepareTextConfig, track: Track = iter) -> bool:
    """Makes a corpus of text files, for `open_corpus`.

    Each file is a document. Words are numbered from 3 on by their frequency in the training part,
    ties in alphabetical order; 0 is padding, 1 the end of a sentence, 2 every other word. When this
    is stopped, the same call goes on with the next file; processes that prepare the same corpus
    wait for each other.

    Args:
      config: the text, the folder for the corpus, and the options.
      track: passes on the files, and shows how many are read.

    Returns:
      Whether there was anything to do: not if the folder holds this very corpus.

    Raises:
      UserError: when there is no text, a file cannot be read, or the folder holds something else.
    """
    raw, out = (Path(path).expanduser() for path in (config.raw, config.out))
    files = reading.text_files(raw)
    require(
        raw.resolve() not in (out.resolve(), *out.resolve().parents),
        f"--out {out} lies in {raw}, whose files are read: name another folder",
    )
    root = raw if raw.is_dir() else raw.parent
    plan = {
        "format": FORMAT,
        "options": {name: getattr(config, name) for name in OPTIONS},
        "files": [
            {"name": file.relative_to(root).as_posix(), "bytes": file.stat().st_size}
            for file in files
        ],
    }
    work, whole = out / "unfinished", out / "corpus.json"
    is_free = work.is_dir() or not out.exists() or (out.is_dir() and not any(out.iterdir()))
    is_new = False
    if not whole.exists():
        require(is_free, f"{out} holds something else: name an empty folder, or one to make")
        with locked(work / "lock"):
            if not whole.exists():  # from the process that held the lock
                _prepare(plan, files, out, work, track)
                is_new = True
            shutil.rmtree(work, ignore_errors=True)
    about = read_about(out)
    made_of = [{key: file[key] for key in ("name", "bytes")} for file in about["files"]]
    require(
        (about["options"], made_of) == (plan["options"], plan["files"]),
        f"{out} holds a corpus of other files or options: name another --out, or remove it",
    )
    return is_new


def _prepare(plan: dict[str, Any], files: list[Path], out: Path, work: Path, track: Track) -> None:
    """Both passes; corpus.json, which makes a corpus whole, is written last."""
    options, entries = plan["options"], []
    parts: dict[str, list[_Part]] = {name: [] for name in SPLITS}
    for file, entry in zip(track(files), plan["files"], strict=True):
        stem = work / _key([file], options["max_tokens"], options["form"])
        if not stem.with_suffix(".json").exists():
            _read(file, stem, options["max_tokens"], options["form"])
        about = read_json(stem.with_suffix(".json"))
        n = about["sentences"]
        border = n - int(n * Fraction(str(options["held_out"])))
        parts["train"].append(_Part(stem, 0, border))
        parts["held_out"].append(_Part(stem, border, n))
        entries.append(entry | {key: about[key] for key in ("encoding", "form", "sentences")})
    parts = {name: [part for part in parts[name] if part.first < part.last] for name in SPLITS}
    require(bool(parts["train"]), "there is no sentence with a word in this text")
    words = [*SPECIAL, *_most_frequent(parts["train"], options["vocabulary"])]
    (out / "vocabulary.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    seed = json.dumps([options["max_tokens"], words]).encode()
    splits = {name: _write_split(out / name, parts[name], words, seed) for name in SPLITS}
    write_json(out / "corpus.json", plan | {"files": entries, "words": len(words)} | splits)


def _key(files: list[Path], *options: Any) -> str:
    """A name for what is made of these files, as they are now, with these options."""
    stats = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(json.dumps([FORMAT, stats, options]).encode()).hexdigest()[:24]


def _read(file: Path, stem: Path, max_tokens: int, form: str) -> None:
    """Writes the sentences of a file for `_Part`: .tokens, .offsets, and .json as the last."""
    encoding = reading.encoding_of(file)
    start, form = reading.read_head(file, encoding, form)
    numbers = collections.defaultdict(itertools.count(CUT_END + 1).__next__)
    sentences = length = 0
    with (
        open(stem.with_suffix(".tokens"), "wb") as tokens,
        open(stem.with_suffix(".offsets"), "wb") as offsets,
    ):
        array.array("q", [0]).tofile(offsets)
        for sentence in reading.read_sentences(file, encoding, start, form):
            if not rules.has_word(sentence):
                continue
            words = rules.words(sentence)
            row = array.array("I", map(numbers.__getitem__, words[: max_tokens - 1]))
            row.append(CUT_END if len(words) >= max_tokens else WHOLE_END)
            row.tofile(tokens)
            length += len(row)
            array.array("q", [length]).tofile(offsets)
            sentences += 1
    about = {"encoding": encoding, "form": form, "sentences": sentences, "words": list(numbers)}
    write_json(stem.with_suffix(".json"), about)


class _Part(NamedTuple):
    """Sentences `first` to `last` of a file that `_read` has read."""

    stem: Path
    first: int
    last: int

    def words(self) -> list[str]:
        """The words of the whole file, which are numbered from CUT_END + 1 on."""
        return read_json(self.stem.with_suffix(".json"))["words"]

    def offsets(self) -> np.ndarray:
        """Where each sentence begins in the tokens of the file, and the last ends, int64."""
        offsets = np.memmap(self.stem.with_suffix(".offsets"), np.int64, "r")
        return offsets[self.first : self.last + 1]

    def tokens(self) -> Iterator[np.ndarray]:
        """All tokens of the sentences, some at a time."""
        tokens = np.memmap(self.stem.with_suffix(".tokens"), np.uint32, "r")
        first, last = self.offsets()[[0, -1]].tolist()
        for start in range(first, last, BLOCK):
            yield tokens[start : min(start + BLOCK, last)]


def _most_frequent(parts: list[_Part], vocabulary: int) -> list[str]:
    """The most frequent words, ties in alphabetical order."""
    counts: collections.Counter[str] = collections.Counter()
    for part in parts:
        words = part.words()
        size = CUT_END + 1 + len(words)
        found = sum(np.bincount(tokens, minlength=size) for tokens in part.tokens())
        used = zip(words, found[CUT_END + 1 :].tolist(), strict=True)
        counts.update({word: count for word, count in used if count})
    return sorted(counts, key=lambda word: (-counts[word], word))[:vocabulary]


def _write_split(folder: Path, parts: list[_Part], words: list[str], seed: bytes) -> dict[str, Any]:
    """Writes one split, each part a document; returns what corpus.json says of it."""
    folder.mkdir(exist_ok=True)
    number, kind = {word: i for i, word in enumerate(words)}, token_type(len(words))
    documents = np.cumsum([0, *(part.last - part.first for part in parts)], dtype=np.int64)
    np.save(folder / "documents.npy", documents)
    shape = (int(documents[-1]) + 1,)
    offsets = np.lib.format.open_memmap(folder / "offsets.npy", "w+", np.int64, shape)
    digest = hashlib.sha256(seed + documents.tobytes())
    written = cut = unknown = 0
    with open(folder / "tokens.bin", "wb") as file:
        for part, start in zip(parts, documents.tolist(), strict=False):
            begins = part.offsets()
            np.add(begins, written - begins[0], out=offsets[start : start + len(begins)])
            known = (number.get(word, UNKNOWN) for word in part.words())
            table = np.array([END, END, *known], kind)
            for block in part.tokens():
                tokens = table[block]
                digest.update(tokens.tobytes())
                tokens.tofile(file)
                written += len(tokens)
                cut += int(np.sum(block == CUT_END))
                unknown += int(np.sum(tokens == UNKNOWN))
    digest.update(hashlib.sha256(offsets[1:]).digest())
    offsets.flush()
    return {
        "documents": len(parts),
        "sentences": shape[0] - 1,
        "tokens": written,
        "cut": cut,
        "unknown": unknown,
        "digest": digest.hexdigest()[:16],
    }


def prepared(path: Path, vocabulary: int, max_tokens: int) -> Path:
    """The corpus of a folder or file of text, made now unless that was done before.

    Corpora are kept in ~/.cache/hypersphere_jax/text, by the files' places, sizes and times and by
    the options.

    Args:
      path: raw text of at most 256 MB, or a prepared corpus, which is returned as it is.
      vocabulary: how many words get a number, at most.
      max_tokens: of a sentence, with its end token.

    Raises:
      UserError: as `prepare_text`, and when there is more text, or the cache cannot be written.
    """
    if (path / "corpus.json").exists():
        return path
    files = reading.text_files(path)
    size = sum(file.stat().st_size for file in files) / 1e6
    by_hand = f"python run.py data prepare-text {path} --out DIR, then --data DIR"
    require(
        size <= MAX_MB,
        f"{path} holds {size:,.0f} MB of text, more than is prepared on the fly: {by_hand}",
    )
    folder = Path(CACHE).expanduser() / _key(files, vocabulary, max_tokens)
    if not (folder / "corpus.json").exists():
        message = "the %.1f MB of text in %s are prepared now, and kept for the next time in %s"
        logger.warning(message, size, path, folder)
        config = PrepareTextConfig(
            str(path), str(folder), vocabulary=vocabulary, max_tokens=max_tokens
        )
        try:
            prepare_text(config)
        except OSError as error:
            raise UserError(f"{folder} cannot be written ({error.strerror}): {by_hand}") from error
    return folder
