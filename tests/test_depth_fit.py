"""The depth predictor, its schedule and training, and the measures of depth maps."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hypersphere_jax import augment
from hypersphere_jax.config import DepthConfig, UserError
from hypersphere_jax.evaluation import depth, depth_fit
from hypersphere_jax.models import depth_predictor
from hypersphere_jax.optimizers import make_schedule

# The predictor.


def test_doubled_is_the_transposed_convolution(rng):
    """PyTorch's ConvTranspose2d(kernel_size=3, stride=2, padding=1, output_padding=1), by loops."""
    x, kernel = rng.standard_normal((2, 3, 4, 5)), rng.standard_normal((3, 3, 5, 2))
    expected = np.zeros((2, 6, 8, 2))
    for i, j, a, b in np.ndindex(3, 4, 3, 3):
        row, column = 2 * i - 1 + a, 2 * j - 1 + b
        if row in range(6) and column in range(8):
            expected[:, row, column] += x[:, i, j] @ kernel[a, b]
    found = depth_predictor.doubled(jnp.float32(x), jnp.float32(kernel))
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "size", "halved"),
    [
        pytest.param((8, 8, 48), 64, [24, 12, 6], marks=pytest.mark.slow),  # Table 6
        ((7, 7, 192), 64, [96, 48, 24]),  # SmallAlexNet's conv5
        pytest.param((15, 15, 384), 64, [192, 96], marks=pytest.mark.slow),  # its conv4
        ((3, 3, 2), 20, [1, 1, 1]),
        ((20, 20, 4), 24, []),
    ],
)
def test_shapes_are_those_of_table_6(shape, size, halved):
    apply, params, stats = depth_predictor.create(shape, size, jax.random.key(0))
    widths = [shape[2], *halved]
    pairs = enumerate(itertools.pairwise(widths), 1)
    kernels = {f"block{number}": (3, 3, *pair) for number, pair in pairs}
    found = {name: params[name]["kernel"].shape for name in params}
    assert found == {**kernels, "depth": (3, 3, widths[-1], 1)}
    x = jax.ShapeDtypeStruct((2, *shape), jnp.float32)
    for train in (True, False):
        maps, new = jax.eval_shape(lambda *args, t=train: apply(*args, t), params, stats, x)
        assert maps.shape == (2, size, size) and maps.dtype == jnp.float32
        assert jax.tree.map(jnp.shape, new) == jax.tree.map(jnp.shape, stats)


def test_a_block_is_convolution_batch_norm_relu(rng):
    """One block and the last convolution in NumPy, float64."""
    apply, params, stats = depth_predictor.create((4, 4, 6), 8, jax.random.key(1), mean=2.5)
    x = rng.standard_normal((3, 4, 4, 6)).astype(np.float32)
    block = params["block1"]
    hidden = np.float64(depth_predictor.doubled(x, block["kernel"]))
    hidden = (hidden - hidden.mean((0, 1, 2))) / np.sqrt(hidden.var((0, 1, 2)) + 1e-5)
    hidden = np.pad(np.maximum(hidden, 0), ((0, 0), (1, 1), (1, 1), (0, 0)))
    kernel = np.float64(params["depth"]["kernel"])[..., 0]
    expected = 2.5 + sum(
        hidden[:, a : a + 8, b : b + 8] @ kernel[a, b] for a in range(3) for b in range(3)
    )
    found, new = jax.jit(apply, static_argnums=3)(params, stats, x, True)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    moved = new["block1"]["norm"]["mean"]
    assert np.abs(moved).max() > 0 and np.all(stats["block1"]["norm"]["mean"] == 0)


# Training and measures.


def test_rate_and_moments_are_those_of_b1():
    rule = DepthConfig(("run",)).optimizer
    assert (rule.optimizer, rule.adam_betas, rule.adam_eps) == ("adam", (0.5, 0.999), 1e-8)
    assert (rule.epochs, rule.batch_size, rule.weight_decay) == (120, 128, 0)
    schedule = make_schedule(rule, 120 * 6)
    factors = {0: 0, 69: 0, 70: 1, 89: 1, 90: 2, 99: 2, 100: 3, 109: 3, 110: 4, 119: 4}
    for epoch, decays in factors.items():
        np.testing.assert_allclose(schedule(6 * epoch), 3e-3 * 0.2**decays, rtol=1e-6)
    np.testing.assert_allclose(schedule(6 * 70 - 1), 3e-3, rtol=1e-6)


def some_split(rng, n=24, side=3, channels=16, size=12):
    """Features that tell depth: a plane for each place; and the depths."""
    coarse = rng.uniform(1, 6, (n, side, side))
    noise = rng.standard_normal((n, side, side, channels - 1))
    x = np.concatenate([coarse[..., None], noise], axis=-1).reshape(n, -1)
    depths = np.kron(coarse, np.ones((size // side, size // side)))
    return depth_fit.Split(x.astype(np.float32), depths.astype(np.float32))


@pytest.mark.slow
def test_predictor_learns_a_tiny_set_and_no_hole_in_it(rng):
    split = some_split(rng)
    holes = rng.random(split.depths.shape) < 0.2
    full = split.depths.copy()
    split.depths[holes] = 0
    rows = np.arange(20)  # the other four are wild: nobody may look at them
    split.depths[20:] = 1e6
    config = DepthConfig(("run",), batch_size=10)
    predict = depth_fit.fit(split, rows, (3, 3, 16), config)
    found = depth_fit.errors(predict, split, rows, float(split.depths[:20][~holes[:20]].mean()))
    assert found["mse"] < 0.1 * found["mse_constant"]
    # Where depth is unknown, the prediction is what is around: a 0 there was no target.
    missing = predict(split.x[:20])[holes[:20]] - full[:20][holes[:20]]
    assert np.mean(np.square(missing)) < 0.3 * found["mse_constant"]
    again = depth_fit.fit(split, rows, (3, 3, 16), config)
    np.testing.assert_array_equal(predict(split.x), again(split.x))
    assert not np.array_equal(predict(split.x[:3]), predict(split.x[3:6]))
    wild = DepthConfig(("run",), batch_size=10, learning_rate=1e30, epochs=4)
    with pytest.raises(UserError, match="diverged"):
        depth_fit.fit(split, rows, (3, 3, 16), wild)
    other = depth_fit.fit(split, rows, (3, 3, 16), DepthConfig(("run",), batch_size=10, seed=1))
    assert np.abs(predict(split.x) - other(split.x)).max() > 1e-3


def test_measures_by_hand(rng, monkeypatch):
    true = rng.uniform(0.5, 9, (7, 5, 5)).astype(np.float32)
    true[rng.random(true.shape) < 0.3] = 0
    guess = (true * rng.uniform(0.5, 2, true.shape) + 0.1).astype(np.float32)
    guess[0, 0] = -1  # below zero: far off in every ratio
    rows = np.array([0, 2, 3, 6, 5])
    split = depth_fit.Split(np.arange(7.0)[:, None], true)

    def predict(x):
        return guess[x[:, 0].astype(int)]

    count, sums = 0, dict.fromkeys(("mse", "abs_rel", "log10", "constant", 1, 2, 3), 0.0)
    for row in rows:
        for t, p in zip(true[row].ravel().tolist(), guess[row].ravel().tolist(), strict=True):
            if t > 0:
                count += 1
                sums["mse"] += (p - t) ** 2
                sums["abs_rel"] += abs(p - t) / t
                floor = max(p, 0.01)
                sums["log10"] += abs(np.log10(floor) - np.log10(t))
                sums["constant"] += (2.5 - t) ** 2
                for power in (1, 2, 3):
                    sums[power] += max(floor / t, t / floor) < 1.25**power
    for chunk in (256, 2):
        monkeypatch.setattr(depth_fit, "CHUNK", chunk)
        found = depth_fit.errors(predict, split, rows, 2.5)
        assert found["mse"] == pytest.approx(sums["mse"] / count)
        assert found["rmse"] == pytest.approx((sums["mse"] / count) ** 0.5)
        assert found["abs_rel"] == pytest.approx(sums["abs_rel"] / count)
        assert found["log10"] == pytest.approx(sums["log10"] / count)
        assert found["mse_constant"] == pytest.approx(sums["constant"] / count)
        for power in (1, 2, 3):
            assert found[f"delta{power}"] == pytest.approx(100 * sums[power] / count)
        assert depth_fit.mean_depth(split, rows) == pytest.approx(true[rows][true[rows] > 0].mean())
    with pytest.raises(UserError, match="known depth"):
        depth_fit.errors(predict, depth_fit.Split(split.x, np.zeros_like(true)), rows, 1.0)


@pytest.mark.parametrize("size", [16, 24, 50])
def test_depth_maps_are_resized_as_their_images(size):
    """An image whose red channel is its depth stays so; the middle square is taken."""
    ramp = np.mgrid[:30, :40].sum(0) * 3 + 20
    image = np.repeat(ramp[..., None], 3, axis=2).astype(np.uint8)
    crop = augment.host_crops("nyu_depth", size)[1]
    found = depth.resized_depth(ramp.astype(np.float16), crop)
    assert found.shape == (size, size) and found.dtype == np.float32
    assert np.abs(found - crop(image)[..., 0]).max() <= 1
    scale = 30 / size
    edge = 3 * (5 + (scale - 1)) + 20  # its first place: row 0, and column 5 of 40
    assert found[0, 0] == pytest.approx(edge, abs=3 * scale)
    # The same pixels as the device's evaluation sees.
    seen = augment.make_evaluate("none", size)(jnp.asarray(image))
    np.testing.assert_allclose(found / 255, seen[..., 0], atol=1e-3)


def test_unknown_depths_do_not_bleed():
    ramp = np.full((32, 32), 2.5, np.float32)
    ramp[:8] = 0
    ramp[20, 20], ramp[25, 3], ramp[28, 28] = np.nan, np.inf, -5
    found = depth.resized_depth(ramp, augment.host_crops("nyu_depth", 16)[1])
    assert np.all(found[:3] == 0)
    np.testing.assert_allclose(found[5:], 2.5, rtol=1e-6)
    assert found.max() < 2.501
