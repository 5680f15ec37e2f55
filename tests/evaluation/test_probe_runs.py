"""Probes of runs and of files of features: results, their files, and their table."""

import csv
import json
import shutil

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from hypersphere_jax import cli
from hypersphere_jax.configs import ProbeConfig, UserError
from hypersphere_jax.evaluation.knn import knn_probe
from hypersphere_jax.evaluation.probe_runs import run_probe
from hypersphere_jax.evaluation.sgd import MINIBATCH_PROTOCOLS
from hypersphere_jax.utils.files import read_json


def probe(*names, **options):
    return run_probe(ProbeConfig(tuple(map(str, names)), devices=1, **options))


def read_result(run, name):
    """Read a result with the predictions of single samples."""
    result = read_json(run / "eval" / f"{name}.json")
    with np.load(run / "eval" / f"{name}.npz") as samples:
        return result | {key: samples[key].tolist() for key in samples}


@pytest.fixture(scope="module")
def run(image_run, tmp_path_factory):
    """Return a copy of the finished run, to which results and caches are added."""
    return shutil.copytree(image_run, tmp_path_factory.mktemp("runs") / "images")


def test_results_of_layers_and_protocols_are_saved(run):
    with pytest.raises(UserError, match="ignore_label"):  # it is for files
        probe(run, ignore_label=3)
    options = {"layers": ("conv2", "output"), "pool": "max", "k": (1, 7), "metric": "euclidean"}
    options |= {"vote": "similarity", "temperature": 0.3}
    found = probe(run, protocols=("knn",), **options)
    found += probe(run, protocols=("lbfgs",), seed=2, folds=3, l2=(0.1, 0.01))
    layers = ("1-conv2-poolmax", "7-conv2-poolmax", "1-output", "7-output")
    suffix = "-metriceuclidean-votesimilarity-temperature0.3"
    names = [f"knn{layer}{suffix}" for layer in layers]
    names.append("lbfgs-output-folds3-l20.1_0.01-seed2")
    assert [read_result(run, name) for name in names] == found
    header = {"run": "images", "step": 56, "data": "digits", "split": "test", "n": 397}
    assert all(result | header == result for result in found)
    linear = found[-1]
    assert linear["top1"] > 75
    assert [len(cell["fold_top1"]) for cell in linear["grid"]] == [3, 3]


def test_every_step_of_several_runs(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    shutil.rmtree(copy / "checkpoints" / "28" / "state")
    failures = []
    names = (str(run.parent), str(copy))
    config = ProbeConfig(names, devices=1, all_steps=True, protocols=("knn",))
    found = run_probe(config, log_failure=failures.append)
    steps = [("images", 0), ("images", 28), ("images", 56), ("copy", 0), ("copy", 56)]
    assert [(result["run"], result["step"]) for result in found] == steps
    assert found[2]["top1"] > found[0]["top1"] and found[2]["top1"] == found[4]["top1"]
    assert read_result(run, "knn5-output-step28") == found[1]
    assert len(failures) == 1 and "28" in failures[0]


@pytest.mark.parametrize("name", ["x.json", "x.csv"])
def test_results_are_sorted_in_one_file(run, tmp_path, name, capsys):
    out = tmp_path / "new" / name
    arguments = ["--devices", "1", "--step", "28", "--sort", "top1", "--k", "1", "3"]
    assert cli.main(["probe", str(run), "rnu", *arguments, "--out", str(out)]) == 2
    shown, failures = capsys.readouterr()
    assert "'rnu'" in failures
    if name == "x.json":
        rows = json.loads(out.read_text())
    else:
        rows = list(csv.DictReader(out.read_text().splitlines()))
        assert all(float(row["top1_low"]) < float(row["top1_high"]) for row in rows)
    scores = [float(row["top1"]) for row in rows]
    assert scores == sorted(scores, reverse=True) and len(scores) == 3
    assert all(f"{score:.2f}" in shown for score in scores)


@pytest.mark.slow
def test_augmented_and_printed_settings_of_a_minibatch_protocol(run):
    name = "moco_imagenet100"
    options = {"protocols": (name,), "as_printed": True}
    plain, views = (probe(run, augment=augment, **options)[0] for augment in (False, True))
    rate, decay = MINIBATCH_PROTOCOLS[name].grid[0]
    assert plain["chosen"] == views["chosen"] == {"learning_rate": rate, "weight_decay": decay}
    assert views["predicted"] != plain["predicted"] and min(views["top1"], plain["top1"]) > 60


@pytest.fixture
def splits(rng):
    labels = [rng.integers(0, 3, n) for n in (300, 100)]
    x = [(rng.standard_normal((len(y), 5)) + 1.2 * y[:, None]) for y in labels]
    return {"train_x": x[0], "train_y": labels[0], "test_x": x[1], "test_y": labels[1]}


def test_files_and_folders_of_features(splits, tmp_path):
    file, folder = tmp_path / "f.npz", tmp_path / "folder"
    np.savez(file, **splits)
    folder.mkdir()
    for name, array in splits.items():
        np.save(folder / f"{name}.npy", array.astype(np.float16) if "x" in name else array)
    found = probe(file, folder, k=(1, 9), metric="euclidean")
    assert [result["protocol"] for result in found] == ["lbfgs", "knn", "knn"] * 2
    train_x, train_y, test_x, test_y = splits.values()
    for k, result in ((1, found[1]), (9, found[2])):
        expected = 100 * KNeighborsClassifier(k).fit(train_x, train_y).score(test_x, test_y)
        assert result["k"] == k and result["top1"] == pytest.approx(expected, abs=4)  # other ties
    assert abs(found[0]["top1"] - found[3]["top1"]) <= 2  # half precision


def test_named_knn_protocols_set_options(splits, tmp_path):
    np.savez(tmp_path / "f.npz", **splits)
    majority, weighted = probe(tmp_path / "f.npz", protocols=("knn", "knn_weighted"))
    assert majority["predicted"] == knn_probe(**splits, k=5)["predicted"]
    expected = knn_probe(**splits, k=200, vote="similarity", temperature=0.1)
    assert weighted["predicted"] == expected["predicted"] and weighted["k"] == 200


def test_label_ids_may_be_any_integers(splits, tmp_path):
    def scores(ids):
        arrays = splits | {key: ids[splits[key]] for key in ("train_y", "test_y")}
        np.savez(tmp_path / "f.npz", **arrays)
        (result,) = probe(tmp_path / "f.npz", protocols=("lbfgs",), l2=(1e-1, 1e-2))
        return result | {"seconds_probe": 0}

    ids = np.array([7, 2**40, 2**62])
    assert scores(ids) == scores(np.arange(3)) | {"classes": ids.tolist()}
