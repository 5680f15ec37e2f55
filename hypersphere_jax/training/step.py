"""One training step as a pure function of one device.

The step knows devices only by the name of an axis: it runs under `pmap`, under `shard_map`, and,
with `axis_name=None`, on a single device, with the same numbers.
"""

import functools
import math
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hypersphere_jax import text
from hypersphere_jax.augment import make_augment, one_view, recipe_of, two_views
from hypersphere_jax.configs import PretrainConfig
from hypersphere_jax.configs.objective import MAX_TAU, MIN_TAU
from hypersphere_jax.losses._pairwise.collectives import global_size
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


class Momentum(NamedTuple):
    """Momentum Contrast: the encoder of the keys, and the queue of keys."""

    params: Any
    stats: Any
    queue: KeyQueue


class TrainState(NamedTuple):
    """Everything that a step changes and that a checkpoint contains."""

    step: jax.Array  # int32, number of steps done
    params: Any
    stats: Any
    opt_state: Any
    momentum: Momentum | None = None  # None without a queue
    logit_scale: jax.Array | None = None  # log(1 / tau), None for a fixed temperature


class Trained(NamedTuple):
    """Everything that the optimizer updates."""

    params: Any
    logit_scale: jax.Array | None


def init_state(
    params: Any,
    stats: Any,
    optimizer: optax.GradientTransformation,
    logit_scale: np.ndarray | None = None,
) -> TrainState:
    """Return the state before the first step."""

    @jax.jit  # otherwise zeros would be a program for every shape
    def initialize(trained):
        return jnp.zeros((), jnp.int32), optimizer.init(trained)

    step, opt_state = initialize(Trained(params, logit_scale))
    return TrainState(step, params, stats, opt_state, logit_scale=logit_scale)


def make_step_of(
    config: PretrainConfig,
    apply: Callable,
    total: int,
    *,
    axis_name: str | None,
    cropped: bool = False,
    resident: bool = True,
) -> Callable[..., tuple[TrainState, Metrics]]:
    """Return the step of a config, for sentences or images, with a queue or without.

    It is `step(state, images, labels, indices, key, scalars) -> (state, metrics)`, as by
    `make_step`, with the `scalars_of` a config of the same `structure`. The run has `total` steps.
    `cropped` says whether the host crops the images, as it does if they differ in size.
    """

    def step(state, images, labels, indices, key, scalars):
        schedule = make_schedule(config, total, scalars["learning_rate"])
        optimizer = make_optimizer(config, schedule, scalars)
        update = _step_of(config, apply, optimizer, total, axis_name, cropped, resident, scalars)
        rate = jnp.float32(schedule(state.step))
        state, metrics = update(state, images, labels, indices, key)
        return state, metrics | {"lr": rate}

    if config.matmul_precision is None:
        return step
    return jax.default_matmul_precision(config.matmul_precision)(step)


def make_steps(step: Callable, at_once: int = 1) -> Callable:
    """Take up to `at_once` steps in one program, with the numbers of single steps.

    For one step, return the step itself, with a leading axis of one step in its metrics. Otherwise
    return `steps(state, images, labels, indices, count, key, scalars) -> (state, metrics)`, where
    `indices` and the metrics have a leading axis of steps, of which the first `count` are taken.
    """
    if at_once == 1:

        def single(*arguments):
            state, metrics = step(*arguments)
            return state, jax.tree.map(lambda x: x[None], metrics)

        return single

    def steps(state, images, labels, indices, count, key, scalars):
        def take(i, carry):
            state, logged = carry
            state, metrics = step(state, images, labels, indices[i], key, scalars)
            return state, jax.tree.map(lambda all, x: all.at[i].set(x), logged, metrics)

        _, like = jax.eval_shape(step, state, images, labels, indices[0], key, scalars)
        logged = jax.tree.map(lambda x: jnp.zeros((len(indices), *x.shape), x.dtype), like)
        return jax.lax.fori_loop(0, count, take, (state, logged))

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
        options = {"axis_name": axis_name, "microbatches": config.microbatches}
        return make_step(apply, objective, optimizer, augment, **options)
    final_decay = 1.0 if config.ema_schedule == "cosine" else config.ema_decay
    separate = None
    if config.batch_norm == "split":
        separate = functools.partial(shuffle, groups=config.bn_groups, axis_name=axis_name)
    elif config.batch_norm == "local":
        separate = functools.partial(shuffle, groups=None, axis_name=axis_name)
    return make_moco_step(
        apply,
        make_queue_objective(config, scalars),
        optimizer,
        augment,
        axis_name=axis_name,
        separate=separate,
        resident=resident,
        decay=momentum_schedule(config.ema_decay, final_decay, total),
        own_stats=config.ema_stats == "own",
        symmetric=config.moco_symmetric,
    )


def make_step(
    apply: Callable,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    augment: Callable,
    *,
    axis_name: str | None,
    microbatches: int = 1,
) -> Callable[..., tuple[TrainState, Metrics]]:
    """Return a training step of one device, in which both views pass through one network.

    The augmentation is (key, uint8 image) -> float32 image. `axis_name` is the mapped axis, or None
    on a single device.

    Returns:
      `step(state, images, labels, indices, key) -> (state, metrics)`, where `images`
      `[m, h, w, c]` uint8 and `labels` `[m]` are the whole training split, `indices` `[n]` this
      device's part of the batch in the order of `distributed.local_rows`, and `key` the run's
      random key.
    """

    def step(state, images, labels, indices, key):
        key = jax.random.fold_in(key, state.step)
        positions = _positions(indices, axis_name, microbatches)

        def encode(params, images, positions):
            # Batch norm sees both views of an image together. They are neighbours, so that its
            # groups consist of the same images on any number of devices.
            views = jnp.stack(two_views(augment, key, images, positions), axis=1)
            views = views.reshape(-1, *views.shape[2:])
            return apply(params, state.stats, views, True, axis_name)

        def loss_of(params, logit_scale):
            batch = (images[indices], positions)
            outputs, stats = encode_microbatches(encode, microbatches, params, batch)
            first = {name: layer[0::2] for name, layer in outputs.items()}
            second = {name: layer[1::2] for name, layer in outputs.items()}
            drawn = jax.random.fold_in(key, zlib.crc32(b"objective"))
            options = (axis_name, drawn, logit_scale)
            loss, metrics = objective(first, second, labels[indices], *options)
            return loss, (stats, metrics)

        return update_state(state, loss_of, optimizer, axis_name)

    return step


def encode_microbatches(
    encode: Callable, count: int, params: Any, batch: tuple[jax.Array, ...]
) -> tuple[dict[str, jax.Array], Any]:
    """Encode a batch in microbatches, whose activations are in memory one after another.

    The forward pass keeps only the outputs. The backward pass encodes each microbatch a second time
    and propagates the derivative of the loss with respect to its outputs to the parameters. The
    gradient of any loss of the outputs is therefore exact. Microbatches are equal parts of
    consecutive rows; running statistics are the mean of theirs.

    Source: Gao et al. 2021 (GradCache).
    """
    if count == 1:
        return encode(params, *batch)
    microbatches = [array.reshape(count, -1, *array.shape[1:]) for array in batch]
    encode = jax.checkpoint(encode)

    def encode_next(carry, microbatch):
        return carry, encode(params, *microbatch)

    # In a program without a loop, XLA would keep all activations.
    _, (outputs, stats) = jax.lax.scan(encode_next, None, microbatches)
    outputs = {name: layer.reshape(-1, *layer.shape[2:]) for name, layer in outputs.items()}
    return outputs, jax.tree.map(lambda stat: jnp.mean(stat, axis=0), stats)


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
    symmetric: bool = False,
) -> Callable[..., tuple[TrainState, Metrics]]:
    """Return a training step of Momentum Contrast, on one device.

    In the order of MoCo's Algorithm 1: keys of the second view by the momentum encoder, loss of the
    queries against the queue, update of the encoder, then of the momentum encoder, and the keys
    enter the queue.

    - `separate`: (samples, random key) -> samples, undo: moves the samples of the keys to other
      groups of batch norm than their queries, such as `shuffle`. Defaults to no move.
    - `resident`: whether every device has all images, so that only their indices are exchanged.
    - `decay`: decay of the momentum encoder's parameters at a step.
    - `own_stats`: whether the momentum encoder's running statistics come from the keys, as in
      MoCo's code; otherwise they are averaged like its parameters.
    - `symmetric`: whether the first view is a key as well, of the second view's query, as in MoCo's
      notebook for CIFAR-10. Loss and metrics are means over the two views.

    It is a step as by `make_step`, whose state needs `momentum`.

    Source: He et al. 2020, Algorithm 1; Wang & Isola, B.2.
    """
    query_views = (0, 1) if symmetric else (0,)
    key_views = [1 - number for number in query_views]
    make_keys = functools.partial(_momentum_keys, apply, augment, axis_name, separate, resident)

    def step(state, images, labels, indices, key):
        key = jax.random.fold_in(key, state.step)
        positions = _positions(indices, axis_name)
        target = state.momentum
        batch = images[indices]
        views = [one_view(augment, key, batch, positions, number) for number in query_views]
        keys, target_stats = make_keys(target, key_views, images, indices, positions, key)

        def loss_of(params, logit_scale):
            stats = state.stats
            terms = []
            for view, positives in zip(views, keys, strict=True):
                outputs, stats = apply(params, stats, view, True, axis_name)
                features = (outputs["output"], positives, target.queue.keys)
                terms.append(objective(*features, axis_name, logit_scale))
            loss, metrics = jax.tree.map(lambda *values: sum(values) / len(values), *terms)
            return loss, (stats, metrics)

        state, metrics = update_state(state, loss_of, optimizer, axis_name)
        m = decay(state.step - 1)
        if not own_stats:
            target_stats = ema_update(target.stats, state.stats, m)
        queue = target.queue
        for pushed in reversed(keys):  # keys of the first view, then of the second
            queue = queue_push(queue, pushed, axis_name=axis_name)
        momentum = Momentum(ema_update(target.params, state.params, m), target_stats, queue)
        per_step = len(keys) * global_size(len(indices), axis_name)
        metrics |= queue_statistics(state.step - 1, per_step, len(queue.keys))
        return state._replace(momentum=momentum), metrics

    return step


def _momentum_keys(
    apply, augment, axis_name, separate, resident, target, views, images, indices, positions, key
):
    """Return the momentum encoder's keys of each of the views, and its running statistics."""
    # Moving indices, or uint8 images, takes fewer bytes than moving views.
    samples = (indices if resident else images[indices], positions)
    if separate is not None:
        samples, undo = separate(samples, jax.random.fold_in(key, zlib.crc32(b"separate")))
    batch, positions = samples
    if resident:
        batch = images[batch]
    keys = []
    stats = target.stats
    for number in views:
        view = one_view(augment, key, batch, positions, number)
        outputs, stats = apply(target.params, stats, view, True, axis_name)
        keys.append(outputs["output"])
    if axis_name is not None:
        stats = jax.lax.pmean(stats, axis_name)
    if separate is not None:
        keys = undo(keys)
    return jax.lax.stop_gradient(keys), stats


def _positions(indices, axis_name, microbatches=1):
    """Return the positions of this device's samples in the global batch."""
    device = 0
    if axis_name is not None:
        device = jax.lax.axis_index(axis_name)
    size = len(indices) // microbatches  # this device's part of a microbatch
    microbatch, row = jnp.divmod(jnp.arange(len(indices)), size)
    return microbatch * global_size(size, axis_name) + device * size + row


def update_state(state, loss_of, optimizer, axis_name):
    """Return the state and metrics after a step of `loss_of(params, logit_scale)`.

    That function returns the loss and `(stats, metrics)`.
    """
    trained = Trained(state.params, state.logit_scale)
    value_and_grad = jax.value_and_grad(lambda trained: loss_of(*trained), has_aux=True)
    (loss, (stats, metrics)), grads = value_and_grad(trained)
    if axis_name is not None:
        # The loss is global on every device, so the mean of the gradients is its gradient.
        grads, stats = jax.lax.pmean((grads, stats), axis_name)
    updates, opt_state = optimizer.update(grads, state.opt_state, trained)
    metrics = {"loss": loss, **metrics, "grad_norm": optax.tree.norm(grads)}
    params, logit_scale = optax.apply_updates(trained, updates)
    if logit_scale is not None:
        metrics["tau"] = jnp.exp(-state.logit_scale)
        logit_scale = jnp.clip(logit_scale, -math.log(MAX_TAU), -math.log(MIN_TAU))
    state = TrainState(state.step + 1, params, stats, opt_state, state.momentum, logit_scale)
    return state, metrics
