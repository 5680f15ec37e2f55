"""Metrics of neighbouring sentences: a plain loop, the losses of one document, many samples."""

import itertools
import json
import math
import tracemalloc

import jax
import numpy as np
import pytest
from conftest import sphere

from hypersphere_jax import quick_thought_align_loss, quick_thought_uniform_loss
from hypersphere_jax.config import UserError
from hypersphere_jax.evaluation import metrics, sentences
from hypersphere_jax.evaluation.sentences import neighbour_metrics


def align_by_loop(f, g, documents, alpha):
    """Wang & Isola, B.3, of each document: all sentences with a neighbour weigh the same."""
    values, pairs = [], 0
    for first, end in itertools.pairwise(documents):
        for i in range(first, end):
            near = [j for j in (i - 1, i + 1) if first <= j < end]
            powers = [math.dist(f[i], g[j]) ** alpha for j in near]
            if near:
                values.append(sum(powers) / len(near))
            pairs += len(near)
    return np.array(values), pairs


def uniform_by_loop(x, t):
    x = x.astype(np.float64)
    potentials = [
        math.exp(-t * math.dist(x[i], x[j]) ** 2) for i in range(len(x)) for j in range(i)
    ]
    return math.log(sum(potentials) / len(potentials))


@pytest.mark.parametrize(("alpha", "t"), [(2.0, 2.0), (1.0, 5.0)])
@pytest.mark.parametrize("documents", [[0, 23], [0, 2, 3, 4, 11, 23], [0, 1, 3, 22, 23]])
def test_against_a_loop(rng, documents, alpha, t):
    f, g = sphere(rng, 23, 4), sphere(rng, 23, 4)
    found = neighbour_metrics(f, g, np.array(documents), alpha, t)
    values, pairs = align_by_loop(f, g, documents, alpha)
    np.testing.assert_allclose(found["align"], values.mean(), rtol=1e-5)
    assert found["pairs"] == pairs and found["documents"] == len(documents) - 1
    uniform = [uniform_by_loop(x, t) for x in (f, g)]
    np.testing.assert_allclose([found["uniform_f"], found["uniform_g"]], uniform, rtol=1e-5)
    np.testing.assert_allclose(found["uniform"], sum(uniform), rtol=1e-5)
    said = {"n": 23, "d": 4, "align_alpha": alpha, "uniform_t": t}
    assert {key: found[key] for key in said} == said


def test_one_document_has_the_losses_of_a_minibatch(rng):
    f, g = sphere(rng, 40, 5), sphere(rng, 40, 5)
    found = neighbour_metrics(f, g, [0, 40], 1.5, 3.0)
    align = quick_thought_align_loss(f, g, 1.5)
    uniform = quick_thought_uniform_loss(f, g, 3.0)
    np.testing.assert_allclose(found["align"], align, rtol=1e-5)
    np.testing.assert_allclose(found["uniform"], uniform, rtol=1e-5)


def test_several_documents_by_hand():
    """On the circle at right angles: squared distances are 0, 2 and 4."""
    east, north, west = [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]
    f = np.array([east, east, north, west, west], np.float32)
    g = np.array([east, north, east, east, west], np.float32)
    # {0, 1}: f0 g1 = 2, f1 g0 = 0.  {2}: none.  {3, 4}: f3 g4 = 0, f4 g3 = 4.
    found = neighbour_metrics(f, g, [0, 2, 3, 5])
    assert found["align"] == pytest.approx((2 + 0 + 0 + 4) / 4)
    # Units {0, 1} and {3, 4}, whose means are 1 and 2.
    assert found["align_standard_error"] == pytest.approx(0.5)
    assert found["pairs"] == 4
    # One document: 2; (0 + 0) / 2; (0 + 2) / 2; (4 + 0) / 2; 4.
    found = neighbour_metrics(f, g, [0, 5])
    assert found["align"] == pytest.approx((2 + 0 + 1 + 2 + 4) / 5)
    assert found["align_standard_error"] is None  # of one unit


def test_documents_in_another_order_change_nothing(rng):
    f, g = sphere(rng, 60, 4), sphere(rng, 60, 4)
    found = neighbour_metrics(f, g, [0, 10, 11, 60])
    order = np.r_[11:60, 0:10, 10:11]
    other = neighbour_metrics(f[order], g[order], [0, 49, 59, 60])
    for key, value in found.items():
        assert other[key] == pytest.approx(value, rel=1e-5), key


def test_sentences_and_encoders_are_not_swapped(rng):
    """Turned around, each sentence has the same neighbours; f and g have their own places."""
    f, g = sphere(rng, 30, 4), sphere(rng, 30, 4)
    f[:20] = f[0]
    found = neighbour_metrics(f, g, [0, 12, 30])
    turned = neighbour_metrics(f[::-1], g[::-1], [0, 18, 30])
    swapped = neighbour_metrics(g, f, [0, 12, 30])
    for key in ("align", "uniform_f", "uniform_g"):
        assert turned[key] == pytest.approx(found[key], rel=1e-5)
    assert swapped["uniform_f"] == pytest.approx(found["uniform_g"], rel=1e-5)
    assert found["uniform_f"] > found["uniform_g"] + 0.1


def test_errors_of_uniformity(rng):
    f, g = sphere(rng, 50, 4), sphere(rng, 50, 4)
    f[:25] = f[0]
    found = neighbour_metrics(f, g, [0, 50])
    errors = [metrics.uniformity(x, 2.0).standard_error for x in (f, g)]
    assert found["uniform_f_standard_error"] == pytest.approx(errors[0])
    assert found["uniform_g_standard_error"] == pytest.approx(errors[1])
    assert found["uniform_standard_error"] == pytest.approx(sum(errors))
    assert json.loads(json.dumps(found)) == found
    few = neighbour_metrics(f[:4], g[:4], [0, 4])
    assert few["uniform_standard_error"] is few["align_standard_error"] is None


def test_the_error_of_alignment_is_the_spread_of_repeated_text(rng):
    """Subjects that last some ten sentences, which errors of single pairs would not see."""
    documents = np.array([0, 700, 730, 733, 1500])
    units = sentences._units(documents)
    found = []
    for _ in range(400):
        noise = rng.standard_normal(1500)
        for i in range(1, 1500):
            if i not in documents:
                noise[i] = 0.8 * noise[i - 1] + 0.6 * noise[i]
        found.append(sentences._mean_of_units(noise, units))
    spread = np.std([estimate.value for estimate in found])
    error = np.sqrt(np.mean([estimate.standard_error**2 for estimate in found]))
    assert 0.85 < error / spread < 1.1  # sentences at the seams of units are still alike
    assert spread > 2 / np.sqrt(1500)  # twice that of independent ones


def test_units_are_pieces_of_one_document():
    documents = np.array([0, 120, 121, 150, 500])
    units = sentences._units(documents)
    assert (np.diff(units) >= 0).all() and units[-1] + 1 == len(np.unique(units)) == 2 + 1 + 1 + 7
    np.testing.assert_array_equal(np.bincount(units), [60, 60, 1, 29, *[50] * 7])


def test_memory_is_that_of_chunks(rng, tmp_path, monkeypatch):
    """Of 52 MB of features in each file; the chunks of uniformity have tests of their own."""
    n, d = 204_800, 64
    for name in "fg":
        np.save(tmp_path / f"{name}.npy", np.tile(sphere(rng, 2048, d), (n // 2048, 1)))
    f, g = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "fg")
    neighbour_metrics(f[:100], g[:100], [0, 100])  # compiles
    monkeypatch.setattr(metrics, "uniformity", lambda *_, **__: metrics.Estimate(-1.0, 0.1))
    tracemalloc.start()
    found = neighbour_metrics(f, g, [0, 3000, n])
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 35e6
    assert found["align"] == pytest.approx(2, abs=0.02)


@pytest.mark.parametrize("devices", [1, 3])
def test_devices_change_nothing(rng, devices):
    f, g = sphere(rng, 30, 4), sphere(rng, 30, 4)
    found = neighbour_metrics(f, g, [0, 30], devices=jax.devices()[:devices])
    assert found["uniform"] == pytest.approx(neighbour_metrics(f, g, [0, 30])["uniform"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"g": np.ones((3, 1))}, r"f and g: must have one shape, got \(4, 1\) and \(3, 1\)"),
        ({"f": np.full((4, 1), np.nan)}, "f features: 4 of 4 rows hold NaN"),
        ({"g": np.array([[1], [1], [-2], [1]])}, "g features: .* unit norm, but row 2 has 2"),
        ({"f": np.ones(4)}, r"f features: expected \[n, d\]"),
        ({"documents": [0, 1, 2, 3, 4]}, "documents: all are of one sentence"),
        ({"documents": [0, 3]}, "documents: must rise from 0 to 4, the number of sentences"),
        ({"documents": [1, 4]}, "documents: must rise from 0 to 4"),
        ({"documents": [0, 2, 2, 4]}, "documents: must rise from 0 to 4"),
        ({"documents": [0, 3, 2, 4]}, "documents: must rise from 0 to 4"),
        ({"documents": [0.0, 4.0]}, "documents: expected integers"),
        ({"documents": 4}, "documents: expected integers"),
        ({"documents": [0]}, "documents: expected integers"),
        ({"alpha": 0.0}, "alpha = 0.0: must be finite and positive"),
        ({"t": math.nan}, "t = nan: must be finite and positive"),
    ],
)
def test_errors_are_one_line(change, message):
    arguments = {"f": np.ones((4, 1)), "g": np.ones((4, 1)), "documents": [0, 4], **change}
    with pytest.raises(UserError, match=message) as caught:
        neighbour_metrics(**arguments)
    assert "\n" not in str(caught.value)
