"""The kernel for Hopper GPUs: its numbers, and the losses that are made of its sums."""

import functools

import jax
import jax.numpy as jnp
import loss_cases
import numpy as np
import pytest
from points import sphere

import hypersphere_jax as hj
from hypersphere_jax.losses import blocks, devices, fused

PAIRLESS = ("align", "sliced_wasserstein", "quick_thought_align")
# `quick_thought_uniform` is two of `uniform`, whose program JAX has kept by then.
LOSSES = set(loss_cases.CASES) - {*PAIRLESS, "quick_thought_uniform"}
FAST = ("uniform", "contrastive", "nt_xent")


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

    for module in (blocks, devices):
        monkeypatch.setattr(module, "on_cpu", lambda: False)
    allowed = lambda a, b, blocking: blocking.kernel and blocking.precision == "high"  # noqa: E731
    monkeypatch.setattr(blocks, "_has_kernel", allowed)
    monkeypatch.setattr(fused, "sums_of_pairs", sums)
    return calls


@pytest.mark.parametrize(
    "name",
    [
        *FAST,
        *(pytest.param(name, marks=pytest.mark.slow) for name in sorted(LOSSES - {*FAST})),
    ],
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
    wanted = [hj.contrastive_loss(x, x, 0.005, precision=p) for p in ("high", "highest")]
    np.testing.assert_allclose(*wanted, rtol=1e-5)


def test_for_which_points_it_is(monkeypatch):
    monkeypatch.setattr(fused, "_is_hopper", lambda: True)
    many, few, wide = (
        np.zeros(shape, np.float32) for shape in ((1024, 128), (9, 128), (1024, 129))
    )
    assert fused.serves(many, many)
    for x, y in ((many, few), (wide, wide), (many, many.astype(np.float16))):
        assert not fused.serves(x, y)
    assert (
        devices.PairOptions().among.kernel and not devices.PairOptions(axis_name="i").among.kernel
    )


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
