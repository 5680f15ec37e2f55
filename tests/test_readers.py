"""Files that others wrote or damaged, and pipes: read in full, or refused with the file's name."""

import os
import pickle

import numpy as np
import pytest

from hypersphere_jax import configs as C
from hypersphere_jax import data
from hypersphere_jax.data import image_files
from hypersphere_jax.evaluation.measure_runs import load_features
from hypersphere_jax.evaluation.probe_runs import read_splits
from hypersphere_jax.reporting import run_page
from hypersphere_jax.text.text_files import read_lines
from hypersphere_jax.training import run_dir
from hypersphere_jax.utils import caches
from hypersphere_jax.utils.arrays import array_names, open_array
from hypersphere_jax.utils.files import write_json

NOT_JSON = (b"", b"{", b"[]", b"null", b"\xff\xfe{}", b'{"a": ' + b"1" * 5000 + b"}", b"[" * 9000)


def run_record():
    session = {"device": {"count": 1}, "command": "python run.py pretrain", "from_step": 0}
    return {"config": C.to_dict(C.PretrainConfig()), "data_digest": "d", "sessions": [session]}


def test_a_record_with_another_entry_is_refused(tmp_path):
    for entry, value in (
        ("config", []),
        ("config", {"epohcs": 3}),
        ("config", {"epochs": "3"}),
        ("data_digest", 5),
        ("sessions", []),
        ("sessions", ["x"]),
        ("sessions", None),
    ):
        write_json(tmp_path / "config.json", run_record() | {entry: value})
        for read in (run_dir.read_config, run_page.write_run_page):
            with pytest.raises(C.UserError, match=r"config\.json"):
                read(tmp_path)


def test_damaged_results_are_left_out(tmp_path, caplog):
    (tmp_path / "run/eval").mkdir(parents=True)
    write_json(tmp_path / "run/config.json", run_record())
    write_json(tmp_path / "run/eval/sound.json", {"protocol": "knn", "top1": 51.25, "n": 9})
    for number, content in enumerate(NOT_JSON):
        (tmp_path / f"run/eval/{number}.json").write_bytes(content)
    os.mkfifo(tmp_path / "run/eval/pipe.json")
    assert [*run_page.read_results(tmp_path / "run")] == ["sound"]
    assert len(caplog.messages) == len(NOT_JSON) + 1
    assert "51.25" in run_page.write_run_page(tmp_path / "run").read_text()


FLOATS = np.arange(6, dtype="<f4").reshape(2, 3)
HUGE = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 1000000)}\n"
BAD_ARRAYS = {
    "pickle": pickle.dumps(FLOATS),
    "huge": b"\x93NUMPY\1\0" + len(HUGE).to_bytes(2, "little") + HUGE + FLOATS.tobytes(),
    "zip": b"PK\3\4cut short",
    "complex": FLOATS.astype(complex),
    "boolean": FLOATS > 2,
    "strings": FLOATS.astype("S4"),
    "dates": FLOATS.astype("M8[s]"),
}


@pytest.mark.parametrize("form", BAD_ARRAYS)
def test_files_without_numbers_are_refused(form, tmp_path):
    file = tmp_path / "a.npy"
    if isinstance(BAD_ARRAYS[form], bytes):
        file.write_bytes(BAD_ARRAYS[form])
    else:
        np.save(file, BAD_ARRAYS[form])
    for read in (open_array, load_features):
        with pytest.raises(C.UserError, match=r"a\.npy"):
            read(file)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_of_an_archive(save, tmp_path):
    file = tmp_path / "a.npz"
    save(file, a=FLOATS.T, b=np.array(["text"]), c=np.arange(300_000))
    assert array_names(file) == ["a", "b", "c"]
    np.testing.assert_array_equal(open_array(file, "a"), FLOATS.T)
    np.testing.assert_array_equal(open_array(file, "c"), np.arange(300_000))
    for name in (None, "b", "d"):
        with pytest.raises(C.UserError, match=r"a\.npz"):
            open_array(file, name)


class Evil:
    """An object that creates a folder when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("ran",)


@pytest.mark.parametrize("save", [np.save, np.savez])
def test_pickles_in_arrays_are_not_executed(save, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with open("a", "wb") as stream:
        save(stream, np.array([Evil()]))
    with pytest.raises(C.UserError):
        open_array("a")
    assert not os.path.exists("ran")


def test_pipes_are_refused(tmp_path):
    """Reading would wait for a pipe that nobody writes to."""
    names = ("a.npy", "a.npz", "a.mat", "a.zip", "photos/train/cat/1.png", "zips/train.zip")
    for name in (*names, "a.pos", "a.txt", "b/train_x.npy"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(tmp_path / name)
    for name in names:
        with pytest.raises(C.UserError, match=name.split("/")[0]):
            data.load(C.DataConfig(str(tmp_path / name.split("/")[0])))
    for read, name in (
        (read_splits, "b"),
        (load_features, "a.npy"),
        (lambda file: list(read_lines(file)), "a.pos"),
        (image_files.read_classes, "a.txt"),
    ):
        with pytest.raises(C.UserError, match=name):
            read(tmp_path / name)


ARRAYS = (np.arange(60, dtype=np.uint8).reshape(5, 4, 3), np.zeros((0, 3)), np.float32([[1, -2]]))


def test_caches_contain_what_was_written_or_are_not_read(tmp_path, rng, caplog):
    file = tmp_path / "made" / "images.npy"
    assert caches.read(file) is None
    caches.write(file, *ARRAYS)
    for found, array in zip(caches.read(file), ARRAYS, strict=True):
        np.testing.assert_array_equal(found, array, strict=True)
    whole = file.read_bytes()
    contents = [b"", whole[: len(whole) // 2], whole[:-1], whole + b"\n", whole * 2]
    for _ in range(30):
        changed = bytearray(whole)
        changed[rng.integers(len(whole))] ^= 1 << rng.integers(8)
        contents.append(bytes(changed))
    for number, content in enumerate(contents, 1):
        file.write_bytes(content)
        assert caches.read(file) is None
        assert len(caplog.records) == number
    file.with_name("others.npy").write_bytes(whole)  # a cache of another array
    assert caches.read(file.with_name("others.npy")) is None
