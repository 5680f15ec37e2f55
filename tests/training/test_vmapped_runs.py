"""Many encoders in one program: each as if it were alone, whatever becomes of the others."""

import dataclasses
import itertools
import math
import os
import shutil
import signal
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import tiny_runs
from run_states import assert_same_run, at_line, state_of, timeless

from hypersphere_jax import configs as C
from hypersphere_jax import data
from hypersphere_jax.data import datasets, subsets
from hypersphere_jax.evaluation import callbacks
from hypersphere_jax.training import checkpoints, distributed, run_dir, vmapped
from hypersphere_jax.training import train as training

# Neither 4 nor the two epochs divide the 6 steps: the last one is saved and evaluated nonetheless.
RUNTIME = C.RuntimeConfig(devices=1, log_every_steps=2, checkpoint_every_steps=4)
# Two that differ in every number.
OBJECTIVES = {
    "a": C.ObjectiveConfig(0.5, 0.3, 1.5, 1.0, 0.7, 2.5),
    "b": C.ObjectiveConfig(1.5, 0.8, 0.4, 2.5, 1.6, 1.2),
}
RULES = {
    "a": {"learning_rate": 0.1, "weight_decay": 1e-3, "momentum": 0.9},
    "b": {"learning_rate": 0.03, "weight_decay": 0.2, "momentum": 0.4},
}


def config(folder, name, number="a", **changes):
    """6 steps of a tiny encoder."""
    rule = {"epochs": 1, "batch_size": 220, "warmup_epochs": 0.4} | RULES[number]
    made = {"seed": ord(number), "objective": OBJECTIVES[number], "runtime": RUNTIME}
    made |= {**rule, "eval_every_epochs": 2}
    return tiny_runs.short(folder, name, **(made | changes))


def both(folder):
    return [config(folder, name, name) for name in ("a", "b")]


@pytest.fixture(scope="module", autouse=True)
def evaluation():
    """One that takes no time: of each encoder with its own objective."""

    def evaluate(params, stats, objective):
        norm = sum(float(np.square(leaf).sum()) for leaf in jax.tree.leaves((params, stats)))
        return {"eval/norm": norm, "eval/alpha": objective.align_alpha}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(callbacks, "evaluation_callback", lambda *_: evaluate)
        # As if a few had labels: all are trained on.
        train, test, pretrain, recipe = datasets._open(C.DataConfig())
        some = subsets.Subset(train, np.arange(300), "with labels")
        patch.setattr(datasets, "_open", lambda *_: data.Dataset(some, test, pretrain, recipe))
        yield


@pytest.fixture(scope="module")
def alone(once):
    """Each trained by itself (read only)."""
    return once("alone", lambda folder: [training.train(one) for one in both(folder)])


@pytest.fixture(scope="module")
def pair(once):
    """Both trained in one program (read only)."""
    return once("pair", lambda folder: vmapped.train_vmapped(both(folder)))


def assert_close_run(folder, other):
    """To float32 rounding, relative to each array's scale."""
    for x, y in zip(*(jax.tree.leaves(state_of(run)) for run in (folder, other)), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=3e-5 * max(np.abs(y).max(), 1e-2))
    for record, expected in zip(timeless(folder), timeless(other), strict=True):
        assert record == pytest.approx(expected, rel=3e-5, abs=3e-5)


@pytest.mark.slow
def test_vmapped_as_alone(pair, alone):
    for name in ("a", "b"):
        assert_close_run(pair / name, alone / name)
        assert checkpoints.steps(pair / name / "checkpoints") == [0, 4, 6]
        records = timeless(pair / name)
        assert [(r["step"], "eval/norm" in r) for r in records] == [(2, 0), (4, 0), (6, 1)]
        # Two steps of warm-up, and three decays.
        rates = np.multiply(RULES[name]["learning_rate"] * 220 / 256, [0.5, 1, 0.01])
        np.testing.assert_allclose([record["lr"] for record in records], rates, rtol=1e-5)
    # Else this would say nothing of the numbers.
    a, b = (timeless(alone / name)[-1] for name in ("a", "b"))
    for key in ("loss", "align", "uniform", "contrastive", "lr", "eval/norm", "eval/alpha"):
        assert not math.isclose(a[key], b[key], rel_tol=1e-2), key


@pytest.mark.slow
def test_one_that_diverges_leaves_the_others_alone(tmp_path, alone):
    made = config(tmp_path, "a")
    rule = {**RULES["a"], "learning_rate": 1e18}
    lost, a = vmapped.train_vmapped([config(tmp_path, "wild", "b", **rule), made])
    assert_close_run(a, alone / "a")
    assert isinstance(lost, C.Diverged)
    assert f"the checkpoint of step 0 is kept in {tmp_path}/wild" in lost.reason
    assert all(np.isfinite(record["loss"]) for record in timeless(tmp_path / "wild"))
    with pytest.raises(C.Diverged, match=r"diverged: .* step 0 is kept in"):
        training.train(config(tmp_path, "alone", "b", **rule))


@pytest.mark.slow
def test_stopped_and_resumed_is_the_same(pair, alone, tmp_path):
    message = r"saved at step 4 of 6 in .*/a, .*/b; to resume: CMD$"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(C.Stopped, match=message):
        at_line(patch, 2, lambda: os.kill(os.getpid(), signal.SIGTERM))
        vmapped.train_vmapped(both(tmp_path / "runs"), command="CMD")
    damaged = shutil.copytree(tmp_path / "runs", tmp_path / "damaged")
    vmapped.train_vmapped(both(tmp_path / "runs"))
    for name in ("a", "b"):
        assert checkpoints.steps(damaged / name / "checkpoints") == [0, 4]
        assert_same_run(tmp_path / "runs" / name, pair / name)
    # Where a checkpoint of one is damaged, they stand at different steps and go on by themselves.
    next((damaged / "b" / "checkpoints" / "4" / "state" / "d").iterdir()).write_bytes(b"cut")
    vmapped.train_vmapped(both(damaged))
    for name in ("a", "b"):
        assert_close_run(damaged / name, alone / name)


@pytest.mark.slow
def test_before_the_first_step_new_ones_are_saved(tmp_path, monkeypatch):
    """Beside one that is, as after a kill between the two."""
    monkeypatch.setattr(distributed, "should_stop", lambda asked, count: True)
    with pytest.raises(C.Stopped):
        training.train(config(tmp_path, "b", "b"))
    with pytest.raises(C.Stopped, match=r"saved at step 0 of 6 in .*/a, .*/b;"):
        vmapped.train_vmapped(both(tmp_path), at_most=2)
    for name in ("a", "b"):
        assert checkpoints.steps(tmp_path / name / "checkpoints") == [0]


@pytest.mark.slow
def test_groups(tmp_path, monkeypatch, alone):
    def train(setups, *_):
        planned.append([setup.config.name for setup in setups])
        return [run_dir.folder_of(setup.config) for setup in setups]

    monkeypatch.setattr(vmapped, "_train", train)
    planned = []
    no_align = dataclasses.replace(OBJECTIVES["a"], align_weight=0.0)
    split = C.ModelConfig(dim=3, width=0.1, bn_groups=4, batch_norm="split")
    queue = {"queue_size": 220, "model": split}
    streamed = {"runtime": dataclasses.replace(RUNTIME, pipeline="streaming")}
    apart = {"wide": {"dim": 4, "width": 0.1}}
    apart["adam"] = {"optimizer": "adam", "batch_size": 220, "epochs": 1}
    apart |= {"queue": queue, "queue_2": queue, "streamed": streamed, "streamed_2": streamed}
    different = {"a": {}, "b": {"seed": 5}, "c": {"init_from": "somewhere"}, **apart}
    different["no_align"] = {"objective": no_align}
    different["no_align_2"] = {"objective": dataclasses.replace(no_align, uniform_t=0.1)}
    configs = [config(tmp_path, name, **changes) for name, changes in different.items()]
    found = vmapped.train_vmapped([*configs, config(alone, "a")], at_most=100)
    assert found == [*(tmp_path / name for name in different), alone / "a"]
    # What is done is done alone.
    expected = [["a", "b", "c"], ["no_align", "no_align_2"], ["a"], *([name] for name in apart)]
    assert sorted(planned) == sorted(expected)
    planned.clear()
    configs = [config(tmp_path, f"{seed}", seed=seed) for seed in range(7)]
    vmapped.train_vmapped(configs, at_most=3)
    assert planned == [["0", "1", "2"], ["3", "4"], ["5", "6"]]
    with pytest.raises(C.UserError, match=r"two encoders .*/0$"):
        vmapped.train_vmapped([*configs, configs[0]])
    several = config(tmp_path, "several", steps_per_call=2)
    with pytest.raises(C.UserError, match="steps_per_call=: encoders in one program"):
        vmapped.train_vmapped([*configs, several])


def test_parts_are_the_fewest_that_fit_in_memory():
    def compiled(n):
        if each == math.inf:  # which the compiler refuses
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: too large")
        half = (base + each * n) / 2
        sizes = {"argument": half, "output": 7, "alias": 7, "temp": half}
        memory = SimpleNamespace(**{f"{name}_size_in_bytes": x for name, x in sizes.items()})
        return SimpleNamespace(memory_analysis=lambda: memory)

    cases = [(0, 11), (500, 11), (0, 300), (0, 499), (990, 10), (0, math.inf)]
    for n, (base, each) in itertools.product((2, 3, 8, 100), cases):
        fits = [size for size in range(1, n + 1) if base + each * size <= 1000] or [1]
        programs = vmapped._program_count(n, None, 1000, compiled)
        assert programs == math.ceil(n / max(fits)), (n, base, each)
