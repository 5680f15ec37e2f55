"""Fine-tuning: the labels it uses, what it trains, how it chooses, and what it reports."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest
import tiny_runs
from run_states import killed_after_checkpoint, state_of

from hypersphere_jax import augment, data, finetune, models, runs, training
from hypersphere_jax.config import (
    DataConfig,
    Diverged,
    FinetuneConfig,
    MocoConfig,
    ModelConfig,
    ObjectiveConfig,
    PretrainConfig,
    RuntimeConfig,
    UserError,
)
from hypersphere_jax.data import arrays
from hypersphere_jax.data.source import Arrays

RUNTIME = RuntimeConfig(devices=1, log_every_steps=10, checkpoint_every_steps=4)


def asked(folder, runs_dir, **changes):
    return FinetuneConfig(str(folder), runs_dir=str(runs_dir), runtime=RUNTIME, **changes)


@pytest.fixture(scope="module")
def tuned(image_run, once):
    """Two epochs on a tenth of the labels, from the checkpoint of step 28 (read only)."""
    few = {"fraction": 0.1, "epochs": 2, "step": 28, "name": "tuned"}
    make = lambda folder: finetune.finetune(asked(image_run, folder, **few))  # noqa: E731
    return once("tuned", make) / "tuned"


def result_of(folder):
    return json.loads((folder / "eval" / "finetune.json").read_text())


def logits(folder, images):
    encoder = runs.load_encoder(folder)
    x = jax.vmap(augment.make_evaluate("digits", 8))(images)
    apply = jax.jit(lambda x: encoder.apply(encoder.params, encoder.stats, x, False)[0]["logits"])
    return np.asarray(apply(x))


def test_what_is_trained(tuned, image_run):
    made, source = runs.read_config(tuned), runs.read_config(image_run)
    assert made.data == dataclasses.replace(source.data, fraction=0.1, recipe="digits:crop_flip")
    classifier = {"classifier_layer": "backbone", "num_classes": 10}
    assert made.model == dataclasses.replace(source.model, **classifier)
    weights = {f"{name}_weight": 0.0 for name in ("align", "uniform", "contrastive")}
    assert made.objective == ObjectiveConfig(**weights, supervised_weight=1.0)
    rule = made.optimizer
    assert (rule.learning_rate, rule.schedule, rule.batch_size) == (0.05, "cosine", 128)
    assert rule.nesterov and rule.weight_decay == 0 and rule.epochs == 2
    # It begins with the encoder of step 28 and a classifier of its own; the head is left out.
    start, end = state_of(tuned, 0)["params"], state_of(tuned)["params"]
    before = state_of(image_run, 28)["params"]
    assert start["head"].pop("classifier")["kernel"].shape[1] == 10
    end["head"].pop("classifier")
    jax.tree.map(np.testing.assert_array_equal, start, before)
    jax.tree.map(np.testing.assert_array_equal, end["head"], before["head"])
    kernels = [params["conv1"]["layer"]["kernel"] for params in (start, end)]
    assert not np.isclose(*kernels, atol=1e-6).all()


def test_nothing_of_a_queue_is_left(queue_run, tmp_path):
    base, whole = finetune._base(asked(queue_run, tmp_path))
    source = runs.read_config(queue_run)
    assert (source.model.batch_norm, source.moco.queue_size) == ("split", 130)
    # Devices are not to shape the run, and all labels count.
    assert (base.model.batch_norm, base.moco) == ("sync", MocoConfig())
    assert base.model.bn_groups == ModelConfig().bn_groups
    assert base.data.fraction == 1 and len(whole.train) == 1400


def test_its_accuracy_is_that_of_the_classifier_on_the_test_split(tuned):
    result, (_, test) = result_of(tuned), arrays.digits()
    order = np.argsort(-logits(tuned, test.images), axis=1)
    hits = order == np.asarray(test.labels)[:, None]
    np.testing.assert_allclose(result["top1"], 100 * hits[:, 0].mean(), atol=1e-9)
    np.testing.assert_allclose(result["top5"], 100 * hits[:, :5].any(axis=1).mean(), atol=1e-9)
    counted = {
        **{"n": 397, "labels": 140, "fraction": 0.1, "num_classes": 10, "n_valid": 0, "step": 2},
        **{"split": "test", "layer": "backbone", "init_step": 28, "valid_top1": None},
    }
    assert {name: result[name] for name in counted} == counted


def test_held_out_labels_choose():
    """Of each class 20% of the fraction, of which no candidate has seen one."""
    whole = data.load(DataConfig())
    held = finetune.held_out(whole, 0.1, 0)
    fitting = data.load(DataConfig(fraction=0.8 * 0.1)).train
    part = data.load(DataConfig(fraction=0.1)).train
    assert not set(held.indices) & set(fitting.indices)
    assert set(held.indices) | set(fitting.indices) == set(part.indices)
    counts = np.bincount(whole.train.labels)
    expected = [round(0.1 * count) - round(0.08 * count) for count in counts.tolist()]
    assert np.bincount(held.labels).tolist() == expected
    # Images without label have nothing to say.
    labels = np.where(np.arange(1400) % 2, np.asarray(whole.train.labels), -1)
    some = whole._replace(train=Arrays(whole.train.images, labels, whole.class_names, "some"))
    assert (finetune.held_out(some, 0.5, 0).labels >= 0).all()


@pytest.fixture
def planned(tuned, tmp_path, monkeypatch):
    """Runs that would be trained, and on which images they would be scored, by learning rate.

    Those in `diverging` diverge; the accuracies of the others are in `top1`.
    """
    runs_, sources, diverging, top1 = [], [], set(), {}

    def train(run, command):
        runs_.append(run)
        if run.optimizer.learning_rate in diverging:
            raise Diverged("the run diverged", "choose another --name")
        folder = tmp_path / f"made-{run.optimizer.learning_rate}"
        folder.mkdir(exist_ok=True)
        shutil.copy(tuned / "config.json", folder)
        return folder

    def score(folder, source, devices):
        sources.append(source)
        return {"step": 1, "top1": top1[float(folder.name.removeprefix("made-"))]}

    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr(finetune, "score", score)
    return runs_, sources, diverging, top1


def test_learning_rate_is_chosen_without_the_test_split(image_run, tmp_path, planned, caplog):
    runs_, sources, diverging, top1 = planned
    top1 |= {0.01: 60.0, 0.1: 80.0, 0.2: 80.0}
    diverging.add(5.0)
    rates = (0.01, 0.2, 5.0, 0.1)
    folder, result = finetune.finetune(
        asked(image_run, tmp_path, fraction=0.1, learning_rates=rates)
    )
    assert result == result_of(folder)
    assert [run.optimizer.learning_rate for run in runs_] == [*rates, 0.1]
    assert [round(run.data.fraction, 12) for run in runs_] == [0.08] * 4 + [0.1]
    assert {run.runs_dir for run in runs_[:4]} == {
        str(tmp_path / "images-finetune-0.1" / "learning_rates")
    }
    assert (runs_[-1].runs_dir, runs_[-1].name) == (str(tmp_path), "images-finetune-0.1")
    whole = data.load(DataConfig())
    held = finetune.held_out(whole, 0.1, 0).indices.tolist()
    assert [source.indices.tolist() for source in sources[:3]] == [held] * 3
    assert np.array_equal(sources[3].images, whole.test.images)
    assert result["chosen"] == {"learning_rate": 0.1}
    assert result["valid_top1"] == [60, 80, None, 80] and result["learning_rates"] == list(rates)
    assert result["n_valid"] == len(held) and result["labels"] == 140
    assert f"{len(held)} held-out images" in caplog.text  # fewer than 100, a noisy choice
    assert "5 is left out: the run diverged" in caplog.text


def test_rates_that_diverged_are_not_tried_again(image_run, tmp_path, planned, monkeypatch):
    runs_, _, diverging, _ = planned
    diverging |= {5000.0, 6000.0, 7000.0}

    def tried(*rates, **options):
        runs_.clear()
        with pytest.raises(UserError, match=r"--learning-rates 5000 6000\b.* diverged at each"):
            finetune.finetune(asked(image_run, tmp_path, learning_rates=rates, **options))
        return [run.optimizer.learning_rate for run in runs_]

    assert tried(5000.0, 6000.0) == [5000, 6000]
    assert tried(5000.0, 6000.0) == []
    assert tried(5000.0, 6000.0, 7000.0) == [7000]
    assert tried(5000.0, 6000.0, seed=1) == [5000, 6000]  # which is another run
    train, test = arrays.digits()
    train.images[0, 0, 0] ^= 1
    monkeypatch.setattr(arrays, "digits", lambda: (train, test))
    assert tried(5000.0, 6000.0, seed=1) == [5000, 6000]  # as it is on other images
    alone = asked(image_run, tmp_path, learning_rates=(5000.0,), name="alone")
    with pytest.raises(Diverged, match=r"the run diverged: .* lower --learning-rates$"):
        finetune.finetune(alone)


def test_epochs_and_batches_by_the_labels(image_run, tmp_path, planned):
    runs_, _, _, top1 = planned
    top1[0.05] = 50.0
    for fraction, epochs, batch_size in ((1.0, 30, 256), (0.1, 30, 128), (0.01, 60, 8)):
        finetune.finetune(asked(image_run, tmp_path, fraction=fraction))
        rule = runs_[-1].optimizer
        assert (rule.epochs, rule.batch_size) == (epochs, batch_size)
        assert runs_[-1].name == f"images-finetune-{fraction:g}"


def test_of_equal_rates_the_smallest():
    for rates, top1, best in (
        ((0.2, 0.05, 0.1), (80.0, 80.0, 79.0), 0.05),
        ((0.2, 0.05, 0.1), (80.5, 80.0, 80.5), 0.1),
        ((0.05, 0.1), (None, 0.0), 0.1),
    ):
        assert finetune.best_rate(rates, top1) == best
    with pytest.raises(UserError, match=r"--learning-rates 0\.05 0\.1: .*; give lower ones"):
        finetune.best_rate((0.05, 0.1), (None, None))


def test_score(tuned, monkeypatch):
    """Of the images with a label; logits that are not finite are no accuracy."""
    found = np.array([[0, 1, 2.0], [5, 1, 4], [1, 2, 3], [0, 9, 1]])

    def features(encoder, source, layers, devices):
        return {"logits": (found, np.array([2, 2, -1, 1]))}

    monkeypatch.setattr(finetune, "split_features", features)
    test = data.load(DataConfig()).test
    result = finetune.score(tuned, test)
    np.testing.assert_allclose(result["top1"], 200 / 3)
    assert result["n"] == 3 and result["step"] == 2
    found[3, 0] = np.inf
    with pytest.raises(Diverged, match="logits that are not finite at step 2"):
        finetune.score(tuned, test)


def test_mistakes(image_run, tmp_path):
    for changes, message in (
        ({"layer": "conv2"}, r"--classifier-layer conv2: .* on backbone, output"),
        ({"fraction": 0.001, "learning_rates": (0.1, 0.2)}, "no class has enough images"),
        ({"step": 3}, "no checkpoint of step 3"),
        ({"batch_size": 1402}, "--batch-size 1402 is more than the 1400"),
        ({"recipe": "digit"}, "did you mean 'digits'"),
    ):
        with pytest.raises(UserError, match=message):
            finetune.finetune(asked(image_run, tmp_path, **changes))
        assert not list(tmp_path.iterdir())
    several = {"learning_rates": (0.1, 0.2), "runtime": RuntimeConfig(hosts="auto")}
    for changes, message in (
        ({"fraction": 0.0}, "--fraction 0.0: must be in"),
        ({"learning_rates": ()}, "give one or more"),
        ({"learning_rates": (0.1, 0.1)}, "twice"),
        ({"learning_rates": (0.1, -1.0)}, "positive"),
        ({"epochs": 0}, "--epochs 0"),
        (several, "several are tried on one host"),
    ):
        with pytest.raises(UserError, match=message):
            FinetuneConfig("x", **changes)
    with pytest.raises(UserError, match="--init-from, which is not given"):
        PretrainConfig(init_step=3)


def test_data_that_cannot_be_fine_tuned_on(image_run, tmp_path, rng):
    images, ones = rng.integers(0, 256, (40, 8, 8, 1), dtype=np.uint8), np.ones(40, np.int32)
    np.save(tmp_path / "images.npy", images)
    named = {"train_images": images, "train_labels": ones}
    np.savez(tmp_path / "one.npz", **named, test_images=images, test_labels=ones)
    supervised = ObjectiveConfig(supervised_weight=1)
    for file, message, also in (
        ("images.npy", "have no labels to fine-tune on", "--supervised-weight: .* have no labels"),
        ("one.npz", "are all of one class, and two are needed", "all of one class"),
    ):
        where = DataConfig(name=str(tmp_path / file), recipe="digits")
        record = json.loads((image_run / "config.json").read_text())
        record["config"]["data"] = dataclasses.asdict(where)
        (tmp_path / "source").mkdir(exist_ok=True)
        (tmp_path / "source" / "config.json").write_text(json.dumps(record))
        with pytest.raises(UserError, match=message):
            finetune.finetune(asked(tmp_path / "source", tmp_path / "made", batch_size=4))
        with pytest.raises(UserError, match=also):
            training.train(tiny_runs.short(tmp_path / "made", data=where, objective=supervised))
    assert not (tmp_path / "made").exists()


def test_before_the_head():
    of_images = set(models.MODELS) - {"sentence_gru"}
    found = {name: models.before_head(name) for name in of_images}
    assert found.pop("small_alexnet") == "fc7" and set(found.values()) == {"backbone"}


@pytest.mark.slow
def test_pretraining_and_a_good_learning_rate_are_of_use(image_run, tmp_path):
    options = {"fraction": 0.1, "batch_size": 32, "epochs": 15}
    rates = asked(image_run, tmp_path, learning_rates=(1e-6, 0.2), **options)
    folder, result = finetune.finetune(rates)
    assert result["chosen"] == {"learning_rate": 0.2}
    assert result["valid_top1"][1] > result["valid_top1"][0] + 5
    assert finetune.finetune(rates)[1] == result  # the same command does nothing again
    scratch = asked(image_run, tmp_path, step=0, name="scratch", learning_rates=(0.2,), **options)
    assert result["top1"] > finetune.finetune(scratch)[1]["top1"]
    held = finetune.held_out(data.load(DataConfig()), 0.1, 0)
    train, _ = arrays.digits()
    known = logits(folder / "learning_rates" / "0.2", train.images[held.indices]).argmax(axis=1)
    score = 100 * np.mean(known == np.asarray(train.labels)[held.indices])
    np.testing.assert_allclose(result["valid_top1"][1], score)


@pytest.mark.slow
def test_stopped_anywhere_it_goes_on(image_run, tmp_path):
    options = {"fraction": 0.1, "learning_rates": (0.01, 0.1), "epochs": 4, "batch_size": 64}
    whole, result = finetune.finetune(asked(image_run, tmp_path / "whole", **options))
    for at in (4, 8):  # in the first candidate, and (twice) at the end of a run
        with killed_after_checkpoint(at):
            finetune.finetune(asked(image_run, tmp_path / "cut", **options))
    folder, again = finetune.finetune(asked(image_run, tmp_path / "cut", **options))
    assert again == result
    jax.tree.map(np.testing.assert_array_equal, state_of(folder), state_of(whole))
