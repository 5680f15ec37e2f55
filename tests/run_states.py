"""Comparing runs by their states and metrics, and runs as a kill or a full disk leaves them."""

import contextlib
import resource
import shutil

import jax
import numpy as np
import pytest

from hypersphere_jax import models
from hypersphere_jax.moco import queue_init
from hypersphere_jax.training import checkpoints, run_dir
from hypersphere_jax.training.metrics import read_metrics
from hypersphere_jax.training.objectives import initial_logit_scale
from hypersphere_jax.training.optimizers import make_optimizer, make_schedule
from hypersphere_jax.training.step import Momentum, init_state


def state_of(folder, step=None):
    """Return the whole state of a run, restored into a newly made structure."""
    config = run_dir.read_config(folder)
    _, params, stats = models.abstract(config)
    optimizer = make_optimizer(config, make_schedule(config, 100))

    def make_state(params, stats):
        scale = initial_logit_scale(config)
        state = init_state(params, stats, optimizer, scale)
        if not config.queue_size:
            return state
        queue = queue_init(jax.random.key(0), config.queue_size, config.dim)
        return state._replace(momentum=Momentum(params, stats, queue))

    parts = jax.eval_shape(make_state, params, stats)._asdict().items()
    like = {name: part for name, part in parts if part is not None}
    return checkpoints.restore(folder / "checkpoints", like, step)[1]


def timeless(folder):
    """Return the records of metrics.jsonl without throughput."""
    dropped = ("images_per_s", "sentences_per_s", "data_wait")
    return [{k: v for k, v in r.items() if k not in dropped} for r in read_metrics(folder)]


def assert_same_run(folder, other):
    """Compare two runs bit by bit."""
    jax.tree.map(np.testing.assert_array_equal, state_of(folder), state_of(other))
    assert timeless(folder) == timeless(other)


def killed(run, step, to):
    """Return a copy of a run in the folder `to`, killed before the checkpoint after `step`."""
    folder = shutil.copytree(run, to / run.name)
    for later in checkpoints.steps(folder / "checkpoints"):
        if later > step:
            shutil.rmtree(folder / "checkpoints" / str(later))
    return folder


@contextlib.contextmanager
def full_disk(size, error=OSError):
    """Make writing a file of more bytes fail, with this error for the caller."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        with pytest.raises(error):
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def killed_after_checkpoint(step):
    """What runs inside ends as by a kill right after the checkpoint of a step."""
    original = checkpoints.Checkpointer.save

    def save(self, at, tree):
        original(self, at, tree)
        if at == step:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(checkpoints.Checkpointer, "save", save)
        yield
