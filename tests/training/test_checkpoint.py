"""Checkpoints: complete, strictly restored, and replaced by the one before if damaged."""

import functools
import os
import shutil

import jax
import numpy as np
import optax
import pytest
import tiny_runs
from run_states import full_disk

from hypersphere_jax import configs as C
from hypersphere_jax.training import checkpoints
from hypersphere_jax.training.checkpoints import Checkpointer, restore
from hypersphere_jax.training.metrics import MetricLogger, read_metrics
from hypersphere_jax.utils.files import atomic_write, read_json, write_json


def tree(step, **changes):
    kernel, trace = np.random.default_rng(step).standard_normal((2, 40, 30)).astype(np.float32)
    state = {"step": np.asarray(step, np.int32), "params": {"conv": {"kernel": kernel}}}
    state |= {"stats": {}, "opt_state": (optax.TraceState(trace), ())}
    return state | changes


def assert_equal(a, b):
    jax.tree.map(functools.partial(np.testing.assert_array_equal, strict=True), a, b)


def save(folder, *trees, **options):
    checkpointer = Checkpointer(folder, C.RuntimeConfig(**options))
    for saved in trees:
        checkpointer.save(int(saved["step"]), saved)
    checkpointer.close()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Six checkpoints, of which the last two, multiples of 20, and step 0 are kept."""
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    save(folder, *map(tree, (0, 5, 20, 25, 105, 110)), keep_last=2, keep_every_steps=20)
    return folder


@pytest.fixture
def copy(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "copy")


def test_checkpoints_are_kept_and_restored(saved):
    assert checkpoints.steps(saved) == [0, 20, 105, 110]
    step, state = restore(saved, tree(0))
    assert step == 110
    assert_equal(state, tree(110))
    assert_equal(restore(saved, tree(0), 20)[1], tree(20))
    _, encoder = restore(saved, {"params": tree(0)["params"], "stats": {}})
    assert_equal(encoder, {"params": tree(110)["params"], "stats": {}})
    with pytest.raises(C.UserError, match="step 7"):
        restore(saved, tree(0), 7)


def test_names_of_folders(tmp_path):
    """Orbax would read the others as a pattern or as a URL."""
    folder = tmp_path / "ünï's han, {#1} & lr=0.1 (a)~!%$" / "checkpoints"
    save(folder, tree(0), tree(7))
    assert_equal(restore(folder, tree(0))[1], tree(7))
    for name in ("[a]", "gs:/a", "a\\b", "han\udcff"):
        with pytest.raises(C.UserError, match="path"):
            save(tmp_path / name, tree(0))


@pytest.mark.parametrize(
    "conv",
    [
        {"weight": np.zeros((40, 30), np.float32)},
        {"kernel": np.zeros((30, 40), np.float32)},
        {"kernel": np.zeros((40, 30), np.int32)},
    ],
)
def test_another_structure_is_refused_and_not_taken_for_damage(conv, saved):
    other = tree(0, params={"conv": conv})
    for step in (None, 105):
        with pytest.raises(C.UserError, match=f"{saved}.*params/conv/kernel"):
            restore(saved, other, step)
    with pytest.raises(C.UserError, match="params/conv/kernel"):
        Checkpointer(saved).restore(other)
    assert checkpoints.steps(saved) == [0, 20, 105, 110]


def test_damaged_checkpoint_is_set_aside_and_replaced(copy):
    shutil.rmtree(copy / "110" / "state" / "d")
    for number in (1, 2):
        checkpointer = Checkpointer(copy, C.RuntimeConfig(keep_last=2, keep_every_steps=20))
        assert_equal(checkpointer.restore(tree(0)), tree(105))
        assert checkpointer.saved == 105
        assert (copy / f"110.damaged-{number}").is_dir()
        (copy / f"111{checkpoints.UNFINISHED}-1").mkdir()
        checkpointer.save(110, tree(110))
        checkpointer.close()
        assert checkpoints.steps(copy) == [0, 20, 105, 110]
        assert_equal(restore(copy, tree(0))[1], tree(110))
        (copy / "110" / "contents" / "metadata").write_bytes(b"{}")


def test_restore_falls_back_but_not_to_the_initialization(copy):
    for step in (110, 105):
        (copy / str(step) / "contents" / "metadata").unlink()
    assert restore(copy, tree(0))[0] == 20
    (copy / "20").rename(copy / f"20{checkpoints.UNFINISHED}-1")
    with pytest.raises(C.UserError, match="step=0"):
        restore(copy, tree(0))
    assert restore(copy, tree(0), 0)[0] == 0
    assert checkpoints.newest(copy, tree(0))[0] == 0
    (copy / "0" / "contents" / "metadata").unlink()
    with pytest.raises(C.UserError, match=f"{copy}"):
        checkpoints.newest(copy, tree(0))


def test_any_damage_is_noticed_or_without_effect(copy, rng):
    """Flip bits, cut, empty and remove every file of the newest checkpoint."""
    restored = []
    for file in filter(os.path.isfile, sorted((copy / "110").rglob("*"))):
        content = file.read_bytes()
        damaged = [b"", content[: len(content) // 2], b"[" * 10_000]
        for spot in rng.choice(len(content), 3):
            flipped = bytearray(content)
            flipped[spot] ^= 1 << rng.integers(8)
            damaged.append(bytes(flipped))
        for new in damaged:
            file.write_bytes(new)
            step, state = restore(copy, tree(0))
            assert_equal(state, tree(step))
            restored.append(step)
        file.unlink()
        assert restore(copy, tree(0))[0] in (105, 110)
        file.write_bytes(content)
    assert set(restored) == {105, 110} and restored.count(105) > 20


def test_full_disk_leaves_the_earlier_checkpoints(copy):
    checkpointer = Checkpointer(copy)
    with full_disk(100, C.UserError):
        checkpointer.save(115, tree(115))
        checkpointer.close()
    save(copy, tree(116))
    assert checkpoints.steps(copy) == [0, 105, 110, 116]
    assert_equal(restore(copy, tree(0))[1], tree(116))


def test_checkpoints_are_due_by_time_and_by_step(tmp_path, monkeypatch):
    monkeypatch.setattr("time.monotonic", lambda: now)
    now = 0.0
    runtime = C.RuntimeConfig(
        checkpoint_every_minutes=2, checkpoint_every_steps=None, keep_every_steps=5
    )
    checkpointer = Checkpointer(tmp_path, runtime)
    due = []
    for step in range(1, 7):
        now += 50.0
        due.append(checkpointer.is_due(step))
        if due[-1]:
            checkpointer.save(step, checkpoints.STEP)
    checkpointer.close()
    assert due == [False, False, True, False, True, False]


NO_RECORDS = ('{"step": "a"}', '{"step": -1}', '{"loss": 1}', "5", "", "null", "[" * 10_000)
NO_RECORDS += ('{"step": 5, "loss": "x"}', '{"step": 5, "loss": [1]}', f'{{"step": {"9" * 5000}}}')


def test_invalid_lines_of_metrics_are_left_out(tmp_path):
    """The last line of a step counts; an incomplete last line is ignored."""
    lines = ['{"step": 10, "b": 0.5}', *NO_RECORDS, '{"step": 2, "a": 5}', '{"step": 2, "a": null}']
    content = "\n".join(lines).encode() + b'\n{"step": 3, "\xff": 1}\n\x00\n{"step": 4'
    (tmp_path / "metrics.jsonl").write_bytes(content)
    expected = [{"step": 2, "a": None}, {"step": 10, "b": 0.5}]
    assert read_metrics(tmp_path) == expected
    for start, count in ((11, 2), (10, 2), (9, 1), (1, 0)):
        MetricLogger(tmp_path, tiny_runs.short(tmp_path), start).close()
        assert read_metrics(tmp_path) == expected[:count]


def test_interrupted_write_leaves_the_file_as_it_was(tmp_path):
    file = tmp_path / "new" / "result.json"
    write_json(file, {"a": 1})
    with pytest.raises(KeyboardInterrupt), atomic_write(file) as out:
        out.write(b"half")
        out.flush()
        assert read_json(file) == {"a": 1}
        raise KeyboardInterrupt
    assert read_json(file) == {"a": 1}
    assert list(file.parent.iterdir()) == [file]
