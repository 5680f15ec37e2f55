"""The kernel for Hopper GPUs: its numbers, and the losses that are made of its sums."""

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
from hypersphere_jax.losses import blocks, devices, fused

FAST = ("uniform", "contrastive", "nt_xent")
# Each with sums that the others do not have.
SLOW = ("dcl", "info_nce", "queue (22)", "nt_xent neg_euclidean", "notebook", "balanced")


def dense(x, y, shift, bias, second=None, *, exclude=0, weighted=True):
    """The sums of `fused.sums_of_pairs`, of all pairs at once."""
    logits = x @ y.T + bias[None]
    weights = jnp.exp(logits - shift[:, None])
    if second is not None:
        weights += jnp.exp(logits - second[0][:, None] - second[1][None])
    if exclude:
        i, j = (jnp.arange(len(side)) >> (exclude - 1) for side in (x, y))
        weights = jnp.where(i[:, None] == j[None], 0.0, weights)
    return (weights @ y, weights.sum(1))[not weighted :]


@pytest.fixture
def by_kernel(monkeypatch):
    """Losses with `precision="high"` are of these sums."""
    calls = []

    def sums(x, *arguments, **options):
        calls.append(options)
        like = jax.ShapeDtypeStruct(x.shape, x.dtype)
        x = jax.pure_callback(np.asarray, like, x)  # has no derivative, and no `vmap`
        return dense(x, *arguments, **options)

    jax.clear_caches()  # of the losses as they are here
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(fused, "serves", lambda x, y: True)
    monkeypatch.setattr(fused, "sums_of_pairs", sums)
    yield calls
    jax.clear_caches()


@pytest.mark.parametrize(
    "name",
    [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)],
)
def test_losses_of_its_sums(name, by_kernel, rng):
    """Values and gradients are those of the blocks."""
    case = loss_cases.CASES[name]
    arrays = loss_cases.inputs(rng, case.shapes, n=6, m=5, d=3)
    of = functools.partial(case.loss, **case.numbers[0])
    sides = tuple(range(len(arrays)))
    (wanted, slopes), (found, ours) = (
        jax.value_and_grad(functools.partial(of, precision=how), sides)(*arrays)
        for how in ("highest", "high")
    )
    assert by_kernel
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    for slope, our in zip(slopes, ours, strict=True):
        np.testing.assert_allclose(our, slope, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_what_it_leaves_to_the_blocks(by_kernel, rng):
    """Second derivatives, batches of `vmap`, and logits beyond float32's exponentials."""
    x = np.float32(sphere(rng, 6, 3))
    ours, plain = (functools.partial(hj.uniform_loss, precision=p) for p in ("high", "highest"))
    for function in (lambda f: jax.grad(lambda x: jnp.sum(jnp.sin(jax.grad(f)(x)))), jax.grad):
        np.testing.assert_allclose(function(ours)(x), function(plain)(x), rtol=1e-4, atol=1e-6)
    both = np.stack([x, x[::-1] + 0.1])
    for function in (ours, jax.grad(ours)):
        wanted = np.stack([function(each) for each in both])
        np.testing.assert_allclose(jax.vmap(function)(both), wanted, rtol=1e-5, atol=1e-6)
    sharp = [hj.contrastive_loss(x, x, 0.005, precision=p) for p in ("high", "highest")]
    np.testing.assert_allclose(*sharp, rtol=1e-5)
    assert by_kernel
    by_kernel.clear()
    hj.uniform_loss(x[:5], precision="highest")
    assert not by_kernel


@pytest.mark.parametrize(
    "shifts", ["rc", *(pytest.param(shift, marks=pytest.mark.slow) for shift in ("", "r", "c"))]
)
def test_weighted_sums_with_shifts_of_either_side(shifts, by_kernel, rng):
    x, y = (np.float32(rng.standard_normal((6, 3))) for _ in range(2))
    a, b = (blocks.Points(z, np.float32(rng.standard_normal(len(z)) - 10)) for z in (x, y))
    a.bias[2] = b.bias[1] = blocks.OFF
    r, c = (
        np.float32(rng.standard_normal(len(z))) if s in shifts else None
        for s, z in zip("rc", (x, y), strict=True)
    )
    for exclude in (0, 1, 2):
        ours, plain = (
            blocks.weighted_sums(
                a, b, r, c, exclude=exclude, blocking=blocks.Blocking(9, "high", kernel)
            )
            for kernel in (True, False)
        )
        jax.tree.map(
            lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-12),
            ours,
            plain,
        )
    assert by_kernel


def test_for_which_points_it_is(monkeypatch):
    device = types.SimpleNamespace(compute_capability="9.0")
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    monkeypatch.setattr(jax, "__version__", "0.11.2")
    many, few, wide = (np.zeros(s, np.float32) for s in ((1024, 128), (9, 128), (1024, 129)))
    assert fused.serves(many, many)
    for x, y in ((many, few), (wide, wide), (many, many.astype(np.float16))):
        assert not fused.serves(x, y)
    assert fused.serves(*[jax.ShapeDtypeStruct(many.shape, many.dtype)] * 2)
    n, d = jax.export.symbolic_shape("n, d")
    for shape in ((n, 128), (1024, d)):
        assert not fused.serves(*[jax.ShapeDtypeStruct(shape, np.float32)] * 2)
    mesh = Mesh(np.array(jax.devices()[:1]), ("i",))
    served = []

    def inside(x):
        served.append(fused.serves(x, x))
        return x

    for check in (True, False):
        jax.shard_map(inside, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=check)(many)
    assert served == [False, True]
    for version, capability in (("0.10.2", "9.0"), ("0.11.2", "10.0"), ("0.11.2", "8.0")):
        monkeypatch.setattr(jax, "__version__", version)
        device.compute_capability = capability
        assert not fused.serves(many, many)
    options = devices.PairOptions
    assert options().among.kernel and not options(axis_name="i").among.kernel


@pytest.fixture
def interpreted(monkeypatch):
    """Options of the kernel: of Hopper GPUs none; elsewhere it runs in Pallas's interpreter."""
    if fused.serves(np.zeros((1024, 64), np.float32), np.zeros((1024, 64), np.float32)):
        return {}
    pallas = pytest.importorskip("jax.experimental.pallas")
    gpu = pytest.importorskip("jax.experimental.pallas.mosaic_gpu")
    if jax.__version_info__ < (0, 11):
        pytest.skip("is of JAX 0.11")

    def multiplied(add):  # the interpreter knows no accumulators
        def total(start):
            products = []
            add(products)
            wide = ([part[...].astype(jnp.float32) for part in pair] for pair in products)
            return start + sum(jnp.dot(a, b, precision="highest") for a, b in wide)

        return total

    monkeypatch.setattr(gpu, "wgmma", lambda ref, a, b: ref.append((a, b)))
    monkeypatch.setattr(gpu.ACC, "init", staticmethod(lambda start: start))
    monkeypatch.setattr(pallas, "run_state", multiplied)
    return {"interpret": gpu.InterpretGPUParams()}


@pytest.mark.slow
def test_its_numbers(interpreted, rng):
    x, y = (np.float32(2 * sphere(rng, n, 60)) for n in (190, 600))
    shift, u = np.float32(rng.standard_normal((2, 190)))
    bias, v = np.float32(rng.standard_normal((2, 600)))
    bias[-5:] = -1e30
    for second, how in (((u, v), {"exclude": 2}), (None, {"weighted": False})):
        found = fused.sums_of_pairs(x, y, shift, bias, second, **how, **interpreted)
        for one, other in zip(found, dense(x, y, shift, bias, second, **how), strict=True):
            assert np.linalg.norm(one - other) < 1e-5 * np.linalg.norm(other)
