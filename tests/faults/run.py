"""Faults of the code, put in one after the other: does a test see each?

    python tests/faults/run.py [AREA ...] [--tier fast|slow] [--jobs 2]

An area is a list beside this file. A fault is a line `= what is wrong`, a line `@ FILE TEST ...`
(the file that it is in, the tests that should see it), and a text of that file (`-`) with what
takes its place (`+`). The text occurs there once; `tests/test_faults.py` holds the lists to that.

Result (November 2026), of the 374 that there were then: the fast tier caught 373, the slow tier
the other one, a signal to one of several processes that stops that one alone. The tests of before,
five times as many, caught about 230 of the 295 that were tried on them.

Each fault is put into a copy of the project, never into the project itself, and its tests run there
until one fails. The tests of each area must pass in that copy first.
"""

import argparse
import concurrent.futures
import dataclasses
import multiprocessing
import os
import queue
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["jax", "flax.nnx", "orbax.checkpoint", "optax", "grain", "matplotlib", "sklearn", "pytest"]
)
TIERS = {"fast": "not slow", "slow": "slow"}


@dataclasses.dataclass(frozen=True)
class Fault:
    what: str
    file: str
    tests: tuple[str, ...]
    old: str
    new: str


def read(path: Path) -> list[Fault]:
    """The faults of a list."""
    faults = []
    for block in path.read_text().split("\n= ")[1:]:
        lines = block.strip("\n").splitlines()
        where = next(line for line in lines if line.startswith("@ ")).split()
        old, new = (
            "\n".join(line[2:] for line in lines if line[:2].strip() == mark) for mark in "-+"
        )
        faults.append(Fault(lines[0].strip(), where[1], tuple(where[2:]), old, new))
    return faults


def areas() -> dict[str, list[Fault]]:
    return {path.stem: read(path) for path in sorted(HERE.glob("*.txt"))}


def copy_of_project() -> Path:
    """Of the files that git knows or would take, in a folder of its own."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    copy = Path(tempfile.mkdtemp(prefix="faults-"))
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    return copy


def tests_fail(copy: Path, tests: tuple[str, ...], tier: str) -> bool:
    """Whether a test fails, in a process that has the slow imports already."""
    process = PROCESSES.Process(target=run_tests, args=(copy, tests, tier))
    process.start()
    process.join()
    if process.exitcode not in (0, 1, 5):  # 5: none of these tests is of this tier
        raise SystemExit(f"{' '.join(tests)}: pytest ended with {process.exitcode}")
    return process.exitcode == 1


def run_tests(copy: Path, tests: tuple[str, ...], tier: str) -> None:
    os.chdir(copy)
    sys.path[:] = [str(copy), *(path for path in sys.path if Path(path).resolve() != HERE)]
    # Two versions of a file within a second would look alike to the cache of bytecode. Compiled
    # programs are kept from one fault to the next.
    sys.dont_write_bytecode = True
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    options = ["-x", "-q", "-m", TIERS[tier], "-o", f"cache_dir={ROOT / '.pytest_cache'}"]
    sys.exit(int(pytest.main([*options, *tests])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("areas", nargs="*", help=f"of {', '.join(areas())}; none: all")
    parser.add_argument("--tier", choices=TIERS, default="fast")
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    chosen = {name: areas()[name] for name in asked.areas or areas()}
    faults = [(name, fault) for name, found in chosen.items() for fault in found]
    copies = queue.SimpleQueue()
    for _ in range(asked.jobs):
        copies.put(copy_of_project())

    def caught(fault: Fault) -> bool:
        copy = copies.get()
        try:
            text = (copy / fault.file).read_text()
            if text.count(fault.old) != 1:
                raise SystemExit(f"{fault.what}: not once in {fault.file}")
            (copy / fault.file).write_text(text.replace(fault.old, fault.new))
            try:
                return tests_fail(copy, fault.tests, asked.tier)
            finally:
                (copy / fault.file).write_text(text)
        finally:
            copies.put(copy)

    def sound(name: str) -> None:
        tests = tuple(sorted({test for fault in chosen[name] for test in fault.tests}))
        copy = copies.get()
        try:
            if tests_fail(copy, tests, asked.tier):
                raise SystemExit(f"the tests of {name} fail without any fault")
        finally:
            copies.put(copy)

    with concurrent.futures.ThreadPoolExecutor(asked.jobs) as pool:
        list(pool.map(sound, chosen))
        results = pool.map(caught, [fault for _, fault in faults])
        count = 0
        for (name, fault), seen in zip(faults, results, strict=True):
            count += seen
            print(f"{'caught' if seen else 'MISSED'}  {name}: {fault.what}", flush=True)
    while not copies.empty():
        shutil.rmtree(copies.get())
    print(f"{asked.tier} tier: {count} of {len(faults)} faults caught")


if __name__ == "__main__":
    main()
