"""Evaluation while a run trains: its numbers, of which images, and that it changes no other."""

import dataclasses
import functools
import itertools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_runs
from run_states import state_of, timeless

from hypersphere_jax import augment, data, models, runs, session, training
from hypersphere_jax.config import (
    DataConfig,
    EvaluateConfig,
    MocoConfig,
    ModelConfig,
    ObjectiveConfig,
    OptimizerConfig,
    RuntimeConfig,
    UserError,
)
from hypersphere_jax.data import arrays, views
from hypersphere_jax.data.source import Arrays
from hypersphere_jax.evaluation import during, linear

EVALUATE = EvaluateConfig(eval_every_epochs=1, eval_images=200, eval_layer="backbone")
FEW = dataclasses.replace(EVALUATE, evaluators=("knn", "align_uniform"))  # which compile sooner
# Lines of 5, 10 and 12 of 12 steps; epochs end at 6 and 12.
RUNTIME = RuntimeConfig(devices=2, log_every_steps=5, checkpoint_every_steps=3)
SUPERVISED = ObjectiveConfig(supervised_weight=1)


@pytest.fixture(scope="module")
def evaluated(once):
    """The run `short`, evaluated after each of its two epochs (read only)."""
    make = lambda folder: training.train(  # noqa: E731
        tiny_runs.short(folder, runtime=RUNTIME, evaluate=EVALUATE)
    )
    return once("evaluated", make) / "short"


def values(folder):
    found = {
        record["step"]: {name[5:]: x for name, x in record.items() if name.startswith("eval/")}
        for record in runs.read_metrics(folder)
    }
    return {step: kept for step, kept in found.items() if kept}


def without_evaluation(folder):
    return {
        record["step"]: {name: x for name, x in record.items() if not name.startswith("eval/")}
        for record in timeless(folder)
    }


@functools.cache
def network(folder):
    """(params, stats, images, their places) -> outputs of the images and of two views of each."""
    apply, _, _ = models.abstract(runs.read_config(folder).model)
    prepare = augment.make_evaluate("digits", 8)
    transform = augment.make_augment("digits", 8)

    @jax.jit
    def outputs(params, stats, images, numbers):
        pair = augment.two_views(transform, jax.random.key(0), images, numbers)
        return [apply(params, stats, x, False)[0] for x in (jax.vmap(prepare)(images), *pair)]

    return outputs


def expected(folder, step, objective=None):
    """By NumPy, from the checkpoint, on one device at once."""
    made, state = runs.read_config(folder), state_of(folder, step)
    objective = objective or made.objective
    train = data.load(made.data).train
    bank, queries = views.fold(views.fraction(train, 200 / len(train), 0), 2, 0, 0)
    images = np.stack([part[i]["image"] for part in (bank, queries) for i in range(len(part))])
    labels = np.concatenate([bank.labels, queries.labels])
    numbers = jnp.arange(len(images), dtype=jnp.int32)
    found, *pair = network(folder)(state["params"], state["stats"], images, numbers)
    n, x = len(bank), np.asarray(found["backbone"]).reshape(len(images), -1)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    hits = 0
    for query, label in zip(unit[n:], labels[n:], strict=True):
        near = labels[:n][np.argsort(-unit[:n] @ query, kind="stable")[:5]]
        votes = np.bincount(near, minlength=10)
        hits += next(c for c in near if votes[c] == votes.max()) == label
    split = (x[:n], labels[:n], x[n:], labels[n:])
    z, v1, v2 = (np.asarray(out["output"], float) for out in (found, *pair))
    distances = np.linalg.norm(v1 - v2, axis=1)
    squares = np.array([((a - b) ** 2).sum() for a, b in itertools.combinations(z, 2)])
    return {
        "knn_top1": 100 * hits / len(queries),
        "linear_top1": linear.linear_probe(*split, num_classes=10)["top1"],
        "align": (distances**objective.align_alpha).mean(),
        "uniform": np.log(np.exp(-objective.uniform_t * squares).mean()),
    }


def assert_close(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, atol=2e-5, err_msg=name)


def test_numbers(evaluated):
    found = values(evaluated)
    assert list(found) == [6, 12]
    for step in found:
        assert_close(found[step], expected(evaluated, step))


def test_other_numbers_stay_as_they_are(evaluated, short_run):
    jax.tree.map(np.testing.assert_array_equal, state_of(evaluated), state_of(short_run))
    records, plain = without_evaluation(evaluated), without_evaluation(short_run)
    assert list(records) == [5, 6, 10, 12]
    assert all(records[step] == plain[step] for step in (6, 10, 12))


def test_it_may_begin_when_a_run_goes_on(killed_run, evaluated, tmp_path, monkeypatch):
    """And is of the objective that it is given: runs that train together differ in theirs."""
    made = []
    original = training.make_evaluation

    def make(*given):
        made.append(original(*given))
        return made[0]

    monkeypatch.setattr(training, "make_evaluation", make)
    folder = shutil.copytree(killed_run, tmp_path / "short")
    training.train(tiny_runs.short(tmp_path, runtime=RUNTIME, evaluate=EVALUATE))
    assert values(folder) == {12: values(evaluated)[12]}

    state, other = state_of(evaluated), ObjectiveConfig(align_alpha=1.3, uniform_t=0.7)
    found = made[0](state["params"], state["stats"], other)
    wanted = {f"eval/{name}": x for name, x in expected(evaluated, 12, other).items()}
    assert_close(found, wanted)
    # What is not finite ends the run as a divergence.
    params = jax.tree.map(lambda x: np.full_like(x, np.nan), state["params"])
    task = training._task(tiny_runs.short(tmp_path))
    run = session.Run(task.config, task.dataset)
    with pytest.raises(session.NotFinite, match=r"features \(\w+\) that are not finite at step 7"):
        session._evaluated(run, made[0], {"params": params, "stats": state["stats"]}, 7)


def parts(tmp_path, split, evaluators=("knn",), folds=1, count=200, objective=SUPERVISED):
    asked = EvaluateConfig(1, evaluators, count, eval_split=split)
    data_config = DataConfig(folds=folds)
    made = tiny_runs.short(tmp_path, objective=objective, data=data_config, evaluate=asked)
    dataset = data.load(made.data)
    return *during._parts(made, dataset), dataset


def pixels(source):
    return {source[i]["image"].tobytes() for i in range(len(source))}


def test_which_images(tmp_path):
    """A supervised run is not evaluated on labels that it trains on; others leave the test be."""
    for split, folds in (("train", 1), (None, 1), ("train", 5)):
        for name in ("knn", "linear", "classifier"):
            with pytest.raises(UserError, match=r"--eval-split: a supervised run .* with --folds"):
                parts(tmp_path, split, (name, "align_uniform"), folds)
    for split, folds, objective in (
        *(("test", 1, SUPERVISED), ("test", 5, SUPERVISED), (None, 5, SUPERVISED)),
        *(("test", 1, ObjectiveConfig()), ("test", 5, ObjectiveConfig())),
    ):
        bank, queries, dataset = parts(tmp_path, split, folds=folds, objective=objective)
        assert pixels(queries) <= pixels(dataset.test) - pixels(dataset.train)
        assert pixels(bank) <= pixels(dataset.train)
        assert abs(len(bank) - 100) < 10 and abs(len(queries) - 100) < 10
    # What takes no labels may be of the training images, as may all of a run without labels.
    for split, evaluators, objective in (
        (None, ("align_uniform",), SUPERVISED),
        *((split, ("knn", "linear"), ObjectiveConfig()) for split in (None, "train")),
    ):
        bank, queries, dataset = parts(tmp_path, split, evaluators, objective=objective)
        assert pixels(bank) | pixels(queries) <= pixels(dataset.train)
        assert not set(bank.indices) & set(queries.indices)
        for half in (bank, queries):  # each class as often as it is there
            assert abs(len(half) - 100) < 5
            assert np.bincount(half.labels, minlength=10).min() >= 8


def test_of_partly_labelled_images_the_labelled_ones(monkeypatch, tmp_path):
    train, test = arrays.digits()
    labels = np.where(np.arange(1400) % 2, np.asarray(train.labels), -1)
    some = Arrays(train.images, labels, train.class_names, train.origin)
    monkeypatch.setattr(arrays, "digits", lambda: (some, test))
    for half in parts(tmp_path, None, objective=ObjectiveConfig())[:2]:
        assert abs(len(half) - 100) < 5 and (half.labels >= 0).all()


def test_an_image_that_cannot_be_read_is_left_out(monkeypatch, tmp_path):
    """Of the first half, the queries still begin where they do."""
    seen = []
    classify = lambda x, y, queries, classes, num_classes: (  # noqa: E731
        seen.append((len(x), y, len(queries), classes)) or {"top1": 50.0}
    )
    held = functools.partial(during._classified, classify, "knn")
    monkeypatch.setitem(during.EVALUATORS, "knn", held)
    read = during.feed.in_order

    def unreadable(*given):
        for batch in read(*given):
            yield batch._replace(
                indices=np.where(np.isin(batch.indices, [3, 5]), -1, batch.indices)
            )

    monkeypatch.setattr(during.feed, "in_order", unreadable)
    asked = dataclasses.replace(EVALUATE, evaluators=("knn",))
    task = training._task(tiny_runs.short(tmp_path, evaluate=asked))
    apply, params, stats = models.create(task.config.model, jax.random.key(0))
    evaluate = during.make_evaluation(task.config, task.dataset, apply, task.devices)
    assert evaluate(params, stats) == {"eval/knn_top1": 50.0}
    bank, queries = during._parts(task.config, task.dataset)
    ((n, known, m, classes),) = seen
    assert (n, m) == (len(bank) - 2, len(queries))
    assert np.array_equal(known, np.delete(bank.labels, [3, 5]))
    assert np.array_equal(classes, queries.labels)


def test_classifier(tmp_path):
    """Its accuracy is of the second half alone."""
    logits = np.eye(4)[[0, 1, 2, 3, 0, 1, 2, 3]]
    labels = np.array([3, 3, 3, 0, 0, 1, 3, 3])
    config = tiny_runs.short(tmp_path)
    held = during.Held(config, {"logits": logits}, {}, labels, num_classes=4, bank=4)
    assert during.EVALUATORS["classifier"](held) == {"classifier_top1": 75.0}


def test_mistakes_leave_no_folder(tmp_path, rng):
    images = rng.integers(0, 256, (40, 8, 8, 1), dtype=np.uint8)
    np.save(tmp_path / "images.npy", images)
    ones = np.ones(40, np.int32)
    named = {"train_images": images, "train_labels": ones}
    np.savez(tmp_path / "one.npz", **named, test_images=images, test_labels=ones)
    small = {"optimizer": OptimizerConfig(epochs=1, batch_size=20)}
    bare = small | {"data": DataConfig(name=str(tmp_path / "images.npy"), recipe="digits")}
    one = small | {"data": DataConfig(name=str(tmp_path / "one.npz"), recipe="digits")}
    supervised = {"objective": SUPERVISED}
    unlabelled = {"eval_split": "test", "evaluators": ("align_uniform",)}
    for asked, changes, message in (
        ({"eval_layer": "backbon"}, {}, r"--eval-layer backbon: .* \(did you mean 'backbone'\?\)"),
        ({"eval_split": "train"}, supervised, "--eval-split: a supervised run"),
        ({"evaluators": ("classifier",)}, {}, "--evaluators classifier: the run has none"),
        ({}, bare, "--evaluators knn linear: .* no labels"),
        (unlabelled, bare, "--eval-split test: .* no test"),
        ({}, one, "--evaluators linear: .* one class"),
    ):
        evaluate = EvaluateConfig(eval_every_epochs=1, **asked)
        with pytest.raises(UserError, match=message):
            training.train(tiny_runs.short(tmp_path, evaluate=evaluate, **changes))
        assert not (tmp_path / "short").exists()
    for asked, message in (
        ({"eval_images": 3}, "--eval-images 3"),
        ({"evaluators": ()}, "name one"),
        ({"eval_every_epochs": 0}, "--eval-every-epochs 0"),
    ):
        with pytest.raises(UserError, match=message):
            EvaluateConfig(**asked)


@pytest.mark.slow
def test_of_a_queue_the_trained_encoder(tmp_path):
    config = tiny_runs.short(
        tmp_path,
        runtime=RUNTIME,
        model=ModelConfig(dim=3, width=0.1, batch_norm="split", bn_groups=4),
        moco=MocoConfig(queue_size=440, ema_decay=1.0),
        evaluate=FEW,
    )
    folder = training.train(config)
    wanted = expected(folder, 12)
    del wanted["linear_top1"]
    assert_close(values(folder)[12], wanted)
