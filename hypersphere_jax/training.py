"""The one training loop: from a config to a run's folder, exactly resumable at any moment."""

import contextlib
import functools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hypersphere_jax import checkpoint, data, hosts, models, runs, sharding
from hypersphere_jax.assembly import check_groups, from_run, labelled, resolve, step_of
from hypersphere_jax.config import Diverged, PretrainConfig, Stopped, UserError
from hypersphere_jax.data.sampling import Sampler
from hypersphere_jax.evaluation.during import make_evaluation
from hypersphere_jax.feed import feed, is_resident
from hypersphere_jax.moco import queue_init
from hypersphere_jax.optimizers import make_optimizer, make_schedule
from hypersphere_jax.progress import Meter, Progress, track
from hypersphere_jax.signals import StopSignals
from hypersphere_jax.train_step import Momentum, TrainState, init_state


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
        stop = held.enter_context(StopSignals())
        return _train(config, command or "the same command", stop, held)


def _train(
    config: PretrainConfig, command: str, stop: StopSignals, held: contextlib.ExitStack
) -> Path:
    devices = sharding.everywhere(config.runtime.devices)
    sharding.share(config.optimizer.batch_size, devices)
    dataset = data.load(config.data)
    config = resolve(config, dataset)
    check_groups(config, len(devices))
    digest = dataset.digest()
    if config.objective.supervised_weight:
        dataset = labelled(dataset)
    sampler = Sampler(len(dataset.pretrain), config.optimizer.batch_size, config.seed)
    total = config.optimizer.epochs * sampler.steps_per_epoch
    schedule = make_schedule(config.optimizer, total)
    optimizer = make_optimizer(config.optimizer, schedule)
    run_key = jax.random.key(config.seed)
    apply, params, stats = models.create(config.model, jax.random.fold_in(run_key, 0))
    folder, runtime = runs.folder_of(config), config.runtime
    first = hosts.is_first()
    if first and config.init_from is not None and not checkpoint.steps(folder / "checkpoints"):
        params, stats = from_run(config, params, stats)
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
        step_of(config, apply, optimizer, dataset, total, resident), devices, donate=(0,)
    )
    state = sharding.replicate(state, devices)
    key = sharding.replicate(jax.random.fold_in(run_key, 1), devices)

    unchecked: list[tuple[int, Any]] = []
    saved = start
    meter = Meter(config.optimizer.batch_size)
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


def _decoding(stop: StopSignals, command: str, items: Sequence[int]) -> Iterator[int]:
    for item in track(items, "decoding"):
        if stop.asked:
            raise Stopped(
                f"stopped while decoding the images, before a step was taken; to go on: {command}"
            )
        yield item


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
