"""The check `tests`: the test suite on the GPU."""

import collections
import os
import re
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu.record import Record
from benchmarks.timing import ROOT

FOLDERS = ("losses", "models", "test_moco.py", "training", "evaluation")
OUTCOME = re.compile(r"(PASSED|FAILED|ERROR|SKIPPED|XFAIL)")
NAME = re.compile(r"(tests/\S+::.+?)(?:\s+(?:PASSED|FAILED|ERROR|SKIPPED|\[)|$)")


def tests(
    workers: int = 8,
    minutes: float = 6,
    out: Path = Path("runs/gpu"),
    toy: bool = False,
) -> None:
    """Run the tests of losses, models, queue, training and evaluation on the GPU.

    Args:
        workers: test processes that share the card.
        minutes: time limit; the tests that did not run are not counted.
        out: folder of the results.
        toy: run one short file on the CPU.
    """
    record = Record("tests", out, minutes)
    paths = [f"tests/{folder}" for folder in FOLDERS]
    platform = ["--platform", "gpu", "-n", str(workers), "--dist", "loadfile"]
    if toy:
        paths = ["tests/test_moco.py"]
        platform = []
    command = [sys.executable, "-m", "pytest", "-vv", "-rN", *platform, *paths]
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "PYTHONUNBUFFERED": "1"}
    counts: collections.Counter[str] = collections.Counter()
    limited = ["timeout", str(int(record.seconds_left) - 10), *command]
    options = {"cwd": ROOT, "env": environment, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(limited, **options) as process:
        for line in process.stdout:
            outcome = OUTCOME.search(line)
            name = NAME.search(line)
            if not (outcome and name):
                continue
            counts[outcome[1].lower()] += 1
            if outcome[1] in ("FAILED", "ERROR"):
                record.add(failed=name[1])
            elif sum(counts.values()) % 50 == 0:
                record.add(**counts)
    status = process.returncode
    record.add(**counts, exit_status=status, finished=status != 124)
    record.finish("Tests", (*counts, "exit_status"), record.rows[-1:])
