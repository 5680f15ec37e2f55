"""Depth maps from frozen features: the predictor, its training, errors, and the choice of a run."""

import contextlib
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from depth_cases import scenes, write_mat

from hypersphere_jax import augment, data, models
from hypersphere_jax import cli as command_line
from hypersphere_jax import configs as C
from hypersphere_jax.depth import fitting, protocol
from hypersphere_jax.depth.config import DepthConfig
from hypersphere_jax.depth.fitting import DepthData, depth_errors, fit, resize_depth
from hypersphere_jax.depth.predictor import create_predictor
from hypersphere_jax.evaluation.feature_files import Features
from hypersphere_jax.training import checkpoints, run_dir
from hypersphere_jax.training.resolve import resolve
from hypersphere_jax.utils.files import read_json


def test_blocks_are_those_of_table_6(rng):
    """PyTorch's ConvTranspose2d(3, stride=2, padding=1, output_padding=1), norm, ReLU, by loops."""

    def doubled(x, kernel):
        found = np.zeros((len(x), 2 * x.shape[1], 2 * x.shape[2], kernel.shape[3]))
        for i, j, a, b in np.ndindex(*x.shape[1:3], 3, 3):
            row, column = 2 * i - 1 + a, 2 * j - 1 + b
            if row in range(found.shape[1]) and column in range(found.shape[2]):
                found[:, row, column] += x[:, i, j] @ kernel[a, b]
        return found

    apply, params, stats = create_predictor((4, 4, 6), 8, jax.random.key(1), mean=2.5)
    x = rng.standard_normal((3, 4, 4, 6)).astype(np.float32)
    hidden = doubled(np.float64(x), np.float64(params["block1"]["kernel"]))
    hidden = (hidden - hidden.mean((0, 1, 2))) / np.sqrt(hidden.var((0, 1, 2)) + 1e-5)
    hidden = np.pad(np.maximum(hidden, 0), ((0, 0), (1, 1), (1, 1), (0, 0)))
    kernel = np.float64(params["depth"]["kernel"])[..., 0]
    shifts = (hidden[:, a : a + 8, b : b + 8] @ kernel[a, b] for a, b in np.ndindex(3, 3))
    found, new = jax.jit(apply, static_argnums=3)(params, stats, x, True)
    np.testing.assert_allclose(found, 2.5 + sum(shifts), atol=1e-4)
    assert np.abs(new["block1"]["norm"]["mean"]).max() > 0
    x = jnp.zeros((2, 7, 7, 192))  # conv5 of the small AlexNet
    apply, params, stats = create_predictor(x.shape[1:], 64, jax.random.key(0))
    kernels = [params[name]["kernel"].shape[2:] for name in sorted(params)]
    assert kernels == [(192, 96), (96, 48), (48, 24), (24, 1)]
    maps, _ = jax.eval_shape(lambda *args: apply(*args, False), params, stats, x)
    assert maps.shape == (2, 64, 64)


def test_fit_ignores_unknown_depths_and_other_rows(rng):
    coarse = rng.uniform(1, 6, (24, 3, 3))
    x = np.concatenate([coarse[..., None], rng.standard_normal((24, 3, 3, 5))], axis=-1)
    full = np.kron(coarse, np.ones((2, 2)))
    rows = np.arange(4, 24)
    split = DepthData(np.float32(x.reshape(24, -1)), np.float32(full))
    holes = rng.random(full.shape) < 0.2
    split.depths[holes] = 0
    split.depths[:4] = 1e6  # not among the rows
    config = DepthConfig(("run",), batch_size=10, learning_rate=0.03, epochs=60)
    predict = fit(split, rows, (3, 3, 6), config)
    found = depth_errors(predict, split, rows, split.mean_depth(rows))
    assert found["mse"] < 0.2 * found["mse_constant"]
    # Unknown depths were no targets: there the prediction is like its surroundings.
    predicted = predict(split.x)
    assert np.mean((predicted - full)[4:][holes[4:]] ** 2) < 0.4 * found["mse_constant"]
    np.testing.assert_allclose(predict(split.x[:3]), predicted[:3], rtol=1e-4)  # each by itself


def test_errors_by_hand(rng, monkeypatch):
    monkeypatch.setattr(fitting, "CHUNK", 2)
    true = rng.uniform(0.5, 9, (7, 5, 5)).astype(np.float32)
    true[rng.random(true.shape) < 0.3] = 0
    guess = (true * rng.uniform(0.5, 2, true.shape) + 0.1).astype(np.float32)
    guess[0, 0] = -1  # below zero: far off in every ratio
    split, rows = DepthData(np.arange(7)[:, None], true), np.array([0, 2, 3, 6, 5])

    def of_pixel(t, p):
        floor = max(p, 0.01)
        found = {"mse": (p - t) ** 2, "mse_constant": (2.5 - t) ** 2, "abs_rel": abs(p - t) / t}
        ratio = max(floor / t, t / floor)
        found |= {f"delta{power}": 100 * (ratio < 1.25**power) for power in (1, 2, 3)}
        return found | {"log10": abs(np.log10(floor) - np.log10(t))}

    known = true[rows] > 0
    pixels = [of_pixel(*pair) for pair in zip(true[rows][known], guess[rows][known], strict=True)]
    found = depth_errors(lambda x: guess[x[:, 0]], split, rows, 2.5)
    for name in pixels[0]:
        assert found[name] == pytest.approx(np.mean([pixel[name] for pixel in pixels])), name
    assert found["rmse"] == pytest.approx(found["mse"] ** 0.5)
    assert split.mean_depth(rows) == pytest.approx(true[rows][known].mean())


def test_depth_maps_are_resized_like_their_images():
    """A red channel that is the depth remains so, and unknown depths do not bleed."""
    ramp = np.mgrid[:30, :40].sum(0) * 3 + 20
    image = np.repeat(ramp[..., None], 3, axis=2).astype(np.uint8)
    for size in (50, 16):
        crop = augment.host_crops("nyu_depth", size)[1]
        found = resize_depth(ramp.astype(np.float16), crop)
        assert found.shape == (size, size) and np.abs(found - crop(image)[..., 0]).max() <= 1
    holes = np.full((32, 32), 2.5, np.float32)
    holes[:8], holes[16, 16:20], holes[24:26, 0] = 0, -1, 0
    holes[20, 20], holes[25, 3], holes[28, 28] = np.nan, np.inf, -5
    found = resize_depth(holes, crop)
    assert np.all(found[:3] == 0) and found.max() < 2.501
    np.testing.assert_allclose(found[5:], 2.5, rtol=1e-6)
    # A pixel is known if at least half of it is.
    quarters = np.full((32, 32), 2.0)
    quarters[16:18, 16], quarters[16, 17], quarters[20:22, 20] = 0, 0, 0
    found = resize_depth(quarters, lambda x: x.reshape(16, 2, 16, 2, 1).mean((1, 3)))
    assert found[8, 8] == 0 and found[10, 10] == 2.0


@pytest.fixture(scope="module")
def top(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    mat = write_mat(folder / "nyu.mat", *scenes(60), [f"scene_{n // 3}" for n in range(60)])
    config = C.PretrainConfig(
        runs_dir=str(folder),
        data="nyu_depth_v2",
        data_dir=str(mat),
        dim=4,
        width=0.1,
        image_size=16,
    )
    dataset = data.load(config)
    for seed, name in enumerate(("first", "second")):
        run = resolve(config.replace(name=name), dataset)
        run_dir.add_session(run, jax.devices()[:1], dataset.digest(), "", dataset, {})
        _, params, stats = models.create(run, jax.random.key(seed))
        with contextlib.closing(checkpoints.Checkpointer(folder / name / "checkpoints")) as steps:
            steps.save(0, {"params": params, "stats": stats})
    return folder


@pytest.mark.slow
def test_command(top, capsys):
    name, options = "depth-conv2-epochs40", "--layer conv2 --rows 3 --devices 1 --epochs 40"
    assert command_line.main(["depth", str(top / "first"), *options.split()]) == 0
    result = read_json(top / "first" / "eval" / f"{name}.json")
    about = {"protocol": "depth", "layer": "conv2", "split": "test", "size": 16, "epochs": 40}
    assert result | about | {"n": len(run_dir.load_data(top / "first").test)} == result
    assert result["mse"] < result["mse_constant"]  # random features contain some depth
    assert f"{result['rmse']:.2f}"[:-1] in capsys.readouterr().out
    assert (top / "first" / "figures" / f"{name}.png").is_file()


def test_the_best_run_by_cross_validation_is_tested(top, monkeypatch):
    fitted = []
    seen = []
    errors = Mock(wraps=depth_errors)

    def split_features(encoder, source, layers, devices):
        # Mean depths of the images, with less noise for the second run.
        seen.append((encoder.folder.name, len(source)))
        noise = {"first": 2.0, "second": 0.1}[encoder.folder.name]
        means = np.array([source[i]["depth"].mean() for i in range(len(source))])
        x = means + noise * np.random.default_rng(0).normal(size=len(means))
        return Mock(features={layers[0]: Features(np.float32(x)[:, None], None)})

    def fit_line(split, rows, shape, config):
        fitted.append(rows)
        assert shape == (8, 8, 6) and config.epochs == 8
        line = np.polyfit(split.x[rows, 0], split.depths[rows].mean((1, 2)), 1)
        return lambda x: np.broadcast_to(np.polyval(line, x)[..., None], (len(x), 16, 16))

    monkeypatch.setattr(protocol, "split_features", split_features)
    monkeypatch.setattr(protocol, "depth_errors", errors)
    monkeypatch.setattr(fitting, "fit", fit_line)
    names = tuple(str(top / name) for name in ("first", "second"))
    options = {"layer": "conv2", "folds": 3, "epochs": 8, "seed": 5, "rows": 2, "devices": 1}
    second, first = protocol.run_depth(DepthConfig(names, **options)).results
    n, tested = map(len, run_dir.load_data(top / "second")[:2])
    assert (second["run"], first["run"]) == ("second", "first")
    assert second["n_train"] == n == 60 - second["n"] and "mse" not in first
    # The folds of each run, then all rows of the best run.
    scored = [call.args[2] for call in errors.call_args_list]
    for trained, held_out in zip(fitted[:6], scored[:6], strict=True):
        assert sorted([*trained, *held_out]) == list(range(n))
    assert sorted(np.concatenate(scored[:3])) == sorted(fitted[6]) == list(range(n))
    assert len(fitted) == len(scored) == 7
    for result in (second, first):
        file = top / result["run"] / "eval" / "depth-conv2-folds3-epochs8-seed5.json"
        assert read_json(file) == result
    # Test images are read for the tested run only.
    assert seen == [("first", n), ("second", n), ("second", n), ("second", tested)]
