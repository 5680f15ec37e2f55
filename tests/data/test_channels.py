"""Gray images: pixels, recipes without colors, networks of one channel."""

import jax
import numpy as np
import pytest
import tiny_runs
from data_cases import encoded, equal, picture, why, write
from PIL import Image

from hypersphere_jax import augment, data
from hypersphere_jax.augment import color
from hypersphere_jax.configs import (
    DataConfig,
    InspectConfig,
    MetricsConfig,
    PretrainConfig,
    ProbeConfig,
)
from hypersphere_jax.data.channels import as_channels, with_channels
from hypersphere_jax.data.custom import Items
from hypersphere_jax.data.pipeline import BadImages, TwoCrops, stream
from hypersphere_jax.data.source import Arrays, UnreadableImage
from hypersphere_jax.encoder import load
from hypersphere_jax.evaluation.features import split_features
from hypersphere_jax.evaluation.measure_runs import run_metrics
from hypersphere_jax.evaluation.probe_runs import run_probe
from hypersphere_jax.reporting import datasets
from hypersphere_jax.training import run_dir
from hypersphere_jax.training import train as training
from hypersphere_jax.training.resolve import resolve


@pytest.fixture
def mixed(tmp_path, rng):
    """Gray and RGB images of two classes, in two sizes."""
    tree = {
        f"{animal}/{i}.png": encoded(picture(rng, w=9 + i % 2, mode="L" if i % 3 else "RGB"))
        for animal in ("cat", "dog")
        for i in range(10)
    }
    return write(tmp_path / "mixed", tree)


def test_gray_is_pillows_luma_and_rgb_repeats_gray(rng):
    colors = rng.integers(0, 256, (50, 40, 3), np.uint8)
    gray = np.asarray(Image.fromarray(colors).convert("L"))[..., None]
    equal(as_channels(colors, 1), gray)
    equal(as_channels(np.stack([colors] * 2), 1), np.stack([gray] * 2))
    equal(as_channels(gray, 3), np.asarray(Image.fromarray(gray[..., 0]).convert("RGB")))
    equal(as_channels(as_channels(gray, 3), 1), gray)
    assert "4 channels" in why(as_channels, np.zeros((2, 2, 4), np.uint8), 1, error=ValueError)


def test_data_of_one_channel(mixed):
    whole, gray = (data.load(DataConfig(str(mixed), channels=n)) for n in (None, 1))
    for plain, changed in zip(whole[:2], gray[:2], strict=True):
        equal(plain.labels, changed.labels)
        for i in range(len(plain)):
            equal(changed[i]["image"], as_channels(plain[i]["image"], 1))
    assert gray.pretrain is gray.train and gray.digest() != whole.digest()
    colors = data.load(DataConfig(str(mixed), channels=3))
    assert colors.train[0]["image"].shape[2] == 3 and colors.digest() != gray.digest()
    # Arrays with this number of channels stay as they are; bits have no gray values.
    digits = data.load(DataConfig(channels=1))
    assert isinstance(digits.train, Arrays) and digits.digest() == data.load(DataConfig()).digest()
    rgb = data.load(DataConfig(channels=3)).train
    assert rgb.image_shape == rgb[0]["image"].shape == (8, 8, 3)
    assert "2 channels" in why(data.load, DataConfig("random_bits", bits=2, channels=1))
    items = Items([np.zeros((2, 2, 4), np.uint8)], np.zeros(1, int), 4, "mine")
    assert "image 0 has 4 channels" in why(with_channels(items, 1).__getitem__, 0)


def test_networks_take_one_channel(mixed):
    for recipe in augment.RECIPES:
        config = PretrainConfig(data=str(mixed), channels=1, recipe=recipe, image_size=8)
        assert resolve(config, data.load(config)).in_channels == 1, recipe
    config = PretrainConfig(data=str(mixed), channels=3, image_size=8)
    assert resolve(config, data.load(config)).in_channels == 3


def test_recipes_of_gray_images(rng):
    """No color operations, the luma of constants; the same contrast as for gray RGB images."""
    config = DataConfig(recipe="balanced_cutout", channels=1)
    gray, whole = augment.recipe_of(config), augment.find("balanced_cutout")
    names = [name for name, _ in whole.train if name not in ("rgb", "random_grayscale")]
    assert [name for name, _ in gray.train] == names
    steps = dict(gray.train)
    np.testing.assert_allclose(steps["normalize"]["mean"], [0.4589], atol=1e-4)
    np.testing.assert_allclose(steps["normalize"]["std"], [0.2256], atol=1e-4)
    np.testing.assert_allclose(steps["cutout"]["value"], [0.4589], atol=1e-4)
    assert augment.recipe_of(DataConfig(recipe="digits", channels=1)) == augment.find("digits")
    custom = DataConfig(recipe="none", channels=1, augment=lambda key, image: image)
    assert augment.recipe_of(custom).train is custom.augment.value
    image = rng.random((4, 5, 1), np.float32)
    contrasted = color.adjust_contrast(np.repeat(image, 3, axis=-1), 0.6)
    np.testing.assert_allclose(color.adjust_contrast(image, 0.6), contrasted[..., :1], atol=1e-6)
    for change in (color.adjust_saturation, color.adjust_hue):
        equal(change(image, 0.3), image)


def test_unreadable_batch_has_the_shape_of_the_others(mixed, monkeypatch):
    source = data.load(DataConfig(str(mixed), channels=1)).train
    last = len(source) - 1
    read = type(source).__getitem__

    def broken(self, i):
        if i == last:
            raise UnreadableImage("cut short")
        return read(self, i)

    monkeypatch.setattr(type(source), "__getitem__", broken)
    options = {"prepare": TwoCrops(lambda rng, image: image[:4, :4], 0), "replace": False}
    order = lambda step: np.array([last])  # noqa: E731
    batch = next(stream(source, order, range(1), BadImages(source, "skip"), **options))
    assert batch.images.shape == (1, 2, 4, 4, 1) and batch.indices.tolist() == [-1]


def test_inspect_reports_gray_images(mixed, capsys):
    hint = "--channels 1"
    for options in ({}, {"channels": 1}):
        datasets.inspect(InspectConfig(str(mixed), **options))
        assert hint not in capsys.readouterr().out
    for file in mixed.glob("*/*.png"):
        Image.open(file).convert("L").save(file)
    datasets.inspect(InspectConfig(str(mixed)))
    assert hint in capsys.readouterr().out


@pytest.mark.slow
def test_run_on_gray_images_without_labels(mixed, tmp_path):
    """A flat folder of images that differ in size: trained, measured on the held-out part."""
    for file in list(mixed.glob("*/*.png")):
        file.rename(mixed / f"{file.parent.name}{file.name}")
    for animal in ("cat", "dog"):
        (mixed / animal).rmdir()
    parts = {"data": str(mixed), "channels": 1, "image_size": 8, "batch_size": 6}
    config = tiny_runs.images(tmp_path).replace(epochs=1, **parts)
    folder = training.train(config)
    result = run_metrics(MetricsConfig(str(folder), devices=1))
    assert result["n"] == 2 and np.isfinite([result["align"], result["uniform"]]).all()
    encoder = load(folder)
    assert encoder.config.in_channels == 1
    files = sorted(mixed.iterdir())
    held_out = data.load(config).test
    names = [files[i] for i in held_out.source.indices]
    x = split_features(run_dir.load_encoder(folder), held_out, ["output"], jax.devices()[:1])
    np.testing.assert_allclose(encoder(names), x.features["output"].x, atol=1e-5)
    assert "have no labels" in why(run_probe, ProbeConfig((str(folder),)))
