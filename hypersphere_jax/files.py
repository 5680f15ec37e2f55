"""Files that are there whole or not at all, JSON, and locks."""

import contextlib
import fcntl
import itertools
import json
import logging
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from hypersphere_jax.configs.base import UserError
from hypersphere_jax.configs.kinds import check

logger = logging.getLogger("hypersphere_jax")

MAX_RECORD = 2**26  # bytes of a JSON file
MAX_DEPTH, MAX_VALUES = 64, 10**6  # of what is in it


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file whole or not at all."""
    with atomic_write(path) as file:
        file.write((json.dumps(value, indent=2) + "\n").encode())


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, and read, that takes its place when it is complete, or not at all.

    Processes that write the same file do not disturb each other: the last one stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two containers that share a folder may give their processes the same number.
    partial = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with open(partial, "w+b") as file:
            yield file
        os.replace(partial, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)  # the name that the user knows
        raise


def read_json(
    file: Path | str,
    schema: Mapping[str, Any] | None = None,
    advice: str = "run again what wrote it",
) -> dict[str, Any]:
    """The JSON object in a file.

    Args:
      file: UTF-8, with a mark of byte order or without.
      schema: the kinds of its values by key, see `config.kinds`; others may be there, too.
      advice: what to do about a damaged file.

    Raises:
      UserError: when there is something else.
    """
    try:
        with open_file(file) as stream:
            text = stream.read(MAX_RECORD)
    except UserError as error:
        raise UserError(f"{error}: {advice}") from error
    return parse_json(text, str(file), schema, advice)


def parse_json(
    text: bytes, where: str, schema: Mapping[str, Any] | None, advice: str
) -> dict[str, Any]:
    """The JSON object in a text; see `read_json`. `where` names the text in messages."""
    try:
        value = json.loads(text.decode("utf-8-sig"), object_pairs_hook=_object)
        check_depth(value)
        check(value, schema or {}, f"{where}: ")
    except UserError as error:
        raise UserError(f"{error}: {advice}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON ({error}): {advice}") from error
    return value


def read_kept(file: Path, schema: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """As `read_json`, of what can be made again: None, with a warning, where it is damaged."""
    try:
        return read_json(file, schema, "it is left out") if file.exists() else None
    except UserError as error:
        logger.warning("%s", error)
        return None


def open_file(path: Path | str) -> BinaryIO:
    """A file, to read it; UserError for none, and for a pipe or device, where reading may wait."""
    try:
        # Of a pipe that nobody writes to, opening would wait, too.
        stream: BinaryIO = open(path, "rb", opener=_at_once)  # noqa: SIM115  the caller closes it
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise UserError(f"{path} is a pipe or a device, not a file")
    return stream


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def check_depth(value: Any) -> None:
    """ValueError for values within values more deeply, or more of them, than any record has."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [x for x in level if isinstance(x, dict | list | tuple)]
        if not level:
            return
        inner = (x.values() if isinstance(x, dict) else x for x in level)
        level = list(itertools.islice(itertools.chain.from_iterable(inner), MAX_VALUES))
        if len(level) == MAX_VALUES:
            break
    raise ValueError("it is nested too deep, or too large")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{max(names, key=names.count)!r} is there twice")
    return value


@contextlib.contextmanager
def locked(file: Path, message: str | None = None) -> Iterator[None]:
    """Holds a file for this process; the system lets go of it however the process ends.

    Args:
      file: made where there is none, as its folder is.
      message: of the UserError where another process holds it. None: waits for that one.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | (fcntl.LOCK_NB if message else 0))
        except BlockingIOError as error:
            raise UserError(message) from error
        yield
