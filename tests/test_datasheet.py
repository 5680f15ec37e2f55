"""`run.py data`: what it counts, prints and draws."""

import json

import numpy as np
import pytest
from PIL import Image

from hypersphere_jax import data, datasheet, plots
from hypersphere_jax.config import DataConfig, LookedAt, UserError
from hypersphere_jax.data.pipeline import Bad
from hypersphere_jax.data.statistics import statistics


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """10 cats and 3 dogs in two sizes; a few of these are for testing; one cat is cut short."""
    root = tmp_path_factory.mktemp("animals")
    rng = np.random.default_rng(0)
    for split, counts in (("train", (10, 3)), ("test", (2, 2))):
        for name, count in zip(("cat", "dog"), counts, strict=True):
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                shape = (6, 9, 3) if number % 2 else (5, 5, 3)
                pixels = rng.integers(0, 256, shape, dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return root


@pytest.fixture
def damaged(images):
    cut = images / "train" / "cat" / "4.png"
    whole = cut.read_bytes()
    cut.write_bytes(whole[:60])
    yield images
    cut.write_bytes(whole)


def test_statistics_are_those_of_all_pixels(images):
    source = data.load(DataConfig(name=str(images))).train
    found = statistics(source, Bad(source, "error"))
    pixels = np.concatenate([source[i]["image"].reshape(-1, 3) for i in range(13)]) / 255
    np.testing.assert_allclose(found.mean, pixels.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.std, pixels.std(0), rtol=1e-10)
    assert found.class_counts == {"cat": 10, "dog": 3} and found.n == found.read == 13
    assert (found.smallest, found.largest) == ((5, 5, 3), (6, 9, 3))
    assert found.unlabelled == found.unreadable == 0 and found.images_per_s > 0


def test_a_sample_is_spread_over_the_split():
    digits = data.load(DataConfig()).train
    read = []

    class Watched(type(digits)):
        def __getitem__(self, i):
            read.append(i)
            return super().__getitem__(i)

    digits.__class__ = Watched
    found = statistics(digits, Bad(digits, "error"), 14)
    assert sorted(read) == list(range(0, 1400, 100)) and found.read == 14 and found.n == 1400


def test_inspect(damaged, capsys, tmp_path):
    with pytest.raises(UserError, match=r"cat/4\.png.*--bad-images skip"):
        datasheet.inspect(LookedAt(name=str(damaged)))
    config = LookedAt(name=str(damaged), bad_images="skip")
    datasheet.inspect(config, out=tmp_path / "found.json")
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 100
    rows = [line.split() for line in text.splitlines()]
    assert ["train", "13", "0", "2", "3", "to", "10", "5x5x3", "to", "6x9x3"] in rows
    assert ["cat", "10", "2"] in rows and ["dog", "3", "2"] in rows
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["train"]["unreadable"] == 1 and found["train"]["read"] == 12
    assert found["test"]["class_counts"] == {"cat": 2, "dog": 2}


def test_show_draws_the_views(images, tmp_path, monkeypatch, capsys):
    drawn = []
    original = plots.view_sheet
    monkeypatch.setattr(plots, "view_sheet", lambda *a: drawn.append(a) or original(*a))
    config = LookedAt(name=str(images), recipe="moco_v2")
    datasheet.show(config, image_size=12, count=5, out=tmp_path / "sheet.png")
    _, names, shown, views, path = drawn[0]
    assert capsys.readouterr().out.strip() == str(path)
    assert names == ["cat", "cat", "cat", "cat", "dog"] and len(shown) == 5
    assert views.shape == (5, 2, 12, 12, 3)
    # As eyes need them: not normalized. The two views differ.
    assert views.min() >= 0 and views.max() <= 1
    assert np.abs(views[:, 0] - views[:, 1]).max() > 0.1
    picture = np.asarray(Image.open(path))
    assert picture.std() > 20


def test_show_without_randomness_shows_the_image(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(plots, "view_sheet", lambda *a: drawn.append(a))
    datasheet.show(LookedAt(name="digits", recipe="none", bits=2), count=3, out=tmp_path / "s.png")
    _, _, shown, views, _ = drawn[0]
    digits = data.load(DataConfig(bits=2)).train
    for view in (0, 1):
        np.testing.assert_allclose(views[:, view], np.stack(shown), atol=1e-6)
    np.testing.assert_allclose(shown[0], digits[0]["image"] / 255)
    assert views.shape == (3, 2, 8, 8, 3)


def test_mistakes(images):
    for options, message in (
        ({"count": 0}, "--count 0"),
        ({"image_size": 2}, "--image-size 2"),
    ):
        with pytest.raises(UserError, match=message):
            datasheet.show(LookedAt(name=str(images)), **options)
    with pytest.raises(UserError, match=r"--recipe moca: unknown recipe.*did you mean 'moco'"):
        datasheet.show(LookedAt(name=str(images), recipe="moca"), image_size=8)
    with pytest.raises(UserError, match="--sample -1"):
        datasheet.inspect(LookedAt(), sample=-1)


def test_list_names_what_is_there(tmp_path, capsys):
    datasheet.known(str(tmp_path))
    lines = capsys.readouterr().out.splitlines()
    for name in data.NAMED:
        (line,) = [line for line in lines if line.split()[:1] == [name]]
        expected = data.EMBEDDED.get(name, "not prepared")
        assert line.strip().endswith(expected)
    assert any(str(tmp_path) in line for line in lines)
