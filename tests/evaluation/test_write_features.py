"""Files of features: what `hypersphere_jax.load` returns, with labels and file names."""

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import hypersphere_jax as hj
from hypersphere_jax import cli, data
from hypersphere_jax.configs import DataConfig, FeaturesConfig, MetricsConfig
from hypersphere_jax.evaluation import measure_runs, write_features
from hypersphere_jax.evaluation.feature_files import read_splits


@pytest.fixture(scope="module")
def encoder(image_run):
    return hj.load(image_run)


@pytest.fixture
def one_encoder(encoder, monkeypatch):
    """Load the same encoder each time."""
    monkeypatch.setattr(write_features, "load", lambda *of, **options: encoder)


@pytest.fixture(scope="module")
def digits():
    return data.load(DataConfig())


@pytest.fixture
def files(tmp_path, digits):
    """A folder of 12 images without splits: of class a the first ten, of class b the others."""
    names = [f"{'ab'[i // 10]}/{i:02}.png" for i in range(12)]
    paths = [tmp_path / "images" / name for name in names]
    for image, path in zip(digits.test.images, paths, strict=False):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[..., 0]).save(path)
    return paths


def written(image_run, out, **options):
    """What the verb says of a file, and the .csv file beside it."""
    said, table = write_features.run_features(FeaturesConfig(str(image_run), out, **options)), []
    if out.suffix == ".npy":
        with open(out.with_suffix(".csv"), newline="") as stream:
            table = list(csv.DictReader(stream))
    return said, table


def test_of_the_runs_own_images(encoder, image_run, digits, tmp_path, capsys):
    out = tmp_path / "z.npy"
    assert cli.main(["features", str(image_run), "--split", "test", "--out", str(out)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert "[397, 6]" in said[0] and str(out) in said[1] and str(out.with_suffix(".csv")) in said[1]
    x = np.load(out)
    assert x.dtype == np.float32
    np.testing.assert_array_equal(x, encoder(digits.test.images))
    with open(out.with_suffix(".csv"), newline="") as stream:
        table = list(csv.DictReader(stream))
    assert [int(row["label"]) for row in table] == digits.test.labels.tolist()
    assert list(table[0]) == ["label", "class"]


def test_layers_are_pooled_or_flattened(encoder, one_encoder, image_run, digits, tmp_path):
    np.save(tmp_path / "images.npy", digits.test.images[:12])
    maps = encoder(digits.test.images[:12], layer="conv2")
    for pool, expected in (("none", maps.reshape(12, -1)), ("mean", maps.mean(axis=(1, 2)))):
        options = {"images": str(tmp_path / "images.npy"), "layer": "conv2", "pool": pool}
        said, table = written(image_run, tmp_path / f"{pool}.npy", **options)
        np.testing.assert_allclose(np.load(tmp_path / f"{pool}.npy"), expected, rtol=1e-6)
        lengths = np.linalg.norm(expected, axis=1)
        np.testing.assert_allclose(said.norms, [lengths.min(), lengths.max()], rtol=1e-5)
        assert said.shapes == {"": expected.shape}
        assert [row["label"] for row in table] == ["-1"] * 12 and not said.is_labelled


def test_splits_for_probe_and_metrics(encoder, one_encoder, image_run, digits, tmp_path):
    images, labels, parts = digits.test.images, digits.test.labels, (slice(12), slice(12, 22))
    arrays = {
        f"{split}_{what}": array[rows]
        for split, rows in zip(("train", "test"), parts, strict=True)
        for what, array in (("images", images), ("labels", labels))
    }
    np.savez(tmp_path / "images.npz", **arrays)
    options = {"images": str(tmp_path / "images.npz")}
    said, _ = written(image_run, tmp_path / "both.npz", **options)
    train_x, train_y, test_x, test_y = read_splits(tmp_path / "both.npz")
    np.testing.assert_array_equal(train_x, encoder(images[:12]))
    np.testing.assert_array_equal(test_x, encoder(images[12:22]))
    assert (*train_y, *test_y) == (*labels[:22],)
    assert said.shapes == {"train": (12, 6), "test": (10, 6)} and said.is_labelled
    _, table = written(image_run, tmp_path / "both.npy", **options)
    np.testing.assert_array_equal(np.load(tmp_path / "both.npy"), [*train_x, *test_x])
    assert [row["split"] for row in table] == ["train"] * 12 + ["test"] * 10

    written(image_run, tmp_path / "one.npz", **options, split="train")
    _, inputs = measure_runs._open_file(MetricsConfig(str(tmp_path / "one.npz")))
    np.testing.assert_array_equal(inputs.x, train_x)
    np.testing.assert_array_equal(inputs.labels, train_y)
    with pytest.raises(hj.UserError, match="features"):
        measure_runs._open_file(MetricsConfig(str(tmp_path / "both.npz")))


def test_of_files_with_their_names(encoder, image_run, files, tmp_path):
    """All of them in their order, also without splits; unreadable ones are told, or left out."""
    images, out = str(tmp_path / "images"), tmp_path / "z.npz"
    written(encoder.save(tmp_path / "saved"), out, images=images)
    with np.load(out) as found:
        np.testing.assert_array_equal(found["features"], encoder(files))
        assert found["files"].tolist() == list(map(str, files))
        assert found["labels"].tolist() == [0] * 10 + [1, 1]
        assert found["names"].tolist() == ["a", "b"]


def test_killed_while_the_table_is_written(one_encoder, image_run, files, tmp_path, monkeypatch):
    """The same command then works."""
    out, folder = tmp_path / "z.npy", str(files[0].parents[1])

    class Killed:
        def __init__(self, stream):
            self.stream = stream

        def writerows(self, rows):
            self.stream.write("label,")
            self.stream.flush()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(write_features.csv, "writer", Killed)
        patch.setattr(Path, "unlink", lambda *_, **__: None)
        written(image_run, out, images=folder)
    assert not out.exists()
    table = written(image_run, out, images=folder)[1]
    assert [row["file"] for row in table] == [str(file) for file in files]


def test_unreadable_images(encoder, one_encoder, image_run, files, tmp_path):
    files[1].write_bytes(files[0].read_bytes()[:60])
    images, out = str(tmp_path / "images"), tmp_path / "z.npy"
    with pytest.raises(hj.UserError, match=r"a/01\.png.*bad_images=skip"):
        written(image_run, out, images=images)
    assert not out.exists()
    said, table = written(image_run, out, images=images, bad_images="skip")
    left = [files[0], *files[2:]]
    assert said.shapes == {"": (11, 6)} and [row["file"] for row in table] == list(map(str, left))
    assert [row["class"] for row in table] == ["a"] * 9 + ["b"] * 2
    np.testing.assert_array_equal(np.load(out), encoder(left))
    said, (row,) = written(image_run, tmp_path / "one.npy", images=str(files[0]))
    assert row == {"label": "-1", "file": str(files[0])} and not said.is_labelled


def test_refused(encoder, image_run, text_run, tmp_path):
    for run, options, said in (
        (text_run, {}, "of sentences, not of images"),
        (image_run, {"layer": "fc7"}, "layer=fc7"),
        (image_run, {"images": str(tmp_path / "nowhere.zip")}, "no file or folder"),
        (image_run, {"images": str(tmp_path / "notes.txt")}, "is text"),
        ("nowhere", {}, "no run 'nowhere'"),
    ):
        with pytest.raises(hj.UserError, match=said):
            written(run, tmp_path / "z.npy", **options)
    (tmp_path / "z.csv").write_text("mine")
    with pytest.raises(hj.UserError, match=r"z\.csv"):
        written(image_run, tmp_path / "z.npy")
    assert (tmp_path / "z.csv").read_text() == "mine"
    with pytest.raises(hj.UserError, match=r"must be a file that ends in \.npy or \.npz"):
        written(image_run, tmp_path / "z.csv")
