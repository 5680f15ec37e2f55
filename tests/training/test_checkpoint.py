"""Checkpoints, strict and never silently wrong; runs that go on from them to the same numbers."""

import errno
import functools
import gc
import json
import os
import re
import shutil
import signal
import tempfile

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
import tiny_runs
from run_states import assert_same_run, at_line, state_of, timeless

from hypersphere_jax import configs as C
from hypersphere_jax.data import arrays
from hypersphere_jax.training import checkpoints, run_dir
from hypersphere_jax.training import train as training
from hypersphere_jax.training.checkpoints import Checkpointer, restore
from hypersphere_jax.training.metrics import MetricLogger, read_metrics
from hypersphere_jax.utils.files import atomic_write, read_json, write_json


def tree(step, **changes):
    kernel, trace = np.random.default_rng(step).standard_normal((2, 40, 30)).astype(np.float32)
    made = {"step": np.asarray(step, np.int32), "params": {"conv": {"kernel": kernel}}, "stats": {}}
    return made | {"opt_state": (optax.TraceState(trace), ())} | changes


def assert_equal(a, b):
    jax.tree.map(functools.partial(np.testing.assert_array_equal, strict=True), a, b)


def save(folder, *trees, **options):
    checkpointer = Checkpointer(folder, C.RuntimeConfig(**options))
    for saved in trees:
        checkpointer.save(int(saved["step"]), saved)
    checkpointer.close()


def fails(number, *_, **options):
    raise OSError(number, os.strerror(number))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Of the steps 0, 5, 20, 25, 105 and 110 the last two, multiples of 20, and 0 are kept."""
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    save(folder, *map(tree, (0, 5, 20, 25, 105, 110)), keep_last=2, keep_every_steps=20)
    return folder


@pytest.fixture
def copy(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "copy")


def test_round_trip_and_what_is_kept(saved, tmp_path):
    assert checkpoints.steps(saved) == [0, 20, 105, 110]
    step, found = restore(saved, tree(0))
    assert step == 110
    assert_equal(found, tree(110))
    assert_equal(restore(saved, tree(0), 20)[1], tree(20))
    # Only the entries that are asked for are read.
    _, parts = restore(saved, {"params": tree(0)["params"], "stats": {}})
    assert_equal(parts, {"params": tree(110)["params"], "stats": {}})
    save(tmp_path / "last", *map(tree, range(4)), keep_last=2)
    assert checkpoints.steps(tmp_path / "last") == [0, 2, 3]
    with pytest.raises(C.UserError, match=r"step 7 .*0, 20, 105, 110"):
        restore(saved, tree(0), 7)


def test_the_initial_state_is_saved_on_request(tmp_path):
    checkpointer = Checkpointer(tmp_path / "new")
    first = tree(0)
    assert_equal(checkpointer.restore(first), tree(0))
    first["params"]["conv"]["kernel"][:] = 0.0  # its memory is used again
    assert not (tmp_path / "new").exists()
    assert checkpointer.save_initial() and not checkpointer.save_initial()
    checkpointer.close()
    assert_equal(restore(tmp_path / "new", tree(0)), (0, tree(0)))


NAMES = ("[!a] *?", "gs:", "a\\b\nc", "ünï한\udcff", "x" * 200)


@pytest.mark.parametrize("name", NAMES)
def test_folders_of_any_name(name, tmp_path, monkeypatch):
    links = tmp_path / "temporary"
    links.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(links))
    folder = tmp_path / name / "checkpoints"
    save(folder, *map(tree, (0, 5, 6, 7)), keep_last=2)
    assert checkpoints.steps(folder) == [0, 6, 7]
    checkpointer = Checkpointer(folder)
    assert_equal(checkpointer.restore(tree(0)), tree(7))
    assert checkpointer.saved == 7
    checkpointer.close()
    gc.collect()
    assert not list(links.iterdir())


def test_a_leftover_of_a_failed_save_does_not_stop_later_saves(tmp_path):
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(1, tree(1))
    checkpointer.wait()
    (tmp_path / f"2{checkpoints.UNFINISHED}-1").mkdir()
    checkpointer.save(3, tree(3))
    checkpointer.close()
    assert checkpoints.steps(tmp_path) == [1, 3]


def test_structure_must_fit(saved):
    kernel = np.zeros((40, 30), np.float32)
    for conv, message in (
        ({"weight": kernel}, r"missing: .*conv/weight.*unexpected: .*conv/kernel"),
        ({"kernel": kernel.T}, r"other: params/conv/kernel .*40, 30.*30, 40"),
        ({"kernel": kernel.astype(np.int32)}, r"other: .*kernel .*float32.*int32"),
    ):
        with pytest.raises(C.UserError, match=message):
            Checkpointer(saved).restore(tree(0, params={"conv": conv}))
    assert checkpoints.steps(saved) == [0, 20, 105, 110]  # which are not damaged


def test_damaged_checkpoint_is_set_aside(copy, caplog):
    shutil.rmtree(copy / "110" / "state" / "d")
    checkpointer = Checkpointer(copy, C.RuntimeConfig(keep_last=2, keep_every_steps=20))
    assert_equal(checkpointer.restore(tree(0)), tree(105))
    assert checkpointer.saved == 105 and "110 is damaged" in caplog.text
    assert checkpoints.steps(copy) == [0, 20, 105]
    checkpointer.save(110, tree(110))  # the run reaches the same step again
    checkpointer.close()
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
    assert checkpoints.steps(copy) == [0, 20, 110] and restore(copy, tree(0))[0] == 20
    (copy / "20" / "contents" / "metadata").unlink()
    with pytest.raises(C.UserError, match="step=0"):  # the initialization is not what was trained
        restore(copy, tree(0))
    assert restore(copy, tree(0), 0)[0] == 0 and checkpoints.newest(copy, tree(0))[0] == 0
    (copy / "0" / "contents" / "metadata").unlink()
    with pytest.raises(C.UserError, match="every checkpoint"):
        restore(copy, tree(0))


NO_RECORDS = ('{"step": "a"}', '{"step": -1}', '{"step": 1e30}', '{"loss": 1}', "5", "", "null")
NO_RECORDS += ('{"step": 5, "loss": "x"}', '{"step": 5, "loss": [1]}', "[" * 10_000)
NO_RECORDS += (f'{{"step": {"9" * 5000}}}',)
JSON = (b"5", b"[]", b"{}", b'"x"', b"[" * 10_000)


def test_whatever_is_damaged_the_one_before_is_taken(copy, rng, caplog):
    """Or nothing of it matters, and the values are right: bits, ends or all of any file."""
    taken = []
    for file in filter(os.path.isfile, sorted((copy / "110").rglob("*"))):
        content = np.frombuffer(file.read_bytes(), np.uint8)
        spots, bit = rng.choice(content.size, 3), 1 << rng.integers(8, dtype=np.uint8)
        changed = [bytes(content ^ bit * (np.arange(content.size) == spot)) for spot in spots]
        changed += [b"", bytes(content[: content.size // 2]), None]
        for new in [*changed, *(JSON if "metadata" in file.name.lower() else ())]:
            file.unlink(missing_ok=True)
            if new is not None:
                file.write_bytes(new)
            caplog.clear()
            step, found = restore(copy, tree(0))
            assert_equal(found, tree(step))
            assert len(caplog.records) == (110 - step) // 5
            assert step == 105 or "contents" not in file.parts or file.name != "metadata"
            taken.append(step)
        file.write_bytes(content)
    assert set(taken) == {105, 110} and taken.count(105) > 30
    (copy / "110" / "contents" / "metadata").unlink()
    os.mkfifo(copy / "110" / "contents" / "metadata")
    assert restore(copy, tree(0))[0] == 105


def test_a_misfit_is_no_damage(copy):
    other = tree(0, params={"conv": {"weight": np.zeros((40, 30), np.float32)}})
    for step in (None, 105, 110):
        with pytest.raises(C.UserError, match="does not fit this model"):
            restore(copy, other, step)


def test_a_checkpoint_is_of_the_step_that_it_is_named_by(copy, caplog):
    """Not a copy of another one; what is no number as we write them is none of ours."""
    shutil.copytree(copy / "110", copy / "115")
    for name in ("0110", "١١٥", "-120", "9" * 30):
        shutil.copytree(copy / "20", copy / name)
    assert restore(copy, {"stats": {}})[0] == 110
    with pytest.raises(C.UserError, match="115 is damaged: it contains step 110"):
        restore(copy, {"stats": {}}, 115)
    checkpointer = Checkpointer(copy)
    assert_equal(checkpointer.restore(tree(0)), tree(110))
    checkpointer.save(115, tree(115))
    checkpointer.close()
    assert_equal(restore(copy, tree(0), 115)[1], tree(115))
    assert (copy / "115.damaged-1").is_dir()
    # A step that is there is not saved, and that is an error.
    checkpointer = Checkpointer(copy)
    with pytest.raises(C.UserError, match=r"could not save .*/115 already exists"):
        checkpointer.save(115, tree(115))
    checkpointer.close()


def test_what_passes_is_no_damage(copy, monkeypatch):
    """Too many open files say nothing of the checkpoint: it is not set aside."""
    full = functools.partial(fails, errno.EMFILE)
    monkeypatch.setattr(ocp.Checkpointer, "restore", full)
    with pytest.raises(OSError, match="Too many open files"):
        Checkpointer(copy).restore(tree(0))
    assert checkpoints.steps(copy) == [0, 20, 105, 110]


def test_whatever_stops_it_the_run_is_the_same(short_run, tmp_path):
    """C.Stopped by SIGTERM, ended by a full disk, stopped by SIGINT."""
    config, folder = tiny_runs.short(tmp_path), tmp_path / "short"
    sends = lambda number: functools.partial(os.kill, os.getpid(), number)  # noqa: E731

    # A line is written two steps later, or before a checkpoint.
    for step, happens, error, kept in (
        (2, sends(signal.SIGTERM), C.Stopped, [0, 3]),
        (8, functools.partial(fails, errno.ENOSPC), OSError, [0, 3, 6]),
        (8, sends(signal.SIGINT), C.Stopped, [0, 3, 6, 9]),
    ):
        message = f"saved at step {kept[-1]} of 12 .*to resume: CMD|No space left"
        with pytest.MonkeyPatch.context() as patch, pytest.raises(error, match=message):
            at_line(patch, step, happens)
            training.train(config, command="CMD")
        assert checkpoints.steps(folder / "checkpoints") == kept
    training.train(config, command="CMD")
    assert_same_run(folder, short_run)
    sessions = json.loads((folder / "config.json").read_text())["sessions"]
    assert [session["command"] for session in sessions] == ["CMD"] * 4
    # TensorBoard drops what is there from the step on with which a session begins.
    events = b"".join(file.read_bytes() for file in folder.glob("events.out.tfevents.*"))
    assert sorted(map(ord, re.findall(rb"(?s)\x10(.):\x02\x08\x01", events))) == [4, 7, 10]


def test_damaged_checkpoint_half_line_and_earlier_version(killed_run, short_run, tmp_path, caplog):
    """Lines after the checkpoint are written again; options that came later had standard values."""
    killed = shutil.copytree(killed_run, tmp_path / "short")
    next((killed / "checkpoints" / "9" / "state" / "d").iterdir()).write_bytes(b"cut")
    lines = (killed / "metrics.jsonl").read_text().splitlines()
    lines = [*lines[::-1], *NO_RECORDS, lines[0], '{"step": 10, "loss": 1.0}', '{"step": 12, "lo']
    (killed / "metrics.jsonl").write_text("\n".join(lines))
    record = json.loads((killed / "config.json").read_text())
    del record["config"]["queue_size"], record["config"]["clip_norm"]
    (killed / "config.json").write_text(json.dumps(record))
    training.train(tiny_runs.short(killed.parent))
    assert "checkpoints/9 is damaged" in caplog.text and "any more" not in caplog.text
    assert_same_run(killed, short_run)


def test_what_is_no_record_of_metrics_is_left_out(tmp_path, caplog):
    file, found = tmp_path / "metrics.jsonl", [{"step": 2, "a": None}, {"step": 10, "b": 0.5}]
    first, last = map(json.dumps, found)
    lines = [last, *NO_RECORDS, '{"step": 2, "a": 5}', first]
    file.write_bytes("\n".join(lines).encode() + b'\n{"step": 3, "\xff": 1}\n\x00\n{"step": 4')
    assert read_metrics(tmp_path) == found
    assert (
        f"{len(NO_RECORDS) + 2} invalid lines are left out" in caplog.text
    )  # the last is not finished
    config = tiny_runs.short(tmp_path)  # with a line for every two steps
    for step, kept, said in ((11, 2, 0), (12, 2, 1), (5, 1, 2)):
        MetricLogger(tmp_path, config, step).close()
        assert read_metrics(tmp_path) == found[:kept] and len(caplog.records) == 2 + said
    assert "no lines of steps 11 to 12" in caplog.text
    for content in (b"", b"\x00" * 99, b"\xff\xfe"):
        file.write_bytes(content)
        assert read_metrics(tmp_path) == []


def test_a_record_is_kept_whatever_its_numbers(tmp_path):
    values = [float("inf"), float("-inf"), 1e19, -3.4e38, 2**63]
    found = [{"step": step, "loss": value} for step, value in enumerate(values)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, found)))
    for _ in range(2):
        assert read_metrics(tmp_path) == found
        MetricLogger(tmp_path, tiny_runs.short(tmp_path), len(values)).close()


@pytest.mark.slow
def test_on_other_devices(killed_run, short_run, tmp_path):
    """And with other intervals, which do not divide the steps: the last one is logged and saved."""
    killed = shutil.copytree(killed_run, tmp_path / "short")
    runtime = C.RuntimeConfig(devices=1, log_every_steps=5, checkpoint_every_steps=5)
    training.train(tiny_runs.short(tmp_path, runtime=runtime))
    close = functools.partial(np.testing.assert_allclose, atol=1e-4)
    jax.tree.map(close, state_of(killed), state_of(short_run))
    assert timeless(killed)[:-2] == timeless(short_run)[:-2]
    assert [record["step"] for record in timeless(killed)] == [2, 4, 6, 8, 10, 12]
    assert checkpoints.steps(killed / "checkpoints") == [0, 9, 10, 12]


def test_folder_with_another_run(short_run, tmp_path):
    folder = shutil.copytree(short_run, tmp_path / "short")
    double = {"align_weight": 2}
    for changes, message in (
        (double, r"align_weight: 1.0 -> 2.*name="),
        ({"devices": 2, "resume": "never"}, "resume=never"),
    ):
        with pytest.raises(C.UserError, match=message):
            training.train(tiny_runs.short(tmp_path, **changes))
    assert (folder / "config.json").read_bytes() == (short_run / "config.json").read_bytes()


def test_two_processes_in_one_folder(tmp_path):
    with run_dir.lock(tmp_path / "short"), pytest.raises(C.UserError, match="another process"):
        training.train(tiny_runs.short(tmp_path))
    assert not (tmp_path / "short" / "config.json").exists()


def test_encoder_of_a_step_and_changed_data(short_run, monkeypatch):
    for step in (None, 6):
        encoder = run_dir.load_encoder(short_run, step)
        assert (encoder.step, encoder.folder) == (step or 12, short_run)
        saved = state_of(short_run, step)["params"]
        jax.tree.map(np.testing.assert_array_equal, encoder.params, saved)
    train, test = arrays.digits()
    train.images[0, 0, 0] ^= 1
    monkeypatch.setattr(arrays, "digits", lambda: (train, test))
    for use in (run_dir.load_data, lambda folder: training.train(tiny_runs.short(folder.parent))):
        with pytest.raises(C.UserError, match="images or labels"):
            use(short_run)


def test_without_synchronized_batch_norm_devices_shape_the_run(short_run, tmp_path):
    folder = shutil.copytree(short_run, tmp_path / "short")
    record = json.loads((folder / "config.json").read_text())
    record["config"]["batch_norm"] = "local"
    (folder / "config.json").write_text(json.dumps(record))
    local = C.ModelConfig(dim=3, width=0.1, batch_norm="local")
    with pytest.raises(C.UserError, match="batch_norm=local: 2 -> 4"):
        training.train(tiny_runs.short(tmp_path, model=local, devices=4))
    assert training.train(tiny_runs.short(tmp_path, model=local)) == folder


def test_what_shapes_a_run():
    """All but where it lies, how it is carried out, and what is evaluated."""

    shape = lambda **of: run_dir.training_config(tiny_runs.short(".", **of))  # noqa: E731

    names = {"seed", "init_from", "data", "dim", "align_weight", "queue_size", "learning_rate"}
    assert names <= shape().keys() and not {"name", "devices", "evaluators"} & shape().keys()
    moved = shape(data="/a/b.npz", data_dir="/a", bad_images="skip")
    assert moved == shape(data="/c.npz", data_dir="/c", bad_images="error")
    for change in ({"data": "cifar10"}, {"fraction": 0.5}, {"recipe": "none"}, {"folds": 5}):
        assert shape(**change) != shape()


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    file = tmp_path / "made" / "result.json"
    write_json(file, {"a": 1})
    with pytest.raises(KeyboardInterrupt), atomic_write(file) as written:
        written.write(b"half")
        written.flush()
        assert read_json(file) == {"a": 1}
        raise KeyboardInterrupt
    assert read_json(file) == {"a": 1} and list(file.parent.iterdir()) == [file]
