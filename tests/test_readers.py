"""JSON records and arrays that others wrote or damaged, and pipes, in all that reads them."""

import io
import itertools
import os
import zipfile

import numpy as np
import pytest

from hypersphere_jax import data
from hypersphere_jax.configs import (
    DataConfig,
    PretrainConfig,
    UserError,
    to_dict,
)
from hypersphere_jax.data import image_files, inputs
from hypersphere_jax.evaluation import feature_files
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
    ("option", "value"),
    [
        *(("epochs", "3"), ("dim", None), ("width", []), ("epohcs", 3), ("epochs", 10**400)),
        *(("adam_betas", [0.9, [1]]), ("decay_at", {"a": 1}), ("network", 5), ("source", [])),
    ],
)
def test_a_record_with_another_value_is_refused(option, value, tmp_path):
    record = run_record()
    record["config"][option] = value
    write_json(tmp_path / "config.json", record)
    line = line_of(run_dir.read_config, tmp_path)
    assert option in line and str(tmp_path) in line


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        *(("config", []), ("data_digest", 5), ("data", [])),
        *(("sessions", value) for value in ({}, [], [5], [{}], [{"device": []}])),
        ("sessions", [{"device": {"count": "2"}}]),
        ("sessions", [{"device": {"count": 2}, "command": ["a"]}]),
    ],
)
def test_an_entry_of_another_type_is_refused(entry, value, tmp_path):
    write_json(tmp_path / "config.json", run_record() | {entry: value})
    for read in (run_dir.read_config, run_page.write_run_page):
        line = line_of(read, tmp_path)
        assert entry in line and str(tmp_path) in line


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
NO_ARRAYS = [
    b"",
    b"neither",
    b"\x93NUMPY",
    b"\x93NUMPY\x01\x02" + header()[8:] + bytes(24),
    header()[:40],
    header() + bytes(23),
    header("(1000000000000, 1000000)") + bytes(24),
    header("(0, 99999999999999999999)"),
    header("(-2, -3)") + bytes(24),
    header("(2 3)") + bytes(24),
    header("(" + "1, " * 80 + ")") + bytes(4),
    header("(" * 5000) + bytes(24),
    header("(2, 3), 'shape': {}") + bytes(24),
    header(dtype="'|O'") + b"cos\nsystem\n(S'true'\ntR.",
    header(dtype="'<c8'") + bytes(48),
    header(dtype="'|S4'") + bytes(24),
    header(dtype="'<U1'") + bytes(24),
    header(dtype="'|b1'") + bytes(6),
    header(dtype="'<M8[ns]'") + bytes(48),
    header(dtype="[('a', '<f4')]") + bytes(24),
    header(dtype="'<f3'") + bytes(18),
    b"PK\3\4cut short",
]


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


@pytest.mark.parametrize("content", NO_ARRAYS)
def test_files_without_an_array_are_refused(content, tmp_path):
    """Plain and in an archive, by each reader: one line with the file's name."""
    file = tmp_path / "a.npy"
    file.write_bytes(content)
    archive = tmp_path / "a.npz"
    archive.write_bytes(zipped([("a", content)]))
    for read in (
        lambda: open_array(file),
        lambda: data.load(DataConfig(str(file))),
        lambda: feature_files.load_features(file),
    ):
        assert str(file) in line_of(read)
    assert str(archive) in line_of(open_array, archive, "a")


@pytest.mark.parametrize(
    "content",
    [
        zipped([]),
        zipped([("b", SOUND)]),
        zipped([("a", SOUND)])[:-40],
        with_sizes(zipped([("a", SOUND)]), "method", value=77),
        with_sizes(zipped([("a", SOUND)]), "flags", value=1),
        zipped([("a", ZEROS[:-1])]),
        zipped([("a", SOUND)], zipfile.ZIP_STORED).replace(b"\x40\x40", b"\x41\x40"),
    ],
)
def test_archives_without_the_array_are_refused(content, tmp_path):
    archive = tmp_path / "a.npz"
    archive.write_bytes(content)
    assert str(archive) in line_of(open_array, archive, "a")


def test_an_archive_of_several_arrays_needs_a_name(tmp_path):
    archive = tmp_path / "a.npz"
    np.savez(archive, a=FLOATS, b=FLOATS)
    assert "a, b" in line_of(open_array, archive)
    np.savez(archive, b=FLOATS)
    np.testing.assert_array_equal(open_array(archive), FLOATS)


def test_missing_files_folders_and_devices_are_refused(tmp_path):
    for path in (tmp_path / "a.npy", tmp_path, "/dev/zero"):
        assert str(path) in line_of(open_array, path)


def test_arrays_are_numpys(tmp_path):
    """In any order of axes and bytes, of any version and size of numbers, packed or mapped."""
    arrays = [FLOATS, FLOATS.T, FLOATS[::2], FLOATS.astype(">i2"), np.float16(3), np.zeros((0, 4))]
    for array, version in itertools.product(arrays, ((1, 0), (2, 0), (3, 0))):
        with open(tmp_path / "a.npy", "wb") as stream:
            np.lib.format.write_array(stream, np.asarray(array), version)
        found = open_array(tmp_path / "a.npy", "ignored")
        np.testing.assert_array_equal(found, array)
        assert (found.dtype, found.shape) == (array.dtype, np.shape(array))
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "b.npz", a=FLOATS.T, b=np.array(["text"]), c=np.arange(300_000))
        assert array_names(tmp_path / "b.npz") == ["a", "b", "c"]
        for name in "ac":
            found, expected = open_array(tmp_path / "b.npz", name), np.load(tmp_path / "b.npz")
            np.testing.assert_array_equal(found, expected[name])
            expected.close()
    assert array_names(tmp_path / "a.npy") == []
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
        lambda: inputs.read_image(tmp_path / "a.npy"),
    ]
    for read in reads:
        assert str(tmp_path) in line_of(read)
    skipped, _ = image_files.open_image_files(tmp_path / "photos", on_bad="skip")
    assert skipped.image_shape is None and skipped.digest
    with pytest.raises(data.source.UnreadableImage, match="pipe or a device"):
        skipped[0]
