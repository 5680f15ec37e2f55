"""Fuzzing: what a test of this folder is, and what must hold of every command line.

A case calls `cli.main` in a folder of its own. Whatever the input: status 0 or 2, a few lines on
stderr without a traceback, none with control characters, an end, and no file touched but those
that the command is to write.
"""

import contextlib
import io
import math
import os
import shutil
import signal
import sys
import tempfile
import unicodedata
import warnings
from collections import namedtuple
from fnmatch import fnmatch
from pathlib import Path

# Before hypothesis is imported: it keeps tables in a folder, by default in that of the project.
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", f"{tempfile.gettempdir()}/hypothesis")

import hypothesis
import numpy as np
import pytest
from hypothesis.internal.conjecture import providers
from matplotlib.figure import Figure

from hypersphere_jax import cli

# Else it draws constants from the source of what was imported before: not the same each time.
providers._get_local_constants = providers.Constants

TOTAL = 300  # of which `share` is a part
CASES = 50  # of all tests together, unless FUZZ_CASES has another number
LINES, LENGTH = 14, 4000  # of stderr at most; a run that goes on tells its steps
HIDDEN = ("Cc", "Cs", "Zl", "Zp")  # characters that steer a terminal, or cannot be written
HANGS = 1800  # seconds after which a case counts as hung
exports = {}  # of the run as it was made


def fuzz(share, slow=False, **strategies):
    """Make a test of `check(place, **values)`, which is called with so many of 300 cases.

    `FUZZ_CASES` and `FUZZ_SEED` set the number of cases of all tests together, and the seed.
    """

    def decorate(check):
        def test(tmp_path, runs):
            total = int(os.environ.get("FUZZ_CASES", CASES))

            @hypothesis.seed(int(os.environ.get("FUZZ_SEED", 0)))
            @hypothesis.settings(
                max_examples=max(1, math.ceil(share * total / TOTAL)),
                database=None,
                deadline=None,
                phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
                report_multiple_bugs=False,
                suppress_health_check=list(hypothesis.HealthCheck),
            )
            @hypothesis.given(**strategies)
            def cases(**values):
                with Place(tmp_path / "place", runs).entered() as place:
                    check(place, **values)

            cases()

        test.__name__, test.__doc__, test.check = check.__name__, check.__doc__, check
        if slow:
            test = pytest.mark.slow(test)
        return pytest.mark.filterwarnings("ignore::ResourceWarning")(test)

    return decorate


def is_same(arrays, others):
    """Whether two dicts of arrays are the same, to the bit."""
    same = (np.array_equal(array, others.get(name)) for name, array in arrays.items())
    return arrays.keys() == others.keys() and all(same)


Outcome = namedtuple("Outcome", "status out err")


class Hang(BaseException):
    """None that the code under test would catch."""


class Place:
    """The folders of a case: `work`, the current one, and beside it `home`."""

    def __init__(self, root, runs):
        self.root, self.work, self.runs = root, root / "work", runs

    @contextlib.contextmanager
    def entered(self):
        shutil.rmtree(self.root, ignore_errors=True)
        for name in ("work", "home"):
            (self.root / name).mkdir(parents=True)
        with pytest.MonkeyPatch.context() as patch, contextlib.chdir(self.work):
            patch.setenv("HOME", str(self.root / "home"))
            patch.setenv("COLUMNS", "100")
            # Drawing a picture takes half a second.
            patch.setattr(Figure, "savefig", lambda _, file, **__: Path(file).touch())
            yield self

    def put(self, name, content):
        """Writes a file of bytes or text."""
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    def run(self, kind="images", name=None):
        """A copy of a finished run; gives its folder."""
        return Path(shutil.copytree(self.runs[kind], Path("runs", name or kind)))

    def call(self, *arguments, changes=()):
        """Carries out a command line, which may change files that fit the patterns; checks it.

        It may make new ones in `runs`, in the cache, and where an argument says.
        """
        before = _tree(self.root)
        outcome = _call(list(arguments))
        after = _tree(self.root)
        what = f"{list(arguments)}: status {outcome.status}\n{outcome.err[-3000:]}"
        allowed = ("home/.c*", *(f"work/{pattern}" for pattern in changes))
        words = {word for one in arguments for word in (one, one.partition("=")[2]) if word}
        stems = [os.path.splitext(os.path.abspath(os.path.expanduser(word)))[0] for word in words]
        for name in before.keys() | after.keys():
            path, is_new = str(self.root / name), name not in before
            fits = [path.startswith(one) or one.startswith(f"{path}/") for one in stems]
            may = any(fnmatch(name, one) for one in (*allowed, *["work/runs*"] * is_new))
            same = not is_new and before[name] == after.get(name, "gone")
            assert same or may or (is_new and any(fits)), f"touched {name!r}: {what}"
        lines = outcome.err.split("\n")
        assert outcome.status in (0, 2) and "Traceback" not in outcome.err, what
        assert len(lines) <= LINES + 1 and max(map(len, lines)) <= LENGTH, f"long: {what}"
        for line in (*lines, *outcome.out.split("\n")):
            hidden = [c for c in line if unicodedata.category(c) in HIDDEN]
            assert not hidden, f"{hidden} in {line!r}: {what}"
        if outcome.status == 2:  # tyro prints a box
            assert any(line.startswith(("error: ", "choose ", "╭─")) for line in lines), what
        return outcome

    def exported(self, *more, good=False):
        """Arrays of the encoder of `runs/images`, None where there is an error; and the outcome.

        With `good` the run is as it was made, and each command line carried out once.
        """
        if good and more in exports:
            return exports[more]
        outcome = self.call("export", "runs/images", "--out", "o.npz", *more)
        arrays = None if outcome.status else dict(np.load("o.npz"))
        Path("o.npz").unlink(missing_ok=True)
        if good:
            exports[more] = arrays, outcome
        return arrays, outcome


def _call(arguments):
    """What `cli.main` gives, with stdout and stderr as a process has them in a UTF-8 locale."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", write_through=True)
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        stack.enter_context(warnings.catch_warnings())
        stack.enter_context(_hangs_end())
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        warnings.filterwarnings("ignore", module=r"PIL\.")  # as `data.decode` does, once a process
        patch.setattr(sys, "argv", ["run.py", *arguments])
        try:
            status = cli.main(arguments)
        except SystemExit as end:
            status = end.code or 0
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]
    return Outcome(status, *texts)


@contextlib.contextmanager
def _hangs_end():
    def hang(*_):
        raise Hang

    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(HANGS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _tree(root):
    """What is below a folder: contents of files, targets of links, None for all else."""
    tree = {}
    for path in root.rglob("*"):
        content = os.readlink(path) if path.is_symlink() else None
        tree[str(path.relative_to(root))] = path.read_bytes() if path.is_file() else content
    return tree
