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


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically."""
    with atomic_write(path) as file:
        file.write((json.dumps(value, indent=2) + "\n").encode())


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` when the block ends without an exception.

    Several processes may write the same file; the last one wins.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Processes of two containers that share a folder may have the same id.
    partial = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with open(partial, "w+b") as file:
            yield file
        os.replace(partial, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)  # instead of the temporary name
        raise


def read_json(
    file: Path | str, keys: Iterable[str] = (), advice: str = "run again what wrote it"
) -> dict[str, Any]:
    """Return the JSON object in a UTF-8 file.

    Raises:
      UserError: for an unreadable file, other content than a JSON object, or a missing key; the
        message ends with the advice.
    """
    try:
        with open_file(file) as stream:
            text = stream.read()
    except UserError as error:
        raise UserError(f"{error}: {advice}") from error
    return parse_json(text, str(file), keys, advice)


def parse_json(text: bytes, where: str, keys: Iterable[str], advice: str) -> dict[str, Any]:
    """Return the JSON object in a text; see `read_json`. `where` names the text in messages."""
    try:
        value = json.loads(text.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON ({error}): {advice}") from error
    if not isinstance(value, dict):
        raise UserError(f"{where} lacks a JSON object: {advice}")
    missing = [key for key in keys if key not in value]
    if missing:
        raise UserError(f"{where} lacks {', '.join(missing)}: {advice}")
    return value


def read_kept(file: Path, keys: Iterable[str] = ()) -> dict[str, Any] | None:
    """Return the JSON object in a file, or None if it is missing or (with a warning) damaged."""
    if not file.exists():
        return None
    try:
        return read_json(file, keys, "it is left out")
    except UserError as error:
        logger.warning("%s", error)
        return None


def open_file(path: Path | str) -> BinaryIO:
    """Open a regular file for reading.

    Raises:
      UserError: for a missing or unreadable file, and for pipes and devices, which may block.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise UserError(f"{path} is a folder, a pipe or a device, not a file")
        return open(path, "rb")
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


@contextlib.contextmanager
def locked(file: Path, message: str | None = None) -> Iterator[None]:
    """Lock a file for this process, until the block or the process ends.

    If another process has the lock, wait for it, or raise UserError with the message if given.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    flags = fcntl.LOCK_EX
    if message:
        flags |= fcntl.LOCK_NB
    with open(file, "a") as stream:
        try:
            fcntl.flock(stream, flags)
        except BlockingIOError as error:
            raise UserError(message) from error
        yield
