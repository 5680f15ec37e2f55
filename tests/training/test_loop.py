"""The training loop: the folder of a run, its start, its log, and how it ends."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import own_parts
import pytest
import tiny_runs
from run_states import killed, state_of, timeless
from tensorboardX.proto.event_pb2 import Event

import hypersphere_jax as hj
from hypersphere_jax import configs as C
from hypersphere_jax import data
from hypersphere_jax.training import checkpoints, setup
from hypersphere_jax.training import train as training
from hypersphere_jax.training.metrics import read_metrics
from hypersphere_jax.training.resolve import check_devices, resolve


def initial_state(folder, **changes):
    """Return the state at step 0 of the run `short`, without its folder."""
    return setup.initial_state(setup.set_up(tiny_runs.short(folder, **changes)))[1]


def test_folder_records_config_device_and_checkpoints(short_run, tmp_path):
    record = json.loads((short_run / "config.json").read_text())
    filled = {"image_size": 8, "in_channels": 1, "num_classes": 0, "batch_norm": "sync"}
    assert record["config"].items() >= filled.items() and record["config"]["recipe"] == "digits"
    device = record["sessions"][0]["device"]
    assert (device["count"], device["processes"]) == (tiny_runs.two(), 1)
    assert checkpoints.steps(short_run / "checkpoints") == [0, 6, 9, 12]
    initial = initial_state(tmp_path)
    saved = state_of(short_run, 0)
    jax.tree.map(np.testing.assert_array_equal, saved["params"], initial.params)


def tensorboard_events(content):
    """Yield events: the length, its checksum, the event, and the event's checksum."""
    while content:
        end = 12 + int.from_bytes(content[:8], "little")
        yield Event.FromString(content[12:end])
        content = content[end + 4 :]


def test_metrics_of_a_run(short_run):
    records = read_metrics(short_run)
    assert [record["step"] for record in records] == [2, 4, 6, 8, 10, 12]
    names = {"step", "epoch", "loss", "align", "uniform", "grad_norm", "lr"}
    assert records[-1].keys() == names | {"images_per_s", "data_wait"}
    for record in records:
        assert record["epoch"] == round(record["step"] / 6, 4)
        np.testing.assert_allclose(record["loss"], record["align"] + record["uniform"], rtol=1e-5)
        # The rate of step n is the schedule after n - 1 steps.
        decays = sum(record["step"] - 1 >= round(12 * share) for share in (0.775, 0.85, 0.925))
        np.testing.assert_allclose(record["lr"], 0.12 * 220 / 256 * 0.1**decays, rtol=1e-5)
    assert records[-1]["loss"] < records[0]["loss"] - 0.1
    (file,) = short_run.glob("events.out.tfevents.*")
    events = [event for event in tensorboard_events(file.read_bytes()) if event.summary.value]
    shown = {(e.step, v.tag): v.simple_value for e in events for v in e.summary.value}
    logged = {(r["step"], name): r[name] for r in records for name in r.keys() - {"step"}}
    assert shown == pytest.approx(logged, rel=1e-6)


def test_seed_determines_weights_queue_order_and_augmentation(tmp_path):
    def drawn(seed):
        queue = setup.set_up(tiny_runs.queue(tmp_path, seed=seed))
        _, state, key = setup.initial_state(queue)
        kernel = np.asarray(state.params["conv1"]["layer"]["kernel"])
        keys = np.asarray(state.momentum.queue.keys)
        return kernel, keys, queue.sampler(0), jax.random.key_data(key)

    for one, same, other in zip(*map(drawn, (1, 1, 2)), strict=True):
        assert np.array_equal(one, same) and np.mean(one == other) < 0.1


@pytest.mark.slow
def test_several_steps_per_call_equal_single_steps_and_resume(short_run, tmp_path):
    whole = training.train(tiny_runs.short(tmp_path / "whole", steps_per_call=5))
    close = functools.partial(np.testing.assert_allclose, atol=1e-4)
    jax.tree.map(close, state_of(whole), state_of(short_run))
    for record, expected in zip(timeless(whole), timeless(short_run), strict=True):
        assert record == pytest.approx(expected, rel=1e-4, abs=1e-3)
    # The program serves any number of steps up to 5.
    killed(whole, 9, tmp_path / "killed")
    options = {"steps_per_call": 5, "log_every_steps": 10, "checkpoint_every_steps": None}
    again = training.train(tiny_runs.short(tmp_path / "killed", **options))
    jax.tree.map(np.testing.assert_array_equal, state_of(again), state_of(whole))


def test_run_starts_from_another_run(short_run, tmp_path):
    start = functools.partial(initial_state, tmp_path, init_from=str(short_run))
    for init_step, step in ((None, 12), (6, 6)):
        state = start(init_step=init_step)
        saved = state_of(short_run, step)
        for part in ("params", "stats"):
            jax.tree.map(np.testing.assert_array_equal, getattr(state, part), saved[part])
        assert not any(map(np.any, jax.tree.leaves((state.step, state.opt_state))))
    # A classifier, which the source lacks, is new.
    params = start(supervised_weight=1, seed=3).params
    assert params["head"].pop("classifier")["kernel"].shape == (3, 10)
    jax.tree.map(np.testing.assert_array_equal, params, state_of(short_run)["params"])
    with pytest.raises(C.UserError, match="head/output"):
        start(dim=5)
    # A run with checkpoints does not need the source.
    killed(short_run, 12, tmp_path)
    initial_state(tmp_path, init_from="gone")


def infinite_loss(x, y):
    return own_parts.spread(x, y) + jnp.inf


def infinite_gradient(x, y):
    return own_parts.spread(x, y) + 0 * jnp.sqrt(jnp.sum((x - y) ** 2))


def infinite_parameters(x, y):
    """A loss whose gradient is finite, while the gradient times the rate is not."""
    return 1e15 * own_parts.spread(x, y)


@pytest.mark.parametrize(
    ("loss", "options"),
    [
        (infinite_loss, {}),
        (infinite_gradient, {}),
        (infinite_parameters, {"learning_rate": 1e30}),
    ],
)
def test_numbers_that_are_not_finite_end_the_run_and_are_not_saved(loss, options, tmp_path):
    config = own_parts.config(tmp_path, epochs=1, **options)
    parts = {"images": own_parts.IMAGES, "network": own_parts.NETWORK, "augment": own_parts.half}
    with pytest.raises(C.Diverged, match=f"{tmp_path}"):
        hj.train(config, loss=loss, **parts)
    assert checkpoints.steps(tmp_path / "own" / "checkpoints") == [0]
    records = read_metrics(tmp_path / "own")
    assert all(np.isfinite(record["loss"]) for record in records)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"batch_size": 221}, "batch_size=221"),
        ({"microbatch_size": 55}, "microbatch_size=55"),
        ({"batch_norm": "split", "bn_groups": 1}, "bn_groups=1"),
        ({"queue_size": 130, "batch_norm": "local", "devices": 1}, "batch_norm=split"),
        ({"model": "vit_tiny", "patch_size": 4, "batch_norm": "split"}, "batch_norm"),
        ({"init_from": "shrot"}, "shrot"),
        ({"init_from": "short", "init_step": 7}, "step 7"),
    ],
)
@tiny_runs.needs_devices(2)
def test_mistakes_leave_no_folder(changes, match, short_run, tmp_path):
    if "init_from" in changes:
        changes = changes | {"init_from": str(short_run.parent / changes["init_from"])}
    with pytest.raises(C.UserError, match=match):
        training.train(tiny_runs.short(tmp_path, **changes))
    assert not list(tmp_path.iterdir())


def test_networks_without_batch_norm_need_no_groups(caplog):
    """The batch of 100 pairs does not divide into the default of eight groups."""
    options = {"model": "vit_tiny", "patch_size": 4, "queue_size": 200, "batch_size": 100}
    dataset = data.load(C.PretrainConfig())
    config = resolve(C.PretrainConfig(**options), dataset)
    check_devices(config, dataset.pretrain, jax.devices()[:1])
    assert resolve(config, dataset) == config
    assert not caplog.messages
