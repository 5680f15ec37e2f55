"""Convolutions by Winograd's products, and by blocks of images, against XLA's and float64."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from hypersphere_jax.models import winograd
from hypersphere_jax.models.convolution import convolution

DIRECT = partial(jax.lax.conv_general_dilated, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def value_and_gradients(form, x, kernel):
    y, back = jax.vjp(form, x, kernel)
    return y, *back(jnp.sin(y))


@pytest.mark.parametrize(
    ("size", "padding"),
    [((8, 8), ((1, 1), (1, 1))), ((7, 10), ((1, 1), (1, 1))), ((9, 6), ((0, 1), (2, 3)))],
)
def test_winograd_is_the_convolution(size, padding, rng, monkeypatch):
    """Sides that leave rest of a tile, padding of each kind, and seven images in blocks of four."""
    tiles = np.prod([-(-(side + sum(p) - 2) // 4) for side, p in zip(size, padding, strict=True)])
    monkeypatch.setattr(winograd, "BLOCK_BYTES", int(4 * 36 * tiles * 4 * 4))
    x = rng.standard_normal((7, *size, 3)).astype("f4")
    kernel = rng.standard_normal((3, 3, 3, 4)).astype("f4")
    found = jax.jit(
        partial(value_and_gradients, lambda x, kernel: winograd.convolution(x, kernel, padding))
    )(x, kernel)
    expected = value_and_gradients(lambda x, k: DIRECT(x, k, (1, 1), padding), x, kernel)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * np.abs(b).max(), rtol=0)


def test_errors_are_those_of_sums_in_order(rng):
    """Of tiles whose 4 x 4 results are sums of 9 x 128 products; those of gradients by a bound."""
    x = np.maximum(rng.standard_normal((64, 6, 6, 128)), 0).astype("f4")
    kernel = (rng.standard_normal((3, 3, 128, 4)) / 30).astype("f4")
    windows = np.stack([x[:, i : i + 4, j : j + 4] for i in range(3) for j in range(3)], axis=3)
    factors = windows.reshape(64, 4, 4, -1), kernel.reshape(-1, 4)
    exact = np.einsum("nhwk,kf->nhwf", *(factor.astype("f8") for factor in factors))
    in_order = np.zeros_like(exact, dtype="f4")
    for k, row in enumerate(factors[1]):
        in_order += factors[0][..., k, None] * row
    form = partial(value_and_gradients, lambda *a: winograd.convolution(*a, ((0, 0), (0, 0))))
    found, *gradients = map(np.asarray, jax.jit(form)(x, kernel))
    error, bound = (np.square(y - exact).mean() ** 0.5 for y in (found, in_order))
    assert error < 1.5 * bound
    back, of_x = np.sin(found).astype("f8"), np.zeros(x.shape)
    of_windows = np.einsum("nhwf,ijcf->nhwijc", back, kernel)
    for i, j in np.ndindex(3, 3):
        of_x[:, i : i + 4, j : j + 4] += of_windows[:, :, :, i, j]
    of_kernel = np.einsum("nhwk,nhwf->kf", factors[0].astype("f8"), back).reshape(kernel.shape)
    for gradient, expected in zip(gradients, (of_x, of_kernel), strict=True):
        assert np.square(gradient - expected).mean() < 2e-6**2 * np.square(expected).mean()


def test_patches_of_a_block_of_images_at_a_time(rng, monkeypatch):
    x = rng.standard_normal((3, 6, 6, 2)).astype("f4")
    kernel = rng.standard_normal((3, 3, 2, 4)).astype("f4")
    window = (2, 2), ((1, 1), (1, 1))
    monkeypatch.setattr(winograd, "BLOCK_BYTES", 1)
    ours = partial(convolution, dimension_numbers=("NHWC", "HWIO", "NHWC"))
    found, expected = (
        value_and_gradients(lambda x, k, form=form: form(x, k, *window), x, kernel)
        for form in (ours, DIRECT)
    )
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * np.abs(b).max(), rtol=0)


@pytest.mark.parametrize(
    ("changes", "tiled"),
    [
        ({}, True),
        ({"inputs": 31}, False),
        ({"outputs": 31}, False),
        ({"stride": 2}, False),
        ({"width": 1}, False),
        ({"side": 5}, False),
        ({"images": 31}, False),
        ({"dtype": "bfloat16"}, False),
    ],
)
def test_which_convolutions_are_tiled(changes, tiled):
    case = {"images": 32, "inputs": 32, "outputs": 32, "stride": 1, "width": 3, "side": 8}
    images, inputs, outputs, stride, width, side, dtype = (
        case | {"dtype": "float32"} | changes
    ).values()
    shapes = (images, side, side, inputs), (width, width, inputs, outputs)
    window = (stride, stride), ((width // 2,) * 2,) * 2
    form = jax.jit(lambda *a: convolution(*a, *window, dimension_numbers=("NHWC", "HWIO", "NHWC")))
    text = form.lower(*(jax.ShapeDtypeStruct(shape, dtype) for shape in shapes)).as_text()
    assert ("tensor<36x" in text) == (tiled and jax.default_backend() == "cpu")


def test_transforms_are_programs_of_their_own():
    """Else XLA would fuse those of tiles into one, which computes each number several times."""
    shapes = jnp.ones((1, 8, 8, 2)), jnp.ones((3, 3, 2, 2))
    form = jax.jit(lambda *a: winograd.convolution(*a, ((1, 1), (1, 1))))
    assert form.lower(*shapes).compile().as_text().count(" call(") == 5


def test_encoders_side_by_side(rng):
    """Value and gradients under `vmap` are those of each encoder alone."""
    x = rng.standard_normal((2, 1, 8, 8, 2)).astype("f4")
    kernels = rng.standard_normal((2, 3, 3, 2, 2)).astype("f4")
    form = partial(
        value_and_gradients, lambda x, kernel: winograd.convolution(x, kernel, ((1, 1), (1, 1)))
    )
    found = jax.jit(jax.vmap(form))(x, kernels)
    each = [jax.jit(form)(*one) for one in zip(x, kernels, strict=True)]
    for a, b in zip(found, zip(*each, strict=True), strict=True):
        np.testing.assert_allclose(a, np.stack(b), atol=1e-5)


@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize("stride", [1, 2])
def test_sharded_images(explicit, stride, rng, monkeypatch):
    """Under `shard_map` and along explicit axes of a mesh: there it is a product of patches."""
    monkeypatch.setattr(winograd, "BLOCK_BYTES", 1)
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Explicit,))
    x = rng.standard_normal((64, 8, 8, 32)).astype("f4")
    kernel = (rng.standard_normal((3, 3, 32, 32)) / 10).astype("f4")
    window = (stride, stride), ((1, 1), (1, 1))

    def loss(form, x, kernel):
        return jnp.mean(jnp.sin(form(x, kernel, *window)))

    ours = partial(convolution, dimension_numbers=("NHWC", "HWIO", "NHWC"))
    expected = jax.grad(partial(loss, DIRECT), argnums=(0, 1))(x, kernel)
    of_all = partial(loss, ours)
    if not explicit:

        @partial(jax.shard_map, mesh=mesh, in_specs=(P("data"), P()), out_specs=P())
        def of_all(x, kernel):
            return jax.lax.pmean(loss(ours, x, kernel), "data")

    with jax.set_mesh(mesh):
        placed = jax.device_put(x, P("data")), jax.device_put(kernel, P())
        found = jax.jit(jax.grad(of_all, argnums=(0, 1)))(*placed)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * np.abs(b).max(), rtol=0)
