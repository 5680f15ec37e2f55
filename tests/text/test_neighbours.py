"""Alignment and uniformity of neighbouring sentences, against oracles and by hand."""

import itertools
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from oracles import quick_thought_align_oracle, uniformity
from points import sphere

from hypersphere_jax import theory
from hypersphere_jax.evaluation import metrics
from hypersphere_jax.evaluation.feature_files import Features
from hypersphere_jax.text import neighbours
from hypersphere_jax.text.neighbours import neighbour_inputs, neighbour_metrics


def test_metrics_are_those_of_the_documents(rng):
    f = sphere(rng, 23, 4)
    g = sphere(rng, 23, 4)
    every = [0, 23], [0, 2, 3, 4, 11, 23], [0, 1, 3, 22, 23]
    for documents, alpha, t in itertools.product(every, (2.0, 1.5), (2.0, 5.0)):
        found = neighbour_metrics(f, g, np.array(documents), alpha, t)
        parts = [slice(a, b) for a, b in itertools.pairwise(documents) if b - a > 1]
        sizes = [part.stop - part.start for part in parts]
        values = [quick_thought_align_oracle(f[part], g[part], alpha) for part in parts]
        np.testing.assert_allclose(found["align"], np.average(values, weights=sizes), rtol=1e-5)
        assert found["pairs"] == sum(2 * (size - 1) for size in sizes)
        expected = [uniformity(x, t) for x in (f, g)]
        uniform = [found[f"uniform{end}"] for end in ("_f", "_g", "")]
        np.testing.assert_allclose(uniform, [*expected, sum(expected)], rtol=1e-5)
        assert (found["n"], found["d"], found["align_alpha"]) == (23, 4, alpha)


def test_error_of_alignment_by_hand():
    east = [1.0, 0.0]
    north = [0.0, 1.0]
    west = [-1.0, 0.0]
    f = np.array([east, east, north, west, west], np.float32)
    g = np.array([east, north, east, east, west], np.float32)
    # {0, 1}: f0 g1 = 2, f1 g0 = 0.  {2}: none.  {3, 4}: f3 g4 = 0, f4 g3 = 4.
    found = neighbour_metrics(f, g, [0, 2, 3, 5])
    assert found["align"] == pytest.approx((2 + 0 + 0 + 4) / 4)
    # The units {0, 1} and {3, 4} have the means 1 and 2.
    assert found["align_standard_error"] == pytest.approx(0.5)
    few = neighbour_metrics(f[:4], g[:4], [0, 4])
    assert few["uniform_standard_error"] is few["align_standard_error"] is None


def test_error_of_uniformity_is_the_sum_of_both(rng):
    f = sphere(rng, 23, 4)
    g = sphere(rng, 23, 4)
    f[:10] = f[0]
    found = neighbour_metrics(f, g, [0, 23], devices=jax.devices()[:3])
    errors = [metrics.uniformity(x, 2.0).standard_error for x in (f, g)]
    names = (f"uniform_{which}standard_error" for which in ("f_", "g_", ""))
    np.testing.assert_allclose([found[n] for n in names], [*errors, sum(errors)], rtol=1e-4)


def test_samples_of_the_error_are_fifty_sentences():
    """A document of 100 sentences is two samples, here with the means 0.02 and 1.98."""
    f = np.tile(np.float32([1, 0]), (100, 1))
    g = np.repeat(np.float32([[1, 0], [0, 1]]), 50, axis=0)
    found = neighbour_metrics(f, g, [0, 100])
    assert found["align"] == pytest.approx(1)
    assert found["align_standard_error"] == pytest.approx(0.98)


def test_inputs_of_a_run(monkeypatch, rng):
    """Pairs are neighbours in one document, and the optimum is that of two encoders."""
    numbers = {"f": np.arange(7.0)[:, None], "g": np.arange(7.0)[:, None] + 50}
    corpus = SimpleNamespace(documents=np.array([0, 3, 4, 7]))

    def use(features):
        layers = {name: Features(np.float32(x), None) for name, x in features.items()}
        made = SimpleNamespace(features=layers)
        monkeypatch.setattr(neighbours, "split_features", lambda *_: made)
        return neighbour_inputs(None, corpus, [])

    _, pairs, _ = use(numbers)
    found = np.concatenate([side[slice(None)] for side in pairs], axis=1)
    expected = [(0, 51), (1, 52), (4, 55), (5, 56), (1, 50), (2, 51), (5, 54), (6, 55)]
    np.testing.assert_array_equal(found, expected)
    f, _, summary = use({name: sphere(rng, 7, 4) for name in ("f", "g")})
    result = summary(2.0, 3.0, jax.devices()[:1])
    assert result["n"] == len(f) == 7
    assert result["uniform_optimum"] == 2 * theory.uniformity_optimum(4, 3.0)
    assert result["uniform_lower_bound"] == 2 * theory.uniformity_lower_bound(4, 3.0, 7)
