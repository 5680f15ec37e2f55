"""Evaluation while a run trains: its numbers, of which images, and that it changes no other."""

import json
import shutil
import signal
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_runs
from run_states import assert_same_run, state_of, timeless
from scipy.spatial.distance import pdist

from hypersphere_jax import augment, data, models
from hypersphere_jax import configs as C
from hypersphere_jax.data import arrays, subsets
from hypersphere_jax.data.source import Arrays
from hypersphere_jax.evaluation import callbacks, features, knn, linear
from hypersphere_jax.training import checkpoints, run_dir
from hypersphere_jax.training import train as training
from hypersphere_jax.training.setup import set_up

SUPERVISED = C.ObjectiveConfig(supervised_weight=1)


def short(folder):
    """The run `short` with lines of 5, 10 and 12 of 12 steps; epochs end at 6 and 12."""
    runtime = C.RuntimeConfig(devices=2, log_every_steps=5, checkpoint_every_steps=3)
    evaluate = C.EvaluateConfig(eval_every_epochs=1, eval_images=200, eval_layer="backbone")
    return tiny_runs.short(folder, runtime=runtime, evaluate=evaluate)


@pytest.fixture(scope="module")
def evaluated(once):
    """The run `short`, evaluated after each of its two epochs (read only)."""
    return once("evaluated", lambda folder: training.train(short(folder))) / "short"


def values(folder):
    """What was evaluated, by step; and the other numbers of each step."""
    evaluated, others = {}, {record["step"]: record for record in timeless(folder)}
    for step, record in others.items():
        names = [name for name in record if name.startswith("eval/")]
        evaluated |= {step: {name[5:]: record.pop(name) for name in names}} if names else {}
    return evaluated, others


def expected(folder, step, objective=None):
    """By NumPy, from the checkpoint, on one device at once."""
    made, state = run_dir.read_config(folder), state_of(folder, step)
    objective = objective or made
    train = data.load(made).train
    bank, queries = subsets.fold(subsets.fraction(train, 200 / len(train), 0), 2, 0, 0)
    images = np.stack([part[i]["image"] for part in (bank, queries) for i in range(len(part))])
    apply = models.abstract(made)[0]

    @jax.jit
    def outputs(images):
        seen = jax.vmap(augment.make_evaluate("digits", 8))(images)
        numbers = jnp.arange(len(images), dtype=jnp.int32)
        transform = augment.make_augment("digits", 8)
        pair = augment.two_views(transform, jax.random.key(0), images, numbers)
        return [apply(state["params"], state["stats"], x, False)[0] for x in (seen, *pair)]

    found, *pair = outputs(images)
    n, x = len(bank), np.asarray(found["backbone"]).reshape(len(images), -1)
    split = (x[:n], bank.labels, x[n:], queries.labels)
    z, v1, v2 = (np.asarray(out["output"], float) for out in (found, *pair))
    distances = np.linalg.norm(v1 - v2, axis=1)
    return {
        "knn_top1": knn.knn_probe(*split, num_classes=10, k=5)["top1"],
        "linear_top1": linear.linear_probe(*split, num_classes=10)["top1"],
        "align": (distances**objective.align_alpha).mean(),
        "uniform": np.log(np.exp(-objective.uniform_t * pdist(z, "sqeuclidean")).mean()),
    }


@pytest.mark.slow
def test_numbers_and_that_others_stay_as_they_are(evaluated, short_run):
    found, others = values(evaluated)
    assert list(found) == [6, 12] and list(others) == [5, 6, 10, 12]
    for step, numbers in found.items():
        assert numbers == pytest.approx(expected(evaluated, step), rel=1e-7, abs=2e-5)
    jax.tree.map(np.testing.assert_array_equal, state_of(evaluated), state_of(short_run))
    _, plain = values(short_run)
    assert all(others[step] == plain[step] for step in (6, 10, 12))


@pytest.mark.slow
def test_it_may_begin_when_a_run_goes_on(killed_run, evaluated, tmp_path, monkeypatch):
    """And is of the objective that it is given: vmapped runs differ in theirs."""
    made, original = [], callbacks.evaluation_callback
    keep = lambda *given: made.append(original(*given)) or made[0]  # noqa: E731
    monkeypatch.setattr(callbacks, "evaluation_callback", keep)
    folder = shutil.copytree(killed_run, tmp_path / "short")
    training.train(short(tmp_path))
    assert values(folder)[0] == {12: values(evaluated)[0][12]}

    state, other = state_of(evaluated), C.ObjectiveConfig(align_alpha=1.3, uniform_t=0.7)
    found = made[0](state["params"], state["stats"], other)
    wanted = {f"eval/{name}": x for name, x in expected(evaluated, 12, other).items()}
    assert found == pytest.approx(wanted, rel=1e-7, abs=2e-5)
    params = jax.tree.map(lambda x: np.full_like(x, np.nan), state["params"])
    with pytest.raises(FloatingPointError, match="not finite"):
        made[0](params, state["stats"])


@pytest.mark.parametrize(
    ("how", "step"),
    [("signals", 6), ("killed", 6)],
)
@pytest.mark.slow
def test_interrupted_evaluations_are_repeated(how, step, once, tmp_path, monkeypatch):
    """The state is saved before, a second signal does not wait, and the numbers stay the same."""
    evaluate = C.EvaluateConfig(1, ("align_uniform",), 200)
    runtime = C.RuntimeConfig(devices=2, log_every_steps=5, checkpoint_every_steps=100)
    config = tiny_runs.short(tmp_path, evaluate=evaluate, runtime=runtime)
    whole = once("aligned", lambda to: training.train(config.replace(runs_dir=str(to)))) / "short"
    name, calls = "align_uniform", []
    original = callbacks.EVALUATORS[name]

    def interrupted(inputs):
        calls.append(inputs)
        if len(calls) < step // 6:
            return original(inputs)
        if how == "killed":
            raise Killed
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
        pytest.fail("the evaluation goes on")

    with (
        monkeypatch.context() as patch,
        pytest.raises((KeyboardInterrupt, Killed)),
    ):
        patch.setitem(callbacks.EVALUATORS, name, interrupted)
        training.train(config)
    folder = tmp_path / "short"
    assert checkpoints.steps(folder / "checkpoints")[-1] == step
    training.train(config)
    assert_same_run(folder, whole)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [5, 6, 10, 12]


class Killed(BaseException):
    """No code handles it."""


def parts(tmp_path, split, evaluators=("knn",), folds=1, objective=SUPERVISED):
    asked, of = C.EvaluateConfig(1, evaluators, 200, eval_split=split), C.DataConfig(folds=folds)
    made = tiny_runs.short(tmp_path, data=of, objective=objective, evaluate=asked)
    return *callbacks.split_images(made, dataset := data.load(of)), dataset


def pixels(source):
    return {source[i]["image"].tobytes() for i in range(len(source))}


def test_which_images(tmp_path, monkeypatch):
    """A supervised run is not evaluated on labels that it trains on; others leave the test be."""
    plain, classify = C.ObjectiveConfig(), ("knn", "linear", "classifier")
    for name, (split, folds) in product(classify, (("train", 1), (None, 1), ("train", 5))):
        with pytest.raises(C.UserError, match=r"eval_split=: this run .* with folds="):
            parts(tmp_path, split, (name, "align_uniform"), folds)
    tests = (("test", 1, SUPERVISED), (None, 5, SUPERVISED), ("test", 1, plain), ("test", 5, plain))
    for split, folds, objective in tests:
        bank, queries, dataset = parts(tmp_path, split, folds=folds, objective=objective)
        assert pixels(queries) <= pixels(dataset.test) - pixels(dataset.train)
        assert pixels(bank) <= pixels(dataset.train)
        assert max(abs(len(half) - 100) for half in (bank, queries)) < 5
    # What takes no labels may be of the training images, as may all of a run without labels.
    for split, evaluators, objective in (
        (None, ("align_uniform",), SUPERVISED),
        *((split, classify, plain) for split in (None, "train")),
    ):
        bank, queries, dataset = parts(tmp_path, split, evaluators, objective=objective)
        assert pixels(bank) | pixels(queries) <= pixels(dataset.train)
        assert not set(bank.indices) & set(queries.indices)
        for half in (bank, queries):  # each class as often as it is there
            assert abs(len(half) - 100) < 5
            assert np.bincount(half.labels, minlength=10).min() >= 8
    # Of partly labelled images the labelled ones.
    (train, test), labels = arrays.digits(), np.asarray(dataset.train.labels).copy()
    labels[::2] = -1
    some = Arrays(train.images, labels, train.class_names, train.origin)
    monkeypatch.setattr(arrays, "digits", lambda: (some, test))
    for half in parts(tmp_path, None, objective=plain)[:2]:
        assert abs(len(half) - 100) < 5 and (half.labels >= 0).all()


def test_an_image_that_cannot_be_read_is_left_out(monkeypatch, tmp_path):
    """Of the first half, the queries still begin where they do."""
    read = features.eval_batches

    def unreadable(*given):
        for batch in read(*given):
            bad = np.isin(batch.indices, [3, 5])
            yield batch._replace(indices=np.where(bad, -1, batch.indices))

    seen = []
    monkeypatch.setattr(features, "eval_batches", unreadable)
    monkeypatch.setitem(callbacks.EVALUATORS, "knn", lambda inputs: seen.append(inputs) or {})
    knn = C.EvaluateConfig(1, ("knn",), 200)
    setup = set_up(tiny_runs.short(tmp_path, evaluate=knn))
    apply, params, stats = models.create(setup.config, jax.random.key(0))
    callbacks.evaluation_callback(setup.config, setup.dataset, apply, setup.devices)(params, stats)
    bank, queries = callbacks.split_images(setup.config, setup.dataset)
    known = np.delete(np.concatenate([bank.labels, queries.labels]), [3, 5])
    assert seen[0].bank == len(bank) - 2 and np.array_equal(seen[0].labels, known)
    assert {len(x) for x in seen[0].features.values()} == {len(known)}


def test_accuracy_of_a_classifier_is_of_the_second_half_alone():
    logits, labels = np.eye(4)[[0, 1, 2, 3] * 2], np.array([3, 3, 3, 0, 0, 1, 3, 3])
    inputs = callbacks.EvaluatorInputs({"logits": logits}, [], labels, 4, 4, "output", None)
    assert callbacks.EVALUATORS["classifier"](inputs) == {"classifier_top1": 75.0}
