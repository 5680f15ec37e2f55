"""Masks, weights, and the supervised loss: against the oracle of the unmasked rows."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from jax import export
from jax.sharding import PartitionSpec as P
from loss_cases import CASES, D, inputs
from points import sphere

import hypersphere_jax as hj
from hypersphere_jax.losses._pairwise.precision import on_cpu

N = 12
LABELS = np.array([0, 7, -3, 0, 7, 7, 5, 0, 7, 5, 0, 9])
SUPERVISED = hj.supervised_contrastive_loss, oracles.supervised_contrastive_oracle
FAST = ["align", "uniform", "contrastive", "nt_xent", "supervised"]
SLOW = ["uniform (8)", "contrastive rows", "nt_xent neg_euclidean"]
FORMS = {"blocks": {"block_size": 3}, "ring": {"axis_name": "data", "ring": True}}
each_loss = pytest.mark.parametrize(
    "name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)


def arguments(name, rng):
    """The loss, its oracle, `[n, d]` arrays and, of the supervised one, labels."""
    if name == "supervised":
        return *SUPERVISED, [sphere(rng, N, D)], {"labels": LABELS}
    loss, oracle, shapes, _ = CASES[name]
    return loss, oracle, inputs(rng, shapes, n=N), {}


def step(loss, **options):
    """`arrays, weights, mask, labels -> value, gradients of arrays and weights`."""

    def call(arrays, weights, mask, labels):
        return loss(*arrays, weights=weights, mask=mask, **labels, **options)

    return jax.value_and_grad(call, argnums=(0, 1))


def masks(rng):
    """Masks and weights: the last devices have few or no points, and one point weighs zero."""
    weights = rng.uniform(0.5, 2.0, N)
    weights[3] = 0.0
    some = (np.arange(N) % 5 != 2) & (np.arange(N) < N - 3)
    few = np.arange(N) < 4
    return [(some, weights), (few, weights), (np.full(N, True), np.full(N, 3.0))]


def assert_equals_oracle(run, name, rng, times=1):
    """Compare `run(arrays, weights, mask, labels)` with the oracle of the unmasked rows.

    Masked rows contain NaN; gradients are `times` the oracle's.
    """
    _, oracle, arrays, labels = arguments(name, rng)
    for mask, weights in masks(rng):
        padded = [np.where(mask[:, None], array, np.nan) for array in arrays]
        found, (slopes, by_weight) = run(padded, np.where(mask, weights, np.nan), mask, labels)

        real = {key: array[mask] for key, array in labels.items()}

        def exact(*arrays, real=real):
            *features, weights = arrays
            return oracle(*features, weights=weights, **real)

        kept = [np.float64(a[mask]) for a in (*arrays, weights)]
        np.testing.assert_allclose(found, exact(*kept), rtol=1e-5, atol=1e-6)
        slopes = [np.asarray(slope) / times for slope in (*slopes, by_weight)]
        assert all((slope[~mask] == 0).all() for slope in slopes)
        towards = [rng.standard_normal(a.shape) for a in kept]
        towards[-1] *= weights[mask] > 0
        expected = oracles.numeric_slopes(exact, kept, towards)
        along = [np.vdot(s[mask], v) for s, v in zip(slopes, towards, strict=True)]
        np.testing.assert_allclose(along, expected, rtol=1e-3, atol=3e-5)
    nothing = run([a * np.nan for a in arrays], np.ones(N), np.full(N, False), labels)
    assert all((np.asarray(a) == 0).all() for a in jax.tree.leaves(nothing))


@pytest.mark.slow
@each_loss
def test_over_a_mesh(name, rng):
    mesh = jax.make_mesh((4,), ("data",), devices=jax.devices()[:4])
    program = jax.jit(step(arguments(name, rng)[0]))
    with jax.set_mesh(mesh):

        def run(*given):
            given = jax.tree.map(lambda a: np.float32(a) if a.dtype == float else a, given)
            return jax.device_get(program(*jax.device_put(given, P("data"))))

        assert_equals_oracle(run, name, rng)


@pytest.mark.slow
@each_loss
@pytest.mark.parametrize("form", FORMS)
def test_other_forms(name, form, rng):
    if name == "align" and form in ("blocks", "ring"):
        pytest.skip("align_loss has no pairs of points")
    program = step(arguments(name, rng)[0], **FORMS[form])
    if "axis_name" not in FORMS[form]:
        assert_equals_oracle(jax.jit(program), name, rng)
        return
    mapped = jax.pmap(program, "data", devices=jax.devices()[:4])

    def run(*given):
        values, slopes = mapped(*jax.tree.map(lambda a: a.reshape(4, -1, *a.shape[1:]), given))
        assert (values == values[0]).all()
        return values[0], jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), slopes)

    # Each device has the global value, so gradients are summed over all devices.
    assert_equals_oracle(run, name, rng, times=4)


@pytest.mark.parametrize("name", [*FAST, *SLOW])
def test_masked_rows_leave_all_gradients_finite(name, rng):
    """Features, weights and every scalar argument, whatever the masked rows contain."""
    loss, _, arrays, labels = arguments(name, rng)
    numbers = {"supervised": {"tau": 0.1}}.get(name) or CASES[name].numbers[0]
    mask = np.arange(N) % 3 > 0

    @jax.jit
    @functools.partial(jax.value_and_grad, argnums=(0, 1, 2))
    def program(arrays, numbers, weights):
        return loss(*arrays, **numbers, weights=weights, mask=mask, **labels)

    numbers, weights = jax.tree.map(np.float32, (numbers, np.linspace(1, 2, N)))
    expected = program(arrays, numbers, weights)
    for content in (np.nan, np.inf, -np.inf, 1e38):
        padded = [np.where(mask[:, None], a, np.float32(content)) for a in arrays]
        found = program(padded, numbers, np.where(mask, weights, np.float32(content)))
        jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize("name", [*FAST, *SLOW])
def test_weights_over_many_decades(name, rng):
    """One dominant weight, ten decades, and weights whose sum overflows or is subnormal."""
    loss, oracle, arrays, labels = arguments(name, rng)
    program = jax.jit(jax.value_and_grad(lambda weights: loss(*arrays, weights=weights, **labels)))
    dominant = np.where(np.arange(N) == 4, 1.0, 1e-9)
    for weights, scales in (
        (dominant, (1, 1e28)),
        (10.0 ** -np.linspace(0, 10, N), (1, 1e38)),
        (rng.uniform(1, 2, N), (1, 1e-38, 1e-43, 1e38)),
    ):
        for scale in scales:
            scaled = np.float32(scale * weights)
            expected = oracle(*arrays, weights=np.float64(scaled) / scale, **labels)
            found, slopes = program(scaled)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(loss(*arrays, weights=scaled, **labels), found, rtol=1e-6)
            assert np.isfinite(slopes).all()


@pytest.mark.parametrize(
    "weights",
    [
        np.full(N, 1e-300),
        1e300 + 1e299 * np.arange(N),
        2**40 + np.arange(N),
        np.arange(N, dtype=np.uint8),
    ],
    ids=str,
)
def test_weights_of_any_host_dtype(weights, rng):
    _, oracle, (x, y), _ = arguments("align", rng)
    expected = oracle(x, y, weights=weights / weights.max())
    np.testing.assert_allclose(hj.align_loss(x, y, weights=weights), expected, rtol=1e-5)
    unmasked = np.arange(N) > 3
    padded = np.where(unmasked, weights, np.inf)
    expected = oracle(x[unmasked], y[unmasked], weights=(weights / weights.max())[unmasked])
    found = hj.align_loss(x, y, weights=padded, mask=unmasked)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "labels",
    [
        np.array([1, 2**32 + 1]),
        np.array([-1, 2**32 - 1]),
        np.array([2**31, -(2**31)]),
        np.array([1, 2**63 + 1], np.uint64),
        np.array([0, 255], np.uint8),
        np.array([False, True]),
    ],
    ids=str,
)
def test_labels_are_compared_by_value(labels, rng):
    z = sphere(rng, 6, D)
    classes = np.array([0, 1, 1, 0, 1, 0])
    expected = oracles.supervised_contrastive_oracle(z, classes)
    found = hj.supervised_contrastive_loss(z, labels[classes])
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["nt_xent", "supervised"])
def test_memory_is_linear_in_n(name):
    """No array of a masked loss is as large as a part of all pairs."""
    n = 512
    loss, *_ = arguments(name, np.random.default_rng(0))
    arrays = [jax.ShapeDtypeStruct((n, 2), jnp.float32)] * (1 if name == "supervised" else 2)
    labels = {"labels": jax.ShapeDtypeStruct((n,), jnp.int32)} if name == "supervised" else {}
    program = step(loss, block_size=16)
    made = jax.make_jaxpr(program)(arrays, None, jax.ShapeDtypeStruct((n,), bool), labels)
    shapes = re.findall(r"(?:f32|bool)\[([\d,]+)\]", str(made))
    largest = max(math.prod(map(int, shape.split(","))) for shape in shapes)
    bound = 4 if on_cpu() else 6  # biases are columns on accelerators
    assert 2 * n <= largest <= bound * n


@pytest.mark.slow
def test_supervised_exports_with_a_symbolic_number_of_points(rng):
    _, oracle, (z,), labels = arguments("supervised", rng)
    (n,) = export.symbolic_shape("n", constraints=["n >= 2"])
    specs = jax.ShapeDtypeStruct((n, D), np.float32), jax.ShapeDtypeStruct((n,), np.int32)
    made = export.export(jax.jit(hj.supervised_contrastive_loss))(*specs)
    labels = np.int32(labels["labels"])
    np.testing.assert_allclose(made.call(z, labels), oracle(z, labels), rtol=2e-5)


def test_mistakes(rng):
    x, y = inputs(rng, "nn")
    for options, message in (
        ({"mask": np.ones(11, bool)}, r"mask must be \[12\], got shape \(11,\)"),
        ({"mask": np.ones(12, int)}, "mask must be bool, .* got int"),
        ({"weights": np.ones((12, 1))}, r"weights must be \[12\], got shape \(12, 1\)"),
        ({"weights": -np.ones(12)}, "weights"),
        ({"weights": np.full(12, np.inf)}, "weights"),
    ):
        for loss in (hj.align_loss, hj.contrastive_loss, hj.nt_xent_loss):
            with pytest.raises(ValueError, match=message):
                loss(x, y, **options)
    for labels in (np.ones(12), np.ones((12, 1), int), np.ones(11, int)):
        with pytest.raises(ValueError, match=r"labels must be integers \[12\], got"):
            hj.supervised_contrastive_loss(x, labels)
    with pytest.raises(ValueError, match="at least 2 points"):
        hj.supervised_contrastive_loss(x[:1], np.ones(1, int))
