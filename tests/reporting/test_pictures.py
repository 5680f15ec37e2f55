"""Pictures of a run's data: views and neighbours against oracles, and what may be missing."""

import dataclasses
import logging
import shutil

import numpy as np
import pytest
from PIL import Image

import hypersphere_jax as hj
from hypersphere_jax import data
from hypersphere_jax.configs import DataConfig
from hypersphere_jax.data.pipeline import BadImages
from hypersphere_jax.reporting import pictures, plots
from hypersphere_jax.training import run_dir
from hypersphere_jax.utils.files import read_json

NAMES = ("augmented_views.png", "nearest_neighbours.png")


@pytest.fixture
def drawn(monkeypatch):
    """Return the arguments of each figure, none of which is drawn."""
    calls = []
    for name in ("view_sheet", "neighbour_sheet"):
        monkeypatch.setattr(plots, name, lambda *given: calls.append(given))
    return calls


def test_neighbours_have_the_highest_cosine(image_run, drawn):
    encoder, dataset = run_dir.load_encoder(image_run), run_dir.load_data(image_run)
    pictures.draw_neighbours(encoder, dataset)
    features, train, test = hj.load(image_run), dataset.train, dataset.test
    cosines = features(test.images) @ features(train.images).T
    rows = drawn[0][1]
    assert len({row[0].text for row in rows}) == len(rows) == 8  # spread over the classes
    for query, *neighbours in rows:
        number = int(np.argmin(np.abs(test.images / 255 - query.image).sum((1, 2, 3))))
        assert (query.text, query.label) == (str(test.labels[number]), test.labels[number])
        nearest = np.argsort(-cosines[number], kind="stable")[:6]
        found = [tile.cosine for tile in neighbours]
        assert found == pytest.approx(cosines[number][nearest])
        for tile, index in zip(neighbours, nearest, strict=True):
            np.testing.assert_array_equal(tile.image, train.images[index] / 255)
            assert (tile.text, tile.label) == (str(train.labels[index]), train.labels[index])


def test_an_image_is_not_its_own_neighbour(image_run, drawn):
    """Without a test split the queries are training images, here without labels."""
    encoder, dataset = run_dir.load_encoder(image_run), run_dir.load_data(image_run)
    bare = data.Arrays(dataset.train.images[:50], np.full(50, -1), (), "bare")
    pictures.draw_neighbours(encoder, data.Dataset(bare, None, bare, "digits"))
    for query, *neighbours in drawn[0][1]:
        assert len(neighbours) == 6 and query.label == -1
        assert all(np.abs(tile.image - query.image).max() > 0 for tile in neighbours)


def test_views_are_of_the_images_that_train(image_run, drawn):
    encoder, dataset = run_dir.load_encoder(image_run), run_dir.load_data(image_run)
    pixels = np.random.default_rng(0).integers(0, 256, (9, 90, 200, 1), np.uint8)
    other = data.Arrays(pixels, np.zeros(9, int), ("zero",), "")
    pictures.draw_views(encoder, dataset._replace(pretrain=other))
    _, names, images, views, _ = drawn[0]
    assert names == ["zero"] * 9 and views.shape == (9, 2, 8, 8, 1)
    np.testing.assert_allclose(images, pixels / 255)
    assert views.min() >= 0 and views.max() <= 1
    assert np.abs(views[:, 0] - views[:, 1]).max() > 0.1


def test_images_without_a_label_are_named_after_their_files(tmp_path):
    for name in ("a", "2024-holiday-000123"):
        Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / f"{name}.png")
    source = data.load(DataConfig(str(tmp_path))).pretrain
    images, names = pictures.read_images(source, range(len(source)), BadImages(source, "error"))
    assert {image.shape for image in images} == {(4, 4, 3)}
    assert names and set(names) <= {"a", "2024-holiday-000123"}


def test_pictures_are_drawn_once_unless_asked(image_run, tmp_path):
    run = shutil.copytree(image_run, tmp_path / "run")
    pictures.draw_pictures(run)
    files = [run / "figures" / name for name in NAMES]
    for file in files:
        with Image.open(file) as picture:
            picture.load()
    files[0].write_bytes(b"kept")
    files[1].unlink()
    pictures.draw_pictures(run, redraw=False)
    assert files[0].read_bytes() == b"kept" and files[1].is_file()
    pictures.draw_pictures(run)
    assert files[0].read_bytes() != b"kept"


def test_missing_data_is_a_warning(image_run, tmp_path, caplog):
    run = shutil.copytree(image_run, tmp_path / "run")
    config = run_dir.read_config(run)
    lost = dataclasses.replace(config, source="my_images")
    with caplog.at_level(logging.WARNING):
        pictures.draw_pictures(run, lost)
    assert "my_images" in caplog.text


def test_nearest_sentences(text_run, tmp_path):
    """Neighbours are from the training split, in order, and never the query itself."""
    encoder, dataset = run_dir.load_encoder(text_run), run_dir.load_data(text_run)
    pictures.write_sentences(encoder, dataset._replace(test=None), tmp_path / "table.json")
    table = read_json(tmp_path / "table.json")
    train = {dataset.train.text(number) for number in range(len(dataset.train))}
    rows = table["rows"]
    assert len(rows) == 8 * 3 and all(query in train and text in train for query, text, _ in rows)
    for start in range(0, len(rows), 3):
        queries, _, cosines = zip(*rows[start : start + 3], strict=True)
        assert len(set(queries)) == 1 and list(cosines) == sorted(cosines, reverse=True)
        assert all(-1.001 <= cosine <= 1.001 for cosine in cosines)
