"""What all tests share: the devices, compiled programs, and finished runs to read.

These are eight virtual CPU devices, or with `--platform gpu` or `tpu` the accelerators that are
there; `platforms.py` has what is different then.

Compiling is what tests cost, running is not. XLA's level 0 compiles three times as fast, and what
one test compiled, the other worker and the next run of the suite load. The level changes rounding
alone. What a user's program must give to the bit, or is a matter of speed, is seen in a process of
its own, with XLA as it is by default (`processes.environment()`).
"""

import fcntl
import functools
import gc
import os
import resource
import shutil
import signal
import tempfile
from pathlib import Path

# Small products gain nothing from threads, which would spin and count as processor time.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import numpy as np
import platforms
import pytest
import tiny_runs

from hypersphere_jax import cli, models
from hypersphere_jax.models.resnet import ResNet18, ResNet50
from hypersphere_jax.training import train as training
from hypersphere_jax.utils import xla

gc.set_threshold(1_000_000, 50, 50)  # as the command does: tracing makes objects that stay
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.03)


def pytest_addoption(parser):
    parser.addoption("--platform", choices=("cpu", "gpu", "tpu"), default="cpu", help="of JAX")
    about = "that tests see: 8 on CPU, else those that are there; fewer show here what runs there"
    parser.addoption("--devices", type=int, default=8, help=about)


def pytest_configure(config):
    """Compiled programs are kept for the next run (`--cache-clear` drops them), nothing else is."""
    # Processes in the background, or under nohup, start with these two ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    platform = config.getoption("platform")
    platforms.begin(platform, config.getoption("devices"))
    if platform != "cpu":
        np.testing.assert_allclose = functools.partial(platforms.allclose, platform)
    jax.config.update("jax_compilation_cache_dir", str(config.cache.mkdir("compiled")))
    if "PYTEST_XDIST_WORKER" not in os.environ:  # workers have the home of the process above them
        home = tempfile.TemporaryDirectory(prefix="home-of-tests-")
        config.add_cleanup(home.cleanup)
        os.environ["HOME"] = home.name


def pytest_collection_modifyitems(config, items):
    """Tests that need more devices, or another kind of them, are left out, with the reason."""
    for item in items:
        if reason := platforms.reason_to_leave_out(item.nodeid, config.getoption("platform")):
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_ignore_collect(collection_path):
    """Doctests are the package's: of what is here, files of tests alone are collected."""
    return (collection_path.match("*.py") and not collection_path.match("test_*")) or None


workers_seconds = []  # of processors: wall time says little on a machine that does other things


def processor_seconds():
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(sum(resource.getrusage(kind)[:2]) for kind in kinds)


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["processor_seconds"] = processor_seconds()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    workers_seconds.append(getattr(node, "workeroutput", {}).get("processor_seconds", 0))


def pytest_terminal_summary(terminalreporter):
    # Workers that have ended are children too, and may be counted already.
    seconds = resource.getrusage(resource.RUSAGE_SELF)[:2]
    total = sum(seconds) + sum(workers_seconds) if workers_seconds else processor_seconds()
    terminalreporter.write_line(f"processor time of all tests: {total / 60:.1f} minutes")


@pytest.fixture(scope="module", autouse=True)
def few_programs():
    """Compiled programs of a thousand tests are more than Linux has memory maps for a process."""
    yield
    xla.free_compiled(0.3)


@pytest.fixture(scope="session", autouse=True)
def no_late_callbacks():
    """Of Orbax's failed reads, as on the command line: pytest has its own hook for such errors."""
    cli.silence_orbax()


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def short_resnets(monkeypatch):
    """Stages of one block: most of a network's compiling is its depth."""
    for name, network in (("resnet18", ResNet18), ("resnet50", ResNet50)):
        made = type("Short", (network,), {"depths": (1, 1, 1, 1)})
        monkeypatch.setitem(models.MODELS, name, made)


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """`once(name, make)`: the folder, to read only, that `make(folder)` fills for all workers."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent

    def made(name, make):
        folder, done = shared / f"once-{name}", shared / f"once-{name}.done"
        with open(shared / f"once-{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                make(folder)
                done.touch()
        return folder

    return made


@pytest.fixture(scope="session")
def image_run(once) -> Path:
    """A finished run of digits: 56 steps on one device, good enough to probe (read only)."""
    return once("images", lambda folder: training.train(tiny_runs.images(folder))) / "images"


@pytest.fixture(scope="session")
def short_run(once) -> Path:
    """The finished run `tiny_runs.short`: 12 steps on two devices (read only)."""
    return once("short", lambda folder: training.train(tiny_runs.short(folder))) / "short"


@pytest.fixture(scope="session")
def queue_run(once) -> Path:
    """A finished run with MoCo's queue: 10 steps on two devices (read only)."""
    return once("queue", lambda folder: training.train(tiny_runs.queue(folder))) / "queue"


@pytest.fixture(scope="session")
def texts(once) -> Path:
    """`books/` to train on, and `labelled/topics.{pos,neg}` (read only)."""
    return once("texts", tiny_runs.write_texts)


@pytest.fixture(scope="session")
def text_run(once, texts) -> Path:
    """A finished run of sentence encoders: 10 steps on two devices (read only)."""
    return once("text", lambda folder: training.train(tiny_runs.text(folder, texts))) / "text"
