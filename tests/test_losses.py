"""Every loss alike: against float64 loops, in blocks, under transformations, over devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from jax.sharding import Mesh, PartitionSpec
from loss_cases import CASES, ON_DEVICES, PAIRWISE, compiled, each_loss, gradients, inputs

from hypersphere_jax import l2_normalize


@each_loss
def test_value(name, rng):
    _, oracle, shapes, _ = CASES[name]
    arrays = inputs(rng, shapes)
    value, (with_gradient, _), _ = compiled(name)(arrays)
    np.testing.assert_allclose(value, oracle(*arrays), rtol=3e-6)
    np.testing.assert_allclose(with_gradient, oracle(*arrays), rtol=3e-6)
    assert value.dtype == jnp.float32 and value.shape == ()
    # Features that are not unit: the formulas hold as they stand.
    arrays = [1.7 * a if letter != "D" else a for a, letter in zip(arrays, shapes, strict=True)]
    np.testing.assert_allclose(compiled(name)(arrays)[0], oracle(*arrays), rtol=5e-6)


@each_loss
def test_gradient_by_differences(name, rng):
    _, oracle, shapes, _ = CASES[name]
    arrays = inputs(rng, shapes)
    towards = [rng.standard_normal(a.shape) for a in arrays]
    _, (_, grads), forward = compiled(name)(arrays, towards)
    slope = sum(np.vdot(g, v) for g, v in zip(grads, towards, strict=True))
    expected = oracles.numeric_slope(oracle, arrays, towards)
    np.testing.assert_allclose(slope, expected, rtol=2e-4, atol=1e-5)
    np.testing.assert_allclose(forward, expected, rtol=2e-4, atol=1e-4)
    # And entry by entry, for some.
    for k in range(len(arrays)):
        for entry in rng.integers(0, arrays[k].shape, (4, 2)):
            one = [np.zeros(a.shape) for a in arrays]
            one[k][tuple(entry)] = 1
            expected = oracles.numeric_slope(oracle, arrays, one)
            scale = float(np.abs(grads[k]).max())
            found = grads[k][tuple(entry)]
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5 * scale + 1e-8)


@pytest.mark.parametrize(
    "name", ["uniform 2", "contrastive 0.5", "info_nce 0.07", "queue (22)", "balanced"]
)
def test_gradient_of_each_array_alone(name, rng):
    loss, _, shapes, _ = CASES[name]
    arrays = inputs(rng, shapes)
    _, (_, together), _ = compiled(name)(arrays)
    for i, expected in enumerate(together):
        alone = jax.jit(jax.grad(loss, argnums=i))(*arrays)
        np.testing.assert_allclose(alone, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "block_size"),
    [*((name, 4) for name in PAIRWISE), ("uniform 2", 1), ("contrastive 0.5", 5), ("balanced", 1)],
)
def test_blocks_of_any_size(name, block_size, rng):
    loss, _, shapes, _ = CASES[name]
    arrays = inputs(rng, shapes)
    value, (_, grads), _ = compiled(name)(arrays)

    @jax.jit
    def in_blocks(arrays, cotangent):
        blocks = functools.partial(loss, block_size=block_size)
        value, back = jax.vjp(jax.checkpoint(lambda *a: blocks(*a)), *arrays)
        return value, back(cotangent)

    for cotangent in (1.0, -2.5):  # a second use of what was compiled
        found, pulled = in_blocks(arrays, cotangent)
        np.testing.assert_allclose(found, value, rtol=2e-6)
        for g, expected in zip(pulled, grads, strict=True):
            np.testing.assert_allclose(g, cotangent * expected, rtol=1e-4, atol=2e-5)


@each_loss
def test_invariant_to_rotation(name, rng):
    shapes = CASES[name].shapes
    arrays = inputs(rng, shapes)
    rotation = np.linalg.qr(rng.standard_normal((5, 5)))[0].astype(np.float32)
    moved = [
        rotation.T @ a if letter == "D" else a @ rotation
        for a, letter in zip(arrays, shapes, strict=True)
    ]
    one, other = (compiled(name)(a)[0] for a in (moved, arrays))
    np.testing.assert_allclose(one, other, rtol=2e-5)


@each_loss
def test_invariant_to_order(name, rng):
    shapes = CASES[name].shapes
    arrays = inputs(rng, shapes)
    # Sentences have an order; reversed, neighbours remain neighbours.
    order = np.arange(11)[::-1] if "quick_thought" in name else rng.permutation(11)
    moved = [
        a[order] if letter == "n" else a[::-1] for a, letter in zip(arrays, shapes, strict=True)
    ]
    if "D" in shapes:
        moved[-1] = arrays[-1]
    one, other = (compiled(name)(a)[0] for a in (moved, arrays))
    np.testing.assert_allclose(one, other, rtol=1e-5)


@each_loss
def test_vmap_and_jit(name, rng):
    loss, _, shapes, pairwise = CASES[name]
    batch = [np.stack(a) for a in zip(*(inputs(rng, shapes) for _ in range(3)), strict=True)]
    one_by_one = [compiled(name)(arrays)[1] for arrays in zip(*batch, strict=True)]
    options = {"block_size": 4} if pairwise else {}
    value, grads = jax.jit(jax.vmap(lambda *a: gradients(loss, a, **options)))(*batch)
    np.testing.assert_allclose(value, [v for v, _ in one_by_one], rtol=2e-5)
    for g, expected in zip(grads, zip(*(g for _, g in one_by_one), strict=True), strict=True):
        np.testing.assert_allclose(g, np.stack(expected), rtol=3e-4, atol=2e-5)


@each_loss
def test_coincident_and_antipodal_points(name):
    shapes = CASES[name].shapes
    same = np.eye(5, dtype=np.float32)[:1].repeat(11, 0)
    opposite = same * np.where(np.arange(11) < 6, 1, -1)[:, None].astype(np.float32)
    for x, y in ((same, same), (opposite, opposite), (opposite, -opposite), (same, -same)):
        sides = {"n": iter((x, y)), "m": iter([x[:7]]), "D": iter([np.eye(5)])}
        value, (_, grads), _ = compiled(name)([next(sides[letter]) for letter in shapes])
        assert np.isfinite(value)
        assert all(np.isfinite(g).all() for g in grads)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, jnp.bfloat16) for name in CASES),
        ("uniform 2", jnp.float16),
        ("dcl 0.01", jnp.float16),
    ],
)
def test_half_precision_is_computed_in_float32(name, dtype, rng):
    loss, oracle, shapes, _ = CASES[name]
    arrays = [jnp.asarray(a, dtype) for a in inputs(rng, shapes)]
    value, grads = jax.jit(functools.partial(gradients, loss))(arrays)
    assert value.dtype == jnp.float32 and all(g.dtype == dtype for g in grads)
    wide = [np.asarray(a, np.float32) for a in arrays]
    np.testing.assert_allclose(value, oracle(*wide), rtol=5e-6)
    for g, expected in zip(grads, compiled(name)(wide)[1][1], strict=True):
        np.testing.assert_allclose(g, expected.astype(dtype), rtol=0.02, atol=1e-4)


def step_over_devices(loss, shapes, **options):
    """What a data-parallel step computes, with a linear encoder of all that has features."""

    def step(weights, *arrays):
        def global_loss(weights):
            encoded = (
                a if letter == "D" else l2_normalize(a @ weights)
                for a, letter in zip(arrays, shapes, strict=True)
            )
            return loss(*encoded, **options)

        value, gradient = jax.value_and_grad(global_loss)(weights)
        if "axis_name" in options:
            gradient = jax.lax.pmean(gradient, options["axis_name"])
        return value, gradient

    return step


@pytest.mark.parametrize(
    ("name", "devices"), [*((name, 4) for name in ON_DEVICES), ("balanced", 2), ("dcl 0.5", 8)]
)
@pytest.mark.slow
def test_devices_give_the_same_value_and_gradient(name, devices, rng):
    loss, _, shapes, pairwise = CASES[name]
    arrays = inputs(rng, shapes, n=16, d=6)
    weights = rng.standard_normal((6, 6)).astype(np.float32)
    expected = jax.jit(step_over_devices(loss, shapes))(weights, *arrays)
    forms = [{}]
    if pairwise:
        # A queue's keys are on every device: no ring for them.
        forms += [{"block_size": 3}] + ([] if "info_nce" in name else [{"ring": True}])
    steps = [step_over_devices(loss, shapes, axis_name="data", **form) for form in forms]

    def all_forms(weights, *arrays):
        return [step(weights, *arrays) for step in steps]

    local = jax.devices()[:devices]
    sharded = [
        a.reshape(devices, -1, 6) if s == "n" else a for a, s in zip(arrays, shapes, strict=True)
    ]
    axes = [0 if s == "n" else None for s in shapes]
    mapped = jax.pmap(all_forms, axis_name="data", in_axes=(None, *axes), devices=local)
    results = jax.tree.map(lambda a: np.asarray(a)[0], mapped(weights, *sharded))
    batch, replicated = PartitionSpec("data"), PartitionSpec()
    for check_vma in (True, False):
        sharded_step = jax.shard_map(
            all_forms if check_vma else lambda *arrays: [steps[0](*arrays)],
            mesh=Mesh(np.array(local), ("data",)),
            in_specs=(replicated, *(batch if s == "n" else replicated for s in shapes)),
            out_specs=replicated,
            check_vma=check_vma,
        )
        results += jax.jit(sharded_step)(weights, *arrays)
    assert len(results) == 2 * len(forms) + 1
    for value, gradient in results:
        np.testing.assert_allclose(value, expected[0], rtol=1e-5)
        np.testing.assert_allclose(gradient, expected[1], rtol=2e-4, atol=2e-5)
