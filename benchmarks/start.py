"""From the command to the first step of a run: what one waits for before training begins."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.timing import device_kind, median
from hypersphere_jax import data
from hypersphere_jax.configs import DataConfig, require
from hypersphere_jax.tables import print_table

ROOT = Path(__file__).parent.parent
DIGITS = {"digits, small_cnn": ()}
CIFAR10 = {
    "cifar10, small_cnn": ("--data", "cifar10"),  # as without options
    **{
        f"cifar10, {model}": ("--data", "cifar10", "--model", model, "--batch-size", "64")
        for model in ("small_alexnet", "resnet18")
    },
}
# Lines of `pretrain` on stderr, of a run with this name.
NAME = "start"
STAGES = {"opened": rf"{NAME}: ", "built": rf"{NAME}: compiling", "first step": "step 1 of"}
COLUMNS = ["run", "programs", *STAGES, "processor"]
NOTE = """
All in seconds from the start of the command, medians of the rounds.
Images are decoded before. opened: imports, and the data. built: the network
and the images on the device. processor: its time.
""".strip()


def start(data_dir: str | None, rounds: int) -> None:
    """Times the start of runs, each in a process of its own, with empty and full caches."""
    require(rounds >= 1, "--rounds must be at least 1")
    runs: dict[str, tuple[str, ...]] = dict(DIGITS)
    if data_dir is not None:
        where = os.path.abspath(os.path.expanduser(data_dir))
        data.load(DataConfig("cifar10", where))  # else an error would come after the digits
        runs |= {name: (*of, "--data-dir", where) for name, of in CIFAR10.items()}
    rows: list[list] = []
    for name, options in runs.items():
        with tempfile.TemporaryDirectory() as folder:
            if options:
                first_step(options, Path(folder))  # which decodes
            found: dict[str, list[list[float]]] = {"compiled": [], "from the cache": []}
            for _ in range(rounds):
                shutil.rmtree(Path(folder, "cache", "compiled"), ignore_errors=True)
                for kept in found.values():
                    kept.append(first_step(options, Path(folder)))
        rows += [[name, programs, *_medians(starts)] for programs, starts in found.items()]
    print_table(COLUMNS, rows, title=f"From the command to the first step, {device_kind()}")
    print(NOTE)


def _medians(starts: list[list[float]]) -> list[str]:
    return [f"{median(np.array(of)):.1f}" for of in zip(*starts, strict=True)]


def first_step(options: tuple[str, ...], folder: Path) -> list[float]:
    """Begins a run, and ends it after its first step.

    Returns:
      Seconds until each stage, and where the system tells it the processor's until the last.

    Raises:
      UserError: when it ends before.
    """
    places = ("--name", NAME, "--runs-dir", str(folder / "runs"), "--cache-dir")
    command = (sys.executable, "-m", "hypersphere_jax", "pretrain", *options, *places)
    environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    began, line, times = time.monotonic(), "", []
    process = subprocess.Popen(
        (*command, str(folder / "cache"), "--devices", "1"),
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        for line in process.stderr or ():
            if re.search([*STAGES.values()][len(times)], line):
                times.append(time.monotonic() - began)
            if len(times) == len(STAGES):
                times += _processor_seconds(process.pid)
                process.kill()
                break
    shutil.rmtree(folder / "runs", ignore_errors=True)
    require(len(times) >= len(STAGES), f"a run ended before its first step: {line.strip()}")
    return times


def _processor_seconds(pid: int) -> list[float]:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
    return [(int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")]
