"""Many encoders in one program: each as if it were alone, whatever becomes of the others."""

import dataclasses
import functools
import math
import os
import signal
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from run_cases import assert_same_run, killed_after_checkpoint, state_of, timeless

from hypersphere_jax import checkpoint, runs, session, sharding, training
from hypersphere_jax.config import (
    Diverged,
    EvaluateConfig,
    MocoConfig,
    ModelConfig,
    ObjectiveConfig,
    OptimizerConfig,
    PretrainConfig,
    RuntimeConfig,
    Stopped,
    UserError,
)

RUNTIME = RuntimeConfig(devices=1, log_every_steps=2, checkpoint_every_steps=3)
EVALUATE = EvaluateConfig(eval_every_epochs=1, eval_images=100, evaluators=("align_uniform",))
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
    base = PretrainConfig(
        name=name,
        runs_dir=str(folder),
        seed=SEEDS[number],
        model=ModelConfig(dim=3, width=0.1),
        objective=OBJECTIVES[number],
        optimizer=OptimizerConfig(**rule),
        runtime=RUNTIME,
        evaluate=EVALUATE,
    )
    return dataclasses.replace(base, **changes)


def wild(folder, name="wild"):
    rule = dataclasses.replace(config(folder, name).optimizer, learning_rate=1e30)
    return config(folder, name, "b", optimizer=rule)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    return {name: training.train(config(folder, name, name)) for name in ("a", "b")}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    training.train_together([config(folder, name, name) for name in ("a", "b")])
    return folder


def assert_close_states(folder, other):
    """To float32 rounding, relative to each array's scale."""

    def close(x, y):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-5 * max(float(np.abs(y).max()), 1e-2))

    jax.tree.map(close, state_of(folder), state_of(other))


def assert_close_run(folder, other):
    assert_close_states(folder, other)
    assert_close_records(folder, other)


def assert_close_records(folder, other):
    mine, theirs = timeless(folder), timeless(other)
    assert [record.keys() for record in mine] == [record.keys() for record in theirs]
    for record, expected in zip(mine, theirs, strict=True):
        for name, value in expected.items():
            assert math.isclose(record[name], value, rel_tol=1e-5, abs_tol=1e-5), (name, value)


@pytest.mark.parametrize("name", ["a", "b"])
def test_together_as_alone(name, pair, alone):
    assert_close_run(pair / name, alone[name])
    assert runs.read_config(pair / name) == dataclasses.replace(
        runs.read_config(alone[name]), runs_dir=str(pair)
    )
    assert [r["lr"] for r in timeless(pair / name)] == [r["lr"] for r in timeless(alone[name])]
    assert checkpoint.steps(pair / name / "checkpoints") == [0, 3, 6]


@pytest.mark.slow
def test_on_two_devices(pair, tmp_path):
    runtime = dataclasses.replace(RUNTIME, devices=2)
    plain = {"runtime": runtime, "evaluate": EvaluateConfig()}
    training.train_together([config(tmp_path, name, name, **plain) for name in ("a", "b")])
    for name in ("a", "b"):
        assert_close_states(tmp_path / name, pair / name)


def test_numbers_matter(alone):
    """Else the test above would say nothing of them."""
    a, b = (timeless(alone[name])[-1] for name in ("a", "b"))
    for key in ("loss", "align", "uniform", "contrastive", "lr", "eval/align", "eval/uniform"):
        assert not math.isclose(a[key], b[key], rel_tol=1e-2), key


def test_one_that_diverges_leaves_the_others_alone(tmp_path, alone):
    lost, a = training.train_together([wild(tmp_path), config(tmp_path, "a", "a")])
    assert a == tmp_path / "a"
    assert_close_run(a, alone["a"])
    with pytest.raises(Diverged) as error:
        training.train(wild(tmp_path / "alone"))
    assert isinstance(lost, Diverged)
    assert str(lost) == str(error.value).replace("/alone/", "/")
    assert "step 0 is kept" in lost.found
    assert checkpoint.steps(tmp_path / "wild" / "checkpoints") == [0]
    assert_close_records(tmp_path / "wild", tmp_path / "alone" / "wild")
    with runs.lock(tmp_path / "wild"):  # which is free
        pass


def test_all_diverge(tmp_path, monkeypatch):
    steps = []
    original = session.Group.stepped

    def stepped(group, step, metrics):
        steps.append(step)
        original(group, step, metrics)

    monkeypatch.setattr(session.Group, "stepped", stepped)
    found = training.train_together([wild(tmp_path, "x"), wild(tmp_path, "y")])
    assert [type(outcome) for outcome in found] == [Diverged, Diverged]
    assert steps == [1, 2, 3]  # the first that is not finite is seen where it would be saved


def stop_after_line(monkeypatch, step):
    """Sends this process a signal at a line of the first run's metrics."""
    original, sent = runs.MetricsWriter.write, []

    def write(self, record):
        original(self, record)
        if record["step"] == step and not sent:
            sent.append(os.kill(os.getpid(), signal.SIGTERM))

    monkeypatch.setattr(runs.MetricsWriter, "write", write)


def test_stopped_and_resumed_is_the_same(pair, tmp_path):
    configs = [config(tmp_path, name, name) for name in ("a", "b")]
    with pytest.MonkeyPatch.context() as patch:
        stop_after_line(patch, 4)
        with pytest.raises(Stopped, match=r"saved at step 4 of 6 in .*/a, .*/b; to go on: CMD"):
            training.train_together(configs, command="CMD")
    for name in ("a", "b"):
        assert checkpoint.steps(tmp_path / name / "checkpoints") == [0, 3, 4]
    training.train_together(configs)
    for name in ("a", "b"):
        assert_same_run(tmp_path / name, pair / name)


def test_stopped_before_the_next_group(tmp_path):
    configs = [config(tmp_path, name, name) for name in ("a", "b")]
    with pytest.MonkeyPatch.context() as patch:
        stop_after_line(patch, 6)
        with pytest.raises(Stopped, match=r"after the last step, .*/a; again: CMD"):
            training.train_together(configs, command="CMD", at_most=1)
    assert not (tmp_path / "b").exists()


def test_killed_between_two_saves(tmp_path, alone):
    """One has its checkpoint, the other has not: they go on by themselves."""
    configs = [config(tmp_path, name, name) for name in ("a", "b")]
    with killed_after_checkpoint(3):
        training.train_together(configs)
    assert [checkpoint.steps(tmp_path / n / "checkpoints")[-1] for n in ("a", "b")] == [3, 0]
    assert training.train_together(configs) == [tmp_path / "a", tmp_path / "b"]
    for name in ("a", "b"):
        assert_close_run(tmp_path / name, alone[name])


def test_damaged_checkpoint_of_one(tmp_path, alone):
    configs = [config(tmp_path, name, name) for name in ("a", "b")]
    with pytest.MonkeyPatch.context() as patch:
        stop_after_line(patch, 4)
        with pytest.raises(Stopped):
            training.train_together(configs)
    saved = tmp_path / "b" / "checkpoints" / "4" / "state" / "d"
    next(saved.iterdir()).write_bytes(b"cut")
    training.train_together(configs)
    for name in ("a", "b"):
        assert_close_run(tmp_path / name, alone[name])


def test_finished_is_not_redone(tmp_path, alone, monkeypatch):
    """And another encoder starts from it."""
    done = config(alone["a"].parent, "a")
    before = (alone["a"] / "metrics.jsonl").read_text()
    tuned = config(tmp_path, "tuned", "b", init_from=str(alone["a"]))
    fresh = config(tmp_path, "fresh", "b")
    groups = []
    original = training._steps

    def steps(group, *rest):
        groups.append([run.config.name for run in group.members])
        original(group, *rest)

    monkeypatch.setattr(training, "_steps", steps)
    found = training.train_together([tuned, done, fresh])
    assert found == [tmp_path / "tuned", alone["a"], tmp_path / "fresh"]
    assert groups == [["tuned", "fresh"], ["a"]]
    assert (alone["a"] / "metrics.jsonl").read_text() == before
    start, end = state_of(tmp_path / "tuned", 0), state_of(alone["a"])
    jax.tree.map(np.testing.assert_array_equal, start["params"], end["params"])
    assert_close_run(tmp_path / "fresh", alone["b"])


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
    queue = {
        "moco": MocoConfig(queue_size=220),
        "model": ModelConfig(dim=3, width=0.1, bn_groups=4, batch_norm="split"),
    }
    configs = [
        one("a", "a"),
        one("wide", "a", model=ModelConfig(dim=4, width=0.1)),
        one("b", "b"),
        one("no_align", "a", objective=no_align),
        one("no_align_2", "b", objective=dataclasses.replace(no_align, uniform_t=0.1)),
        one("adam", "b", optimizer=OptimizerConfig(optimizer="adam", batch_size=220, epochs=1)),
        one("queue", "a", **queue),
        one("queue_2", "b", **queue),
        one("streamed", "a", runtime=dataclasses.replace(RUNTIME, pipeline="streaming")),
        one("streamed_2", "b", runtime=dataclasses.replace(RUNTIME, pipeline="streaming")),
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


def test_at_most(tmp_path, planned):
    configs = [config(tmp_path, f"{seed}", seed=seed) for seed in range(7)]
    training.train_together(configs, at_most=3)
    assert planned == [["0", "1", "2"], ["3", "4"], ["5", "6"]]


def test_as_many_as_fit_in_memory(tmp_path, planned, monkeypatch):
    configs = [config(tmp_path, f"{seed}", seed=seed) for seed in range(2)]
    task = training._task(configs[0])
    compiled = training._compiler(task)
    needed = training._needed(compiled, 2)
    run = session.Run(task.config, task.dataset)
    state = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(run.state))
    images = task.dataset.pretrain.images.nbytes
    assert needed > images + 2 * state
    for limit, expected in ((1.01 * needed, [["0", "1"]]), (0.99 * needed, [["0"], ["1"]])):
        planned.clear()
        monkeypatch.setattr(
            sharding, "memory", lambda _, limit=limit: limit / training.MEMORY_SHARE
        )
        training.train_together(configs)
        assert planned == expected


def affine(base, each):
    """Programs whose memory grows with the number of encoders; `inf` is refused by the compiler."""

    def compiled(n):
        needed = base + each * n
        if needed == math.inf:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: too large")
        memory = SimpleNamespace(
            argument_size_in_bytes=needed,
            output_size_in_bytes=7,
            alias_size_in_bytes=7,
            temp_size_in_bytes=0,
        )
        return SimpleNamespace(memory_analysis=lambda: memory)

    return compiled


@pytest.mark.parametrize("n", [2, 3, 8, 100])
def test_parts_are_the_fewest_that_fit(n, monkeypatch):
    monkeypatch.setattr(sharding, "memory", lambda _: 1000 / training.MEMORY_SHARE)
    task = SimpleNamespace(devices=None)
    for base, each in ((0, 1), (0, 11), (500, 11), (0, 300), (0, 499), (990, 10), (0, 1e9)):
        fits = [size for size in range(1, n + 1) if base + each * size <= 1000] or [1]
        parts = training._parts(task, n, None, affine(base, each))
        assert parts == math.ceil(n / max(fits))
    assert training._parts(task, n, None, affine(0, math.inf)) == n


def test_mistakes(tmp_path):
    one = config(tmp_path, "one")
    with pytest.raises(UserError, match=r"two encoders .*/one$"):
        training.train_together([one, config(tmp_path, "two"), one])
    with pytest.raises(UserError, match="at_most 0"):
        training.train_together([one], at_most=0)
    with pytest.raises(UserError, match="on one host"):
        hosts = dataclasses.replace(RUNTIME, hosts="auto")
        training.train_together([one, config(tmp_path, "two", runtime=hosts)])
    with pytest.raises(UserError, match=r"--batch-size 1401 .* 1400 training images"):
        rule = OptimizerConfig(batch_size=1401)
        training.train_together([one, config(tmp_path, "two", optimizer=rule)])
    assert one.name not in [path.name for path in tmp_path.iterdir()]
    assert training.train_together([]) == []
