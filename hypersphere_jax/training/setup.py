"""Setting up a run: its complete config, data, devices, and initial state."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from hypersphere_jax import data, models
from hypersphere_jax.configs import PretrainConfig
from hypersphere_jax.configs.base import holds_custom
from hypersphere_jax.data.sampling import make_sampler
from hypersphere_jax.moco import queue_init
from hypersphere_jax.training import distributed, run_dir
from hypersphere_jax.training.batches import image_cache, is_resident
from hypersphere_jax.training.optimizers import make_optimizer, make_schedule
from hypersphere_jax.training.resolve import check_batch_norm, check_custom, labelled, resolve
from hypersphere_jax.training.step import Momentum, TrainState, init_state

ACCELERATOR_STEPS_PER_CALL = 10  # a small network would wait for the host otherwise


class RunSetup(NamedTuple):
    """A run before its first step.

    Attributes:
      config: with open fields filled in.
      dataset: its `pretrain` split contains the images, or sentences, to train on.
      digest: of the data.
      devices: of all processes.
      resident: whether all images stay on the devices.
      sampler: from a step to the indices of its batch.
    """

    config: PretrainConfig
    dataset: data.Dataset
    digest: str
    devices: list[jax.Device]
    resident: bool
    sampler: Any

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        return self.config.epochs * self.sampler.steps_per_epoch

    @property
    def steps_per_call(self) -> int:
        """Steps in one program, at most. Streamed batches arrive one step at a time."""
        if not self.resident:
            return 1
        on_cpu = self.devices[0].platform == "cpu"
        default = 1 if on_cpu else ACCELERATOR_STEPS_PER_CALL
        return self.config.steps_per_call or default


def set_up(config: PretrainConfig, load: Callable = data.load) -> RunSetup:
    """Open the data of a config, and fill in its open fields.

    Raises:
      UserError: for a config that does not fit the data or the devices.
    """
    run_dir.require_custom(config)
    devices = distributed.global_devices(config.devices)
    distributed.check_batch_size(config.batch_size, devices)
    dataset = load(config, cache_dir=image_cache(config))
    config = resolve(config, dataset)
    check_batch_norm(config, len(devices))
    if holds_custom(config.replace(source=None)):
        check_custom(config, dataset.pretrain, devices)
    digest = dataset.digest()
    if config.supervised_weight:
        dataset = labelled(dataset)
    resident = is_resident(dataset.pretrain, config.pipeline, devices)
    sampler = make_sampler(dataset.pretrain, config.batch_size, config.seed)
    return RunSetup(config, dataset, digest, devices, resident, sampler)


def initial_state(setup: RunSetup) -> tuple[Callable, TrainState, jax.Array]:
    """Return the network's `apply`, the state at step 0, and the key of the steps.

    Parameters are random, or from the run that the config starts from.
    """
    config = setup.config
    schedule = make_schedule(config, setup.total_steps)
    network_key, step_key, queue_key = _keys(np.uint32(config.seed))
    apply, params, stats = models.create(config, network_key)
    is_new = not run_dir.saved_steps(config)
    if config.init_from is not None and is_new and distributed.is_first():
        vocabulary = getattr(setup.dataset.pretrain, "vocabulary", None)
        params, stats = run_dir.initial_encoder(config, params, vocabulary)
    state = init_state(params, stats, make_optimizer(config, schedule))
    if config.queue_size:
        queue = queue_init(queue_key, config.queue_size, config.dim)
        state = state._replace(momentum=Momentum(params, stats, queue))
    return apply, state, step_key


@jax.jit  # a single program
def _keys(seed: jax.Array) -> list[jax.Array]:
    """Return independent keys of a run."""
    return [jax.random.fold_in(jax.random.key(seed), number) for number in range(3)]


def make_evaluation(setup: RunSetup, apply: Callable) -> Callable[..., dict[str, float]] | None:
    """Return the evaluation during training, None if the config asks for none."""
    if setup.config.eval_every_epochs is None:
        return None
    from hypersphere_jax.evaluate import callbacks  # imported only if used

    # Each process evaluates by itself, since it would only wait for the first.
    devices = distributed.local(setup.devices)
    return callbacks.evaluation_callback(setup.config, setup.dataset, apply, devices)


class Intervals:
    """The steps after which a run logs, evaluates and ends a call of several steps."""

    def __init__(self, setup: RunSetup):
        runtime = setup.config
        epochs = setup.config.eval_every_epochs
        self.total = setup.total_steps
        self._log = runtime.log_every_steps
        self._evaluate = epochs and epochs * setup.sampler.steps_per_epoch
        saves = (runtime.checkpoint_every_steps, runtime.keep_every_steps)
        self._ends = [every for every in (self._log, self._evaluate, *saves) if every]

    def is_evaluated(self, step: int) -> bool:
        """Return whether the encoder is evaluated after this step."""
        if self._evaluate is None:
            return False
        return step % self._evaluate == 0 or step == self.total

    def is_logged(self, step: int) -> bool:
        """Return whether the metrics of this step are logged."""
        return step % self._log == 0 or step == self.total or self.is_evaluated(step)

    def calls(self, start: int, at_most: int = 1) -> Iterator[range]:
        """Yield the remaining steps, grouped into calls of so many steps at most."""
        while start < self.total:
            stop = min(start + at_most, self.total)
            stop = min(stop, *(start + every - start % every for every in self._ends))
            yield range(start, stop)
            start = stop
