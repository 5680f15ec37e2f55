"""Conversion of images and labels: the same values through every entry point."""

import jax.numpy as jnp
import numpy as np
import pytest
from data_cases import equal, tensor

import hypersphere_jax as hj
from hypersphere_jax.configs import UserError
from hypersphere_jax.data.custom import as_source
from hypersphere_jax.data.inputs import as_image, as_images

COLORS = np.random.default_rng(0).integers(0, 256, (3, 6, 5, 3), np.uint8)
COLORS[0, 0, 0] = 0, 128, 255
GRAYS = COLORS[..., :1]
UNIT = COLORS / 255
FLOATS = (np.float64, np.float32, np.float16, jnp.bfloat16, np.longdouble)

ENTRIES = {
    "array": lambda images: as_source(images).images,
    "list": lambda images: as_source(list(images)).images,
    "pairs": lambda images: as_source([(image, 0) for image in images]).images,
    "batch": lambda images: as_images(images, "images"),
    "items": lambda images: np.stack([as_image(image) for image in images]),
}
FORMS = {
    "uint8": (COLORS, COLORS),
    "gray": (GRAYS, GRAYS),
    "gray without an axis": (GRAYS[..., 0], GRAYS),
    "boolean": (COLORS > 99, 255 * (COLORS > 99)),
    "int64": (COLORS.astype(np.int64), COLORS),
    "tensor": (tensor(COLORS), COLORS),
    "tensor bfloat16": (tensor(UNIT.astype(jnp.bfloat16)), COLORS),
    **{f"{np.dtype(dtype)}": (UNIT.astype(dtype), COLORS) for dtype in FLOATS},
    "nearest": (np.full((1, 2, 2, 1), 0.3), np.full((1, 2, 2, 1), 76)),  # 76.5 - 1e-14
}


@pytest.mark.parametrize("form", FORMS)
def test_images_are_the_same_through_all_entries(form):
    images, expected = FORMS[form]
    for entry, pixels in ENTRIES.items():
        found = pixels(images)
        assert found.dtype == np.uint8, entry
        equal(found, expected, entry)


INVALID = [
    *[np.where(COLORS == 128, np.nan, UNIT).astype(dtype) for dtype in FLOATS],
    np.where(COLORS == 255, np.inf, UNIT),
    COLORS * np.float32(1),
    COLORS.astype(np.int16) - 1,
    COLORS.astype(np.uint16) + 1,
    np.zeros((3, 2, 2, 9), np.uint8),
    np.zeros(4, np.uint8),
]


@pytest.mark.parametrize("images", INVALID)
def test_invalid_images_are_refused(images):
    for entry in ("array", "pairs", "batch"):
        with pytest.raises(UserError):
            ENTRIES[entry](images)


@pytest.mark.parametrize("c", [1, 3, 4])
def test_channels_first_arrays_are_refused(c):
    """PyTorch's batches and single images too; items of torchvision's data sets are allowed."""
    images = np.random.default_rng(0).integers(0, 256, (2, c, 32, 40), np.uint8)
    moved = images.transpose(0, 2, 3, 1)
    for given in (images, images / 255, jnp.asarray(images), tensor(images), moved[0]):
        with pytest.raises(UserError):
            as_source(given)
    with pytest.raises(UserError):
        as_source(list(images))
    equal(ENTRIES["list"](tensor(images)), moved)
    equal(as_source(moved).images, moved)


NUMBERS = np.array([3, 0, 2, 2, 0, 3, 1, 0])
PETS = np.array(["dog", "ant", "cat", "cat", "ant", "dog", "bee", "ant"])
IMAGES = np.zeros((8, 4, 4, 1), np.uint8)
NAMES = ["ant", "bee", "cat", "dog"]
# Labels, and the classes in ascending order.
LABELS = {
    **{dtype: (NUMBERS.astype(dtype), [0, 1, 2, 3]) for dtype in ("i1", ">i4", ">u8", "f2", "f8")},
    "list": (NUMBERS.tolist(), [0, 1, 2, 3]),
    "bfloat16": (jnp.asarray(NUMBERS, jnp.bfloat16), [0, 1, 2, 3]),
    "tensor": (tensor(NUMBERS), [0, 1, 2, 3]),
    "2^70": ([2**70 + int(i) for i in NUMBERS], [2**70 + i for i in range(4)]),
    "strings": (PETS, NAMES),
    "bytes": (PETS.astype(bytes), NAMES),
}


@pytest.mark.parametrize("form", LABELS)
def test_labels_are_numbered_in_ascending_order(form):
    labels, classes = LABELS[form]
    for source in (as_source(IMAGES, labels), as_source(list(zip(IMAGES, labels, strict=True)))):
        assert source.labels.dtype == np.int32
        assert source.labels.tolist() == NUMBERS.tolist()
        assert source.class_names == tuple(map(str, classes))
    # The train and test labels of a probe each lack a class.
    x = np.random.default_rng(0).normal(size=(8, 3))
    result = hj.knn_probe(x[:6], labels[:6], x[2:], labels[2:], k=1)
    assert result.get("classes", [0, 1, 2, 3]) == classes
    assert result["targets"] == NUMBERS[2:].tolist()


UNLABELED = ([7, -1, 0, -1], np.array([7, -1, 0, -1], np.int8), [7, None, 0, None])


@pytest.mark.parametrize("labels", [*UNLABELED, ["b", None, "a", None]])
def test_unlabeled_images(labels):
    source = as_source(IMAGES[:4], labels)
    assert source.labels.tolist() == [1, -1, 0, -1]
    assert len(source.class_names) == 2
    assert as_source(IMAGES[:4], [-1] * 4).class_names == ()


WRONG = [
    np.where(NUMBERS == 2, np.nan, NUMBERS),
    NUMBERS + 0.5,
    NUMBERS - 5,
    ["a", "b", 1, "c", "a", "b", "c", "c"],
    [0, 1, [2], 1, 0, 1, 0, 1],
    NUMBERS[:5],
    7,
]


@pytest.mark.parametrize("wrong", WRONG)
def test_invalid_labels_are_refused(wrong):
    x = np.random.default_rng(0).normal(size=(8, 3))
    with pytest.raises(UserError, match="train"):
        hj.knn_probe(x, wrong, x, NUMBERS)
    with pytest.raises(UserError):
        as_source(IMAGES, wrong)
