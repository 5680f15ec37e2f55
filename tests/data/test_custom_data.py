"""Data of the user's own: what counts as an image, as a label, as a data set."""

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from hypersphere_jax.configs import UserError
from hypersphere_jax.data import custom
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


class Counted(Items3):
    """Items that count how often they are read."""

    reads = 0

    def __getitem__(self, i):
        self.reads += 1
        return super().__getitem__(i)


class Broken(Items3):
    def __getitem__(self, i):
        return super().__getitem__(i) if i < 1 else 1 / 0


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (COLOUR, COLOUR),
        (COLOUR[..., 0], COLOUR[..., :1]),
        (COLOUR / 255, COLOUR),
        (COLOUR.astype(np.int64), COLOUR),
        (COLOUR[..., 0] > 20, 255 * (COLOUR[..., :1] > 20)),
        (Image.fromarray(COLOUR), COLOUR),
        (Image.fromarray(COLOUR[..., 0]), COLOUR[..., :1]),
        (Image.fromarray(COLOUR).convert("RGBA"), COLOUR),
        (Image.fromarray(COLOUR // 16 * 16).quantize(16), COLOUR // 16 * 16),  # a palette
        (Image.fromarray(COLOUR).convert("CMYK"), COLOUR),
        (Image.fromarray(COLOUR[..., 0] > 20), 255 * (COLOUR[..., :1] > 20)),
        (Image.fromarray(COLOUR[..., 0].astype(np.uint16) * 257), COLOUR[..., :1]),
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
        (COLOUR / 100, "2.4"),
        (COLOUR.astype(int) * 9, "424"),
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
    assert isinstance(source, Arrays) and source.class_names == ("0", "2")
    assert source.labels.tolist() == [1, -1, 0]
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
    assert as_source(Items3((c,) for c in colours)).labels.tolist() == [-1] * 3
    more = Items3((c, label, "more") for c, label in pairs)
    assert as_source(more).labels.tolist() == [1, 0, 2]


def test_images_of_different_sizes_stay_items():
    data = Items3([(COLOUR, 0), (COLOUR[:2], 1)])
    source = as_source(data)
    assert isinstance(source, Items) and source.image_shape is None
    assert [source[i]["image"].shape for i in range(2)] == [(4, 4, 3), (2, 4, 3)]
    other = as_source(Items3([(COLOUR, 0), (COLOUR[:2] + 1, 1)]))
    relabelled = as_source(Items3([(COLOUR, 1), (COLOUR[:2], 1)]))
    assert len({source.digest, other.digest, relabelled.digest}) == 3
    assert source.digest == as_source(Items3(data)).digest


def listing(labels, items, **attributes):
    data = Counted(items)
    vars(data).update(targets=labels, **attributes)
    return data


@pytest.mark.parametrize("large", [False, True])
def test_labels_of_items_and_of_lists_beside_them(large, monkeypatch):
    """An item's own label counts; of large data a list that agrees is not read item by item."""
    monkeypatch.setattr(custom, "IN_MEMORY", 0 if large else 2**31)
    monkeypatch.setattr(custom, "FIRST", 2)
    colours = [COLOUR + i for i in range(9)]
    own = [1, 0, 2, 0, 1, 2, 0, 0, 1]
    for labels, expected in (
        ([np.int64(label) for label in own], own),
        ([float(label) for label in own], own),
        ([np.array([label]) for label in own], own),
        ([Tensor(np.array(label)) for label in own], own),
        ([None, *own[1:]], [-1, *own[1:]]),
    ):
        data = Counted(zip(colours, labels, strict=True))
        source = as_source(data)
        assert isinstance(source, Items if large else Arrays)
        assert source.labels.tolist() == expected and data.reads == 9 + 2 * large
    pairs = list(zip(colours, own, strict=True))
    for data in (
        listing([*own[::-1][:-1], 2], pairs),
        listing(list("abcabcabc"), pairs),
        listing(own[:3], pairs),
        listing([[1], [2, 3]], pairs),
        listing([7] * 9, pairs, target_transform=lambda label: own[label]),
    ):
        assert as_source(data).labels.tolist() == own
    middle = [*own[:4], 0, *own[5:]]  # differs where it is not looked at
    data = listing(middle, pairs)
    assert as_source(data).labels.tolist() == (middle if large else own)
    assert data.reads == (2 + 2 if large else 9)
    assert as_source(listing(own, colours)).labels.tolist() == own


@pytest.mark.parametrize("large", [False, True])
def test_grey_images_among_colour(large, monkeypatch):
    monkeypatch.setattr(custom, "IN_MEMORY", 0 if large else 2**31)
    grey = Image.fromarray(COLOUR[..., 0])
    source = as_source(Items3([grey, Image.fromarray(COLOUR), COLOUR]))
    found = np.stack([source[i]["image"] for i in range(3)])
    np.testing.assert_array_equal(found, [np.stack([COLOUR[..., 0]] * 3, axis=-1), COLOUR, COLOUR])
    monkeypatch.setattr(custom, "FIRST", 1)
    if large:  # the first one is grey
        late = as_source(Items3([grey, COLOUR]))
        with pytest.raises(UserError, match="item 1 of data has 3 channels, others have 1"):
            late[1]
    else:
        assert as_source(Items3([grey, COLOUR])).image_shape == (4, 4, 3)
        sizes = as_source(Items3([grey, COLOUR[:2]]))
        assert [sizes[i]["image"].shape for i in range(2)] == [(4, 4, 3), (2, 4, 3)]


class Labelled(dict):
    """Splits by name."""


@pytest.mark.parametrize(
    ("data", "labels", "match"),
    [
        (Items3([(COLOUR, 1), (COLOUR, 1.7)]), None, "item 1 of data: label 1.7"),
        (Items3([(COLOUR, float("inf"))]), None, "label inf"),
        (Items3([(COLOUR, COLOUR, 1)]), None, "item 0 of data: label array"),
        (Items3([{"image": COLOUR, "label": [1, 2]}]), None, r"label \[1, 2\]"),
        (Items3([(COLOUR, "cat"), (COLOUR, 1)]), None, "data: .*integers.*strings"),
        (Items3([()]), None, "item 0 of data is empty"),
        (Items3([COLOUR, "cat.png"]), None, r"item 1 of data: .*\(\)"),
        (Broken([COLOUR] * 3), None, "item 1 of data: ZeroDivisionError: division by zero"),
        (Labelled(train=[COLOUR], test=[]), None, r"train, test: give one split.*data\['train'\]"),
        (Items3([COLOUR, COLOUR[..., :2]]), None, "images of 2 and 3 channels"),
        (np.stack([COLOUR] * 2), [0], "2 integers"),
        (np.stack([COLOUR] * 2), [0.5, 1], "0.5"),
        (np.stack([COLOUR] * 2), [0, -2], "-2"),
        (7, None, "a int has no length"),
        ([], None, "is empty"),
        (Items3([{"text": "a"}]), None, "items have text, and no 'image'"),
    ],
)
def test_no_data(data, labels, match):
    with pytest.raises(UserError, match=match):
        as_source(data, labels)
