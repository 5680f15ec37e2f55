"""The .mat file of NYU-Depth-V2: orientation, splits, random access, and what is wrong with it."""

import pickle

import h5py
import numpy as np
import pytest
from depth_cases import scenes, write_mat, write_splits
from test_cli import fails, run_py

from hypersphere_jax import data
from hypersphere_jax.config import DataConfig, UserError
from hypersphere_jax.data import nyu
from hypersphere_jax.data.source import UnreadableImage


@pytest.fixture
def mat(tmp_path):
    images, depths = scenes(20)
    names = [f"kitchen_{number // 2:04}" for number in range(20)]
    return write_mat(tmp_path / "nyu.mat", images, depths, names)


def test_a_known_picture_stands_upright(tmp_path):
    """Red in the upper left corner of an image that is wider than high, far away there."""
    images, depths = np.zeros((2, 4, 6, 3), np.uint8), np.ones((2, 4, 6), np.float32)
    images[1, 0, :2, 0], depths[1, 0, :2] = 200, 7.5
    source = nyu.MatSource(write_mat(tmp_path / "a.mat", images, depths))
    with h5py.File(tmp_path / "a.mat") as file:  # as MATLAB leaves it
        assert file["images"].shape == (2, 3, 6, 4) and file["depths"].shape == (2, 6, 4)
    assert source.image_shape == (4, 6, 3) and len(source) == 2
    sample = source[1]
    np.testing.assert_array_equal(sample["image"], images[1])
    np.testing.assert_array_equal(sample["depth"], depths[1])
    assert sample["image"][0, 1, 0] == 200 and sample["image"][1, 0, 0] == 0
    assert sample["image"].dtype == np.uint8 and sample["depth"].dtype == np.float32
    assert sample["label"] == -1 and not source[0]["image"].any()
    with pytest.raises(IndexError):
        source[2]


def test_the_authors_split(mat):
    train, test = np.arange(1, 20, 2), np.array([4, 0, 18])
    write_splits(mat.parent, train, test)
    found = data.load(DataConfig("nyu_depth_v2", str(mat)))
    images, depths = scenes(20)
    assert found.recipe == "nyu_depth" and found.pretrain is found.train
    assert [len(found.train), len(found.test)] == [10, 3]
    for i, number in enumerate(np.sort(test)):
        np.testing.assert_array_equal(found.test[i]["image"], images[number])
        np.testing.assert_array_equal(found.test[i]["depth"], depths[number])
    np.testing.assert_array_equal(found.train[2]["image"], images[5])
    assert "splits.mat" in found.origin


def test_without_it_whole_scenes_are_drawn(mat):
    found = data.load(DataConfig(str(mat)))  # a path by itself has the same recipe
    assert found.recipe == "nyu_depth" and "by scene" in found.origin
    parts = [set(part.indices // 2) for part in (found.train, found.test)]
    assert not parts[0] & parts[1] and parts[0] | parts[1] == set(range(10))
    assert len(found.train) == 12  # the first scenes that bring it to 795 / 1449 of 20
    again = data.load(DataConfig(str(mat)))
    assert again.digest() == found.digest()


def test_images_without_scenes_are_drawn_one_by_one(tmp_path):
    found = data.load(DataConfig(str(write_mat(tmp_path / "a.mat", *scenes(20)))))
    assert (len(found.train), len(found.test)) == (11, 9)


def test_one_large_scene_leaves_something_to_test(tmp_path):
    for names in ("aaaaaaaaab", "bbbbbbbbba"):
        train, test = nyu.open_mat(write_mat(tmp_path / f"{names}.mat", *scenes(10), names))
        assert sorted([len(train), len(test)]) == [1, 9]
    write_mat(tmp_path / "a.mat", *scenes(10), "aaaaaaaaaa")
    with pytest.raises(UserError, match="one scene"):
        nyu.open_mat(tmp_path / "a.mat")


def test_digest_and_pickle(mat, monkeypatch):
    source = nyu.MatSource(mat)
    again = pickle.loads(pickle.dumps(source))
    assert again.digest == source.digest
    np.testing.assert_array_equal(again[3]["depth"], source[3]["depth"])
    images, depths = scenes(20)
    names = [f"kitchen_{number // 2:04}" for number in range(20)]
    digests = {source.digest}
    for limit in (2**28, 0):  # read in whole, or by windows
        monkeypatch.setattr(nyu, "DIGEST_BYTES", limit)
        for value in (images[11, 5, 5, 0], images[11, 5, 5, 0] ^ 1):
            images[11, 5, 5, 0] = value
            other = mat.with_name(f"{limit}-{value}.mat")
            digests.add(nyu.MatSource(write_mat(other, images, depths, names)).digest)
    assert len(digests) == 4  # the first one twice


def test_mistakes_are_one_line(mat, tmp_path, capsys):
    def wrong(path, *parts):
        line = fails(capsys, "data", "inspect", "nyu_depth_v2", "--data-dir", str(path))
        assert all(part in line for part in parts), line

    wrong(tmp_path / "none.mat", "no file or folder")
    (tmp_path / "text.mat").write_text("MATLAB 5.0 MAT-file")
    wrong(tmp_path / "text.mat", "text.mat is no HDF5 file")
    with h5py.File(tmp_path / "other.mat", "w") as file:
        file["images"] = np.zeros((2, 3, 6, 4), np.uint8)
    wrong(tmp_path / "other.mat", "lacks 'depths'")
    images, depths = scenes(4)
    wrong(write_mat(tmp_path / "a.mat", images.astype(np.uint16), depths), "uint16", "uint8 [n, 3")
    wrong(write_mat(tmp_path / "b.mat", images, depths[:, :30]), "(4, 48, 30)", "(4, 3, 48, 36)")
    write_mat(tmp_path / "c.mat", images, depths, "abc")
    wrong(tmp_path / "c.mat", "4 images, but 3 scenes")
    for train, test in (([0, 1], [1, 2]), ([0], [20]), ([0, 1], [])):
        write_splits(tmp_path, np.array(train), np.array(test, int))
        wrong(mat, "splits.mat does not fit the 20 images")
    (tmp_path / "splits.mat").write_bytes(b"nothing")
    wrong(mat, "splits.mat cannot be read")


def test_damage_in_the_middle_is_that_images(tmp_path):
    """A checksum for each image, and one that does not hold."""
    path = write_mat(tmp_path / "a.mat", *scenes(3))
    with h5py.File(path, "a") as file:
        images = file["images"][:]
        del file["images"]
        file.create_dataset("images", data=images, chunks=(1, *images.shape[1:]), fletcher32=True)
        place = file["images"].id.get_chunk_info(1).byte_offset
    with open(path, "r+b") as stream:
        stream.seek(place + 100)
        stream.write(b"\x55\x33\x11")
    source = nyu.MatSource(path)
    assert source[0]["image"].shape == source[2]["image"].shape
    with pytest.raises(UnreadableImage, match="image 1 of"):
        source[1]


def test_inspect(mat, capsys):
    assert run_py.main(["data", "inspect", str(mat)]) == 0
    assert "36" in capsys.readouterr().out
