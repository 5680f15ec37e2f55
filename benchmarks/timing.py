"""What all benchmarks share: forms that take turns, ratios, steps, child processes, peak memory."""

import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

ROOT = Path(__file__).parent.parent
Times = dict[str, np.ndarray]


def take_turns(
    forms: Mapping[str, Callable[[], object]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
    before: int = 1,
) -> Times:
    """Seconds of each form in each round, after rounds that do not count: one, which compiles.

    All forms take turns in every round, so that a slow moment slows all alike: compare them by the
    median of the ratios. Their order changes, as what runs before a form decides what the caches
    hold. A form must wait for its result.
    """
    times: dict[str, list[float]] = {name: [] for name in forms}
    rng = np.random.default_rng(0)
    for number in range(before + rounds):
        for name in rng.permutation(list(forms)):
            began = clock()
            forms[name]()
            if number >= before:
                times[name].append(clock() - began)
    return {name: np.array(seconds) for name, seconds in times.items()}


def median(seconds: np.ndarray) -> float:
    return float(np.median(seconds))


def ratio(times: Mapping[str, np.ndarray], one: str, other: str) -> float:
    """Median over the rounds that both have."""
    shared = min(len(times[one]), len(times[other]))
    return median(times[one][:shared] / times[other][:shared])


def rows_of(times: Times, count: int, base: str) -> list[list]:
    """Of each form: name, ms, how many of `count` a second, and its time over that of `base`."""
    rows = []
    for form, seconds in times.items():
        speed = count / median(seconds)
        shown = round(speed, 1) if speed < 1000 else round(speed)
        rows.append([form, round(1e3 * median(seconds), 1), shown, ratio(times, form, base)])
    return rows


def product(side: int = 2048) -> tuple[Callable[[], object], int]:
    """A float32 matrix product, whose speed is the peak that shares are of, and its FLOP."""
    a, b = jax.random.normal(jax.random.key(0), (2, side, side))
    multiply = jax.jit(lambda a, b: jax.numpy.matmul(a, b, precision="highest"))
    return lambda: jax.block_until_ready(multiply(a, b)), 2 * side**3


class Stepper:
    """Steps of one device from state to state, on the arguments given, or made at each step.

    A call begins a step and gives its metrics, to wait for.
    """

    def __init__(self, step: Callable, state: Any, given: Any):
        from hypersphere_jax.training import distributed
        from hypersphere_jax.utils import memory

        devices = distributed.local_devices(1)
        memory.keep_freed(devices[0].platform)  # as a run does
        self._step = distributed.pmap(step, devices, donate=(0,))
        self._state = distributed.replicate(state, devices)
        fixed = None if callable(given) else distributed.replicate(given, devices)
        self._given = lambda: fixed or distributed.replicate(given(), devices)

    def __call__(self) -> Any:
        self._state, metrics = self._step(self._state, *self._given())
        return metrics

    def lower(self) -> Any:
        """The program, before it is compiled."""
        return self._step.lower(self._state, *self._given())

    def compile(self) -> Any:
        """The program."""
        return self.lower().compile()


def stepping(step: Callable, state: Any, given: Any, steps: int = 1) -> Callable[[], None]:
    """So many steps, which are waited for; see `Stepper`."""
    begin = Stepper(step, state, given)

    def run():
        for _ in range(steps):
            metrics = begin()
        jax.block_until_ready(metrics)

    return run


class Pace(NamedTuple):
    """Seconds of a call: with others in flight, waited for by itself, and until it returns.

    With others in flight a call takes what the device computes, or what the host takes to begin
    it if that is longer.
    """

    in_flight: float
    alone: float
    host: float


def pace(
    begin: Callable[[], Any],
    rounds: int = 3,
    at_once: int = 20,
    clock: Callable[[], float] = time.perf_counter,
) -> Pace:
    """Medians over rounds of a call that gives what to wait for; two calls before do not count.

    So many are in flight at once, or as many as take two seconds.
    """
    wait = jax.block_until_ready
    seconds: dict[str, list[float]] = {name: [] for name in Pace._fields}
    wait(begin())  # compiles
    began = clock()
    wait(begin())
    count = min(at_once, max(1, int(2 / max(clock() - began, 1e-9))))
    for _ in range(rounds):
        began = clock()
        for _ in range(count):
            result = begin()
        seconds["host"].append((clock() - began) / count)
        wait(result)
        seconds["in_flight"].append((clock() - began) / count)
        began = clock()
        wait(begin())
        seconds["alone"].append(clock() - began)
    return Pace(*(median(seconds[name]) for name in Pace._fields))


def device_kind() -> str:
    return jax.devices()[0].device_kind


def protocol(**settings: Any) -> dict[str, Any]:
    """What a file of results begins with."""
    command = shlex.join(["python", *sys.argv])
    machine = {"device": device_kind(), "cores": os.cpu_count(), "jax": jax.__version__}
    return {"command": command, **machine, **settings}


def child(module: str, *arguments: object, **environment: str) -> Any:
    """What a process of `python -m module arguments` prints as JSON; or why it died."""
    # Unfiltered, so that the error is the last line.
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"JAX_TRACEBACK_FILTERING": "off"} | environment,
        capture_output=True,
        text=True,
    )
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    if done.returncode < 0:
        return {"failure": f"killed: {signal.Signals(-done.returncode).name}"}
    if any(sign in done.stderr for sign in ("RESOURCE_EXHAUSTED", "out of memory", "t allocate")):
        return {"failure": "out of memory"}
    return {"failure": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]}


def resident_peak() -> float:
    """MB (of 10^6 bytes) of memory that this process has held at most."""
    status = Path("/proc/self/status")
    if status.exists():  # Linux, where getrusage hands the parent's number on to the child
        return 1024 * int(re.search(r"VmHWM:\s*(\d+)", status.read_text())[1]) / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
