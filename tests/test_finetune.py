"""Fine-tuning: the labels it uses, what it trains, how it chooses, and what it reports."""

import shutil
from unittest.mock import Mock

import jax
import numpy as np
import pytest
from run_states import killed_after_checkpoint, state_of

from hypersphere_jax import augment, data
from hypersphere_jax import configs as C
from hypersphere_jax.training import finetune, run_dir
from hypersphere_jax.training import train as training
from hypersphere_jax.utils.files import read_json

RUNTIME = C.RuntimeConfig(devices=1, log_every_steps=10, checkpoint_every_steps=4)


def asked(folder, runs_dir, **changes):
    return C.FinetuneConfig(str(folder), runs_dir=str(runs_dir), **vars(RUNTIME), **changes)


@pytest.fixture(scope="module")
def tuned(image_run, once):
    """Two epochs on a tenth of the labels, from the checkpoint of step 28 (read only)."""
    few = {"fraction": 0.1, "epochs": 2, "step": 28, "name": "tuned"}
    make = lambda folder: finetune.run_finetune(asked(image_run, folder, **few))  # noqa: E731
    return once("tuned", make) / "tuned"


@pytest.mark.slow
def test_what_is_trained(tuned, image_run, queue_run):
    made, source = run_dir.read_config(tuned), run_dir.read_config(image_run)
    kept = C.section(source, C.DataConfig), C.section(source, C.ModelConfig)
    expected = kept[0].replace(fraction=0.1, recipe="digits:crop_flip")
    assert C.section(made, C.DataConfig) == expected
    expected = kept[1].replace(classifier_layer="backbone", num_classes=10)
    assert C.section(made, C.ModelConfig) == expected
    weights = {f"{name}_weight": 0.0 for name in ("align", "uniform", "contrastive")}
    expected = C.ObjectiveConfig(**weights, supervised_weight=1.0)
    assert C.section(made, C.ObjectiveConfig) == expected
    assert (made.learning_rate, made.schedule, made.batch_size) == (0.05, "cosine", 128)
    assert made.nesterov and made.weight_decay == 0 and made.epochs == 2
    # It begins with the encoder of step 28 and a classifier of its own; the head is left out.
    start, end = state_of(tuned, 0)["params"], state_of(tuned)["params"]
    before = state_of(image_run, 28)["params"]
    assert start["head"].pop("classifier")["kernel"].shape[1] == 10
    end["head"].pop("classifier")
    jax.tree.map(np.testing.assert_array_equal, start, before)
    jax.tree.map(np.testing.assert_array_equal, end["head"], before["head"])
    assert not np.isclose(*(p["conv1"]["layer"]["kernel"] for p in (start, end)), atol=1e-6).all()
    # Of a queue nothing is left: devices are not to shape the run, and all labels count.
    base, whole = finetune._base(asked(queue_run, tuned))
    assert base.batch_norm == "sync" and base.bn_groups == C.ModelConfig().bn_groups
    assert base.queue_size == 0 and base.fraction == 1 and len(whole.train) == 1400


@pytest.mark.slow
def test_its_accuracy_is_that_of_the_classifier_on_the_test_split(tuned, monkeypatch):
    result = read_json(tuned / "eval" / "finetune.json")
    test = data.load(C.DataConfig()).test
    encoder = run_dir.load_encoder(tuned)
    x = jax.vmap(augment.make_evaluate("digits", 8))(test.images)
    apply = jax.jit(lambda x: encoder.apply(encoder.params, encoder.stats, x, False)[0]["logits"])
    hits = np.argsort(-np.asarray(apply(x)), axis=1) == np.asarray(test.labels)[:, None]
    np.testing.assert_allclose(result["top1"], 100 * hits[:, 0].mean(), atol=1e-9)
    np.testing.assert_allclose(result["top5"], 100 * hits[:, :5].any(axis=1).mean(), atol=1e-9)
    counted = {"n": 397, "labels": 140, "fraction": 0.1, "num_classes": 10, "n_valid": 0}
    counted |= {"split": "test", "layer": "backbone", "step": 2, "init_step": 28}
    assert result | counted == result
    # It is of the images with a label; logits that are not finite are no accuracy.
    found = np.array([[0, 1, 2.0], [5, 1, 4], [1, 2, 3], [0, 9, 1]])
    made = Mock(features={"logits": (found, np.array([2, 2, -1, 1]))})
    monkeypatch.setattr(finetune, "split_features", lambda *_: made)
    result = finetune.score(tuned, test)
    np.testing.assert_allclose([result["top1"], result["n"]], [200 / 3, 3])
    found[3, 0] = np.inf
    with pytest.raises(C.Diverged, match="logits that are not finite at step 2"):
        finetune.score(tuned, test)


def test_held_out_labels_choose():
    whole = data.load(C.DataConfig())
    held = finetune.held_out(whole, 0.1, 0)
    fitting, part = (data.load(C.DataConfig(fraction=share)).train for share in (0.8 * 0.1, 0.1))
    assert not set(held.indices) & set(fitting.indices)
    assert set(held.indices) | set(fitting.indices) == set(part.indices)
    expected = [round(0.1 * n) - round(0.08 * n) for n in np.bincount(whole.train.labels)]
    assert np.bincount(held.labels).tolist() == expected


@pytest.fixture
def planned(tuned, tmp_path, monkeypatch):
    """Runs, the images they are scored on, and `top1` by rate (None where one diverges)."""
    runs_, sources, top1 = [], [], {}

    def train(run, command):
        runs_.append(run)
        rate = run.learning_rate
        if top1[rate] is None:
            raise C.Diverged("the run diverged", "choose another --name")
        folder = tmp_path / f"made-{rate}"
        folder.mkdir(exist_ok=True)
        shutil.copy(tuned / "config.json", folder)
        return folder

    def score(folder, source, devices):
        sources.append(source)
        return {"step": 1, "top1": top1[float(folder.name.removeprefix("made-"))]}

    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr(finetune, "score", score)
    return runs_, sources, top1


@pytest.mark.slow
def test_learning_rate_is_chosen_without_the_test_split(image_run, tmp_path, planned, caplog):
    runs_, sources, top1 = planned
    top1 |= {0.01: 60.0, 0.2: 80.0, 5.0: None, 0.1: 80.0}
    config = asked(image_run, tmp_path, fraction=0.1, learning_rates=tuple(top1))
    _, result = finetune.run_finetune(config)
    assert result["chosen"] == {"learning_rate": 0.1}
    assert [run.learning_rate for run in runs_] == [*top1, 0.1]
    assert [round(run.fraction, 12) for run in runs_] == [0.08] * 4 + [0.1]
    assert (runs_[-1].runs_dir, runs_[-1].name) == (str(tmp_path), "images-finetune-0.1")
    assert runs_[0].runs_dir == str(tmp_path / "images-finetune-0.1" / "learning_rates")
    whole = data.load(C.DataConfig())
    held = finetune.held_out(whole, 0.1, 0).indices.tolist()
    assert [source.indices.tolist() for source in sources[:3]] == [held] * 3
    assert np.array_equal(sources[3].images, whole.test.images)
    assert result["valid_top1"] == [60, 80, None, 80] and result["learning_rates"] == list(top1)
    assert result["n_valid"] == len(held) and result["labels"] == 140
    assert "5 is left out: the run diverged" in caplog.text
    # Epochs and batches by the number of labels.
    for fraction, epochs, batch_size in ((1.0, 30, 256), (0.1, 30, 128), (0.01, 60, 8)):
        finetune.run_finetune(asked(image_run, tmp_path, fraction=fraction, learning_rates=(0.2,)))
        assert (runs_[-1].epochs, runs_[-1].batch_size) == (epochs, batch_size)


@pytest.mark.slow
def test_all_rates_diverged(image_run, tmp_path, planned):
    _, _, top1 = planned
    top1 |= {5000.0: None, 6000.0: None}
    with pytest.raises(C.UserError, match=r"learning_rates=5000 6000\b.* diverged at each"):
        finetune.run_finetune(asked(image_run, tmp_path, learning_rates=tuple(top1)))


def test_the_best_rate_is_the_smallest_of_equals():
    assert finetune.best_rate((0.2, 0.05, 0.1), (80.0, 80.0, 79.0)) == 0.05
    assert finetune.best_rate((0.2, 0.05, 0.1), (80.5, 80.0, 80.5)) == 0.1
    assert finetune.best_rate((0.05, 0.1), (None, 0.0)) == 0.1


@pytest.mark.slow
def test_pretraining_and_a_good_rate_help_and_stopped_it_goes_on(image_run, tmp_path):
    options = {"fraction": 0.1, "batch_size": 32, "epochs": 15}
    rates = options | {"learning_rates": (1e-6, 0.2)}
    folder, result = finetune.run_finetune(asked(image_run, tmp_path / "whole", **rates))
    assert result["chosen"] == {"learning_rate": 0.2}
    assert result["valid_top1"][1] > result["valid_top1"][0] + 5
    options |= {"step": 0, "learning_rates": (0.2,)}
    assert result["top1"] > finetune.run_finetune(asked(image_run, tmp_path, **options))[1]["top1"]
    for at in (8, 60):  # in the first candidate, and at the end of the last run
        with killed_after_checkpoint(at):
            finetune.run_finetune(asked(image_run, tmp_path / "cut", **rates))
    for _ in range(2):  # the same command does nothing again
        again, same = finetune.run_finetune(asked(image_run, tmp_path / "cut", **rates))
        assert same == result
    jax.tree.map(np.testing.assert_array_equal, state_of(again), state_of(folder))
