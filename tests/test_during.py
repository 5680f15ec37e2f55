"""Evaluation while a run trains: its numbers, and that it changes no other."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
from test_hosts import run_two
from test_training import RUNTIME, assert_same_run, config, state_of, stop_at

from hypersphere_jax import augment, checkpoint, data, models, runs, sharding, training
from hypersphere_jax.config import (
    DataConfig,
    EvaluateConfig,
    MocoConfig,
    ModelConfig,
    ObjectiveConfig,
    OptimizerConfig,
    UserError,
)
from hypersphere_jax.data import views
from hypersphere_jax.evaluation import during, linear, metrics
from hypersphere_jax.evaluation.during import make_evaluation

EVALUATE = EvaluateConfig(eval_every_epochs=1, eval_images=200, eval_layer="backbone")
FEW = dataclasses.replace(EVALUATE, evaluators=("knn", "align_uniform"))  # which compile sooner
SPARSE = dataclasses.replace(RUNTIME, log_every_steps=4)  # 4, 8, 12 of 12; epochs end at 6 and 12


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return training.train(config(folder, runtime=SPARSE, evaluate=EVALUATE))


def without_time(records, *, evaluations=True):
    times = ("images_per_s", "data_wait")
    return [
        {
            k: v
            for k, v in r.items()
            if k not in times and (evaluations or not k.startswith("eval/"))
        }
        for r in records
    ]


def values(folder):
    records = runs.read_metrics(folder)
    return {
        record["step"]: {k[5:]: v for k, v in record.items() if k.startswith("eval/")}
        for record in records
        if any(key.startswith("eval/") for key in record)
    }


def expected(folder, step, split="train", layer="backbone", images=200):
    """By NumPy, on features of the checkpoint that are computed on one device at once."""
    made = runs.read_config(folder)
    apply, params, stats = models.abstract(made.model)
    like = {"params": params, "stats": stats}
    tree = checkpoint.restore(folder / "checkpoints", like, step)[1]
    dataset = data.load(made.data)
    if split == "train":
        part = views.fraction(dataset.train, images / len(dataset.train), 0)
        bank, queries = views.fold(part, 2, 0, 0)
    else:
        bank, queries = (
            views.fraction(s, images / 2 / len(s), 0) for s in (dataset.train, dataset.test)
        )
    whole = np.stack([part[i]["image"] for part in (bank, queries) for i in range(len(part))])
    labels = np.concatenate([bank.labels, queries.labels])
    prepare = augment.make_evaluate("digits", 8)

    def network(x):
        return apply(tree["params"], tree["stats"], x, False)[0]

    found = network(jax.vmap(prepare)(whole))
    n, x, z = len(bank), np.asarray(found[layer]), np.asarray(found["output"], float)
    x = x.reshape(len(x), -1)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    hits = 0
    for query, label in zip(unit[n:], labels[n:], strict=True):
        near = labels[:n][np.argsort(-unit[:n] @ query, kind="stable")[:5]]
        votes = np.bincount(near, minlength=10)
        hits += next(c for c in near if votes[c] == votes.max()) == label
    transform = augment.make_augment("digits", 8)
    pair = augment.two_views(transform, jax.random.key(0), whole, np.arange(len(whole)))
    v1, v2 = (np.asarray(network(view)["output"], float) for view in pair)
    potentials = [np.exp(-2 * ((a - b) ** 2).sum()) for a, b in itertools.combinations(z, 2)]
    wanted = {
        "knn_top1": 100 * hits / len(queries),
        "align": ((v1 - v2) ** 2).sum(axis=1).mean(),
        "uniform": np.log(np.mean(potentials)),
    }
    return wanted, (z, v1, v2), (x[:n], labels[:n], x[n:], labels[n:])


@pytest.mark.parametrize("step", [6, 12])
def test_numbers(evaluated, step):
    found = values(evaluated)
    assert list(found) == [6, 12]
    wanted, (z, v1, v2), split = expected(evaluated, step)
    # As `probe` and `metrics` measure them.
    wanted["linear_top1"] = linear.linear_probe(*split, num_classes=10)["top1"]
    assert found[step].keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[step][name], value, atol=2e-5, err_msg=name)
    summary = metrics.summary(z.astype(np.float32), (v1, v2))
    for name in ("align", "uniform"):
        np.testing.assert_allclose(found[step][name], summary[name], atol=2e-5)


def test_other_numbers_stay_as_they_are(evaluated, tmp_path):
    plain = training.train(config(tmp_path, runtime=SPARSE))
    jax.tree.map(np.testing.assert_array_equal, state_of(plain), state_of(evaluated))
    records = without_time(runs.read_metrics(evaluated), evaluations=False)
    assert [record["step"] for record in records] == [4, 6, 8, 12]
    shared = [record for record in records if record["step"] != 6]
    assert shared == without_time(runs.read_metrics(plain))


def test_resumed(evaluated, tmp_path):
    stop_at(tmp_path, 9, runtime=SPARSE, evaluate=EVALUATE)
    training.train(config(tmp_path, runtime=SPARSE, evaluate=EVALUATE))
    assert_same_run(tmp_path / "run", evaluated)
    # What is evaluated may change in between, as it shapes no number of the run.
    stop_at(tmp_path / "other", 9, runtime=SPARSE)
    training.train(config(tmp_path / "other", runtime=SPARSE, evaluate=EVALUATE))
    assert values(tmp_path / "other" / "run") == {12: values(evaluated)[12]}


@pytest.mark.slow
def test_the_test_split_by_option_only(evaluated, tmp_path):
    made = runs.read_config(evaluated)
    dataset = data.load(made.data)
    apply, _, _ = models.abstract(made.model)
    devices = sharding.local_devices(2)
    tree = state_of(evaluated)
    blind = make_evaluation(made, dataset._replace(test=None), apply, devices)
    assert {f"eval/{k}": v for k, v in values(evaluated)[12].items()} == blind(
        tree["params"], tree["stats"]
    )
    asked = dataclasses.replace(FEW, eval_split="test", eval_layer="output")
    made = dataclasses.replace(made, evaluate=asked)
    found = make_evaluation(made, dataset, apply, devices)(tree["params"], tree["stats"])
    for name, value in expected(evaluated, 12, "test", "output")[0].items():
        np.testing.assert_allclose(found[f"eval/{name}"], value, atol=2e-5, err_msg=name)
    with pytest.raises(UserError, match=r"--eval-split test: .* no test split"):
        make_evaluation(made, dataset._replace(test=None), apply, devices)


@pytest.mark.slow
def test_of_a_queue_the_trained_encoder(tmp_path):
    folder = training.train(
        config(
            tmp_path,
            runtime=SPARSE,
            model=ModelConfig(dim=3, width=0.1, batch_norm="split", bn_groups=4),
            moco=MocoConfig(queue_size=440, ema_decay=1.0),
            evaluate=FEW,
        )
    )
    for name, value in expected(folder, 12)[0].items():
        np.testing.assert_allclose(values(folder)[12][name], value, atol=2e-5, err_msg=name)


@pytest.mark.slow
def test_any_number_of_devices(evaluated):
    made = runs.read_config(evaluated)
    apply, _, _ = models.abstract(made.model)
    tree = state_of(evaluated)
    # 203 images do not divide.
    made = dataclasses.replace(made, evaluate=dataclasses.replace(FEW, eval_images=203))
    found, same = (
        make_evaluation(made, data.load(made.data), apply, sharding.local_devices(count))(
            tree["params"], tree["stats"]
        )
        for count in (3, 1)
    )
    for name in found:
        np.testing.assert_allclose(found[name], same[name], atol=1e-5)


@pytest.mark.slow
def test_the_classifier_of_a_supervised_run(tmp_path):
    folder = training.train(
        config(
            tmp_path,
            objective=ObjectiveConfig(supervised_weight=1),
            data=DataConfig(folds=5),
            optimizer=OptimizerConfig(epochs=4, batch_size=220, learning_rate=0.5),
            evaluate=EvaluateConfig(4, ("classifier",), 2000),
        )
    )
    made = runs.read_config(folder)
    test = data.load(made.data).test
    encoder = runs.load_encoder(folder)
    images = np.stack([test[i]["image"] for i in range(len(test))])
    x = jax.vmap(augment.make_evaluate("digits", 8))(images)
    best = np.asarray(encoder.apply(encoder.params, encoder.stats, x, False)[0]["logits"]).argmax(1)
    (found,) = values(folder).values()
    np.testing.assert_allclose(found["classifier_top1"], 100 * np.mean(best == test.labels))


def test_a_supervised_run_is_not_evaluated_on_labels_that_it_trains_on(tmp_path):
    def parts(split, evaluators=("classifier",), folds=1):
        objective = ObjectiveConfig(supervised_weight=1)
        asked = EvaluateConfig(1, evaluators, 200, eval_split=split)
        made = config(tmp_path, objective=objective, data=DataConfig(folds=folds), evaluate=asked)
        dataset = data.load(made.data)
        bank, queries = during._parts(made, dataset)
        return bank, queries, dataset

    def images(source):
        return {source[i]["image"].tobytes() for i in range(len(source))}

    for split, folds in (("train", 1), (None, 1), ("train", 5)):
        for name in ("knn", "linear", "classifier"):
            with pytest.raises(UserError, match=r"--eval-split: a supervised run .* with --folds"):
                parts(split, (name, "align_uniform"), folds)
    for split, folds in (("test", 1), ("test", 5), (None, 5)):
        bank, queries, dataset = parts(split, folds=folds)
        assert images(queries) <= images(dataset.test) - images(dataset.train)
        assert images(bank) <= images(dataset.train)
    # What takes no labels may be of the training images.
    _, queries, dataset = parts(None, ("align_uniform",))
    assert images(queries) <= images(dataset.train)


def test_mistakes_leave_no_folder(tmp_path, rng):
    def fails(message, evaluate, **changes):
        evaluate = EvaluateConfig(eval_every_epochs=1, **evaluate)
        with pytest.raises(UserError, match=message):
            training.train(config(tmp_path, evaluate=evaluate, **changes))
        assert not (tmp_path / "run").exists()

    fails(r"--eval-layer backbon: .* \(did you mean 'backbone'\?\)", {"eval_layer": "backbon"})
    supervised = {"objective": ObjectiveConfig(supervised_weight=1)}
    fails("--eval-split: a supervised run", {"eval_split": "train"}, **supervised)
    fails("--evaluators classifier: the run has none", {"evaluators": ("classifier",)})
    images = rng.integers(0, 256, (40, 8, 8, 1), dtype=np.uint8)
    np.save(tmp_path / "images.npy", images)
    small = {"optimizer": OptimizerConfig(epochs=1, batch_size=20)}
    bare = small | {"data": DataConfig(name=str(tmp_path / "images.npy"), recipe="digits")}
    fails("--evaluators knn linear: .* no labels", {}, **bare)
    fails(
        "--eval-split test: .* no test",
        {"eval_split": "test", "evaluators": ("align_uniform",)},
        **bare,
    )
    ones = np.ones(40, np.int32)
    np.savez(
        tmp_path / "one.npz",
        **{
            "train_images": images,
            "train_labels": ones,
            "test_images": images,
            "test_labels": ones,
        },
    )
    one = small | {"data": DataConfig(name=str(tmp_path / "one.npz"), recipe="digits")}
    fails("--evaluators linear: .* one class", {}, **one)
    with pytest.raises(UserError, match="--eval-images 3"):
        EvaluateConfig(eval_images=3)
    with pytest.raises(UserError, match="name one"):
        EvaluateConfig(evaluators=())
    with pytest.raises(UserError, match="--eval-every-epochs 0"):
        EvaluateConfig(eval_every_epochs=0)


@pytest.mark.slow
def test_images_without_labels(tmp_path, rng):
    np.save(tmp_path / "images.npy", rng.integers(0, 256, (40, 8, 8, 1), dtype=np.uint8))
    folder = training.train(
        config(
            tmp_path,
            data=DataConfig(name=str(tmp_path / "images.npy"), recipe="digits"),
            optimizer=OptimizerConfig(epochs=1, batch_size=20),
            evaluate=EvaluateConfig(1, ("align_uniform",), 40),
        )
    )
    assert values(folder)[2].keys() == {"align", "uniform"}


def test_weights_that_are_not_finite_end_the_run(tmp_path):
    """As a divergence, not as features that cannot be read."""
    wild = OptimizerConfig(epochs=2, batch_size=1400, learning_rate=1e30)
    with pytest.raises(UserError, match="the run diverged"):
        training.train(config(tmp_path, optimizer=wild, evaluate=EVALUATE))


@pytest.mark.slow
def test_two_hosts(evaluated, tmp_path):
    options = ("--eval-every-epochs", "1", "--eval-images", "200", "--eval-layer", "backbone")
    options += ("--queue-size", "0", "--ema-decay", "0.999", "--bn-groups", "8")  # no queue here
    ends, _ = run_two(tmp_path, options=(options, options))
    assert [status for status, _ in ends] == [0, 0], ends
    for step, found in values(evaluated).items():
        for name in ("align", "uniform"):
            other = values(tmp_path / "run")[step][name]
            np.testing.assert_allclose(other, found[name], atol=1e-3)
