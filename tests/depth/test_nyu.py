"""The .mat file of NYU-Depth-V2: orientation, splits, random access, and damage."""

import pickle

import h5py
import numpy as np
import pytest
from data_cases import equal, why
from depth_cases import scenes, write_mat, write_splits

from hypersphere_jax.configs import DataConfig
from hypersphere_jax.data import load
from hypersphere_jax.depth import nyu


@pytest.fixture
def mat(tmp_path):
    return write_mat(tmp_path / "nyu.mat", *scenes(20), "aabbccddeeffgghhiijj")


def test_orientation(tmp_path):
    """The upper left corner of a wide image is red and far away."""
    images, depths = np.zeros((2, 4, 6, 3), np.uint8), np.ones((2, 4, 6), np.float32)
    images[1, 0, :2, 0], depths[1, 0, :2] = 200, 7.5
    source = nyu.MatSource(write_mat(tmp_path / "a.mat", images, depths))
    assert source.image_shape == (4, 6, 3) and source.labels.tolist() == [-1, -1]
    for copy in (source, pickle.loads(pickle.dumps(source))):
        for i, sample in enumerate(copy):
            equal(sample["image"], images[i])
            equal(sample["depth"], depths[i])
            assert sample["image"].dtype == np.uint8 and sample["depth"].dtype == np.float32
        assert i == 1 and sample["label"] == -1


def test_the_authors_split(mat):
    write_splits(mat.parent, range(1, 20, 2), [4, 0, 18])
    found, (images, depths) = load(DataConfig("nyu_depth_v2", str(mat))), scenes(20)
    assert found.recipe == "nyu_depth" and found.pretrain is found.train
    assert found.train.indices.tolist() == list(range(1, 20, 2))
    assert found.test.indices.tolist() == [0, 4, 18] and "splits.mat" in found.origin
    equal(found.test[1]["image"], images[4])
    equal(found.test[1]["depth"], depths[4])
    write_splits(mat.parent, [0, 1], [1, 2])
    assert "splits.mat" in why(nyu.open_mat, mat)


def test_split_by_scene(mat, tmp_path):
    found = load(DataConfig(str(mat)))
    assert found.recipe == "nyu_depth" and "by scene" in found.origin
    parts = [set(part.indices // 2) for part in (found.train, found.test)]
    assert parts == [{1, 2, 4, 6, 8, 9}, {0, 3, 5, 7}]
    # Without names each image is a scene. One large scene leaves test images.
    for names, sizes in ((None, (6, 4)), ("aaaaaaaaab", (1, 9)), ("bbbbbbbbba", (9, 1))):
        found = nyu.open_mat(write_mat(tmp_path / f"{names}.mat", *scenes(10), names))
        assert tuple(map(len, found)) == sizes


def test_digest(mat):
    images, depths = scenes(20)
    images[11, 5, 5, 0] ^= 1
    other = write_mat(mat.with_name("other.mat"), images, depths)
    assert nyu.MatSource(mat).digest != nyu.MatSource(other).digest
    mat.write_bytes(mat.read_bytes()[:100])
    assert str(mat) in why(load, DataConfig(str(mat)))


def test_invalid_files_are_refused(tmp_path):
    images = ((4, 3, 6, 5), "u1")
    depths = ((4, 6, 5), "f4")
    valid = {"images": images, "depths": depths}
    cases = (
        valid,
        {"images": ((4, 3, 0, 5), "u1"), "depths": ((4, 0, 5), "f4")},
        valid | {"images": (images[0], "f4")},
        valid | {"images": ((4, 1, 6, 5), "u1")},
        valid | {"depths": (depths[0], "c8")},
        valid | {"depths": (depths[0], "S3")},
        valid | {"depths": ((), "f4")},
        {"images": images},
        valid | {"scenes": ((4, 1), "f4")},
        valid | {"scenes": ((3, 1), "f4")},
    )
    for number, declared in enumerate(cases):
        file = tmp_path / f"{number}.mat"
        with h5py.File(file, "w") as content:
            for name, (shape, dtype) in declared.items():
                content[name] = np.ones(shape, dtype)
        if declared is valid:
            assert len(nyu.MatSource(file)) == 4
        else:
            line = why(nyu.open_mat, file)
            assert str(file) in line and "\n" not in line, declared
