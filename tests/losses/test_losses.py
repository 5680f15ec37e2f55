"""Every loss against its float64 oracle, with invariances, extreme inputs and types."""

import functools
import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loss_cases import (
    CASES,
    D,
    M,
    N,
    assert_slopes,
    each_loss,
    gradients,
    inputs,
    program,
    scaled,
    value,
)
from points import sphere

import hypersphere_jax as hj

# Losses that draw random numbers.
KEY = jax.random.key(0)
RANDOM = {
    "prior_matching": lambda z: hj.prior_matching_loss(KEY, z, "normal"),
    "generalized_contrastive": lambda z: hj.generalized_contrastive_loss(KEY, z, z[::-1]),
    "lejepa": lambda z: hj.lejepa_loss(KEY, z, z[::-1]),
    "visreg": lambda z: hj.visreg_loss(KEY, z, z[::-1]),
}


@each_loss()
def test_value_and_gradients_match_oracle(name, rng):
    for numbers in CASES[name].numbers:
        oracle = functools.partial(CASES[name].oracle, **numbers)
        for length in (1.0, 1.7):
            arrays = scaled(CASES[name].shapes, inputs(rng, CASES[name].shapes), length)
            found, (slopes, number_slopes) = gradients(name, arrays, **numbers)
            assert found.dtype == jnp.float32 and found.shape == ()
            np.testing.assert_allclose(found, oracle(*arrays), rtol=2e-5, atol=1e-5)
            assert_slopes(slopes, oracle, arrays, rng)
            for option, slope in number_slopes.items():
                step = 1e-5 * numbers[option]
                up = oracle(*arrays, **{option: numbers[option] + step})
                down = oracle(*arrays, **{option: numbers[option] - step})
                np.testing.assert_allclose(slope, (up - down) / (2 * step), rtol=3e-4, atol=3e-5)


def test_defaults_are_those_of_the_oracles():
    compared = 0
    for name, case in CASES.items():
        found = inspect.signature(case.loss.func).parameters
        for option, parameter in inspect.signature(case.oracle.func).parameters.items():
            if parameter.default is not inspect.Parameter.empty:
                assert found[option].default == parameter.default, (name, option)
                compared += 1
    assert compared > 25
    options = inspect.signature(hj.generalized_contrastive_loss).parameters
    defaults = [options[name].default for name in ("prior", "lam", "scaling")]
    assert defaults == ["hypersphere", 5, "per_dimension"]  # as in the paper's tables


@each_loss()
def test_invariant_to_rotation_and_order(name, rng):
    shapes = CASES[name].shapes
    arrays = inputs(rng, shapes)
    rotation = np.linalg.qr(rng.standard_normal((D, D)))[0].astype(np.float32)
    order = rng.permutation(N)
    if name == "supervised" or name.startswith("quick_thought"):
        order = np.arange(N)[::-1]  # keeps classes and neighbors
    moved = []
    for letter, array in zip(shapes, arrays, strict=True):
        if letter == "D":
            moved.append(rotation.T @ array)
        else:
            moved.append((array @ rotation)[order if letter == "n" else slice(None, None, -1)])
    numbers = CASES[name].numbers[0]
    np.testing.assert_allclose(
        value(name, *moved, **numbers), value(name, *arrays, **numbers), 2e-5
    )


@each_loss()
def test_coincident_and_antipodal_points_have_finite_gradients(name):
    same = np.eye(D)[:1].repeat(N, 0)
    opposite = same * np.where(np.arange(N) < N // 2, 1, -1)[:, None]
    for x, y in ((same, same), (opposite, opposite), (opposite, -opposite), (same, -same)):
        batch = iter((x, y))
        others = {"m": x[:M], "D": np.eye(D)}
        arrays = [next(batch) if s == "n" else others[s] for s in CASES[name].shapes]
        for numbers in CASES[name].numbers:
            found = gradients(name, arrays, **numbers)
            assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found)), numbers


@each_loss([name for name in CASES if name != "align"])
def test_long_features_have_finite_losses_and_gradients(name, rng):
    """Logits differ by thousands, and no exponential of their differences overflows."""
    shapes = CASES[name].shapes
    for length in (1e3, 1e5, 1e7):
        arrays = scaled(shapes, inputs(rng, shapes), length)
        for numbers in CASES[name].numbers:
            found, slopes = gradients(name, arrays, **numbers)
            np.testing.assert_allclose(found, CASES[name].oracle(*arrays, **numbers), rtol=1e-4)
            assert all(np.isfinite(slope).all() for slope in jax.tree.leaves(slopes))


@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize("name", [*CASES, *RANDOM])
def test_nonfinite_features_give_nonfinite_losses(name, broken, rng):
    shapes = "n"
    loss = RANDOM.get(name)
    if name in CASES:
        shapes = CASES[name].shapes
        loss = functools.partial(value, name, **CASES[name].numbers[0])
    good = inputs(rng, shapes)
    # One array at a time, and all of them, whose differences are inf - inf.
    for changed in [*([i] for i in range(len(good))), range(len(good))]:
        arrays = [np.copy(array) for array in good]
        for i in changed:
            arrays[i][3] = broken
        assert not np.isfinite(loss(*arrays)), changed


@pytest.mark.parametrize(("name", "copies"), [("contrastive", 1), ("nt_xent dot", 2)])
def test_losses_near_zero_are_precise(name, copies, rng):
    """Aligned pairs at low temperature: the loss is log(1 + tiny), and so are its gradients."""
    z = sphere(rng, N, D)

    def oracle(z):
        """The loss from differences of logits, which are not near zero, in float64."""
        gaps = (z @ z.T - np.sum(z**2, 1)[:, None]) / 0.02
        np.fill_diagonal(gaps, -np.inf)
        return np.log1p(copies * np.exp(gaps).sum(1)).mean()

    found, (slopes, _) = gradients(name, [z, z], tau=0.02)
    np.testing.assert_allclose(found, oracle(np.float64(z)), rtol=2e-5)
    assert_slopes([slopes[0] + slopes[1]], oracle, [z], rng, rtol=1e-3, atol=0)


@each_loss(["uniform", "info_nce"], slow=["align", "nt_xent", "sliced_wasserstein"])
def test_float64_stays_float64(name, rng):
    oracle = functools.partial(CASES[name].oracle, **CASES[name].numbers[0])
    with jax.enable_x64(True):
        arrays = [np.float64(array) for array in inputs(rng, CASES[name].shapes)]
        arrays[0] += 1e-9 * rng.standard_normal(arrays[0].shape)  # not representable in float32
        numbers = {key: float(number) for key, number in CASES[name].numbers[0].items()}
        found, (slopes, _) = program(name)(arrays, numbers)
        assert {leaf.dtype for leaf in (found, *slopes)} == {np.dtype(np.float64)}
        np.testing.assert_allclose(found, oracle(*arrays), rtol=1e-12, atol=1e-12)
        assert_slopes(slopes, oracle, arrays, rng, rtol=1e-7, atol=1e-8)
        narrow = [np.float32(array) for array in arrays]
        assert jax.eval_shape(lambda: CASES[name].loss(*narrow, **numbers)).dtype == np.float32


@pytest.mark.parametrize("name", ["align", "uniform", "nt_xent"])
def test_half_precision_is_computed_in_float32(name, rng):
    arrays = [jnp.asarray(array, jnp.bfloat16) for array in inputs(rng, CASES[name].shapes)]
    numbers = CASES[name].numbers[0]
    found, (slopes, _) = program(name)(arrays, jax.tree.map(np.float32, numbers))
    expected, (wide, _) = gradients(name, arrays, **numbers)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    for slope, exact in zip(slopes, wide, strict=True):
        assert slope.dtype == jnp.bfloat16
        np.testing.assert_allclose(np.float32(slope), exact, rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize("name", ["balanced", "generalized", "decoupled", "decoupled, tables"])
def test_terms_add_up_to_the_loss(name, rng):
    z1, z2 = inputs(rng, "nn")
    alignment = -np.mean(np.sum(z1 * z2, axis=1))
    if name == "decoupled, tables":
        alignment = np.mean((z1 - z2) ** 2) / 2
    total, *terms = CASES[name].loss(z1, z2, 0.7, 3.0, with_terms=True)
    np.testing.assert_allclose(terms[0], alignment, rtol=1e-5)
    np.testing.assert_allclose(total, terms[0] + 3.0 * terms[1], rtol=1e-5)
