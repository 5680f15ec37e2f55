"""The verb probe: runs and files of features to results, one file each; what is asked arrives."""

import csv
import dataclasses
import json
import re
import shutil

import jax
import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

import run as command_line
from hypersphere_jax import runs
from hypersphere_jax.config import ProbeConfig, UserError
from hypersphere_jax.data import Arrays
from hypersphere_jax.data.arrays import digits
from hypersphere_jax.evaluation import features, linear, probe, results
from hypersphere_jax.evaluation.cache import Features
from hypersphere_jax.evaluation.sgd import PROTOCOLS


def asked(*names, **options):
    return ProbeConfig(tuple(map(str, names)), devices=1, **options)


@pytest.fixture
def quick(monkeypatch):
    """In place of a network: features that tell more of the class, the later the checkpoint."""

    def extract(encoder, source, layers, devices, pool):
        noise = np.random.default_rng(len(source)).normal(size=(len(source), 10))
        x = np.eye(10)[source.labels] + 10 / (1 + encoder.step) * noise
        found = {layer: Features(x.astype(np.float32), source.labels) for layer in layers}
        return features.Extraction(found, dict.fromkeys(layers, pool), [], 0.5, None)

    monkeypatch.setattr(probe, "extract", extract)


# Runs.


def test_layers_protocols_and_options(run):
    """One result for each, in a file whose name tells it from the others."""
    options = {"layers": ("conv2", "output"), "pool": "max", "k": (1, 7), "metric": "euclidean"}
    found = probe.probe(asked(run, protocols=("knn", "lbfgs"), seed=2, **options))
    names = [
        f"{name}-{layer}{pool}{option}"
        for layer, pool in (("conv2", "-poolmax"), ("output", ""))
        for name, option in (
            ("knn1", "-metriceuclidean"),
            ("knn7", "-metriceuclidean"),
            ("lbfgs", "-seed2"),
        )
    ]
    assert [json.loads((run / "eval" / f"{name}.json").read_text()) for name in names] == found
    assert [result.get("pool") for result in found] == ["max"] * 3 + [None] * 3
    assert [result["d"] for result in found] == [16] * 3 + [6] * 3
    about = {"run": "images", "step": 56, "data": "digits", "split": "test", "n": 397}
    assert all(result | about == result for result in found)
    assert found[5]["top1"] > 75 and found[5]["seed"] == 2
    assert found[5]["chosen"]["l2"] in [cell["l2"] for cell in found[5]["grid"]]
    # Against scikit-learn, on features from the cache.
    encoder, dataset, device = runs.load_encoder(run), runs.load_data(run), jax.devices()[:1]
    both = [
        features.extract(encoder, source, ["conv2"], device, "max")
        for source in (dataset.train, dataset.test)
    ]
    assert not any(side.computed for side in both)
    (train_x, train_y), (test_x, test_y) = (side.features["conv2"] for side in both)
    nearest = KNeighborsClassifier(1).fit(train_x, train_y)
    assert found[0]["top1"] == pytest.approx(100 * nearest.score(test_x, test_y), abs=0.3)


def test_every_step_and_several_runs(run, quick, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    (copy / "checkpoints" / "28").rename(copy / "checkpoints" / "30")
    shutil.rmtree(copy / "checkpoints" / "30" / "state")
    said, failures = [], []
    config = asked(run.parent, "nowhere", copy, all_steps=True, protocols=("knn",))
    found = probe.probe(config, said.append, failures.append)
    steps = [(result["run"], result["step"]) for result in found]
    assert steps == [("images", 0), ("images", 28), ("images", 56), ("copy", 0), ("copy", 56)]
    top1 = [result["top1"] for result in found]
    assert top1[0] < top1[1] < top1[2] == top1[4] and top1[3] == top1[0]
    assert (run / "eval" / "knn5-output-step28.json").is_file()
    assert {(r["k"], r["metric"], r["vote"]) for r in found} == {(5, "cosine", "majority")}
    assert "no run 'nowhere'" in failures[0] and len(said) == 5
    assert "30" in failures[1] and "damaged" in failures[1] and len(failures) == 2
    (one,) = probe.probe(dataclasses.replace(config, runs=(str(run),), all_steps=False, step=28))
    assert one["step"] == 28 and one["top1"] == top1[1]
    with pytest.raises(UserError, match="no run 'nowhere'"):
        probe.probe(config)
    votes = {"vote": "similarity", "temperature": 0.3}
    (one,) = probe.probe(asked(run, protocols=("knn",), **votes))
    assert one == one | votes
    name = "knn5-output-votesimilarity-temperature0.3.json"
    assert json.loads((run / "eval" / name).read_text()) == one


def test_sorted_and_in_one_file(run, quick, tmp_path):
    config = asked(run, step=28, sort="top1", k=(1, 3), out=tmp_path / "new" / "x.json")
    found = probe.probe(config)
    assert json.loads(config.out.read_text()) == found and len(found) == 3
    scores = [result["top1"] for result in found]
    assert scores == sorted(scores, reverse=True) and len(set(scores)) > 1
    by_seconds = results.ordered(found, "seconds")
    assert np.all(np.diff([result["seconds_probe"] for result in by_seconds]) >= 0)
    some = [found[0] | {"top1": 90.0, "top1_interval": [88.0, 93.0]}, *found[1:]]
    assert results.ordered(found[::-1], "valid")[0]["protocol"] == "lbfgs"  # k-NN has none
    title, columns, rows = results.table(some)
    assert "images" in title and "90.00 ± 2.50" in rows[0] and len(columns) == len(rows[0])
    results.write(tmp_path / "x.csv", some)
    with open(tmp_path / "x.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["top1"]) for row in rows] == [90.0, *scores[1:]]
    assert (rows[0]["top1_low"], rows[0]["top1_high"]) == ("88.0", "93.0")
    (row,) = (row for row in rows if row["protocol"] == "lbfgs")
    (lbfgs,) = (result for result in found if result["protocol"] == "lbfgs")
    assert float(row["chosen.l2"]) == lbfgs["chosen"]["l2"]
    assert "grid" not in row and {row["k"] for row in rows} == {"", "1", "3"}


def test_what_protocols_are_given(run, quick, monkeypatch):
    """Folds, seed, grids, and of those with minibatches fresh features of the training images."""
    given, views = [], []

    def linear_probe(train_x, train_y, test_x, test_y, **options):
        given.append(options | {"rows": (len(train_x), len(test_x))})
        return {"protocol": options["protocol"], "top1": 1.0, "n": len(test_x), "d": 6}

    def augmented_features(*arguments):
        views.append(arguments)
        return lambda epoch: Features(np.full((4, 2), epoch), np.array([3, -1, 0, 2]))

    monkeypatch.setattr(linear, "linear_probe", linear_probe)
    monkeypatch.setattr(probe, "augmented_features", augmented_features)
    options = {"layers": ("conv2",), "pool": "mean", "folds": 3, "seed": 1, "l2": (0.1, 0.02)}
    found = probe.probe(
        asked(run, protocols=("lbfgs", "stl10"), augment=True, as_printed=True, **options)
    )
    lbfgs, stl10 = given
    assert lbfgs["grid"] == (0.1, 0.02) and stl10["grid"] == PROTOCOLS["stl10"].grid[:1]
    for protocol, its in (("lbfgs", lbfgs), ("stl10", stl10)):
        expected = {"protocol": protocol, "folds": 3, "seed": 1, "num_classes": 10}
        assert its | expected | {"rows": (1400, 397)} == its
    assert "epoch_features" not in lbfgs
    np.testing.assert_array_equal(stl10["epoch_features"](7), np.full((3, 2), 7))
    ((encoder, source, *rest),) = views
    assert encoder.step == 56 and len(source) == 1400
    assert rest == ["conv2", jax.devices()[:1], 1, "mean"]
    assert [result.get("augment") for result in found] == [None, True]
    for name in ("lbfgs-conv2-poolmean-folds3-l20.1_0.02-seed1",
                 "stl10-conv2-poolmean-folds3-augment-printed-seed1"):  # fmt: skip
        assert (run / "eval" / f"{name}.json").is_file()
    probe.probe(asked(run, protocols=("moco",)))
    assert not {"grid", "folds", "epoch_features"} & set(given[-1])


def test_images_without_labels(run, quick, monkeypatch):
    """Some are left out; where none is left, that is a mistake."""
    dataset, (_, test) = runs.load_data(run), digits()
    unknown = np.full(len(test), -1)
    some = Arrays(test.images, np.where(np.arange(397) % 2, test.labels, -1), ("0",) * 10, "here")
    with monkeypatch.context() as patch:
        patch.setattr(runs, "load_data", lambda *_: dataset._replace(train=some, test=some))
        (result,) = probe.probe(asked(run, protocols=("knn",), k=(1,)))
        assert result["n"] == result["n_train"] == 198 and result["top1"] == 100
    for change, message in (
        ({"test": None}, "has no test split"),
        ({"train": Arrays(test.images, unknown, (), "here")}, "images of here have no labels"),
        ({"test": Arrays(test.images, unknown, ("0",), "here")}, "no test image of .* has a label"),
    ):
        changed = dataset._replace(**change)
        monkeypatch.setattr(runs, "load_data", lambda *_, changed=changed: changed)
        with pytest.raises(UserError, match=message):
            probe.probe(asked(run))


def test_runs_that_cannot_be_probed(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    for config, message in (
        (asked(run, layers=("output", "ouput")), r"--layers ouput.*did you mean 'output'"),
        (asked(run, step=7), r"no checkpoint of step 7 .*0, 28, 56"),
        (asked(run.parent / "imges"), re.escape(f"did you mean '{run}'")),
        (asked(run, k=(1401,)), "--k 1401: there are only 1400 training samples"),
    ):
        with pytest.raises(UserError, match=message):
            probe.probe(config)
    saved = json.loads((copy / "config.json").read_text())
    saved["config"]["model"]["width"] = 0.5  # not that of its checkpoint
    for text, message in (
        (json.dumps(saved), "does not fit this model"),
        ('{"config": ', r"config\.json is not JSON"),
    ):
        (copy / "config.json").write_text(text)
        with pytest.raises(UserError, match=message):
            probe.probe(asked(copy))
    shutil.copy(run / "config.json", copy)
    shutil.rmtree(copy / "checkpoints")
    for options in ({}, {"all_steps": True}):
        with pytest.raises(UserError, match="no checkpoint in"):
            probe.probe(asked(copy, **options))


def test_mistakes_in_options(fails):
    for options, message in (
        ("--k 3 0", "--k 0: must be at least 1"),
        ("--step 3 --all-steps", "--step and --all-steps do not go together"),
        ("--folds 1", "--folds 1: must be at least 2"),
        ("--folds 3 --protocols knn", "--folds needs --protocols with something"),
        ("--augment", "--augment needs --protocols stl10"),
        ("--k 3 --protocols lbfgs", "--k needs --protocols knn"),
        ("--temperature 1", "--temperature needs --vote similarity"),
        ("--temperature 0 --vote similarity", "--temperature 0.0: must be finite and"),
        ("--out a.txt", "--out a.txt: must be a file that ends in .csv or .json"),
        ("--layers --seed 0", "--layers: give at least one"),
        ("--protocols lbfsg", "--protocol"),
        ("--sort top2", "--sort"),
    ):
        assert message in fails("probe", "x", *options.split())
    assert "name at least one run" in fails("probe")


def test_command_line(run, quick, capsys):
    """The table has the numbers of the files; a run that is not there is told, the rest goes on."""
    arguments = ["--layers", "output", "conv2", "--devices", "1", "--sort", "layer", "--k", "4"]
    assert command_line.main(["probe", str(run), "rnu", *arguments]) == 2
    out, err = capsys.readouterr()
    for layer in ("conv2", "output"):
        result = json.loads((run / "eval" / f"knn4-{layer}.json").read_text())
        assert any(layer in line and f"{result['top1']:.2f}" in line for line in out.splitlines())
    assert max(map(len, out.splitlines())) <= 80
    assert err.splitlines()[-1].startswith("error: no run 'rnu'")


# Files.


@pytest.fixture
def splits(rng):
    """Features and labels of three classes that overlap."""
    labels = [rng.integers(0, 3, n) for n in (300, 100)]
    x = [(rng.standard_normal((len(y), 5)) + 1.2 * y[:, None]) for y in labels]
    return {"train_x": x[0], "train_y": labels[0], "test_x": x[1], "test_y": labels[1]}


def test_anybodys_features(splits, tmp_path):
    np.savez(tmp_path / "f.npz", **splits)
    (tmp_path / "folder").mkdir()
    for name, array in splits.items():
        half = array.astype(np.float16) if name.endswith("x") else array
        np.save(tmp_path / "folder" / f"{name}.npy", half)
    found = probe.probe(
        asked(tmp_path / "f.npz", tmp_path / "folder", k=(1, 9), metric="euclidean")
    )
    assert [result["protocol"] for result in found] == ["lbfgs", "knn", "knn"] * 2
    assert found[0]["features"] == str(tmp_path / "f.npz") and found[0]["num_classes"] == 3
    for k, result in ((1, found[1]), (9, found[2])):
        nearest = KNeighborsClassifier(k).fit(splits["train_x"], splits["train_y"])  # other ties
        expected = 100 * nearest.score(splits["test_x"], splits["test_y"])
        assert result["k"] == k and result["top1"] == pytest.approx(expected, abs=4)
    assert abs(found[0]["top1"] - found[3]["top1"]) <= 2  # half precision
    with pytest.raises(UserError, match=r"--layers is for runs, and .*f\.npz' holds features"):
        probe.probe(asked(tmp_path / "f.npz", layers=("fc7",)))


MISTAKES = (
    ({"test_y": None}, "lacks test_y"),
    ({"train_y": np.zeros(300)}, "train_y holds float64 numbers, no class labels"),
    ({"test_y": np.array(["a"] * 100)}, "test_y holds <U1, .*: save them as integers"),
    ({"test_y": np.zeros(99, int)}, r"test_y must be .*\[100, 5\], but its shape is \[99\]"),
    ({"train_x": np.zeros((0, 5)), "train_y": np.zeros(0, int)}, r"train_x has no rows.*\[0, 5\]"),
    ({"test_y": np.full(100, -1)}, "go from -1 to -1"),
    ({"train_x": np.full((300, 5), np.nan)}, "300 of 300 rows hold NaN"),
    ({"test_x": np.array([{}] * 100)}, "not a readable .np. file"),
)


def test_mistakes_in_features(splits, tmp_path):
    for number, (change, message) in enumerate(MISTAKES):
        folder = tmp_path / str(number)
        folder.mkdir()
        arrays = {name: array for name, array in (splits | change).items() if array is not None}
        np.savez(folder / "f.npz", **arrays)
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array)
        for place in (folder / "f.npz", folder):
            failures = []
            assert probe.probe(asked(place), failed=failures.append) == []
            assert re.search(message, failures[0]) and str(place) in failures[0], message
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04 cut short")
    np.save(tmp_path / "train_x.npy", splits["train_x"])
    for name, message in (
        ("cut.npz", "not a readable .npz file"),
        ("none.npz", "there is no such file"),
        ("train_x.npy", "a single array, but a probe needs"),
        ("", "lacks train_y.npy, test_x.npy, test_y.npy"),
    ):
        with pytest.raises(UserError, match=message):
            probe.probe(asked(tmp_path / name))


def test_label_ids_may_be_any_numbers(splits, tmp_path):
    """The scores are those of labels from 0 on, and the ids stand beside them."""
    ids = {
        "plain": np.arange(3),
        "far": np.array([999_000, 999_001, 999_002], np.uint64),
        "apart": np.array([7, 2**40, 2**62]),
    }
    for name, of in ids.items():
        given = splits | {key: of[splits[key]] for key in ("train_y", "test_y")}
        np.savez(tmp_path / f"{name}.npz", **given)
    options = {"protocols": ("lbfgs", "knn"), "l2": (1e-1, 1e-2, 1e-3)}
    plain, *others = (probe.probe(asked(tmp_path / f"{name}.npz", **options)) for name in ids)
    assert "classes" not in plain[0]
    for name, found in zip(("far", "apart"), others, strict=True):
        for result, expected in zip(found, plain, strict=True):
            assert result["classes"] == ids[name].tolist()
            for key in expected.keys() - {"classes", "features", "seconds", "seconds_probe"}:
                assert result[key] == expected[key], key
    # A test row of a class that was not trained on changes no choice.
    labels = {key: np.array([10, 30, 40])[splits[key]] for key in ("train_y", "test_y")}
    row = {"test_x": np.concatenate([splits["test_x"], splits["test_x"][:1]]),
           "test_y": np.append(labels["test_y"], 20)}  # fmt: skip
    np.savez(tmp_path / "more.npz", **(splits | labels | row))
    with_row, _ = probe.probe(asked(tmp_path / "more.npz", **options))
    assert with_row["classes"] == [10, 20, 30, 40] and with_row["per_class"][1] == 0.0
    for key in ("chosen", "grid", "steps", "gradient_norm", "C", "valid_top1"):
        assert with_row[key] == plain[0][key], key
    assert with_row["top1"] == pytest.approx(plain[0]["top1"] * 100 / 101)
