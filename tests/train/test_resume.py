"""A run that is interrupted goes on to the same numbers, in a folder that is its own."""

import dataclasses
import errno
import functools
import json
import os
import shutil
import signal

import jax
import numpy as np
import pytest
import tiny_runs
from run_states import assert_same_run, at_line, events_of, state_of, timeless

from hypersphere_jax import checkpoint, runs, training
from hypersphere_jax.config import ModelConfig, ObjectiveConfig, Stopped, UserError
from hypersphere_jax.data import arrays


def test_whatever_stops_it_the_run_is_the_same(short_run, tmp_path):
    """Stopped by SIGTERM, ended by a full disk, stopped by SIGINT."""
    config, folder = tiny_runs.short(tmp_path), tmp_path / "short"
    sends = lambda number: functools.partial(os.kill, os.getpid(), number)  # noqa: E731

    def disk_is_full():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for step, happens, error, kept in (
        (4, sends(signal.SIGTERM), Stopped, [0, 3, 4]),
        (8, disk_is_full, OSError, [0, 3, 4, 6]),
        (10, sends(signal.SIGINT), Stopped, [0, 6, 9, 10]),
    ):
        message = f"saved at step {step} of 12 .*to go on: CMD|No space left"
        with pytest.MonkeyPatch.context() as patch, pytest.raises(error, match=message):
            at_line(patch, step, happens)
            training.train(config, command="CMD")
        assert checkpoint.steps(folder / "checkpoints") == kept
    training.train(config, command="CMD")
    assert_same_run(folder, short_run)
    sessions = json.loads((folder / "config.json").read_text())["sessions"]
    assert [session["command"] for session in sessions] == ["CMD"] * 4
    # TensorBoard drops what comes after the step at which a session began.
    began = [event.step for event in events_of(folder) if event.HasField("session_log")]
    assert began == [5, 7, 11]


def test_damaged_checkpoint_half_a_line_and_earlier_version(
    killed_run, short_run, tmp_path, caplog
):
    """Lines after the checkpoint are written again; options that came later had standard values."""
    killed = shutil.copytree(killed_run, tmp_path / "short")
    next((killed / "checkpoints" / "9" / "state" / "d").iterdir()).write_bytes(b"cut")
    with open(killed / "metrics.jsonl", "a") as file:
        file.write('{"step": 10, "loss": 1.0}\n{"step": 12, "lo')
    record = json.loads((killed / "config.json").read_text())
    del record["config"]["moco"], record["config"]["optimizer"]["clip_norm"]
    (killed / "config.json").write_text(json.dumps(record))
    training.train(tiny_runs.short(killed.parent))
    assert "checkpoints/9 is damaged" in caplog.text
    assert_same_run(killed, short_run)


def test_on_other_devices(killed_run, short_run, tmp_path):
    """And with other intervals, which do not divide the steps: the last one is logged and saved."""
    killed, config = shutil.copytree(killed_run, tmp_path / "short"), tiny_runs.short(tmp_path)
    other = {"devices": 1, "log_every_steps": 5, "checkpoint_every_steps": 5}
    runtime = dataclasses.replace(config.runtime, **other)
    training.train(dataclasses.replace(config, runtime=runtime))
    close = functools.partial(np.testing.assert_allclose, atol=1e-4)
    jax.tree.map(close, state_of(killed), state_of(short_run))
    assert timeless(killed)[:-2] == timeless(short_run)[:-2]
    assert [record["step"] for record in timeless(killed)] == [2, 4, 6, 8, 10, 12]
    assert checkpoint.steps(killed / "checkpoints") == [0, 9, 10, 12]


def test_folder_with_another_run(short_run, tmp_path):
    folder = shutil.copytree(short_run, tmp_path / "short")
    never = dataclasses.replace(tiny_runs.short(tmp_path).runtime, resume="never")
    objective = ObjectiveConfig(align_weight=2)
    for changes, message in (
        ({"objective": objective}, r"objective.align_weight: 1.0 -> 2.*--name short-2"),
        ({"runtime": never}, "--resume is 'never'"),
    ):
        with pytest.raises(UserError, match=message):
            training.train(tiny_runs.short(tmp_path, **changes))
    assert (folder / "config.json").read_bytes() == (short_run / "config.json").read_bytes()
    (folder / "config.json").unlink()
    with pytest.raises(UserError, match=r"checkpoints but no config\.json.*short-2"):
        training.train(tiny_runs.short(tmp_path))


def test_two_processes_in_one_folder(tmp_path):
    with runs.lock(tmp_path / "short"), pytest.raises(UserError, match="another process"):
        training.train(tiny_runs.short(tmp_path))
    assert not (tmp_path / "short" / "config.json").exists()


def test_encoder_of_a_step_and_changed_data(short_run, monkeypatch):
    for step in (None, 6):
        encoder = runs.load_encoder(short_run, step)
        assert (encoder.step, encoder.folder) == (step or 12, short_run)
        saved = state_of(short_run, step)["params"]
        jax.tree.map(np.testing.assert_array_equal, encoder.params, saved)
    train, test = arrays.digits()
    train.images[0, 0, 0] ^= 1
    monkeypatch.setattr(arrays, "digits", lambda: (train, test))
    with pytest.raises(UserError, match="no longer those"):
        training.train(tiny_runs.short(short_run.parent))
    with pytest.raises(UserError, match="no longer those"):
        runs.load_data(short_run)


def test_without_synchronized_batch_norm_devices_shape_the_run(short_run, tmp_path):
    folder = shutil.copytree(short_run, tmp_path / "short")
    record = json.loads((folder / "config.json").read_text())
    record["config"]["model"]["batch_norm"] = "local"
    (folder / "config.json").write_text(json.dumps(record))
    config = tiny_runs.short(tmp_path, model=ModelConfig(dim=3, width=0.1, batch_norm="local"))
    four = dataclasses.replace(config.runtime, devices=4)
    with pytest.raises(UserError, match=r"begun on 2 device.*--devices 2"):
        training.train(dataclasses.replace(config, runtime=four))
    assert training.train(config) == folder


def test_what_shapes_a_run(tmp_path):
    """All but where it lies, how it is carried out, and what is evaluated."""

    def shape(**data):
        made = tiny_runs.short(tmp_path)
        return runs.shaping(dataclasses.replace(made, data=dataclasses.replace(made.data, **data)))

    parts = {"seed", "init_from", "init_step", "data", "model", "objective", "moco", "optimizer"}
    assert shape().keys() == parts
    moved = shape(name="/a/b.npz", data_dir="/a", bad_images="skip")
    assert moved == shape(name="/c.npz", data_dir="/c", bad_images="error")
    for change in ({"name": "cifar10"}, {"fraction": 0.5}, {"recipe": "none"}, {"folds": 5}):
        assert shape(**change) != shape()


def test_finding_runs(short_run, tmp_path, monkeypatch):
    for name in ("runs/alpha", "runs/group/one", "runs/group/two"):
        (tmp_path / name).mkdir(parents=True)
        shutil.copy(short_run / "config.json", tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert runs.find("alpha") == runs.find("runs/alpha").relative_to(".")
    assert [folder.name for folder in runs.find_all("group")] == ["one", "two"]
    assert runs.find_all("alpha") == [runs.find("alpha")]
    with pytest.raises(UserError, match=r"no run 'alpa'.*did you mean 'runs/alpha'\?"):
        runs.find("alpa")


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    file = tmp_path / "made" / "result.json"
    runs.write_json(file, {"a": 1})
    with pytest.raises(KeyboardInterrupt), runs.whole_file(file) as written:
        written.write(b"half")
        written.flush()
        assert runs.read_json(file) == {"a": 1}
        raise KeyboardInterrupt
    assert runs.read_json(file) == {"a": 1} and list(file.parent.iterdir()) == [file]


def test_words_that_a_run_of_text_knows(text_run, tmp_path):
    words = runs.read_vocabulary(text_run)
    assert len(set(words)) == len(words) == runs.read_config(text_run).model.vocabulary
    shutil.copy(text_run / "config.json", tmp_path)
    for known in (words[:-1], (*words, "more")):
        runs.write_vocabulary(tmp_path, known)
        with pytest.raises(UserError, match=f"has {len(known)} words, .* knows {len(words)}"):
            runs.read_vocabulary(tmp_path)
