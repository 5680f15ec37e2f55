"""Custom data sets with `__len__` and `__getitem__`."""

import numpy as np
import pytest
from data_cases import equal, tensor
from PIL import Image

from hypersphere_jax.configs import UserError
from hypersphere_jax.data.custom import Items, as_source
from hypersphere_jax.data.source import Arrays

COLOR = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)


class Dataset(list):
    """A data set that counts how often it is read."""

    reads = 0

    def __getitem__(self, i):
        self.reads += 1
        return super().__getitem__(i)


class Large(Dataset):
    """1,100 images of 6 MB each, all the same except the first ones."""

    big = np.zeros((2048, 1024, 3), np.uint8)

    def __len__(self):
        return 1100

    def __getitem__(self, i):
        self.reads += 1
        return list.__getitem__(self, i) if i < list.__len__(self) else (self.big, i % 3)


class Torchvision(Large):
    """A data set that lists its labels."""

    targets = tuple(i % 2 for i in range(1100))


def test_items_are_images_pairs_or_dicts():
    colors = [COLOR, COLOR + 1, COLOR + 2]
    pairs = [*zip(colors, (1, 0, 2), strict=True)]
    dicts = [{"img": color, "label": label} for color, label in pairs]
    triples = [(*pair, "more") for pair in pairs]
    for data, labels in ((pairs, None), (dicts, None), (triples, None), (colors, [1, 0, 2])):
        source = as_source(Dataset(data), labels)
        assert source.labels.tolist() == [1, 0, 2]
        equal(source[1]["image"], COLOR + 1)
    for data in (colors, [(color,) for color in colors]):
        assert as_source(Dataset(data)).labels.tolist() == [-1] * 3


def test_images_of_different_sizes_stay_items():
    data = Dataset([(COLOR, 0), (COLOR[:2], 1)])
    source = as_source(data)
    assert isinstance(source, Items)
    assert source.image_shape is None
    assert [source[i]["image"].shape for i in (0, 1)] == [(4, 4, 3), (2, 4, 3)]
    other = as_source(Dataset([(COLOR, 0), (COLOR[:2] + 1, 1)]))
    relabelled = as_source(Dataset([(COLOR, 1), (COLOR[:2], 1)]))
    assert len({source.digest, other.digest, relabelled.digest}) == 3
    assert source.digest == as_source(Dataset(data)).digest


def test_each_item_of_a_small_data_set_is_read_once():
    data = Dataset((COLOR + i, tensor([i % 3])) for i in range(9))
    source = as_source(data)
    assert isinstance(source, Arrays)
    assert source.labels.tolist() == [0, 1, 2] * 3
    assert data.reads == 9


def test_large_data_sets_are_not_kept_in_memory():
    source = as_source(Large())
    assert isinstance(source, Items)
    assert source.labels.tolist() == [i % 3 for i in range(1100)]
    assert as_source(Large(), np.arange(1100) % 2).labels.tolist() == [0, 1] * 550
    data = Torchvision()
    assert as_source(data).labels.tolist() == [0, 1] * 550
    assert data.reads < 100


def test_gray_images_among_rgb_images_become_rgb():
    gray = Image.fromarray(COLOR[..., 0])
    expected = [np.stack([COLOR[..., 0]] * 3, axis=-1), COLOR, COLOR]
    source = as_source(Dataset([gray, Image.fromarray(COLOR), COLOR]))
    equal([source[i]["image"] for i in range(3)], expected)
    equal(as_source(Large([gray]))[0]["image"], expected[0])
    late = as_source(Large([(np.zeros((2048, 1024), np.uint8), 0)] * 64))
    with pytest.raises(UserError, match="100"):
        late[100]


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (Dataset([(COLOR, 1), (COLOR, 1.7)]), "1.7"),
        (Dataset([{"image": COLOR, "label": [1, 2]}]), r"\[1, 2\]"),
        (Dataset([COLOR, "cat.png"]), "1"),
        ({"train": [COLOR], "test": []}, "train"),
        (7, "int"),
        ([], "mine"),
    ],
)
def test_invalid_data_sets_are_refused(data, named):
    with pytest.raises(UserError, match=named):
        as_source(data, None, "mine")
