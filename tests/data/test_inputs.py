"""Conversion of images and labels: the same values through every entry point."""

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import hypersphere_jax as hj
from hypersphere_jax import data
from hypersphere_jax.configs import DataConfig, UserError
from hypersphere_jax.data.custom import as_source
from hypersphere_jax.data.inputs import as_image, as_images

COLORS = np.random.default_rng(0).integers(0, 256, (3, 6, 5, 3), np.uint8)
COLORS[0, 0, 0] = 0, 128, 255
GRAYS = COLORS[..., :1]


class Tensor:
    """A tensor of PyTorch: no NumPy array while it needs a gradient or is bfloat16."""

    __module__ = "torch"

    def __init__(self, array, ready=True):
        self.array, self.shape, self.ready = array, array.shape, ready

    def detach(self):
        return Tensor(self.array, ready=not self._is_bfloat16())

    def cpu(self):
        return self

    def float(self):
        return Tensor(self.array.astype(np.float32))

    def is_floating_point(self):
        return self.array.dtype.kind in "fV"

    def element_size(self):
        return self.array.itemsize

    def _is_bfloat16(self):
        return self.array.dtype == jnp.bfloat16

    def __array__(self, dtype=None, copy=None):
        if not self.ready:
            raise TypeError("Got unsupported ScalarType BFloat16")
        return np.asarray(self.array)

    def __len__(self):
        return len(self.array)

    def __getitem__(self, i):
        return Tensor(self.array[i], self.ready)


class Pairs:
    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.images[i], 0


def of_file(images, folder):
    np.save(folder / "images.npy", images)
    return data.load(DataConfig(data=str(folder / "images.npy"), folds=3)).train.source.images


ENTRIES = {
    "array": lambda images: as_source(images).images,
    "list": lambda images: as_source(list(images)).images,
    "data set": lambda images: as_source(Pairs(images)).images,
    "test": lambda images: as_source(as_source(images)).images,
    "batch": lambda images: as_images(images, "images"),
    "items": lambda images: np.stack([as_image(image) for image in images]),
}
WIDTHS = (np.float64, np.float32, np.float16, jnp.bfloat16, np.longdouble)
FORMS = {
    "uint8": (COLORS, COLORS),
    "gray": (GRAYS, GRAYS),
    "gray without an axis": (GRAYS[..., 0], GRAYS),
    "six channels": (np.concatenate([COLORS] * 2, -1), np.concatenate([COLORS] * 2, -1)),
    "two channels": (COLORS[..., :2], COLORS[..., :2]),
    "read-only, reversed": (COLORS[:, ::-1], COLORS[:, ::-1]),
    "boolean": (COLORS > 99, 255 * (COLORS > 99)),
    "int64": (COLORS.astype(np.int64), COLORS),
    "int8": ((COLORS // 2).astype(np.int8), COLORS // 2),
    "big-endian": (COLORS.astype(">u2"), COLORS),
    "jax": (jnp.asarray(COLORS), COLORS),
    "jax floats": (jnp.asarray(COLORS / 255, jnp.float32), COLORS),
    "tensor": (Tensor(COLORS), COLORS),
    "tensor bfloat16": (Tensor((COLORS / 255).astype(jnp.bfloat16), ready=False), COLORS),
    **{f"{np.dtype(w)}": ((COLORS / 255).astype(w), COLORS) for w in WIDTHS},
    "nearest": (np.full((1, 2, 2, 1), 0.3), np.full((1, 2, 2, 1), 76, np.uint8)),  # 76.5 - 1e-14
}


@pytest.mark.parametrize("form", FORMS)
def test_images_are_the_same_through_all_entries(form):
    images, expected = FORMS[form]
    for entry, pixels in ENTRIES.items():
        found = pixels(images)
        assert found.dtype == np.uint8, entry
        np.testing.assert_array_equal(found, expected, err_msg=entry)


def test_array_files_are_converted_like_arrays(tmp_path):
    for images in (COLORS, COLORS / 255, (COLORS / 255).astype(np.float16), COLORS.astype(int)):
        np.testing.assert_array_equal(of_file(images, tmp_path), COLORS)
    with pytest.raises(UserError, match="transpose"):
        of_file(np.zeros((3, 3, 32, 32), np.uint8), tmp_path)


def nan_among(images):
    images = images.copy()
    images[-1, 2, 2, 1] = np.nan
    return images


@pytest.mark.parametrize(
    ("images", "match"),
    [
        *[(nan_among((COLORS / 255).astype(w)), "nan") for w in WIDTHS],
        (COLORS / 254.0, "1.00"),
        (COLORS / 255 - 1e-6, "-1e-06"),
        (np.where(COLORS == 255, np.inf, COLORS / 255), "inf"),
        (COLORS * np.float32(1), "255"),
        (COLORS.astype(np.int16) - 1, "-1"),
        (COLORS.astype(np.uint16) + 1, "256"),
        (COLORS.astype(complex), "complex"),
        (COLORS.astype(str), "dtype"),
    ],
)
def test_invalid_pixel_values(images, match):
    for entry in ("array", "list", "data set", "batch"):
        with pytest.raises(UserError, match=match):
            ENTRIES[entry](images)


@pytest.mark.parametrize("c", [1, 2, 3, 4, 13])
@pytest.mark.parametrize("size", [(32, 32), (28, 40)])
def test_channels_first(c, size):
    """Arrays and batches of tensors are refused, with the conversion that makes them fit."""
    if c == 13 and size[0] != size[1]:
        return
    images = np.random.default_rng(0).integers(0, 256, (2, c, *size), np.uint8)
    moved = images.transpose(0, 2, 3, 1)
    for given in (images, images / 255, jnp.asarray(images)):
        with pytest.raises(UserError, match=r"images\.transpose\(0, 2, 3, 1\)"):
            ENTRIES["array"](given)
    with pytest.raises(UserError, match=r"images\.permute\(0, 2, 3, 1\)"):
        ENTRIES["array"](Tensor(images))
    for entry in ("list", "data set"):
        with pytest.raises(UserError, match=r"image\.transpose\(1, 2, 0\)"):
            ENTRIES[entry](images)
        # Items of torchvision's data sets are [c, h, w].
        np.testing.assert_array_equal(ENTRIES[entry](Tensor(images)), moved)
    np.testing.assert_array_equal(ENTRIES["array"](moved), moved)


def test_a_single_image_is_refused_as_a_batch():
    for image in (COLORS[0], GRAYS[0], COLORS[0] / 255, Tensor(COLORS[0])):
        with pytest.raises(UserError, match=r"\[None\]"):
            as_source(image)
    for image in (COLORS[0], COLORS[0] / 255, Image.fromarray(COLORS[0])):
        np.testing.assert_array_equal(as_source([image]).images, COLORS[:1])


NUMBERS = np.array([3, 0, 2, 2, 0, 3, 1, 0])
PETS = np.array(["dog", "ant", "cat", "cat", "ant", "dog", "bee", "ant"])
INTEGERS = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", ">i4", ">u8", "f2", "f8")
SMALL = {
    **{dtype: NUMBERS.astype(dtype) for dtype in INTEGERS},
    "list": NUMBERS.tolist(),
    "tuple": tuple(NUMBERS),
    "objects": NUMBERS.astype(object),
    "jax": jnp.asarray(NUMBERS),
    "int4": jnp.asarray(NUMBERS, jnp.int4),
    "bfloat16": jnp.asarray(NUMBERS, jnp.bfloat16),
    "tensor": Tensor(NUMBERS),
    "list of tensors": [Tensor(number) for number in NUMBERS],
}
# Labels, and the classes in ascending order.
OTHER = {
    "1 to 4": (NUMBERS + 1, [1, 2, 3, 4]),
    "10^5": (NUMBERS * 10**5, [0, 10**5, 2 * 10**5, 3 * 10**5]),
    "2^32": (NUMBERS.astype(np.int64) + 2**32, [2**32 + i for i in range(4)]),
    "2^63": (NUMBERS.astype(np.uint64) + np.uint64(2**63), [2**63 + i for i in range(4)]),
    "2^70": ([2**70 + int(i) for i in NUMBERS], [2**70 + i for i in range(4)]),
    "strings": (PETS, ["ant", "bee", "cat", "dog"]),
    "bytes": (PETS.astype(bytes), ["ant", "bee", "cat", "dog"]),
    "objects": (PETS.astype(object), ["ant", "bee", "cat", "dog"]),
    "list": (PETS.tolist(), ["ant", "bee", "cat", "dog"]),
    "digits": (NUMBERS.astype(str), ["0", "1", "2", "3"]),
}


def probed(labels):
    """Result of a probe whose train and test labels each lack a class."""
    x = np.random.default_rng(0).normal(size=(8, 3))
    train, test = slice(0, 6), slice(2, 8)
    return hj.knn_probe(x[train], labels[train], x[test], labels[test], k=1)


@pytest.mark.parametrize("form", SMALL)
def test_small_integers_are_class_ids(form):
    labels = SMALL[form]
    images = np.zeros((8, 4, 4, 1), np.uint8)
    for source in (as_source(images, labels), as_source(list(zip(images, labels, strict=True)))):
        assert source.labels.dtype == np.int32 and source.labels.tolist() == NUMBERS.tolist()
        assert source.class_names == ("0", "1", "2", "3")
    result = probed(labels)
    assert "classes" not in result and result["num_classes"] == 4
    assert result["targets"] == NUMBERS[2:].tolist() and result["top5"] is None


@pytest.mark.parametrize("form", OTHER)
def test_any_labels_are_numbered_in_order(form):
    labels, classes = OTHER[form]
    result = probed(labels)
    assert result["classes"] == classes and result["num_classes"] == 4 and result["top5"] is None
    assert result["targets"] == NUMBERS[2:].tolist()
    images = np.zeros((8, 4, 4, 1), np.uint8)
    for source in (as_source(images, labels), as_source(list(zip(images, labels, strict=True)))):
        assert [source.class_names[label] for label in source.labels] == [
            str(classes[number]) for number in NUMBERS
        ]
        assert source.labels.tolist() == NUMBERS.tolist()
        assert source.class_names == tuple(map(str, classes))


def test_boolean_labels():
    result = probed(NUMBERS > 1)
    assert result["num_classes"] == 2 and result["targets"] == (NUMBERS[2:] > 1).tolist()


def test_unlabeled_images():
    images = np.zeros((4, 4, 4, 1), np.uint8)
    for labels in ([7, -1, 0, -1], np.array([7, -1, 0, -1], np.int8), [7, None, 0, None]):
        assert as_source(images, labels).labels.tolist() == [1, -1, 0, -1]
    for labels in (["b", None, "a", None], [2**40, -1, 2**33, -1]):
        source = as_source(list(zip(images, labels, strict=True)))
        assert source.labels.tolist() == [1, -1, 0, -1] and len(source.class_names) == 2
    assert as_source(images, [-1] * 4).class_names == ()


@pytest.mark.parametrize("probe", [hj.knn_probe, hj.linear_probe])
@pytest.mark.parametrize("side", ["train", "test"])
def test_probes_refuse_unlabeled_rows(probe, side):
    x = np.random.default_rng(0).normal(size=(8, 3))
    for dtype in (np.int8, np.int64, np.float32, object):
        wrong = np.where(NUMBERS == 2, -1, NUMBERS).astype(dtype)
        labels = (wrong, NUMBERS) if side == "train" else (NUMBERS, wrong)
        with pytest.raises(UserError, match=rf"{side} labels.*-1 .*labels >= 0"):
            probe(x, labels[0], x, labels[1])


@pytest.mark.parametrize(
    "wrong",
    [
        np.where(NUMBERS == 2, np.nan, NUMBERS),
        NUMBERS + 0.5,
        NUMBERS - 5,
        NUMBERS.astype(complex),
        NUMBERS.astype("M8[D]"),
        ["a", "b", 1, "c", "a", "b", "c", "c"],
        [0, 1, [2], 1, 0, 1, 0, 1],
        NUMBERS[:, None],
        NUMBERS[:5],
        7,
        None,
    ],
)
def test_invalid_labels(wrong):
    x = np.random.default_rng(0).normal(size=(8, 3))
    with pytest.raises(UserError, match="train labels"):
        hj.knn_probe(x, wrong, x, NUMBERS)
    if wrong is not None:
        with pytest.raises(UserError, match="data"):
            as_source(np.zeros((8, 4, 4, 1), np.uint8), wrong)


def test_splits_have_one_kind_of_labels():
    x = np.random.default_rng(0).normal(size=(8, 3))
    with pytest.raises(UserError, match=r"integers.*strings"):
        hj.linear_probe(x, NUMBERS, x, PETS)
    for num_classes, labels in ((3, NUMBERS), (4, PETS), (0, NUMBERS)):
        with pytest.raises(UserError, match=f"num_classes={num_classes}"):
            hj.knn_probe(x, labels, x, labels, num_classes=num_classes)
