"""Guarantees of all losses: NaN stays NaN, large norms, float64, one compilation, options."""

import functools
import gc
import logging
import math
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from flax import nnx
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from loss_cases import CASES, N, gradients, inputs, value

import hypersphere_jax as hj
from hypersphere_jax import losses
from hypersphere_jax.losses._pairwise.validation import check_positive

KEY = jax.random.key(0)
LABELS = np.arange(N) // 2
RANDOM = {
    "prior_matching": lambda z: hj.prior_matching_loss(KEY, z, "normal"),
    "generalized_contrastive": lambda z: hj.generalized_contrastive_loss(KEY, z, z[::-1]),
    "supervised_contrastive": lambda z: hj.supervised_contrastive_loss(z, LABELS),
}
DISTANCES = ["uniform", "uniform (8)", "queue (22)", "nt_xent neg_euclidean"]


FAST = ("align", "quick_thought_align", "uniform", "contrastive", "nt_xent", "prior_matching")


@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n not in FAST)) for n in (*CASES, *RANDOM)],
)
def test_features_that_are_not_finite_give_losses_that_are_not_finite(name, broken, rng):
    """One array at a time, and all of them, whose differences are `inf - inf`."""
    good = inputs(rng, CASES[name].shapes if name in CASES else "n")
    places = [[i] for i in range(len(good))] + [range(len(good))]
    for arrays in places:
        given = [np.copy(array) for array in good]
        for i in arrays:
            given[i][3] = broken
        if name in CASES:
            found = value(name, *given, **CASES[name].numbers[0])
        else:
            found = RANDOM[name](*given)
        assert not np.isfinite(found), (name, arrays, found)


def test_every_loss_is_in_the_test_above():
    named = {case.loss.func.__name__ for case in CASES.values()}
    named |= {f"{name}_loss" for name in RANDOM}
    assert named == set(losses.__all__) - {"l2_normalize"}


def far_points(rng, shapes):
    """Groups of close points, 566 from the origin; one point further away."""
    x, y, *others = inputs(rng, "nnmm")
    directions = inputs(rng, "n")[0][:3]
    arrays = [566 * directions[np.arange(len(a)) % 3] + a for a in (x, y, *others)]
    arrays[0][5] *= 20
    sides = iter(arrays)
    return [np.float32(next(sides))[: 7 if s == "m" else N] for s in shapes]


@pytest.mark.parametrize("name", DISTANCES)
def test_far_points(name, rng):
    """Distances of points far from each other, whose inner products would cancel."""
    shapes = CASES[name].shapes
    number = 0.3
    option = "tau" if name.startswith("nt") else "t"
    outlier = inputs(rng, shapes)
    outlier[0][3] *= 1e5
    for arrays in (far_points(rng, shapes), outlier):
        exact = functools.partial(CASES[name].oracle, **{option: number})
        found, (slopes, by_number) = gradients(name, arrays, **{option: number})
        np.testing.assert_allclose(found, exact(*arrays), rtol=1e-5)
        towards = [rng.standard_normal(a.shape) for a in arrays]
        expected = oracles.numeric_slopes(exact, arrays, towards)
        along = [np.vdot(*pair) for pair in zip(slopes, towards, strict=True)]
        np.testing.assert_allclose(along, expected, rtol=1e-3, atol=1e-5)
        ends = (CASES[name].oracle(*arrays, **{option: number + h}) for h in (1e-6, -1e-6))
        np.testing.assert_allclose(by_number[option], np.subtract(*ends) / 2e-6, rtol=1e-3)


def test_norms_of_any_size_and_place(rng):
    (x,) = inputs(rng, "n")
    step = jax.value_and_grad(hj.uniform_loss, argnums=(0, 1))
    for norm in (1e19, 1e20, 1e38):
        far = np.copy(x)
        far[3] *= norm
        found, (slopes, _) = step(far, 0.3)
        np.testing.assert_allclose(found, oracles.uniform_oracle(far, t=0.3), rtol=1e-5)
        assert np.isfinite(slopes).all()
    _, (_, expected) = step(x, 0.3)
    _, (_, moved) = step(np.float32(np.float32(x + 1e4) - 1e4), 0.3)
    np.testing.assert_allclose(step(np.float32(x + 1e4), 0.3)[1][1], moved, rtol=1e-5)
    np.testing.assert_allclose(moved, expected, rtol=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "ring"), [("uniform", False), ("queue (22)", True), ("nt_xent neg_euclidean", True)]
)
def test_far_points_on_devices_and_in_blocks(name, ring, rng):
    """Under `shard_map`, of several batches at once, and second derivatives."""
    loss, oracle, shapes, _ = CASES[name]
    number = {"tau" if name.startswith("nt") else "t": 0.3}
    arrays = far_points(rng, shapes)
    call = functools.partial(loss, **number, axis_name="data", ring=ring, block_size=2)
    mesh = Mesh(np.array(jax.devices()[:4]), ("data",))
    specs = tuple(P("data") if s == "n" else P() for s in shapes)
    mapped = jax.shard_map(call, mesh=mesh, in_specs=specs, out_specs=P())
    step = jax.jit(jax.value_and_grad(mapped))
    found, slope = step(*arrays)
    exact = functools.partial(oracle, **number)
    np.testing.assert_allclose(found, exact(*arrays), rtol=1e-5)
    towards = rng.standard_normal(arrays[0].shape)
    expected = oracles.numeric_slope(lambda x: exact(x, *arrays[1:]), arrays[:1], [towards])
    np.testing.assert_allclose(np.vdot(slope, towards), expected, rtol=1e-3)
    if not ring:

        def alone(x):
            return loss(x, *arrays[1:], **number, block_size=5)

        arrays[0][5] /= 20  # float32 has no digits for slopes at logits near 1e8
        near = inputs(rng, shapes)[0]
        both = jax.jit(jax.vmap(jax.grad(alone)))(np.stack([arrays[0], near]))
        slope = jax.jit(jax.grad(alone))(arrays[0])
        np.testing.assert_allclose(both[0], slope, rtol=1e-4, atol=1e-5)
        _, bend = jax.jit(lambda x, v: jax.jvp(jax.grad(alone), (x,), (v,)))(arrays[0], towards)
        again = jax.jit(lambda x, v: jax.grad(lambda x: jnp.vdot(jax.grad(alone)(x), v))(x))
        np.testing.assert_allclose(again(arrays[0], towards), bend, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n != "uniform")) for n in CASES]
)
def test_float64_stays_float64(name, rng):
    loss, oracle, shapes, tried = CASES[name]
    numbers = tried[0]
    with jax.enable_x64(True):
        arrays = [np.float64(a) for a in inputs(rng, shapes)]
        arrays[0] += 1e-9 * rng.standard_normal(arrays[0].shape)  # no float32 numbers

        def call(arrays, numbers):
            return loss(*arrays, **numbers)

        step = jax.value_and_grad(call, argnums=(0, 1))
        found, (slopes, _) = step(arrays, {k: float(v) for k, v in numbers.items()})
        np.testing.assert_allclose(found, oracle(*arrays, **numbers), rtol=1e-12, atol=1e-12)
        assert {a.dtype for a in (found, *slopes)} == {np.dtype(np.float64)}
        towards = [rng.standard_normal(a.shape) for a in arrays]
        expected = oracles.numeric_slopes(lambda *a: oracle(*a, **numbers), arrays, towards)
        along = [np.vdot(*pair) for pair in zip(slopes, towards, strict=True)]
        np.testing.assert_allclose(along, expected, rtol=1e-7, atol=1e-8)
        narrow = [np.float32(a) for a in arrays]
        assert jax.eval_shape(lambda: call(narrow, numbers)).dtype == np.float32


@pytest.mark.slow
def test_float64_of_the_losses_that_draw(rng):
    with jax.enable_x64(True):
        z = np.float64(inputs(rng, "n")[0])
        for name, call in RANDOM.items():
            found, slope = jax.value_and_grad(lambda z, call=call: call(z))(z)
            assert found.dtype == slope.dtype == np.float64
            near = np.float64(RANDOM[name](np.float32(z))) if "supervised" in name else found
            np.testing.assert_allclose(found, near, rtol=1e-6)
        expected = oracles.supervised_contrastive_oracle(z, LABELS)
        np.testing.assert_allclose(RANDOM["supervised_contrastive"](z), expected, rtol=1e-12)


def test_outside_jit_it_is_compiled_once(caplog, rng):
    """Also for other features and numbers, in value and gradient; and memory maps stay few."""
    (x,) = inputs(rng, "n")
    step = jax.value_and_grad(hj.uniform_loss)
    hj.uniform_loss(x)
    step(x, 1.0)

    def maps():
        gc.collect()
        return Path("/proc/self/maps").read_text().count("\n")

    before = maps() if Path("/proc/self/maps").exists() else 0
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        for i in range(25):
            hj.uniform_loss(1.5 * x, 2.0 + i)
            step(x, 3.0 + i)
    assert not re.findall("Compiling|Finished tracing", caplog.text)
    assert not before or maps() - before < 20


def test_numbers_are_one_number():
    for good in (0.5, 1, np.float64(0.5), jnp.float32(0.5), [0.5], np.ones((1, 1)), jnp.bfloat16(2),
                 nnx.Param(jnp.float32(0.5))):  # fmt: skip
        found = check_positive("tau", good, jnp.float32)
        assert found.shape == () and found.dtype == np.float32
        assert found == float(np.reshape(np.asarray(good), ()))
    wrong = (True, np.bool_(True), "0.5", None, 1j, {}, [], [0.5, 1.0], 10**400, 1e39, 1e-40, 0, -1,
             math.nan, math.inf, KEY, [True], jnp.ones(2), nnx.Param(jnp.ones(2)))  # fmt: skip
    for one in wrong:
        match = "^tau must be one number, positive and finite in float32, got [^\n]{1,60}$"
        with pytest.raises(ValueError, match=match):
            check_positive("tau", one, jnp.float32)
    for known in (jnp.float32(0.5), nnx.Param(jnp.float32(0.5))):  # inside jit, too
        assert jax.jit(lambda known=known: check_positive("tau", known, jnp.float32))() == 0.5
    assert check_positive("lam", 0, jnp.float32, allow_zero=True) == 0
    with jax.enable_x64(True):
        assert check_positive("tau", 1e-40, jnp.float64) == 1e-40


def test_weights_that_are_known_inside_jit(rng):
    (x,) = inputs(rng, "n")
    for mask in (None, jnp.ones(N, bool)):

        @jax.jit
        def weighted(x, mask=mask):
            return hj.align_loss(x, -x, mask=mask, weights=jnp.ones(N))

        np.testing.assert_allclose(weighted(x), hj.align_loss(x, -x), rtol=1e-6)


def test_arrays_are_arrays():
    for wrong in (None, "text", [[1.0], [1.0, 2.0]], np.array([[None]])):
        with pytest.raises(TypeError, match=r"^x must be an array of numbers, got [^\n]{1,60}$"):
            hj.align_loss(wrong, np.ones((2, 2)))
    for options in ({"similarity": ["cosine"]}, {"block_size": True}):
        with pytest.raises(ValueError, match=r"\['cosine'\]|got True"):
            hj.nt_xent_loss(np.ones((2, 2)), np.ones((2, 2)), **options)
