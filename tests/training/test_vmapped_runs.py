"""Encoders trained in one program equal encoders trained separately."""

import math
import shutil

import jax
import numpy as np
import pytest
import tiny_runs
from run_states import assert_same_run, killed, state_of, timeless

from hypersphere_jax import configs as C
from hypersphere_jax.training import checkpoints, vmapped
from hypersphere_jax.training import train as training

pytestmark = pytest.mark.slow

# Two runs that differ in every scalar.
SCALARS = {
    "a": vars(C.ObjectiveConfig(0.5, 0.3, 1.5, 1.0, 0.7, 2.5))
    | {"learning_rate": 0.1, "weight_decay": 1e-3, "momentum": 0.9},
    "b": vars(C.ObjectiveConfig(1.5, 0.8, 0.4, 2.5, 1.6, 1.2))
    | {"learning_rate": 0.03, "weight_decay": 0.2, "momentum": 0.4},
}


def config(folder, name, scalars="a", **changes):
    """Return the config of 6 steps, with a checkpoint of step 4."""
    options = {"epochs": 1, "warmup_epochs": 0.4, "devices": 1, "seed": ord(scalars)}
    options |= {"log_every_steps": 2, "checkpoint_every_steps": 4}
    options |= {"eval_every_epochs": 1, "evaluators": ("align_uniform",), "eval_images": 50}
    return tiny_runs.short(folder, name, **(SCALARS[scalars] | options | changes))


def both(folder):
    return [config(folder, name, name) for name in ("a", "b")]


@pytest.fixture(scope="module")
def alone(once):
    return once("alone", lambda folder: [training.train(one) for one in both(folder)])


@pytest.fixture(scope="module")
def pair(once):
    return once("pair", lambda folder: vmapped.train_vmapped(both(folder)))


def assert_close_run(folder, other):
    """Compare two runs to float32 rounding, relative to the scale of each array."""
    leaves = [jax.tree.leaves(state_of(run)) for run in (folder, other)]
    for x, y in zip(*leaves, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=3e-5 * max(np.abs(y).max(), 1e-2))
    for record, expected in zip(timeless(folder), timeless(other), strict=True):
        assert record == pytest.approx(expected, rel=3e-5, abs=3e-5)


@pytest.mark.parametrize("name", ["a", "b"])
def test_vmapped_run_equals_single_run(name, pair, alone):
    assert_close_run(pair / name, alone / name)
    assert checkpoints.steps(pair / name / "checkpoints") == [0, 4, 6]
    records = timeless(pair / name)
    assert [(r["step"], "eval/align" in r) for r in records] == [(2, 0), (4, 0), (6, 1)]
    rates = np.multiply(SCALARS[name]["learning_rate"] * 220 / 256, [0.5, 1, 0.01])
    np.testing.assert_allclose([record["lr"] for record in records], rates, rtol=1e-5)


@pytest.mark.slow
def test_vmapped_runs_learn_their_own_temperatures(tmp_path):
    def runs(folder):
        return [config(tmp_path / folder, name, name, learn_tau=True) for name in ("a", "b")]

    folders = vmapped.train_vmapped(runs("pair"))
    for folder, single in zip(folders, runs("alone"), strict=True):
        assert_close_run(folder, training.train(single))
        records = timeless(folder)
        assert records[-1]["tau"] != pytest.approx(single.contrastive_tau, rel=1e-3)


def test_compared_runs_differ_in_every_number(alone):
    a, b = (timeless(alone / name)[-1] for name in ("a", "b"))
    for key in ("loss", "align", "uniform", "contrastive", "lr", "eval/align", "eval/uniform"):
        assert not math.isclose(a[key], b[key], rel_tol=1e-2), key


def test_diverged_run_leaves_the_others_alone(tmp_path, alone):
    wild = config(tmp_path, "wild", "b", learning_rate=1e18)
    lost, a = vmapped.train_vmapped([wild, config(tmp_path, "a")])
    assert isinstance(lost, C.Diverged) and str(tmp_path / "wild") in lost.reason
    assert_close_run(a, alone / "a")
    assert checkpoints.steps(tmp_path / "wild" / "checkpoints") == [0]
    assert all(np.isfinite(record["loss"]) for record in timeless(tmp_path / "wild"))


def test_vmapped_runs_resume_to_the_same_bits(pair, tmp_path):
    for name in ("a", "b"):
        killed(pair / name, 4, tmp_path)
    vmapped.train_vmapped(both(tmp_path))
    for name in ("a", "b"):
        assert_same_run(tmp_path / name, pair / name)


def test_runs_at_different_steps_resume_separately(pair, alone, tmp_path):
    """A run with a damaged checkpoint, a finished one and a new one."""
    for name in ("a", "b"):
        killed(pair / name, 4, tmp_path)
    next((tmp_path / "b" / "checkpoints" / "4" / "state" / "d").iterdir()).write_bytes(b"cut")
    done = shutil.copytree(alone / "a", tmp_path / "done" / "a")
    new = config(tmp_path, "new", "b")
    configs = [*both(tmp_path), config(tmp_path / "done", "a"), new]
    folders = vmapped.train_vmapped(configs, at_most=2)
    assert folders == [tmp_path / "a", tmp_path / "b", done, tmp_path / "new"]
    for folder, name in zip(folders, ("a", "b", "a", "b"), strict=True):
        assert_close_run(folder, alone / name)
