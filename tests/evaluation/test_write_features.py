"""Files of features equal what `hypersphere_jax.load` returns."""

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

DIGITS = data.load(DataConfig()).test


@pytest.fixture(scope="module")
def encoder(image_run):
    return hj.load(image_run)


@pytest.fixture
def files(tmp_path):
    """Write 12 images without splits: the first ten of class a, the others of class b."""
    paths = [tmp_path / "images" / "ab"[i // 10] / f"{i:02}.png" for i in range(12)]
    for image, path in zip(DIGITS.images, paths, strict=False):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[..., 0]).save(path)
    return paths


def assert_close(found, expected):
    """Compare features of unit norm; batches of other sizes are rounded differently."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def write(run, out, **options):
    return run_features(FeaturesConfig(str(run), out, **options))


def test_features_of_the_runs_own_images(encoder, image_run, tmp_path, capsys):
    out = tmp_path / "z.npy"
    arguments = ["features", str(image_run), "--split", "test", "--out", str(out)]
    assert cli.main(arguments) == 0
    assert "[397, 6]" in capsys.readouterr().out
    assert_close(np.load(out), encoder(DIGITS.images))
    assert cli.main(arguments) == 2  # arrays are not overwritten
    assert str(out) in capsys.readouterr().err


def test_both_splits_for_probe_and_one_for_metrics(encoder, image_run, tmp_path):
    images, labels = DIGITS.images, DIGITS.labels
    arrays = {"train_images": images[:30], "train_labels": labels[:30]}
    arrays |= {"test_images": images[30:50], "test_labels": labels[30:50]}
    np.savez(tmp_path / "images.npz", **arrays)
    options = {"images": str(tmp_path / "images.npz")}
    both, one, rows = tmp_path / "both.npz", tmp_path / "one.npz", tmp_path / "rows.npy"
    write(image_run, both, **options)
    train_x, train_y, test_x, test_y = read_splits(both)
    assert_close(train_x, encoder(images[:30]))
    assert_close(test_x, encoder(images[30:50]))
    assert [*train_y, *test_y] == labels[:50].tolist()
    assert run_probe(ProbeConfig((str(both),), protocols=("knn",)))[0]["n"] == 20
    write(image_run, rows, **options)
    assert_close(np.load(rows), [*train_x, *test_x])
    write(image_run, one, **options, split="train")
    found = run_metrics(MetricsConfig(str(one), parts=("classes",)))
    assert found["n"] == 30 and sum(found["n_by_class"]) == 30
    with pytest.raises(hj.UserError, match="features"):
        run_metrics(MetricsConfig(str(both)))


@pytest.mark.parametrize("readable", [True, False])
def test_features_of_files_with_their_names(readable, encoder, files, tmp_path):
    """An unreadable file is refused or left out."""
    saved, out = encoder.save(tmp_path / "saved"), tmp_path / "z.npz"
    options = {"images": str(tmp_path / "images")}
    if not readable:
        files[1].write_bytes(files[0].read_bytes()[:60])
        with pytest.raises(hj.UserError, match=r"a/01\.png"):
            write(saved, out, **options)
        assert not out.exists()
        options["bad_images"] = "skip"
        del files[1]
    write(saved, out, **options)
    with np.load(out) as found:
        assert_close(found["features"], encoder(files))
        assert found["files"].tolist() == list(map(str, files))
        assert found["labels"].tolist() == [0] * (len(files) - 2) + [1, 1]
        assert found["names"].tolist() == ["a", "b"]


def test_features_of_one_file(encoder, files, tmp_path):
    out = tmp_path / "z.npy"
    write(encoder.save(tmp_path / "saved"), out, images=str(files[3]))
    assert_close(np.load(out), encoder(files[3:4]))


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
