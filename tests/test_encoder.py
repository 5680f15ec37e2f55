"""Encoders as functions: the features of evaluation, for images in all forms; saved and copied."""

import os
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from run_states import full_disk
from sklearn.datasets import load_digits

import hypersphere_jax as hj
from hypersphere_jax import data
from hypersphere_jax.configs import DataConfig
from hypersphere_jax.evaluation.features import split_features
from hypersphere_jax.training import run_dir


@pytest.fixture(scope="module")
def encoder(image_run):
    return hj.load(image_run)


@pytest.mark.parametrize("layer", ["output", "backbone"])
def test_features_are_those_of_evaluation(layer, encoder, image_run, tmp_path):
    test = data.load(DataConfig()).test
    run = run_dir.load_encoder(image_run)._replace(folder=tmp_path)  # without cached features
    expected = split_features(run, test, [layer], jax.devices()[:1]).features[layer].x
    features = encoder(test.images, layer=layer)
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, expected, rtol=1e-4, atol=1e-5)
    for n in (0, 1, 3):
        part = encoder(test.images[:n], layer=layer)
        np.testing.assert_allclose(part, features[:n], rtol=1e-4, atol=1e-5)
    if layer == "output":
        np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1, rtol=1e-5)


def test_images_in_all_forms(encoder, tmp_path):
    scaled = load_digits().images[:4] / 16
    array = np.round(scaled * 255).astype(np.uint8)
    Image.fromarray(array[0]).save(tmp_path / "zero.png")
    expected = encoder(array[..., None])
    for form in (array, list(array), list(scaled), [Image.fromarray(a) for a in array]):
        np.testing.assert_allclose(encoder(form), expected, atol=0.02)
    for dtype in (jnp.float32, jnp.bfloat16, np.float16):
        np.testing.assert_array_equal(encoder(jnp.asarray(array / 255, dtype)), expected)
    path = tmp_path / "zero.png"
    for form in (path, str(path), Image.open(path)):
        np.testing.assert_array_equal(encoder([form]), encoder(array[:1]))
    larger = np.kron(array[1], np.ones((2, 2), np.uint8))
    resized = encoder([array[0], larger])
    np.testing.assert_allclose(resized[0], expected[0], atol=1e-5)
    assert resized[1] @ expected[1] > 0.97


def test_invalid_images_are_refused(encoder):
    for images, match in (
        (np.zeros((2, 8, 8, 4), np.uint8), r"8, 8, 4"),
        (np.zeros(8, np.uint8), r"\(8,\)"),
        (np.full((2, 8, 8), 255.0), "255"),
        (np.full((2, 8, 8), np.nan), "nan"),
        ("nowhere.png", "nowhere.png"),
        (["nowhere.png"], "nowhere.png"),
    ):
        with pytest.raises(hj.UserError, match=match):
            encoder(images)


def test_steps_layers_and_names_that_do_not_exist(image_run, text_run, encoder):
    assert hj.load(str(image_run), step=0).step == 0
    for run, options, match in (
        (image_run, {"step": 5}, "step 5"),
        ("nowhere", {}, "nowhere"),
        (text_run, {}, "sentences"),
    ):
        with pytest.raises(hj.UserError, match=match):
            hj.load(run, **options)
    with pytest.raises(hj.UserError, match="fc7"):
        encoder(np.zeros((2, 8, 8, 1), np.uint8), layer="fc7")


def test_saved_encoder_is_loaded(encoder, tmp_path, rng):
    images = rng.integers(0, 256, (5, 8, 8, 1), np.uint8)
    folder = encoder.save(tmp_path / "encoder")
    assert [path.name for path in folder.iterdir()] == ["weights.safetensors"]
    again = hj.load(folder)
    jax.tree.map(np.testing.assert_array_equal, again.params, encoder.params)
    np.testing.assert_array_equal(again(images), encoder(images))
    assert again.step == encoder.step == 56
    encoder.save(folder)
    (folder / "notes.txt").write_text("mine")
    for path in (folder, folder / "notes.txt"):
        with pytest.raises(hj.UserError, match="notes"):
            encoder.save(path)
    whole = (folder / "weights.safetensors").read_bytes()
    (folder / "weights.safetensors").write_bytes(whole[:200])
    with pytest.raises(hj.UserError, match="weights"):
        hj.load(folder)


def test_interrupted_save_leaves_one_whole_encoder(encoder, tmp_path, monkeypatch):
    """The earlier one, on a full disk and when killed at the rename."""
    params = jax.tree.map(lambda x: x + 1, encoder.params)
    later = hj.Encoder(encoder.config.replace(seed=7), params, encoder.stats, 99, encoder.apply)

    def saved_step():
        found = hj.load(folder)
        expected = later if found.step == 99 else encoder
        assert found.config.seed == expected.config.seed
        jax.tree.map(np.testing.assert_array_equal, found.params, expected.params)
        return found.step

    folder = encoder.save(tmp_path / "encoder")
    with full_disk((folder / "weights.safetensors").stat().st_size // 2):
        later.save(folder)
    assert saved_step() == 56
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", Mock(side_effect=KeyboardInterrupt))
        later.save(folder)
    assert saved_step() == 56
    later.save(folder)
    assert saved_step() == 99
