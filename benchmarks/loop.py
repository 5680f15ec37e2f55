"""Training loop: time per step of `hypersphere_jax.train`, next to a bare loop over the steps."""

import functools
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import jax

from benchmarks.timing import Stepper, compared, seconds_of, show, take_turns
from hypersphere_jax.configs import PretrainConfig
from hypersphere_jax.training import train
from hypersphere_jax.training.setup import RunSetup, set_up

BARE, OURS = "bare loop", "hypersphere_jax.train"
NOTE = "relative: time relative to a loop that only calls the step on the next batch."


def run(epochs: int = 30, rounds: int = 5) -> list[dict[str, Any]]:
    """Training loop: time per step, compared with a bare loop over the same steps.

    Args:
      epochs: Passes over the 1,400 digits.
      rounds: Rounds to measure, after one that compiles.
    """
    with tempfile.TemporaryDirectory() as folder:
        config = PretrainConfig(
            name="loop",
            runs_dir=folder,
            resume="overwrite",
            epochs=epochs,
            model="small_cnn",
            width=0.25,
            batch_size=140,
            devices=1,
            steps_per_call=1,
        )
        setup = set_up(config)
        forms = {
            BARE: functools.partial(bare_loop, setup, Stepper(setup)),
            OURS: functools.partial(whole_run, config),
        }
        rows = compared(take_turns(forms, rounds, measure=lambda form: form()), BARE)
    show("small_cnn, 140 pairs, one step", rows, NOTE)
    return rows


def bare_loop(setup: RunSetup, stepper: Stepper) -> float:
    """Return the seconds per step after the first step."""
    batches = train.open_batches(setup, 0)
    jax.block_until_ready(stepper(*next(batches)))
    seconds = seconds_of(lambda: [stepper(*batch) for batch in batches][-1])
    return seconds / (setup.total_steps - 1)


def whole_run(config: PretrainConfig) -> float:
    """Return the median seconds per step in the log, which excludes compilation."""
    folder = train.train(config)
    lines = Path(folder, "metrics.jsonl").read_text().splitlines()
    rates = [json.loads(line).get("images_per_s") for line in lines]
    return config.batch_size / statistics.median(rate for rate in rates if rate)
