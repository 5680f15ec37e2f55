"""Convolution, matrix product and maximum pool against XLA's, with sizes that take each kernel."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, PartitionSpec

from hypersphere_jax.models import ops

LAYOUT = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
SPLIT = PartitionSpec("data")
needs_two_devices = pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")


def value_and_gradients(form, *arrays):
    """The result, and gradients of the sum of its sines."""
    y, back = jax.vjp(form, *arrays)
    return y, *back(jnp.sin(y))


def assert_close(found, expected, tolerance=1e-3):
    for one, other in zip(found, expected, strict=True):
        scale = np.abs(other).max()
        np.testing.assert_allclose(one, other, atol=tolerance * scale, rtol=0)


def convolutions(strides, padding, **options):
    """The package's convolution and XLA's."""
    for form in (ops.convolution, jax.lax.conv_general_dilated):

        def convolve(x, kernel, form=form):
            window = (strides, strides), ((padding, padding),) * 2
            return form(x, kernel, *window, **LAYOUT, **options)

        yield convolve


def draw(rng, images, kernel):
    x = rng.standard_normal(images).astype(np.float32)
    return x, (rng.standard_normal(kernel) / np.prod(kernel[:3]) ** 0.5).astype(np.float32)


@pytest.mark.parametrize(
    ("images", "kernel", "strides", "padding", "options"),
    [
        # Products of patches: small images, or results smaller than the kernel.
        ((2, 2, 3, 4), (3, 3, 4, 6), 1, 1, {}),
        ((2, 4, 5, 4), (3, 3, 4, 6), 2, 1, {}),
        ((2, 9, 10, 4), (7, 7, 4, 6), 2, 3, {}),
        # XLA's own convolution.
        ((2, 9, 10, 4), (3, 3, 4, 6), 2, 1, {}),
        ((2, 9, 10, 4), (3, 3, 4, 6), 1, 1, {"rhs_dilation": (2, 2)}),
        # Winograd's algorithm: whole and partial tiles, and several blocks of images. With 32
        # channels, the rounding errors of transforms and sums are at most 7e-4 of the largest
        # value: gamma_N |A|(|B||x||B| * |G||k||G|)|A| with N = 69 roundings.
        ((32, 8, 8, 32), (3, 3, 32, 32), 1, 1, {}),
        ((32, 7, 12, 32), (3, 3, 32, 33), 1, 1, {}),
        ((601, 8, 8, 32), (3, 3, 32, 32), 1, 1, {}),
    ],
)
def test_convolution_and_its_gradients(images, kernel, strides, padding, options, rng):
    arrays = draw(rng, images, kernel)
    ours, xlas = convolutions(strides, padding, **options)
    found = jax.jit(partial(value_and_gradients, ours))(*arrays)
    assert_close(found, jax.jit(partial(value_and_gradients, xlas))(*arrays))


@needs_two_devices
@pytest.mark.parametrize("strides", [1, 2])
@pytest.mark.parametrize("kind", ["explicit", pytest.param("shard_map", marks=pytest.mark.slow)])
def test_convolution_of_sharded_images(kind, strides, rng):
    mesh = jax.make_mesh((2,), ("data",), (AxisType.Explicit,), devices=jax.devices()[:2])
    arrays = draw(rng, (64, 8, 8, 32), (3, 3, 32, 32))
    ours, xlas = convolutions(strides, padding=1)
    if kind == "shard_map":
        specs = {"in_specs": (SPLIT, PartitionSpec()), "out_specs": SPLIT}
        ours = jax.shard_map(ours, mesh=mesh, **specs)
    with jax.set_mesh(mesh):
        placed = jax.device_put(arrays[0], SPLIT), jax.device_put(arrays[1], PartitionSpec())
        found = jax.jit(partial(value_and_gradients, ours))(*placed)
    assert_close(found, value_and_gradients(xlas, *arrays))


def product(x, kernel):
    return ops.dot_general(x, kernel, ops.MATRIX_PRODUCT)


@pytest.mark.parametrize("width", [16, 1024])
def test_product_with_narrow_and_wide_kernels(width, rng):
    x = rng.standard_normal((3, 1024))
    kernel = rng.standard_normal((1024, width)) / 32
    found = jax.jit(partial(value_and_gradients, product))(np.float32(x), np.float32(kernel))
    slopes = np.sin(x @ kernel)
    assert_close(found, (x @ kernel, slopes @ kernel.T, x.T @ slopes))


@pytest.mark.parametrize("padding", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_maximum_pool_and_its_derivatives_are_xlas(padding, rng):
    """The first of equal numbers, as after a ReLU, has the gradient. NaN stays in its windows."""
    reference = partial(
        nnx.max_pool, window_shape=(3, 3), strides=(2, 2), padding=((padding, padding),) * 2
    )
    x = np.float32(np.maximum(rng.integers(-3, 4, (2, 7, 10, 3)), 0))
    towards = np.float32(rng.integers(-9, 10, x.shape))
    slopes = np.float32(rng.integers(-9, 10, reference(x).shape))
    broken = np.copy(x)
    broken[0, 3, 4, 1] = np.nan

    @partial(jax.jit, static_argnums=0)
    def run(pool, x, broken):
        value, back = jax.vjp(pool, x)
        return value, back(slopes)[0], jax.jvp(pool, (x,), (towards,))[1], pool(broken)

    ours = partial(ops.max_pool, padding=padding)
    results = zip(run(ours, x, broken), run(reference, x, broken), strict=True)
    for found, expected in results:
        np.testing.assert_array_equal(found, expected)
