"""The training loop: what a run leaves, where it starts from, clear ends."""

import contextlib
import functools
import json
import shutil
import time
from types import SimpleNamespace
from unittest.mock import Mock

import jax
import numpy as np
import pytest
import tiny_runs
from run_states import assert_same_run, killed_after_checkpoint, state_of, timeless
from tensorboardX.proto.event_pb2 import Event

from hypersphere_jax import configs as C
from hypersphere_jax import data
from hypersphere_jax.data import arrays
from hypersphere_jax.data.source import Arrays
from hypersphere_jax.training import checkpoints, distributed, metrics, setup
from hypersphere_jax.training import recorder as recorder_module
from hypersphere_jax.training import train as training
from hypersphere_jax.training.metrics import read_metrics
from hypersphere_jax.training.recorder import Recorder, RunRecord
from hypersphere_jax.utils import terminal

SUPERVISED = C.ObjectiveConfig(align_weight=0, uniform_weight=0, supervised_weight=1)


def initial(folder, **changes):
    """The state at step 0 of a run `short`, which gets no folder."""
    return setup.initial_state(setup.set_up(tiny_runs.short(folder, **changes)))[1]


def test_folder_of_a_run(short_run, tmp_path):
    saved = json.loads((short_run / "config.json").read_text())
    filled = {"image_size": 8, "in_channels": 1, "num_classes": 0, "batch_norm": "sync"}
    assert saved["config"].items() >= filled.items() and saved["config"]["recipe"] == "digits"
    assert saved["sessions"][0]["device"] == {"kind": "cpu", "count": 2, "processes": 1}
    assert checkpoints.steps(short_run / "checkpoints") == [0, 6, 9, 12]
    # A finished run is not done again.
    folder = shutil.copytree(short_run, tmp_path / "short")
    assert training.train(tiny_runs.short(tmp_path)) == folder
    assert read_metrics(folder) == read_metrics(short_run)


def test_metrics_of_a_run(short_run):
    records = read_metrics(short_run)
    assert [record["step"] for record in records] == [2, 4, 6, 8, 10, 12]
    names = {"step", "epoch", "loss", "align", "uniform", "grad_norm", "lr"}
    assert records[-1].keys() == names | {"images_per_s", "data_wait"}
    for record in records:
        assert record["epoch"] == round(record["step"] / 6, 4)
        np.testing.assert_allclose(record["loss"], record["align"] + record["uniform"], rtol=1e-5)
        # The rate of this step, which comes after `step - 1` others; three decays in twelve steps.
        decays = sum(record["step"] - 1 >= round(12 * share) for share in (0.775, 0.85, 0.925))
        np.testing.assert_allclose(record["lr"], 0.12 * 220 / 256 * 0.1**decays, rtol=1e-5)
    assert records[-1]["loss"] < records[0]["loss"] - 0.1
    (file,) = short_run.glob("events.out.tfevents.*")  # TensorBoard's
    events = [e for e in tensorboard_events(file.read_bytes()) if e.summary.value]
    assert len(events) == len(records)
    shown = {(e.step, v.tag): v.simple_value for e in events for v in e.summary.value}
    logged = {(r["step"], name): r[name] for r in records for name in r.keys() - {"step"}}
    assert shown == pytest.approx(logged, rel=1e-6)  # float32


def tensorboard_events(content):
    """Each is its length, a checksum of that, the event, and a checksum of it."""
    while content:
        end = 12 + int.from_bytes(content[:8], "little")
        yield Event.FromString(content[12:end])
        content = content[end + 4 :]


def test_seed_gives_the_initial_weights_queue_order_and_augmentation(tmp_path):
    def drawn(seed):
        queue = setup.set_up(tiny_runs.queue(tmp_path, seed=seed))
        _, state, key = setup.initial_state(queue)
        kernel = np.asarray(state.params["conv1"]["layer"]["kernel"])
        keys = np.asarray(state.momentum.queue.keys)
        return kernel, keys, queue.sampler(0), jax.random.key_data(key)

    for one, same, other in zip(*map(drawn, (1, 1, 2)), strict=True):
        assert np.array_equal(one, same) and np.mean(one == other) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("devices", [4])
def test_several_steps_in_one_program(devices, tmp_path):
    """They give the numbers of single steps; a run that is killed and resumes is the same one."""

    def runtime(at_once, **changes):
        every = {"log_every_steps": 2, "checkpoint_every_steps": 3} | changes
        return C.RuntimeConfig(devices=devices, steps_per_call=at_once, **every)

    one, whole = (
        training.train(tiny_runs.short(tmp_path / name, runtime=runtime(at_once)))
        for name, at_once in (("one", 1), ("whole", 5))
    )
    close = functools.partial(np.testing.assert_allclose, atol=1e-4)
    jax.tree.map(close, state_of(whole), state_of(one))
    for record, expected in zip(timeless(whole), timeless(one), strict=True):
        assert record == pytest.approx(expected, rel=1e-4, abs=1e-3)
    assert [record["step"] for record in timeless(whole)] == [2, 4, 6, 8, 10, 12]
    with killed_after_checkpoint(9):
        training.train(tiny_runs.short(tmp_path / "killed", runtime=runtime(5)))
    # The program is the same one, however many steps of it are taken.
    longer = runtime(5, log_every_steps=10, checkpoint_every_steps=None)
    killed = training.train(tiny_runs.short(tmp_path / "killed", runtime=longer))
    jax.tree.map(np.testing.assert_array_equal, state_of(killed), state_of(whole))


def test_calls_end_where_something_is_written(tmp_path):
    runtime = C.RuntimeConfig(log_every_steps=10, checkpoint_every_steps=7, keep_every_steps=5)
    config = tiny_runs.short(tmp_path, runtime=runtime, eval_every_epochs=2)
    run = setup.set_up(config.replace(epochs=5, devices=2))  # 6 steps an epoch
    calls = list(run.calls(3, 4))
    assert [call.stop for call in calls] == [5, 7, 10, 12, 14, 15, 19, 20, 21, 24, 25, 28, 30]
    assert [call.start for call in run.calls(3)] == [*range(3, 30)]
    assert [step for step in range(1, 31) if run.is_evaluated(step)] == [12, 24, 30]
    assert [step for step in range(1, 31) if run.is_logged(step)] == [10, 12, 20, 24, 30]


def test_checkpoints_come_by_time(tmp_path, monkeypatch):
    now = 0.0
    monkeypatch.setattr(checkpoints, "time", SimpleNamespace(monotonic=lambda: now))
    runtime = C.RuntimeConfig(checkpoint_every_minutes=2)
    due = []
    with contextlib.closing(checkpoints.Checkpointer(tmp_path, runtime)) as checkpointer:
        for step in range(1, 7):
            now += 50.0
            due.append(checkpointer.is_due(step))
            if due[-1]:
                checkpointer.save(step, checkpoints.STEP)
    assert due == [False, False, True] * 2


def test_the_first_step_waits_for_no_checkpoint(short_run, tmp_path, monkeypatch):
    """Nor does the log count the time of saving the state that a run begins with."""
    save, shown = checkpoints.Checkpointer.save, []
    update = terminal.Progress.update
    now = 0.0
    told = lambda: now  # noqa: E731

    def slowly(checkpointer, step, tree):
        nonlocal now
        if step == 0:
            assert shown == [1]
            now += 1000
        save(checkpointer, step, tree)

    def shows(bar, step, *text, **options):
        nonlocal now
        now += 1
        shown.append(step)
        update(bar, step, *text, **options)

    monkeypatch.setattr(metrics, "time", SimpleNamespace(**vars(time) | {"perf_counter": told}))
    monkeypatch.setattr(checkpoints.Checkpointer, "save", slowly)
    monkeypatch.setattr(terminal.Progress, "update", shows)
    folder = training.train(tiny_runs.short(tmp_path))
    first = state_of(folder, 0)
    jax.tree.map(np.testing.assert_array_equal, first, state_of(short_run, 0))
    jax.tree.map(np.testing.assert_array_equal, first["params"], initial(tmp_path).params)
    assert read_metrics(folder)[0]["images_per_s"] > 1
    # Killed before, a run begins anew.
    assert_same_run(folder, short_run)
    shutil.rmtree(folder / "checkpoints")
    (folder / "metrics.jsonl").unlink()
    shown.clear()
    assert_same_run(training.train(tiny_runs.short(tmp_path)), short_run)


def test_a_run_starts_from_another_run(short_run, tmp_path):
    start = functools.partial(initial, tmp_path, init_from=str(short_run))
    for asked, step in ((None, 12), (6, 6)):
        found, saved = start(init_step=asked), state_of(short_run, step)
        for part in ("params", "stats"):
            jax.tree.map(np.testing.assert_array_equal, getattr(found, part), saved[part])
        assert not any(map(np.any, jax.tree.leaves((found.step, found.opt_state))))
    # For another loss: the classifier, which the source has not, starts fresh.
    params = start(objective=SUPERVISED, seed=3).params
    assert params["head"].pop("classifier")["kernel"].shape == (3, 10)
    jax.tree.map(np.testing.assert_array_equal, params, state_of(short_run)["params"])
    with pytest.raises(C.UserError, match=r"does not fit.*head/output"):
        start(dim=5, width=0.1)
    # Once there are checkpoints the source is not needed.
    shutil.copytree(short_run / "checkpoints", tmp_path / "short" / "checkpoints")
    initial(tmp_path, init_from="gone")


def test_no_number_that_is_not_finite_goes_unnoticed(tmp_path):
    short = setup.set_up(tiny_runs.short(tmp_path))
    record = RunRecord(short, "")
    for loss, gradient in ((np.nan, 1.0), (1.0, np.inf), (-np.inf, 1.0)):
        with pytest.raises(C.Diverged, match="at step 3"):
            record.check(3, {"loss": np.float32(loss), "grad_norm": np.float32(gradient)})
    state = initial(tmp_path)
    for part in ("params", "stats", "opt_state"):
        leaves, structure = jax.tree.flatten(getattr(state, part))
        place = max(i for i, leaf in enumerate(leaves) if leaf.dtype == np.float32)
        leaves[place] = np.array(leaves[place])
        leaves[place].flat[-1] = np.nan
        wrong = state._replace(**{part: jax.tree.unflatten(structure, leaves)})
        with pytest.raises(C.Diverged, match="at step 3"):
            Recorder([record]).save(3, distributed.replicate(wrong, short.devices))
    assert not (tmp_path / "short").exists()


def test_the_metrics_of_all_completed_steps_are_read(tmp_path):
    short = setup.set_up(tiny_runs.short(tmp_path))  # logs every second step
    recorder = Recorder([RunRecord(short, "")])
    for call, losses in ((range(1), [0.5]), (range(1, 3), [0.5, np.nan]), (range(3, 4), [0.5])):
        logged = {"loss": np.float32(losses), "grad_norm": np.ones(len(losses), np.float32)}
        recorder.add(call, distributed.replicate(logged, short.devices))
    recorder.complete(ahead=1)
    with pytest.raises(C.Diverged, match="at step 3;"):
        recorder.complete()


def test_finite_is_asked_of_each_run():
    weights, counts = np.ones((3, 2, 2), np.float32), np.arange(3)
    weights[1, 0, 1] = np.inf
    state = distributed.replicate(
        {"weights": weights, "counts": counts}, distributed.local_devices(2)
    )
    assert distributed.unreplicate(distributed.finite(state, 1)).tolist() == [True, False, True]
    assert not distributed.unreplicate(distributed.finite(state))


def test_mistakes_leave_no_folder(short_run, tmp_path):
    local, one = C.ModelConfig(batch_norm="split", bn_groups=1), C.RuntimeConfig(devices=1)
    alone = C.ModelConfig(batch_norm="local")  # keys that nobody shuffles
    for changes, message in (
        ({"batch_size": 221}, r"not divide over 2 devices.*as 220"),
        ({"model": local}, r"bn_groups=1: .* 2 device"),
        ({"queue_size": 130, "model": alone, "runtime": one}, "give the positives away"),
        ({"init_from": str(short_run.parent / "shrot")}, "did you mean"),
        ({"init_from": str(short_run), "init_step": 7}, "no checkpoint of step 7 .* 0, 6, 9, 12"),
    ):
        with pytest.raises(C.UserError, match=message):
            training.train(tiny_runs.short(tmp_path, **changes))
    assert not list(tmp_path.iterdir())


def test_only_labelled_images_train_a_classifier(tmp_path, monkeypatch):
    train, test = arrays.digits()
    labels = np.where(np.arange(1400) < 1000, np.asarray(train.labels), -1)
    some = Arrays(train.images, labels, train.class_names, train.origin)
    monkeypatch.setattr(arrays, "digits", lambda: (some, test))
    task = setup.set_up(tiny_runs.short(tmp_path, objective=SUPERVISED))
    assert np.array_equal(task.dataset.pretrain.labels, labels[:1000])
    assert task.config.num_classes == 10
    # The data are the same ones nonetheless, of which evaluation has the digest.
    assert task.digest == data.load(C.DataConfig()).digest()


def test_at_most_two_steps_are_in_flight(tmp_path, monkeypatch):
    completed, ahead = [], []

    def update(step, *_, **options):
        completed.extend([step] if options else [])  # not the line of the last step's metrics

    monkeypatch.setattr(recorder_module, "Progress", lambda *_: Mock(update=update))
    runtime = C.RuntimeConfig(devices=2, log_every_steps=100)
    short = setup.set_up(tiny_runs.short(tmp_path, runtime=runtime))
    logged = dict.fromkeys(("loss", "grad_norm", "lr"), np.ones(1, np.float32))
    logged = distributed.replicate(logged, short.devices)

    def step(state, batch):
        ahead.append(batch - len(completed))
        return state, logged

    with recorder_module.open_run(short, "") as run:
        state = distributed.replicate(run.restore(initial(tmp_path)), short.devices)
        calls = [range(i, i + 1) for i in range(12)]
        batches = ((i,) for i in range(12))
        training.take_steps(Recorder([run]), step, state, (), calls, batches)
    assert completed == [*range(1, 13)]
    assert ahead == [0, 0, 1] + [2] * 9


def test_rate_of_images_and_share_of_waiting(monkeypatch):
    now = 100.0
    told = lambda: now  # noqa: E731
    monkeypatch.setattr(metrics, "time", SimpleNamespace(perf_counter=told))
    meter = metrics.Meter(20)
    # The first one compiles, and does not count.
    for waited, computed in ((50, 1000), (1, 4), (1, 4), (1, 4)):
        with meter:
            now += waited
        now += computed
        meter.add_steps(1)
    assert meter.read() == {"images_per_s": 3 * 20 / 15, "data_wait": 0.2}
    now += 7
    assert meter.read() == {"images_per_s": 4.0, "data_wait": 0.2}  # no step was begun since
    meter.reset()  # after an evaluation, say
    assert meter.read() == {}
    now += 2
    meter.add_steps(1)
    assert meter.read() == {"images_per_s": 10.0, "data_wait": 0.0}
