"""Training loop: time per step of `hypersphere_jax.train`, next to a bare loop over the steps."""

import functools
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.options import LoopOptions
from benchmarks.timing import compared, median, show, take_turns
from hypersphere_jax.configs import PretrainConfig
from hypersphere_jax.training import distributed, train
from hypersphere_jax.training.hparams import scalars_of
from hypersphere_jax.training.setup import initial_state, set_up

BARE, OURS = "bare loop", "hypersphere_jax.train"
SIZE: dict[str, Any] = {"model": "small_cnn", "width": 0.25, "batch_size": 140}
NOTE = "relative: time relative to a loop that only calls the step on the next batch."


def run(options: LoopOptions) -> list[dict[str, Any]]:
    """Train on digits with both loops."""
    with tempfile.TemporaryDirectory() as folder:
        config = PretrainConfig(
            name="loop",
            runs_dir=folder,
            resume="overwrite",
            epochs=options.epochs,
            **SIZE,
            devices=1,
        )
        forms = {
            BARE: functools.partial(bare_loop, config),
            OURS: functools.partial(whole_run, config),
        }
        rows = compared(take_turns(forms, options.rounds, measure=lambda form: form()), BARE)
    show("small_cnn, 140 pairs, one step", rows, NOTE)
    return rows


def bare_loop(config: PretrainConfig) -> float:
    """Return the seconds per step after the first call."""
    setup = set_up(config)
    _, state, key = initial_state(setup)
    state = distributed.replicate(state, setup.devices)
    hparams = distributed.replicate((key, scalars_of(setup.config)), setup.devices)
    train_step = train.compile_train_step(setup)
    batches = train.open_batches(setup, 0)
    state, metrics = train_step(state, *next(batches), *hparams)
    jax.block_until_ready(metrics)
    started = time.perf_counter()
    for batch in batches:
        state, metrics = train_step(state, *batch, *hparams)
    jax.block_until_ready(metrics)
    steps = setup.total_steps - setup.steps_per_call
    return (time.perf_counter() - started) / steps


def whole_run(config: PretrainConfig) -> float:
    """Return the median seconds per step in the log, which excludes compilation."""
    folder = train.train(config)
    lines = Path(folder, "metrics.jsonl").read_text().splitlines()
    rates = [json.loads(line).get("images_per_s") for line in lines]
    return config.batch_size / median(np.array([rate for rate in rates if rate]))
