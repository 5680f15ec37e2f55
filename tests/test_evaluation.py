"""Features from checkpoints, their cache, and the files of `eval/`."""

import dataclasses
import json
import math
import re

import jax
import numpy as np
import pytest

from hypersphere_jax import augment, runs, sharding, training
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
from hypersphere_jax.evaluation import features, measure, probe
from hypersphere_jax.theory import uniformity_optimum


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return training.train(
        PretrainConfig(
            name="run",
            runs_dir=str(tmp_path_factory.mktemp("runs")),
            model=ModelConfig(dim=6, width=0.25),
            optimizer=OptimizerConfig(epochs=8, batch_size=200),
            runtime=RuntimeConfig(devices=1),
        )
    )


@pytest.fixture(scope="module")
def encoder(run):
    return runs.load_encoder(run)


def some_digits(rows=slice(None)):
    """Some of the digits' test images, as a source."""
    _, test = digits()
    return Arrays(test.images[rows], test.labels[rows], test.class_names, test.origin)


@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize("n", [3, 397])
def test_features_are_those_of_the_network(encoder, tmp_path, n, devices):
    source = some_digits(slice(n))
    evaluate = jax.vmap(augment.make_evaluate("digits", 8))
    expected, _ = encoder.apply(encoder.params, encoder.stats, evaluate(source.images), False)
    elsewhere = encoder._replace(folder=tmp_path)
    for layer in ("output", "conv2"):
        found = features.split_features(elsewhere, source, layer, jax.devices()[:devices])
        np.testing.assert_array_equal(found.labels, source.labels)
        np.testing.assert_allclose(found.x, expected[layer].reshape(n, -1), rtol=1e-4, atol=1e-5)


def test_cache(encoder, tmp_path, monkeypatch):
    source, devices = some_digits(slice(20)), jax.devices()[:1]
    here = encoder._replace(folder=tmp_path)
    first = features.split_features(here, source, "output", devices).x
    counted = []
    original = features._over_batches
    monkeypatch.setattr(
        features, "_over_batches", lambda *args: counted.append(1) or original(*args)
    )
    np.testing.assert_array_equal(features.split_features(here, source, "output", devices).x, first)
    assert not counted
    # Everything that shapes the features makes another file: images, layer, weights.
    features.split_features(here, some_digits(slice(19)), "output", devices)
    features.split_features(here, some_digits(slice(19, None, -1)), "output", devices)
    features.split_features(here, source, "backbone", devices)
    moved = jax.tree.map(lambda w: w + 0.01, here.params)
    other = features.split_features(here._replace(params=moved), source, "output", devices).x
    assert len(counted) == 4 and len(list((tmp_path / "features").iterdir())) == 5
    assert not np.allclose(other, first, atol=1e-4)
    # A file that was cut short is made anew.
    for file in (tmp_path / "features").iterdir():
        file.write_bytes(file.read_bytes()[:100])
    np.testing.assert_array_equal(features.split_features(here, source, "output", devices).x, first)


def test_pairs_do_not_depend_on_devices(encoder):
    source = some_digits(slice(50))
    one = features.pair_features(encoder, source, jax.devices()[:1], seed=3)
    eight = features.pair_features(encoder, source, jax.devices(), seed=3)
    np.testing.assert_allclose(one, eight, rtol=1e-4, atol=1e-5)
    assert np.linalg.norm(one[0] - one[1], axis=1).min() > 1e-3
    other = features.pair_features(encoder, source, jax.devices()[:1], seed=4)
    assert not np.allclose(one[0], other[0], atol=1e-3)


def test_probe(run):
    linear, knn = probe.probe(ProbeConfig(run=str(run), devices=2))
    assert linear["top1"] > 75 and knn["top1"] > 75
    for name, result in (("lbfgs-output", linear), ("knn5-output", knn)):
        saved = json.loads((run / "eval" / f"{name}.json").read_text())
        assert saved == result
        assert saved["split"] == "test" and saved["n"] == 397 and saved["layer"] == "output"
        assert saved["step"] == 56 and saved["run"] == "run" and saved["data"] == "digits"
    assert linear["chosen"]["l2"] in [cell["l2"] for cell in linear["grid"]]
    start, _ = probe.probe(ProbeConfig(run=str(run), step=0, layer="backbone", devices=2))
    assert start["step"] == 0 and start["d"] == 128
    assert (run / "eval" / "lbfgs-backbone-step0.json").is_file()


def test_metrics(run, encoder):
    found = measure.measure(MetricsConfig(run=str(run), alpha=1.0, t=3.0, devices=2))
    # Options that are not the default are in the name: no result replaces another.
    file = run / "eval" / "metrics-test-alpha1.0-t3.0.json"
    assert found == json.loads(file.read_text())
    source = some_digits()
    devices = sharding.local_devices(1)
    x = features.split_features(encoder, source, "output", devices).x.astype(np.float64)
    squares = ((x[:, None] - x[None]) ** 2).sum(-1)[~np.eye(397, dtype=bool)]
    np.testing.assert_allclose(found["uniform"], math.log(np.exp(-3 * squares).mean()), rtol=1e-5)
    one, two = features.pair_features(encoder, source, devices)
    expected = np.linalg.norm(one.astype(np.float64) - two, axis=1).mean()
    np.testing.assert_allclose(found["align"], expected, rtol=1e-4)
    assert found["uniform_optimum"] == uniformity_optimum(6, 3.0)
    assert found["uniform"] > found["uniform_optimum"]


def test_errors(run, encoder):
    with pytest.raises(UserError, match=r"--layer ouput.*did you mean 'output'.*conv1, conv2"):
        probe.probe(ProbeConfig(run=str(run), layer="ouput"))
    with pytest.raises(UserError, match=r"no checkpoint of step 7 .*0, 56"):
        probe.probe(ProbeConfig(run=str(run), step=7))
    with pytest.raises(UserError, match=re.escape(f"did you mean '{run}'")):
        probe.probe(ProbeConfig(run=str(run.parent / "rum")))
    # A checkpoint of another architecture than its config says.
    other = dataclasses.replace(encoder.config.model, width=0.5)
    saved = json.loads((run / "config.json").read_text())
    text = json.dumps(saved)
    saved["config"]["model"]["width"] = other.width
    (run / "config.json").write_text(json.dumps(saved))
    with pytest.raises(UserError, match=r"does not fit this model"):
        probe.probe(ProbeConfig(run=str(run)))
    (run / "config.json").write_text(text)
