"""The .mat file of NYU-Depth-V2: orientation, splits, random access, and damage."""

import pickle

import h5py
import numpy as np
import pytest
from depth_cases import scenes, write_mat

from hypersphere_jax.configs import DataConfig, UserError
from hypersphere_jax.data import load
from hypersphere_jax.depth import nyu


def test_orientation(tmp_path):
    """The upper left corner of a wide image is red and far away."""
    images, depths = np.zeros((2, 4, 6, 3), np.uint8), np.ones((2, 4, 6), np.float32)
    images[1, 0, :2, 0], depths[1, 0, :2] = 200, 7.5
    source = nyu.MatSource(write_mat(tmp_path, images, depths))
    source = pickle.loads(pickle.dumps(source))
    assert source.image_shape == (4, 6, 3) and source.labels.tolist() == [-1, -1]
    for i in range(2):
        np.testing.assert_array_equal(source[i]["image"], images[i])
        np.testing.assert_array_equal(source[i]["depth"], depths[i])


def test_the_authors_split(tmp_path):
    images, depths = scenes(20)
    file = write_mat(tmp_path, images, depths, range(1, 20, 2), [4, 0, 18])
    found = load(DataConfig("nyu_depth_v2", str(file)))
    assert found.recipe == "nyu_depth" and found.pretrain is found.train
    assert found.train.indices.tolist() == list(range(1, 20, 2))
    assert found.test.indices.tolist() == [0, 4, 18]
    np.testing.assert_array_equal(found.test[1]["image"], images[4])
    np.testing.assert_array_equal(found.test[1]["depth"], depths[4])
    other = write_mat(tmp_path / "other", images, depths, [0, 1], [1, 2])
    (tmp_path / "splits.mat").unlink()
    for damaged in (file, other):
        with pytest.raises(UserError, match=r"splits\.mat"):
            nyu.open_mat(damaged)


@pytest.mark.parametrize("form", ["empty", "float images", "no depths", "truncated"])
def test_invalid_and_truncated_files_are_refused(tmp_path, form):
    file = tmp_path / "nyu.mat"
    height = 0 if form == "empty" else 6
    with h5py.File(file, "w") as content:
        dtype = "f4" if form == "float images" else "u1"
        content["images"] = np.ones((4, 3, height, 5), dtype)
        if form != "no depths":
            content["depths"] = np.ones((4, height, 5), "f4")
    if form == "truncated":
        file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(UserError, match=str(file)):
        nyu.open_mat(file)
