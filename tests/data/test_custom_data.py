"""Custom data: images, labels and data sets of all kinds."""

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from hypersphere_jax.configs import UserError
from hypersphere_jax.data import custom
from hypersphere_jax.data.custom import Items, as_image, as_source
from hypersphere_jax.data.source import Arrays

COLOR = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)


class Tensor:
    """A tensor with the module and the order of axes of PyTorch."""

    __module__ = "torch"

    def __init__(self, array):
        self._array = array

    def __array__(self, dtype=None, copy=None):
        return self._array


class Items3(list):
    """A list with attributes."""


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
        (COLOR, COLOR),
        (COLOR[..., 0], COLOR[..., :1]),
        (COLOR / 255, COLOR),
        (COLOR.astype(np.int64), COLOR),
        (COLOR[..., 0] > 20, 255 * (COLOR[..., :1] > 20)),
        (Image.fromarray(COLOR), COLOR),
        (Image.fromarray(COLOR[..., 0]), COLOR[..., :1]),
        (Image.fromarray(COLOR).convert("RGBA"), COLOR),
        (Image.fromarray(COLOR // 16 * 16).quantize(16), COLOR // 16 * 16),  # a palette
        (Image.fromarray(COLOR).convert("CMYK"), COLOR),
        (Image.fromarray(COLOR[..., 0] > 20), 255 * (COLOR[..., :1] > 20)),
        (Image.fromarray(COLOR[..., 0].astype(np.uint16) * 257), COLOR[..., :1]),
        (Tensor(COLOR.transpose(2, 0, 1)), COLOR),
        (Tensor(COLOR.transpose(2, 0, 1) / 255), COLOR),
        (jnp.asarray(COLOR), COLOR),
    ],
)
def test_images(image, expected):
    found = as_image(image)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("image", "match"),
    [
        (COLOR / 100, "2.4"),
        (COLOR.astype(int) * 9, "424"),
        (np.zeros(4), r"\(4,\)"),
        (np.zeros((2, 2, 9)), "h, w, c"),
    ],
)
def test_invalid_images(image, match):
    image = image * 3 if image.dtype == float and image.ndim == 3 else image
    with pytest.raises(ValueError, match=match):
        as_image(image + (image.ndim == 3))


def test_arrays():
    images, labels = np.stack([COLOR] * 3), [2, -1, 0]
    source = as_source(images, labels)
    assert isinstance(source, Arrays) and source.class_names == ("0", "2")
    assert source.labels.tolist() == [1, -1, 0]
    gray = as_source(images[..., 0])
    assert gray.image_shape == (4, 4, 1) and gray.class_names == () and (gray.labels == -1).all()
    assert as_source(source) is source


def test_items_of_all_kinds():
    """Images, pairs and dicts; labels of the items or of the argument."""
    colors = [COLOR, COLOR + 1, COLOR + 2]
    pairs = Items3(zip(colors, (1, 0, 2), strict=True))
    dicts = Items3({"img": c, "label": label} for c, label in pairs)
    for data, given in ((pairs, None), (dicts, None), (Items3(colors), [1, 0, 2])):
        source = as_source(data, given)
        assert source.labels.tolist() == [1, 0, 2] and source.class_names == ("0", "1", "2")
        np.testing.assert_array_equal(source[1]["image"], COLOR + 1)
    assert as_source(Items3(colors)).labels.tolist() == [-1] * 3
    assert as_source(Items3((c,) for c in colors)).labels.tolist() == [-1] * 3
    more = Items3((c, label, "more") for c, label in pairs)
    assert as_source(more).labels.tolist() == [1, 0, 2]


def test_images_of_different_sizes_stay_items():
    data = Items3([(COLOR, 0), (COLOR[:2], 1)])
    source = as_source(data)
    assert isinstance(source, Items) and source.image_shape is None
    assert [source[i]["image"].shape for i in range(2)] == [(4, 4, 3), (2, 4, 3)]
    other = as_source(Items3([(COLOR, 0), (COLOR[:2] + 1, 1)]))
    relabelled = as_source(Items3([(COLOR, 1), (COLOR[:2], 1)]))
    assert len({source.digest, other.digest, relabelled.digest}) == 3
    assert source.digest == as_source(Items3(data)).digest


@pytest.mark.parametrize("large", [False, True])
def test_labels_of_items(large, monkeypatch):
    """Each image is decoded once. Large data sets are read for their labels only."""
    monkeypatch.setattr(custom, "MAX_BYTES_IN_MEMORY", 0 if large else 2**31)
    monkeypatch.setattr(custom, "FIRST", 2)
    images = [COLOR + i for i in range(9)]
    ids = [1, 0, 2, 0, 1, 2, 0, 0, 1]
    for labels, expected in (
        ([np.int64(label) for label in ids], ids),
        ([float(label) for label in ids], ids),
        ([np.array([label]) for label in ids], ids),
        ([Tensor(np.array(label)) for label in ids], ids),
        ([None, *ids[1:]], [-1, *ids[1:]]),
    ):
        data = Counted(zip(images, labels, strict=True))
        source = as_source(data)
        assert isinstance(source, Items if large else Arrays)
        assert source.labels.tolist() == expected and data.reads == (2 + 9 if large else 9)
    # torchvision's data sets list their labels, before a transformation of labels.
    pairs = Counted(zip(images, ids, strict=True))
    pairs.targets = ids
    assert as_source(pairs).labels.tolist() == ids and pairs.reads == (2 if large else 9)
    pairs.targets = [7] * 9
    pairs.target_transform = lambda label: ids[label]
    assert as_source(pairs).labels.tolist() == ids
    given = Counted(images)
    assert as_source(given, ids).labels.tolist() == ids and given.reads == (2 if large else 9)


@pytest.mark.parametrize("large", [False, True])
def test_gray_images_among_rgb_images(large, monkeypatch):
    monkeypatch.setattr(custom, "MAX_BYTES_IN_MEMORY", 0 if large else 2**31)
    gray = Image.fromarray(COLOR[..., 0])
    source = as_source(Items3([gray, Image.fromarray(COLOR), COLOR]))
    found = np.stack([source[i]["image"] for i in range(3)])
    np.testing.assert_array_equal(found, [np.stack([COLOR[..., 0]] * 3, axis=-1), COLOR, COLOR])
    monkeypatch.setattr(custom, "FIRST", 1)
    if large:  # the first one is gray
        late = as_source(Items3([gray, COLOR]))
        with pytest.raises(UserError, match="item 1 of data has 3 channels"):
            late[1]
    else:
        assert as_source(Items3([gray, COLOR])).image_shape == (4, 4, 3)
        sizes = as_source(Items3([gray, COLOR[:2]]))
        assert [sizes[i]["image"].shape for i in range(2)] == [(4, 4, 3), (2, 4, 3)]


class Labelled(dict):
    """Splits by name."""


@pytest.mark.parametrize(
    ("data", "labels", "match"),
    [
        (Items3([(COLOR, 1), (COLOR, 1.7)]), None, "item 1 of data: label 1.7"),
        (Items3([(COLOR, float("inf"))]), None, "label inf"),
        (Items3([(COLOR, COLOR, 1)]), None, "item 0 of data: label array"),
        (Items3([{"image": COLOR, "label": [1, 2]}]), None, r"label \[1, 2\]"),
        (Items3([(COLOR, "cat"), (COLOR, 1)]), None, "data: .*integers.*strings"),
        (Items3([()]), None, "item 0 of data"),
        (Items3([COLOR, "cat.png"]), None, r"item 1 of data: .*\(\)"),
        (Broken([COLOR] * 3), None, "item 1 of data: ZeroDivisionError: division by zero"),
        (Labelled(train=[COLOR], test=[]), None, r"train, test.*data\['train'\]"),
        (Items3([COLOR, COLOR[..., :2]]), None, "images of 2 and 3 channels"),
        (np.stack([COLOR] * 2), [0], "2 integers"),
        (np.stack([COLOR] * 2), [0.5, 1], "0.5"),
        (np.stack([COLOR] * 2), [0, -2], "-2"),
        (7, None, "int"),
        ([], None, "empty"),
        (Items3([{"text": "a"}]), None, "text, but no 'image'"),
    ],
)
def test_invalid_data(data, labels, match):
    with pytest.raises(UserError, match=match):
        as_source(data, labels)
