"""Gray images and random bits: pixels, data, recipes without colors."""

import pickle

import numpy as np
import pytest
from data_cases import encoded, equal, images, picture, write
from PIL import Image

from hypersphere_jax import augment, data
from hypersphere_jax.configs import DataConfig, UserError
from hypersphere_jax.data.channels import as_channels, random_bits, with_bits, with_channels
from hypersphere_jax.data.custom import as_source


def test_gray_is_pillows_luma_and_rgb_repeats_gray(rng):
    colors = rng.integers(0, 256, (50, 40, 3), np.uint8)
    gray = np.asarray(Image.fromarray(colors).convert("L"))[..., None]
    equal(as_channels(colors, 1), gray)
    equal(as_channels(np.stack([colors] * 2), 1), np.stack([gray] * 2))
    equal(as_channels(gray, 3), np.repeat(gray, 3, axis=-1))


def test_channels_of_a_folder(tmp_path, rng):
    """Gray and RGB images in several sizes."""
    modes = ("L", "RGB")
    pictures = {
        f"{i % 2}/{i}.png": picture(rng, w=9 + i % 4, mode=modes[i // 10]) for i in range(20)
    }
    write(tmp_path, {name: encoded(image) for name, image in pictures.items()})
    plain, gray, colors = (data.load(DataConfig(str(tmp_path), channels=n)) for n in (None, 1, 3))
    for part in (0, 1):
        equal(gray[part].labels, plain[part].labels)
        for i in range(len(plain[part])):
            equal(gray[part][i]["image"], as_channels(plain[part][i]["image"], 1))
            equal(colors[part][i]["image"], plain[part][i]["image"])
    assert gray.pretrain is gray.train
    assert len({plain.digest(), gray.digest(), colors.digest()}) == 3


def test_arrays_with_this_number_of_channels_stay_as_they_are():
    digits = data.load(DataConfig(channels=1))
    assert digits.digest() == data.load(DataConfig()).digest()
    assert data.load(DataConfig(channels=3)).train.image_shape == (8, 8, 3)


def test_other_numbers_of_channels_are_refused():
    with pytest.raises(UserError, match="channels"):
        data.load(DataConfig("random_bits", bits=2, channels=1))
    several = as_source([np.zeros((2, 2, 4), np.uint8), np.zeros((3, 2, 4), np.uint8)])
    with pytest.raises(UserError, match="channels"):
        with_channels(several, 1)[0]


def test_recipes_of_gray_images_have_no_colors():
    gray = augment.recipe_of(DataConfig(recipe="balanced_cutout", channels=1))
    whole = augment.find("balanced_cutout")
    names = [name for name, _ in whole.train if name not in ("rgb", "random_grayscale")]
    assert [name for name, _ in gray.train] == names
    steps = dict(gray.train)
    # The luma of the RGB constants.
    np.testing.assert_allclose(steps["normalize"]["mean"], [0.4589], atol=1e-4)
    np.testing.assert_allclose(steps["normalize"]["std"], [0.2256], atol=1e-4)
    np.testing.assert_allclose(steps["cutout"]["value"], [0.4589], atol=1e-4)
    assert augment.recipe_of(DataConfig(recipe="digits", channels=1)) == augment.find("digits")


@pytest.mark.parametrize("k", [1, 9, 256])
def test_bits_are_a_function_of_seed_index_and_part(k):
    """Bits are from NumPy's Philox, the same at every pixel; with or without channels of images."""
    pixels = np.random.default_rng(0).integers(0, 256, (5, 5, 5, 3), np.uint8)
    source = data.Arrays(pixels, [0, 1, 2, 0, 1], (), "made here")
    for part in (0, 1):
        alone = random_bits(5, k, 3, seed=7, part=part)
        beside = with_bits(source, k, seed=7, part=part)
        assert beside.labels.tolist() == source.labels.tolist()
        equal([image[..., :3] for image in images(beside)], images(source))
        for bits, stream, channels in ((alone, 0, 0), (beside, 1, 3)):
            again = pickle.loads(pickle.dumps(bits))
            assert again.digest == bits.digest
            for i in (4, 0, 2):
                generator = np.random.Philox(key=[7, stream + 2 * part], counter=[i, 0, 0, 0])
                drawn = generator.random_raw(4).astype("<u8").view(np.uint8)
                expected = np.unpackbits(drawn, bitorder="little")[:k]
                assert again[i]["image"].shape == bits.image_shape
                assert (again[i]["image"][..., channels:] == 255 * expected).all()
