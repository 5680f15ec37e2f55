"""JSON records and arrays that others wrote or damaged, and pipes, in all that reads them."""

import io
import itertools
import os
import shutil
import zipfile

import numpy as np
import pytest

from hypersphere_jax import data, encoder
from hypersphere_jax.configs import (
    DataConfig,
    PretrainConfig,
    UserError,
    to_dict,
)
from hypersphere_jax.data import image_files
from hypersphere_jax.evaluate import feature_files
from hypersphere_jax.reporting import results, run_page
from hypersphere_jax.text.corpus import Corpus
from hypersphere_jax.text.labelled import load_labelled
from hypersphere_jax.text.text_data import load_text
from hypersphere_jax.training import run_dir
from hypersphere_jax.utils.arrays import array_names, mapped, open_array
from hypersphere_jax.utils.files import read_json, read_kept, write_json


def line_of(action, *arguments):
    """The error that it ends with, one line."""
    with pytest.raises(UserError) as caught:
        action(*arguments)
    line = str(caught.value)
    assert "\n" not in line and len(line) < 900
    return line


NO_RECORDS = (
    *(b"", b"{", b"5", b"[]", b'"x"', b"null", b"\xff\xfe{}", b"\0" * 100, b"{'a': 1}"),
    *(b'{"a": ' + b"1" * 5000 + b"}", b"[" * 100_000),
)


def run_record():
    session = {"device": {"count": 1}, "command": "python run.py pretrain", "from_step": 0}
    return {"config": to_dict(PretrainConfig()), "data_digest": "d", "sessions": [session]}


# Functions that read a JSON record, by the name of its file.
READERS = {
    "config.json": lambda file: run_dir.read_config(file.parent),
    "corpus.json": lambda file: Corpus(file.parent, "train"),
    "result.json": lambda file: read_json(file, ("top1",)),
}


@pytest.mark.parametrize("name", READERS)
def test_damaged_records_are_refused(name, tmp_path):
    file, read = tmp_path / name, READERS[name]
    for content in NO_RECORDS:
        file.write_bytes(content)
        assert str(file) in line_of(read, file), content[:30]
    file.unlink()
    assert str(file) in line_of(read, file)
    file.mkdir()
    assert str(file) in line_of(read, file)
    file.rmdir()
    os.mkfifo(file)
    assert str(file) in line_of(read, file)


@pytest.mark.parametrize("key", ["config", "data_digest", "sessions"])
def test_a_record_without_a_key_is_refused(key, tmp_path):
    record = run_record()
    del record[key]
    write_json(tmp_path / "config.json", record)
    assert key in line_of(run_dir.read_config, tmp_path)


@pytest.mark.parametrize(
    ("option", "value"), [("epochs", "3"), ("dim", None), ("width", []), ("epohcs", 3)]
)
def test_a_record_with_another_value_is_refused(option, value, tmp_path):
    record = run_record()
    record["config"][option] = value
    write_json(tmp_path / "config.json", record)
    line = line_of(run_dir.read_config, tmp_path)
    assert option in line and str(tmp_path) in line


def test_damaged_results_are_left_out(tmp_path, caplog):
    """A damaged result does not keep the others from being shown."""
    (tmp_path / "run/eval").mkdir(parents=True)
    write_json(tmp_path / "run/config.json", run_record())
    write_json(tmp_path / "run/eval/sound.json", {"protocol": "knn", "top1": 50.0, "n": 9})
    for number, content in enumerate(NO_RECORDS):
        (tmp_path / f"run/eval/{number}.json").write_bytes(content)
    os.mkfifo(tmp_path / "run/eval/pipe.json")
    assert [*results.read_results(tmp_path / "run")] == ["sound"]
    assert len(caplog.messages) == len(NO_RECORDS) + 1
    assert not any("\n" in line for line in caplog.messages)
    assert "50.0" in run_page.write_run_page(tmp_path / "run").read_text()
    assert read_kept(tmp_path / "nothing.json") is None


def test_a_byte_order_mark_is_ignored(tmp_path):
    (tmp_path / "a.json").write_bytes(b'\xef\xbb\xbf{"a": 1, "b": NaN}')
    assert read_json(tmp_path / "a.json", ("a", "b"))["a"] == 1
    assert "c" in line_of(read_json, tmp_path / "a.json", ("a", "c"))


def header(shape="(2, 3)", dtype="'<f4'", order="False", version=1):
    text = f"{{'descr': {dtype}, 'fortran_order': {order}, 'shape': {shape}, }}\n".encode()
    size = len(text).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + size + text


FLOATS = np.arange(6, dtype="<f4").reshape(2, 3)
NO_ARRAYS = {
    b"": "no .npy or .npz file",
    b"neither": "no .npy or .npz file",
    b"\x93NUMPY": "no .npy or .npz file",
    b"\x93NUMPY\x01\x02" + header()[8:] + bytes(24): "no .npy or .npz file",
    header()[:40]: "header is damaged",
    header() + bytes(23): "declares (2, 3), 24 bytes, but 23 follow",
    header() + bytes(25): "longer than its header says",
    header("(1000000000000, 1000000)")
    + bytes(24): "4,000,000,000,000,000,000 bytes, but 24 follow",
    header("(0, 99999999999999999999)"): "cannot be read",
    header("(-2, -3)") + bytes(24): "has the shape (-2, -3)",
    header("(True,)") + bytes(4): "has the shape (True,)",
    header("(2 3)") + bytes(24): "has the shape (2 3)",
    header("(" + "1, " * 40 + ")") + bytes(4): "has the shape (1, 1",
    header("(" * 5000) + bytes(24): "header is damaged",
    header("(2, 3), 'shape': {}") + bytes(24): "header is damaged",
    header(dtype="'|O'") + b"cos\nsystem\n(S'true'\ntR.": "holds '|O', not integers or floating",
    header(dtype="'<c8'") + bytes(48): "holds '<c8', not integers",
    header(dtype="'|S4'") + bytes(24): "holds '|S4', not integers",
    header(dtype="'<U1'") + bytes(24): "holds '<U1', not integers",
    header(dtype="'|b1'") + bytes(6): "holds '|b1', not integers",
    header(dtype="'<M8[ns]'") + bytes(48): "holds '<M8[ns]', not integers",
    header(dtype="[('a', '<f4')]") + bytes(24): "not integers",
    header(dtype="'<f3'") + bytes(18): "cannot be read",
    b"PK\3\4cut short": "not a zip file",
}


def zipped(members, method=zipfile.ZIP_DEFLATED, change=lambda data: data):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, content in members:
            archive.writestr(f"{name}.npy", content)
    return change(stream.getvalue())


def with_sizes(data, name, **fields):
    """A zip file whose directory says something else of its members than is so."""
    place = {"flags": 8, "method": 10, "packed": 20, "size": 24}[name]
    width = 2 if place < 16 else 4
    start = data.index(b"PK\1\2") + place
    return data[:start] + fields["value"].to_bytes(width, "little") + data[start + width :]


SOUND = header() + FLOATS.tobytes()
ZEROS = header("(3000000,)") + bytes(12_000_000)


def test_what_is_no_array(tmp_path):
    file, archive = tmp_path / "a.npy", tmp_path / "a.npz"
    for content, said in NO_ARRAYS.items():
        file.write_bytes(content)
        line = line_of(open_array, file)
        assert line.startswith(f"{file} cannot be read") and said in line, content[:99]
        for zips in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            archive.write_bytes(zipped([("a", content)], zips))
            assert f"{archive} cannot be read" in line_of(open_array, archive, "a"), content[:99]
        for load in (
            lambda: data.load(DataConfig(str(file))),
            lambda: feature_files.load_features(file),
        ):
            assert str(file) in line_of(load)
    for content, said in (
        (zipped([]), "one 'a', but has none"),
        (zipped([("b", SOUND)]), "one 'a', but has b"),
        (zipped([("a", SOUND)], zipfile.ZIP_LZMA), "packed in a way"),
        (zipped([("a", SOUND)], zipfile.ZIP_BZIP2), "packed in a way"),
        (with_sizes(zipped([("a", SOUND)]), "method", value=77), "packed in a way"),
        (with_sizes(zipped([("a", SOUND)]), "flags", value=1), "encrypted"),
        (with_sizes(zipped([("a", SOUND)]), "size", value=2**31), "more than can be in there"),
        (with_sizes(zipped([("a", SOUND)]), "packed", value=2**31), "more than can be in there"),
        (zipped([("a", ZEROS[:-1])]), "12,000,000 bytes, but 11,999,999 follow"),
        (zipped([("a", SOUND)], zipfile.ZIP_STORED).replace(b"\x40\x40", b"\x41\x40"), "CRC"),
    ):
        archive.write_bytes(content)
        assert said in line_of(open_array, archive, "a"), said
    with pytest.warns(UserWarning, match="Duplicate"):
        archive.write_bytes(zipped([("a", SOUND), ("a", SOUND)]))
    assert "one 'a', but has a, a" in line_of(open_array, archive, "a")
    archive.write_bytes(zipped([("a", SOUND), ("b", SOUND)]))
    assert "one array, but has a, b" in line_of(open_array, archive)
    shutil.rmtree(tmp_path)
    assert f"{file}: No such file" in line_of(open_array, file)
    assert f"{tmp_path.parent}: Is a directory" in line_of(open_array, tmp_path.parent)
    assert "is a pipe or a device" in line_of(open_array, "/dev/zero")


def test_arrays_are_numpys(tmp_path):
    """In any order of axes and bytes, of any version and size of numbers, packed or mapped."""
    arrays = [FLOATS, FLOATS.T, FLOATS[::2], FLOATS.astype(">i2"), np.float16(3), np.zeros((0, 4))]
    for array, version in itertools.product(arrays, ((1, 0), (2, 0), (3, 0))):
        with open(tmp_path / "a.npy", "wb") as stream:
            np.lib.format.write_array(stream, np.asarray(array), version)
        found = open_array(tmp_path / "a.npy", "ignored")
        np.testing.assert_array_equal(found, array)
        assert (found.dtype, found.shape) == (array.dtype, np.shape(array))
        assert found.flags.f_contiguous == np.load(tmp_path / "a.npy").flags.f_contiguous
    (tmp_path / "old.npy").write_bytes(header("(2L, 3L)") + FLOATS.tobytes())
    np.testing.assert_array_equal(open_array(tmp_path / "old.npy"), FLOATS)
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "b.npz", a=FLOATS.T, b=np.array(["text"]), c=np.arange(300_000))
        assert array_names(tmp_path / "b.npz") == ["a", "b", "c"]
        for name in "ac":
            found, expected = open_array(tmp_path / "b.npz", name), np.load(tmp_path / "b.npz")
            np.testing.assert_array_equal(found, expected[name])
            expected.close()
    assert array_names(tmp_path / "old.npy") == []
    with open(tmp_path / "two.npy", "wb") as stream:
        np.save(stream, FLOATS)
        np.save(stream, FLOATS[0])
    with open(tmp_path / "two.npy", "rb") as stream:
        one, other = mapped(stream), mapped(stream)
    np.testing.assert_array_equal(one, FLOATS)
    np.testing.assert_array_equal(other, FLOATS[0])


def test_pipes_are_no_files(tmp_path):
    """Nothing that is read waits for a pipe that nobody writes to."""
    for name in ("a.npy", "a.npz", "a.mat", "a.zip", "a.tsv", "a.txt", "b.npz/train_x.npy"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        os.mkfifo(tmp_path / name)
    for name in ("photos/train/cat/1.png", "zips/a.zip", "texts/a.txt"):
        (tmp_path / name).parent.mkdir(parents=True)
        os.mkfifo(tmp_path / name)
    reads = [
        lambda name=name: data.load(DataConfig(str(tmp_path / name)))
        for name in ("a.npy", "a.npz", "a.mat", "a.zip", "a.txt", "photos", "zips", "texts")
    ]
    reads += [
        lambda: feature_files.read_splits(tmp_path / "b.npz"),
        lambda: feature_files.load_features(tmp_path / "a.npy"),
        lambda: load_labelled(str(tmp_path / "a.tsv"), None, ()),
        lambda: load_text(DataConfig(str(tmp_path / "a.txt"))),
        lambda: load_text(DataConfig(str(tmp_path / "texts"))),
        lambda: image_files.read_classes(tmp_path / "a.txt"),
        lambda: encoder._image(tmp_path / "a.npy"),
    ]
    for read in reads:
        assert str(tmp_path) in line_of(read)
    skipped = image_files.ImageFiles(tmp_path / "photos", "train", on_bad="skip")
    assert skipped.image_shape is None and skipped.digest
    with pytest.raises(data.source.UnreadableImage, match="is empty"):
        skipped[0]
