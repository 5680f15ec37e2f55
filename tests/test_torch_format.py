"""Files as PyTorch writes them: all that they hold is read, nothing is run, damage is an error."""

import argparse
import datetime
import io
import os
import zipfile
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path

import numpy as np
import pytest
from torch_networks import assert_same, torch_file

from hypersphere_jax import configs as C
from hypersphere_jax import torch_files


def small_state():
    wide = np.arange(24, dtype="f") / 7
    half = np.linspace(-1, 1, 5).astype("f2")
    view = wide[3:15].reshape(2, 3, 2).transpose(2, 0, 1)
    return OrderedDict({"blocks.0.0.weight": view, "wide": wide, "half": half, "n": np.array(7)})


@pytest.mark.parametrize("zipped", [True, False])
def test_files_of_pytorch(zipped, tmp_path):
    """The state dict is what has an encoder, wherever it lies; harmless objects do no harm."""
    file, state = tmp_path / "a.pth.tar", small_state()
    beside = {"epoch": np.int64(3), "best": np.float32(7), "type": np.dtype("f4"), "ids": {1, 2}}
    beside |= {"args": argparse.Namespace(lr=0.1, out=Path("a")), "at": datetime.datetime.now()}
    beside |= {"log": defaultdict(list, a=[1]), "seen": Counter("aab"), 4: [{"lr": np.ones(3)}]}
    beside |= {"n" * 2000: 3}
    expected = {name: np.float32(array) for name, array in state.items()}
    for content in (
        state,
        {"encoder": state, "again": state, **beside},
        [3, beside, state],
        (1, {"a": [{"model_ema": state}]}, beside),
    ):
        file.write_bytes(torch_file(content, zipped))
        assert_same(torch_files.read_state(file), expected)
    both = {
        name: {f"m.{n}": np.add(a, k, out=a + 0) if a.ndim else a for n, a in state.items()}
        for k, name in enumerate("st")
    }
    file.write_bytes(torch_file(both, zipped))
    both = torch_files.read_state(file)
    with pytest.raises(C.UserError, match=r"several encoders, under 's\.m\.', 't\.m\.'"):
        torch_files.encoder_of(both)
    encoder, left = torch_files.encoder_of(both, "t.m")
    assert_same(encoder["wide"], 1 + expected["wide"])
    assert left == sorted(f"s.m.{name}" for name in state)


class Calls:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("zipped", [True, False])
def test_files_of_pytorch_run_nothing(zipped, tmp_path):
    file, ran = tmp_path / "a.pt", tmp_path / "ran"
    for evil in (
        Calls(os.system, f"touch {ran}"),
        Calls(eval, f"open({str(ran)!r}, 'w')"),
        Calls(ran.touch),
        Calls(getattr, argparse.Namespace, "mro"),
    ):
        file.write_bytes(torch_file({"a": small_state(), "b": evil}, zipped))
        with pytest.raises(C.UserError, match=r"it holds \w+\.\w+, an object, .*torch\.save\("):
            torch_files.read_state(file)
        assert not ran.exists()
    file.write_bytes(torch_file({"b": argparse.Namespace(format="x")}, zipped))
    with pytest.raises(C.UserError, match="holds no arrays"):
        torch_files.read_state(file)


@pytest.mark.parametrize("zipped", [True, False])
def test_damaged_files_of_pytorch(zipped, tmp_path, rng):
    """A flipped bit is an error or of no effect; without checksums, at least nothing else."""
    file, sound = tmp_path / "a.pt", torch_file({"model": small_state()}, zipped)
    file.write_bytes(sound)
    expected, errors = torch_files.read_state(file), 0
    for _ in range(120):
        damaged = bytearray(sound)
        damaged[rng.integers(len(sound))] ^= 1 << rng.integers(8)
        file.write_bytes(damaged)
        try:
            state = torch_files.read_state(file)
        except C.UserError:
            errors += 1
        else:
            assert not zipped or assert_same(state, expected) is None
    assert errors > 40
    for cut in range(0, len(sound), 150):
        file.write_bytes(sound[:cut])
        with pytest.raises(C.UserError, match=r"^/[^\n]*$"):
            torch_files.read_state(file)
    if zipped:  # with a checksum that fits
        with zipfile.ZipFile(io.BytesIO(sound)) as whole, zipfile.ZipFile(file, "w") as short:
            for name in whole.namelist():
                short.writestr(name, whole.read(name)[: 60 if name == "a/data/0" else None])
        with pytest.raises(C.UserError, match=r"\[2, 2, 3\] does not lie in its 15 numbers"):
            torch_files.read_state(file)


@pytest.mark.parametrize("zipped", [True, False])
def test_files_of_pytorch_that_swell(zipped, tmp_path):
    """What would take far more memory than the file has is refused before it does."""
    file, base = tmp_path / "a.pt", np.zeros(10_000, "f")
    one, name = {"w": np.zeros(2, "f")}, "n" * 60_000
    for content, said in (
        ({str(n): base[:] for n in range(20)}, "over 16 times the file's size"),
        ({"a": np.broadcast_to(base[:1], 10**6)}, "over 16 times the file's size"),
        ({name: [dict(one) for _ in range(100)]}, "n… in it is longer than 1000 characters"),
    ):
        file.write_bytes(torch_file(content, zipped))
        with pytest.raises(C.UserError, match=said):
            torch_files.read_state(file)
    file.write_bytes(torch_file({str(n): base[:] for n in range(12)}, zipped))
    assert len(torch_files.read_state(file)) == 12
