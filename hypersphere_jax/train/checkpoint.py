"""Saving and strictly restoring trees of arrays: the only place that knows Orbax.

The process that calls does all by itself. Among many hosts that is the first one: the state is the
same on all of them, and only one needs the folder.

A checkpoint holds the tree and its table of contents: path, dtype, shape and checksum of every
array. Restoring compares both with what the caller expects, so that neither a renamed entry nor a
damaged file passes unnoticed.
"""

import contextlib
import errno
import gc
import logging
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from hypersphere_jax.config import UserError, require

logger = logging.getLogger("hypersphere_jax")
# Orbax logs what it raises as well, with tracebacks; here every failure reaches the caller.
logging.getLogger("absl").setLevel(logging.CRITICAL)

Tree = dict[str, Any]
# What Orbax raises for files that are missing, cut short or altered.
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)


class Damaged(Exception):
    """A checkpoint that cannot be read as it was written."""


class Checkpoints:
    """The checkpoints of one run, written asynchronously.

    Args:
      folder: where the checkpoints are, one folder a step; made when missing.
      keep_last: how many of the newest stay.
      keep_every: besides these, multiples of this step stay. Step 0 always does.
    """

    def __init__(self, folder: Path, keep_last: int = 3, keep_every: int | None = None):
        self.folder = folder.resolve()
        self._keep_last, self._keep_every = keep_last, keep_every
        self._manager = self._open()

    def _open(self) -> ocp.CheckpointManager:
        self.folder.mkdir(parents=True, exist_ok=True)
        kept = [policies.LatestN(self._keep_last), policies.CustomSteps([0])]
        if self._keep_every:
            kept.append(policies.EveryNSteps(self._keep_every))
        return ocp.CheckpointManager(
            self.folder,
            options=ocp.CheckpointManagerOptions(
                preservation_policy=policies.AnyPreservationPolicy(kept),
                cleanup_tmp_directories=True,
                create=False,  # which Orbax refuses to a process by itself
                multiprocessing_options=_alone(),
            ),
        )

    def save(self, step: int, tree: Tree) -> None:
        """Starts to save NumPy arrays, which the caller must not change afterwards.

        Raises:
          UserError: when this or an earlier save fails, as on a full disk.
        """
        contents = {path: _entry(leaf) for path, leaf in _flat(tree).items()}
        with _save_errors(self.folder):
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.PyTreeSave(tree), contents=ocp.args.JsonSave(contents)
                ),
            )

    def restore_newest(self, like: Tree) -> tuple[int, Tree] | None:
        """Step and tree of the newest sound checkpoint, or None when there is none at all.

        Damaged ones that are newer are set aside (renamed), so that their steps can be saved
        again, and a warning names them.
        """
        if not steps(self.folder):
            return None
        step, tree, damaged = _newest(self.folder, like)
        if damaged:
            self._manager.close()
            for bad in damaged:
                _set_aside(self.folder / str(bad))
            self._manager = self._open()
        return step, tree

    def close(self) -> None:
        """Waits until all is written.

        Raises:
          UserError: when a save failed.
        """
        with _save_errors(self.folder):
            self._manager.wait_until_finished()
            self._manager.close()


def restore(folder: Path, like: Tree, step: int | None = None) -> tuple[int, Tree]:
    """Reads a checkpoint, or those entries of it that stand in `like`.

    Args:
      folder: the folder of checkpoints.
      like: a tree of arrays or `jax.ShapeDtypeStruct`. At its top level it may leave entries out;
        below that it must match the checkpoint exactly.
      step: which one; None: the newest that is sound.

    Returns:
      The step, and the tree with NumPy arrays.

    Raises:
      UserError: no such checkpoint, a damaged one, or one of another structure: the message lists
        the missing and unexpected entries.
    """
    saved = steps(folder)
    require(bool(saved), f"no checkpoint in {folder}: `pretrain` saves one there")
    if step is None:
        return _newest(folder, like)[:2]
    require(
        step in saved,
        f"no checkpoint of step {step} in {folder}: there are {', '.join(map(str, saved))}",
    )
    try:
        return step, _read(folder / str(step), like)
    except Damaged as error:
        raise UserError(f"checkpoint {folder / str(step)} is damaged: {error}") from error


def steps(folder: Path) -> list[int]:
    """Steps of the checkpoints in a folder, in order; unfinished ones have another name."""
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())


def _newest(folder: Path, like: Tree) -> tuple[int, Tree, list[int]]:
    """The newest sound checkpoint, and the steps of the damaged ones that are newer."""
    damaged = []
    for step in reversed(steps(folder)):
        try:
            tree = _read(folder / str(step), like)
        except Damaged as error:
            logger.warning(
                "checkpoint %s is damaged (%s): falling back to the one before",
                folder / str(step),
                error,
            )
            damaged.append(step)
        else:
            return step, tree, damaged
    raise UserError(
        f"every checkpoint in {folder} is damaged: start anew under another --name, "
        "or restore the files"
    )


def _read(path: Path, like: Tree) -> Tree:
    handler = ocp.CompositeCheckpointHandler(
        composite_options=ocp.CompositeOptions(multiprocessing_options=_alone())
    )
    restore_args = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), like)
    with _quiet(), ocp.Checkpointer(handler, multiprocessing_options=_alone()) as reader:
        try:
            args = ocp.args.Composite(contents=ocp.args.JsonRestore())
            contents = reader.restore(path.resolve(), args=args).contents
            saved = {key: entry for key, entry in contents.items() if key.split("/")[0] in like}
            sizes = {key: (entry["dtype"], entry["shape"]) for key, entry in saved.items()}
        except UNREADABLE as error:
            _raise_if_passing(error)
            raise Damaged(f"its table of contents is unreadable, {_line(error)}") from error
        _compare(path, sizes, _flat(like))
        try:
            args = ocp.args.Composite(
                state=ocp.args.PyTreeRestore(
                    item=like, restore_args=restore_args, partial_restore=True
                )
            )
            tree = reader.restore(path.resolve(), args=args).state
        except UNREADABLE as error:
            _raise_if_passing(error)
            raise Damaged(_line(error)) from error
    bad = [key for key, leaf in _flat(tree).items() if _entry(leaf) != saved[key]]
    if bad:
        raise Damaged(f"checksums differ for {', '.join(bad[:3])}")
    return tree


def _alone() -> ocp.options.MultiprocessingOptions:
    """Lets Orbax wait for no other host."""
    here = jax.process_index()
    return ocp.options.MultiprocessingOptions(primary_host=here, active_processes={here})


def _compare(path: Path, saved: dict[str, tuple], like: dict[str, Any]) -> None:
    expected = {key: (str(np.dtype(x.dtype)), list(x.shape)) for key, x in like.items()}
    missing = [f"{key} {expected[key][1]}" for key in expected if key not in saved]
    unexpected = [f"{key} {saved[key][1]}" for key in saved if key not in expected]
    changed = [
        f"{key} (saved {saved[key]}, expected {expected[key]})"
        for key in expected
        if key in saved and saved[key] != expected[key]
    ]
    problems = [
        f"{name}: {', '.join(found)}"
        for name, found in (("missing", missing), ("unexpected", unexpected), ("other", changed))
        if found
    ]
    require(
        not problems,
        f"checkpoint {path} does not fit this model or optimizer; {'; '.join(problems)}",
    )


def _flat(tree: Tree) -> dict[str, Any]:
    """Leaves by path, such as `params/conv1/norm/scale`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def _entry(array: np.ndarray) -> dict[str, Any]:
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return {"dtype": str(array.dtype), "shape": list(array.shape), "crc32": zlib.crc32(raw)}


def _set_aside(path: Path) -> None:
    for number in range(1, 1000):
        aside = path.with_name(f"{path.name}.damaged-{number}")
        if not aside.exists():
            path.rename(aside)
            return


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """When one read fails Orbax forgets the others, which asyncio would complain about."""
    log = logging.getLogger("asyncio")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    except Damaged:
        gc.collect()  # it complains when they are collected: that is now
        raise
    finally:
        log.setLevel(level)


def _ignore_late_callbacks() -> None:
    """Drops one message that Orbax's failed reads and writes cause, from threads, at any time.

    They report to an event loop that Orbax has closed after the first failure. Python would print
    a traceback for each, beside the one line that says what is wrong.
    """
    others = sys.unraisablehook

    def hook(unraisable):
        if str(unraisable.exc_value) != "Event loop is closed":
            others(unraisable)

    sys.unraisablehook = hook


_ignore_late_callbacks()


@contextlib.contextmanager
def _save_errors(folder: Path) -> Iterator[None]:
    """Whatever a failed save raises, as one line."""
    try:
        yield
    except Exception as error:
        raise UserError(
            f"could not save a checkpoint in {folder}: {_line(error)}; the earlier ones "
            "are kept: make room or mend the folder, and run the same command again"
        ) from error


def _raise_if_passing(error: Exception) -> None:
    """Lets an error through that says nothing of the files, such as too many open ones."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        raise error


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]
