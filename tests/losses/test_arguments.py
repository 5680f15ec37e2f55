"""Arguments that losses refuse, and forms of numbers that they accept."""

import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from loss_cases import CASES, N, inputs

import hypersphere_jax as hj

X = np.ones((N, 5), np.float32)


@pytest.mark.parametrize("name", CASES)
def test_mistakes_with_every_loss(name, rng):
    case = CASES[name]
    good = inputs(rng, case.shapes)
    parameters = inspect.signature(case.loss.func).parameters
    first = next(iter(parameters))

    def assert_refused(match, arrays=good, **changes):
        with pytest.raises(ValueError, match=match):
            jax.eval_shape(lambda: case.loss(*arrays, **case.numbers[0] | changes))

    for option in case.numbers[0]:
        for wrong in (-1.0, jnp.float32(-1), math.inf, math.nan):
            assert_refused(option, **{option: wrong})
    assert_refused(first, [array[:, :0] for array in good])
    assert_refused(first, [good[0].astype(int), *good[1:]])
    if len(case.shapes) > 1:
        assert_refused(first, [good[0][:, 1:], *good[1:]])
    if "ring" in parameters:
        assert_refused("block_size", block_size=0)
        assert_refused("precision", precision="float32")
        assert_refused("axis_name", ring=True)


@pytest.mark.parametrize("name", ["uniform", "dcl", "balanced", "logsumexp"])
def test_one_point_is_too_few(name, rng):
    with pytest.raises(ValueError, match="2"):
        CASES[name].loss(*inputs(rng, CASES[name].shapes, n=1))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mask", np.ones(11, bool)),
        ("mask", np.ones(N, int)),
        ("weights", np.ones((N, 1))),
        ("weights", -np.ones(N)),
        ("weights", np.full(N, np.nan)),
        ("labels", np.ones(N)),
        ("labels", np.ones(11, int)),
    ],
)
def test_wrong_masks_weights_and_labels_are_refused(name, value):
    options = {"labels": np.arange(N), name: value}
    with pytest.raises(ValueError, match=name):
        hj.supervised_contrastive_loss(X, **options)


@pytest.mark.parametrize(
    "alpha",
    [0.5, 1, np.float64(0.5), [0.5], jnp.bfloat16(2), nnx.Param(jnp.float32(0.5))],
    ids=repr,
)
def test_options_may_be_any_single_number(alpha, rng):
    """Also inside `jit`, where numbers that are not traced are known."""
    x, y = inputs(rng, "nn")
    expected = hj.align_loss(x, y, float(np.reshape(np.asarray(alpha, np.float32), ())))
    found = jax.jit(lambda: hj.align_loss(x, y, alpha))()
    np.testing.assert_allclose([hj.align_loss(x, y, alpha), found], expected, rtol=1e-6)


@pytest.mark.parametrize(
    "alpha", [True, "0.5", None, 1j, [], [0.5, 1.0], 10**400, 1e39, 1e-40, 0], ids=repr
)
def test_options_that_are_no_positive_number_are_refused(alpha):
    with pytest.raises(ValueError, match="alpha"):
        hj.align_loss(X, X, alpha)
