"""Fine-tuning: the labels it uses, what it trains, how it chooses, and what it reports."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from run_cases import killed_after_checkpoint
from test_cli import fails, run_py

from hypersphere_jax import augment, checkpoint, data, finetune, interchange, models, runs, training
from hypersphere_jax.config import (
    DataConfig,
    Diverged,
    FinetuneConfig,
    ImportConfig,
    ModelConfig,
    OptimizerConfig,
    PretrainConfig,
    RuntimeConfig,
    UserError,
)
from hypersphere_jax.data import arrays
from hypersphere_jax.data.source import Arrays
from hypersphere_jax.models.torch_names import to_torch

RUNTIME = RuntimeConfig(devices=2, log_every_steps=10, checkpoint_every_steps=4)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return training.train(
        PretrainConfig(
            name="source",
            runs_dir=str(folder),
            model=ModelConfig(dim=16, width=0.25),
            optimizer=OptimizerConfig(epochs=20, batch_size=280),
            runtime=RUNTIME,
        )
    )


def asked(folder, runs_dir, **changes):
    return FinetuneConfig(str(folder), runs_dir=str(runs_dir), runtime=RUNTIME, **changes)


def weights(folder, step=None):
    _, params, stats = models.abstract(runs.read_config(folder).model)
    return checkpoint.restore(folder / "checkpoints", {"params": params, "stats": stats}, step)[1]


def logits(folder, images, step=None):
    made = runs.read_config(folder)
    apply, _, _ = models.abstract(made.model)
    tree = weights(folder, step)
    x = jax.vmap(augment.make_evaluate(made.data.recipe, made.model.image_size))(images)
    return np.asarray(apply(tree["params"], tree["stats"], x, False)[0]["logits"])


@pytest.mark.slow
def test_a_tenth_of_the_labels(pretrained, tmp_path):
    folder, result = finetune.finetune(asked(pretrained, tmp_path, fraction=0.1))
    assert folder == tmp_path / "source-finetune-0.1"
    assert result == json.loads((folder / "eval" / "finetune.json").read_text())
    made = runs.read_config(folder)
    assert (made.model.classifier_layer, made.model.num_classes) == ("backbone", 10)
    assert made.data.recipe == "digits:crop_flip" and made.data.fraction == 0.1
    optimizer = made.optimizer
    assert (optimizer.epochs, optimizer.batch_size, optimizer.learning_rate) == (30, 128, 0.05)
    assert optimizer.nesterov and optimizer.weight_decay == 0 and optimizer.schedule == "cosine"
    # It starts from the run's encoder, and all of that changes but what the classifier is not on.
    start, end, source = weights(folder, 0), weights(folder), weights(pretrained)
    assert start["params"]["head"]["classifier"]["kernel"].shape == (4 * 32, 10)
    for name in ("conv1", "conv2", "conv3"):
        jax.tree.map(np.testing.assert_array_equal, start["params"][name], source["params"][name])
        kernels = (tree["params"][name]["layer"]["kernel"] for tree in (start, end))
        assert not np.array_equal(*kernels)
    output = (tree["params"]["head"]["output"] for tree in (start, end))
    jax.tree.map(np.testing.assert_array_equal, *output)
    # The accuracy is that of the classifier itself on the whole test split.
    _, test = arrays.digits()
    order = np.argsort(-logits(folder, test.images), axis=1)
    hits = order == np.asarray(test.labels)[:, None]
    np.testing.assert_allclose(result["top1"], 100 * hits[:, 0].mean(), atol=1e-9)
    np.testing.assert_allclose(result["top5"], 100 * hits[:, :5].any(axis=1).mean(), atol=1e-9)
    counted = {key: result[key] for key in ("n", "labels", "fraction", "num_classes", "n_valid")}
    assert counted == {"n": 397, "labels": 140, "fraction": 0.1, "num_classes": 10, "n_valid": 0}
    # The same command does nothing again, and pretraining was of use.
    assert finetune.finetune(asked(pretrained, tmp_path, fraction=0.1))[1] == result
    scratch = asked(pretrained, tmp_path, fraction=0.1, step=0, name="scratch")
    assert result["top1"] > finetune.finetune(scratch)[1]["top1"] + 3


@pytest.mark.slow
def test_learning_rate_is_chosen_without_the_test_split(pretrained, tmp_path, monkeypatch):
    options = {"fraction": 0.1, "learning_rates": (1e-6, 0.2), "epochs": 15, "batch_size": 32}
    folder, result = finetune.finetune(asked(pretrained, tmp_path, **options))
    assert result["chosen"] == {"learning_rate": 0.2}
    assert result["valid_top1"][1] > result["valid_top1"][0] + 5
    counts = [int(count) for count in np.bincount(arrays.digits()[0].labels)]
    assert result["n_valid"] == sum(round(0.1 * c) - round(0.08 * c) for c in counts)
    assert result["labels"] == sum(round(0.1 * c) for c in counts)
    assert runs.read_config(folder).optimizer.learning_rate == 0.2
    train, test = arrays.digits()
    other = Arrays(test.images, (test.labels + 1) % 10, test.class_names, test.origin)
    monkeypatch.setattr(arrays, "digits", lambda: (train, other))
    again, changed = finetune.finetune(asked(pretrained, tmp_path, name="other", **options))
    assert changed["valid_top1"] == result["valid_top1"] and changed["top1"] < result["top1"] - 20
    jax.tree.map(np.testing.assert_array_equal, weights(again), weights(folder))
    # Each candidate is scored on labels of the fraction that it has not seen.
    fitting = data.load(runs.read_config(folder / "learning_rates" / "0.2").data).train
    held, part = (
        finetune.held_out(data.load(DataConfig()), 0.1, 0),
        data.load(DataConfig(fraction=0.1)).train,
    )
    assert not set(held.indices) & set(fitting.indices)
    assert set(held.indices) | set(fitting.indices) == set(part.indices)
    known = logits(folder / "learning_rates" / "0.2", train.images[held.indices]).argmax(axis=1)
    score = 100 * np.mean(known == np.asarray(train.labels)[held.indices])
    np.testing.assert_allclose(result["valid_top1"][1], score)


@pytest.mark.slow
def test_a_rate_that_diverges_is_left_out(pretrained, tmp_path, caplog):
    options = {"fraction": 0.1, "epochs": 2, "batch_size": 32}
    some = asked(pretrained, tmp_path, learning_rates=(5000.0, 0.05), **options)
    folder, result = finetune.finetune(some)
    assert result["chosen"] == {"learning_rate": 0.05} and result["learning_rates"] == [5000, 0.05]
    assert result["valid_top1"][0] is None and 0 <= result["valid_top1"][1] <= 100
    assert json.loads((folder / "eval" / "finetune.json").read_text()) == result
    assert runs.read_config(folder).optimizer.learning_rate == 0.05
    assert "5000 is left out: the run diverged" in caplog.text
    assert f"{result['n_valid']} held-out images" in caplog.text and result["n_valid"] < 100
    assert finetune.finetune(some)[1] == result
    files = (folder / "learning_rates" / rate / "config.json" for rate in ("5000.0", "0.05"))
    assert [len(json.loads(file.read_text())["sessions"]) for file in files] == [1, 2]
    alone = asked(pretrained, tmp_path, learning_rates=(5000.0,), name="alone", **options)
    with pytest.raises(Diverged, match=r"the run diverged: .*: .* lower --learning-rates$"):
        finetune.finetune(alone)


def test_rates_that_diverged_are_not_tried_again(pretrained, tmp_path, caplog, monkeypatch):
    tried = []

    def diverges(run, command):
        tried.append(run.name)
        raise Diverged("the run diverged", "choose another --name")

    monkeypatch.setattr(training, "train", diverges)

    def fails(**options):
        tried.clear()
        options = {"learning_rates": (5000.0, 6000.0)} | options
        with pytest.raises(
            UserError, match=r"--learning-rates 5000 6000\b.* diverged at each; give"
        ):
            finetune.finetune(asked(pretrained, tmp_path, **options))
        return list(tried)

    assert fails() == ["5000.0", "6000.0"]
    assert "held-out" not in caplog.text  # of which there are 280
    assert fails() == []
    assert fails(learning_rates=(5000.0, 6000.0, 7000.0)) == ["7000.0"]
    assert fails(seed=1) == ["5000.0", "6000.0"]  # which is another run


def test_of_equal_rates_the_smallest():
    assert finetune.best_rate((0.2, 0.05, 0.1), (80.0, 80.0, 79.0)) == 0.05
    assert finetune.best_rate((0.2, 0.05, 0.1), (80.5, 80.0, 80.5)) == 0.1
    assert finetune.best_rate((0.05, 0.1), (None, 0.0)) == 0.1
    with pytest.raises(UserError, match=r"--learning-rates 0\.05 0\.1: .*; give lower ones"):
        finetune.best_rate((0.05, 0.1), (None, None))


def test_logits_that_are_not_finite_are_no_accuracy(pretrained, tmp_path, monkeypatch):
    def overflown(encoder, source, layers, devices):
        labels = np.zeros(4, np.int32)
        return {"logits": (np.array([[0, 1], [1, 0], [1, 2], [0, np.inf]]), labels)}

    monkeypatch.setattr(finetune, "split_features", overflown)
    with pytest.raises(Diverged, match="logits that are not finite at step"):
        finetune.score(pretrained, data.load(DataConfig()).test)


@pytest.mark.slow
def test_stopped_anywhere_it_goes_on(pretrained, tmp_path):
    options = {"fraction": 0.1, "learning_rates": (0.01, 0.1), "epochs": 4, "batch_size": 64}
    whole, result = finetune.finetune(asked(pretrained, tmp_path / "whole", **options))
    for at in (4, 8):  # in the first candidate, and (twice) at the end of a run
        with killed_after_checkpoint(at):
            finetune.finetune(asked(pretrained, tmp_path / "cut", **options))
    folder, again = finetune.finetune(asked(pretrained, tmp_path / "cut", **options))
    assert again == result
    jax.tree.map(np.testing.assert_array_equal, weights(folder), weights(whole))


@pytest.mark.slow
def test_an_encoder_of_pytorch(tmp_path):
    model = ModelConfig(name="small_alexnet", dim=4, width=0.02, image_size=16, channels=1)
    _, params, stats = models.create(model, jax.random.key(7))
    np.savez(tmp_path / "encoder.npz", **to_torch(model, params, stats))
    source = interchange.import_torch(
        ImportConfig(
            tmp_path / "encoder.npz",
            "imported",
            str(tmp_path),
            model=dataclasses.replace(model, channels=None),
        )
    )
    folder, result = finetune.finetune(asked(source, tmp_path, fraction=0.1, epochs=1))
    assert result["layer"] == "fc7" and result["n"] == 397
    start = weights(folder, 0)["params"]
    assert start["head"]["classifier"]["kernel"].shape == (
        start["fc7"]["layer"]["kernel"].shape[1],
        10,
    )
    jax.tree.map(
        np.testing.assert_array_equal, start["conv1"], jax.tree.map(np.asarray, params["conv1"])
    )


def test_mistakes(pretrained, tmp_path):
    for changes, message in (
        ({"layer": "conv2"}, r"--classifier-layer conv2: .* on backbone, output"),
        ({"fraction": 0.001, "learning_rates": (0.1, 0.2)}, "no class has enough images"),
        ({"step": 3}, "no checkpoint of step 3"),
        ({"batch_size": 1402}, "--batch-size 1402 is more than the 1400"),
        ({"recipe": "digit"}, "did you mean 'digits'"),
    ):
        with pytest.raises(UserError, match=message):
            finetune.finetune(asked(pretrained, tmp_path, **changes))
        assert not list(tmp_path.iterdir())
    for changes, message in (
        ({"fraction": 0.0}, "--fraction 0.0: must be in"),
        ({"learning_rates": ()}, "give one or more"),
        ({"learning_rates": (0.1, 0.1)}, "twice"),
        ({"learning_rates": (0.1, -1.0)}, "positive"),
        ({"epochs": 0}, "--epochs 0"),
    ):
        with pytest.raises(UserError, match=message):
            asked(pretrained, tmp_path, **changes)
    with pytest.raises(UserError, match=r"several are tried on one host"):
        FinetuneConfig("x", learning_rates=(0.1, 0.2), runtime=RuntimeConfig(hosts="auto"))
    with pytest.raises(UserError, match="--init-from, which is not given"):
        PretrainConfig(init_step=3)


@pytest.mark.slow
def test_on_the_command_line(pretrained, tmp_path, capsys):
    assert "no run 'nowhere'" in fails(capsys, "finetune", "nowhere")
    assert "--fraction 2" in fails(capsys, "finetune", "x", "--fraction", "2")
    options = ["--runs-dir", str(tmp_path), "--fraction", "0.1", "--epochs", "2", "--devices", "2"]
    rates = ["--learning-rates", "0.01", "0.1", "--eval-every-epochs", "1"]
    evaluators = ["--evaluators", "classifier", "--eval-split", "test"]
    arguments = [str(pretrained), *options, *rates, *evaluators]
    assert run_py.main(["finetune", *arguments]) == 0
    table = capsys.readouterr().out
    folder = tmp_path / "source-finetune-0.1"
    result = json.loads((folder / "eval" / "finetune.json").read_text())
    assert "finetune" in table and "backbone" in table and f"{result['top1']:#.4g}" in table
    assert max(map(len, table.splitlines()[:3])) <= 80
    assert "finetune" in (folder / "report.html").read_text()
    assert {"eval/classifier_top1"} <= set(runs.read_metrics(folder)[-1])
