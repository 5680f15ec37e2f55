"""Masks, weights and labels: each loss against the oracle of the unmasked rows."""

import functools

import jax
import numpy as np
import oracles
import pytest
from loss_cases import CASES, LABELS, MASKED, D, N, assert_slopes, inputs
from points import sphere

import hypersphere_jax as hj

each_masked_loss = pytest.mark.parametrize("name", MASKED)
ALL = np.full(N, True)


@functools.cache
def program(name):
    """`arrays, weights, mask, numbers -> value, gradients of arrays, weights, numbers`."""

    def call(arrays, weights, numbers, mask):
        return CASES[name].loss(*arrays, weights=weights, mask=mask, **numbers)

    return jax.jit(jax.value_and_grad(call, argnums=(0, 1, 2)))


def run(name, arrays, weights, mask=ALL):
    arguments = jax.tree.map(np.float32, (arrays, weights, CASES[name].numbers[0]))
    return program(name)(*arguments, mask)


def oracle_of(name, mask=ALL):
    """The oracle of unmasked features and weights."""
    options = dict(CASES[name].numbers[0])
    if name == "supervised":
        options["labels"] = LABELS[mask]

    def oracle(*arrays_and_weights):
        *arrays, weights = arrays_and_weights
        return CASES[name].oracle(*arrays, weights=weights, **options)

    return oracle


@each_masked_loss
@pytest.mark.parametrize("kept", ["most", "few", "all"])
def test_masked_rows_count_nowhere(name, kept, rng):
    """Masked rows contain NaN."""
    rows = np.arange(N)
    mask = {"most": (rows % 5 != 2) & (rows < N - 3), "few": rows < 5, "all": ALL}[kept]
    weights = rng.uniform(0.5, 2.0, N)
    arrays = inputs(rng, CASES[name].shapes)
    padded = [np.where(mask[:, None], array, np.nan) for array in arrays]
    found, (slopes, weight_slopes, _) = run(name, padded, np.where(mask, weights, np.nan), mask)
    oracle = oracle_of(name, mask)
    unmasked = [np.float64(array[mask]) for array in (*arrays, weights)]
    np.testing.assert_allclose(found, oracle(*unmasked), rtol=1e-5, atol=1e-6)
    slopes = [*slopes, weight_slopes]
    assert all((slope[~mask] == 0).all() for slope in slopes)
    assert_slopes([slope[mask] for slope in slopes], oracle, unmasked, rng, rtol=1e-3)


@each_masked_loss
def test_contents_of_masked_rows_change_nothing(name, rng):
    """Value, and gradients of features, weights and numeric options."""
    arrays = inputs(rng, CASES[name].shapes)
    mask = np.arange(N) % 3 > 0
    weights = np.linspace(1, 2, N)
    expected = run(name, arrays, weights, mask)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(expected))
    for content in (np.nan, np.inf, -np.inf, 1e38):
        padded = [np.where(mask[:, None], array, content) for array in arrays]
        found = run(name, padded, np.where(mask, weights, content), mask)
        jax.tree.map(np.testing.assert_array_equal, found, expected)


@each_masked_loss
@pytest.mark.parametrize("kind", ["dominant", "decades", "similar"])
def test_weights_of_any_magnitude(name, kind, rng):
    """One dominant weight, ten decades, zero, and weights whose sum overflows."""
    arrays = inputs(rng, CASES[name].shapes)
    weights, scales = {
        "dominant": (np.where(np.arange(N) == 4, 1.0, 1e-9), (1, 1e28)),
        "decades": (np.append(0, 10.0 ** -np.linspace(0, 10, N - 1)), (1, 1e38)),
        "similar": (rng.uniform(1, 2, N), (1, 1e-37, 1e38)),
    }[kind]
    for scale in scales:
        rounded = np.float32(scale * weights)
        found, slopes = run(name, arrays, rounded)
        expected = oracle_of(name)(*arrays, np.float64(rounded) / scale)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        assert all(np.isfinite(slope).all() for slope in jax.tree.leaves(slopes))


@pytest.mark.parametrize(
    "labels",
    [
        np.array([1, 2**32 + 1]),
        np.array([-1, 2**32 - 1]),
        np.array([1, 2**63 + 1], np.uint64),
        np.array([False, True]),
    ],
    ids=str,
)
def test_labels_are_compared_by_value(labels, rng):
    """Also labels that JAX's default integers would wrap."""
    z = sphere(rng, 6, D)
    classes = np.array([0, 1, 1, 0, 1, 0])
    found = hj.supervised_contrastive_loss(z, labels[classes])
    expected = oracles.supervised_contrastive_oracle(z, classes)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
