"""From checkpoints to scores, the files of `eval/`, and the verb."""

import csv
import dataclasses
import json
import math
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from probe_cases import asked
from sklearn.neighbors import KNeighborsClassifier
from test_cli import fails, run_py

from hypersphere_jax import runs, sharding, training
from hypersphere_jax.config import (
    MetricsConfig,
    ModelConfig,
    OptimizerConfig,
    PretrainConfig,
    ProbeConfig,
    RuntimeConfig,
    UserError,
)
from hypersphere_jax.data import Arrays
from hypersphere_jax.data.arrays import digits
from hypersphere_jax.evaluation import features, linear, measure, probe, results
from hypersphere_jax.theory import uniformity_optimum


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return training.train(
        PretrainConfig(
            name="run",
            runs_dir=str(tmp_path_factory.mktemp("runs")),
            model=ModelConfig(dim=6, width=0.25),
            optimizer=OptimizerConfig(epochs=8, batch_size=200),
            runtime=RuntimeConfig(devices=1, checkpoint_every_steps=28),
        )
    )


@pytest.fixture(scope="module")
def encoder(run):
    return runs.load_encoder(run)


@pytest.fixture
def copy(run, tmp_path):
    """The same run, to be damaged."""
    return Path(shutil.copytree(run, tmp_path / "copy"))


def test_probe(run):
    lbfgs, knn = probe.probe(ProbeConfig((str(run),), devices=2))
    assert lbfgs["top1"] > 75 and knn["top1"] > 75
    for name, result in (("lbfgs-output", lbfgs), ("knn5-output", knn)):
        saved = json.loads((run / "eval" / f"{name}.json").read_text())
        assert saved == result
        assert saved["split"] == "test" and saved["n"] == 397 and saved["layer"] == "output"
        assert saved["step"] == 56 and saved["run"] == "run" and saved["data"] == "digits"
        assert saved["seconds_features"] > 0 and saved["seconds_probe"] > 0
    assert lbfgs["chosen"]["l2"] in [cell["l2"] for cell in lbfgs["grid"]]


def test_layers_protocols_and_options(run):
    """One result for each, in a file whose name tells it from the others."""
    options = {"layers": ("conv2", "output"), "pool": "max", "k": (1, 7), "metric": "euclidean"}
    found = probe.probe(asked(run, protocols=("knn", "lbfgs"), step=0, seed=2, **options))
    names = [
        f"{name}-{layer}-step0{pool}{option}"
        for layer, pool in (("conv2", "-poolmax"), ("output", ""))
        for name, option in (
            ("knn1", "-metriceuclidean"),
            ("knn7", "-metriceuclidean"),
            ("lbfgs", "-seed2"),
        )
    ]
    assert [json.loads((run / "eval" / f"{name}.json").read_text()) for name in names] == found
    assert [result.get("pool") for result in found] == ["max"] * 3 + [None] * 3
    assert [result["d"] for result in found] == [16] * 3 + [6] * 3
    assert all(result["step"] == 0 for result in found)
    # Against scikit-learn, on features from the cache.
    (encoder, dataset), device = (runs.load_encoder(run, 0), runs.load_data(run)), jax.devices()[:1]
    train, test = (
        features.extract(encoder, source, ["conv2"], device, "max")
        for source in (dataset.train, dataset.test)
    )
    assert train.computed == test.computed == []
    (train_x, train_y), (test_x, test_y) = train.features["conv2"], test.features["conv2"]
    nearest = KNeighborsClassifier(1).fit(train_x, train_y)
    assert found[0]["top1"] == pytest.approx(100 * nearest.score(test_x, test_y), abs=0.3)


def test_every_step_and_several_runs(run, copy):
    said, failures = [], []
    (copy / "checkpoints" / "28").rename(copy / "checkpoints" / "30")
    shutil.rmtree(copy / "checkpoints" / "30" / "state")
    config = asked(
        *(run.parent, "nowhere", copy), all_steps=True, protocols=("knn",), layers=("backbone",)
    )
    found = probe.probe(config, said.append, failures.append)
    steps = [(result["run"], result["step"]) for result in found]
    assert steps == [("run", 0), ("run", 28), ("run", 56), ("copy", 0), ("copy", 56)]
    assert (run / "eval" / "knn5-backbone-step28.json").is_file()
    assert "no run 'nowhere'" in failures[0]
    assert "30" in failures[1] and "damaged" in failures[1] and len(failures) == 2
    assert "run, step 0: features of backbone computed" in said[0] and len(said) == 5
    assert found[2]["top1"] == found[4]["top1"]
    said.clear()
    probe.probe(dataclasses.replace(config, runs=(str(run),)), said.append)
    assert all("backbone from the cache" in line for line in said) and len(said) == 3
    with pytest.raises(UserError, match="no run 'nowhere'"):
        probe.probe(config)


def test_csv_and_json(run, tmp_path):
    config = asked(run, step=0, sort="top1", k=(1, 3), out=tmp_path / "new" / "x.json")
    found = probe.probe(config)
    assert json.loads(config.out.read_text()) == found
    assert sorted((result["top1"] for result in found), reverse=True) == [
        result["top1"] for result in found
    ]
    results.write(tmp_path / "x.csv", [found[0] | {"top1_interval": [1.5, 2.5]}, *found[1:]])
    with open(tmp_path / "x.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["top1"]) for row in rows] == [result["top1"] for result in found]
    assert (rows[0]["top1_low"], rows[0]["top1_high"]) == ("1.5", "2.5")
    (lbfgs,) = (row for row in rows if row["protocol"] == "lbfgs")
    assert float(lbfgs["chosen.l2"]) in [
        cell["l2"] for cell in next(r["grid"] for r in found if "grid" in r)
    ]
    assert "grid" not in lbfgs and {row["k"] for row in rows} == {"", "1", "3"}


def test_what_protocols_are_given(run, monkeypatch):
    """Folds, seed, and of those with minibatches fresh features of the training rows."""
    given = []

    def linear_probe(train_x, train_y, test_x, test_y, **options):
        given.append(options | {"shape": train_x.shape, "rows": train_y})
        return {"protocol": options["protocol"], "top1": 1.0, "n": len(test_x), "d": 6}

    monkeypatch.setattr(linear, "linear_probe", linear_probe)
    protocols = ("lbfgs", "stl10")
    found = probe.probe(asked(run, protocols=protocols, folds=3, seed=1, augment=True))
    assert [options["protocol"] for options in given] == list(protocols)
    assert all(options["folds"] == 3 and options["seed"] == 1 for options in given)
    assert "epoch_features" not in given[0] and given[1]["num_classes"] == 10
    first, again, second = map(given[1]["epoch_features"], (0, 0, 1))
    assert first.shape == given[1]["shape"] == (1400, 6)
    assert np.array_equal(first, again) and not np.allclose(first, second, atol=0.01)
    assert [result.get("augment") for result in found] == [None, True]
    assert (run / "eval" / "stl10-output-folds3-augment-seed1.json").is_file()


def test_data_that_cannot_be_probed(run, monkeypatch):
    dataset, (_, test) = runs.load_data(run), digits()
    unknown = np.full(len(test), -1)
    for change, message in (
        ({"test": None}, "has no test split"),
        ({"train": Arrays(test.images, unknown, (), "here")}, "images of here have no labels"),
        ({"test": Arrays(test.images, unknown, ("0",), "here")}, "no test image of .* has a label"),
    ):
        changed = dataset._replace(**change)
        monkeypatch.setattr(runs, "load_data", lambda *_, changed=changed: changed)
        with pytest.raises(UserError, match=message):
            probe.probe(asked(run))


def test_images_without_a_label_are_left_out(run, monkeypatch):
    dataset, (_, test) = runs.load_data(run), digits()
    labels = np.where(np.arange(397) % 2, test.labels, -1)
    some = Arrays(test.images, labels, test.class_names, test.origin)
    monkeypatch.setattr(runs, "load_data", lambda *_: dataset._replace(train=some, test=some))
    (result,) = probe.probe(asked(run, protocols=("knn",), k=(1,)))
    assert result["n"] == result["n_train"] == 198 and result["top1"] == 100


def test_metrics(run, encoder):
    found = measure.measure(MetricsConfig(run=str(run), alpha=1.0, t=3.0, devices=2))
    # Options that are not the default are in the name: no result replaces another.
    file = run / "eval" / "metrics-test-alpha1.0-t3.0.json"
    assert found == json.loads(file.read_text())
    _, source = digits()
    devices = sharding.local_devices(1)
    x = features.split_features(encoder, source, ["output"], devices)["output"].x.astype(np.float64)
    squares = ((x[:, None] - x[None]) ** 2).sum(-1)[~np.eye(397, dtype=bool)]
    np.testing.assert_allclose(found["uniform"], math.log(np.exp(-3 * squares).mean()), rtol=1e-5)
    one, two = features.pair_features(encoder, source, devices)
    expected = np.linalg.norm(one.astype(np.float64) - two, axis=1).mean()
    np.testing.assert_allclose(found["align"], expected, rtol=1e-4)
    assert found["uniform_optimum"] == uniformity_optimum(6, 3.0)
    assert found["uniform"] > found["uniform_optimum"]


def test_mistakes(run, copy):
    with pytest.raises(UserError, match=r"--layers ouput.*did you mean 'output'.*conv1, conv2"):
        probe.probe(asked(run, layers=("output", "ouput")))
    with pytest.raises(UserError, match=r"no checkpoint of step 7 .*0, 28, 56"):
        probe.probe(asked(run, step=7))
    with pytest.raises(UserError, match=re.escape(f"did you mean '{run}'")):
        probe.probe(asked(run.parent / "rum"))
    # A checkpoint of another architecture than its config says.
    saved = json.loads((copy / "config.json").read_text())
    saved["config"]["model"]["width"] = 0.5
    (copy / "config.json").write_text(json.dumps(saved))
    with pytest.raises(UserError, match=r"does not fit this model"):
        probe.probe(asked(copy))
    (copy / "config.json").write_text('{"config": ')
    with pytest.raises(UserError, match=r"config\.json is not JSON"):
        probe.probe(asked(copy))
    shutil.rmtree(copy / "checkpoints")
    shutil.copy(run / "config.json", copy)
    for options in ({}, {"all_steps": True}):
        with pytest.raises(UserError, match="no checkpoint in"):
            probe.probe(asked(copy, **options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--k", "3", "0"], "--k 0: must be at least 1"),
        (["--step", "3", "--all-steps"], "--step and --all-steps do not go together"),
        (["--folds", "1"], "--folds 1: must be at least 2"),
        (["--folds", "3", "--protocols", "knn"], "--folds needs --protocols with something"),
        (["--augment"], "--augment needs --protocols stl10"),
        (["--k", "3", "--protocols", "lbfgs"], "--k needs --protocols knn"),
        (["--temperature", "1"], "--temperature needs --vote similarity"),
        (["--temperature", "0", "--vote", "similarity"], "--temperature 0.0: must be finite and"),
        (["--out", "a.txt"], "--out a.txt: must be a file that ends in .csv or .json"),
        (["--layers", "--seed", "0"], "--layers: give at least one"),
        (["--protocols", "lbfsg"], "--protocol"),
        (["--sort", "top2"], "--sort"),
    ],
)
def test_mistakes_in_options(capsys, options, message):
    assert message in fails(capsys, "probe", "x", *options)


def test_command_line(run, capsys):
    assert "name at least one run" in fails(capsys, "probe")
    one = ["probe", str(run), "--layer", "backbone", "--protocol", "knn", "--devices", "1"]
    assert run_py.main(one) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(
        "run, step 56, layer backbone, d 128, 397 test samples, accuracies in percent\n"
    )
    assert "run, step 56: features of backbone" in captured.err
    both = ["probe", str(run), "rnu", "--layers", "output", "conv2", "--devices", "1"]
    assert run_py.main([*both, "--sort", "layer"]) == 2
    captured = capsys.readouterr()
    layers = [line.split()[0] for line in captured.out.splitlines()[3:]]
    assert layers == ["conv2"] * 2 + ["output"] * 2
    assert max(map(len, captured.out.splitlines())) <= 80
    assert captured.err.splitlines()[-1].startswith("error: no run 'rnu'")
