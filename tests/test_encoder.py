"""Encoders as functions: the features that evaluation sees, of images in all forms; saved."""

import contextlib
import copy
import os
import pickle
import resource
from pathlib import Path
from unittest.mock import DEFAULT, Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

import hypersphere_jax as hj
from hypersphere_jax import data
from hypersphere_jax.configs import DataConfig
from hypersphere_jax.encoder import named_arrays
from hypersphere_jax.evaluation.features import split_features
from hypersphere_jax.training import run_dir


@pytest.fixture(scope="module")
def encoder(image_run):
    return hj.load(image_run)


def test_the_features_of_evaluation(encoder, image_run, tmp_path):
    """Of any number of images, on all devices; "output" on the unit sphere."""
    test = data.load(DataConfig()).test
    loaded = run_dir.load_encoder(image_run)._replace(folder=tmp_path)
    expected = split_features(loaded, test, ["output", "backbone"], jax.devices()[:1]).features
    for layer in ("output", "backbone"):
        found = encoder(test.images, layer=layer)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected[layer].x, rtol=1e-4, atol=1e-5)
        for few in (0, 1, 3):
            part = encoder(test.images[:few], layer=layer)
            np.testing.assert_allclose(part, found[:few], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(encoder(test.images), axis=1), 1, rtol=1e-5)
    assert encoder.layers["conv2"] == (4, 4, 16)
    assert encoder(test.images[:2], layer="conv2").shape == (2, 4, 4, 16)


def test_images_in_all_forms(encoder, tmp_path):
    images = load_digits().images[:4]
    array = np.round(images * (255 / 16)).astype(np.uint8)
    Image.fromarray(array[0]).save(tmp_path / "zero.png")
    expected = encoder(array[..., None])
    for form in (array, list(array), list(images / 16), [Image.fromarray(a) for a in array]):
        np.testing.assert_allclose(encoder(form), expected, atol=0.02)
    floats = array / 255
    for form in (floats, jnp.asarray(floats, jnp.bfloat16), floats.astype(np.float16)[..., None]):
        np.testing.assert_array_equal(encoder(form), expected)
        (batch,) = encoder.batches(form, count=4)
        np.testing.assert_array_equal(batch, expected)
    paths = [tmp_path / "zero.png", str(tmp_path / "zero.png")]
    np.testing.assert_array_equal(encoder([Image.open(paths[0])]), encoder(array[:1]))
    larger = np.kron(array[1], np.ones((2, 2), np.uint8))
    mixed = encoder([array[0], larger])  # of different sizes: resized
    np.testing.assert_allclose(mixed[0], expected[0], atol=1e-5)
    assert mixed[1] @ expected[1] > 0.97


def test_grey_and_rgb_for_one_channel(encoder, tmp_path, rng):
    """An RGB image counts as its luma, as an array or in a file."""
    colours = rng.integers(0, 256, (4, 8, 8, 3), np.uint8)
    grey = [np.asarray(Image.fromarray(image).convert("L")) for image in colours]
    expected = encoder(np.stack(grey))
    np.testing.assert_array_equal(encoder(colours), expected)
    files = [tmp_path / f"{i}.png" for i in range(4)]
    for i, file in enumerate(files):
        Image.fromarray(grey[i] if i % 2 else colours[i]).save(file)
    np.testing.assert_array_equal(encoder(files), expected)


def test_saved_and_loaded(encoder, tmp_path):
    images = data.load(DataConfig()).test.images[:5]
    folder = encoder.save(tmp_path / "encoder")
    names = {"README.md", "weights.safetensors"}
    assert {path.name for path in folder.iterdir()} == names
    again = hj.load(folder)
    jax.tree.map(np.testing.assert_array_equal, again.params, encoder.params)
    np.testing.assert_array_equal(again(images), encoder(images))
    assert (
        again.step == encoder.step == 56 and "| `backbone` |" in (folder / "README.md").read_text()
    )
    assert named_arrays({}, {"calls": np.float32(2)})["stats/calls"].shape == ()
    encoder.save(folder)  # in its own place
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(hj.UserError, match=r"notes\.txt"):
        encoder.save(folder)
    with pytest.raises(hj.UserError, match=r"notes\.txt is a file"):
        encoder.save(folder / "notes.txt")
    whole = (folder / "weights.safetensors").read_bytes()
    (folder / "weights.safetensors").write_bytes(whole[:200])
    with pytest.raises(hj.UserError, match="cannot be read"):
        hj.load(folder)


@contextlib.contextmanager
def files_of_at_most(size):
    """Simulate a full disk: writing a longer file raises OSError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        with pytest.raises(OSError):
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_an_interrupted_save_leaves_an_encoder(encoder, tmp_path, monkeypatch):
    """The earlier one on a full disk; one of both, never a mixture, if killed at any rename."""
    params = jax.tree.map(lambda x: x + 1, encoder.params)
    config = encoder.config.replace(seed=7)
    later = hj.Encoder(config, params, encoder.stats, 99, encoder.apply)

    def saved():
        found = hj.load(folder)
        expected = later if found.step == 99 else encoder
        assert found.config.seed == expected.config.seed
        jax.tree.map(np.testing.assert_array_equal, found.params, expected.params)
        return found.step

    folder = encoder.save(tmp_path / "encoder")
    for size in sorted(file.stat().st_size for file in folder.iterdir()):
        with files_of_at_most(size // 2):
            later.save(folder)
        assert saved() == 56
    for count in range(2):
        effects = [*[DEFAULT] * count, KeyboardInterrupt]
        killed = Mock(wraps=os.replace, side_effect=effects)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(os, "replace", killed)
            later.save(folder)
        assert saved() in (56, 99)
    (folder / ".weights.safetensors.1-ff").write_bytes(b"of a process that was killed")
    later.save(folder)
    assert saved() == 99


def test_the_card_says_how_to_load(encoder):
    network, half = ((lambda key, x: {}, lambda params, x: x), lambda image: image / 2)
    for own, expected in (
        ({}, f'encoder = hj.load("{encoder.config.name}")\n'),
        ({"preprocess": half}, '", preprocess=preprocess)\n'),
    ):
        config = encoder.config.replace(**own)
        card = hj.Encoder(config, {}, {}, 0, encoder.apply)._card()
        assert expected in card and "z = encoder(images)" in card
    config = hj.PretrainConfig(
        name="own", network=network, preprocess=half, image_size=8, channels=1
    )
    own = hj.Encoder(config, {}, {}, 0, encoder.apply)
    own.layers = {"output": (2,)}
    assert 'hj.load("own", network=network, preprocess=preprocess)\n' in own._card()


def test_steps_and_names(image_run, text_run):
    random = hj.load(str(image_run), step=0)
    assert random.step == 0
    with pytest.raises(hj.UserError, match="no checkpoint of step 5"):
        hj.load(image_run, step=5)
    with pytest.raises(hj.UserError, match="no run 'nowhere'"):
        hj.load("nowhere")
    with pytest.raises(hj.UserError, match="of sentences"):
        hj.load(text_run)


@pytest.mark.parametrize(
    ("images", "layer", "match"),
    [
        (np.zeros((2, 8, 8, 1), np.uint8), "fc7", "no such layer"),
        (np.zeros((2, 8, 8, 4), np.uint8), "output", r"shape \[8, 8, 4\]"),
        (np.zeros(8, np.uint8), "output", r"\(8,\)"),
        (np.array(8, np.uint8), "output", r"\(\)"),
        (np.zeros((8, 8, 3), np.uint8), "output", r"images\[None\]"),
        (np.zeros((8, 8, 1), np.uint8), "output", r"images\[None\]"),
        (np.zeros((2, 3, 8, 8), np.uint8), "output", r"images\.transpose\(0, 2, 3, 1\)"),
        (jnp.full((2, 8, 8, 1), jnp.nan, jnp.bfloat16), "output", "images: .*nan"),
        (np.full((2, 8, 8), 255.0), "output", "images: .*255"),
        ("nowhere.png", "output", "nowhere.png is one path: pass a list"),
        (Path("nowhere.png"), "output", "pass a list of paths"),
        (None, "output", "not a NoneType"),
        ({"image": 1}, "output", "not a dict"),
        (Image.new("L", (8, 8)), "output", "a list, not a Image"),
        ([np.zeros((8, 8, 2), np.uint8), np.zeros((8, 8))], "output", "images of 1 and 2 channels"),
        (["nowhere.png"], "output", "nowhere.png"),
        ([np.full((8, 8), 7.0)], "output", "not 0 to 1"),
    ],
)
def test_what_is_no_image(encoder, images, layer, match):
    with pytest.raises(hj.UserError, match=match):
        encoder(images, layer=layer)


def pickled(value):
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
def test_copies_and_pickles(copied, used, image_run, encoder, rng):
    """Copies are bit-identical, before and after the encoder was used."""
    images = rng.integers(0, 256, (5, 8, 8, 1), np.uint8)
    original = hj.load(image_run)
    if used:
        original(images)
    again = copied(original)
    assert again.config == original.config and again.step == original.step
    assert again.layers == original.layers
    np.testing.assert_array_equal(again(images), encoder(images))


def test_an_encoder_shows_its_network(encoder):
    shown = repr(encoder)
    assert "\n" not in shown and "0x" not in shown
    assert all(part in shown for part in ("Encoder", "images", "small_cnn", f"step {encoder.step}"))


def flat(params, x):
    return x.reshape(len(x), -1) @ params["w"]


def ones(key, x):
    return {"w": jax.numpy.ones((x[0].size, 2))}


def test_an_encoder_with_the_users_network_is_pickled(tmp_path):
    config = hj.PretrainConfig(runs_dir=str(tmp_path), epochs=1, batch_size=8)
    images = np.arange(8 * 64, dtype=np.uint8).reshape(8, 8, 8, 1)
    encoder = hj.train(config, images=images, network=(ones, flat), augment=shifted).encoder
    again = pickle.loads(pickle.dumps(encoder))
    np.testing.assert_array_equal(again(images), encoder(images))
    np.testing.assert_array_equal(copy.deepcopy(encoder)(images), encoder(images))


def shifted(key, image):
    return image / 255 + jax.random.normal(key, image.shape)


def test_probes_and_measures(encoder):
    train, test = data.load(DataConfig())[:2]
    x, xt = encoder(train.images), encoder(test.images)
    split = x, train.labels, xt, test.labels
    assert hj.linear_probe(*split)["top1"] > 75 and hj.knn_probe(*split, k=5)["top1"] > 75
    result = hj.measure(xt, xt)
    assert result["align"] == 0 and result["uniform_optimum"] < result["uniform"] < 0
    np.testing.assert_allclose(result["uniform"], hj.uniform_loss(xt), rtol=1e-5)
    values = np.linalg.svd(xt, compute_uv=False)
    shares = values / values.sum()
    rank = np.exp(-(shares * np.log(shares)).sum())
    np.testing.assert_allclose(result["effective_rank"], rank, rtol=1e-4)
    with pytest.raises(hj.UserError, match="unit norm"):
        hj.measure(2 * xt)
    with pytest.raises(hj.UserError, match=r"\(3, 6\)"):
        hj.measure(xt, xt[:3])
