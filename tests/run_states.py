"""What runs are compared by (states, metrics but for the time), and interruptions."""

import contextlib

import jax
import numpy as np
import pytest

from hypersphere_jax import models
from hypersphere_jax.moco import queue_init
from hypersphere_jax.training import checkpoints, run_dir
from hypersphere_jax.training.metrics import MetricLogger, read_metrics
from hypersphere_jax.training.optimizers import make_optimizer, make_schedule
from hypersphere_jax.training.step import Momentum, init_state


def state_of(folder, step=None):
    """The whole state of a run, its structure taken from a state made anew."""
    made = run_dir.read_config(folder)
    _, params, stats = models.abstract(made)
    optimizer = make_optimizer(made, make_schedule(made, 100))

    def anew(params, stats):
        state, size = init_state(params, stats, optimizer), made.queue_size
        queue = queue_init(jax.random.key(0), size or 1, made.dim)
        return state._replace(momentum=Momentum(params, stats, queue)) if size else state

    like = jax.eval_shape(anew, params, stats)._asdict().items()
    like = {name: part for name, part in like if part is not None}
    return checkpoints.restore(folder / "checkpoints", like, step)[1]


def timeless(folder):
    """The records of `metrics.jsonl` without what time they took."""
    dropped = ("images_per_s", "sentences_per_s", "data_wait")
    return [{k: v for k, v in r.items() if k not in dropped} for r in read_metrics(folder)]


def assert_same_run(folder, other):
    """To the bit."""
    jax.tree.map(np.testing.assert_array_equal, state_of(folder), state_of(other))
    assert timeless(folder) == timeless(other)


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


def at_line(patch, step, happens):
    """Something happens, once, after a line of metrics of this step is written."""
    original, ahead = MetricLogger.log, [happens]

    def log(self, values):
        record = original(self, values)
        if values.get("step") == step and ahead:
            ahead.pop()()
        return record

    patch.setattr(MetricLogger, "log", log)
