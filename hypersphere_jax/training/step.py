"""One training step as a pure function of one device: state, update, and what a config asks for.

The step knows devices only as the name of an axis: it runs under `pmap`, under `shard_map`, and,
with `axis_name=None`, on a single device, with the same numbers.
"""

import dataclasses
import functools
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hypersphere_jax import text
from hypersphere_jax.augment import make_augment, one_view, recipe_of, two_views
from hypersphere_jax.configs import MocoConfig, PretrainConfig
from hypersphere_jax.configs.objective import WEIGHTS
from hypersphere_jax.moco import (
    KeyQueue,
    ema_update,
    momentum_schedule,
    queue_push,
    queue_statistics,
    shuffle,
)
from hypersphere_jax.training.objectives import (
    Metrics,
    Objective,
    make_objective,
    make_queue_objective,
)
from hypersphere_jax.training.optimizers import make_optimizer, make_schedule

# Scalar hyper-parameters are arguments of the step, so that runs with other values share a program.
SCALARS = (
    *WEIGHTS,
    "contrastive_tau",
    "align_alpha",
    "uniform_t",
    "loss_tau",
    "loss_alpha",
    "loss_lam",
    "loss_factor",
    "learning_rate",
    "weight_decay",
    "momentum",
)
# Options that tell runs apart and do not enter the program.
IDENTITY = ("name", "runs_dir", "seed", "init_from", "init_step")


class Momentum(NamedTuple):
    """Momentum Contrast: the encoder of the keys, and the keys themselves."""

    params: Any
    stats: Any
    queue: KeyQueue


class TrainState(NamedTuple):
    """All that a step changes, and all that a checkpoint holds."""

    step: jax.Array  # int32, steps done
    params: Any
    stats: Any
    opt_state: Any
    momentum: Momentum | None = None  # None without a queue


def init_state(params: Any, stats: Any, optimizer: optax.GradientTransformation) -> TrainState:
    """The state before the first step."""
    # Zeros by themselves would be a program for every shape.
    begun = jax.jit(lambda params: (jnp.zeros((), jnp.int32), optimizer.init(params)))
    step, opt_state = begun(params)
    return TrainState(step, params, stats, opt_state)


def structure(config: PretrainConfig) -> PretrainConfig:
    """Compilation key: the config without traced scalars, seed and run identity.

    Whether a weight is zero belongs to it, because a term without weight stays out of the loss.
    """
    standard = PretrainConfig()
    shared = {name: getattr(standard, name) for name in (*SCALARS, *IDENTITY)}
    shared |= {name: float(getattr(config, name) > 0) for name in WEIGHTS}
    return dataclasses.replace(config, **shared)


def scalars_of(config: PretrainConfig) -> dict[str, np.ndarray]:
    """Return the scalar hyper-parameters that a config's loss has, as float32."""
    values = {name: getattr(config, name) for name in SCALARS}
    return {
        name: np.asarray(value, np.float32) for name, value in values.items() if value is not None
    }


def make_step_of(
    config: PretrainConfig,
    apply: Callable,
    total: int,
    *,
    axis_name: str | None,
    cropped: bool = False,
    resident: bool = True,
) -> Callable[..., tuple[TrainState, Metrics]]:
    """The step that a config describes: of sentences, or of images, with a queue or without.

    Args:
      config: with all sizes filled in.
      apply: the network, see `models.create`.
      total: steps of the run.
      axis_name: the mapped axis, or None on a single device.
      cropped: whether the host crops the images, as it does those of any size.
      resident: see `make_moco_step`.

    Returns:
      `step(state, images, labels, indices, key, scalars) -> (state, metrics)`, as `make_step`'s
      with `scalars_of` a config of the same `structure`.
    """

    def step(state, images, labels, indices, key, scalars):
        schedule = make_schedule(config, total, scalars["learning_rate"])
        optimizer = make_optimizer(config, schedule, scalars)
        one = _step_of(config, apply, optimizer, total, axis_name, cropped, resident, scalars)
        rate = jnp.float32(schedule(state.step))
        state, metrics = one(state, images, labels, indices, key)
        return state, metrics | {"lr": rate}

    precision = config.matmul_precision
    return step if precision is None else jax.default_matmul_precision(precision)(step)


def make_steps(step: Callable, at_once: int = 1) -> Callable:
    """Several steps in one program, with the numbers of as many calls of the one.

    Args:
      step: see `make_step_of`.
      at_once: steps at most.

    Returns:
      With one at once, the step, whose metrics have a leading axis of one step. Else
      `steps(state, images, labels, indices, count, key, scalars) -> (state, metrics)`, where
      `indices` and the metrics have a leading axis of steps, of which the first `count` are taken:
      how many is no part of the program.
    """
    if at_once == 1:

        def alone(*arguments):
            state, metrics = step(*arguments)
            return state, jax.tree.map(lambda x: x[None], metrics)

        return alone

    def steps(state, images, labels, indices, count, key, scalars):
        def one(i, carry):
            state, every = carry
            state, metrics = step(state, images, labels, indices[i], key, scalars)
            return state, jax.tree.map(lambda all, x: all.at[i].set(x), every, metrics)

        _, like = jax.eval_shape(step, state, images, labels, indices[0], key, scalars)
        every = jax.tree.map(lambda x: jnp.zeros((len(indices), *x.shape), x.dtype), like)
        return jax.lax.fori_loop(0, count, one, (state, every))

    return steps


def _step_of(config, apply, optimizer, total, axis_name, cropped, resident, scalars):
    if config.reads_text:
        options = {"axis_name": axis_name, "scalars": scalars}
        return text.make_sentence_step(config, apply, optimizer, **options)
    augment = make_augment(
        recipe_of(config),
        config.image_size,
        cropped=cropped,
        extra_channels=config.extra_channels,
    )
    if not config.queue_size:
        objective = make_objective(config, scalars)
        return make_step(apply, objective, optimizer, augment, axis_name=axis_name)
    separate = None
    if config.batch_norm in ("split", "local"):
        groups = config.bn_groups if config.batch_norm == "split" else None
        separate = functools.partial(shuffle, groups=groups, axis_name=axis_name)
    return make_moco_step(
        apply,
        make_queue_objective(config, scalars),
        optimizer,
        augment,
        axis_name=axis_name,
        separate=separate,
        resident=resident,
        decay=ema_decay(config, total),
        own_stats=config.ema_stats == "own",
    )


def ema_decay(config: MocoConfig, total: int) -> Callable[[Any], Any]:
    """The momentum encoder's decay by steps done, of a run of so many in total."""
    final = 1.0 if config.ema_schedule == "cosine" else config.ema_decay
    return momentum_schedule(config.ema_decay, final, total)


def make_step(
    apply: Callable,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    augment: Callable,
    *,
    axis_name: str | None,
) -> Callable[..., tuple[TrainState, Metrics]]:
    """A training step of one device, in which both views pass through one network.

    Args:
      apply: the network, see `models.create`.
      objective: the global loss of two views, see `make_objective`.
      optimizer: an optax transformation, see `optimizers.make_optimizer`.
      augment: (key, uint8 image) -> float32 image, see `augment.make_augment`.
      axis_name: the mapped axis, or None on a single device.

    Returns:
      `step(state, images, labels, indices, key) -> (state, metrics)`, where `images`
      `[m, h, w, c]` uint8 and `labels` `[m]` are the whole training split, `indices` `[n]` this
      device's part of the batch, and `key` the run's random key.
    """

    def step(state, images, labels, indices, key):
        key = jax.random.fold_in(key, state.step)
        # Both views pass through the network at once, so batch norm sees them together; side by
        # side, so that its groups are the same images' on any number of devices.
        positions = _positions(indices, axis_name)
        views = jnp.stack(two_views(augment, key, images[indices], positions), axis=1)
        views = views.reshape(-1, *views.shape[2:])

        def loss_of(params):
            outputs, stats = apply(params, state.stats, views, True, axis_name)
            first = {name: layer[0::2] for name, layer in outputs.items()}
            second = {name: layer[1::2] for name, layer in outputs.items()}
            drawn = jax.random.fold_in(key, zlib.crc32(b"objective"))
            loss, metrics = objective(first, second, labels[indices], axis_name, drawn)
            return loss, (stats, metrics)

        return update_state(state, loss_of, optimizer, axis_name)

    return step


def make_moco_step(
    apply: Callable,
    objective: Callable,
    optimizer: optax.GradientTransformation,
    augment: Callable,
    *,
    axis_name: str | None,
    separate: Callable | None = None,
    resident: bool = True,
    decay: Callable[[jax.Array], jax.Array | float] = lambda step: 0.999,
    own_stats: bool = True,
) -> Callable[..., tuple[TrainState, Metrics]]:
    """A training step of Momentum Contrast, on one device.

    In the order of MoCo's Algorithm 1: keys of the second view by the momentum encoder, loss of the
    queries against the queue as it was, update of the encoder, then of the momentum encoder, and
    the keys enter the queue.

    Args:
      apply: the network, see `models.create`.
      objective: the global loss of queries, keys and queue, see `make_queue_objective`.
      optimizer: an optax transformation.
      augment: (key, uint8 image) -> float32 image, see `augment.make_augment`.
      axis_name: the mapped axis, or None on a single device.
      separate: (samples, random key) -> samples, undo: puts the samples of the keys into other
        groups of batch norm than those of their queries, such as `shuffle`; None: they stay.
      resident: whether every device has all images, so that their numbers are what is sent to
        another one; else the images are, as uint8.
      decay: of the momentum encoder's parameters, at a step.
      own_stats: the momentum encoder's running statistics are those of the keys, as in MoCo's
        code; else they are averaged as its parameters are.

    Returns:
      As `make_step`; the state needs its `momentum`.

    Source: He et al. 2020, Algorithm 1; Wang & Isola, B.2.
    """

    def step(state, images, labels, indices, key):
        key = jax.random.fold_in(key, state.step)
        positions = _positions(indices, axis_name)
        target = state.momentum
        view1 = one_view(augment, key, images[indices], positions, 0)
        keys, target_stats = _keys(target, images, indices, positions, key)

        def loss_of(params):
            outputs, stats = apply(params, state.stats, view1, True, axis_name)
            loss, metrics = objective(outputs["output"], keys, target.queue.keys, axis_name)
            return loss, (stats, metrics)

        state, metrics = update_state(state, loss_of, optimizer, axis_name)
        m = decay(state.step - 1)
        if not own_stats:
            target_stats = ema_update(target.stats, state.stats, m)
        momentum = Momentum(
            ema_update(target.params, state.params, m),
            target_stats,
            queue_push(target.queue, keys, axis_name=axis_name),
        )
        batch = len(indices) * (1 if axis_name is None else jax.lax.axis_size(axis_name))
        metrics |= queue_statistics(state.step - 1, batch, len(target.queue.keys))
        return state._replace(momentum=momentum), metrics

    def _keys(target, images, indices, positions, key):
        # A sample goes to its group as what its view is made of: few bytes, and the same view.
        samples, undo = (indices if resident else images[indices], positions), None
        if separate is not None:
            samples, undo = separate(samples, jax.random.fold_in(key, zlib.crc32(b"separate")))
        sample, positions = samples
        view = one_view(augment, key, images[sample] if resident else sample, positions, 1)
        outputs, stats = apply(target.params, target.stats, view, True, axis_name)
        stats = stats if axis_name is None else jax.lax.pmean(stats, axis_name)
        keys = outputs["output"] if undo is None else undo(outputs["output"])
        return jax.lax.stop_gradient(keys), stats

    return step


def _positions(indices, axis_name):
    """The places of this device's samples in the global batch."""
    device = 0 if axis_name is None else jax.lax.axis_index(axis_name)
    return device * len(indices) + jnp.arange(len(indices))


def update_state(state, loss_of, optimizer, axis_name):
    """The state after a step down the gradient of `loss_of(params) -> loss, (stats, metrics)`."""
    (loss, (stats, metrics)), grads = jax.value_and_grad(loss_of, has_aux=True)(state.params)
    if axis_name is not None:
        # The loss is the global one on every device, so the mean of gradients is its gradient;
        # statistics of parts of the batch become one, as the state is one.
        grads, stats = jax.lax.pmean((grads, stats), axis_name)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    metrics = {"loss": loss, **metrics, "grad_norm": optax.tree.norm(grads)}
    params = optax.apply_updates(state.params, updates)
    return TrainState(state.step + 1, params, stats, opt_state, state.momentum), metrics
