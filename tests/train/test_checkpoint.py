"""Checkpoints: strict, kept as asked, and never silently wrong when files are damaged."""

import errno
import os
import shutil
from typing import NamedTuple

import numpy as np
import pytest

from hypersphere_jax import checkpoint
from hypersphere_jax.checkpoint import Checkpoints, restore
from hypersphere_jax.config import UserError


class Trace(NamedTuple):
    mean: np.ndarray
    nothing: tuple


def tree(step):
    rng = np.random.default_rng(step)
    return {
        "step": np.asarray(step, np.int32),
        "params": {"conv": {"kernel": rng.standard_normal((40, 30)).astype(np.float32)}},
        "stats": {},
        "opt_state": (Trace(rng.standard_normal(7).astype(np.float32), ()), ()),
    }


def assert_equal(a, b):
    flat_a, flat_b = checkpoint._flat(a), checkpoint._flat(b)
    assert flat_a.keys() == flat_b.keys()
    for key, value in flat_a.items():
        np.testing.assert_array_equal(value, flat_b[key])
        assert value.dtype == flat_b[key].dtype


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Of the steps 0, 5, 20, 25, 105 and 110 the last two, multiples of 20, and 0 are kept."""
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    checkpoints = Checkpoints(folder, keep_last=2, keep_every=20)
    for step in (0, 5, 20, 25, 105, 110):
        checkpoints.save(step, tree(step))
    checkpoints.close()
    return folder


@pytest.fixture
def copy(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "copy")


def test_round_trip_and_what_is_kept(saved):
    assert checkpoint.steps(saved) == [0, 20, 105, 110]
    step, found = restore(saved, tree(0))
    assert step == 110 and isinstance(found["opt_state"][0], Trace)
    assert_equal(found, tree(110))
    assert_equal(restore(saved, tree(0), 20)[1], tree(20))
    # Only the entries that are asked for are read.
    _, parts = restore(saved, {"params": tree(0)["params"], "stats": {}})
    assert_equal(parts, {"params": tree(110)["params"], "stats": {}})


def test_the_initial_state_is_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep_last=2)
    for step in (0, 1, 2, 3):
        checkpoints.save(step, tree(step))
    checkpoints.close()
    assert checkpoint.steps(tmp_path) == [0, 2, 3]


def test_structure_must_fit(saved):
    def with_params(**conv):
        return tree(0) | {"params": {"conv": conv}}

    kernel = np.zeros((40, 30), np.float32)
    for like, message in (
        (with_params(weight=kernel), r"missing: .*conv/weight.*unexpected: .*conv/kernel"),
        (with_params(kernel=kernel, bias=kernel[0]), r"missing: params/conv/bias \[30\]$"),
        (with_params(), r"; unexpected: params/conv/kernel \[40, 30\]$"),
        (with_params(kernel=kernel.T), r"other: params/conv/kernel .*40, 30.*30, 40"),
        (with_params(kernel=kernel.astype(np.int32)), "other: .*kernel .*float32.*int32"),
    ):
        with pytest.raises(UserError, match=message):
            restore(saved, like)
    with pytest.raises(UserError, match="does not fit"):
        Checkpoints(saved).restore_newest(with_params())
    assert checkpoint.steps(saved) == [0, 20, 105, 110]  # which are not damaged


def test_nothing_there(saved, tmp_path):
    with pytest.raises(UserError, match=r"step 7 .*0, 20, 105, 110"):
        restore(saved, tree(0), 7)
    with pytest.raises(UserError, match="no checkpoint in"):
        restore(tmp_path / "none", tree(0))
    assert Checkpoints(tmp_path / "new").restore_newest(tree(0)) is None


def test_damaged_checkpoint_is_set_aside(copy, caplog):
    shutil.rmtree(copy / "110" / "state" / "d")
    checkpoints = Checkpoints(copy, keep_last=2, keep_every=20)
    step, found = checkpoints.restore_newest(tree(0))
    assert step == 105 and "110 is damaged" in caplog.text
    assert_equal(found, tree(105))
    assert checkpoint.steps(copy) == [0, 20, 105]
    # The run goes on and comes to the same step again.
    checkpoints.save(110, tree(110))
    checkpoints.close()
    assert_equal(restore(copy, tree(0))[1], tree(110))
    assert (copy / "110.damaged-1").is_dir()


def test_other_numbers_in_sound_files_are_noticed(copy, tmp_path, caplog):
    other = tree(110)
    other["params"]["conv"]["kernel"][-1, -1] += 1
    checkpoints = Checkpoints(tmp_path / "other")
    checkpoints.save(110, other)
    checkpoints.close()
    shutil.rmtree(copy / "110" / "state")
    shutil.copytree(tmp_path / "other" / "110" / "state", copy / "110" / "state")
    assert restore(copy, tree(0))[0] == 105
    assert "checksums differ for params/conv/kernel)" in caplog.text


def test_all_damaged(copy):
    for step in checkpoint.steps(copy):
        (copy / str(step) / "contents" / "metadata").unlink()
    with pytest.raises(UserError, match="every checkpoint"):
        restore(copy, tree(0))
    with pytest.raises(UserError, match="20 is damaged: its table of contents"):
        restore(copy, tree(0), 20)


def test_what_passes_is_no_damage(copy, monkeypatch):
    """Too many open files say nothing of the checkpoint: it is not set aside."""

    def fails(*args, **kwargs):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(checkpoint.ocp.Checkpointer, "restore", fails)
    with pytest.raises(OSError, match="Too many open files"):
        Checkpoints(copy).restore_newest(tree(0))
    assert checkpoint.steps(copy) == [0, 20, 105, 110]


def test_unfinished_save_is_not_seen(copy):
    (copy / "110").rename(copy / "110.orbax-checkpoint-tmp")
    assert checkpoint.steps(copy) == [0, 20, 105]
    checkpoints = Checkpoints(copy)
    assert checkpoints.restore_newest(tree(0))[0] == 105
    checkpoints.close()


def test_save_that_fails_is_one_line(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, tree(1))

    def full(*args, **kwargs):
        raise ValueError("RESOURCE_EXHAUSTED: No space left on device\n[source locations='a.cc']")

    monkeypatch.setattr(checkpoints._manager, "save", full)
    with pytest.raises(UserError, match=r"could not save a checkpoint in .*No space left") as error:
        checkpoints.save(2, tree(2))
    assert "\n" not in str(error.value)
    checkpoints.close()
    assert checkpoint.steps(tmp_path) == [1]


def damages(path):
    """Every way a file is damaged here: gone, empty, cut in half, one byte changed."""
    content = path.read_bytes()
    yield "gone", path.unlink
    yield "empty", lambda: path.write_bytes(b"")
    yield "half", lambda: path.write_bytes(content[: len(content) // 2])
    if content:
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]
        yield "flipped", lambda: path.write_bytes(flipped)


@pytest.mark.slow
def test_any_damaged_file_is_noticed_or_harmless(saved, tmp_path, caplog):
    fell_back, copy = 0, tmp_path / "copy"
    for path in sorted(path for path in (saved / "110").rglob("*") if path.is_file()):
        name = path.relative_to(saved)
        for what, _ in damages(path):
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(saved, copy)
            dict(damages(copy / name))[what]()
            caplog.clear()
            step, found = restore(copy, tree(0))
            assert_equal(found, tree(step))
            assert step == 110 or (step == 105 and "damaged" in caplog.text), (name, what)
            fell_back += step == 105
    assert fell_back > 10
