"""Metrics of neighbouring sentences: the oracles of one document, by hand, many samples."""

import itertools
import json
import math
import tracemalloc

import jax
import numpy as np
import oracles
import pytest
from points import sphere

from hypersphere_jax.config import UserError
from hypersphere_jax.evaluation import metrics, sentences
from hypersphere_jax.evaluation.sentences import neighbour_metrics

N = 23


def test_several_documents_against_the_oracles(rng):
    """Of each document those of a minibatch; all sentences with a neighbour weigh the same."""
    f, g = sphere(rng, N, 4), sphere(rng, N, 4)
    for documents, alpha, t in itertools.product(
        ([0, 23], [0, 2, 3, 4, 11, 23], [0, 1, 3, 22, 23]), (2.0, 1.5), (2.0, 5.0)
    ):
        found = neighbour_metrics(f, g, np.array(documents), alpha, t)
        parts = [slice(*ends) for ends in itertools.pairwise(documents)]
        parts = [part for part in parts if part.stop - part.start > 1]
        sizes = [part.stop - part.start for part in parts]
        values = [oracles.quick_thought_align_oracle(f[part], g[part], alpha) for part in parts]
        np.testing.assert_allclose(found["align"], np.average(values, weights=sizes), rtol=1e-5)
        assert found["pairs"] == sum(2 * (size - 1) for size in sizes)
        uniform = [oracles.uniformity(x, t) for x in (f, g)]
        np.testing.assert_allclose([found["uniform_f"], found["uniform_g"]], uniform, rtol=1e-5)
        np.testing.assert_allclose(found["uniform"], sum(uniform), rtol=1e-5)
        said = {"n": N, "d": 4, "align_alpha": alpha, "uniform_t": t}
        said["documents"] = len(documents) - 1
        assert {key: found[key] for key in said} == said


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
    few = neighbour_metrics(f[:4], g[:4], [0, 4])
    assert few["uniform_standard_error"] is few["align_standard_error"] is None


def test_errors_of_uniformity_and_devices(rng):
    f, g = sphere(rng, N, 4), sphere(rng, N, 4)
    f[:10] = f[0]
    found = neighbour_metrics(f, g, [0, N], devices=jax.devices()[:3])
    errors = [metrics.uniformity(x, 2.0).standard_error for x in (f, g)]
    assert errors[0] > 2 * errors[1]
    assert found["uniform_f_standard_error"] == pytest.approx(errors[0], rel=1e-4)
    assert found["uniform_g_standard_error"] == pytest.approx(errors[1], rel=1e-4)
    assert found["uniform_standard_error"] == pytest.approx(sum(errors), rel=1e-4)
    assert json.loads(json.dumps(found)) == found


def test_the_error_of_alignment_is_the_spread_of_repeated_text(rng):
    """Subjects that last some ten sentences, which errors of single pairs would not see."""
    documents = np.array([0, 700, 730, 733, 1500])
    units = sentences._units(documents)
    found = []
    for _ in range(400):
        noise = rng.standard_normal(1500)
        for i in range(1, 1500):
            if i not in (700, 730, 733):
                noise[i] = 0.8 * noise[i - 1] + 0.6 * noise[i]
        found.append(sentences._mean_of_units(noise, units))
    spread = np.std([estimate.value for estimate in found])
    error = np.sqrt(np.mean([estimate.standard_error**2 for estimate in found]))
    assert 0.85 < error / spread < 1.1  # sentences at the seams of units are still alike
    assert spread > 2 / np.sqrt(1500)  # twice that of independent ones


def test_units_are_pieces_of_one_document():
    units = sentences._units(np.array([0, 120, 121, 150, 500]))
    assert (np.diff(units) >= 0).all() and units[-1] + 1 == len(np.unique(units)) == 2 + 1 + 1 + 7
    np.testing.assert_array_equal(np.bincount(units), [60, 60, 1, 29, *[50] * 7])


def test_memory_is_that_of_chunks(rng, tmp_path, monkeypatch):
    """Of 52 MB of features in each file; the chunks of uniformity have tests of their own."""
    n, d = 204_800, 64
    for name in "fg":
        np.save(tmp_path / f"{name}.npy", np.tile(sphere(rng, 2048, d), (n // 2048, 1)))
    f, g = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "fg")
    metrics.distance_powers(f[:-1], g[1:])  # compiles
    monkeypatch.setattr(metrics, "uniformity", lambda *_, **__: metrics.Estimate(-1.0, 0.1))
    tracemalloc.start()
    found = neighbour_metrics(f, g, [0, 3000, n])
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 35e6
    assert found["align"] == pytest.approx(2, abs=0.02)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"g": np.ones((3, 1))}, r"f and g: must have one shape, got \(4, 1\) and \(3, 1\)"),
        ({"f": np.full((4, 1), np.nan)}, "f features: 4 of 4 rows hold NaN"),
        ({"g": np.array([[1], [1], [-2], [1]])}, "g features: .* unit norm, but row 2 has 2"),
        ({"f": np.ones(4)}, r"f features: expected \[n, d\]"),
        ({"documents": [0, 1, 2, 3, 4]}, "documents: all are of one sentence"),
        *(
            ({"documents": wrong}, "documents: must rise from 0 to 4")
            for wrong in ([0, 3], [1, 4], [0, 2, 2, 4], [0, 3, 2, 4])
        ),
        *(({"documents": wrong}, "documents: expected integers") for wrong in ([0.0, 4.0], 4, [0])),
        ({"alpha": 0.0}, "alpha = 0.0: must be finite and positive"),
        ({"t": math.nan}, "t = nan: must be finite and positive"),
    ],
)
def test_mistakes_are_one_line(change, message):
    arguments = {"f": np.ones((4, 1)), "g": np.ones((4, 1)), "documents": [0, 4], **change}
    with pytest.raises(UserError, match=message) as caught:
        neighbour_metrics(**arguments)
    assert "\n" not in str(caught.value)
