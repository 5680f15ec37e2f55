"""Many encoders in one program: each as if it were alone, whatever becomes of the others."""

import dataclasses
import functools
import math
import os
import shutil
import signal
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import tiny_runs
from run_states import assert_same_run, state_of, timeless

from hypersphere_jax import checkpoint, runs, session, sharding, training
from hypersphere_jax.config import (
    Diverged,
    EvaluateConfig,
    MocoConfig,
    ModelConfig,
    ObjectiveConfig,
    OptimizerConfig,
    RuntimeConfig,
    Stopped,
    UserError,
)

# Neither 4 nor the two epochs divide the 6 steps: the last one is saved and evaluated nonetheless.
RUNTIME = RuntimeConfig(devices=1, log_every_steps=2, checkpoint_every_steps=4)
EVALUATE = EvaluateConfig(eval_every_epochs=2)
# Two that differ in every number.
OBJECTIVES = {
    "a": ObjectiveConfig(0.5, 0.3, 1.5, 1.0, 0.7, 2.5),
    "b": ObjectiveConfig(1.5, 0.8, 0.4, 2.5, 1.6, 1.2),
}
RULES = {
    "a": {"learning_rate": 0.1, "weight_decay": 1e-3, "momentum": 0.9},
    "b": {"learning_rate": 0.03, "weight_decay": 0.2, "momentum": 0.4},
}
SEEDS = {"a": 0, "b": 7}


def config(folder, name, number="a", **changes):
    """6 steps of a tiny encoder."""
    rule = {"epochs": 1, "batch_size": 220, "warmup_epochs": 0.4} | RULES[number]
    base = tiny_runs.short(
        folder,
        name,
        seed=SEEDS[number],
        objective=OBJECTIVES[number],
        optimizer=OptimizerConfig(**rule),
        runtime=RUNTIME,
        evaluate=EVALUATE,
    )
    return dataclasses.replace(base, **changes)


def both(folder):
    return [config(folder, name, name) for name in ("a", "b")]


def wild(folder, name="wild"):
    rule = dataclasses.replace(config(folder, name).optimizer, learning_rate=1e30)
    return config(folder, name, "b", optimizer=rule)


@pytest.fixture(scope="module", autouse=True)
def evaluation():
    """One that takes no time: of each encoder with its own objective."""

    def evaluate(params, stats, objective):
        leaves = jax.tree.leaves((params, stats))
        norm = sum(float(np.square(leaf).sum()) for leaf in leaves)
        return {"eval/norm": norm, "eval/alpha": objective.align_alpha}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "make_evaluation", lambda *_: evaluate)
        yield


@pytest.fixture(scope="module")
def alone(once):
    """Each trained by itself (read only)."""
    make = lambda folder: [training.train(one) for one in both(folder)]  # noqa: E731
    return once("alone", make)


@pytest.fixture(scope="module")
def pair(once):
    """Both trained together (read only)."""
    return once("pair", lambda folder: training.train_together(both(folder)))


def assert_close_run(folder, other, tolerance=1e-5):
    """To float32 rounding, relative to each array's scale."""

    def close(x, y):
        scale = max(float(np.abs(y).max()), 1e-2)
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * scale)

    jax.tree.map(close, state_of(folder), state_of(other))
    mine, theirs = timeless(folder), timeless(other)
    assert [record.keys() for record in mine] == [record.keys() for record in theirs]
    for record, expected in zip(mine, theirs, strict=True):
        for name, value in expected.items():
            assert math.isclose(record[name], value, rel_tol=tolerance, abs_tol=tolerance), name


def test_together_as_alone(pair, alone):
    for name in ("a", "b"):
        assert_close_run(pair / name, alone / name)
        made = runs.read_config(alone / name)
        assert runs.read_config(pair / name) == dataclasses.replace(made, runs_dir=str(pair))
        assert checkpoint.steps(pair / name / "checkpoints") == [0, 4, 6]
        records = timeless(pair / name)
        assert [record["step"] for record in records] == [2, 4, 6]
        assert ["eval/norm" in record for record in records] == [False, False, True]
        warm = [min(1, (record["step"] - 1) / 2) for record in records]  # two steps of warm-up
        decays = [sum(record["step"] - 1 >= at for at in (5, 5, 6)) for record in records]
        peak = RULES[name]["learning_rate"] * 220 / 256
        expected = [peak * w * 0.1**d for w, d in zip(warm, decays, strict=True)]
        np.testing.assert_allclose([record["lr"] for record in records], expected, rtol=1e-5)
    # Else this would say nothing of the numbers.
    a, b = (timeless(alone / name)[-1] for name in ("a", "b"))
    for key in ("loss", "align", "uniform", "contrastive", "lr", "eval/norm", "eval/alpha"):
        assert not math.isclose(a[key], b[key], rel_tol=1e-2), key


@pytest.mark.slow
def test_on_two_devices(pair, tmp_path):
    runtime = dataclasses.replace(RUNTIME, devices=2)
    training.train_together([dataclasses.replace(one, runtime=runtime) for one in both(tmp_path)])
    for name in ("a", "b"):
        assert_close_run(tmp_path / name, pair / name, tolerance=1e-4)


def test_one_that_diverges_leaves_the_others_alone(tmp_path, alone):
    lost, a = training.train_together([wild(tmp_path), config(tmp_path, "a", "a")])
    assert a == tmp_path / "a"
    assert_close_run(a, alone / "a")
    assert isinstance(lost, Diverged)
    assert f"the checkpoint of step 0 is kept in {tmp_path}/wild" in lost.found
    assert checkpoint.steps(tmp_path / "wild" / "checkpoints") == [0]
    assert all(np.isfinite(record["loss"]) for record in timeless(tmp_path / "wild"))
    with runs.lock(tmp_path / "wild"):  # which is free
        pass


def stop_after_line(patch, step):
    """Sends this process a signal at a line of the first run's metrics."""
    original, sent = runs.MetricsWriter.write, []

    def write(self, record):
        original(self, record)
        if record["step"] == step and not sent:
            sent.append(os.kill(os.getpid(), signal.SIGTERM))

    patch.setattr(runs.MetricsWriter, "write", write)


@pytest.fixture(scope="module")
def stopped(once):
    """Both, stopped and saved at step 2 (read only)."""

    def make(folder):
        with pytest.MonkeyPatch.context() as patch:
            stop_after_line(patch, 2)
            with pytest.raises(
                Stopped, match=r"saved at step 2 of 6 in .*/a, .*/b; to go on: CMD$"
            ):
                training.train_together(both(folder), command="CMD")

    return once("stopped", make)


def test_stopped_and_resumed_is_the_same(pair, stopped, tmp_path):
    folder = shutil.copytree(stopped, tmp_path / "runs")
    for name in ("a", "b"):
        assert checkpoint.steps(folder / name / "checkpoints") == [0, 2]
    training.train_together(both(folder))
    for name in ("a", "b"):
        assert_same_run(folder / name, pair / name)


def test_damaged_checkpoint_of_one(stopped, alone, tmp_path):
    """They go on by themselves, as they stand at different steps."""
    folder = shutil.copytree(stopped, tmp_path / "runs")
    saved = folder / "b" / "checkpoints" / "2" / "state" / "d"
    next(saved.iterdir()).write_bytes(b"cut")
    training.train_together(both(folder))
    for name in ("a", "b"):
        assert_close_run(folder / name, alone / name)


@pytest.fixture
def planned(monkeypatch):
    """What is trained together, by name; nothing is."""
    found = []

    def train(tasks, *_):
        found.append([task.config.name for task in tasks])
        return [runs.folder_of(task.config) for task in tasks]

    monkeypatch.setattr(training, "_train", train)
    return found


def test_groups(tmp_path, planned):
    one = functools.partial(config, tmp_path)
    no_align = dataclasses.replace(OBJECTIVES["a"], align_weight=0.0)
    split = ModelConfig(dim=3, width=0.1, bn_groups=4, batch_norm="split")
    queue = {"moco": MocoConfig(queue_size=220), "model": split}
    streamed = dataclasses.replace(RUNTIME, pipeline="streaming")
    configs = [
        one("a", "a"),
        one("wide", "a", model=ModelConfig(dim=4, width=0.1)),
        one("b", "b"),
        one("no_align", "a", objective=no_align),
        one("no_align_2", "b", objective=dataclasses.replace(no_align, uniform_t=0.1)),
        one("adam", "b", optimizer=OptimizerConfig(optimizer="adam", batch_size=220, epochs=1)),
        one("queue", "a", **queue),
        one("queue_2", "b", **queue),
        one("streamed", "a", runtime=streamed),
        one("streamed_2", "b", runtime=streamed),
        one("c", "b", seed=3, init_from="somewhere"),
    ]
    found = training.train_together(configs, at_most=100)
    assert planned == [
        *(["a", "b", "c"], ["wide"], ["no_align", "no_align_2"], ["adam"]),
        *(["queue"], ["queue_2"], ["streamed"], ["streamed_2"]),
    ]
    assert found == [tmp_path / made.name for made in configs]
    shapes = [training.structure(made) for made in configs]
    assert shapes[0] == shapes[2] == shapes[-1] and hash(shapes[0]) == hash(shapes[2])
    assert len(set(shapes)) == 6


def test_runs_that_stand_elsewhere_are_trained_apart(pair, alone, tmp_path, planned):
    """As after a kill between the saves of two; and what is done is done alone."""
    folder = shutil.copytree(pair, tmp_path / "runs")
    for name, lost in (("a", (6,)), ("b", (6, 4))):
        for step in lost:
            shutil.rmtree(folder / name / "checkpoints" / str(step))
    c = config(folder, "c", seed=3)
    done = config(alone, "a")
    assert training.train_together([*both(folder), c, done], at_most=9)[-1] == alone / "a"
    assert planned == [["a"], ["b", "c"], ["a"]]


def test_at_most(tmp_path, planned):
    configs = [config(tmp_path, f"{seed}", seed=seed) for seed in range(7)]
    training.train_together(configs, at_most=3)
    assert planned == [["0", "1", "2"], ["3", "4"], ["5", "6"]]


def test_stopped_before_the_next_group(tmp_path, planned, monkeypatch):
    train = training._train

    def train_and_stop(*task):
        os.kill(os.getpid(), signal.SIGTERM)
        return train(*task)

    monkeypatch.setattr(training, "_train", train_and_stop)
    with pytest.raises(Stopped, match=r"between two groups of encoders; to go on: CMD$"):
        training.train_together(both(tmp_path), command="CMD", at_most=1)
    assert planned == [["a"]]


def test_as_many_as_fit_in_memory(tmp_path, planned, monkeypatch):
    task = training._task(config(tmp_path, "a"))
    program = training._compiler(task)(2)
    monkeypatch.setattr(training, "_compiler", lambda task: lambda n: program)
    needed = training._needed(lambda n: program, 2)
    run = session.Run(task.config, task.dataset)
    state = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(run.state))
    assert needed > task.dataset.pretrain.images.nbytes + 2 * state
    for limit, expected in ((1.01 * needed, [["a", "b"]]), (0.99 * needed, [["a"], ["b"]])):
        planned.clear()
        monkeypatch.setattr(
            sharding, "memory", lambda _, limit=limit: limit / training.MEMORY_SHARE
        )
        training.train_together(both(tmp_path))
        assert planned == expected


def affine(base, each):
    """Programs whose memory grows with the number of encoders; `inf` is refused by the compiler."""

    def compiled(n):
        needed = base + each * n
        if needed == math.inf:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: too large")
        memory = SimpleNamespace(
            argument_size_in_bytes=needed / 2,
            output_size_in_bytes=7,
            alias_size_in_bytes=7,
            temp_size_in_bytes=needed / 2,
        )
        return SimpleNamespace(memory_analysis=lambda: memory)

    return compiled


def test_parts_are_the_fewest_that_fit(monkeypatch):
    monkeypatch.setattr(sharding, "memory", lambda _: 1000 / training.MEMORY_SHARE)
    task = SimpleNamespace(devices=None)
    for n in (2, 3, 8, 100):
        for base, each in ((0, 1), (0, 11), (500, 11), (0, 300), (0, 499), (990, 10), (0, 1e9)):
            fits = [size for size in range(1, n + 1) if base + each * size <= 1000] or [1]
            parts = training._parts(task, n, None, affine(base, each))
            assert parts == math.ceil(n / max(fits)), (n, base, each)
        assert training._parts(task, n, None, affine(0, math.inf)) == n


def test_mistakes(tmp_path):
    one = config(tmp_path, "one")
    elsewhere = dataclasses.replace(RUNTIME, hosts="auto")
    rule = OptimizerConfig(batch_size=1402)
    for configs, message in (
        ([one, config(tmp_path, "two"), one], r"two encoders .*/one$"),
        ([one, config(tmp_path, "two", runtime=elsewhere)], "on one host"),
        ([one, config(tmp_path, "two", optimizer=rule)], "--batch-size 1402 .* 1400"),
    ):
        with pytest.raises(UserError, match=message):
            training.train_together(configs)
    assert not list(tmp_path.iterdir())
