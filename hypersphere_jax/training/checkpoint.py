"""Saving and strictly restoring trees of arrays: the only place that knows Orbax.

The calling process works alone: of several processes the first one saves and restores.

A checkpoint contains the tree, and a record of the path, dtype, shape and checksum of every array,
with a checksum of its own. A save counts after the paths, dtypes and shapes were read back.
Restoring compares tree and record with the caller's tree, and distinguishes damaged files from
another structure.
"""

import contextlib
import errno
import json
import logging
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from hypersphere_jax import signals
from hypersphere_jax.array_files import checksum, entry
from hypersphere_jax.configs import UserError, require

if TYPE_CHECKING:  # Orbax takes long to import: the first step of a run need not wait for it
    import orbax.checkpoint as ocp

logger = logging.getLogger("hypersphere_jax")

Tree = dict[str, Any]
STEP: Tree = {"step": np.zeros((), np.int32)}  # what every checkpoint has
RECORD = "crc32"  # where the record of the arrays has its own checksum; no array has such a path
# OSErrors that say nothing of a file: too many that are open, no memory.
TRANSIENT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
UNFINISHED = ".orbax-checkpoint-tmp"  # in the name of a folder that Orbax still writes
PLAIN = r"[\w /.,+=@~-]*"  # paths that Orbax and TensorStore take literally


class Damaged(Exception):
    """A checkpoint that cannot be read as it was written."""


class Checkpoints:
    """The checkpoints of one run, written asynchronously.

    Args:
      folder: where the checkpoints are, one folder a step; made when missing.
      keep_last: how many of the newest are kept.
      keep_every: besides these, multiples of this step are kept. Step 0 always is.
    """

    def __init__(self, folder: Path, keep_last: int = 3, keep_every: int | None = None):
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._alias = contextlib.ExitStack()
        self._plain_folder = self._alias.enter_context(_plain(self.folder))
        self._keep_last, self._keep_every = keep_last, keep_every
        self._writer: ocp.AsyncCheckpointer | None = None
        self._saving = 0
        self._remove_unfinished()

    def _remove_unfinished(self) -> None:
        for left in self.folder.glob(f"*{UNFINISHED}*"):
            shutil.rmtree(left, ignore_errors=True)

    def save(self, step: int, tree: Tree) -> None:
        """Starts to save NumPy arrays, which the caller must not change afterwards.

        Raises:
          UserError: when this or an earlier save fails, as on a full disk.
        """
        import orbax.checkpoint as ocp

        record: dict[str, Any] = {path: entry(leaf) for path, leaf in _flat(tree).items()}
        record[RECORD] = checksum(record)
        state, contents = ocp.args.PyTreeSave(tree), ocp.args.JsonSave(record)
        self.wait()
        self._remove_unfinished()
        self._saving = step
        if self._writer is None:
            self._writer = ocp.AsyncCheckpointer(
                _handler(),
                async_options=ocp.AsyncOptions(post_finalization_callback=self._read_back),
                multiprocessing_options=_single_process(),
            )
        with _save_errors(self.folder):
            args = ocp.args.Composite(state=state, contents=contents)
            self._writer.save(self._plain_folder / str(step), args=args)

    def restore_newest(self, like: Tree) -> tuple[int, Tree] | None:
        """Step and tree of the newest sound checkpoint, or None when there is none at all.

        Damaged ones that are newer are renamed, so that their steps can be saved again.
        """
        if not steps(self.folder):
            return None
        step, tree, damaged = newest(self.folder, like)
        for name in map(str, damaged):
            number = 1 + len(list(self.folder.glob(f"{name}.damaged-*")))
            (self.folder / name).rename(self.folder / f"{name}.damaged-{number}")
        return step, tree

    def close(self) -> None:
        """Waits until all is written; UserError when a save failed."""
        with self._alias:
            try:
                self.wait()
            finally:
                if self._writer is not None:
                    self._writer.close()

    def wait(self) -> None:
        """Waits for the newest save, then removes older checkpoints; UserError if it failed."""
        with _save_errors(self.folder):
            if self._writer is not None:
                self._writer.wait_until_finished()
            for step in steps(self.folder)[: -self._keep_last]:
                if step and not (self._keep_every and step % self._keep_every == 0):
                    # Half of a checkpoint never has a checkpoint's name.
                    old = self.folder / str(step)
                    shutil.rmtree(old.rename(f"{old}{UNFINISHED}"))

    def _read_back(self) -> None:
        """Compares a written checkpoint with its record, before Orbax gives it its name."""
        import orbax.checkpoint as ocp

        (path,) = self._plain_folder.glob(f"{self._saving}{UNFINISHED}*")
        handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=_single_process())
        with contextlib.closing(handler):
            arrays = _flat(handler.metadata(path / "state").tree)
        written = {key: (of["dtype"], tuple(of["shape"])) for key, of in _record(path).items()}
        if {key: (str(x.dtype), tuple(x.shape)) for key, x in arrays.items()} != written:
            raise Damaged("other names or shapes were read back than were written")


def restore(folder: Path, like: Tree, step: int | None = None) -> tuple[int, Tree]:
    """Reads a checkpoint, or those entries of it that `like` has.

    Args:
      folder: the folder of checkpoints.
      like: a tree of arrays or `jax.ShapeDtypeStruct`. At its top level it may leave entries out;
        below that it must match the checkpoint exactly.
      step: which one; None: the newest that is sound, but not the initialization for a damaged one.

    Returns:
      The step, and the tree with NumPy arrays.

    Raises:
      UserError: no such checkpoint, a damaged one, or one of another structure: the message lists
        the missing and unexpected entries.
    """
    saved = steps(folder)
    require(bool(saved), f"no checkpoint in {folder}: `pretrain` saves one there")
    if step is None:
        step, tree, damaged = newest(folder, like)
        trained = "what was trained is damaged; restore it, or take the initialization by step=0"
        require(bool(step or not damaged), f"{folder}: {trained}")
        return step, tree
    known = ", ".join(map(str, saved))
    require(step in saved, f"no checkpoint of step {step} in {folder}: there are {known}")
    try:
        return step, _read(folder / str(step), like)
    except Damaged as error:
        raise UserError(f"checkpoint {folder / str(step)} is damaged: {error}") from error


def steps(folder: Path) -> list[int]:
    """Steps of the checkpoints in a folder, in order; unfinished ones have another name."""
    if not folder.is_dir():
        return []
    names = (path.name for path in folder.iterdir())
    return sorted(int(name) for name in names if re.fullmatch("0|[1-9][0-9]*", name))


def newest(folder: Path, like: Tree) -> tuple[int, Tree, list[int]]:
    """The newest sound checkpoint, and the steps of the damaged ones that are newer."""
    damaged = []
    for step in reversed(steps(folder)):
        try:
            tree = _read(folder / str(step), like)
        except Damaged as error:
            where = folder / str(step)
            logger.warning("checkpoint %s is damaged (%s): trying the one before", where, error)
            damaged.append(step)
        else:
            return step, tree, damaged
    raise UserError(
        f"every checkpoint in {folder} is damaged: start anew under another name=, "
        "or restore the files"
    )


def _read(path: Path, like: Tree) -> Tree:
    """A checkpoint's tree; UserError for one of another structure, else Damaged, whatever it is."""
    import orbax.checkpoint as ocp

    try:
        if not all(each.is_file() or each.is_dir() for each in path.rglob("*")):
            raise Damaged("there is something else than files in it")  # reading a pipe may wait
        record = _record(path)
        # The saved step is read as well, and compared with the folder's name.
        wanted = STEP | like if "step" in record else like
        saved = {key: of for key, of in record.items() if key.split("/")[0] in wanted}
        _compare(path, saved, _flat(wanted))
        restore_args = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), wanted)
        args = ocp.args.PyTreeRestore(item=wanted, restore_args=restore_args, partial_restore=True)
        with (
            _plain(path.resolve()) as plain,
            ocp.Checkpointer(_handler(), multiprocessing_options=_single_process()) as reader,
        ):
            tree = reader.restore(plain, args=ocp.args.Composite(state=args)).state
        bad = [key for key, leaf in _flat(tree).items() if entry(leaf) != saved[key]]
        if bad:
            raise Damaged(f"checksums differ for {', '.join(bad[:3])}")
        if int(tree.get("step", path.name)) != int(path.name):
            raise Damaged(f"it holds step {tree['step']}")
    except (UserError, Damaged, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in TRANSIENT:
            raise
        raise Damaged(_line(error)) from error
    return {name: tree[name] for name in like}


def _record(path: Path) -> dict[str, dict]:
    """The dtype, shape and checksum of each array of a checkpoint; Damaged if they were changed."""
    record = json.loads((path / "contents" / "metadata").read_text())
    if not record or record.pop(RECORD, checksum(record)) != checksum(record):
        raise Damaged("the checksum of contents/metadata differs")
    return record


def _handler() -> "ocp.CompositeCheckpointHandler":
    import orbax.checkpoint as ocp

    options = ocp.CompositeOptions(multiprocessing_options=_single_process())
    return ocp.CompositeCheckpointHandler(composite_options=options)


def _single_process() -> "ocp.options.MultiprocessingOptions":
    """Lets Orbax wait for no other process."""
    import orbax.checkpoint as ocp

    here = jax.process_index()
    return ocp.options.MultiprocessingOptions(primary_host=here, active_processes={here})


def _compare(path: Path, saved: dict[str, dict], like: dict[str, Any]) -> None:
    expected = {key: f"{np.dtype(x.dtype)} {list(x.shape)}" for key, x in like.items()}
    actual = {key: f"{of['dtype']} {of['shape']}" for key, of in saved.items()}
    entries = {
        "missing": sorted(expected.keys() - actual.keys()),
        "unexpected": sorted(actual.keys() - expected.keys()),
        "other": [
            f"{key} (saved {actual[key]}, expected {expected[key]})"
            for key in sorted(expected.keys() & actual.keys())
            if actual[key] != expected[key]
        ],
    }
    problems = [f"{name}: {', '.join(keys)}" for name, keys in entries.items() if keys]
    require(
        not problems,
        f"checkpoint {path} does not fit this model or optimizer; {'; '.join(problems)}",
    )


@contextlib.contextmanager
def _plain(folder: Path) -> Iterator[Path]:
    """A path to a folder for Orbax, which takes brackets for a pattern and `gs:` for a URL."""
    if re.fullmatch(PLAIN, str(folder)):
        yield folder
        return
    parent = tempfile.gettempdir()
    parent = parent if re.fullmatch(PLAIN, parent) else "/tmp"
    link = Path(parent, f"hypersphere_jax-{secrets.token_hex(8)}")
    signals.unfinished.add(link)
    link.symlink_to(folder)
    try:
        yield link
    finally:
        link.unlink(missing_ok=True)
        signals.unfinished.discard(link)


def _flat(tree: Tree) -> dict[str, Any]:
    """Leaves by path, such as `params/conv1/norm/scale`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


@contextlib.contextmanager
def _save_errors(folder: Path) -> Iterator[None]:
    """Whatever a failed save raises, as one line."""
    try:
        yield
    except Exception as error:
        raise UserError(
            f"could not save a checkpoint in {folder}: {_line(error)}; the earlier ones "
            "are kept: make room or repair the folder, and run the same command again"
        ) from error


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]
