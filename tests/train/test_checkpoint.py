"""Checkpoints: strict, kept as asked, and never silently wrong when files are damaged."""

import errno
import functools
import os
import shutil

import jax
import numpy as np
import optax
import pytest

from hypersphere_jax import checkpoint
from hypersphere_jax.checkpoint import Checkpoints, restore
from hypersphere_jax.config import UserError


def tree(step, **changes):
    rng = np.random.default_rng(step)
    made = {
        "step": np.asarray(step, np.int32),
        "params": {"conv": {"kernel": rng.standard_normal((40, 30)).astype(np.float32)}},
        "stats": {},
        "opt_state": (optax.TraceState(rng.standard_normal(7).astype(np.float32)), ()),
    }
    return made | changes


def assert_equal(a, b):
    jax.tree.map(functools.partial(np.testing.assert_array_equal, strict=True), a, b)


def save(folder, *trees, **options):
    checkpoints = Checkpoints(folder, **options)
    for saved in trees:
        checkpoints.save(int(saved["step"]), saved)
    checkpoints.close()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Of the steps 0, 5, 20, 25, 105 and 110 the last two, multiples of 20, and 0 are kept."""
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    save(folder, *map(tree, (0, 5, 20, 25, 105, 110)), keep_last=2, keep_every=20)
    return folder


@pytest.fixture
def copy(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "copy")


def test_round_trip_and_what_is_kept(saved, tmp_path):
    assert checkpoint.steps(saved) == [0, 20, 105, 110]
    step, found = restore(saved, tree(0))
    assert step == 110
    assert_equal(found, tree(110))
    assert_equal(restore(saved, tree(0), 20)[1], tree(20))
    # Only the entries that are asked for are read.
    _, parts = restore(saved, {"params": tree(0)["params"], "stats": {}})
    assert_equal(parts, {"params": tree(110)["params"], "stats": {}})
    save(tmp_path / "last", *map(tree, range(4)), keep_last=2)
    assert checkpoint.steps(tmp_path / "last") == [0, 2, 3]
    with pytest.raises(UserError, match=r"step 7 .*0, 20, 105, 110"):
        restore(saved, tree(0), 7)
    assert Checkpoints(tmp_path / "new").restore_newest(tree(0)) is None


def test_structure_must_fit(saved):
    kernel = np.zeros((40, 30), np.float32)
    for conv, message in (
        ({"weight": kernel}, r"missing: .*conv/weight.*unexpected: .*conv/kernel"),
        ({"kernel": kernel.T}, r"other: params/conv/kernel .*40, 30.*30, 40"),
        ({"kernel": kernel.astype(np.int32)}, r"other: .*kernel .*float32.*int32"),
    ):
        with pytest.raises(UserError, match=message):
            Checkpoints(saved).restore_newest(tree(0, params={"conv": conv}))
    assert checkpoint.steps(saved) == [0, 20, 105, 110]  # which are not damaged


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
    save(tmp_path / "other", other)
    shutil.rmtree(copy / "110" / "state")
    shutil.copytree(tmp_path / "other" / "110" / "state", copy / "110" / "state")
    assert restore(copy, tree(0))[0] == 105
    assert "checksums differ for params/conv/kernel)" in caplog.text
    (copy / "105").rename(copy / "105.orbax-checkpoint-tmp")  # an unfinished save is not seen
    assert checkpoint.steps(copy) == [0, 20, 110] and restore(copy, tree(0))[0] == 20
    for step in (0, 20):
        (copy / str(step) / "contents" / "metadata").unlink()
    with pytest.raises(UserError, match="every checkpoint"):
        restore(copy, tree(0))


def test_what_passes_is_no_damage(copy, monkeypatch):
    """Too many open files say nothing of the checkpoint: it is not set aside."""

    def fails(*args, **kwargs):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(checkpoint.ocp.Checkpointer, "restore", fails)
    with pytest.raises(OSError, match="Too many open files"):
        Checkpoints(copy).restore_newest(tree(0))
    assert checkpoint.steps(copy) == [0, 20, 105, 110]


@pytest.mark.slow
def test_any_damaged_file_is_noticed_or_harmless(saved, tmp_path, caplog):
    """A file that is empty, cut in half, or has one other byte."""
    fell_back, copy = 0, tmp_path / "copy"
    for path in sorted(path for path in (saved / "110").rglob("*") if path.is_file()):
        content = path.read_bytes()
        half = len(content) // 2
        flipped = content[:half] + bytes(255 - x for x in content[half : half + 1])
        for damaged in (b"", content[:half], flipped + content[half + 1 :]):
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(saved, copy)
            (copy / path.relative_to(saved)).write_bytes(damaged)
            caplog.clear()
            step, found = restore(copy, tree(0))
            assert_equal(found, tree(step))
            assert step == 110 or (step == 105 and "damaged" in caplog.text), (path, damaged)
            fell_back += step == 105
    assert fell_back > 10
