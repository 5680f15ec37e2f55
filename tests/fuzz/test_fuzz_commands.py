"""Command lines of all verbs, of options with good and bad values."""

import contextlib
import functools
import io
import re

import numpy as np
import pytest
from fuzzing import fuzz
from hypothesis import strategies as st
from junk import NUMBERS, PLACES, values

from experiments import quickstart
from hypersphere_jax import cli
from hypersphere_jax.training import distributed
from hypersphere_jax.training import train as training

# Commands to which drawn options are added.
COMMANDS = (
    "pretrain",
    "pretrain --name images",
    "pretrain moco_cifar10/contrastive",
    "finetune images",
    "probe f.npz --protocols knn",
    "probe images --protocols knn",
    "metrics f.npy",
    "features images --out o.npy",
    "depth images",
    "import-torch f.npz --name x",
    "export images --out o.npz",
    "data inspect d.npz",
    "data show i.npy",
    "data prepare-text a.txt --out corpus",
    "data list",
    "report images",
    "bench",
    "quickstart --seeds",
    "reproduce chen/figureB1 --dry-run --scale laptop",
    "",
)
# Options whose valid values reach a cluster or the network.
LEFT_OUT = {"--processes", "--coordinator", "--num-processes", "--process-index", "--log-to"}
WORDS = ["--runs-dir", "--out", "--help", "--config", "--nme", "-x", "help", "nt_xent"]


@functools.cache
def flags_of(command):
    """The flags that the help of a command lists."""
    verb = command.split()[: 2 if command.startswith("data") else 1]
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        cli.main([*verb, "--help"])
    return sorted(set(re.findall(r"(?<=\s)--[a-z][a-z0-9-]*", out.getvalue())) - LEFT_OUT)


# An option: which flag, its value, and whether "=" joins them.
options = st.tuples(
    st.integers(0, 99), st.sampled_from([*NUMBERS, *PLACES, *WORDS]) | values, st.integers(0, 9)
)


def with_options(command, drawn):
    """A command line with options whose flags the command's help lists."""
    line, flags = command.split(), flags_of(command)
    for which, value, joined in drawn:
        if not flags or which >= 90:
            line.append(value)
        elif joined == 0:
            line.append(f"{flags[which % len(flags)]}={value}")
        else:
            line += [flags[which % len(flags)], value]
    return line


class Accepted(BaseException):
    """What would train now: the options are good."""


def accept(*_, **__):
    raise Accepted


@fuzz(45, command=st.sampled_from(COMMANDS), chosen=st.lists(options, max_size=3))
def test_command_lines(place, command, chosen):
    line = with_options(command, chosen)
    rng = np.random.default_rng(0)
    x, y = np.eye(3, dtype=np.float32)[np.arange(24) % 3], np.arange(24) % 3
    images = rng.integers(0, 256, (24, 8, 8, 3), np.uint8)
    np.savez("f.npz", train_x=x, train_y=y, test_x=x, test_y=y)
    np.savez("d.npz", train_images=images, train_labels=y, test_images=images, test_labels=y)
    for name, array in (("f.npy", x), ("labels.npy", y), ("i.npy", images)):
        np.save(name, array)
    place.put("a.txt", "The ship saw the sea. The king left. " * 4)
    place.put("empty.json", "")
    (place.work / "empty").mkdir()
    if any("images" in word for word in line):
        place.run()
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Accepted):
        patch.setattr(distributed, "initialize", lambda *_: None)
        patch.setattr(training, "initial_state", accept)
        patch.setattr(quickstart, "main", accept)
        changes = "runs/images", "runs/images/eval*", "runs/images/*.html"
        outcome = place.call(*line, changes=changes)
        assert {"nan", "inf"}.isdisjoint(outcome.out.split()), f"{line}\n{outcome.out}"
