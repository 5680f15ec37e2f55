"""Setting up a run: its complete config, data, devices, and initial state."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hypersphere_jax import data, models, text
from hypersphere_jax.configs import PretrainConfig
from hypersphere_jax.data import subsets
from hypersphere_jax.data.sampling import Sampler
from hypersphere_jax.moco import queue_init
from hypersphere_jax.training import checkpoints, distributed, run_dir
from hypersphere_jax.training.batches import is_resident
from hypersphere_jax.training.objectives import initial_logit_scale
from hypersphere_jax.training.optimizers import make_optimizer, make_schedule
from hypersphere_jax.training.resolve import check_devices, resolve
from hypersphere_jax.training.step import Momentum, TrainState, init_state

ACCELERATOR_STEPS_PER_CALL = 10  # a small network would wait for the host otherwise


@dataclasses.dataclass(frozen=True)
class RunSetup:
    """A run before its first step.

    Attributes:
      config: Config with open fields filled in.
      dataset: Data; its `pretrain` split contains the images, or sentences, to train on.
      digest: Digest of the data.
      devices: Devices of all processes.
      resident: Whether all images stay on the devices.
    """

    config: PretrainConfig
    dataset: data.Dataset
    digest: str
    devices: list[jax.Device]
    resident: bool

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return run_dir.folder_of(self.config)

    @functools.cached_property
    def sampler(self) -> Any:
        """Function from a step to the indices of its batch."""
        source: Any = self.dataset.pretrain
        if self.config.reads_text:
            options = (self.config.batch_size, self.config.seed)
            return text.ConsecutiveSampler(source.documents, *options)
        return Sampler(len(source), self.config.batch_size, self.config.seed)

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        return self.config.epochs * self.sampler.steps_per_epoch

    @property
    def steps_per_call(self) -> int:
        """Largest number of steps in one program. Streamed batches arrive one step at a time."""
        if not self.resident:
            return 1
        if self.config.steps_per_call is not None:
            return self.config.steps_per_call
        return 1 if self.devices[0].platform == "cpu" else ACCELERATOR_STEPS_PER_CALL

    @property
    def steps_per_evaluation(self) -> int | None:
        """Steps between two evaluations; None for no evaluation."""
        epochs = self.config.eval_every_epochs
        return None if epochs is None else epochs * self.sampler.steps_per_epoch

    def is_evaluated(self, step: int) -> bool:
        """Return whether the encoder is evaluated after this step."""
        every = self.steps_per_evaluation
        return every is not None and (step % every == 0 or step == self.total_steps)

    def is_logged(self, step: int) -> bool:
        """Return whether the metrics of this step are logged."""
        is_due = step % self.config.log_every_steps == 0
        return is_due or step == self.total_steps or self.is_evaluated(step)

    def calls(self, start: int, at_most: int = 1) -> Iterator[range]:
        """Yield the remaining steps, grouped into calls that end where something is written."""
        config = self.config
        intervals = (
            config.log_every_steps,
            self.steps_per_evaluation,
            config.checkpoint_every_steps,
            config.keep_every_steps,
        )
        total = self.total_steps
        while start < total:
            stop = min(start + at_most, total)
            for every in filter(None, intervals):
                stop = min(stop, start + every - start % every)
            yield range(start, stop)
            start = stop


def set_up(config: PretrainConfig, load: Callable = run_dir.open_data) -> RunSetup:
    """Open the data of a config, and fill in its open fields.

    Raises:
      UserError: If the config does not fit the data or the devices.
    """
    run_dir.require_custom(config, config)
    devices = distributed.global_devices(config.devices)
    distributed.check_batch_size(config, devices)
    dataset = load(config)
    config = resolve(config, dataset)
    check_devices(config, dataset.pretrain, devices)
    digest = dataset.digest()
    if config.supervised_weight:
        train = subsets.labelled(dataset.train)
        dataset = dataset._replace(train=train, pretrain=train)
    if config.reads_text:
        return RunSetup(config, dataset, digest, devices, resident=False)
    resident = is_resident(dataset.pretrain, config.pipeline, devices)
    return RunSetup(config, dataset, digest, devices, resident)


def initial_state(setup: RunSetup) -> tuple[Callable, TrainState, jax.Array]:
    """Return the network's `apply`, the state at step 0, and the random key of the steps.

    Parameters are random, or from the run that the config starts from.
    """
    config = setup.config
    source = None
    if config.init_from is not None and distributed.is_first() and not saved_steps(config):
        source = _initial_encoder(setup)
    network_key, step_key, queue_key = _keys(np.uint32(config.seed))
    apply, params, stats = models.create(config, network_key)
    if source is not None:
        stats = source.stats
        if source.config == config:
            params = source.params
        else:  # their classifiers differ
            params = models.with_classifier(source.params, params)
    momentum = None
    if config.queue_size:
        momentum = Momentum(params, stats, queue_init(queue_key, config.queue_size, config.dim))
    optimizer = make_optimizer(config, make_schedule(config, setup.total_steps))
    state = init_state(params, stats, optimizer, initial_logit_scale(config))
    return apply, state._replace(momentum=momentum), step_key


def _initial_encoder(setup: RunSetup) -> run_dir.RunEncoder:
    """Load the encoder of `init_from`, with the classifier that it has."""
    config = setup.config
    if config.reads_text:
        text.check_vocabulary(config, setup.dataset)
    folder = run_dir.find(str(config.init_from), config.runs_dir)
    recorded = run_dir.read_config(folder)
    source = config.replace(
        num_classes=recorded.num_classes, classifier_layer=recorded.classifier_layer
    )
    return run_dir.load_encoder(folder, config.init_step, source)


def saved_steps(config: PretrainConfig) -> list[int]:
    """Return the steps of the checkpoints that a config's run may resume from, in order."""
    if config.resume == "overwrite":
        return []
    return checkpoints.steps(run_dir.folder_of(config) / "checkpoints")


@jax.jit  # a single program
def _keys(seed: jax.Array) -> list[jax.Array]:
    """Return independent keys of a run."""
    return [jax.random.fold_in(jax.random.key(seed), number) for number in range(3)]


def make_evaluation(setup: RunSetup, apply: Callable) -> Callable[..., dict[str, float]] | None:
    """Return the evaluation during training; None if the config asks for none."""
    if setup.config.eval_every_epochs is None:
        return None
    from hypersphere_jax.evaluation import callbacks  # other runs need not import it

    # Each process evaluates by itself, since it would only wait for the first.
    devices = distributed.local(setup.devices)
    return callbacks.evaluation_callback(setup.config, setup.dataset, apply, devices)
