"""The training loop: what a run leaves in its folder, where it starts from, and clear ends."""

import dataclasses
import json
import os
import shutil
import signal
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import tiny_runs
from run_states import events_of, state_of

from hypersphere_jax import checkpoint, data, runs, session, sharding, training
from hypersphere_jax.config import (
    DataConfig,
    Diverged,
    ModelConfig,
    ObjectiveConfig,
    OptimizerConfig,
    Stopped,
    UserError,
)
from hypersphere_jax.data import arrays
from hypersphere_jax.data.source import Arrays
from hypersphere_jax.signals import StopSignals

SUPERVISED = ObjectiveConfig(align_weight=0, uniform_weight=0, supervised_weight=1)


def begun(config):
    """A run of this config as it starts, without a folder."""
    task = training._task(config)
    run = session.Run(task.config, task.dataset)
    run.start = run.saved = 0
    return run


def leaves(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def test_folder_of_a_run(short_run):
    saved = json.loads((short_run / "config.json").read_text())
    model = saved["config"]["model"]
    assert (model["image_size"], model["channels"], model["num_classes"]) == (8, 1, 0)
    assert model["batch_norm"] == "sync" and saved["config"]["data"]["recipe"] == "digits"
    assert saved["sessions"][0]["device"] == {"kind": "cpu", "count": 2, "hosts": 1}
    assert "jax" in saved["sessions"][0]["versions"]
    assert runs.read_config(short_run).optimizer.batch_size == 220
    assert checkpoint.steps(short_run / "checkpoints") == [0, 6, 9, 12]
    assert state_of(short_run)["step"] == 12


def test_metrics_of_a_run(short_run):
    records = runs.read_metrics(short_run)
    assert [record["step"] for record in records] == [2, 4, 6, 8, 10, 12]
    assert records[-1].keys() == {
        *("step", "epoch", "loss", "align", "uniform", "grad_norm", "lr"),
        *("images_per_s", "data_wait"),
    }
    for record in records:
        assert record["epoch"] == round(record["step"] / 6, 4)
        np.testing.assert_allclose(record["loss"], record["align"] + record["uniform"], rtol=1e-5)
        # The rate of this step, which comes after `step - 1` others; three decays in twelve steps.
        decays = sum(record["step"] - 1 >= round(12 * share) for share in (0.775, 0.85, 0.925))
        np.testing.assert_allclose(record["lr"], 0.12 * 220 / 256 * 0.1**decays, rtol=1e-5)
    assert records[-1]["loss"] < records[0]["loss"] - 0.1
    shown = {(e.step, v.tag): v.simple_value for e in events_of(short_run) for v in e.summary.value}
    assert shown == {
        (record["step"], name): np.float32(value)
        for record in records
        for name, value in record.items()
        if name != "step"
    }


def test_finished_run_is_not_done_again(short_run, tmp_path):
    folder = shutil.copytree(short_run, tmp_path / "short")
    assert training.train(tiny_runs.short(tmp_path)) == folder
    for kept in ("metrics.jsonl", "checkpoints/12/state/manifest.ocdbt"):
        assert (folder / kept).read_bytes() == (short_run / kept).read_bytes()


def test_seed_gives_the_initial_weights_the_order_and_the_augmentation(tmp_path):
    one, same, other = (begun(tiny_runs.short(tmp_path, seed=seed)) for seed in (1, 1, 2))
    assert np.array_equal(leaves(one.state.params), leaves(same.state.params))
    kernels = [run.state.params["conv1"]["layer"]["kernel"] for run in (one, other)]
    assert not np.isclose(*kernels).any()
    assert np.mean(one.sampler(0) == other.sampler(0)) < 0.1
    assert jax.random.key_data(one.key).tolist() == jax.random.key_data(same.key).tolist()
    assert jax.random.key_data(one.key).tolist() != jax.random.key_data(other.key).tolist()


def test_a_run_starts_from_another_run(short_run, tmp_path):
    def start(**changes):
        return begun(tiny_runs.short(tmp_path, init_from=str(short_run), **changes)).state

    for asked, step in ((None, 12), (6, 6)):
        found, saved = start(init_step=asked), state_of(short_run, step)
        for part in ("params", "stats"):
            jax.tree.map(np.testing.assert_array_equal, getattr(found, part), saved[part])
        assert found.step == 0 and not leaves(found.opt_state).any()
    # For another loss: the classifier, which the source has not, starts fresh.
    params = start(objective=SUPERVISED, seed=3).params
    assert params["head"].pop("classifier")["kernel"].shape == (3, 10)
    jax.tree.map(np.testing.assert_array_equal, params, state_of(short_run)["params"])
    # Once there are checkpoints the source is not needed.
    shutil.copytree(short_run / "checkpoints", tmp_path / "short" / "checkpoints")
    begun(tiny_runs.short(tmp_path, init_from="gone"))


def test_what_a_run_cannot_start_from(short_run, tmp_path):
    other = ModelConfig(dim=5, width=0.1)
    for source, changes, message in (
        (short_run, {"model": other}, r"does not fit.*head/output"),
        (short_run.parent / "shrot", {}, "did you mean"),
        (short_run, {"init_step": 7}, r"no checkpoint of step 7 .* 0, 6, 9, 12"),
    ):
        with pytest.raises(UserError, match=message):
            training.train(tiny_runs.short(tmp_path, init_from=str(source), **changes))
    assert not list(tmp_path.iterdir())


def test_divergence_keeps_the_last_good_checkpoint(short_run, tmp_path):
    """From weights whose squares are more than float32 holds."""
    state = jax.tree.map(np.array, state_of(short_run))
    state["params"] = jax.tree.map(lambda x: 1e30 * x, state["params"])
    checkpoints = checkpoint.Checkpoints(
        shutil.copytree(short_run, tmp_path / "far") / "checkpoints"
    )
    checkpoints.save(13, state)
    checkpoints.close()
    config = tiny_runs.short(tmp_path, init_from=str(tmp_path / "far"))
    with pytest.raises(Diverged, match=r"diverged: .* at step 1; the checkpoint of step 0 is kept"):
        training.train(config)
    assert checkpoint.steps(tmp_path / "short" / "checkpoints") == [0]


def test_no_number_that_is_not_finite_goes_unnoticed(tmp_path):
    run = begun(tiny_runs.short(tmp_path))
    for loss, gradient in ((np.nan, 1.0), (1.0, np.inf), (-np.inf, 1.0)):
        with pytest.raises(session.NotFinite, match="at step 3"):
            run.check(3, {"loss": np.float32(loss), "grad_norm": np.float32(gradient)})
    for part in ("params", "stats", "opt_state"):
        tree = run.state._asdict()
        first, *rest = jax.tree.leaves(tree[part])
        tree[part] = [np.full_like(first, np.nan), *rest]
        with pytest.raises(session.NotFinite, match="at step 3"):
            run.save(3, tree)
    assert run.saved == 0
    # All steps since the last look are looked at, not the newest alone.
    group = session.Group([run])
    for step, loss in ((1, 0.5), (2, np.nan), (3, 0.5)):
        metrics = {"loss": np.float32(loss), "grad_norm": np.float32(1)}
        group.stepped(step, sharding.replicate(metrics, sharding.local_devices(2)))
    group.check()
    assert "at step 2;" in run.diverged.found and group.going() == []


def test_time_of_an_evaluation_is_not_that_of_steps(tmp_path):
    run, reads = begun(tiny_runs.short(tmp_path)), []
    group, devices = session.Group([run]), sharding.local_devices(2)
    state = sharding.replicate(run.state, devices)
    metrics = {"loss": np.float32(1), "grad_norm": np.float32(1)}
    group.meter = SimpleNamespace(step_done=lambda: None, read=lambda: reads.append(step) or {})
    for step, evaluate in ((1, None), (2, lambda *_: reads.append("evaluated") or {})):
        group.stepped(step, sharding.replicate(metrics, devices))
        group.log(step, state, evaluate)
    assert reads == [1, 2, "evaluated", 2]


def test_mistakes_leave_no_folder(tmp_path):
    runtime = tiny_runs.short(tmp_path).runtime

    def split(groups, devices):
        model = ModelConfig(batch_norm="split", bn_groups=groups)
        return {"model": model, "runtime": dataclasses.replace(runtime, devices=devices)}

    for changes, message in (
        ({"optimizer": OptimizerConfig(batch_size=221)}, "not divide over 2 devices.*as 220"),
        ({"optimizer": OptimizerConfig(batch_size=1402)}, "1402 is more than the 1400 training"),
        ({"runtime": dataclasses.replace(runtime, devices=99)}, "--devices 99: this host has 8"),
        ({"data": DataConfig(recipe="digit")}, r"recipe.*digits"),
        (split(3, 2), r"--bn-groups 3: .* 2 device.* divide --batch-size 220"),
        (split(1, 2), r"--bn-groups 1: .* 2 device"),
        (split(6, 1), r"--bn-groups 6: .* 1 device"),
    ):
        with pytest.raises(UserError, match=message):
            training.train(tiny_runs.short(tmp_path, **changes))
    assert not list(tmp_path.iterdir())


def test_a_file_is_named_by_its_whole_path(tmp_path, rng, monkeypatch):
    images, labels = rng.integers(0, 256, (12, 32, 32, 3), dtype=np.uint8), np.arange(12) % 3
    parts = {"train_images": images, "train_labels": labels}
    np.savez(tmp_path / "data.npz", **parts, test_images=images[:6], test_labels=labels[:6])
    monkeypatch.chdir(tmp_path)
    rule = OptimizerConfig(batch_size=6)
    config = tiny_runs.short("runs", data=DataConfig(name="data.npz"), optimizer=rule)
    found = training._task(config).config
    assert found.data == DataConfig(name=str(tmp_path / "data.npz"), recipe="stl10")
    assert (found.model.image_size, found.model.channels) == (32, 3)


def test_only_labelled_images_train_a_classifier(tmp_path, monkeypatch):
    train, test = arrays.digits()
    labels = np.where(np.arange(1400) < 1000, np.asarray(train.labels), -1)
    some = Arrays(train.images, labels, train.class_names, train.origin)
    monkeypatch.setattr(arrays, "digits", lambda: (some, test))
    task = training._task(tiny_runs.short(tmp_path, objective=SUPERVISED))
    assert np.array_equal(task.dataset.pretrain.labels, labels[:1000])
    assert task.config.model.num_classes == 10
    # The data are the same ones nonetheless, of which evaluation has the digest.
    plain = training._task(tiny_runs.short(tmp_path))
    assert len(plain.dataset.pretrain) == 1400
    assert task.digest == plain.digest == data.load(DataConfig()).digest()


def test_stopped_before_the_first_step_and_after_the_last(short_run, tmp_path, monkeypatch):
    def decoding(items, _):
        os.kill(os.getpid(), signal.SIGTERM)
        return iter(items)

    monkeypatch.setattr(training, "track", decoding)
    few = tiny_runs.short(tmp_path, "few", data=DataConfig(fraction=0.9))
    with pytest.raises(Stopped, match=r"while decoding the images, .*; to go on: CMD$"):
        training.train(few, command="CMD")

    save = session.Run.save

    def save_and_stop(self, step, tree):
        save(self, step, tree)
        if step == 12:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(session.Run, "save", save_and_stop)
    with pytest.raises(Stopped, match="after the last step"):
        training.train(tiny_runs.short(tmp_path))
    assert checkpoint.steps(tmp_path / "short" / "checkpoints") == [0, 6, 9, 12]


def test_signals_ask_once_and_are_given_back():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    for first, second in ((signal.SIGTERM, signal.SIGINT), (signal.SIGINT, signal.SIGINT)):
        with StopSignals() as stop:
            assert not stop.asked
            os.kill(os.getpid(), first)
            assert stop.asked
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), second)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
