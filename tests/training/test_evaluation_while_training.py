"""Evaluation during training: its numbers, its images, and that training does not change."""

import json

import jax
import numpy as np
import pytest
import tiny_runs
from run_states import assert_same_run, killed, state_of, timeless
from scipy.spatial.distance import pdist
from scipy.stats import entropy

from hypersphere_jax import augment, data, models
from hypersphere_jax import configs as C
from hypersphere_jax.data import subsets
from hypersphere_jax.evaluation import callbacks, knn, linear
from hypersphere_jax.training import run_dir
from hypersphere_jax.training import train as training


def short(folder):
    """Return the config `short` with an evaluation at steps 6 and 12, the ends of its epochs."""
    evaluate = {"eval_every_epochs": 1, "eval_images": 200, "eval_layer": "backbone"}
    return tiny_runs.short(folder, log_every_steps=5, **evaluate)


@pytest.fixture(scope="module")
def evaluated(once):
    return once("evaluated", lambda folder: training.train(short(folder))) / "short"


def scores(folder):
    """Return the scores by step, and the other metrics by step."""
    others = {record["step"]: record for record in timeless(folder)}
    found = {}
    for step, record in others.items():
        names = [name for name in record if name.startswith("eval/")]
        if names:
            found[step] = {name.removeprefix("eval/"): record.pop(name) for name in names}
    return found, others


def expected_scores(folder, step):
    """Compute the scores from the checkpoint, in one batch."""
    config = run_dir.read_config(folder)
    state = state_of(folder, step)
    train = data.load(config).train
    bank, queries = subsets.fold(subsets.fraction(train, 200 / len(train), 0), 2, 0, 0)
    images = np.stack([part[i]["image"] for part in (bank, queries) for i in range(len(part))])
    apply = models.abstract(config)[0]

    @jax.jit
    def outputs(images):
        numbers = np.arange(len(images), dtype=np.int32)
        transform = augment.make_augment("digits", 8)
        views = augment.two_views(transform, jax.random.key(0), images, numbers)
        inputs = (jax.vmap(augment.make_evaluate("digits", 8))(images), *views)
        return [apply(state["params"], state["stats"], x, False)[0] for x in inputs]

    plain, *views = outputs(images)
    n = len(bank)
    x = np.asarray(plain["backbone"]).reshape(len(images), -1)
    split = (x[:n], bank.labels, x[n:], queries.labels)
    v1, v2 = (np.asarray(view["output"], float) for view in views)
    distances = pdist(np.asarray(plain["output"], float), "sqeuclidean")
    return {
        "knn_top1": knn.knn_probe(*split, num_classes=10, k=5)["top1"],
        "linear_top1": linear.linear_probe(*split, num_classes=10)["top1"],
        "align": (np.linalg.norm(v1 - v2, axis=1) ** config.align_alpha).mean(),
        "uniform": np.log(np.exp(-config.uniform_t * distances).mean()),
        "rankme": np.exp(entropy(np.linalg.svd(np.asarray(plain["output"]), compute_uv=False))),
    }


@pytest.mark.slow
def test_scores_are_those_of_the_checkpoint_and_the_run_stays_the_same(evaluated, short_run):
    found, others = scores(evaluated)
    assert list(found) == [6, 12] and list(others) == [5, 6, 10, 12]
    expected = expected_scores(evaluated, 12)
    assert found[12] == pytest.approx(expected, rel=1e-7, abs=2e-5)
    assert found[6]["align"] != found[12]["align"]
    jax.tree.map(np.testing.assert_array_equal, state_of(evaluated), state_of(short_run))
    _, plain = scores(short_run)
    assert all(others[step] == plain[step] for step in (6, 10, 12))


@pytest.mark.slow
def test_interrupted_evaluation_is_repeated(evaluated, tmp_path):
    """The state is saved before the evaluation, and the log has a line without scores."""
    folder = killed(evaluated, 6, tmp_path)
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    plain = [{k: v for k, v in r.items() if not k.startswith("eval/")} for r in records[:2]]
    lines = [json.dumps(record) + "\n" for record in plain]
    (folder / "metrics.jsonl").write_text("".join(lines))
    training.train(short(tmp_path))
    assert_same_run(folder, evaluated)


def split_images(split, evaluators=("knn",), folds=1, supervised=True):
    """Return the images to search, the images to classify, and the data."""
    options = {"evaluators": evaluators, "eval_images": 200, "eval_split": split, "folds": folds}
    options["supervised_weight"] = float(supervised)
    config = tiny_runs.short(".", eval_every_epochs=1, **options)
    dataset = data.load(config)
    config = config.replace(num_classes=10 if supervised else 0)
    return *callbacks.split_images(config, dataset), dataset


def pixels(source):
    return {source[i]["image"].tobytes() for i in range(len(source))}


@pytest.mark.parametrize("evaluator", ["knn", "linear", "classifier"])
@pytest.mark.parametrize(("split", "folds"), [("train", 1), (None, 1), ("train", 5)])
def test_supervised_run_does_not_classify_its_training_images(evaluator, split, folds):
    with pytest.raises(C.UserError, match="eval_split"):
        split_images(split, (evaluator, "align_uniform"), folds)


@pytest.mark.parametrize(
    ("split", "folds", "supervised"), [("test", 1, True), (None, 5, True), ("test", 1, False)]
)
def test_images_to_classify_from_the_test_split(split, folds, supervised):
    bank, queries, dataset = split_images(split, folds=folds, supervised=supervised)
    assert pixels(queries) <= pixels(dataset.test) - pixels(dataset.train)
    assert pixels(bank) <= pixels(dataset.train)
    assert max(abs(len(half) - 100) for half in (bank, queries)) < 5


@pytest.mark.parametrize(
    ("split", "evaluators", "supervised"),
    [(None, ("align_uniform",), True), ("train", ("knn", "linear"), False)],
)
def test_images_to_classify_from_the_training_split(split, evaluators, supervised):
    """Classes are stratified, and no image is in both halves."""
    bank, queries, dataset = split_images(split, evaluators, supervised=supervised)
    assert pixels(bank) | pixels(queries) <= pixels(dataset.train)
    assert not set(bank.indices) & set(queries.indices)
    for half in (bank, queries):
        assert abs(len(half) - 100) < 5
        assert np.bincount(half.labels, minlength=10).min() >= 8


def run_evaluator(outputs, evaluators, **options):
    """Evaluate an encoder with these outputs for the images of the digits."""
    options |= {"evaluators": evaluators, "eval_images": "all"}
    config = tiny_runs.short(".", image_size=8, in_channels=1, recipe="digits", **options)
    dataset = data.load(config)

    def apply(params, stats, x, train):
        rows = np.arange(len(x)) % len(outputs)
        return {"output": outputs[rows], "logits": outputs[rows]}, stats

    evaluate = callbacks.evaluation_callback(config, dataset, apply, jax.devices()[:1])
    return evaluate({}, {})


def test_classifier_is_scored_on_the_images_to_classify():
    """The classifier always predicts class 3."""
    options = {"supervised_weight": 1.0, "num_classes": 10, "eval_split": "test"}
    values = run_evaluator(np.eye(10, dtype=np.float32)[3:4], ("classifier",), **options)
    labels = data.load(tiny_runs.short(".")).test.labels
    assert values == {"eval/classifier_top1": pytest.approx(100 * np.mean(labels == 3))}


@pytest.mark.parametrize(("d", "rank"), [(6, 1), (6, 2), (128, 3), (128, 5)])
def test_collapse_is_reported(d, rank, caplog):
    """Fewer directions than d / 32 or than 1.5 are a collapse."""
    outputs = np.eye(d, dtype=np.float32)[:rank]
    values = run_evaluator(outputs, ("rankme", "align_uniform"), dim=d)
    assert values["eval/rankme"] == pytest.approx(rank, rel=1e-3)
    assert len(caplog.messages) == (rank < max(1.5, d / 32))


@pytest.mark.parametrize("rank", [0, 3])
def test_collapse_of_zeros_and_few_directions_with_labels(rank, caplog):
    """A supervised run needs no more directions than classes."""
    outputs = np.eye(128, dtype=np.float32)[:rank] if rank else np.zeros((1, 128), np.float32)
    options = {"supervised_weight": 1.0, "num_classes": 10, "dim": 128}
    values = run_evaluator(outputs, ("rankme",), **options)
    assert values["eval/rankme"] == pytest.approx(rank, rel=1e-3)
    assert len(caplog.messages) == (rank == 0)


def test_neighbours_and_votes_are_options():
    """The neighbours are all images, so that the largest class wins."""
    options = {"eval_vote": "similarity", "eval_temperature": 1e6, "eval_split": "test"}
    count = len(data.load(tiny_runs.short(".")).train)
    values = run_evaluator(np.eye(6, dtype=np.float32)[:1], ("knn",), eval_k=count, **options)
    dataset = data.load(tiny_runs.short("."))
    largest = np.bincount(dataset.train.labels).argmax()
    expected = 100 * np.mean(dataset.test.labels == largest)
    assert values["eval/knn_top1"] == pytest.approx(expected)
