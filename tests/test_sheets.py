"""Sheets of a run's images: what is shown of which image, and what may be missing."""

import dataclasses
import logging
from unittest.mock import Mock

import numpy as np
import pytest

import hypersphere_jax as hj
from hypersphere_jax import data, plots, sheets
from hypersphere_jax.files import read_json
from hypersphere_jax.training import run_folder


def test_neighbours_are_the_nearest_training_images(image_run, monkeypatch):
    drawn = []
    monkeypatch.setattr(plots, "neighbour_sheet", lambda *a: drawn.append(a))
    encoder, dataset = run_folder.load_encoder(image_run), run_folder.load_data(image_run)
    sheets.draw_neighbours(encoder, dataset)
    features, train, test = hj.load(image_run), dataset.train, dataset.test
    cosines = features(test.images) @ features(train.images).T
    (title, rows, _), shown = drawn[0], []
    assert "1,400 training images" in title and len(rows) == sheets.QUERIES
    for (picture, name, *of_query), *neighbours in rows:
        query = int(np.argmin(np.abs(test.images / 255 - picture).sum((1, 2, 3))))
        assert name == str(test.labels[query]) and of_query == [None, None]
        nearest = np.argsort(-cosines[query], kind="stable")[: sheets.NEAREST]
        assert [cosine for *_, cosine in neighbours] == pytest.approx(cosines[query][nearest])
        for (image, label, right, _), place in zip(neighbours, nearest, strict=True):
            np.testing.assert_array_equal(image, train.images[place] / 255)
            assert label == str(train.labels[place]) and right == (label == name)
        shown.append(name)
    assert len(set(shown)) == sheets.QUERIES  # spread over the classes
    # Without a test split and labels: of the training images, none its own neighbour.
    bare = data.Arrays(train.images[:50], np.full(50, -1), (), "bare")
    sheets.draw_neighbours(encoder, data.Dataset(bare, None, bare, "digits"))
    for (picture, *_), *neighbours in drawn[1][1]:
        assert all(right is None for _, _, right, _ in neighbours)
        assert all(np.abs(image - picture).max() > 0 for image, *_ in neighbours)


def test_views_are_of_the_images_that_train(image_run, monkeypatch):
    drawn, asked = [], []
    monkeypatch.setattr(plots, "view_sheet", lambda *a: drawn.append(a))

    def views(source, images, recipe, *options):  # one's own may have any values
        asked.append((len(source), recipe, *options))
        return np.stack([np.full((len(images), 8, 8, 1), value) for value in (-1.0, 3.0)], axis=1)

    monkeypatch.setattr(sheets, "random_views", views)
    config, dataset = run_folder.read_config(image_run), run_folder.load_data(image_run)
    other = data.Arrays(np.zeros((9, 90, 200, 3), np.uint8), np.zeros(9, int), ("zero",), "")
    sheets.draw_views(config, dataset._replace(pretrain=other))
    assert asked[0][0] == 9 and asked[0][2:] == (8, config.seed, 0)
    title, names, images, shown, _ = drawn[0]
    assert "recipe digits, 8 pixels" in title and names == ["zero"] * 9
    assert {image.shape for image in images} == {(sheets.SIDE, sheets.SIDE, 3)}
    assert shown[:, 0].max() == 0 and shown[:, 1].min() == 1


def test_images_without_a_label_have_names_of_files():
    files = ["in/a.png", "in.zip/2024-holiday-000123.jpg"]
    source = [{"image": None, "label": -1, "file": file} for file in files]
    _, names = sheets.read_images([*source, {"image": None, "label": -1}], range(3), Mock())
    assert names == ["a", "…iday-000123", "image 2"]


def test_what_cannot_be_drawn_is_warned_of(image_run, tmp_path, monkeypatch, caplog):
    drawn = []
    monkeypatch.setattr(sheets, "draw_views", lambda *a: drawn.append(a[-1].name))
    monkeypatch.setattr(sheets, "draw_neighbours", lambda *a: drawn.append(a[-1].name))
    config = run_folder.read_config(image_run)
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / sheets.VIEWS).touch()
    for name in ("config.json", "checkpoints"):
        (tmp_path / name).symlink_to(image_run / name)
    sheets.draw(tmp_path, redraw=False)
    sheets.draw(tmp_path)
    assert drawn == [sheets.NEIGHBOURS, sheets.VIEWS, sheets.NEIGHBOURS]
    assert not caplog.records
    lost = dataclasses.replace(config, source="my_images")
    with caplog.at_level(logging.WARNING):
        sheets.draw(tmp_path, lost)
    assert "your own my_images" in caplog.text and len(drawn) == 3


def test_nearest_sentences(text_run, tmp_path, monkeypatch):
    """By the features that are given; the words are those of the corpus."""
    encoder, dataset = run_folder.load_encoder(text_run), run_folder.load_data(text_run)
    dataset, train = dataset._replace(test=None), dataset.train
    n = len(train)
    angles = np.linspace(0, 3, n)
    features = 3 * np.stack([np.cos(angles), np.sin(angles)], axis=1)  # of any norm
    asked = sheets.spread(n, sheets.QUERIES)
    given = np.concatenate([features, features[asked]]), np.arange(n + len(asked))
    monkeypatch.setattr(sheets, "_outputs", lambda *a: given)
    sheets.write_sentences(encoder, dataset, tmp_path / "table.json")
    rows = read_json(tmp_path / "table.json")["rows"]
    assert [row[0] for row in rows[::3]] == [train.text(i) for i in asked]
    assert [row[1] for row in rows[:3]] == [train.text(i) for i in (1, 2, 3)]
    assert {row[1] for row in rows[3:5]} == {train.text(asked[1] + i) for i in (-1, 1)}
    assert [row[2] for row in rows[:3]] == pytest.approx(np.cos(angles[1:4]))
