"""The time of a step, measured in a process of its own, which is ended when its memory runs out."""

import os
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import jax

from experiments.step_costs import make
from experiments.workers import ctrl_c_blocked
from hypersphere_jax.configs import PretrainConfig
from hypersphere_jax.data.threads import end_with_parent
from hypersphere_jax.training import distributed

POLL = 0.1  # seconds between two looks at the memory
REPEATS, ENOUGH = 3, 10.0  # steps that are timed, and seconds after which no further one is
SHARE = 0.7  # of the memory that is free


def measured(config: PretrainConfig, limit: float) -> float | str:
    """Seconds of a step on the first device, or why there are none.

    Args:
      config: of a run, whose batch is that of the step.
      limit: bytes of memory that the process may take.
    """
    context = get_context("spawn")  # a fork would copy JAX's threads in whatever state they are
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(config, sender), daemon=True)
    with ctrl_c_blocked():
        process.start()
    sender.close()
    try:
        while not receiver.poll(POLL):
            if resident(process.pid) > limit:
                return f"needs more than {limit / 1e9:.1f} GB"
        return receiver.recv()
    except EOFError:
        return "its process died"
    finally:
        process.kill()
        process.join()


def free(most: float) -> float:
    """Bytes of memory that are free for a process, of so many."""
    file = Path("/proc/meminfo")
    lines = file.read_text().splitlines() if file.is_file() else []
    kilobytes = [float(line.split()[1]) for line in lines if line.startswith("MemAvailable")]
    return SHARE * min(most, *(1024 * each for each in kilobytes))


def resident(pid: int | None) -> int:
    """Bytes that a process has in memory; 0 where the system does not say."""
    file = Path(f"/proc/{pid}/statm")
    try:
        return int(file.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def _measure(config: PretrainConfig, sender: Connection) -> None:
    end_with_parent()
    try:
        sender.send(seconds(config))
    except Exception as error:  # whatever it is, the others go on
        sender.send(str(error).partition("\n")[0][:100] or type(error).__name__)


def seconds(config: PretrainConfig) -> float:
    """Seconds of a step on this process's first device, with random images or words."""
    devices = distributed.local_devices(1)
    step, start, batch = make(config, distributed.AXIS)
    step = distributed.pmap(step, devices, donate=(0,))
    batch = distributed.replicate((*batch, jax.random.key(2)), devices)
    state = distributed.replicate(start(), devices)
    times: list[float] = []
    while len(times) <= REPEATS and sum(times[1:]) < ENOUGH:  # the first one compiles
        began = time.perf_counter()
        state, metrics = step(state, *batch)
        jax.block_until_ready(metrics)
        times.append(time.perf_counter() - began)
    return min(times[1:])
