"""`run.py data`: what it counts, prints and draws."""

import numpy as np
from data_cases import encoded, why, write
from PIL import Image

from hypersphere_jax import data, datasheet, plots
from hypersphere_jax.config import DataConfig, LookedAt
from hypersphere_jax.data.pipeline import Bad
from hypersphere_jax.data.statistics import statistics


def animals(root):
    """10 cats and 3 dogs in two sizes, and a few of these for testing."""
    rng, files = np.random.default_rng(0), {}
    for folder, count in (("train/cat", 10), ("train/dog", 3), ("test/cat", 2), ("test/dog", 2)):
        for number in range(count):
            shape = (6, 9, 3) if number % 2 else (5, 5, 3)
            pixels = rng.integers(0, (256, 200, 100), shape).astype(np.uint8)
            files[f"{folder}/{number}.png"] = encoded(Image.fromarray(pixels))
    return write(root / "animals", files)


def test_statistics_are_those_of_all_pixels(tmp_path, monkeypatch):
    source = data.load(DataConfig(str(animals(tmp_path)))).train
    found = statistics(source, Bad(source, "error"))
    pixels = np.concatenate([source[i]["image"].reshape(-1, 3) for i in range(13)]) / 255
    np.testing.assert_allclose(found.mean, pixels.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.std, pixels.std(0), rtol=1e-10)
    assert found.class_counts == {"cat": 10, "dog": 3} and found.n == found.read == 13
    assert (found.smallest, found.largest) == ((5, 5, 3), (6, 9, 3))
    # A sample is spread evenly over the split; labels are all counted.
    labels, read, item = np.arange(1400) % 3 - 1, [], data.Arrays.__getitem__
    source = data.Arrays(np.zeros((1400, 2, 2, 1), np.uint8), labels, ("a", "b"), "")
    monkeypatch.setattr(data.Arrays, "__getitem__", lambda it, i: read.append(i) or item(it, i))
    found = statistics(source, Bad(source, "error"), 14)
    assert (found.class_counts, found.unlabelled) == ({"a": 467, "b": 466}, 467)
    assert sorted(read) == list(range(0, 1400, 100)) and (found.read, found.n) == (14, 1400)


def test_inspect_and_list(capsys, tmp_path):
    name, cut = str(animals(tmp_path)), tmp_path / "animals/train/cat/4.png"
    cut.write_bytes(cut.read_bytes()[:60])
    assert "cat/4.png" in why(datasheet.inspect, LookedAt(name=name))
    datasheet.inspect(LookedAt(name=name, bad_images="skip"))
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["train", "13", "0", "2", "3", "to", "10", "5x5x3", "to", "6x9x3"] in rows
    assert ["cat", "10", "2"] in rows and ["dog", "3", "2"] in rows
    assert ["train", "12", "1"] in [row[:3] for row in rows]  # one of 13 is unreadable
    datasheet.known(str(tmp_path))
    assert "not prepared" in capsys.readouterr().out


def test_show_draws_two_views_of_each_image(tmp_path, monkeypatch):
    name, drawn = str(animals(tmp_path)), []
    monkeypatch.setattr(plots, "view_sheet", lambda *a: drawn.append(a))
    config = LookedAt(name=name, recipe="moco_v2:crop_flip")
    datasheet.show(config, image_size=12, count=5, out=tmp_path / "sheet.png")
    _, names, shown, views, path = drawn[0]
    assert names == ["cat", "cat", "cat", "cat", "dog"] and path == tmp_path / "sheet.png"
    # As eyes need them: not normalized. The two views differ.
    assert views.shape == (5, 2, 12, 12, 3) and views.min() >= 0 and views.max() <= 1
    assert np.abs(views[:, 0] - views[:, 1]).max() > 0.1
    datasheet.show(LookedAt(name="digits", recipe="none", bits=2), count=3, out=path)
    _, _, shown, views, _ = drawn[1]
    np.testing.assert_allclose(views, np.stack([shown, shown], axis=1), atol=1e-6)
