"""Depth maps from frozen features: the predictor, its training, errors, and the choice of a run."""

import collections
import contextlib

import jax
import numpy as np
import pytest
from depth_cases import scenes, write_mat

from hypersphere_jax import augment, cli, data, models
from hypersphere_jax import configs as C
from hypersphere_jax.depth.config import DepthConfig
from hypersphere_jax.depth.fitting import DepthData, depth_errors, fit, resize_depth
from hypersphere_jax.depth.predictor import make_predictor
from hypersphere_jax.depth.protocol import run_depth
from hypersphere_jax.training import checkpoints, run_dir
from hypersphere_jax.training.resolve import resolve
from hypersphere_jax.utils.files import read_json


def transposed_convolution(x, kernel):
    """Loop over PyTorch's ConvTranspose2d(3, stride=2, padding=1, output_padding=1)."""
    found = np.zeros((len(x), 2 * x.shape[1], 2 * x.shape[2], kernel.shape[3]))
    for i, j, a, b in np.ndindex(*x.shape[1:3], 3, 3):
        row, column = 2 * i - 1 + a, 2 * j - 1 + b
        if row in range(found.shape[1]) and column in range(found.shape[2]):
            found[:, row, column] += x[:, i, j] @ kernel[a, b]
    return found


def test_predictor_matches_a_loop(rng):
    apply, initial = make_predictor((4, 4, 6), 8)
    params, stats = initial(jax.random.key(1))
    x = rng.standard_normal((3, 4, 4, 6)).astype(np.float32)
    hidden = transposed_convolution(np.float64(x), np.float64(params["block1"]["kernel"]))
    hidden = (hidden - hidden.mean((0, 1, 2))) / np.sqrt(hidden.var((0, 1, 2)) + 1e-5)
    hidden = np.pad(np.maximum(hidden, 0), ((0, 0), (1, 1), (1, 1), (0, 0)))
    kernel = np.float64(params["depth"]["kernel"])[..., 0]
    shifts = (hidden[:, a : a + 8, b : b + 8] @ kernel[a, b] for a, b in np.ndindex(3, 3))
    found, new = jax.jit(apply, static_argnums=3)(params, stats, x, True)
    np.testing.assert_allclose(found, sum(shifts), atol=1e-4)
    assert np.abs(new["block1"]["norm"]["mean"]).max() > 0


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
    # At unknown depths the prediction is like its surroundings.
    predicted = predict(split.x)
    assert np.mean((predicted - full)[4:][holes[4:]] ** 2) < 0.4 * found["mse_constant"]


def test_errors_match_a_loop_over_known_pixels(rng):
    true = rng.uniform(0.5, 9, (300, 3, 3)).astype(np.float32)
    true[rng.random(true.shape) < 0.3] = 0
    guess = (true * rng.uniform(0.5, 2, true.shape) + 0.1).astype(np.float32)
    guess[0, 0] = -1
    split = DepthData(np.arange(300)[:, None], true)
    rows = np.delete(np.arange(300)[::-1], 7)
    errors = collections.defaultdict(list)
    for t, p in zip(true[rows].ravel(), guess[rows].ravel(), strict=True):
        if t == 0:
            continue
        positive = max(p, 0.01)
        errors["mse"].append((p - t) ** 2)
        errors["mse_constant"].append((2.5 - t) ** 2)
        errors["abs_rel"].append(abs(p - t) / t)
        errors["log10"].append(abs(np.log10(positive) - np.log10(t)))
        for power in (1, 2, 3):
            is_near = max(positive / t, t / positive) < 1.25**power
            errors[f"delta{power}"].append(100 * is_near)
    found = depth_errors(lambda x: guess[x[:, 0]], split, rows, 2.5)
    for name, values in errors.items():
        assert found[name] == pytest.approx(np.mean(values)), name
    assert found["rmse"] == pytest.approx(found["mse"] ** 0.5)
    assert split.mean_depth(rows) == pytest.approx(true[rows][true[rows] > 0].mean())


@pytest.mark.parametrize("size", [50, 16])
def test_depth_maps_are_resized_like_their_images(size):
    ramp = np.mgrid[:30, :40].sum(0) * 3 + 20
    image = np.repeat(ramp[..., None], 3, axis=2).astype(np.uint8)
    crop = augment.host_crops("nyu_depth", size)[1]
    found = resize_depth(ramp.astype(np.float16), crop)
    assert found.shape == (size, size) and np.abs(found - crop(image)[..., 0]).max() <= 1


def test_unknown_depths_do_not_bleed():
    holes = np.full((32, 32), 2.5, np.float32)
    holes[:8], holes[16, 16:20], holes[20, 20], holes[25, 3] = 0, -1, np.nan, np.inf
    found = resize_depth(holes, augment.host_crops("nyu_depth", 16)[1])
    assert np.all(found[:3] == 0) and found.max() < 2.501
    np.testing.assert_allclose(found[5:], 2.5, rtol=1e-6)


def test_runs_are_chosen_on_training_images_and_one_is_tested(tmp_path, capsys):
    """Other test images change the error of the test, and not the cross-validation."""
    images, depths = scenes(60)
    parts = (range(40), range(40, 60))
    file = write_mat(tmp_path, images, depths, *parts)
    far = np.concatenate([depths[:40], 2 * depths[40:]])
    other_file = write_mat(tmp_path / "other", images, far, *parts)
    config = C.PretrainConfig(runs_dir=str(tmp_path), data="nyu_depth_v2", data_dir=str(file))
    config = config.replace(dim=4, width=0.1, image_size=16)
    dataset = data.load(config)
    folders = [tmp_path / name for name in ("first", "second")]
    for seed, folder in enumerate(folders):
        run = resolve(config.replace(name=folder.name), dataset)
        run_dir.add_session(run, jax.devices()[:1], dataset.digest(), "", dataset, {})
        _, params, stats = models.create(run, jax.random.key(seed))
        with contextlib.closing(checkpoints.Checkpointer(folder / "checkpoints")) as steps:
            steps.save(0, {"params": params, "stats": stats})
    runs = tuple(map(str, folders))
    arguments = ["--layer", "conv2", "--folds", "3", "--epochs", "4", "--devices", "1"]
    assert cli.main(["depth", *runs, *arguments]) == 0
    results = [read_json(f / "eval" / "depth-conv2-folds3-epochs4.json") for f in folders]
    tested, other = sorted(results, key=lambda result: result["cv_mse"])
    assert len(tested["cv_mse_folds"]) == 3
    assert tested["n"] == 20 and tested["n_train"] == 40 and "mse" not in other
    assert (tmp_path / tested["run"] / "figures" / "depth-conv2-folds3-epochs4.png").is_file()
    assert f"{tested['rmse']:.2f}"[:-1] in capsys.readouterr().out
    options = {"layer": "conv2", "folds": 3, "epochs": 4, "devices": 1}
    again, _ = run_depth(DepthConfig(runs, data=str(other_file), **options)).results
    assert again["run"] == tested["run"] and again["mse"] > tested["mse"]
    assert again["cv_mse"] == pytest.approx(tested["cv_mse"])
    assert len(list((folders[0] / "eval").glob("*.json"))) == 2  # other images, another file
