"""Every loss once: value and gradients against float64 loops, invariances, and over devices."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from loss_cases import CASES, ONE_FORM, D, M, N, gradients, inputs, value

import hypersphere_jax as hj

each_loss = pytest.mark.parametrize("name", CASES)


@each_loss
def test_value_and_gradients_are_those_of_the_oracle(name, rng):
    """Gradients of each array and each option; also for features that are not unit."""
    _, oracle, shapes, tried = CASES[name]
    for numbers in tried:
        for length in (1.0, 1.7):
            drawn = zip(shapes, inputs(rng, shapes), strict=True)
            arrays = [a if s == "D" else length * a for s, a in drawn]
            exact = functools.partial(oracle, **numbers)
            found, (slopes, by_number) = gradients(name, arrays, **numbers)
            np.testing.assert_allclose(found, exact(*arrays), rtol=2e-5, atol=1e-5)
            assert found.dtype == jnp.float32 and found.shape == ()
            for _ in range(2):
                towards = [rng.standard_normal(a.shape) for a in arrays]
                expected = oracles.numeric_slopes(exact, arrays, towards)
                along = [np.vdot(*pair) for pair in zip(slopes, towards, strict=True)]
                np.testing.assert_allclose(along, expected, rtol=3e-4, atol=3e-5)
            for option, slope in by_number.items():
                number = numbers[option]
                up, down = (exact(*arrays, **{option: number * k}) for k in (1 + 1e-5, 1 - 1e-5))
                expected = (up - down) / (2e-5 * number)
                np.testing.assert_allclose(slope, expected, rtol=3e-4, atol=3e-5)


def test_defaults_are_those_of_the_oracles():
    compared = 0
    for name, (loss, oracle, *_) in CASES.items():
        found, expected = (inspect.signature(f.func).parameters for f in (loss, oracle))
        for option, parameter in expected.items():
            if parameter.default is not inspect.Parameter.empty:
                assert found[option].default == parameter.default, (name, option)
                compared += 1
    assert compared > 25
    options = inspect.signature(hj.generalized_contrastive_loss).parameters
    found = [options[name].default for name in ("prior", "lam", "scaling")]
    assert found == ["hypersphere", 5, "per_dimension"]  # as in the paper's tables


@each_loss
def test_invariant_to_rotation_and_order(name, rng):
    _, _, shapes, (numbers, *_) = CASES[name]
    arrays = inputs(rng, shapes)
    turn = np.linalg.qr(rng.standard_normal((D, D)))[0].astype(np.float32)
    # Sentences have an order; reversed, neighbours remain neighbours.
    order = np.arange(N)[::-1] if "quick_thought" in name else rng.permutation(N)
    places = {"n": order, "m": np.arange(M)[::-1]}
    sides = zip(shapes, arrays, strict=True)
    moved = [turn.T @ a if s == "D" else (a @ turn)[places[s]] for s, a in sides]
    one, other = (value(name, *a, **numbers) for a in (arrays, moved))
    np.testing.assert_allclose(one, other, rtol=2e-5)


@each_loss
def test_coincident_and_antipodal_points_have_finite_gradients(name):
    same = np.eye(D)[:1].repeat(N, 0)
    opposite = same * np.where(np.arange(N) < N // 2, 1, -1)[:, None]
    for x, y in ((same, same), (opposite, opposite), (opposite, -opposite), (same, -same)):
        sides = {"n": iter((x, y)), "m": iter([x[:M]]), "D": iter([np.eye(D)])}
        arrays = [next(sides[letter]) for letter in CASES[name].shapes]
        for numbers in CASES[name].numbers:
            found = gradients(name, arrays, **numbers)
            assert all(np.isfinite(a).all() for a in jax.tree.leaves(found)), numbers


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ONE_FORM, "in tables"])
def test_half_precision_over_devices_under_vmap(name, rng):
    """Each device has a share of several batches, and the global loss."""
    loss, oracle, shapes, (numbers, *_) = CASES[name]
    options = numbers | {"axis_name": "data"}
    # These losses use collectives besides the reductions.
    differentiated = name in ("align", "dcl", "queue (22)", "quick_thought_align")
    dtype = jnp.float16 if name in ("uniform", "dcl") else jnp.bfloat16
    batches = [[jnp.asarray(a, dtype) for a in inputs(rng, shapes)] for _ in range(2)]

    def value(arrays):
        return loss(*arrays, **options)

    def step(*arrays):
        if differentiated:
            return jax.value_and_grad(value)(arrays)
        return value(arrays), ()

    axes = tuple(1 if letter == "n" else None for letter in shapes)
    mapped = jax.pmap(jax.vmap(step), "data", in_axes=axes, devices=jax.devices()[:4])
    stacked = [jnp.stack(arrays) for arrays in zip(*batches, strict=True)]
    shares = [a.reshape(2, 4, -1, D) if axis else a for a, axis in zip(stacked, axes, strict=True)]
    values, slopes = mapped(*shares)
    assert values.dtype == jnp.float32 and all(s.dtype == dtype for s in slopes)
    for batch, arrays in enumerate(batches):
        wide = [np.asarray(a, np.float32) for a in arrays]
        np.testing.assert_allclose(values[:, batch], oracle(*wide, **numbers), rtol=1e-5)
        _, (expected, _) = gradients(name, wide, **numbers)
        for letter, found, slope in zip(shapes, slopes, expected, strict=differentiated):
            found = np.asarray(found[:, batch], np.float32) / 4
            found = found.reshape(N, D) if letter == "n" else found.sum(0)
            np.testing.assert_allclose(found, slope, rtol=0.03, atol=3e-3 * np.abs(slope).max())


@pytest.mark.parametrize("name", ["uniform", "dcl", "balanced", "logsumexp"])
def test_one_pair_a_device_is_enough(name, rng):
    loss, oracle, shapes, (numbers, *_) = CASES[name]
    arrays = inputs(rng, shapes, n=4)
    mapped = jax.pmap(functools.partial(loss, **numbers, axis_name="data"), "data")
    found = mapped(*(array[:, None] for array in arrays))
    np.testing.assert_allclose(found, [oracle(*arrays, **numbers)] * 4, rtol=1e-5)


def test_logged_terms_add_up_to_the_loss(rng):
    z1, z2 = inputs(rng, "nn")
    alike = -np.mean(np.sum(z1 * z2, axis=1))
    square = np.mean((z1 - z2) ** 2) / 2
    for loss, number, alignment, options in (
        (hj.balanced_contrastive_loss, 4.0, alike, {}),
        (hj.generalized_nt_xent_loss, 4.0, alike, {}),
        (hj.decoupled_nt_xent_loss, 0.3, alike, {"scaling": "per_sample"}),
        (hj.decoupled_nt_xent_loss, 0.3, square, {"scaling": "per_dimension"}),
    ):
        with_terms = jax.jit(functools.partial(loss, **options, with_terms=True))
        total, *terms = with_terms(z1, z2, number, 3.0)
        np.testing.assert_allclose(terms[0], alignment, rtol=1e-5)
        np.testing.assert_allclose(total, terms[0] + 3.0 * terms[1], rtol=1e-5)
