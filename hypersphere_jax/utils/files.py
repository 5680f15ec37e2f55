"""Atomic writes, JSON, and file locks."""

import contextlib
import fcntl
import json
import logging
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from hypersphere_jax.configs.base import UserError

logger = logging.getLogger("hypersphere_jax")

MAX_RECORD = 2**26  # bytes of a JSON file


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
    file: Path | str, keys: Iterable[str] = (), advice: str = "run again what wrote it"
) -> dict[str, Any]:
    """Return the JSON object in a UTF-8 file.

    Args:
      file: the file.
      keys: keys that it must have.
      advice: what to do about a damaged file.

    Raises:
      UserError: for a file that cannot be read, is no JSON object, or lacks a key.
    """
    try:
        with open_file(file) as stream:
            text = stream.read(MAX_RECORD)
    except UserError as error:
        raise UserError(f"{error}: {advice}") from error
    return parse_json(text, str(file), keys, advice)


def parse_json(text: bytes, where: str, keys: Iterable[str], advice: str) -> dict[str, Any]:
    """Return the JSON object in a text; see `read_json`. `where` names the text in messages."""
    try:
        value = json.loads(text.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON ({error}): {advice}") from error
    missing = [key for key in keys if not isinstance(value, dict) or key not in value]
    if missing or not isinstance(value, dict):
        raise UserError(f"{where} lacks {', '.join(missing) or 'a JSON object'}: {advice}")
    return value


def read_kept(file: Path, keys: Iterable[str] = ()) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if it is missing or, with a warning, damaged."""
    try:
        return read_json(file, keys, "it is left out") if file.exists() else None
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
