"""Alignment and uniformity of neighbouring sentences against oracles."""

import itertools

import numpy as np
import pytest
from oracles import quick_thought_align_oracle, uniformity
from points import sphere

from hypersphere_jax.text.neighbours import neighbour_metrics


@pytest.mark.parametrize("documents", [[0, 23], [0, 2, 3, 4, 11, 23], [0, 1, 3, 22, 23]])
def test_metrics_are_those_of_the_documents(rng, documents):
    f, g = sphere(rng, 23, 4), sphere(rng, 23, 4)
    found = neighbour_metrics(f, g, np.array(documents), 1.5, 5.0)
    parts = [slice(a, b) for a, b in itertools.pairwise(documents) if b - a > 1]
    sizes = [part.stop - part.start for part in parts]
    values = [quick_thought_align_oracle(f[part], g[part], 1.5) for part in parts]
    np.testing.assert_allclose(found["align"], np.average(values, weights=sizes), rtol=1e-5)
    assert found["pairs"] == sum(2 * (size - 1) for size in sizes)
    expected = [uniformity(x, 5.0) for x in (f, g)]
    uniform = [found[name] for name in ("uniform_f", "uniform_g", "uniform")]
    np.testing.assert_allclose(uniform, [*expected, sum(expected)], rtol=1e-5)


def test_fifty_sentences_are_one_sample_of_the_standard_error():
    f = np.tile(np.float32([1, 0]), (100, 1))
    g = np.repeat(np.float32([[1, 0], [0, 1]]), 50, axis=0)  # two samples of means 0.02 and 1.98
    found = neighbour_metrics(f, g, np.array([0, 100]))
    assert found["align_standard_error"] == pytest.approx(0.98)
    found = neighbour_metrics(f[:5], g[:5], np.array([0, 2, 3, 5]))
    assert found["align_standard_error"] is None
