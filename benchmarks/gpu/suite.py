"""The check `tests`: the test suite on the GPU."""

import collections
import dataclasses
import os
import re
import subprocess
import sys

from benchmarks.gpu.record import Check, Record
from benchmarks.timing import ROOT

FOLDERS = ("losses", "models", "test_moco.py", "training", "evaluation")
# A line of a worker of pytest-xdist.
OUTCOME = re.compile(r"(PASSED|FAILED|ERROR|SKIPPED|XFAIL) (tests/.+)")


@dataclasses.dataclass
class Tests(Check):
    """Run the tests of losses, models, queue, training and evaluation on the GPU.

    Their output is in `OUT/tests.log`.
    """

    minutes: float = 6
    workers: int = 8  # Test processes that share the card

    def run(self) -> None:
        record = Record("tests", self)
        command = ["timeout", str(int(record.seconds_left) - 10), sys.executable, "-m", "pytest"]
        command += ["-vv", "--dist", "loadfile"]
        if self.toy:
            command += ["-n", "1", "tests/benchmarks/test_bench.py"]
        else:
            command += ["-n", str(self.workers), "--platform", "gpu"]
            command += [f"tests/{folder}" for folder in FOLDERS]
        environment = os.environ | {"PYTHONUNBUFFERED": "1"}
        log = self.out / "tests.log"
        with log.open("w") as file:
            status = subprocess.run(command, cwd=ROOT, env=environment, stdout=file).returncode
        outcomes = OUTCOME.findall(log.read_text())
        counts = collections.Counter(outcome.lower() for outcome, _ in outcomes)
        failed = [name for outcome, name in outcomes if outcome in ("FAILED", "ERROR")]
        record.add(**counts, failures=failed, exit_status=status, finished=status != 124)
        record.finish("Tests", *counts, "exit_status")
