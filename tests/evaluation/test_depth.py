"""Depth maps from frozen features: the predictor, its fit, the measures, the choice among runs."""

import contextlib
import dataclasses
import itertools
import json
import types

import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
import pytest
from depth_cases import scenes, write_mat

import experiments
import run as command_line
from hypersphere_jax import assembly, augment, checkpoint, data, models, runs
from hypersphere_jax.config import DataConfig, DepthConfig, ModelConfig, RuntimeConfig, UserError
from hypersphere_jax.data import nyu
from hypersphere_jax.evaluation import depth, depth_fit
from hypersphere_jax.evaluation.cache import Features
from hypersphere_jax.models import depth_predictor
from hypersphere_jax.optimizers import make_schedule


def test_recipes_are_those_of_the_paper():
    """Table 2 for the encoders, B.1 for the predictor: rates by epoch, losses, moments."""
    found = {}
    for variant in ("contrastive", "align_uniform"):
        config = experiments.find(f"nyu_depth/{variant}")
        rule, loss = config.optimizer, config.objective
        schedule = make_schedule(rule, 400 * 6)
        assert (rule.epochs, rule.batch_size, rule.momentum) == (400, 128, 0.9)
        assert (rule.weight_decay, config.model.dim) == (1e-4, 128)
        for epoch, factor in {0: 1, 309: 1, 310: 0.1, 340: 0.01, 369: 0.01, 370: 0.001}.items():
            np.testing.assert_allclose(schedule(6 * epoch), 0.06 * factor, rtol=1e-5)
        found[variant] = loss.contrastive_weight, loss.align_weight, loss.uniform_weight
    assert found == {"contrastive": (0.5, 0, 0), "align_uniform": (0, 0.75, 0.5)}
    assert (loss.align_alpha, loss.uniform_t) == (2, 2)
    assert experiments.find("nyu_depth/contrastive").objective.contrastive_tau == 0.1

    rule = DepthConfig(("run",)).optimizer
    assert (rule.optimizer, rule.adam_betas, rule.adam_eps) == ("adam", (0.5, 0.999), 1e-8)
    assert (rule.epochs, rule.batch_size, rule.weight_decay) == (120, 128, 0)
    schedule = make_schedule(rule, 120 * 6)
    factors = {0: 0, 69: 0, 70: 1, 89: 1, 90: 2, 99: 2, 100: 3, 109: 3, 110: 4, 119: 4}
    for epoch, decays in factors.items():
        np.testing.assert_allclose(schedule(6 * epoch), 3e-3 * 0.2**decays, rtol=1e-6)


# The predictor.


def test_blocks_are_those_of_table_6(rng):
    """PyTorch's ConvTranspose2d(3, stride=2, padding=1, output_padding=1), norm, ReLU, by loops."""

    def doubled(x, kernel):
        found = np.zeros((len(x), 2 * x.shape[1], 2 * x.shape[2], kernel.shape[3]))
        for i, j, a, b in np.ndindex(*x.shape[1:3], 3, 3):
            row, column = 2 * i - 1 + a, 2 * j - 1 + b
            if row in range(found.shape[1]) and column in range(found.shape[2]):
                found[:, row, column] += x[:, i, j] @ kernel[a, b]
        return found

    x, kernel = rng.standard_normal((2, 3, 4, 5)), rng.standard_normal((3, 3, 5, 2))
    found = depth_predictor.doubled(jnp.float32(x), jnp.float32(kernel))
    np.testing.assert_allclose(found, doubled(x, kernel), atol=1e-5)

    apply, params, stats = depth_predictor.create((4, 4, 6), 8, jax.random.key(1), mean=2.5)
    x = rng.standard_normal((3, 4, 4, 6)).astype(np.float32)
    hidden = doubled(np.float64(x), np.float64(params["block1"]["kernel"]))
    hidden = (hidden - hidden.mean((0, 1, 2))) / np.sqrt(hidden.var((0, 1, 2)) + 1e-5)
    hidden = np.pad(np.maximum(hidden, 0), ((0, 0), (1, 1), (1, 1), (0, 0)))
    kernel = np.float64(params["depth"]["kernel"])[..., 0]
    expected = 2.5 + sum(
        hidden[:, a : a + 8, b : b + 8] @ kernel[a, b] for a in range(3) for b in range(3)
    )
    found, new = jax.jit(apply, static_argnums=3)(params, stats, x, True)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert np.abs(new["block1"]["norm"]["mean"]).max() > 0

    shapes = models.layers(ModelConfig("small_alexnet", image_size=64, channels=3))
    assert shapes["conv5"] == (7, 7, 192) and shapes["conv4"] == (15, 15, 384)
    for shape, size, widths in (
        ((8, 8, 48), 64, [48, 24, 12, 6]),  # Table 6
        (shapes["conv5"], 64, [192, 96, 48, 24]),
        ((20, 20, 4), 24, [4]),
    ):
        apply, params, stats = depth_predictor.create(shape, size, jax.random.key(0))
        kernels = [params[name]["kernel"].shape for name in sorted(params)]
        assert kernels == [(3, 3, *p) for p in [*itertools.pairwise(widths), (widths[-1], 1)]]
        x = jax.ShapeDtypeStruct((2, *shape), jnp.float32)
        maps, _ = jax.eval_shape(lambda *args, a=apply: a(*args, False), params, stats, x)
        assert maps.shape == (2, size, size) and maps.dtype == jnp.float32


def test_fit_learns_its_rows_and_no_hole_in_them(rng):
    coarse = rng.uniform(1, 6, (24, 3, 3))
    noise = rng.standard_normal((24, 3, 3, 5))
    x = np.concatenate([coarse[..., None], noise], axis=-1).reshape(24, -1).astype(np.float32)
    full = np.kron(coarse, np.ones((2, 2))).astype(np.float32)
    split, rows = depth_fit.Split(x, full.copy()), np.arange(4, 24)
    holes = rng.random(full.shape) < 0.2
    split.depths[holes] = 0
    split.depths[:4] = 1e6  # nobody may look at them
    config = DepthConfig(("run",), batch_size=10, learning_rate=0.03, epochs=60)
    predict = depth_fit.fit(split, rows, (3, 3, 6), config)
    found = depth_fit.errors(predict, split, rows, depth_fit.mean_depth(split, rows))
    assert found["mse"] < 0.2 * found["mse_constant"]
    # Where depth is unknown, the prediction is what is around: a 0 there was no target.
    missing = (predict(x) - full)[4:][holes[4:]]
    assert np.mean(np.square(missing)) < 0.4 * found["mse_constant"]
    np.testing.assert_allclose(predict(x[:3]), predict(x)[:3], rtol=1e-4)  # each by itself
    wild = dataclasses.replace(config, learning_rate=1e30, epochs=4)
    with pytest.raises(UserError, match="diverged"):
        depth_fit.fit(split, rows, (3, 3, 6), wild)


# Measures and maps.


def test_measures_by_hand(rng, monkeypatch):
    true = rng.uniform(0.5, 9, (7, 5, 5)).astype(np.float32)
    true[rng.random(true.shape) < 0.3] = 0
    guess = (true * rng.uniform(0.5, 2, true.shape) + 0.1).astype(np.float32)
    guess[0, 0] = -1  # below zero: far off in every ratio
    rows = np.array([0, 2, 3, 6, 5])
    split = depth_fit.Split(np.arange(7.0)[:, None], true)

    def predict(x):
        return guess[x[:, 0].astype(int)]

    sums = dict.fromkeys(
        ["mse", "abs_rel", "log10", "mse_constant", *map("delta{}".format, (1, 2, 3))], 0.0
    )
    count = 0
    for t, p in zip(true[rows].ravel().tolist(), guess[rows].ravel().tolist(), strict=True):
        if t > 0:
            count += 1
            floor = max(p, 0.01)
            sums["mse"] += (p - t) ** 2
            sums["abs_rel"] += abs(p - t) / t
            sums["log10"] += abs(np.log10(floor) - np.log10(t))
            sums["mse_constant"] += (2.5 - t) ** 2
            for power in (1, 2, 3):
                sums[f"delta{power}"] += 100 * (max(floor / t, t / floor) < 1.25**power)
    for chunk in (256, 2):
        monkeypatch.setattr(depth_fit, "CHUNK", chunk)
        found = depth_fit.errors(predict, split, rows, 2.5)
        for name, total in sums.items():
            assert found[name] == pytest.approx(total / count), name
        assert found["rmse"] == pytest.approx(found["mse"] ** 0.5)
        assert depth_fit.mean_depth(split, rows) == pytest.approx(true[rows][true[rows] > 0].mean())
    blind = depth_fit.Split(split.x, np.zeros_like(true))
    with pytest.raises(UserError, match="known depth"):
        depth_fit.errors(predict, blind, rows, 1.0)


def test_depth_maps_are_resized_as_their_images():
    """An image whose red channel is its depth stays so; unknown depths do not bleed."""
    ramp = np.mgrid[:30, :40].sum(0) * 3 + 20
    image = np.repeat(ramp[..., None], 3, axis=2).astype(np.uint8)
    for size in (16, 50):
        crop = augment.host_crops("nyu_depth", size)[1]
        found = depth.resized_depth(ramp.astype(np.float16), crop)
        assert found.shape == (size, size) and found.dtype == np.float32
        assert np.abs(found - crop(image)[..., 0]).max() <= 1
    # The same pixels as the device's evaluation sees: the middle square.
    seen = augment.make_evaluate("none", size)(jnp.asarray(image))
    np.testing.assert_allclose(found / 255, seen[..., 0], atol=1e-3)
    holes = np.full((32, 32), 2.5, np.float32)
    holes[:8], holes[16, 16:20], holes[24:26, 0] = 0, -1, 0
    holes[20, 20], holes[25, 3], holes[28, 28] = np.nan, np.inf, -5
    found = depth.resized_depth(holes, augment.host_crops("nyu_depth", 16)[1])
    assert np.all(found[:3] == 0) and found.max() < 2.501
    np.testing.assert_allclose(found[5:], 2.5, rtol=1e-6)
    # Known is what is known for a half at least.
    quarters = np.full((32, 32), 2.0)
    quarters[16:18, 16:18], quarters[20:22, 20] = 0, 0
    quarters[16, 16] = 2.0
    half = lambda x: x.reshape(16, 2, 16, 2, 1).mean((1, 3))  # noqa: E731
    found = depth.resized_depth(quarters, half)
    assert found[8, 8] == 0 and found[10, 10] == 2.0


# The verb.


@pytest.fixture(scope="module")
def mat(tmp_path_factory):
    images, depths = scenes(60)
    names = [f"scene_{number // 3}" for number in range(60)]
    return write_mat(tmp_path_factory.mktemp("nyu") / "nyu.mat", images, depths, names)


@pytest.fixture(scope="module")
def top(mat, tmp_path_factory):
    """A folder of two runs with random encoders, as training leaves them at step 0."""
    folder = tmp_path_factory.mktemp("runs")
    recipe = experiments.find("nyu_depth/align_uniform")
    for seed, name in enumerate(("first", "second")):
        config = dataclasses.replace(
            recipe,
            name=name,
            runs_dir=str(folder),
            data=DataConfig("nyu_depth_v2", str(mat)),
            model=ModelConfig("small_alexnet", dim=4, width=0.05, image_size=32),
            runtime=RuntimeConfig(cache_dir=str(folder / "cache")),
        )
        dataset = data.load(config.data)
        config = assembly.resolve(config, dataset)
        runs.open_folder(config, jax.devices()[:1], dataset.digest(), "")
        _, params, stats = models.create(config.model, jax.random.key(seed))
        with contextlib.closing(checkpoint.Checkpoints(folder / name / "checkpoints")) as steps:
            steps.save(0, {"params": params, "stats": stats})
    return folder


def test_verb(top, capsys):
    """Of one run: even random features tell some depth."""
    run = top / "first"
    options = ["--rows", "3", "--devices", "1", "--epochs", "40"]
    assert command_line.main(["depth", str(run), *options]) == 0
    result = json.loads((run / "eval" / "depth-conv5-epochs40.json").read_text())
    about = ("protocol", "layer", "split", "size", "epochs", "batch_size", "learning_rate")
    assert [result[key] for key in about] == ["depth", "conv5", "test", 32, 40, 128, 0.003]
    test = runs.load_data(run).test
    assert (result["n"], result["n_train"]) == (len(test), 60 - len(test))
    assert result["mse"] < result["mse_constant"]
    assert f"{result['rmse']:.2f}"[:-1] in capsys.readouterr().out
    picture = matplotlib.image.imread(run / "figures" / "depth-conv5-epochs40.png")
    assert picture.shape[0] > 500 and picture[..., :3].std() > 0.05


def test_of_several_runs_the_best_on_training_images_is_tested(top, monkeypatch):
    """By folds that are disjoint from what is trained on, and by no depth of the test split."""
    fitted, scored, seen, errors = [], [], [], depth.errors

    def split_features(encoder, source, layers, devices):
        """The image's mean depth, better known to the second run."""
        seen.append((encoder.folder.name, len(source)))
        noise = {"first": 2.0, "second": 0.1}[encoder.folder.name]
        means = np.array([source[i]["depth"].mean() for i in range(len(source))])
        x = means + noise * np.random.default_rng(0).normal(size=len(means))
        return {layers[0]: Features(np.float32(x)[:, None], None)}

    def fit(split, rows, shape, config):
        fitted.append(rows)
        assert len(shape) == 3 and config.epochs == 8
        line = np.polyfit(split.x[rows, 0], split.depths[rows].mean((1, 2)), 1)
        return lambda x: np.broadcast_to(np.polyval(line, x)[..., None], (len(x), 32, 32))

    def errors_of(predict, split, rows, constant):
        scored.append(rows)
        return errors(predict, split, rows, constant)

    for name, value in (("split_features", split_features), ("fit", fit), ("errors", errors_of)):
        monkeypatch.setattr(depth, name, value)
    options = {"folds": 3, "epochs": 8, "seed": 5, "rows": 2, "devices": 1}
    config = DepthConfig(tuple(str(top / name) for name in ("first", "second")), **options)
    found = depth.evaluate(config)
    second, first = found.results
    dataset = runs.load_data(top / "second")
    n = len(dataset.train)
    assert (second["run"], first["run"]) == ("second", "first")
    assert second["n_train"] == n == 60 - second["n"] and "mse" not in first
    assert found.figure.parent.parent == top / "second"
    crop = augment.host_crops("nyu_depth", 32)[1]
    for at, sample in enumerate((dataset.test[0], dataset.test[len(dataset.test) - 1])):
        np.testing.assert_array_equal(found.examples.images[at], crop(sample["image"]))
        expected = depth.resized_depth(sample["depth"], crop)
        np.testing.assert_array_equal(found.examples.depths[at], expected)
    for trained, held_out in zip(fitted[:6], scored[:6], strict=True):
        assert sorted([*trained, *held_out]) == list(range(n))
    assert sorted(np.concatenate(scored[:3])) == list(range(n))
    assert sorted(fitted[6]) == list(range(n)) and len(fitted) == len(scored) == 7
    for result in (second, first):
        name = "depth-conv5-folds3-epochs8-seed5.json"
        assert json.loads((top / result["run"] / "eval" / name).read_text()) == result
        assert result["cv_mse"] == pytest.approx(np.mean(result["cv_mse_folds"]))
    # Only the tested run's test images were seen.
    train, test = len(dataset.train), len(dataset.test)
    assert seen == [("first", train), ("second", train), ("second", train), ("second", test)]


def test_mistakes_are_one_line(top, tmp_path, mat, fails):
    run = str(top / "first")
    images, depths = scenes(8)
    blind = str(write_mat(tmp_path / "blind.mat", images, 0 * depths))
    for arguments, said in (
        (["--layer", "fc7"], "[h, w, channels]"),
        (["--layer", "conv6"], "did you mean 'conv5'"),
        (["--data-dir", str(tmp_path / "gone.mat")], "no file or folder"),
        (["--data", "digits"], "no depth maps"),
        ([str(top / "second")], "say in how many --folds"),
        ([run, "--folds", "2"], "named twice"),
        (["--folds", "1"], "--folds 1"),
        (["--rows", "0"], "--rows 0"),
    ):
        assert said in fails("depth", run, *arguments)

    def encoder(channels):
        model = ModelConfig(image_size=8, channels=channels)
        return types.SimpleNamespace(config=types.SimpleNamespace(model=model), folder="runs/a")

    depth._check_depths(nyu.MatSource(mat), encoder(3))
    with pytest.raises(UserError, match="1 channel"):
        depth._check_depths(nyu.MatSource(mat), encoder(1))
    odd = [{"image": np.zeros((4, 6, 3), np.uint8), "depth": np.ones((6, 4)), "label": -1}]
    with pytest.raises(UserError, match=r"images are \(4, 6\) pixels, depth maps \(6, 4\)"):
        depth._check_depths(type("Odd", (list,), {"origin": "odd"})(odd), encoder(3))
    assert "training images" in fails("depth", run, "--folds", "99")
    assert "known depth" in fails("depth", run, "--data", blind, "--epochs", "1")


@pytest.mark.slow
def test_pretraining_on_the_images_and_depth_from_its_checkpoint(mat, tmp_path):
    places = ["--data-dir", str(mat), "--runs-dir", str(tmp_path), "--cache-dir", str(tmp_path)]
    small = "--width 0.05 --dim 4 --image-size 32 --batch-size 16 --epochs 1 --devices 1"
    verb = ["pretrain", "nyu_depth/align_uniform", *places, *small.split()]
    assert command_line.main(verb) == 0
    run = tmp_path / "nyu_depth_align_uniform"
    config = runs.read_config(run)
    assert config.data.recipe == "nyu_depth" and config.model.channels == 3
    assert command_line.main(["depth", str(run), "--epochs", "2", "--folds", "3"]) == 0
    result = json.loads((run / "eval" / "depth-conv5-folds3-epochs2.json").read_text())
    assert len(result["cv_mse_folds"]) == 3 and 0 < result["mse"] < 50
