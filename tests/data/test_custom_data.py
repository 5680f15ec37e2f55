"""Data of the user's own: what counts as an image, as a label, as a data set."""

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from hypersphere_jax.config import UserError
from hypersphere_jax.data.custom import Items, as_image, as_source
from hypersphere_jax.data.source import Arrays

COLOUR = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)


class Tensor:
    """An array with PyTorch's order of axes, from a module of that name."""

    __module__ = "torch"

    def __init__(self, array):
        self._array = array

    def __array__(self, dtype=None, copy=None):
        return self._array


class Items3(list):
    """Three items, and what a data set may list beside them."""


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (COLOUR, COLOUR),
        (COLOUR[..., 0], COLOUR[..., :1]),
        (COLOUR / 255, COLOUR),
        (COLOUR.astype(np.int64), COLOUR),
        (COLOUR[..., 0] > 20, 255 * (COLOUR[..., :1] > 20)),
        (Image.fromarray(COLOUR), COLOUR),
        (Tensor(COLOUR.transpose(2, 0, 1)), COLOUR),
        (Tensor(COLOUR.transpose(2, 0, 1) / 255), COLOUR),
        (jnp.asarray(COLOUR), COLOUR),
    ],
)
def test_images(image, expected):
    found = as_image(image)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("image", "match"),
    [
        (COLOUR / 100, "values from 0 to 0.47|not 0 to 1"),
        (COLOUR.astype(int) * 9, "not 0 to 255"),
        (np.zeros(4), r"\(4,\)"),
        (np.zeros((2, 2, 9)), "h, w, c"),
    ],
)
def test_no_images(image, match):
    image = image * 3 if image.dtype == float and image.ndim == 3 else image
    with pytest.raises(ValueError, match=match):
        as_image(image + (image.ndim == 3))


def test_arrays():
    images, labels = np.stack([COLOUR] * 3), [2, -1, 0]
    source = as_source(images, labels)
    assert isinstance(source, Arrays) and source.class_names == ("0", "1", "2")
    assert source.labels.tolist() == labels
    grey = as_source(images[..., 0])
    assert grey.image_shape == (4, 4, 1) and grey.class_names == () and (grey.labels == -1).all()
    assert as_source(source) is source


def test_items_of_all_kinds():
    """Images alone, pairs, dicts; labels of the items, of a list beside them, or given."""
    colours = [COLOUR, COLOUR + 1, COLOUR + 2]
    pairs = Items3(zip(colours, (1, 0, 2), strict=True))
    dicts = Items3({"img": c, "label": label} for c, label in pairs)
    listed = Items3(colours)
    listed.targets = [1, 0, 2]
    for data, given in ((pairs, None), (dicts, None), (listed, None), (Items3(colours), [1, 0, 2])):
        source = as_source(data, given)
        assert source.labels.tolist() == [1, 0, 2] and source.class_names == ("0", "1", "2")
        np.testing.assert_array_equal(source[1]["image"], COLOUR + 1)
    assert as_source(Items3(colours)).labels.tolist() == [-1] * 3


def test_images_of_different_sizes_stay_items():
    data = Items3([(COLOUR, 0), (COLOUR[:2], 1)])
    source = as_source(data)
    assert isinstance(source, Items) and source.image_shape is None
    assert [source[i]["image"].shape for i in range(2)] == [(4, 4, 3), (2, 4, 3)]
    other = as_source(Items3([(COLOUR, 0), (COLOUR[:2] + 1, 1)]))
    relabelled = as_source(Items3([(COLOUR, 1), (COLOUR[:2], 1)]))
    assert len({source.digest, other.digest, relabelled.digest}) == 3
    assert source.digest == as_source(Items3(data)).digest


@pytest.mark.parametrize(
    ("data", "labels", "match"),
    [
        (COLOUR / 2, None, "uint8"),
        (np.stack([COLOUR] * 2), [0], "2 integers"),
        (np.stack([COLOUR] * 2), [0.5, 1], "2 integers"),
        (np.stack([COLOUR] * 2), [0, -2], "from 0, or -1"),
        (7, None, "a int has no length"),
        ([], None, "is empty"),
        (Items3([{"text": "a"}]), None, "items have text, and no 'image'"),
    ],
)
def test_no_data(data, labels, match):
    with pytest.raises(UserError, match=match):
        as_source(data, labels)
