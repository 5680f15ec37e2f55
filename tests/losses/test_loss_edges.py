"""Losses at their edges: extreme options, few points, memory, odd types and bad arguments."""

import functools
import inspect
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from jax.sharding import Mesh, PartitionSpec
from loss_cases import CASES, ONE_FORM, gradients, inputs, value
from points import sphere

import hypersphere_jax as hj
from hypersphere_jax import l2_normalize
from hypersphere_jax.losses.common import not_negative, positive
from hypersphere_jax.losses.devices import Reach, checked_reach

NO_PAIRS = ("align", "quick_thought_align", "sliced_wasserstein")


@pytest.mark.parametrize(
    "name", ["contrastive", "nt_xent dot", "info_nce", "generalized", "decoupled"]
)
def test_losses_near_zero_keep_their_digits(name, rng):
    """Aligned pairs at low temperature: the loss is log(1 + tiny), and so are its gradients."""
    z, others = sphere(rng, 12, 5), sphere(rng, 7, 5)
    for tau in (0.05, 0.03, 0.01):

        def exact(z, tau=tau):
            """From differences of logits, which are not near zero, in float64."""
            negatives = others if name == "info_nce" else z
            gaps = (z @ negatives.T - np.sum(z**2, 1)[:, None]) / tau
            if name != "info_nce":
                np.fill_diagonal(gaps, -np.inf)
            views = 1 if name in ("contrastive", "info_nce") else 2
            return np.log1p(views * np.exp(gaps).sum(1)).mean()

        arrays = [z, z, others][: len(CASES[name].shapes)]
        options = {
            "generalized": {"alpha": 1 / tau, "lam": 1},
            "decoupled": {"tau": tau, "lam": tau},
        }
        found, (slopes, _) = gradients(name, arrays, **options.get(name, {"tau": tau}))
        scale = tau if name in options else 1
        np.testing.assert_allclose(found, scale * exact(np.float64(z)), rtol=2e-5)
        towards = rng.standard_normal(z.shape)
        slope = oracles.numeric_slope(exact, [z], [towards])
        np.testing.assert_allclose(
            np.vdot(slopes[0] + slopes[1], towards), scale * slope, rtol=1e-3
        )


def test_vanishing_temperature(rng):
    x, y = sphere(rng, 12, 5), sphere(rng, 12, 5)
    found, slopes = gradients("contrastive", (x, y), tau=1e-4)
    assert np.isfinite(found) and all(np.isfinite(s).all() for s in jax.tree.leaves(slopes))
    # The loss is the gap to the hardest negative over tau.
    logits = np.float64(x) @ y.T
    gap = (logits.max(1) + logits.max(0)).mean() / 2 - np.diag(logits).mean()
    np.testing.assert_allclose(found * 1e-4, gap, rtol=1e-4)


def test_uniformity_of_close_points(rng):
    """Distances of 1e-4 around a far point: squares would drown in the rounding of the norms."""
    close, t = (np.eye(5)[0] + 1e-4 * rng.standard_normal((12, 5))).astype(np.float32), 1e7
    np.testing.assert_allclose(
        value("uniform", close, t=t), oracles.uniform_oracle(close, t), rtol=1e-3
    )
    queries, keys = close, close[:7] + np.float32(1e-4)
    found = value("queue (22)", queries, keys, t=t)
    np.testing.assert_allclose(found, oracles.uniform_queue_oracle(queries, keys, t), rtol=1e-3)


def test_uniformity_of_one_point():
    loss = functools.partial(hj.uniform_loss, include_self=True)
    found = jax.jit(jax.value_and_grad(loss))(np.eye(3, dtype=np.float32)[:1])
    assert [a.tolist() for a in found] == [0, [[0, 0, 0]]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["contrastive", "nt_xent", "queue (22)", "uniform", "dcl", "balanced", "logsumexp"],
)
def test_the_fewest_points(name):
    """The shapes of the tests of every loss are others: these are compiled for this alone."""
    _, oracle, shapes, (numbers, *_) = CASES[name]
    alone = name in ("contrastive", "nt_xent", "queue (22)")
    arrays = inputs(np.random.default_rng(1), shapes, n=1 if alone else 2, m=2, d=3)
    found, slopes = gradients(name, arrays, **numbers)
    np.testing.assert_allclose(found, oracle(*arrays, **numbers), 1e-5, atol=1e-9)
    assert all(np.isfinite(slope).all() for slope in jax.tree.leaves(slopes))


@pytest.mark.parametrize("ring", [False, True])
def test_one_point_on_each_device_or_one_side_for_all(ring, rng):
    """No device has a pair of its own; inside `shard_map` a type tells what varies over devices."""
    x, y = sphere(rng, 4, 3), sphere(rng, 1, 3)

    def losses(x, y):
        options = {"axis_name": "data", "ring": ring}
        return hj.uniform_loss(x, **options), hj.contrastive_loss(x, y, **options)

    mapped = jax.shard_map(
        losses,
        mesh=Mesh(np.array(jax.devices()[:4]), "data"),
        in_specs=(PartitionSpec("data"), PartitionSpec()),
        out_specs=PartitionSpec(),
    )
    wanted = oracles.uniform_oracle(x), oracles.contrastive_oracle(x, np.tile(y, (4, 1)))
    np.testing.assert_allclose(jax.jit(mapped)(x, y), wanted, rtol=1e-5)


@pytest.mark.slow
def test_local_loss_inside_shard_map(rng):
    """Without axis_name each device has a loss of its own points; the queue is everyone's."""
    x, queue = sphere(rng, 16, 4), sphere(rng, 6, 4)
    mapped = jax.shard_map(
        jax.grad(lambda x, queue: hj.uniform_queue_loss(x, queue, 40.0, block_size=3)),
        mesh=Mesh(np.array(jax.devices()[:4]), "data"),
        in_specs=(PartitionSpec("data"), PartitionSpec()),
        out_specs=PartitionSpec("data"),
    )
    expected = [jax.grad(hj.uniform_queue_loss)(part, queue, 40.0) for part in x.reshape(4, 4, 4)]
    found = jax.jit(mapped)(x, queue)
    np.testing.assert_allclose(found, np.concatenate(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [n for n in ONE_FORM if n not in NO_PAIRS])
def test_memory_is_linear_in_n(name):
    """No array of value or gradients is as large as a part of all pairs."""
    n, loss = 512, CASES[name].loss
    step = jax.value_and_grad(lambda arrays: loss(*arrays, block_size=16))
    arrays = [jax.ShapeDtypeStruct((n, 2), jnp.float32) for _ in CASES[name].shapes]
    shapes = re.findall(r"f32\[([\d,]+)\]", str(jax.make_jaxpr(step)(arrays)))
    largest = max(math.prod(map(int, shape.split(","))) for shape in shapes)
    assert 2 * n <= largest <= 4 * n


def test_options_of_other_types():
    """A half-precision temperature is its own number, but computed with in float32."""
    for option in (jnp.bfloat16(0.07), jnp.full(1, 0.07), np.full(1, 0.07, np.float32)):
        found = positive("tau", option)
        assert found == float(jnp.reshape(option, ())) and np.shape(found) == ()
        assert not isinstance(option, jax.Array) or found.dtype == jnp.float32
    assert positive("tau", np.float64(0.07)) == 0.07 and not_negative("lam", 0) == 0.0
    assert checked_reach(np.int64(4), "data", True) == Reach(4, "data", True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode", [jax.enable_x64, functools.partial(jax.numpy_dtype_promotion, "strict")]
)
def test_modes_of_types(mode):
    """Of float64 features, where they are, the loss is float32, and the gradients are float64."""
    with mode(True) if mode is jax.enable_x64 else mode():
        x = jnp.asarray(np.linalg.qr(np.random.default_rng(0).standard_normal((6, 6)))[0])
        for call in (
            lambda x: hj.uniform_loss(x, np.float64(40.0)),
            lambda x: hj.contrastive_loss(x, x[::-1], 0.1),
            lambda x: hj.balanced_contrastive_loss(x, x[::-1], np.float64(3.0), np.float64(1.0)),
            lambda x: hj.generalized_contrastive_loss(jax.random.key(0), x, x[::-1]),
            lambda x: hj.uniform_queue_loss(x, x[:2]),
            lambda x: hj.align_loss(x, x[::-1], np.float64(3.0)),
        ):
            found, slope = jax.value_and_grad(call)(x)
            assert found.dtype == jnp.float32 and slope.dtype == x.dtype and np.isfinite(found)


@pytest.mark.parametrize("name", CASES)
def test_mistakes_with_every_loss(name, rng):
    loss, _, shapes, (numbers, *_) = CASES[name]
    good = inputs(rng, shapes)

    def fails(message, arrays=good, **changes):
        with pytest.raises(ValueError, match=message):
            jax.eval_shape(lambda: loss(*arrays, **numbers | changes))

    for option in numbers:
        for wrong in (-1.0, np.float32(-1), jnp.float32(-1), math.inf, math.nan):
            fails(f"{option} must be .*positive and finite", **{option: wrong})
        fails(r"must be one number, got shape \(3,\)", **{option: jnp.ones(3)})
    fails(
        "at least (one|two)", [a[:0] if s == "n" else a for a, s in zip(good, shapes, strict=True)]
    )
    fails("at least (one|two)|one shape|one d", [a[:0] for a in good])
    fails(r"must be (\[n, d\] of one shape|two-dimensional)", [good[0][0], *good[1:]])
    fails("must be floating point, got int", [good[0].astype(int), *good[1:]])
    if len(shapes) > 1:
        fails(r"\(12, 4\), ", [good[0][:, 1:], *good[1:]])
    if "nn" in shapes:
        fails(r"\(12, 5\), \(11, 5\)", [good[0], good[1][1:], *good[2:]])
    options = inspect.signature(loss.func).parameters
    for wrong in (0, True, 1.5) if "block_size" in options else ():
        fails(f"block_size .*{wrong}", block_size=wrong)
    if "ring" in options:
        fails("needs axis_name", ring=True)


X, KEY = np.eye(3, dtype=np.float32), jax.random.key(0)


@pytest.mark.parametrize(
    ("name", "arguments", "options", "message"),
    [
        ("info_nce", (X, X, X[:0]), {}, "one negative"),
        ("uniform_queue", (X, X[:0]), {}, "one key in the queue"),
        ("sliced_wasserstein", (X, X, X[:, :0]), {}, "one direction"),
        ("uniform", (X[:1],), {}, "two points"),
        ("logsumexp", (X[:1],), {}, "two points"),
        *((name, (X[:1], X[:1]), {}, "two pairs") for name in ("dcl", "balanced_contrastive")),
        *(
            (f"quick_thought_{name}", (X[:1], X[:1]), {}, "two sentences")
            for name in ("align", "contrastive", "uniform")
        ),
        ("nt_xent", (X, X), {"similarity": "cos"}, "'cos'"),
        ("decoupled_nt_xent", (X, X), {"scaling": "both"}, "'both'"),
        ("prior_matching", (KEY, X, "cube"), {}, "prior must be one of .*, got 'cube'"),
        ("prior_matching", (KEY, X[0]), {}, r"must be \[n, d\]"),
        ("prior_matching", (KEY, X[:0]), {}, "at least one sample"),
        ("generalized_contrastive", (KEY, X, X, "cube"), {}, "'cube'"),
        ("generalized_contrastive", (KEY, X, X[:0]), {}, "of one shape"),
        ("generalized_contrastive", (KEY, X, X), {"scaling": "per_batch"}, "'per_batch'"),
        ("generalized_contrastive", (KEY, X, X), {"lam": -1.0}, "lam must be zero or positive"),
    ],
)
def test_mistakes(name, arguments, options, message):
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(lambda: getattr(hj, f"{name}_loss")(*arguments, **options))


def test_l2_normalize(rng):
    """Along any axis, of any length; zero stays zero, and its gradient is finite."""
    x = rng.standard_normal((4, 3, 5)).astype(np.float32)
    for axis in (-1, 0, 1):
        expected = x / np.linalg.norm(x, axis=axis, keepdims=True)
        found = jax.jit(l2_normalize, static_argnums=1)(x, axis)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    lengths = np.float32([[1e-11], [1e-6], [1.0], [1e30]])
    np.testing.assert_allclose(l2_normalize(lengths * [3, 4]), [[0.6, 0.8]] * 4, rtol=1e-6)
    slope = jax.jit(jax.jacobian(l2_normalize))
    point = x[0, 0]
    unit = point / np.linalg.norm(point)
    expected = (np.eye(5) - np.outer(unit, unit)) / np.linalg.norm(point)
    np.testing.assert_allclose(slope(point), expected, atol=1e-6)
    zero = np.zeros(5, np.float32)
    assert (l2_normalize(zero) == 0).all()
    # Shorter than eps, it is divided by eps.
    np.testing.assert_allclose(slope(zero), 1e12 * np.eye(5), rtol=1e-6)


def test_l2_normalize_keeps_the_type(rng):
    for dtype in (jnp.bfloat16, jnp.float16, jnp.float32):
        assert l2_normalize(jnp.ones(3, dtype)).dtype == dtype
    assert l2_normalize(np.arange(3)).dtype == jnp.float32
    # Squares of 300 overflow float16, the result does not.
    large = l2_normalize(jnp.full(4, 300.0, jnp.float16))
    np.testing.assert_allclose(np.asarray(large, np.float32), 0.5, rtol=1e-3)
    # Computed in float32, and rounded once.
    half = jnp.asarray(rng.standard_normal((8, 64)), jnp.bfloat16)
    wide = np.asarray(half, np.float32)
    expected = wide / np.linalg.norm(wide, axis=1, keepdims=True)
    found = np.asarray(l2_normalize(half), np.float32)
    np.testing.assert_allclose(found, expected, rtol=1.01 * 2**-8)
