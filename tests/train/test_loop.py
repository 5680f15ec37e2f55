"""The training loop: what a run leaves and shows, where it starts from, and clear ends."""

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

from hypersphere_jax import checkpoint, data, progress, runs, session, sharding, training
from hypersphere_jax import config as C
from hypersphere_jax.data import arrays
from hypersphere_jax.data.source import Arrays
from hypersphere_jax.signals import StopSignals

SUPERVISED = C.ObjectiveConfig(align_weight=0, uniform_weight=0, supervised_weight=1)


def begun(config):
    """A run of this config as it starts, without a folder."""
    task = training._task(config)
    run = session.Run(task.config, task.dataset)
    run.start = run.saved = 0
    return run


def leaves(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def test_folder_of_a_run(short_run, tmp_path):
    saved = json.loads((short_run / "config.json").read_text())
    model = saved["config"]["model"]
    assert (model["image_size"], model["channels"], model["num_classes"]) == (8, 1, 0)
    assert model["batch_norm"] == "sync" and saved["config"]["data"]["recipe"] == "digits"
    assert saved["sessions"][0]["device"] == {"kind": "cpu", "count": 2, "hosts": 1}
    assert checkpoint.steps(short_run / "checkpoints") == [0, 6, 9, 12]
    # A finished run is not done again.
    folder = shutil.copytree(short_run, tmp_path / "short")
    assert training.train(tiny_runs.short(tmp_path)) == folder
    assert runs.read_metrics(folder) == runs.read_metrics(short_run)


def test_metrics_of_a_run(short_run):
    records = runs.read_metrics(short_run)
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
    shown = {(e.step, v.tag): v.simple_value for e in events_of(short_run) for v in e.summary.value}
    numbers = {(r["step"], name): np.float32(x) for r in records for name, x in r.items()}
    assert shown == {key: x for key, x in numbers.items() if key[1] != "step"}


def test_seed_gives_the_initial_weights_the_order_and_the_augmentation(tmp_path):
    one, same, other = (begun(tiny_runs.short(tmp_path, seed=seed)) for seed in (1, 1, 2))
    for part in (
        lambda run: leaves(run.state.params["conv1"]["layer"]["kernel"]),
        lambda run: run.sampler(0),
        lambda run: jax.random.key_data(run.key),
    ):
        assert np.array_equal(part(one), part(same))
        assert np.mean(part(one) == part(other)) < 0.1


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
    with pytest.raises(C.UserError, match=r"does not fit.*head/output"):
        start(model=C.ModelConfig(dim=5, width=0.1))
    # Once there are checkpoints the source is not needed.
    shutil.copytree(short_run / "checkpoints", tmp_path / "short" / "checkpoints")
    begun(tiny_runs.short(tmp_path, init_from="gone"))


def test_divergence_keeps_the_last_good_checkpoint(short_run, tmp_path, monkeypatch):
    """From weights whose squares are more than float32 holds."""
    read = checkpoint.restore

    def far(*given):
        step, state = read(*given)
        return step, state | {"params": jax.tree.map(lambda x: 1e30 * x, state["params"])}

    monkeypatch.setattr(checkpoint, "restore", far)
    with pytest.raises(C.Diverged, match=r"diverged: .* at step 1; the checkpoint of step 0 is ke"):
        training.train(tiny_runs.short(tmp_path, init_from=str(short_run)))
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


def test_mistakes_leave_no_folder(short_run, tmp_path):
    local = C.ModelConfig(batch_norm="split", bn_groups=1)
    for changes, message in (
        ({"optimizer": C.OptimizerConfig(batch_size=221)}, r"not divide over 2 devices.*as 220"),
        ({"model": local}, r"--bn-groups 1: .* 2 device"),
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
    task = training._task(tiny_runs.short(tmp_path, objective=SUPERVISED))
    assert np.array_equal(task.dataset.pretrain.labels, labels[:1000])
    assert task.config.model.num_classes == 10
    # The data are the same ones nonetheless, of which evaluation has the digest.
    assert task.digest == data.load(C.DataConfig()).digest()


def test_signals_ask_once_and_are_given_back():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    for first in (signal.SIGTERM, signal.SIGINT):
        with StopSignals() as stop, pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), first)
            assert stop.asked
            os.kill(os.getpid(), signal.SIGINT)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_rate_and_lines_where_there_is_no_terminal(monkeypatch, capsys):
    now = 100.0
    told = lambda: now  # noqa: E731
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=told, perf_counter=told))
    meter = progress.Meter(20)
    # The first one compiles, and does not count.
    for waited, computed in ((50, 1000), (1, 4), (1, 4), (1, 4)):
        with meter:
            now += waited
        now += computed
        meter.step_done()
    assert meter.read() == {"images_per_s": 3 * 20 / 15, "data_wait": 0.2}
    now += 7
    assert meter.read() == {}  # an evaluation, say
    now += 2
    meter.step_done()
    assert meter.read() == {"images_per_s": 10.0, "data_wait": 0.0}

    shown = progress.Progress("run", 10, 100)
    for step, seconds in ((20, 1), (30, 4), (40, 7), (50, 1), (100, 1)):
        now += seconds
        values = {"step": step, "loss": 0.5} | ({"eval/knn_top1": 91.5} if step == 50 else {})
        shown.update(values | {"images_per_s": 2000.0, "data_wait": 0.25})
    shown.close()
    lines = capsys.readouterr().err.splitlines()
    # At once, when ten seconds have passed, with an evaluation, and at the end.
    steps = [f"run: step {step} of 100" for step in (20, 40, 50, 100)]
    expected = ["run: continuing at step 10 of 100", *steps]
    assert [line.split(",")[0] for line in lines] == expected
    assert "loss 0.500, 2,000 images/s, data wait 25%" in lines[1]
    # 11 seconds for the 20 steps since the first line, and 60 steps to go.
    assert lines[2].endswith(", 33 s left") and "eval/knn_top1 91.5" in lines[3]
