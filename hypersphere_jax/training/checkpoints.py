"""Checkpoints: asynchronous saving, strict restoring. The only module that uses Orbax.

A checkpoint contains a tree of arrays, and a table of the path, dtype, shape and checksum of every
array; the table has a checksum, too. Restoring compares tree and table with the caller's tree, to
distinguish damaged files from another structure. The first of several processes saves and restores,
without communication.
"""

import contextlib
import errno
import json
import logging
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from hypersphere_jax.configs import RuntimeConfig, UserError
from hypersphere_jax.training import distributed
from hypersphere_jax.utils.arrays import checksum, entry

if TYPE_CHECKING:  # Orbax takes long to import, and other commands do not need it
    import orbax.checkpoint as ocp

logger = logging.getLogger("hypersphere_jax")

Tree = dict[str, Any]
STEP: Tree = {"step": np.zeros((), np.int32)}  # part of every checkpoint
MAX_SHOWN = 5  # arrays in a message
TABLE_CHECKSUM = "crc32"  # key in the table of arrays
# OSErrors that do not depend on the file: too many open files, no memory.
TRANSIENT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
UNFINISHED = ".orbax-checkpoint-tmp"  # in the name of a checkpoint that is not complete
NOT_LITERAL = r"[\[\]*?\\\ud800-\udfff]|:/"  # Orbax reads patterns such as [a], and URLs


class Damaged(Exception):
    """A checkpoint whose files are not as they were written."""


class Checkpointer:
    """Saves the checkpoints of one run; does nothing in processes but the first.

    Each checkpoint is a subfolder named by its step. Step 0 is always kept.
    """

    def __init__(self, folder: Path, runtime: RuntimeConfig | None = None):
        self.saved = 0  # newest saved step
        self._runtime = runtime or RuntimeConfig()
        self._is_writer = distributed.is_first()
        self._saved_at = time.monotonic()
        self._writer: ocp.AsyncCheckpointer | None = None
        self.folder = folder.absolute()
        _require_literal(self.folder)

    def restore(self, initial: Tree) -> Tree:
        """Return the newest intact checkpoint, or the initial state if there is none at all.

        Newer checkpoints that are damaged are renamed, so that their steps can be saved again.
        """
        if not self._is_writer or not steps(self.folder):
            return initial
        step, tree, damaged = newest(self.folder, initial)
        for name in map(str, damaged):
            number = 1 + len(list(self.folder.glob(f"{name}.damaged-*")))
            (self.folder / name).rename(self.folder / f"{name}.damaged-{number}")
        self.saved = step
        return tree

    def is_due(self, step: int) -> bool:
        """Return whether to save a checkpoint after this step."""
        intervals = (self._runtime.checkpoint_every_steps, self._runtime.keep_every_steps)
        minutes = (time.monotonic() - self._saved_at) / 60
        is_late = self._is_writer and minutes > self._runtime.checkpoint_every_minutes
        return is_late or any(every and step % every == 0 for every in intervals)

    def save(self, step: int, tree: Tree) -> None:
        """Start to save NumPy arrays, which the caller must not change afterwards.

        Raises:
          UserError: when this or an earlier save fails, e.g. on a full disk.
        """
        if self._is_writer:
            self._start_saving(step, tree)
        self.saved = step
        self._saved_at = time.monotonic()

    def _start_saving(self, step: int, tree: Tree) -> None:
        import orbax.checkpoint as ocp

        self.wait()
        table: dict[str, Any] = {path: entry(leaf) for path, leaf in _flat(tree).items()}
        table[TABLE_CHECKSUM] = checksum(table)
        with _save_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            for unfinished in self.folder.glob(f"*{UNFINISHED}*"):
                shutil.rmtree(unfinished, ignore_errors=True)
            if self._writer is None:
                self._writer = ocp.AsyncCheckpointer(
                    _handler(), multiprocessing_options=_this_process()
                )
            items = {"state": ocp.args.PyTreeSave(tree), "contents": ocp.args.JsonSave(table)}
            self._writer.save(self.folder / str(step), args=ocp.args.Composite(**items))

    def wait(self) -> None:
        """Wait for the newest save, then remove older checkpoints; UserError if it failed."""
        if self._writer is None:
            return
        every = self._runtime.keep_every_steps
        with _save_errors(self.folder):
            self._writer.wait_until_finished()
            for step in steps(self.folder)[: -self._runtime.keep_last]:
                if step > 0 and not (every and step % every == 0):
                    # An incomplete checkpoint never has the name of a complete one.
                    path = self.folder / str(step)
                    shutil.rmtree(path.rename(f"{path}{UNFINISHED}"))

    def close(self) -> None:
        """Wait until the checkpoints are written; UserError when a save failed."""
        try:
            self.wait()
        finally:
            writer = self._writer
            self._writer = None
            if writer is not None:
                with _save_errors(self.folder):  # it may write, too
                    writer.close()


def steps(folder: Path) -> list[int]:
    """Return the steps of the complete checkpoints in a folder, in order."""
    if not folder.is_dir():
        return []
    names = [path.name for path in folder.iterdir()]
    return sorted(int(name) for name in names if re.fullmatch("0|[1-9][0-9]*", name))


def restore(folder: Path, like: Tree, step: int | None = None) -> tuple[int, Tree]:
    """Read a checkpoint, by default the newest intact one, or some of its top-level entries.

    The tree `like` of arrays or `jax.ShapeDtypeStruct` must match the checkpoint exactly, but its
    top level may omit entries. The initialization does not replace a damaged checkpoint.

    Raises:
      UserError: If the checkpoint is missing, damaged, or of another structure.
    """
    saved = steps(folder)
    if not saved:
        raise UserError(f"no checkpoint in {folder}: `pretrain` saves one there")
    if step is None:
        step, tree, damaged = newest(folder, like)
        if damaged and step == 0:
            raise UserError(
                f"{folder}: trained checkpoints are damaged; restore them, or load the "
                "initialization, step=0"
            )
        return step, tree
    if step not in saved:
        known = ", ".join(map(str, saved))
        raise UserError(f"no checkpoint of step {step} in {folder}: there are {known}")
    try:
        return step, _read(folder / str(step), like)
    except Damaged as error:
        raise UserError(f"checkpoint {folder / str(step)} is damaged: {error}") from error


def newest(folder: Path, like: Tree) -> tuple[int, Tree, list[int]]:
    """Read the newest intact checkpoint; also return the steps of newer, damaged ones."""
    damaged = []
    for step in reversed(steps(folder)):
        path = folder / str(step)
        try:
            return step, _read(path, like), damaged
        except Damaged as error:
            logger.warning("checkpoint %s is damaged (%s): trying the one before", path, error)
            damaged.append(step)
    raise UserError(
        f"every checkpoint in {folder} is damaged: start again under another name=, "
        "or restore the files"
    )


def _read(path: Path, like: Tree) -> Tree:
    """Read a checkpoint; UserError for another structure, Damaged for anything else."""
    import orbax.checkpoint as ocp

    try:
        if not all(file.is_file() or file.is_dir() for file in path.rglob("*")):
            raise Damaged("it contains a pipe or a device")  # reading a pipe may wait
        table = _read_table(path)
        # The saved step is compared with the name of the folder.
        wanted = STEP | like if "step" in table else like
        saved = {key: item for key, item in table.items() if key.split("/")[0] in wanted}
        _require_same_structure(path, saved, _flat(wanted))
        as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), wanted)
        args = ocp.args.PyTreeRestore(item=wanted, restore_args=as_numpy, partial_restore=True)
        _require_literal(path.absolute())
        with ocp.Checkpointer(_handler(), multiprocessing_options=_this_process()) as reader:
            tree = reader.restore(path.absolute(), args=ocp.args.Composite(state=args)).state
        changed = [key for key, leaf in _flat(tree).items() if entry(leaf) != saved[key]]
        if changed:
            raise Damaged(f"checksums differ for {', '.join(changed[:3])}")
        if int(tree.get("step", path.name)) != int(path.name):
            raise Damaged(f"it contains step {tree['step']}")
    except (UserError, Damaged, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in TRANSIENT:
            raise
        raise Damaged(_first_line(error)) from error
    return {name: tree[name] for name in like}


def _read_table(path: Path) -> dict[str, dict]:
    """Read dtype, shape and checksum of each array; Damaged if the table was changed."""
    table = json.loads((path / "contents" / "metadata").read_text())
    if not table or table.pop(TABLE_CHECKSUM, None) != checksum(table):
        raise Damaged("the checksum of contents/metadata differs")
    return table


def _require_same_structure(path: Path, saved: dict[str, dict], like: dict[str, Any]) -> None:
    expected = {key: f"{np.dtype(x.dtype)} {list(x.shape)}" for key, x in like.items()}
    actual = {key: f"{item['dtype']} {item['shape']}" for key, item in saved.items()}
    keys = sorted(expected.keys() | actual.keys())
    differing = [key for key in keys if expected.get(key) != actual.get(key)]
    if differing:
        shown = [
            f"{key} (saved: {actual.get(key, 'none')}, expected: {expected.get(key, 'none')})"
            for key in differing[:MAX_SHOWN]
        ]
        raise UserError(
            f"checkpoint {path} does not fit this model or optimizer; {len(differing)} arrays "
            f"differ: {', '.join(shown)}"
        )


def _handler() -> "ocp.CompositeCheckpointHandler":
    import orbax.checkpoint as ocp

    options = ocp.CompositeOptions(multiprocessing_options=_this_process())
    return ocp.CompositeCheckpointHandler(composite_options=options)


def _this_process() -> "ocp.options.MultiprocessingOptions":
    """Options with which Orbax waits for no other process."""
    import orbax.checkpoint as ocp

    index = jax.process_index()
    return ocp.options.MultiprocessingOptions(primary_host=index, active_processes={index})


def _require_literal(folder: Path) -> None:
    if re.search(NOT_LITERAL, str(folder)):
        raise UserError(f"{str(folder)!r}: use a path without [ ] * ? \\ and without : before /")


def _flat(tree: Tree) -> dict[str, Any]:
    """Return the leaves by path, such as `params/conv1/norm/scale`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


@contextlib.contextmanager
def _save_errors(folder: Path) -> Iterator[None]:
    """Turn any error of a save into a UserError of one line."""
    try:
        yield
    except Exception as error:
        raise UserError(
            f"could not save a checkpoint in {folder}: {_first_line(error)}; the earlier ones "
            "are kept: make room or repair the folder, and run the same command again"
        ) from error


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]
