"""Timing: alternatives that take turns, training steps, and tables of the results."""

import importlib.util
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hypersphere_jax import data
from hypersphere_jax.configs import PretrainConfig, require
from hypersphere_jax.reporting.tables import print_table
from hypersphere_jax.training import distributed
from hypersphere_jax.training.hparams import scalars_of
from hypersphere_jax.training.setup import RunSetup, initial_state, set_up
from hypersphere_jax.training.step import make_step_of
from hypersphere_jax.utils import memory

ROOT = Path(__file__).parent.parent
HAS_TORCH = importlib.util.find_spec("torch") is not None
SLOW_S = 20.0  # forms with slower calls run in one round
CALLS_IN_FLIGHT = 20
Times = dict[str, np.ndarray]


def seconds_of(call: Callable[[], object]) -> float:
    """Return the seconds of a call until its result is ready."""
    started = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - started


def take_turns(
    forms: Mapping[str, Callable[[], Any]],
    rounds: int,
    measure: Callable[[Callable[[], Any]], float] = seconds_of,
) -> Times:
    """Return the seconds of each form in each round, after one call that compiles.

    All forms run in every round, in random order, so that a busy machine slows them all equally:
    compare them by the median of their ratios.
    """
    require(rounds >= 1, f"rounds={rounds}: must be at least 1")
    for form in forms.values():
        measure(form)
    times: dict[str, list[float]] = {name: [] for name in forms}
    rng = np.random.default_rng(0)
    for _ in range(rounds):
        for name in rng.permutation(list(forms)):
            if not times[name] or times[name][0] <= SLOW_S:
                times[name].append(measure(forms[name]))
    return {name: np.array(seconds) for name, seconds in times.items()}


def ratio(times: Times, form: str, base: str) -> float:
    """Return the median ratio of two forms over the rounds that both have."""
    shared = min(len(times[form]), len(times[base]))
    return float(np.median(times[form][:shared] / times[base][:shared]))


def compared(times: Times, base: str) -> list[dict[str, Any]]:
    """Return a row per form: milliseconds, and time relative to `base`."""
    return [
        {"form": form, "ms": 1e3 * np.median(seconds), "relative": ratio(times, form, base)}
        for form, seconds in times.items()
    ]


def show(title: str, rows: Sequence[Mapping[str, Any]], note: str = "") -> None:
    """Print rows as a table with the device in its title."""
    columns = list(rows[0])
    values = [[row[column] for column in columns] for row in rows]
    print()
    print_table(columns, values, title=f"{title}, {jax.devices()[0].device_kind}")
    if note:
        print(note)


def pace(start: Callable[[], Any]) -> float:
    """Return the median seconds per asynchronous call, after two calls that do not count.

    `start` returns the arrays to wait for. Fewer than `CALLS_IN_FLIGHT` calls are in flight if
    these take more than two seconds.
    """
    jax.block_until_ready(start())  # compiles
    seconds = seconds_of(start)
    count = min(CALLS_IN_FLIGHT, max(1, int(2 / max(seconds, 1e-9))))
    rounds = [seconds_of(lambda: [start() for _ in range(count)][-1]) for _ in range(3)]
    return statistics.median(rounds) / count


def matrix_product(
    side: int | None = None, dtype: Any = jnp.float32, precision: Any = "highest"
) -> tuple[Callable[[], jax.Array], int]:
    """Return a matrix product, whose speed counts as the device's peak, and its FLOP."""
    if side is None:
        side = 2048 if jax.default_backend() == "cpu" else 8192
    a, b = jax.random.normal(jax.random.key(0), (2, side, side), dtype)
    multiply = jax.jit(lambda a, b: jnp.matmul(a, b, precision=precision))
    return lambda: multiply(a, b), 2 * side**3


def random_run(config: PretrainConfig, channels: int = 3) -> tuple[RunSetup, tuple]:
    """Return the setup of a run on random images, and the arrays of its first batch."""
    n = 4 * config.batch_size
    shape = (n, config.image_size, config.image_size, channels)
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    source = data.Arrays(images, np.zeros(n, np.int32), ("any",), "random images")
    dataset = data.Dataset(source, source, source, config.recipe)
    setup = set_up(config, lambda _: dataset)
    batch = (images, source.labels, setup.sampler(0))
    return setup, distributed.replicate(batch, setup.devices)


class Stepper:
    """Training steps of a run: a call starts a step on a batch and returns its metrics."""

    def __init__(self, setup: RunSetup):
        apply, state, key = initial_state(setup)
        cropped = setup.dataset.pretrain.image_shape is None
        options = {"axis_name": distributed.AXIS, "cropped": cropped}
        self.function = make_step_of(setup.config, apply, setup.total_steps, **options)
        self.state = distributed.replicate(state, setup.devices)
        hparams = (key, scalars_of(setup.config))
        self.hparams = distributed.replicate(hparams, setup.devices)
        memory.keep_freed(setup.devices[0].platform)
        self._step = distributed.pmap(self.function, setup.devices, donate=(0,))

    def __call__(self, *batch: Any) -> Any:
        self.state, metrics = self._step(self.state, *batch, *self.hparams)
        return metrics
