"""Files that are there whole or not at all, JSON, and locks."""

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from hypersphere_jax import signals
from hypersphere_jax.config import UserError, require


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
    signals.unfinished.add(partial)
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
    finally:
        signals.unfinished.discard(partial)


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
      UserError: when there is something else.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{file} is not JSON ({error}): run again what wrote it") from error
    require(isinstance(content, dict), f"{file} holds no JSON object: run again what wrote it")
    return content


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
