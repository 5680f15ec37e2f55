"""Caches: what was written is read, and nothing else is taken."""

import shutil

import numpy as np
import pytest

from hypersphere_jax.utils import caches

ARRAYS = (np.arange(60, dtype=np.uint8).reshape(5, 4, 3), np.zeros((0, 3)), np.float32([[1, -2]]))


@pytest.fixture
def file(tmp_path):
    caches.write(tmp_path / "made" / "images.npy", *ARRAYS)
    return tmp_path / "made" / "images.npy"


def test_what_was_written_is_read(file, caplog):
    for found, array in zip(caches.read(file), ARRAYS, strict=True):
        np.testing.assert_array_equal(found, array, strict=True)
        assert not found.flags.writeable or not found.size
    np.testing.assert_array_equal(np.load(file), ARRAYS[0])
    assert caches.read(file.with_name("another.npy")) is None
    assert not caplog.text  # that there is none is nothing to tell


def test_nothing_else_is_taken(file, rng, caplog):
    whole = file.read_bytes()
    changed = [bytearray(whole) for _ in range(40)]
    for content in changed:
        content[rng.integers(len(whole))] ^= 1 << rng.integers(8)
    ends = [b"", whole[:3], whole[: len(whole) // 2], whole[:-1], whole + b"\n", whole * 2]
    for number, content in enumerate([*changed, *ends], 1):
        file.write_bytes(content)
        assert caches.read(file) is None
        assert len(caplog.records) == number and "computed again" in caplog.text
    np.save(file, np.zeros((7, 2)))  # as it was without a checksum
    assert caches.read(file) is None
    file.write_bytes(whole)
    other = shutil.copy(file, file.with_name("others.npy"))
    assert caches.read(file) and caches.read(other) is None  # of something else
