"""Finished runs that the tests of training read."""

from pathlib import Path

import pytest
import tiny_runs
from run_states import killed_after_checkpoint

from hypersphere_jax import training


@pytest.fixture(scope="session")
def short_run(once) -> Path:
    """The finished run `tiny_runs.short`: 12 steps on two devices (read only)."""
    make = lambda folder: training.train(tiny_runs.short(folder))  # noqa: E731
    return once("short", make) / "short"


@pytest.fixture(scope="session")
def killed_run(once) -> Path:
    """The same run, killed right after its checkpoint of step 9 (read only)."""

    def make(folder):
        with killed_after_checkpoint(9):
            training.train(tiny_runs.short(folder))

    return once("killed", make) / "short"
