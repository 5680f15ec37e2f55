"""Losses in the form for accelerators: on CPUs as JAX would trace them for a GPU."""

import functools

import jax
import numpy as np
import pytest
from loss_cases import CASES, N, assert_slopes, each_loss, inputs, scaled
from points import sphere

import hypersphere_jax as hj


@pytest.fixture(scope="module", autouse=True)
def gpu():
    """Let losses see a GPU; their programs for these sizes run on CPUs as well."""
    jax.clear_caches()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "default_backend", lambda: "gpu")
        yield
    jax.clear_caches()


def compile_step(name, arrays, **options):
    loss = functools.partial(CASES[name].loss, **CASES[name].numbers[0], **options)
    return jax.jit(jax.value_and_grad(loss, tuple(range(len(arrays)))))


@each_loss(["uniform", "contrastive"], slow=["nt_xent dot", "info_nce", "queue and batch"])
def test_losses_match_oracle(name, rng):
    """Exponentials with and without a shift; distances from products and from differences."""
    shapes = CASES[name].shapes
    oracle = functools.partial(CASES[name].oracle, **CASES[name].numbers[0])
    step = compile_step(name, shapes, block_size=5)
    for length in (1, 20, 400):
        arrays = scaled(shapes, inputs(rng, shapes), length)
        found, slopes = step(*arrays)
        np.testing.assert_allclose(found, oracle(*arrays), rtol=1e-5)
        assert_slopes(slopes, oracle, arrays, rng, rtol=1e-3)


def test_far_points_in_several_chunks_of_coordinates(rng):
    x = np.float32(30 * sphere(rng, 35, 20))
    found, slope = jax.value_and_grad(hj.uniform_loss)(x, 0.3)
    oracle = functools.partial(CASES["uniform"].oracle, t=0.3)
    np.testing.assert_allclose(found, oracle(x), rtol=1e-5)
    assert_slopes([slope], oracle, [x], rng, rtol=1e-3)


def test_masked_rows_count_nowhere(rng):
    """Masked rows fill whole blocks and parts of blocks."""
    z1, z2 = inputs(rng, "nn")
    mask = np.arange(N) < 5
    padded = [np.where(mask[:, None], z, np.float32(np.nan)) for z in (z1, z2)]
    found, slopes = compile_step("nt_xent", padded, mask=mask, block_size=2)(*padded)
    expected, exact = compile_step("nt_xent", padded)(z1[mask], z2[mask])
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    for slope, unmasked in zip(slopes, exact, strict=True):
        np.testing.assert_allclose(slope[mask], unmasked, rtol=1e-3, atol=1e-6)
        assert (slope[~mask] == 0).all()


@pytest.mark.parametrize(
    ("precision", "algorithm"),
    [("highest", "BF16_BF16_F32_X6"), ("high", "BF16_BF16_F32_X3"), ("default", None)],
)
def test_precision_chooses_the_algorithm_of_products(precision, algorithm):
    """Products with a short side have float32's precision: XLA has no kernel for their parts."""
    with jax.default_matmul_precision(None):
        loss = functools.partial(hj.contrastive_loss, precision=precision)
        wide, narrow = (str(jax.make_jaxpr(loss)(*[np.ones((n, n), "f4")] * 2)) for n in (32, 4))
    assert (algorithm or "None") in wide
    assert ("HIGHEST" in narrow) == (algorithm is not None)
    assert "BF16" not in narrow


@pytest.mark.parametrize("name", ["uniform", "contrastive", "nt_xent", "info_nce", "balanced"])
def test_kernel_of_hopper_gpus(name, rng):
    capability = getattr(jax.local_devices()[0], "compute_capability", None)
    if capability != "9.0" or jax.__version_info__ < (0, 11):
        pytest.skip("needs a Hopper GPU and JAX 0.11")
    arrays = inputs(rng, CASES[name].shapes, n=1100, m=1300, d=100)
    found, slopes = compile_step(name, arrays, precision="high")(*arrays)
    expected, exact = compile_step(name, arrays, precision="highest")(*arrays)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    for slope, other in zip(slopes, exact, strict=True):
        assert np.linalg.norm(slope - other) < 1e-3 * np.linalg.norm(other)
