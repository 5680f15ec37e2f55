"""From files of features, anybody's, to scores; mistakes in them."""

import re

import numpy as np
import pytest
from probe_cases import asked

from hypersphere_jax.config import UserError
from hypersphere_jax.evaluation import probe


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
        squares = ((splits["test_x"][:, None] - splits["train_x"][None]) ** 2).sum(-1)
        nearest = splits["train_y"][np.argsort(squares, axis=1)[:, :k]]
        votes = (nearest[:, :, None] == np.arange(3)).sum(1)
        clear = np.sort(votes, axis=1)[:, -1] > np.sort(votes, axis=1)[:, -2]
        right = (votes.argmax(1) == splits["test_y"]) | ~clear
        assert 100 * (right & clear).mean() <= result["top1"] <= 100 * right.mean()
    assert abs(found[0]["top1"] - found[3]["top1"]) <= 2  # half precision
    with pytest.raises(UserError, match=r"--layers is for runs, and .*f\.npz' holds features"):
        probe.probe(asked(tmp_path / "f.npz", layers=("fc7",)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test_y": None}, "lacks test_y"),
        (
            {"train_y": np.zeros(300)},
            "train_y holds float64 numbers, no class labels: save them as integers",
        ),
        ({"test_y": np.zeros(100, bool)}, "test_y holds booleans, .*: save them as integers"),
        ({"test_y": np.array(["a"] * 100)}, "test_y holds <U1, .*: save them as integers"),
        ({"test_y": np.zeros(99, int)}, r"test_y must be .*\[100, 5\], but its shape is \[99\]"),
        (
            {"train_x": np.zeros((0, 5)), "train_y": np.zeros(0, int)},
            r"train_x has no rows, its shape is \[0, 5\]",
        ),
        ({"test_y": np.full(100, -1)}, "go from -1 to -1"),
        ({"train_x": np.full((300, 5), np.nan)}, "300 of 300 rows hold NaN"),
        ({"train_x": np.zeros((300, 4))}, "train features have 4 dimensions, test features 5"),
        ({"train_y": np.ones(300, int)}, "train labels: only class 1"),
        ({"test_x": np.array([{}] * 100)}, "not a readable .np. file"),
    ],
)
def test_mistakes_in_features(splits, tmp_path, change, message):
    arrays = {name: array for name, array in (splits | change).items() if array is not None}
    np.savez(tmp_path / "f.npz", **arrays)
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    for place in (tmp_path / "f.npz", tmp_path):
        failures = []
        assert probe.probe(asked(place), failed=failures.append) == []
        assert re.search(message, failures[0]) and str(place) in failures[0]


@pytest.mark.parametrize("protocol", ["lbfgs", "knn"])
def test_label_ids_may_be_any_numbers(splits, tmp_path, protocol):
    """The scores are those of labels from 0 on, and the ids stand beside them."""
    ids = {
        "far": np.array([999_000, 999_001, 999_002], np.uint64),
        "apart": np.array([7, 2**40, 2**62]),
        "plain": np.arange(3),
    }
    found = {}
    for name, of in ids.items():
        given = splits | {key: of[splits[key]] for key in ("train_y", "test_y")}
        np.savez(tmp_path / f"{name}.npz", **given)
        (found[name],) = probe.probe(asked(tmp_path / f"{name}.npz", protocols=(protocol,)))
    plain = found.pop("plain")
    assert "classes" not in plain
    for name, result in found.items():
        assert result["classes"] == ids[name].tolist()
        changed = {"classes", "features", "seconds", "seconds_probe"}
        for key in plain.keys() - changed:
            assert result[key] == plain[key], key


def test_a_test_row_of_a_class_that_was_not_trained_on_changes_no_choice(splits, tmp_path):
    paths = [tmp_path / name for name in ("few.npz", "more.npz")]
    labels = np.array([10, 30, 40])
    few = splits | {key: labels[splits[key]] for key in ("train_y", "test_y")}
    row = {"test_x": splits["test_x"][:1], "test_y": [20]}
    more = few | {key: np.concatenate([few[key], row[key]]) for key in row}
    for path, arrays in zip(paths, (few, more), strict=True):
        np.savez(path, **arrays)
    without, with_row = probe.probe(asked(*paths, protocols=("lbfgs",)))
    assert with_row["classes"] == [10, 20, 30, 40] and with_row["per_class"][1] == 0.0
    for key in ("chosen", "grid", "steps", "gradient_norm", "C", "valid_top1"):
        assert with_row[key] == without[key], key
    assert with_row["top1"] == pytest.approx(without["top1"] * 100 / 101)


def test_files_that_hold_no_features(splits, tmp_path):
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
