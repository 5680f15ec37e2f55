"""The loop: a run's folder, exact resumption after any interruption, and clear ends."""

import dataclasses
import errno
import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from run_cases import assert_same_run, killed_after_checkpoint, state_of

from hypersphere_jax import checkpoint, runs, training
from hypersphere_jax.config import (
    DataConfig,
    ModelConfig,
    ObjectiveConfig,
    OptimizerConfig,
    PretrainConfig,
    RuntimeConfig,
    Stopped,
    UserError,
)
from hypersphere_jax.data import arrays

ROOT = Path(__file__).parent.parent
RUNTIME = RuntimeConfig(devices=2, log_every_steps=2, checkpoint_every_steps=3)


def config(tmp_path, name="run", **changes):
    """12 steps of a tiny encoder."""
    base = PretrainConfig(
        name=name,
        runs_dir=str(tmp_path),
        model=ModelConfig(dim=3, width=0.1),
        optimizer=OptimizerConfig(epochs=2, batch_size=220),
        runtime=RUNTIME,
    )
    return dataclasses.replace(base, **changes)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    training.train(config(folder))
    return folder / "run"


def test_folder_of_a_run(finished):
    saved = json.loads((finished / "config.json").read_text())
    assert saved["config"]["model"]["image_size"] == 8
    assert saved["config"]["data"]["recipe"] == "digits"
    assert saved["sessions"][0]["device"] == {"kind": "cpu", "count": 2, "hosts": 1}
    assert "jax" in saved["sessions"][0]["versions"]
    records = runs.read_metrics(finished)
    assert [record["step"] for record in records] == [2, 4, 6, 8, 10, 12]
    assert records[-1].keys() >= {
        "step", "epoch", "loss", "align", "uniform", "lr", "images_per_s", "data_wait", "grad_norm"
    }  # fmt: skip
    assert records[2]["epoch"] == 1.0
    np.testing.assert_allclose(
        records[0]["loss"], records[0]["align"] + records[0]["uniform"], rtol=1e-5
    )
    assert checkpoint.steps(finished / "checkpoints") == [0, 6, 9, 12]
    assert list(finished.glob("events.out.tfevents.*"))
    assert runs.read_config(finished).optimizer.batch_size == 220


def test_tensorboard_files_can_be_read(finished):
    from tensorboardX.proto import event_pb2
    from tensorboardX.record_writer import masked_crc32c  # noqa: F401  the format's own checksum

    raw = next(iter(finished.glob("events.out.tfevents.*"))).read_bytes()
    tags, at = set(), 0
    while at < len(raw):
        size = int.from_bytes(raw[at : at + 8], "little")
        event = event_pb2.Event.FromString(raw[at + 12 : at + 12 + size])
        tags |= {value.tag for value in event.summary.value}
        at += 16 + size
    assert {"loss", "align", "uniform", "lr"} <= tags


def test_finished_run_is_not_done_again(finished):
    before = state_of(finished)
    records = (finished / "metrics.jsonl").read_text()
    assert training.train(config(finished.parent)) == finished
    assert (finished / "metrics.jsonl").read_text() == records
    jax.tree.map(np.testing.assert_array_equal, state_of(finished), before)


@pytest.mark.parametrize("kill", [signal.SIGTERM, signal.SIGINT])
def test_stopped_and_resumed_is_the_same_run(finished, tmp_path, kill):
    state = {"left": 5}
    original = training.runs.MetricsWriter.write

    def write_and_stop(self, record):
        original(self, record)
        state["left"] -= record["step"]
        if state["left"] <= 0 and "sent" not in state:
            state["sent"] = True
            os.kill(os.getpid(), kill)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training.runs.MetricsWriter, "write", write_and_stop)
        with pytest.raises(Stopped, match=r"saved at step 4 of 12 .*to go on: CMD"):
            training.train(config(tmp_path), command="CMD")
    assert checkpoint.steps(tmp_path / "run" / "checkpoints") == [0, 3, 4]
    training.train(config(tmp_path))
    assert_same_run(tmp_path / "run", finished)
    assert len(json.loads((tmp_path / "run" / "config.json").read_text())["sessions"]) == 2


def test_stopped_while_decoding(tmp_path, monkeypatch):
    def interrupted(items, _):
        os.kill(os.getpid(), signal.SIGTERM)
        return iter(items)

    monkeypatch.setattr(training, "track", interrupted)
    with pytest.raises(Stopped, match=r"while decoding the images, .*; to go on: CMD$"):
        training.train(config(tmp_path, data=DataConfig(fraction=0.9)), command="CMD")


def test_resumed_on_other_devices(finished, tmp_path):
    stop_at(tmp_path, 6)
    runtime = dataclasses.replace(RUNTIME, devices=4)
    training.train(config(tmp_path, runtime=runtime))
    close = functools.partial(np.testing.assert_allclose, atol=1e-4)
    jax.tree.map(close, state_of(tmp_path / "run"), state_of(finished))


def stop_at(tmp_path, step, **changes):
    """Leaves a run as a kill right after the checkpoint of a step does."""
    with killed_after_checkpoint(step):
        training.train(config(tmp_path, **changes))


def test_damaged_newest_checkpoint(finished, tmp_path, caplog):
    stop_at(tmp_path, 9)
    (next((tmp_path / "run" / "checkpoints" / "9" / "state" / "d").iterdir())).write_bytes(b"cut")
    training.train(config(tmp_path))
    assert "damaged" in caplog.text and "9" in caplog.text
    assert_same_run(tmp_path / "run", finished)


def test_half_written_metrics(finished, tmp_path):
    stop_at(tmp_path, 6)
    with open(tmp_path / "run" / "metrics.jsonl", "a") as file:
        file.write('{"step": 8, "loss": 1.0}\n{"step": 10, "lo')
    training.train(config(tmp_path))
    assert_same_run(tmp_path / "run", finished)


def test_a_run_of_an_earlier_version_goes_on(finished, tmp_path):
    """Options that came later had their standard values then."""
    stop_at(tmp_path, 6)
    file = tmp_path / "run" / "config.json"
    record = json.loads(file.read_text())
    del record["config"]["moco"], record["config"]["optimizer"]["clip_norm"]
    file.write_text(json.dumps(record))
    training.train(config(tmp_path))
    assert_same_run(tmp_path / "run", finished)


def test_folder_with_another_run(finished):
    before = (finished / "config.json").read_text()
    other = config(finished.parent, seed=1, objective=ObjectiveConfig(align_weight=2))
    with pytest.raises(UserError) as error:
        training.train(other)
    for part in ("seed: 0 -> 1", "objective.align_weight: 1.0 -> 2", "--name run-2"):
        assert part in str(error.value)
    with pytest.raises(UserError, match="'never'"):
        training.train(
            config(finished.parent, runtime=dataclasses.replace(RUNTIME, resume="never"))
        )
    assert (finished / "config.json").read_text() == before


def test_divergence_keeps_the_last_good_checkpoint(tmp_path):
    wild = OptimizerConfig(epochs=2, batch_size=220, learning_rate=1e30)
    with pytest.raises(
        UserError, match=r"diverged: .* at step \d+; the checkpoint of step 0 .*--learning-rate"
    ):
        training.train(config(tmp_path, optimizer=wild))
    tree = state_of(tmp_path / "run")
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree))


def test_full_disk_keeps_what_was_saved(finished, tmp_path, monkeypatch):
    original = runs.MetricsWriter.write

    def write(self, record):
        if record["step"] == 8:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(self, record)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(runs.MetricsWriter, "write", write)
        training.train(config(tmp_path))
    assert checkpoint.steps(tmp_path / "run" / "checkpoints") == [0, 3, 6]
    training.train(config(tmp_path))
    assert_same_run(tmp_path / "run", finished)


def test_bad_batch_sizes(tmp_path):
    for size, message in ((221, "does not divide over 2 devices.*220"), (1402, "1400 training")):
        with pytest.raises(UserError, match=message):
            training.train(config(tmp_path, optimizer=OptimizerConfig(batch_size=size)))
    with pytest.raises(UserError, match=r"--devices 99: this host has 8 cpu"):
        training.train(config(tmp_path, runtime=RuntimeConfig(devices=99)))
    with pytest.raises(UserError, match=r"recipe.*digits"):
        training.train(config(tmp_path, data=DataConfig(recipe="digit")))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_finetuning_starts_from_another_run(finished, tmp_path):
    still = OptimizerConfig(epochs=1, batch_size=220, learning_rate=0.0)
    training.train(config(tmp_path, "tuned", init_from=str(finished), optimizer=still))
    start, end = state_of(tmp_path / "tuned", 0), state_of(finished)
    for part in ("params", "stats"):
        jax.tree.map(np.testing.assert_array_equal, start[part], end[part])
    assert start["step"] == 0
    other = ModelConfig(dim=5, width=0.1)
    with pytest.raises(UserError, match=r"does not fit.*head/output"):
        training.train(config(tmp_path, "wider", init_from=str(finished), model=other))
    with pytest.raises(UserError, match="did you mean"):
        training.train(config(tmp_path, "x", init_from=str(finished.parent / "rum")))
    assert not (tmp_path / "wider").exists()


@pytest.mark.slow
def test_finetuning_resumes_without_its_source(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "source")
    # With another loss: the classifier, which the source has not, starts fresh.
    changes = {
        "init_from": str(tmp_path / "source"),
        "objective": ObjectiveConfig(supervised_weight=1.0),
    }
    stop_at(tmp_path, 3, **changes)
    start = state_of(tmp_path / "run", 0)["params"]
    assert start["head"]["classifier"]["kernel"].shape == (3, 10)
    kernel = state_of(finished)["params"]["conv1"]["layer"]["kernel"]
    np.testing.assert_array_equal(start["conv1"]["layer"]["kernel"], kernel)
    shutil.rmtree(tmp_path / "source")
    training.train(config(tmp_path, **changes))
    assert runs.read_metrics(tmp_path / "run")[-1]["step"] == 12


def test_folder_that_is_no_whole_run(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text("{}")
    with pytest.raises(UserError, match="no record of a run"):
        training.train(config(tmp_path))
    (tmp_path / "run" / "config.json").unlink()
    with pytest.raises(UserError, match=r"checkpoints but no config\.json.*run-2"):
        training.train(config(tmp_path))


def test_two_processes_in_one_folder(tmp_path):
    with runs.lock(tmp_path / "run"), pytest.raises(UserError, match="another process"):
        training.train(config(tmp_path))
    assert not (tmp_path / "run" / "config.json").exists()


def test_stop_at_the_very_end(tmp_path, monkeypatch):
    original = checkpoint.Checkpoints.save

    def save(self, at, tree):
        original(self, at, tree)
        if at == 12:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(checkpoint.Checkpoints, "save", save)
    with pytest.raises(Stopped, match="after the last step"):
        training.train(config(tmp_path))
    assert checkpoint.steps(tmp_path / "run" / "checkpoints")[-1] == 12


def test_changed_data(finished, tmp_path, monkeypatch):
    train, test = arrays.digits()
    train.images[0, 0, 0] ^= 1
    monkeypatch.setattr(arrays, "digits", lambda: (train, test))
    with pytest.raises(UserError, match="no longer those"):
        training.train(config(finished.parent))
    with pytest.raises(UserError, match="no longer those"):
        runs.load_data(finished)


def test_without_synchronized_batch_norm_devices_shape_the_run(tmp_path):
    model = ModelConfig(dim=3, width=0.1, batch_norm="local")
    stop_at(tmp_path, 3, model=model)
    with pytest.raises(UserError, match=r"begun on 2 device.*--devices 2"):
        training.train(
            config(tmp_path, model=model, runtime=dataclasses.replace(RUNTIME, devices=4))
        )


def test_groups_of_batch_norm_must_fit(tmp_path):
    for groups, devices in ((3, 2), (1, 2), (6, 1)):
        model = ModelConfig(batch_norm="split", bn_groups=groups)
        runtime = dataclasses.replace(RUNTIME, devices=devices)
        with pytest.raises(UserError, match=rf"--bn-groups {groups}: .* {devices} device"):
            training.train(config(tmp_path, model=model, runtime=runtime))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_npz_through_small_alexnet(tmp_path, rng):
    images = rng.integers(0, 256, (12, 32, 32, 3), dtype=np.uint8)
    labels = rng.integers(0, 3, 12)
    file = tmp_path / "images.npz"
    np.savez(
        file,
        train_images=images,
        train_labels=labels,
        test_images=images[:6],
        test_labels=labels[:6],
    )
    folder = training.train(
        config(
            tmp_path,
            data=DataConfig(name=os.path.relpath(file)),
            model=ModelConfig(name="small_alexnet", dim=4, width=0.05),
            optimizer=OptimizerConfig(epochs=1, batch_size=6),
            runtime=dataclasses.replace(RUNTIME, log_every_steps=1),
        )
    )
    assert runs.read_config(folder).data == DataConfig(name=str(file), recipe="stl10")
    assert runs.read_config(folder).model.channels == 3
    assert len(runs.read_metrics(folder)) == 2


@pytest.mark.slow
def test_killed_ten_times_is_the_same_run(tmp_path):
    """SIGKILL at random moments, among them while checkpoints are written."""
    command = [
        *(sys.executable, "run.py", "pretrain", "--runs-dir", str(tmp_path)),
        *("--devices", "1", "--epochs", "12", "--batch-size", "100", "--width", "0.1"),
        *("--dim", "3", "--checkpoint-every-steps", "2", "--log-every-steps", "3"),
    ]

    def start(name):
        return subprocess.Popen(
            [*command, "--name", name],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(name):
        process = start(name)
        _, errors = process.communicate()
        assert process.returncode == 0, errors

    finish("whole")
    dice = random.Random(0)
    for _ in range(2):  # while it starts, compiles, restores
        process = start("killed")
        time.sleep(dice.uniform(0.5, 4))
        process.kill()
        process.communicate()
    alive = 0
    for _ in range(10):
        process = start("killed")
        # Killed some time after its first checkpoint: before that there is nothing to lose.
        checkpoints = tmp_path / "killed" / "checkpoints"
        before = checkpoint.steps(checkpoints)
        while process.poll() is None and checkpoint.steps(checkpoints) == before:
            time.sleep(0.02)
        time.sleep(dice.uniform(0, 0.3))
        alive += process.poll() is None
        process.kill()
        process.communicate()
    assert alive >= 8
    finish("killed")
    assert_same_run(tmp_path / "killed", tmp_path / "whole")
