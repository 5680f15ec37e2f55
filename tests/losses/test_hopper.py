"""The kernel of Hopper GPUs: its numbers, and the losses that consist of its sums."""

import functools
import types

import jax
import jax.export
import jax.numpy as jnp
import loss_cases
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from points import sphere

import hypersphere_jax as hj
from hypersphere_jax.losses._pairwise import hopper, sums
from hypersphere_jax.losses._pairwise.options import PairOptions
from hypersphere_jax.losses._pairwise.points import MASKED_LOGIT, Points

FAST = ("uniform", "contrastive", "nt_xent")
# Each of these uses sums that the others do not use.
SLOW = ("dcl", "info_nce", "queue (22)", "nt_xent neg_euclidean", "notebook", "balanced")


def dense_sums(x, y, shift, bias, second=None, *, exclude=0, weighted=True):
    """The result of `hopper.exp_sums` from the matrix of all pairs."""
    logits = x @ y.T + bias[None]
    weights = jnp.exp(logits - shift[:, None])
    if second is not None:
        weights += jnp.exp(logits - second[0][:, None] - second[1][None])
    if exclude:
        i, j = (jnp.arange(len(side)) >> (exclude - 1) for side in (x, y))
        weights = jnp.where(i[:, None] == j[None], 0.0, weights)
    if not weighted:
        return (weights.sum(1),)
    return weights @ y, weights.sum(1)


@pytest.fixture
def kernel_calls(monkeypatch):
    """Losses with `precision="high"` use `dense_sums` as the kernel; the options of its calls."""
    calls = []

    def exp_sums(x, *arguments, **options):
        calls.append(options)
        result = jax.ShapeDtypeStruct(x.shape, x.dtype)
        x = jax.pure_callback(np.asarray, result, x)  # has no derivative and no `vmap`
        return dense_sums(x, *arguments, **options)

    jax.clear_caches()  # Losses may be compiled without the kernel.
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(hopper, "is_supported", lambda x, y: True)
    monkeypatch.setattr(hopper, "exp_sums", exp_sums)
    yield calls
    jax.clear_caches()


@pytest.mark.parametrize(
    "name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_losses_equal_those_in_blocks(name, kernel_calls, rng):
    case = loss_cases.CASES[name]
    arrays = loss_cases.inputs(rng, case.shapes, n=6, m=5, d=3)
    loss = functools.partial(case.loss, **case.numbers[0])
    sides = tuple(range(len(arrays)))
    in_blocks = jax.value_and_grad(functools.partial(loss, precision="highest"), sides)(*arrays)
    assert not kernel_calls
    by_kernel = jax.value_and_grad(functools.partial(loss, precision="high"), sides)(*arrays)
    assert kernel_calls
    np.testing.assert_allclose(by_kernel[0], in_blocks[0], rtol=1e-5, atol=1e-6)
    for found, expected in zip(by_kernel[1], in_blocks[1], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_fallback_to_blocks(kernel_calls, rng):
    """Second derivatives, batches of `vmap`, and logits beyond float32's exponentials."""
    x = np.float32(sphere(rng, 6, 3))
    ours = functools.partial(hj.uniform_loss, precision="high")
    blocks = functools.partial(hj.uniform_loss, precision="highest")

    def second_derivative(loss):
        return jax.grad(lambda x: jnp.sum(jnp.sin(jax.grad(loss)(x))))

    for derivative in (second_derivative, jax.grad):
        found = derivative(ours)(x)
        np.testing.assert_allclose(found, derivative(blocks)(x), rtol=1e-4, atol=1e-6)
    batch = np.stack([x, x[::-1] + 0.1])
    for function in (ours, jax.grad(ours)):
        expected = np.stack([function(each) for each in batch])
        np.testing.assert_allclose(jax.vmap(function)(batch), expected, rtol=1e-5, atol=1e-6)
    cold = [hj.contrastive_loss(x, x, 0.005, precision=p) for p in ("high", "highest")]
    np.testing.assert_allclose(*cold, rtol=1e-5)
    assert kernel_calls


@pytest.mark.parametrize(
    "anchors", ["ab", *(pytest.param(sides, marks=pytest.mark.slow) for sides in ("", "a", "b"))]
)
def test_weighted_sums_with_shifts_of_either_side(anchors, kernel_calls, rng):
    def points(side):
        x = np.float32(rng.standard_normal((6, 3)))
        bias = np.float32(rng.standard_normal(6) - 10)
        bias[2] = MASKED_LOGIT
        shift = np.float32(rng.standard_normal(6)) if side in anchors else None
        return Points(x, bias, shift)

    a = points("a")
    b = points("b")
    for exclude in (0, 1, 2):
        found = sums.weighted_pair_sums(a, b, PairOptions(precision="high"), exclude=exclude)
        assert kernel_calls
        kernel_calls.clear()
        in_blocks = PairOptions(axis_name="i", precision="high")
        expected = sums.weighted_pair_sums(a, b, in_blocks, exclude=exclude)
        assert not kernel_calls
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-12),
                     found, expected)  # fmt: skip


def test_supported_points_and_devices(monkeypatch):
    device = types.SimpleNamespace(compute_capability="9.0")
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    monkeypatch.setattr(jax, "__version__", "0.11.2")
    many, few, wide = (np.zeros(s, np.float32) for s in ((1024, 128), (9, 128), (1024, 129)))
    assert hopper.is_supported(many, many)
    for x, y in ((many, few), (wide, wide), (many, many.astype(np.float16))):
        assert not hopper.is_supported(x, y)
    assert hopper.is_supported(*[jax.ShapeDtypeStruct(many.shape, many.dtype)] * 2)
    n, d = jax.export.symbolic_shape("n, d")
    for shape in ((n, 128), (1024, d)):
        assert not hopper.is_supported(*[jax.ShapeDtypeStruct(shape, np.float32)] * 2)
    for version, capability in (("0.10.2", "9.0"), ("0.11.2", "10.0"), ("0.11.2", "8.0")):
        monkeypatch.setattr(jax, "__version__", version)
        device.compute_capability = capability
        assert not hopper.is_supported(many, many)


def test_shard_map_with_types_is_not_supported(monkeypatch):
    monkeypatch.setattr(hopper, "_is_hopper", lambda: True)
    x = np.zeros((1024, 128), np.float32)
    mesh = Mesh(np.array(jax.devices()[:1]), ("i",))
    supported = []

    def inside(x):
        supported.append(hopper.is_supported(x, x))
        return x

    for check in (True, False):
        jax.shard_map(inside, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=check)(x)
    assert supported == [False, True]


@pytest.fixture
def interpreted(monkeypatch):
    """Options of the kernel: Pallas' interpreter, except on Hopper GPUs."""
    x = np.zeros((1024, 64), np.float32)
    if hopper.is_supported(x, x):
        return {}
    pallas = pytest.importorskip("jax.experimental.pallas")
    gpu = pytest.importorskip("jax.experimental.pallas.mosaic_gpu")
    if jax.__version_info__ < (0, 11):
        pytest.skip("needs JAX 0.11")

    def run_state(accumulate):  # The interpreter has no accumulators.
        def total(start):
            products = []
            accumulate(products)
            wide = ([part[...].astype(jnp.float32) for part in pair] for pair in products)
            return start + sum(jnp.dot(a, b, precision="highest") for a, b in wide)

        return total

    monkeypatch.setattr(gpu, "wgmma", lambda ref, a, b: ref.append((a, b)))
    monkeypatch.setattr(gpu.ACC, "init", staticmethod(lambda start: start))
    monkeypatch.setattr(pallas, "run_state", run_state)
    return {"interpret": gpu.InterpretGPUParams()}


@pytest.mark.slow
def test_sums_equal_dense_sums(interpreted, rng):
    x, y = (np.float32(2 * sphere(rng, n, 60)) for n in (190, 600))
    shift, u = np.float32(rng.standard_normal((2, 190)))
    bias, v = np.float32(rng.standard_normal((2, 600)))
    bias[-5:] = MASKED_LOGIT
    for second, options in (((u, v), {"exclude": 2}), (None, {"weighted": False})):
        found = hopper.exp_sums(x, y, shift, bias, second, **options, **interpreted)
        expected = dense_sums(x, y, shift, bias, second, **options)
        for one, other in zip(found, expected, strict=True):
            assert np.linalg.norm(one - other) < 1e-5 * np.linalg.norm(other)
