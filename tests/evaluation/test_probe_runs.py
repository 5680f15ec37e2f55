"""Probes of runs and of files of features: results, their files, and their table."""

import csv
import json
import shutil
from unittest.mock import Mock

import jax
import numpy as np
import pytest
import tiny_runs
from sklearn.neighbors import KNeighborsClassifier

from hypersphere_jax import cli as command_line
from hypersphere_jax.configs import ProbeConfig, UserError
from hypersphere_jax.configs.base import check_output
from hypersphere_jax.data import Arrays
from hypersphere_jax.data.arrays import digits
from hypersphere_jax.evaluation import features, probe_runs, results_file
from hypersphere_jax.evaluation.feature_files import Features
from hypersphere_jax.evaluation.sgd import MINIBATCH_PROTOCOLS
from hypersphere_jax.training import run_dir
from hypersphere_jax.training import train as training
from hypersphere_jax.utils.files import read_json


def asked(*names, **options):
    return ProbeConfig(tuple(map(str, names)), devices=1, **options)


def kept(run, name):
    """A result, with the predictions of single samples that lie beside it."""
    result, samples = (run / "eval" / f"{name}.{end}" for end in ("json", "npz"))
    of_samples = np.load(samples) if samples.is_file() else {}
    return read_json(result) | {key: of_samples[key].tolist() for key in of_samples}


@pytest.fixture(scope="module")
def run(image_run, tmp_path_factory):
    """A copy of the finished run: what is computed of it stays in its folder for the next test."""
    return shutil.copytree(image_run, tmp_path_factory.mktemp("runs") / "images")


@pytest.fixture
def quick(monkeypatch):
    """In place of a network: features that tell more of the class, the later the checkpoint."""

    def split_features(encoder, source, layers, devices, pool):
        noise = np.random.default_rng(len(source)).normal(size=(len(source), 10))
        x = np.float32(np.eye(10)[source.labels] + 10 / (1 + encoder.step) * noise)
        found = {layer: Features(x, source.labels) for layer in layers}
        return features.Extraction(found, dict.fromkeys(layers, pool), [], 0.5)

    monkeypatch.setattr(probe_runs, "split_features", split_features)


def test_layers_protocols_and_options(run):
    options = {"layers": ("conv2", "output"), "pool": "max", "k": (1, 7), "metric": "euclidean"}
    vote = {"vote": "similarity", "temperature": 0.3}
    found = probe_runs.run_probe(asked(run, protocols=("knn",), **options, **vote))
    found += probe_runs.run_probe(asked(run, protocols=("lbfgs",), seed=2))
    ends = ("1-conv2-poolmax", "7-conv2-poolmax", "1-output", "7-output")
    metric = "-metriceuclidean-votesimilarity-temperature0.3"
    names = [*(f"knn{end}{metric}" for end in ends), "lbfgs-output-seed2"]
    assert [kept(run, name) for name in names] == found
    assert [result.get("pool") for result in found] == ["max"] * 2 + [None] * 3
    about = {"run": "images", "step": 56, "data": "digits", "split": "test", "n": 397}
    assert all(result | about == result for result in found)
    assert found[1] | {"k": 7} | vote == found[1]
    assert [cell["l2"] for cell in found[4]["grid"]] == pytest.approx(0.1 ** np.arange(1, 9))
    # Against scikit-learn, on features from the cache.
    encoder, device = run_dir.load_encoder(run), jax.devices()[:1]
    x = (
        features.split_features(encoder, s, ["conv2"], device, "max")
        for s in run_dir.load_data(run)[:2]
    )
    train, test = (side.features["conv2"] for side in x if not side.computed)
    expected = 100 * KNeighborsClassifier(1).fit(*train).score(*test)
    assert found[0]["top1"] == pytest.approx(expected, abs=0.3) and found[4]["top1"] > 75


def test_every_step_and_several_runs(run, quick, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    shutil.rmtree(copy / "checkpoints" / "28" / "state")
    said, failures = [], []
    config = asked(run.parent, copy, all_steps=True, protocols=("knn",))
    found = probe_runs.run_probe(config, said.append, failures.append)
    steps = [("images", 0), ("images", 28), ("images", 56), ("copy", 0), ("copy", 56)]
    assert [(r["run"], r["step"]) for r in found] == steps
    top1 = [result["top1"] for result in found]
    assert top1[0] < top1[1] < top1[2] == top1[4] and top1[3] == top1[0]
    assert kept(run, "knn5-output-step28") == found[1] and len(said) == 5
    assert {(r["k"], r["metric"], r["vote"]) for r in found} == {(5, "cosine", "majority")}
    assert "28" in failures[0] and "damaged" in failures[0] and len(failures) == 1


def test_sorted_in_one_file_and_a_table(run, quick, tmp_path, capsys):
    out = tmp_path / "new" / "x.json"
    options = ["--devices", "1", "--step", "28", "--sort", "top1", "--k", "1", "3", "--out"]
    assert command_line.main(["probe", str(run), "rnu", *options, str(out)]) == 2
    shown, failures = capsys.readouterr()
    found = json.loads(out.read_text())
    scores = [result["top1"] for result in found if result["step"] == 28]
    assert scores == sorted(scores, reverse=True) and len(set(scores)) > 1 and len(scores) == 3
    assert all(f"{score:.2f}" in shown for score in scores)
    assert failures.splitlines()[-1].startswith("error: no run 'rnu'")
    some = [found[0] | {"top1": 90.0, "top1_interval": [88.0, 93.0]}, *found[1:]]
    results_file.write_results(tmp_path / "x.csv", some)
    first, *_ = csv.DictReader((tmp_path / "x.csv").read_text().splitlines())
    for written in (out, tmp_path / "x.csv"):
        check_output(written, ".csv", ".json")  # may be written anew
    assert [first[f"top1{end}"] for end in ("", "_low", "_high")] == ["90.0", "88.0", "93.0"]


def test_protocols_get_the_options(run, quick, monkeypatch):
    given, views = [], Mock(return_value=lambda epoch: Features(np.full((4, 2), epoch), labels))
    labels = np.array([3, -1, 0, 2])

    def linear_probe(train_x, train_y, test_x, test_y, **options):
        given.append(options | {"rows": (len(train_x), len(test_x))})
        return {"protocol": options["protocol"], "top1": 1.0, "n": len(test_x), "d": 6}

    monkeypatch.setattr(probe_runs, "linear_probe", linear_probe)
    monkeypatch.setattr(probe_runs, "augmented_features", views)
    options = {"layers": ("conv2",), "pool": "mean", "folds": 3, "seed": 1, "l2": (0.1, 0.02)}
    options |= {"protocols": ("lbfgs", "stl10"), "augment": True, "as_printed": True}
    found = probe_runs.run_probe(asked(run, **options))
    lbfgs, stl10 = given
    assert lbfgs["grid"] == (0.1, 0.02) and stl10["grid"] == MINIBATCH_PROTOCOLS["stl10"].grid[:1]
    for its in given:
        assert its | {"folds": 3, "seed": 1, "num_classes": 10, "rows": (1400, 397)} == its
    assert "epoch_features" not in lbfgs
    np.testing.assert_array_equal(stl10["epoch_features"](7), np.full((3, 2), 7))
    encoder, source, *rest = views.call_args.args
    assert encoder.step == 56 and len(source) == 1400 and views.call_count == 1
    assert rest == ["conv2", jax.devices()[:1], 1, "mean"]
    ends = (
        "lbfgs-conv2-poolmean-folds3-l20.1_0.02",
        "stl10-conv2-poolmean-folds3-augment-as_printed",
    )
    assert [kept(run, f"{end}-seed1") for end in ends] == found


def test_images_without_labels_are_left_out(run, quick, monkeypatch):
    dataset, (_, test) = run_dir.load_data(run), digits()
    some = Arrays(test.images, np.where(np.arange(397) % 2, test.labels, -1), ("0",) * 10, "here")
    monkeypatch.setattr(run_dir, "load_data", lambda *_: dataset._replace(train=some, test=some))
    (result,) = probe_runs.run_probe(asked(run, protocols=("knn",), k=(1,)))
    assert result["n"] == result["n_train"] == 198 and result["top1"] == 100


@pytest.mark.slow
def test_classes_are_the_labels_that_occur(tmp_path):
    """Training, evaluation, classifier and probes are those of labels 0 to 4."""
    found = []
    for name, classes in (("0", np.arange(5)), ("1", np.array([1, 2, 3, 4, 999_999]))):
        images = {}
        for part, source, n in zip(("train", "test"), digits(), (220, 99), strict=True):
            rows = np.flatnonzero(source.labels < 5)[:n]
            images[f"{part}_images"] = source.images[rows]
            images[f"{part}_labels"] = classes[source.labels[rows]]
        np.savez(tmp_path / f"{name}.npz", **images)
        options = {
            "data": str(tmp_path / f"{name}.npz"),
            "recipe": "digits",
            "supervised_weight": 0.5,
            "eval_every_epochs": 2,
            "evaluators": ("knn", "classifier"),
            "eval_split": "test",
        }
        training.train(tiny_runs.short(tmp_path, name, **options))
        assert run_dir.read_config(tmp_path / name).num_classes == 5
        last = json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[-1])
        results = probe_runs.run_probe(asked(tmp_path / name, k=(5,), l2=(0.1,)))
        assert all(result["num_classes"] == 5 and result["top5"] is None for result in results)
        same = ("top1", "targets", "predicted", "confusion", "per_class")
        found.append([last["loss"], last["eval/knn_top1"], last["eval/classifier_top1"]])
        found[-1] += [result[key] for result in results for key in same]
    assert found[0] == found[1]


@pytest.fixture
def splits(rng):
    labels = [rng.integers(0, 3, n) for n in (300, 100)]
    x = [(rng.standard_normal((len(y), 5)) + 1.2 * y[:, None]) for y in labels]
    return {"train_x": x[0], "train_y": labels[0], "test_x": x[1], "test_y": labels[1]}


def test_missing_layers_and_checkpoints_are_refused(run):
    with pytest.raises(UserError, match="did you mean 'output'"):
        probe_runs.run_probe(asked(run, layers=("ouput",)))
    with pytest.raises(UserError, match=r"no checkpoint of step 7 .*0, 28, 56"):
        probe_runs.run_probe(asked(run, step=7))


def test_user_supplied_features(splits, tmp_path):
    file, folder = tmp_path / "f.npz", tmp_path / "folder"
    np.savez(file, **splits)
    folder.mkdir()
    for name, array in splits.items():
        np.save(folder / f"{name}.npy", array.astype(np.float16) if "x" in name else array)
    found = probe_runs.run_probe(asked(file, folder, k=(1, 9), metric="euclidean"))
    assert [result["protocol"] for result in found] == ["lbfgs", "knn", "knn"] * 2
    train_x, train_y, test_x, test_y = splits.values()
    for k, result in ((1, found[1]), (9, found[2])):
        expected = 100 * KNeighborsClassifier(k).fit(train_x, train_y).score(test_x, test_y)
        assert result["k"] == k and result["top1"] == pytest.approx(expected, abs=4)  # other ties
    assert abs(found[0]["top1"] - found[3]["top1"]) <= 2  # half precision


def test_label_ids_may_be_any_numbers(splits, tmp_path):
    def scores(ids, **more):
        arrays = splits | {key: ids[splits[key]] for key in ("train_y", "test_y")}
        arrays |= {key: np.concatenate([arrays[key], row]) for key, row in more.items()}
        np.savez(tmp_path / "f.npz", **arrays)
        (result,) = probe_runs.run_probe(
            asked(tmp_path / "f.npz", protocols=("lbfgs",), l2=(1e-1, 1e-2))
        )
        return result

    plain, ids = scores(np.arange(3)), np.array([7, 2**40, 2**62])
    fresh = {"seconds": 0, "seconds_probe": 0}
    assert "classes" not in plain
    assert scores(ids) | fresh == plain | fresh | {"classes": ids.tolist()}
    # A test row of a class that was not trained on changes no choice.
    more = scores(np.array([10, 30, 40]), test_x=splits["test_x"][:1], test_y=[20])
    assert more["classes"] == [10, 20, 30, 40] and more["per_class"][1] == 0.0
    for key in ("chosen", "grid", "steps", "gradient_norm", "C", "valid_top1"):
        assert more[key] == plain[key], key
    assert more["top1"] == pytest.approx(plain["top1"] * 100 / 101)
