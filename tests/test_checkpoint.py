"""Checkpoints: strict, kept as asked, and never silently wrong when files are damaged."""

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
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    checkpoints = Checkpoints(folder, keep_last=2, keep_every=20)
    for step in (0, 10, 20, 25, 30, 35):
        checkpoints.save(step, tree(step))
    checkpoints.close()
    return folder


def test_round_trip_and_what_is_kept(saved):
    assert checkpoint.steps(saved) == [0, 20, 30, 35]
    step, found = restore(saved, tree(0))
    assert step == 35 and isinstance(found["opt_state"][0], Trace)
    assert_equal(found, tree(35))
    assert_equal(restore(saved, tree(0), 20)[1], tree(20))


def test_parts(saved):
    _, found = restore(saved, {"params": tree(0)["params"], "stats": {}})
    assert found.keys() == {"params", "stats"}
    assert_equal(found["params"], tree(35)["params"])


def test_structure_must_fit(saved):
    other = tree(0)
    other["params"] = {"conv": {"weight": np.zeros((40, 30), np.float32)}}
    with pytest.raises(UserError, match=r"missing: .*conv/weight.*unexpected: .*conv/kernel"):
        restore(saved, other)
    other["params"] = {"conv": {"kernel": np.zeros((40, 31), np.float32)}}
    with pytest.raises(UserError, match=r"conv/kernel.*40, 30.*40, 31"):
        restore(saved, other)
    with pytest.raises(UserError, match="does not fit"):
        Checkpoints(saved).restore_newest(other)
    assert checkpoint.steps(saved) == [0, 20, 30, 35]


def test_nothing_there(saved, tmp_path):
    with pytest.raises(UserError, match=r"step 7 .*0, 20, 30, 35"):
        restore(saved, tree(0), 7)
    with pytest.raises(UserError, match="no checkpoint in"):
        restore(tmp_path / "none", tree(0))
    assert Checkpoints(tmp_path / "new").restore_newest(tree(0)) is None


def files(folder):
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


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
    fell_back = 0
    for name in files(saved / "35"):
        copy = tmp_path / "copy"
        for what, _ in damages(saved / "35" / name):
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(saved, copy)
            dict(damages(copy / "35" / name))[what]()
            caplog.clear()
            step, found = restore(copy, tree(0))
            assert_equal(found, tree(step))
            assert step == 35 or (step == 30 and "damaged" in caplog.text), (name, what)
            fell_back += step == 30
    assert fell_back > 10


def test_damaged_checkpoint_is_set_aside(saved, tmp_path, caplog):
    copy = tmp_path / "copy"
    shutil.copytree(saved, copy)
    shutil.rmtree(copy / "35" / "state" / "d")
    checkpoints = Checkpoints(copy, keep_last=2, keep_every=20)
    step, found = checkpoints.restore_newest(tree(0))
    assert step == 30 and "35 is damaged" in caplog.text
    assert_equal(found, tree(30))
    # The run goes on and comes to the same step again.
    checkpoints.save(35, tree(35))
    checkpoints.close()
    assert_equal(restore(copy, tree(0))[1], tree(35))
    assert (copy / "35.damaged-1").is_dir()


def test_all_damaged(saved, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(saved, copy)
    for step in checkpoint.steps(copy):
        shutil.rmtree(copy / str(step) / "state")
    with pytest.raises(UserError, match="every checkpoint"):
        restore(copy, tree(0))
    with pytest.raises(UserError, match="20 is damaged"):
        restore(copy, tree(0), 20)


def test_unfinished_save_is_not_seen(saved, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(saved, copy)
    (copy / "35").rename(copy / "35.orbax-checkpoint-tmp")
    assert checkpoint.steps(copy) == [0, 20, 30]
    checkpoints = Checkpoints(copy)
    assert checkpoints.restore_newest(tree(0))[0] == 30
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
