"""Pictures of a run's data: views and neighbours."""

import shutil

import numpy as np
import pytest
from PIL import Image

import hypersphere_jax as hj
from hypersphere_jax.reporting import pictures
from hypersphere_jax.training import run_dir
from hypersphere_jax.utils.files import read_json


def shown(figure):
    """Return image and title of each picture in a figure."""
    axes = [axes for axes in figure.axes if axes.images]
    return [(np.squeeze(a.images[0].get_array()), a.get_title()) for a in axes]


def test_neighbours_have_the_highest_cosine(image_run):
    encoder, dataset = run_dir.load_encoder(image_run), run_dir.load_data(image_run)
    found = shown(pictures.draw_neighbours(encoder, dataset))
    features, train, test = hj.load(image_run), dataset.train, dataset.test
    cosines = features(test.images) @ features(train.images).T
    assert len(found) == 8 * 7
    for start in range(0, len(found), 7):
        (query, title), *neighbours = found[start : start + 7]
        number = int(np.argmin(np.abs(test.images[..., 0] / 255 - query).sum((1, 2))))
        assert str(test.labels[number]) in title
        nearest = np.argsort(-cosines[number], kind="stable")[:6]
        for (image, title), index in zip(neighbours, nearest, strict=True):
            np.testing.assert_allclose(image, train.images[index, ..., 0] / 255)
            assert f"{cosines[number, index]:.2f}" in title


@pytest.mark.slow
def test_pictures_are_drawn_once_unless_asked(image_run, tmp_path):
    run = shutil.copytree(image_run, tmp_path / "run")
    pictures.draw_pictures(run)
    names = ("augmented_views.png", "nearest_neighbours.png")
    first, second = (run / "figures" / name for name in names)
    first.write_bytes(b"existing")
    second.unlink()
    pictures.draw_pictures(run, redraw=False)
    assert first.read_bytes() == b"existing"
    pictures.draw_pictures(run)
    for file in (first, second):
        with Image.open(file) as picture:
            picture.load()


def test_nearest_sentences_are_from_the_training_split(text_run, tmp_path):
    """Without a test split the queries are training sentences, but not their own neighbours."""
    encoder, dataset = run_dir.load_encoder(text_run), run_dir.load_data(text_run)
    file = tmp_path / "table.json"
    pictures.write_sentences(encoder, dataset._replace(test=None), file)
    train = {dataset.train.text(number) for number in range(len(dataset.train))}
    rows = read_json(file)["rows"]
    assert len(rows) == 8 * 3 and all(query in train and text in train for query, text, _ in rows)
    for start in range(0, len(rows), 3):
        queries, _, cosines = zip(*rows[start : start + 3], strict=True)
        assert len(set(queries)) == 1 and list(cosines) == sorted(cosines, reverse=True)
