"""Start of a run: from the command to the first step, with and without cached programs."""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.timing import ROOT, show
from hypersphere_jax.configs import UserError, require

DIGITS = {"digits, small_cnn": []}
CIFAR10 = {
    "cifar10, small_cnn": ["--data=cifar10"],
    "cifar10, small_alexnet": ["--data=cifar10", "--model=small_alexnet", "--batch-size=64"],
    "cifar10, resnet18": ["--data=cifar10", "--model=resnet18", "--batch-size=64"],
}
NAME = "start"
# Lines that `pretrain` prints on stderr.
STAGES = {"opened": f"{NAME}: ", "built": f"{NAME}: compiling", "first step": "step 1 of"}
NOTE = """
seconds from the start of the command, medians of the rounds. opened: imports and data. built:
network and images on the device. relative: first step relative to the run with cached programs.
Images were decoded before.
""".strip()


def run(data_dir: str | None = None, rounds: int = 3) -> list[dict[str, Any]]:
    """Start of a run: seconds until the first step, with and without cached programs.

    Args:
      data_dir: Folder with CIFAR-10's train.zip and test.zip. Defaults to measuring digits only.
      rounds: Rounds to measure.
    """
    require(rounds >= 1, f"rounds={rounds}: must be at least 1")
    commands: dict[str, list[str]] = dict(DIGITS)
    if data_dir is not None:
        folder = Path(data_dir).expanduser().resolve()
        commands |= {name: [*flags, f"--data-dir={folder}"] for name, flags in CIFAR10.items()}
    rows = []
    for name, flags in commands.items():
        compiled = []
        cached = []
        with tempfile.TemporaryDirectory() as folder:
            if flags:
                first_step(flags, Path(folder))  # decodes the images
            for _ in range(rounds):
                shutil.rmtree(Path(folder, "cache", "compiled"), ignore_errors=True)
                compiled.append(first_step(flags, Path(folder)))
                cached.append(first_step(flags, Path(folder)))
        for programs, times in (("compiled", compiled), ("cached", cached)):
            medians = {stage: statistics.median(t[stage] for t in times) for stage in STAGES}
            rows.append({"run": name, "programs": programs, **medians})
        for row in rows[-2:]:
            row["relative"] = row["first step"] / rows[-1]["first step"]
    show("From the command to the first step", rows, NOTE)
    return rows


def first_step(flags: list[str], folder: Path) -> dict[str, float]:
    """Start a run, kill it after its first step, and return the seconds until each stage.

    Raises:
      UserError: If the run ends before its first step.
    """
    command = [sys.executable, "-m", "hypersphere_jax", "pretrain", *flags, "--devices", "1"]
    command += ["--name", NAME, "--runs-dir", f"{folder}/runs", "--cache-dir", f"{folder}/cache"]
    environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    options = {"cwd": ROOT, "env": environment, "stdout": subprocess.DEVNULL, "text": True}
    times: dict[str, float] = {}
    line = ""
    started = time.monotonic()
    with subprocess.Popen(command, stderr=subprocess.PIPE, **options) as process:
        for line in process.stderr:
            for stage, start in STAGES.items():
                if start in line:
                    times.setdefault(stage, time.monotonic() - started)
            if len(times) == len(STAGES):
                process.kill()
                break
    shutil.rmtree(folder / "runs", ignore_errors=True)
    if len(times) < len(STAGES):
        raise UserError(f"pretrain {' '.join(flags)}: ended before its first step: {line.strip()}")
    return times
