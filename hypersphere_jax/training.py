"""The one training loop: from a config to a run's folder, exactly resumable at any moment."""

import contextlib
import dataclasses
import functools
import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hypersphere_jax import augment, checkpoint, data, hosts, models, runs, sharding
from hypersphere_jax.config import Diverged, PretrainConfig, Stopped, UserError, require
from hypersphere_jax.data import views
from hypersphere_jax.data.sampling import Sampler
from hypersphere_jax.evaluation.during import make_evaluation
from hypersphere_jax.feed import feed, is_resident
from hypersphere_jax.moco import momentum_schedule, queue_init
from hypersphere_jax.optimizers import make_optimizer, make_schedule
from hypersphere_jax.progress import Progress, track
from hypersphere_jax.shuffle import shuffle
from hypersphere_jax.train_step import (
    Momentum,
    TrainState,
    init_state,
    make_moco_step,
    make_objective,
    make_queue_objective,
    make_step,
)

logger = logging.getLogger("hypersphere_jax")


def resolve(config: PretrainConfig, dataset: data.Dataset) -> PretrainConfig:
    """Fills in what the config leaves open: recipe, image size, channels, classes, batch norm.

    A file is named by its whole path, so that the run can be evaluated from any folder.
    """
    recipe = config.data.recipe or dataset.recipe
    shape, size = dataset.pretrain.image_shape, config.model.image_size
    require(
        bool(shape or size),
        f"the images of {dataset.pretrain.origin} differ in size: give the side of those that "
        "enter the network, such as --image-size 224",
    )
    size = size or max(shape[:2])
    extra = config.data.extra_channels
    image = jax.ShapeDtypeStruct(shape or (size, size, 3 + extra), np.uint8)
    try:
        evaluate = augment.make_evaluate(recipe, size, extra_channels=extra)
        view = jax.eval_shape(evaluate, image)
    except ValueError as error:
        raise UserError(f"--recipe {recipe}: {error}") from error
    supervised = config.objective.supervised_weight > 0
    require(
        bool(dataset.class_names) or not supervised,
        f"--supervised-weight: the images of {dataset.origin} have no labels",
    )
    return dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, recipe=recipe, **data.located(config.data)),
        model=models.resolved(
            dataclasses.replace(
                config.model,
                image_size=size,
                channels=view.shape[-1],
                num_classes=len(dataset.class_names) if supervised else 0,
                batch_norm=config.model.batch_norm
                or ("split" if config.moco.queue_size else "sync"),
            )
        ),
    )


def train(config: PretrainConfig, command: str = "") -> Path:
    """Trains an encoder, or continues the run that is in its folder.

    Args:
      config: all of the run.
      command: what the user typed, for the line that says how to continue.

    Returns:
      The run's folder (see docs/runs.md).

    Raises:
      UserError: for a mistake in the config, a folder that cannot be written.
      Diverged: for a loss, gradient or parameter that is not finite.
      Stopped: after SIGTERM or SIGINT (on any host), once the state is saved.
    """
    hosts.join(config.runtime)
    with hosts.ending_together(), contextlib.ExitStack() as held:
        stop = held.enter_context(_StopSignals())
        return _train(config, command or "the same command", stop, held)


def _train(
    config: PretrainConfig, command: str, stop: "_StopSignals", held: contextlib.ExitStack
) -> Path:
    devices = sharding.everywhere(config.runtime.devices)
    sharding.share(config.optimizer.batch_size, devices)
    dataset = data.load(config.data)
    config = resolve(config, dataset)
    _check_groups(config, len(devices))
    digest = dataset.digest()
    if config.objective.supervised_weight:
        dataset = _labelled(dataset)
    sampler = Sampler(len(dataset.pretrain), config.optimizer.batch_size, config.seed)
    total = config.optimizer.epochs * sampler.steps_per_epoch
    schedule = make_schedule(config.optimizer, total)
    optimizer = make_optimizer(config.optimizer, schedule)
    run_key = jax.random.key(config.seed)
    apply, params, stats = models.create(config.model, jax.random.fold_in(run_key, 0))
    folder, runtime = runs.folder_of(config), config.runtime
    first = hosts.is_first()
    if first and config.init_from is not None and not checkpoint.steps(folder / "checkpoints"):
        params, stats = _from_run(config, params, stats)
    state = init_state(params, stats, optimizer)
    if config.moco.queue_size:
        queue = queue_init(jax.random.fold_in(run_key, 2), config.moco.queue_size, config.model.dim)
        state = state._replace(momentum=Momentum(params, stats, queue))

    resident = is_resident(dataset.pretrain, runtime.pipeline, devices)
    evaluate, every = None, 0
    if config.evaluate.eval_every_epochs is not None:
        every = config.evaluate.eval_every_epochs * sampler.steps_per_epoch
        # Each host evaluates the same by itself, as the others would only wait for the first.
        evaluate = make_evaluation(config, dataset, apply, sharding.here(devices))
    hosts.agree(
        {
            "config": runs.shaping(config),
            "data": digest,
            "devices": len(sharding.here(devices)),
            "resident": resident,
        }
    )
    checkpoints: Any = _Elsewhere()
    if first:
        held.enter_context(runs.lock(folder))
        runs.open_folder(config, devices, digest, command)
        checkpoints = checkpoint.Checkpoints(
            folder / "checkpoints", runtime.keep_last, runtime.keep_every_steps
        )
        restored = checkpoints.restore_newest(_tree(state))
        if restored is None:
            checkpoints.save(0, jax.tree.map(np.array, _tree(state)))
        else:
            state = TrainState(**restored[1])
    state = sharding.from_first_host(state)
    start = int(state.step)

    step_fn = sharding.pmap(
        _make_step(config, apply, optimizer, dataset, total, resident), devices, donate=(0,)
    )
    state = sharding.replicate(state, devices)
    key = sharding.replicate(jax.random.fold_in(run_key, 1), devices)

    unchecked: list[tuple[int, Any]] = []
    saved = start
    meter = _Meter(config.optimizer.batch_size)
    writer: Any = runs.MetricsWriter(folder, start) if first else _Elsewhere()
    progress: Any = Progress(config.name, start, total) if first else _Elsewhere()
    try:
        track = functools.partial(_decoding, stop, command)
        batches = feed(config, dataset, sampler, range(start, total), devices, track)
        held.enter_context(contextlib.closing(batches))
        for step in range(start + 1, total + 1):
            if hosts.stops(stop.asked, step - 1):
                if saved < step - 1:
                    _check(unchecked)
                    checkpoints.save(step - 1, _finite(state, step - 1))
                checkpoints.close()
                raise Stopped(
                    f"stopped and saved at step {step - 1} of {total} in {folder}; "
                    f"to go on: {command}"
                )
            try:
                with meter:
                    batch = next(batches)
            except UserError:  # an image that cannot be read, or a process that is lost
                if saved < step - 1:
                    _check(unchecked)
                    checkpoints.save(step - 1, _finite(state, step - 1))
                raise
            state, metrics = step_fn(state, *batch, key)
            meter.step_done()
            unchecked.append((step, metrics))
            evaluates = evaluate is not None and (step % every == 0 or step == total)
            if step % runtime.log_every_steps == 0 or step == total or evaluates:
                values = _check(unchecked)
                record = {"step": step, "epoch": round(step / sampler.steps_per_epoch, 4)}
                record |= {"loss": values.pop("loss")} | values
                record |= {"lr": float(schedule(step - 1))} | meter.read()
                if evaluates:
                    encoder = _finite(state._replace(opt_state=None, momentum=None), step)
                    try:
                        record |= evaluate(encoder["params"], encoder["stats"])
                    except FloatingPointError as error:
                        raise _NotFinite(f"{error} at step {step}") from error
                    meter.read()  # so that its time is not the next steps'
                writer.write(record)
                progress.update(record)
            if step % runtime.checkpoint_every_steps == 0 or step == total:
                _check(unchecked)
                checkpoints.save(step, _finite(state, step))
                saved = step
        checkpoints.close()
        if stop.asked:
            raise Stopped(
                f"stopped after the last step, all is saved in {folder}; again: {command}"
            )
    except _NotFinite as error:
        checkpoints.close()
        raise Diverged(
            f"the run diverged: {error}; the checkpoint of step {saved} is kept in {folder}",
            "choose another --name with a lower --learning-rate or smaller loss weights",
        ) from error
    except BaseException:
        with contextlib.suppress(UserError):  # the first error is the one to report
            checkpoints.close()
        raise
    finally:
        progress.close()
        writer.close()
    return folder


def _labelled(dataset: data.Dataset) -> data.Dataset:
    """The data with labelled images alone to train on."""
    labels = np.asarray(dataset.train.labels)
    known, classes = np.flatnonzero(labels >= 0), np.unique(labels[labels >= 0])
    require(
        len(classes) > 1,
        f"--supervised-weight: the labelled images of {dataset.origin} are all of one class, and "
        "two are needed",
    )
    train = dataset.train
    if len(known) < len(labels):
        train = views.Subset(train, known, "labelled images")
    return dataset._replace(train=train, pretrain=train)


def _make_step(
    config: PretrainConfig,
    apply: Callable,
    optimizer: Any,
    dataset: data.Dataset,
    total: int,
    resident: bool,
) -> Callable:
    """The step of one device that a config describes, with a queue or without."""
    transform = augment.make_augment(
        config.data.recipe,
        config.model.image_size,
        cropped=dataset.pretrain.image_shape is None,
        extra_channels=config.data.extra_channels,
    )
    options = {"axis_name": sharding.AXIS}
    if not config.moco.queue_size:
        objective = make_objective(config.objective)
        return make_step(apply, objective, optimizer, transform, **options)
    final = 1.0 if config.moco.ema_schedule == "cosine" else config.moco.ema_decay
    return make_moco_step(
        apply,
        make_queue_objective(config.objective),
        optimizer,
        transform,
        decay=momentum_schedule(config.moco.ema_decay, final, total),
        own_stats=config.moco.ema_stats == "own",
        separate=_separate(config),
        resident=resident,
        **options,
    )


def _separate(config: PretrainConfig) -> Callable | None:
    """Puts keys into other groups of batch norm than their queries, where there are groups."""
    if config.model.batch_norm == "sync":
        return None
    groups = config.model.bn_groups if config.model.batch_norm == "split" else None
    return functools.partial(shuffle, groups=groups, axis_name=sharding.AXIS)


def _check_groups(config: PretrainConfig, devices: int) -> None:
    """Refuses batch norm's groups before a folder is made, where the step would only later."""
    norm, groups = config.model.batch_norm, config.model.bn_groups
    batch_size = config.optimizer.batch_size
    if norm == "split":
        require(
            groups % devices == 0 and batch_size % groups == 0,
            f"--bn-groups {groups}: must be a multiple of the {devices} device(s), and divide "
            f"--batch-size {batch_size}",
        )
    if not config.moco.queue_size:
        return
    require(
        not (norm == "split" and groups == 1) and not (norm == "local" and devices == 1),
        "keys would have the batch statistics of their queries' images, which give the positives "
        "away: with a queue on one device take --batch-norm split with several --bn-groups",
    )
    if norm == "sync":
        logger.warning(
            "--batch-norm sync with a queue: keys have the batch statistics of their queries' "
            "images, which give the positives away; split or local keep them apart"
        )


def _decoding(stop: "_StopSignals", command: str, items: Sequence[int]) -> Iterator[int]:
    for item in track(items, "decoding"):
        if stop.asked:
            raise Stopped(
                f"stopped while decoding the images, before a step was taken; to go on: {command}"
            )
        yield item


def _from_run(config: PretrainConfig, params: Any, stats: Any) -> tuple[Any, Any]:
    """Parameters and statistics of the run to start from; a classifier of its own stays fresh."""
    folder = runs.find(config.init_from)
    its = runs.read_config(folder).model
    classifier = {"num_classes": its.num_classes, "classifier_layer": its.classifier_layer}
    source = dataclasses.replace(config.model, **classifier)
    _, source_params, source_stats = models.abstract(source)
    like = {"params": source_params, "stats": source_stats}
    _, tree = checkpoint.restore(folder / "checkpoints", like, config.init_step)
    if source != config.model:  # in their classifiers, that is
        tree["params"] = models.with_classifier(tree["params"], params)
    return tree["params"], tree["stats"]


class _Elsewhere:
    """What only the first host writes, on the others: every method does nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


class _NotFinite(Exception):
    """A number that is not finite."""


def _check(unchecked: list[tuple[int, Any]]) -> dict[str, float]:
    """Reads the metrics of the steps since the last call, and returns those of the newest.

    Raises:
      _NotFinite: when the loss or its gradient was not finite at one of them.
    """
    values: dict[str, float] = {}
    for step, metrics in unchecked:
        values = {name: float(sharding.unreplicate(value)) for name, value in metrics.items()}
        if not all(math.isfinite(values[name]) for name in ("loss", "grad_norm")):
            loss, gradient = values["loss"], values["grad_norm"]
            raise _NotFinite(f"loss {loss:g} and gradient norm {gradient:g} at step {step}")
    unchecked.clear()
    return values


def _tree(state: TrainState) -> dict[str, Any]:
    """What a checkpoint holds of a state."""
    return {name: part for name, part in state._asdict().items() if part is not None}


def _finite(state: TrainState, step: int) -> dict[str, Any]:
    """The replicated state as a tree to save, when every number in it is finite."""
    tree = _tree(sharding.unreplicate(state))
    for leaf in jax.tree.leaves(tree):
        if np.issubdtype(leaf.dtype, np.inexact) and not np.isfinite(leaf).all():
            raise _NotFinite(f"parameters or optimizer state that are not finite at step {step}")
    return tree


class _Meter:
    """Images per second, and the share of the time in which the devices wait for data.

    As a context manager it measures the waiting. Time counts from the end of the first step, which
    compiles.
    """

    def __init__(self, batch_size: int):
        self._batch_size = batch_size
        self._since: float | None = None

    def __enter__(self):
        self._waits_since = time.perf_counter()

    def __exit__(self, *_):
        if self._since is not None:
            self._waited += time.perf_counter() - self._waits_since

    def step_done(self) -> None:
        if self._since is None:
            self._reset()
        else:
            self._steps += 1

    def read(self) -> dict[str, float]:
        """The figures since the last reading; empty when that is no whole step."""
        passed = time.perf_counter() - self._since
        steps, waited = self._steps, self._waited
        self._reset()
        if not steps:
            return {}
        return {
            "images_per_s": round(steps * self._batch_size / passed, 1),
            "data_wait": round(waited / passed, 4),
        }

    def _reset(self) -> None:
        self._since, self._steps, self._waited = time.perf_counter(), 0, 0.0


class _StopSignals:
    """While entered, SIGTERM and SIGINT set `asked`; a second one stops at once."""

    def __init__(self):
        self.asked = False

    def __enter__(self) -> "_StopSignals":
        self._before = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._stop)
        return self

    def _stop(self, number, frame):
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def __exit__(self, *_):
        for number, handler in self._before.items():
            signal.signal(number, handler)
