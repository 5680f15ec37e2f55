"""A finished run whose files are damaged; files of weights."""

import io
import json
import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from fuzzing import fuzz, is_same
from hypothesis import strategies as st
from junk import at, damage, damaged, edited, edits
from safetensors.numpy import save
from torch_networks import RESNET, random_state

STATE = random_state(RESNET, np.random.default_rng(0))
OF_FILES = ("damage", "damage", "damage", "delete", "swap", "folder", "fifo", "loop")
OF_FOLDERS = ("remove", "copy", "file")
# What, to which file or folder, with which other one (shares of all), and how it is damaged.
deeds = st.tuples(st.sampled_from(OF_FILES + OF_FOLDERS), st.floats(0, 1), st.floats(0, 1), damage)
CHANGES = ("runs/images*",)
SCORES = {
    "probe": ("knn5-output", ("step", "top1", "n")),
    "metrics": ("metrics-test", ("step", "align", "uniform", "n")),
}


def do(folder, deed):
    """Damages a run; says what was done."""
    kind, one, other, how = deed
    paths = sorted(path for path in folder.rglob("*") if path.is_dir() == (kind in OF_FOLDERS))
    path, another = at(one, paths), at(other, paths)
    if kind == "damage":
        path.write_bytes(damaged(path.read_bytes(), how))
    elif kind == "swap":
        a, b = path.read_bytes(), another.read_bytes()
        path.write_bytes(b), another.write_bytes(a)
    elif kind == "copy":  # one folder's content in the place of another's
        shutil.copytree(path, "spare")
        shutil.rmtree(another)
        shutil.move("spare", another)
    else:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        make = {"folder": path.mkdir, "file": path.touch, "fifo": lambda: os.mkfifo(path)}
        make["loop"] = lambda: path.symlink_to(path.name)
        make.get(kind, lambda: None)()
    return f"{kind} {path} {another} {how}"


@fuzz(20, deed=deeds, newest=st.booleans())
def test_export_of_a_damaged_run(place, deed, newest):
    """The newest encoder, or an older one with a warning, or an error: never another one."""
    folder = place.run()
    steps = sorted(int(path.name) for path in (folder / "checkpoints").iterdir())
    expected = {step: place.exported("--step", str(step), good=True)[0] for step in steps}
    done = do(folder, deed)
    arrays, outcome = place.exported(*([] if newest else ["--step", str(steps[-1])]))
    if arrays is not None:
        same = [step for step in steps if is_same(arrays, expected[step])]
        told = newest and ("warning: " in outcome.err.lower() or deed[0] == "remove")
        assert same == steps[-1:] or (same and told), f"{same} of {steps}: {done}"


def scored(place, verb):
    """What a verb's result says, None where there is an error."""
    name, keys = SCORES[verb]
    more = ("--protocols", "knn") if verb == "probe" else ("--figure", "o.png")
    outcome = place.call(verb, "runs/images", *more, "--devices", "1", changes=CHANGES)
    if outcome.status or "the result is not kept" in outcome.err:
        return None
    result = json.loads(Path("runs/images/eval", f"{name}.json").read_text())
    return [result[key] for key in keys]


@fuzz(5, slow=True, deed=deeds, verb=st.sampled_from((*SCORES, "report", "pretrain")))
def test_results_of_a_damaged_run(place, deed, verb):
    """They, and the run that goes on, are as without the damage, or there is an error."""
    folder = place.run()
    expected = scored(place, verb) if verb in SCORES else place.exported(good=True)[0]
    Path("o.png").unlink(missing_ok=True)
    done = do(folder, deed)
    if verb in SCORES:
        result = scored(place, verb)
        assert result is None or result == expected or result[0] < expected[0], done
    elif verb == "report":
        place.call("report", "runs/images", changes=CHANGES)
    elif place.call("pretrain", "--name", "images", "--devices", "1", changes=CHANGES).status == 0:
        assert is_same(place.exported()[0], expected), done


@fuzz(10, deed=deeds, prepared=st.booleans())
def test_a_damaged_corpus(place, deed, prepared):
    """One that was prepared, and what the cache keeps of a text: as it was, or an error."""
    place.put("a.txt", "The ship saw the sea. The king left the hall.\n" * 9)
    if prepared:
        place.call("data", "prepare-text", "a.txt", "--out", "corpus")
    line = ("data", "inspect", "corpus" if prepared else "a.txt")
    expected = place.call(*line).out
    done = do(Path("corpus") if prepared else place.root / "home/.cache", deed)
    outcome = place.call(*line)
    assert outcome.status == 2 or outcome.out == expected, f"{done}\n{outcome.out}"


@fuzz(8, edit=edits, size=st.sampled_from((None, None, None, 0, 2**40, 2**63)))
def test_safetensors(place, edit, size):
    content = save(STATE)
    start = 8 + struct.unpack("<Q", content[:8])[0]
    header = edited(content[8:start], edit)
    size = struct.pack("<Q", len(header) if size is None else size)
    place.put("w.safetensors", size + header + content[start:])
    place.call("import-torch", "w.safetensors", "--name", "w")


@fuzz(4, how=damage)
def test_pth(place, how):
    """A damaged PyTorch file gives the intact file's encoder, or an error."""
    torch = pytest.importorskip("torch")
    buffer = io.BytesIO()
    state = {name: torch.from_numpy(array) for name, array in STATE.items()}
    torch.save({"epoch": 3, "state_dict": state}, buffer)
    place.put("w.pth", damaged(buffer.getvalue(), how))
    if place.call("import-torch", "w.pth", "--name", "images").status == 0:
        arrays, _ = place.exported()
        assert is_same(arrays, STATE)
