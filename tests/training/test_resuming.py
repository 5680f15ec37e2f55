"""Resuming a run: to the same bits after any interruption, and only with the same options."""

import functools
import itertools
import json
import shutil
import signal

import jax
import numpy as np
import own_parts
import pytest
import tiny_runs
from run_states import assert_same_run, killed, state_of, timeless

import hypersphere_jax as hj
from hypersphere_jax import configs as C
from hypersphere_jax.training import checkpoints, run_dir
from hypersphere_jax.training import train as training
from hypersphere_jax.training.setup import set_up
from hypersphere_jax.training.stopping import SIGNALS

FORCE = {"force": True}


def record_of(folder):
    return json.loads((folder / "config.json").read_text())


def edit_config(folder, **changes):
    """Change recorded options, or remove those that are None, as in an older record."""
    record = record_of(folder)
    for name, value in changes.items():
        if value is None:
            del record["config"][name]
        else:
            record["config"][name] = value
    (folder / "config.json").write_text(json.dumps(record))


@pytest.fixture
def short_copy(short_run, tmp_path):
    return shutil.copytree(short_run, tmp_path / "short")


def test_killed_within_an_epoch_resumes_to_the_same_bits(short_run, tmp_path):
    folder = killed(short_run, 9, tmp_path)
    edit_config(folder, queue_size=None, clip_norm=None)
    training.train(tiny_runs.short(tmp_path))
    assert_same_run(folder, short_run)
    assert [session["from_step"] for session in record_of(folder)["sessions"]] == [0, 9]


def test_killed_moco_run_resumes_to_the_same_bits(queue_run, tmp_path):
    folder = killed(queue_run, 4, tmp_path)
    assert_same_run(training.train(tiny_runs.queue(tmp_path)), queue_run)
    assert checkpoints.steps(folder / "checkpoints") == [0, 4, 8, 10]


def test_damaged_checkpoint_and_log_resume_to_the_same_bits(short_run, short_copy, tmp_path):
    next((short_copy / "checkpoints" / "12" / "state" / "d").iterdir()).write_bytes(b"cut")
    lines = (short_copy / "metrics.jsonl").read_text().splitlines()
    lines = [*lines[::-1], lines[0], '{"step": 12, "loss": 1.0}', '{"step": 12, "lo']
    (short_copy / "metrics.jsonl").write_text("\n".join(lines))
    training.train(tiny_runs.short(tmp_path))
    assert_same_run(short_copy, short_run)


@pytest.mark.slow
def test_resuming_on_other_devices_and_with_other_intervals(short_run, tmp_path):
    folder = killed(short_run, 9, tmp_path)
    options = {"devices": 1, "log_every_steps": 5, "checkpoint_every_steps": 5}
    training.train(tiny_runs.short(tmp_path, **options))
    close = functools.partial(np.testing.assert_allclose, atol=1e-4)
    jax.tree.map(close, state_of(folder), state_of(short_run))
    assert [record["step"] for record in timeless(folder)] == [2, 4, 6, 8, 10, 12]
    assert checkpoints.steps(folder / "checkpoints") == [0, 9, 10, 12]


def loss_with_signal(number=None, at=0):
    """Return a loss whose computation sends a signal, once, at a step."""
    steps = itertools.count(1)

    def send():
        if next(steps) == at:
            signal.raise_signal(number)

    def loss(x, y):
        jax.debug.callback(send)
        return own_parts.spread(x, y)

    return loss


def train_noisy(folder, loss):
    """Train a linear network for 12 steps, 3 per epoch."""
    config = own_parts.config(folder, batch_size=16, checkpoint_every_steps=100)
    parts = {"images": own_parts.IMAGES, "network": own_parts.NETWORK, "augment": own_parts.noisy}
    return hj.train(config, loss=loss, **parts)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return train_noisy(tmp_path_factory.mktemp("uninterrupted"), loss_with_signal())


@pytest.mark.parametrize(
    ("number", "at"),
    [
        (SIGNALS[0], 7),
        pytest.param(SIGNALS[1], 12, marks=pytest.mark.slow),
    ],
)
def test_stopped_run_resumes_to_the_same_bits(number, at, uninterrupted, tmp_path):
    """Also after a signal in the last step."""
    handlers = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(hj.Stopped):
        train_noisy(tmp_path, loss_with_signal(number, at))
    assert [signal.getsignal(number) for number in SIGNALS] == handlers
    saved = checkpoints.steps(tmp_path / "own" / "checkpoints")[-1]
    assert at <= saved <= at + 3
    run = train_noisy(tmp_path, loss_with_signal())
    np.testing.assert_array_equal(run.encoder.params["w"], uninterrupted.encoder.params["w"])
    assert timeless(run.folder) == timeless(uninterrupted.folder)
    assert record_of(run.folder)["sessions"][-1]["from_step"] == saved


def test_other_options_need_force_and_are_recorded(short_run, tmp_path):
    """The remaining steps follow the new options."""
    folder = killed(short_run, 9, tmp_path)
    edit_config(folder, epochs=4, weight_decay=0.5)
    before = (folder / "config.json").read_bytes()
    with pytest.raises(C.UserError, match=r"epochs.*weight_decay.*force=True"):
        training.train(tiny_runs.short(tmp_path))
    assert (folder / "config.json").read_bytes() == before
    training.train(tiny_runs.short(tmp_path, **FORCE))
    assert_same_run(folder, short_run)  # whose first nine steps have the same rates
    forced = record_of(folder)["sessions"][-1]["forced"]
    assert [change.split(":")[0] for change in forced] == ["epochs", "weight_decay"]
    assert not run_dir.read_config(folder).force
    # Another pipeline or evaluation does not change the run.
    training.train(tiny_runs.short(tmp_path, pipeline="streaming", eval_images=200, **FORCE))
    assert "forced" not in record_of(folder)["sessions"][-1]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"dim": 4}, "head/output"),
        ({"optimizer": "adam"}, "opt_state"),
        ({"epochs": 1}, "epochs"),
        ({"resume": "never"}, "resume"),
    ],
)
def test_state_that_does_not_fit_is_refused_under_force(changes, match, short_copy, tmp_path):
    before = (short_copy / "config.json").read_bytes()
    with pytest.raises(C.UserError, match=match):
        training.train(tiny_runs.short(tmp_path, **(FORCE | changes)))
    assert (short_copy / "config.json").read_bytes() == before
    assert checkpoints.steps(short_copy / "checkpoints") == [0, 6, 9, 12]


def test_changed_images_need_force(short_copy, tmp_path):
    record = record_of(short_copy)
    record["data_digest"] = "another"
    (short_copy / "config.json").write_text(json.dumps(record))
    with pytest.raises(C.UserError, match="digits"):
        training.train(tiny_runs.short(tmp_path))
    with pytest.raises(C.UserError, match=f"{short_copy}"):
        run_dir.load_data(short_copy)
    training.train(tiny_runs.short(tmp_path, **FORCE))
    assert len(record_of(short_copy)["sessions"][-1]["forced"]) == 1
    run_dir.load_data(short_copy)


def test_folder_of_another_process_is_locked(tmp_path):
    with run_dir.lock(tmp_path / "short"), pytest.raises(C.UserError, match=f"{tmp_path}"):
        training.train(tiny_runs.short(tmp_path))
    assert not (tmp_path / "short" / "config.json").exists()


def parse(folder, *flags):
    named = ["--name", folder.name, "--runs-dir", str(folder.parent)]
    return tiny_runs.parse_pretrain(*flags, *named)


def test_name_alone_takes_the_options_of_the_run(short_run, queue_run):
    for folder in (short_run, queue_run):
        config = parse(folder)
        recorded = run_dir.read_config(folder)
        assert C.to_dict(config) == C.to_dict(recorded)
        opened = set_up(config).config
        assert run_dir.training_config(opened) == run_dir.training_config(recorded)
    assert parse(short_run, "--epochs", "7") == run_dir.read_config(short_run).replace(epochs=7)
    experiment = parse(short_run, "moco_cifar10/align_uniform")
    assert experiment.queue_size and experiment.name == "short"
