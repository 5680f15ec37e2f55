"""The depth evaluation: its recipe, and the verb from a checkpoint to the picture."""

import contextlib
import dataclasses
import json
import types

import h5py
import jax
import matplotlib.image
import numpy as np
import pytest
import tfds_cases
from depth_cases import scenes, write_mat
from PIL import Image
from test_cli import fails, run_py

import experiments
from hypersphere_jax import assembly, checkpoint, data, models, runs
from hypersphere_jax.config import DataConfig, DepthConfig, ModelConfig, RuntimeConfig, UserError
from hypersphere_jax.data import nyu
from hypersphere_jax.evaluation import depth
from hypersphere_jax.optimizers import make_schedule


def test_recipe_is_that_of_table_2():
    contrastive, sphere = (
        experiments.find(f"nyu_depth/{variant}") for variant in ("contrastive", "align_uniform")
    )
    for config in (contrastive, sphere):
        rule = config.optimizer
        schedule = make_schedule(rule, 400 * 6)
        assert (rule.epochs, rule.batch_size, rule.momentum) == (400, 128, 0.9)
        assert (rule.weight_decay, config.model.dim) == (1e-4, 128)
        for epoch, factor in {0: 1, 309: 1, 310: 0.1, 340: 0.01, 369: 0.01, 370: 0.001}.items():
            np.testing.assert_allclose(schedule(6 * epoch), 0.06 * factor, rtol=1e-5)
    loss = contrastive.objective
    weights = (loss.contrastive_weight, loss.align_weight, loss.uniform_weight)
    assert weights == (0.5, 0, 0) and loss.contrastive_tau == 0.1
    loss = sphere.objective
    weights = (loss.contrastive_weight, loss.align_weight, loss.uniform_weight)
    assert weights == (0, 0.75, 0.5) and (loss.align_alpha, loss.uniform_t) == (2, 2)


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


@pytest.mark.parametrize("layer", ["conv5", pytest.param("conv4", marks=pytest.mark.slow)])
def test_verb(top, layer, capsys):
    run = top / "first"
    assert run_py.main(["depth", str(run), "--layer", layer, "--rows", "3"]) == 0
    assert "rmse" in capsys.readouterr().out
    result = json.loads((run / "eval" / f"depth-{layer}.json").read_text())
    about = ("protocol", "layer", "split", "size", "epochs", "batch_size", "learning_rate")
    assert [result[key] for key in about] == ["depth", layer, "test", 32, 120, 128, 0.003]
    assert result["n"] + result["n_train"] == 60 and "square metres" in result["units"]
    assert result["mse"] < 0.8 * result["mse_constant"]  # even random features tell some depth
    assert result["rmse"] == pytest.approx(result["mse"] ** 0.5)
    assert 0 < result["delta1"] <= result["delta2"] <= result["delta3"] <= 100
    assert result["seconds"] >= result["fit_seconds"] > 0
    picture = matplotlib.image.imread(run / "figures" / f"depth-{layer}.png")
    assert picture.shape[0] > 500 and picture[..., :3].std() > 0.05


@pytest.mark.slow
def test_of_several_runs_the_best_on_training_images_is_tested(top, mat, capsys):
    names = [str(top / name) for name in ("first", "second")]
    short = ["--folds", "3", "--epochs", "8", "--seed", "5"]
    assert run_py.main(["depth", *names, *short]) == 0
    files = [top / name / "eval" / "depth-conv5-folds3-epochs8-seed5.json" for name in names]
    first, second = sorted((json.loads(f.read_text()) for f in files), key=lambda r: r["cv_mse"])
    assert "mse" in first and "mse" not in second and "split" not in second
    for result in (first, second):
        assert len(result["cv_mse_folds"]) == 3
        assert result["cv_mse"] == pytest.approx(np.mean(result["cv_mse_folds"]))
    assert not list((top / second["run"] / "figures").glob("*epochs8*"))
    # What is chosen does not depend on the test split: other depths there, the same choice.
    moved = mat.with_name("moved.mat")
    with h5py.File(mat) as file:
        images, depths = (np.swapaxes(file[name][:], -1, -2) for name in ("images", "depths"))
        images = np.moveaxis(images, 1, -1)
    test = runs.load_data(top / "second").test.indices
    depths[test] = depths[test][::-1] * 3
    write_mat(moved, images, depths, [f"scene_{number // 3}" for number in range(60)])
    others = ["--data", str(moved)]
    assert run_py.main(["depth", *names, *short, *others]) == 0
    again = [json.loads(f.with_stem(f"{f.stem}-moved").read_text()) for f in files]
    assert {r["run"]: r["cv_mse"] for r in again} == pytest.approx(
        {r["run"]: r["cv_mse"] for r in (first, second)}
    )
    tested = next(r for r in again if "mse" in r)
    assert tested["run"] == first["run"] and tested["mse"] != pytest.approx(first["mse"])
    capsys.readouterr()


def test_folds_are_disjoint_and_trained_on_the_others(monkeypatch):
    n, seen, scored = 23, [], []
    split = depth.Split(np.zeros((n, 4), np.float32), np.ones((n, 2, 2), np.float32))
    monkeypatch.setattr(depth, "fit", lambda split, rows, *_: seen.append(set(rows.tolist())))
    monkeypatch.setattr(
        depth,
        "errors",
        lambda predict, split, rows, constant: scored.append(set(rows.tolist())) or {"mse": 1.0},
    )

    class Candidate:
        dataset, shape = type("Data", (), {"train": None}), None

        def load(self, source):
            return split

    depth._cross_validated(Candidate(), DepthConfig(("run",), folds=4))
    assert [trained | held for trained, held in zip(seen, scored, strict=True)] == [
        set(range(n))
    ] * 4
    assert sorted(row for held in scored for row in held) == list(range(n))
    assert not any(trained & held for trained, held in zip(seen, scored, strict=True))
    assert {len(held) for held in scored} == {5, 6}


@pytest.mark.slow
def test_tfds(top, tmp_path, capsys):
    """The prepared set of TensorFlow Datasets, of other sizes, for an encoder of another set."""
    images, depths = scenes(24, 40, 40)
    records = [
        tfds_cases.example(image, depth=true) for image, true in zip(images, depths, strict=True)
    ]
    tfds_cases.write(
        tmp_path,
        {"train": [records[:16]], "validation": [records[16:]]},
        "nyu_depth_v2/0.0.1",
        names=(),
        shape=(40, 40, 3),
        depth=(40, 40),
    )
    run = top / "first"
    options = ["--data", "nyu_depth_v2", "--data-dir", str(tmp_path), "--epochs", "5"]
    assert run_py.main(["depth", str(run), *options]) == 0
    name = f"depth-conv5-epochs5-nyu_depth_v2-{tmp_path.name}.json"  # told from the run's own data
    result = json.loads((run / "eval" / name).read_text())
    assert (result["n"], result["n_train"]) == (8, 16) and "TensorFlow" in result["data"]
    capsys.readouterr()


def test_mistakes_are_one_line(top, tmp_path, mat, capsys):
    run = str(top / "first")

    def wrong(*arguments):
        capsys.readouterr()
        return fails(capsys, "depth", *arguments)

    line = wrong(run, "--layer", "fc7")
    assert "[h, w, channels]" in line and "conv1, conv2, conv3, conv4, conv5" in line
    assert "did you mean 'conv5'" in wrong(run, "--layer", "conv6")
    assert "no file or folder" in wrong(run, "--data-dir", str(tmp_path / "gone.mat"))
    assert "no depth maps" in wrong(run, "--data", "digits")
    pixels = np.zeros((12, 9, 9, 3), np.uint8)
    for number in range(12):
        split = "train" if number < 8 else "test"
        file = tmp_path / "tree" / split / "a" / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[number]).save(file)
    assert "no depth maps" in wrong(run, "--data", str(tmp_path / "tree"))
    assert "say in how many --folds" in wrong(run, str(top / "second"))
    assert "named twice" in wrong(run, run, "--folds", "2")
    assert "--folds 1" in wrong(run, "--folds", "1")
    assert "training images" in wrong(run, "--folds", "99")
    assert "--rows 0" in wrong(run, "--rows", "0")
    images, depths = scenes(8)
    depths[:] = 0
    blind = write_mat(tmp_path / "blind.mat", images, depths)
    assert "known depth" in wrong(run, "--data", str(blind), "--epochs", "1")


def test_grey_encoders_and_odd_maps_are_refused(tmp_path, mat):
    def encoder(channels):
        model = ModelConfig(image_size=8, channels=channels)
        return types.SimpleNamespace(config=types.SimpleNamespace(model=model), folder="runs/a")

    source = nyu.MatSource(mat)
    depth._check_depths(source, encoder(3))
    with pytest.raises(UserError, match="1 channel"):
        depth._check_depths(source, encoder(1))
    odd = [{"image": np.zeros((4, 6, 3), np.uint8), "depth": np.ones((6, 4)), "label": -1}]
    with pytest.raises(UserError, match=r"images are \(4, 6\) pixels, depth maps \(6, 4\)"):
        depth._check_depths(type("Odd", (list,), {"origin": "odd"})(odd), encoder(3))


def test_layers_that_are_maps():
    config = ModelConfig("small_alexnet", image_size=64, channels=3)
    shapes = models.layers(config)
    assert shapes["conv5"] == (7, 7, 192) and shapes["conv4"] == (15, 15, 384)


@pytest.mark.slow
def test_pretraining_on_the_images_and_depth_from_its_checkpoint(mat, tmp_path):
    places = ["--data-dir", str(mat), "--runs-dir", str(tmp_path), "--cache-dir", str(tmp_path)]
    small = "--width 0.05 --dim 4 --image-size 32 --batch-size 16 --epochs 1 --devices 1"
    assert run_py.main(["pretrain", "nyu_depth/align_uniform", *places, *small.split()]) == 0
    run = tmp_path / "nyu_depth_align_uniform"
    config = runs.read_config(run)
    assert config.data.recipe == "nyu_depth" and config.model.channels == 3
    assert run_py.main(["depth", str(run), "--epochs", "2"]) == 0
    assert (run / "figures" / "depth-conv5-epochs2.png").is_file()
