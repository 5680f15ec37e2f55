"""Every loss once: value and gradients against float64 loops, invariances, and over devices.

What all losses have of `losses/pairs.py` (blocks, forward mode, rings and so on) is tested there.
"""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from loss_cases import CASES, ONE_FORM, D, M, N, gradients, inputs, value

from hypersphere_jax.losses import nt_xent

each_loss = pytest.mark.parametrize("name", CASES)


@each_loss
def test_value_and_gradients_are_those_of_the_oracle(name, rng):
    """With respect to each array and each option; also of features that are not unit."""
    _, oracle, shapes, tried = CASES[name]
    for numbers in tried:
        for length in (1.0, 1.7):
            arrays = [
                a if letter == "D" else length * a
                for a, letter in zip(inputs(rng, shapes), shapes, strict=True)
            ]
            found, (slopes, by_number) = gradients(name, arrays, **numbers)
            np.testing.assert_allclose(found, oracle(*arrays, **numbers), rtol=5e-6, atol=1e-8)
            assert found.dtype == jnp.float32 and found.shape == ()
            for k, slope in enumerate(slopes):
                for _ in range(2):
                    towards = [np.zeros(a.shape) for a in arrays]
                    towards[k] = rng.standard_normal(arrays[k].shape)
                    expected = oracles.numeric_slope(
                        lambda *a, numbers=numbers: oracle(*a, **numbers), arrays, towards
                    )
                    along = np.vdot(slope, towards[k])
                    np.testing.assert_allclose(along, expected, rtol=3e-4, atol=3e-5)
            for option, slope in by_number.items():
                ends = [
                    oracle(*arrays, **numbers | {option: numbers[option] * (1 + shift)})
                    for shift in (1e-5, -1e-5)
                ]
                expected = (ends[0] - ends[1]) / (2e-5 * numbers[option])
                np.testing.assert_allclose(slope, expected, rtol=3e-4, atol=3e-5)


def test_defaults_are_those_of_the_oracles():
    compared = 0
    for name, (loss, oracle, *_) in CASES.items():
        found = inspect.signature(loss.func).parameters
        for option, parameter in inspect.signature(oracle.func).parameters.items():
            if parameter.default is not inspect.Parameter.empty:
                assert found[option].default == parameter.default, (name, option)
                compared += 1
    assert compared > 25


@each_loss
def test_invariant_to_rotation_and_order(name, rng):
    _, _, shapes, (numbers, *_) = CASES[name]
    arrays = inputs(rng, shapes)
    turn = np.linalg.qr(rng.standard_normal((D, D)))[0].astype(np.float32)
    # Sentences have an order; reversed, neighbours remain neighbours.
    order = np.arange(N)[::-1] if "quick_thought" in name else rng.permutation(N)
    places = {"n": order, "m": np.arange(M)[::-1]}
    moved = [
        turn.T @ a if letter == "D" else (a @ turn)[places[letter]]
        for a, letter in zip(arrays, shapes, strict=True)
    ]
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


# Where more is taken from other devices than by the sums of `losses/pairs.py`.
OF_THEIR_OWN = ("align", "dcl", "queue (22)", "quick_thought_align")


@pytest.mark.parametrize("name", ONE_FORM)
def test_half_precision_over_devices_under_vmap(name, rng):
    """As encoders that train together have it: each device has its share of several batches.

    The value is computed in float32 and the same on all devices. Each of four devices has the
    global loss, so that its gradients are those of four.
    """
    loss, oracle, shapes, (numbers, *_) = CASES[name]
    options = numbers | {"axis_name": "data"}
    differentiated = name in OF_THEIR_OWN
    dtype = jnp.float16 if name in ("uniform", "dcl") else jnp.bfloat16
    batches = [[jnp.asarray(a, dtype) for a in inputs(rng, shapes)] for _ in range(2)]

    def step(*arrays):
        value = lambda arrays: loss(*arrays, **options)  # noqa: E731
        return jax.value_and_grad(value)(arrays) if differentiated else (value(arrays), ())

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


def test_logged_terms_add_up_to_the_loss(rng):
    z1, z2 = inputs(rng, "nn")
    alike, square = -np.mean(np.sum(z1 * z2, axis=1)), np.mean((z1 - z2) ** 2) / 2
    for terms, number, alignment, options in (
        (nt_xent.balanced_contrastive_terms, 4.0, alike, {}),
        (nt_xent.generalized_nt_xent_terms, 4.0, alike, {}),
        (nt_xent.decoupled_nt_xent_terms, 0.3, alike, {"scaling": "per_sample"}),
        (nt_xent.decoupled_nt_xent_terms, 0.3, square, {"scaling": "per_dimension"}),
    ):
        found = jax.jit(functools.partial(terms, **options))(z1, z2, number, 3.0)
        np.testing.assert_allclose(found[1], alignment, rtol=1e-5)
        np.testing.assert_allclose(found[0], found[1] + 3.0 * found[2], rtol=1e-5)
