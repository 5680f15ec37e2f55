"""Shared by all tests: devices, the compilation cache, and finished runs.

Tests see eight virtual CPU devices, or the accelerators with `--platform gpu`. Compiling is what
they cost: XLA compiles at its level 0, which changes rounding only, and keeps programs for the next
run. `processes.environment()` is for tests that need XLA as a user has it.
"""

import fcntl
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
from hypersphere_jax.models.vit import ViTTiny
from hypersphere_jax.training import train as training
from hypersphere_jax.utils import xla

gc.set_threshold(1_000_000, 50, 50)  # tracing makes many objects that stay
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.03)


def pytest_addoption(parser):
    parser.addoption("--platform", choices=("cpu", "gpu", "tpu"), default="cpu", help="of JAX")
    parser.addoption("--devices", type=int, default=8, help="number of virtual CPU devices")


def pytest_configure(config):
    # Processes in the background, or under nohup, start with these two ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    platforms.begin(config.getoption("platform"), config.getoption("devices"))
    jax.config.update("jax_compilation_cache_dir", str(config.cache.mkdir("compiled")))
    if "PYTEST_XDIST_WORKER" not in os.environ:  # workers inherit this home
        home = tempfile.TemporaryDirectory(prefix="home-of-tests-")
        config.add_cleanup(home.cleanup)
        os.environ["HOME"] = home.name


def pytest_ignore_collect(collection_path):
    """Ignore the doctests of helpers; only test files are collected here."""
    return (collection_path.match("*.py") and not collection_path.match("test_*")) or None


worker_seconds = []


def processor_seconds():
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(sum(resource.getrusage(kind)[:2]) for kind in kinds)


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["processor_seconds"] = processor_seconds()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    worker_seconds.append(getattr(node, "workeroutput", {}).get("processor_seconds", 0))


def pytest_terminal_summary(terminalreporter):
    total = processor_seconds()
    if worker_seconds:  # workers that have ended may be among the children
        total = sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) + sum(worker_seconds)
    terminalreporter.write_line(f"processor time of all tests: {total / 60:.1f} minutes")


@pytest.fixture(scope="module", autouse=True)
def free_compiled_programs():
    """Limit the memory maps of a process, of which compiled programs take many."""
    yield
    xla.free_compiled(0.3)


@pytest.fixture(scope="session", autouse=True)
def silent_orbax():
    cli.silence_orbax()


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def short_networks(monkeypatch):
    """ResNets with stages of one block and a ViT of two blocks, which compile sooner."""
    for name, network in (("resnet18", ResNet18), ("resnet50", ResNet50)):
        short = type("Short", (network,), {"depths": (1, 1, 1, 1)})
        monkeypatch.setitem(models.MODELS, name, short)
    monkeypatch.setitem(models.MODELS, "vit_tiny", type("Short", (ViTTiny,), {"depth": 2}))


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """Return `once(name, make)`: a folder that `make(folder)` fills once for all workers."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent

    def made(name, make):
        folder = shared / f"once-{name}"
        done = shared / f"once-{name}.done"
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
    """A finished run of digits (read only): 56 steps on one device, good enough to probe."""
    return once("images", lambda folder: training.train(tiny_runs.images(folder))) / "images"


@pytest.fixture(scope="session")
def short_run(once) -> Path:
    """The finished run `tiny_runs.short` (read only): 12 steps on two devices."""
    return once("short", lambda folder: training.train(tiny_runs.short(folder))) / "short"


@pytest.fixture(scope="session")
def queue_run(once) -> Path:
    """A finished run with MoCo's queue (read only): 10 steps on two devices."""
    return once("queue", lambda folder: training.train(tiny_runs.queue(folder))) / "queue"


@pytest.fixture(scope="session")
def texts(once) -> Path:
    """The folders `books/` and `labelled/` of sentences (read only)."""
    return once("texts", tiny_runs.write_texts)


@pytest.fixture(scope="session")
def text_run(once, texts) -> Path:
    """A finished run of sentence encoders (read only): 10 steps on two devices."""
    return once("text", lambda folder: training.train(tiny_runs.text(folder, texts))) / "text"
