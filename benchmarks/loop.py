"""What the training loop takes beside its steps: a real run, but for a step that only waits."""

import tempfile
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.timing import device_kind
from hypersphere_jax import configs as C
from hypersphere_jax.reporting.tables import print_table
from hypersphere_jax.training import distributed
from hypersphere_jax.training.recorder import Recorder, open_run, tree_of
from hypersphere_jax.training.setup import ACCELERATOR_STEPS_PER_CALL, initial_state, set_up
from hypersphere_jax.training.step import make_steps, scalars_of
from hypersphere_jax.training.train import open_batches, take_steps

BATCH, METRICS = 140, ("loss", "align", "uniform", "grad_norm", "lr")


def loop(step_ms: float, steps: int, model: str) -> None:
    """Time the loop around a step that waits, with one step and with ten in a program."""
    _row(step_ms, 20, "small_cnn", 1)  # a process's first run imports and opens more
    rows = [_row(step_ms, steps, model, at_once) for at_once in (1, ACCELERATOR_STEPS_PER_CALL)]
    names = ["steps in a program", "host ms a step", "share", "beside ms", "share", "checkpoint ms"]
    title = f"{model}, steps of {step_ms} ms, a line of the log every 10 steps, {device_kind()}"
    print_table(names, rows, title=title)


def _row(step_ms: float, steps: int, model: str, at_once: int) -> list:
    with tempfile.TemporaryDirectory() as folder:
        found = measure(step_ms, steps, model, at_once, folder)
    each = [1e3 * found[name] for name in ("host", "beside")]
    shares = [f"{ms / step_ms:.2%}" for ms in each]
    columns = [f"{each[0]:.3f}", shares[0], f"{each[1]:.3f}", shares[1]]
    return [at_once, *columns, round(1e3 * found["checkpoint"])]


def measure(step_ms: float, steps: int, model: str, at_once: int, folder: str) -> dict[str, float]:
    """Seconds: `host` and `beside` of a step, and of the last `checkpoint` on this thread."""
    config = C.PretrainConfig(
        name="loop",
        runs_dir=folder,
        model=model,  # type: ignore[arg-type]  # any of its names
        epochs=-(-steps * BATCH // 1400),
        batch_size=BATCH,
        devices=1,
        steps_per_call=at_once,
    )
    setup = set_up(config)
    _, state, key = initial_state(setup)
    with open_run(setup, "") as run:
        state = distributed.replicate(run.restore(state), setup.devices)
        hparams = distributed.replicate((key, scalars_of(setup.config)), setup.devices)
        recorder = Recorder([run])
        calls = setup.calls(0, at_once)
        tree = tree_of(state)
        distributed.unreplicate((tree, distributed.finite(tree)))  # compiles
        program = distributed.pmap(make_steps(_step, at_once), setup.devices, donate=(0,))
        step = _Device(program, at_once, step_ms)
        stops = _stops(recorder)
        take_steps(recorder, step, state, hparams, calls, open_batches(setup, 0))
    began, ended, saved = stops[:3]
    (wall, host), (checkpoint, _) = ended - began, saved - ended
    steps = setup.total_steps - at_once  # the first call compiles, and is over before the others
    beside = wall - steps * step_ms / 1e3
    return {"host": host / steps, "beside": beside / steps, "checkpoint": checkpoint}


def _stops(recorder: Recorder) -> list[np.ndarray]:
    """Will hold times of the clock and of this thread: after the first call, the last, the save."""
    stops: list[np.ndarray] = []
    complete, save = recorder.complete, recorder.save

    def stop():
        stops.append(np.array([time.perf_counter(), time.thread_time()]))

    def first(ahead=0):
        complete(ahead)
        if not stops:
            stop()

    def last(step, state):
        stop()
        save(step, state)
        stop()

    recorder.complete, recorder.save = first, last  # type: ignore[method-assign]
    return stops


def _step(state, images, labels, indices, key, scalars):
    """Nothing but the number of steps."""
    state = state._replace(step=state.step + 1)
    return state, {name: jnp.float32(state.step) for name in METRICS}


class _Device:
    """Calls a program, whose metrics come after as long as steps would take on a device."""

    def __init__(self, program: Callable, steps: int, step_ms: float):
        self._program, self._seconds, self._free = program, steps * step_ms / 1e3, 0.0

    def __call__(self, *arguments):
        state, metrics = self._program(*arguments)
        self._free = max(self._free, time.perf_counter()) + self._seconds
        return state, metrics | {"loss": _Later(metrics["loss"], self._free)}


class _Later:
    """An array that is there at a time."""

    def __init__(self, array: jax.Array, at: float):
        self._array, self._at = array, at

    def block_until_ready(self):
        time.sleep(max(0.0, self._at - time.perf_counter()))

    def __getattr__(self, name: str):
        return getattr(self._array, name)
