"""Convolutions by Winograd's products, and by blocks of images, against XLA's and float64."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from hypersphere_jax.models.cpu import image_blocks, winograd
from hypersphere_jax.models.ops import convolution

DIRECT = partial(jax.lax.conv_general_dilated, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def value_and_gradients(form, x, kernel):
    y, back = jax.vjp(form, x, kernel)
    return y, *back(jnp.sin(y))


def toom_cook():
    """Transforms of input, kernel and result at the points 0, ±0.625, ±1.5 and infinity."""
    points = np.array([0, 0.625, -0.625, 1.5, -1.5])
    scales = [*(np.prod(p - np.delete(points, i)) for i, p in enumerate(points)), 1]

    def powers(count):
        return np.vstack([np.vander(points, count, increasing=True), np.eye(count)[-1]])

    inputs = np.linalg.inv(powers(6)).T * np.c_[scales]
    return inputs, powers(3) / np.c_[scales], powers(4).T


def tiles(x, padding, grid, extent):
    """Padded images as overlapping tiles `[n, rows, columns, channels, extent, extent]`."""
    sizes = [4 * (count - 1) + extent for count in grid]
    pads = [
        (low, size - low - side)
        for (low, _), size, side in zip(padding, sizes, x.shape[1:3], strict=True)
    ]
    x = np.pad(x, ((0, 0), *((low, max(0, high)) for low, high in pads), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (extent, extent), (1, 2))
    return windows[:, : sizes[0] - extent + 1 : 4, : sizes[1] - extent + 1 : 4]


def rounding(terms, magnitudes):
    """Return Higham's bound, gamma_n times the sum of magnitudes, for sums in any order."""
    u = 2.0**-24
    return terms * u / (1 - terms * u) * magnitudes


def both_sides(n):
    """Count roundings: two entries of the matrices, their product, and a sum of n products."""
    return 3 + n


def in_turn(n):
    """Count roundings of a transform along rows, then columns: an entry, a sum of n products."""
    return 2 * (1 + n)


def value_bound(x, kernel, padding, size):
    inputs, of_kernel, result = map(np.abs, toom_cook())
    grid = [-(-side // 4) for side in size]
    of_tiles = tiles(np.abs(x), padding, grid, 6)
    of_tiles = np.einsum("pi,qj,nrscij->nrspqc", inputs, inputs, of_tiles)
    weights = np.einsum("pi,qj,ijcf->pqcf", of_kernel, of_kernel, np.abs(kernel))
    products = np.einsum("nrspqc,pqcf->nrspqf", of_tiles, weights)
    sums = np.einsum("ip,jq,nrspqf->nrisjf", result, result, products)
    images = sums.reshape(len(x), 4 * grid[0], 4 * grid[1], -1)[:, : size[0], : size[1]]
    channels = x.shape[-1]
    return rounding(both_sides(9) + in_turn(6) + channels + in_turn(6), images)


def kernel_bound(x, cotangent, padding):
    inputs, of_kernel, result = map(np.abs, toom_cook())
    grid = [-(-side // 4) for side in cotangent.shape[1:3]]
    left = tiles(np.abs(x), padding, grid, 6)
    left = np.einsum("pi,qj,nrscij->nrspqc", inputs, inputs, left)
    right = tiles(np.abs(cotangent), ((0, 0), (0, 0)), grid, 4)
    right = np.einsum("ip,jq,nrsfij->nrspqf", result, result, right)
    products = np.einsum("nrspqc,nrspqf->pqcf", left, right)
    sums = np.einsum("pi,qj,pqcf->ijcf", of_kernel, of_kernel, products)
    count = len(x) * np.prod(grid) + len(x)  # tiles, and blocks of images
    return rounding(in_turn(6) + in_turn(4) + count + both_sides(36), sums)


@pytest.mark.parametrize(
    ("size", "padding"),
    [((8, 8), ((1, 1), (1, 1))), ((7, 10), ((1, 1), (1, 1))), ((9, 6), ((0, 1), (2, 3)))],
)
def test_winograd_is_the_convolution(size, padding, rng, monkeypatch):
    """Partial tiles, padding of each kind, and seven images in blocks of four, against float64."""
    sides = [side + sum(p) - 2 for side, p in zip(size, padding, strict=True)]
    count = np.prod([-(-side // 4) for side in sides])
    monkeypatch.setattr(image_blocks, "BLOCK_BYTES", int(4 * 36 * count * 4 * 4))
    x = rng.standard_normal((7, *size, 3)).astype("f4")
    kernel = rng.standard_normal((3, 3, 3, 4)).astype("f4")
    cotangent = rng.standard_normal((7, *sides, 4)).astype("f4")

    def all_three(form, *arrays):
        y, back = jax.vjp(form, *arrays[:2])
        return y, *back(arrays[2])

    ours = partial(all_three, lambda x, kernel: winograd.convolution(x, kernel, padding))
    found = jax.jit(ours)(x, kernel, cotangent)
    with jax.enable_x64(True):
        wide = (array.astype("f8") for array in (x, kernel, cotangent))
        exact = jax.jit(partial(all_three, lambda x, k: DIRECT(x, k, (1, 1), padding)))(*wide)
    mirrored = tuple((2 - low, 2 - high) for low, high in padding)
    bounds = (
        value_bound(x, kernel, padding, sides),
        value_bound(cotangent, kernel[::-1, ::-1].swapaxes(2, 3), mirrored, size),
        kernel_bound(x, cotangent, padding),
    )
    for array, expected, bound in zip(found, exact, bounds, strict=True):
        assert (np.abs(array - np.asarray(expected)) <= bound).all()
        assert bound.mean() < 0.01 * np.abs(expected).mean()


def test_patches_of_a_block_of_images_at_a_time(rng, monkeypatch):
    x = rng.standard_normal((3, 6, 6, 2)).astype("f4")
    kernel = rng.standard_normal((3, 3, 2, 4)).astype("f4")
    window = (2, 2), ((1, 1), (1, 1))
    monkeypatch.setattr(image_blocks, "BLOCK_BYTES", 1)
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
        np.testing.assert_allclose(a, np.stack(b), atol=1e-3)


@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize("stride", [1, 2])
def test_sharded_images(explicit, stride, rng, monkeypatch):
    """Under `shard_map` and along explicit axes of a mesh: there it is a product of patches."""
    monkeypatch.setattr(image_blocks, "BLOCK_BYTES", 1)
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
        np.testing.assert_allclose(a, b, atol=1e-3 * np.abs(b).max(), rtol=0)
