"""Files of features equal what `hypersphere_jax.load` returns."""

import csv

import jax
import numpy as np
import pytest
from PIL import Image

import hypersphere_jax as hj
from hypersphere_jax import cli, data, models
from hypersphere_jax.configs import (
    DataConfig,
    FeaturesConfig,
    MetricsConfig,
    PretrainConfig,
    ProbeConfig,
)
from hypersphere_jax.evaluation.measure_runs import run_metrics
from hypersphere_jax.evaluation.probe_runs import read_splits, run_probe
from hypersphere_jax.evaluation.write_features import run_features


@pytest.fixture(scope="module")
def encoder(image_run):
    return hj.load(image_run)


@pytest.fixture(scope="module")
def digits():
    return data.load(DataConfig())


@pytest.fixture
def files(tmp_path, digits):
    """Write 12 images without splits: the first ten of class a, the others of class b."""
    paths = [tmp_path / "images" / "ab"[i // 10] / f"{i:02}.png" for i in range(12)]
    for image, path in zip(digits.test.images, paths, strict=False):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[..., 0]).save(path)
    return paths


def assert_close(found, expected):
    """Compare features of unit norm; batches of other sizes are rounded differently."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def write(run, out, **options):
    return run_features(FeaturesConfig(str(run), out, **options))


def read_table(out):
    with open(out.with_suffix(".csv"), newline="") as stream:
        return list(csv.DictReader(stream))


def test_features_of_the_runs_own_images(encoder, image_run, digits, tmp_path, capsys):
    out = tmp_path / "z.npy"
    assert cli.main(["features", str(image_run), "--split", "test", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "[397, 6]" in said and str(out) in said and str(out.with_suffix(".csv")) in said
    assert_close(np.load(out), encoder(digits.test.images))
    table = read_table(out)
    assert [int(row["label"]) for row in table] == digits.test.labels.tolist()
    assert list(table[0]) == ["label", "class"]


def test_both_splits_for_probe_and_one_for_metrics(encoder, image_run, digits, tmp_path):
    images, labels = digits.test.images, digits.test.labels
    arrays = {"train_images": images[:30], "train_labels": labels[:30]}
    arrays |= {"test_images": images[30:50], "test_labels": labels[30:50]}
    np.savez(tmp_path / "images.npz", **arrays)
    options = {"images": str(tmp_path / "images.npz")}
    both, one = tmp_path / "both.npz", tmp_path / "one.npz"
    assert write(image_run, both, **options).shapes == {"train": (30, 6), "test": (20, 6)}
    train_x, train_y, test_x, test_y = read_splits(both)
    assert_close(train_x, encoder(images[:30]))
    assert_close(test_x, encoder(images[30:50]))
    assert [*train_y, *test_y] == labels[:50].tolist()
    assert run_probe(ProbeConfig((str(both),), protocols=("knn",)))[0]["n"] == 20
    write(image_run, one, **options, split="train")
    found = run_metrics(MetricsConfig(str(one), parts=("classes",)))
    assert found["n"] == 30 and sum(found["n_by_class"]) == 30
    with pytest.raises(hj.UserError, match="features"):
        run_metrics(MetricsConfig(str(both)))


def test_features_of_files_with_their_names(encoder, files, tmp_path):
    out = tmp_path / "z.npz"
    write(encoder.save(tmp_path / "saved"), out, images=str(tmp_path / "images"))
    with np.load(out) as found:
        assert_close(found["features"], encoder(files))
        assert found["files"].tolist() == list(map(str, files))
        assert found["labels"].tolist() == [0] * 10 + [1, 1]
        assert found["names"].tolist() == ["a", "b"]


def test_features_of_one_file_with_its_name(encoder, files, tmp_path):
    out = tmp_path / "z.npy"
    write(encoder.save(tmp_path / "saved"), out, images=str(files[3]))
    assert_close(np.load(out), encoder(files[3:4]))
    assert [row["file"] for row in read_table(out)] == [str(files[3])]


def test_unreadable_images_are_refused_or_left_out(encoder, image_run, files, tmp_path):
    files[1].write_bytes(files[0].read_bytes()[:60])
    images, out = str(tmp_path / "images"), tmp_path / "z.npy"
    with pytest.raises(hj.UserError, match=r"a/01\.png"):
        write(image_run, out, images=images)
    assert not out.exists()
    assert write(image_run, out, images=images, bad_images="skip").shapes == {"": (11, 6)}
    readable = [files[0], *files[2:]]
    assert [row["file"] for row in read_table(out)] == list(map(str, readable))
    assert_close(np.load(out), encoder(readable))


@pytest.mark.parametrize(
    ("in_channels", "bits", "channels"), [(4, 0, 3), (2, 0, 4), (3, 2, 3), (1, 0, 2), (3, 0, 4)]
)
def test_images_with_other_channels_are_refused(in_channels, bits, channels, tmp_path):
    """Random bits are channels too."""
    config = PretrainConfig(in_channels=in_channels, bits=bits, width=0.1, dim=3, image_size=8)
    config = config.replace(recipe="none")
    apply, params, stats = models.create(config, jax.random.key(0))
    encoder = hj.Encoder(config, params, stats, 0, apply, "here")
    np.save(tmp_path / "images.npy", np.zeros((2, 8, 8, channels), np.uint8))
    images = str(tmp_path / "images.npy")
    with pytest.raises(hj.UserError, match="bits=2" if bits else f"{channels} channels"):
        write(encoder.save(tmp_path / "saved"), tmp_path / "z.npy", images=images)


def test_files_of_users_are_not_replaced(image_run, tmp_path):
    table = tmp_path / "z.csv"
    table.write_text("mine")
    for out in (tmp_path / "z.npy", table):
        with pytest.raises(hj.UserError, match="csv"):
            write(image_run, out)
    assert table.read_text() == "mine"
