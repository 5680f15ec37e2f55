"""One training step as a pure function of one device: objective, state, update.

The step knows devices only as the name of an axis: it runs under `pmap`, under `shard_map`, and,
with `axis_name=None`, on a single device, with the same numbers.
"""

import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from hypersphere_jax.augment import one_view, two_views
from hypersphere_jax.config import ObjectiveConfig
from hypersphere_jax.losses import (
    align_loss,
    contrastive_loss,
    info_nce_loss,
    l2_normalize,
    quick_thought_align_loss,
    quick_thought_contrastive_loss,
    quick_thought_uniform_loss,
    uniform_loss,
    uniform_queue_loss,
)
from hypersphere_jax.moco import KeyQueue, ema_update, queue_push, queue_statistics
from hypersphere_jax.packing import ELSEWHERE, PADDING, Packed
from hypersphere_jax.train import objectives

Metrics = dict[str, jax.Array]
# (layers of view 1, layers of view 2, labels [n], axis_name, random key) -> (loss, metrics)
Objective = Callable[[dict, dict, jax.Array, str | None, jax.Array], tuple[jax.Array, Metrics]]


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


def make_objective(
    config: ObjectiveConfig, numbers: Mapping[str, jax.Array] | None = None
) -> Objective:
    """The weighted sum of losses, or the other loss, that a config describes, global over the axis.

    Alignment and uniformity are always among the metrics, of unit features and with the config's
    alpha and t, also when the loss does not contain them. Losses of two terms, alignment + lam *
    distribution, have these as `loss_alignment` and `loss_distribution`.

    Args:
      config: of the objective.
      numbers: scalars that take the place of the config's fields of these names, and may be
        traced. Which terms the loss has is the config's choice all the same.

    Returns:
      The objective. Its key is needed where the loss draws samples, and the same on all devices.
    """
    config = objectives.resolved(config)
    value = vars(config) | dict(numbers or {})

    def objective(view1, view2, labels, axis_name, key=None):
        x, y = view1["output"], view2["output"]
        t = value["uniform_t"]
        metrics = {
            "align": align_loss(x, y, value["align_alpha"], axis_name=axis_name),
            "uniform": (
                uniform_loss(x, t, axis_name=axis_name) + uniform_loss(y, t, axis_name=axis_name)
            )
            / 2,
        }
        if config.contrastive_weight:
            metrics["contrastive"] = contrastive_loss(
                x, y, value["contrastive_tau"], axis_name=axis_name
            )
        if config.supervised_weight:
            metrics["supervised"] = _cross_entropy(view1, view2, labels, axis_name)
        if config.loss == "weighted":
            return _weighted(config, value, metrics), metrics
        loss, terms = objectives.loss_of(value, view1, view2, axis_name, key)
        if config.supervised_weight:
            loss += value["supervised_weight"] * metrics["supervised"]
        return loss, metrics | terms

    return objective


def make_queue_objective(config: ObjectiveConfig) -> Callable[..., tuple[jax.Array, Metrics]]:
    """The same weighted sum against a queue of keys (Wang & Isola B.2).

    Contrastive is InfoNCE with the queue as negatives, alignment is between a query and its key,
    uniformity between queries and queue, with the pairs of queries (Eq. 22) or without (Eq. 21).

    Returns:
      `objective(query, key, queue, axis_name) -> (loss, metrics)`; features `[n, d]`, queue
      `[k, d]`. Besides the terms the metrics are the mean similarity of a query with its key and
      with the queue, and the InfoNCE of features that tell nothing, log(k + 1).
    """

    def objective(query, key, queue, axis_name):
        def mean(x):
            return x if axis_name is None else jax.lax.pmean(x, axis_name)

        metrics = {
            "align": align_loss(query, key, config.align_alpha, axis_name=axis_name),
            "uniform": uniform_queue_loss(
                query, queue, config.uniform_t, config.uniform_intra_batch, axis_name=axis_name
            ),
        }
        if config.contrastive_weight:
            metrics["contrastive"] = info_nce_loss(
                query, key, queue, config.contrastive_tau, axis_name=axis_name
            )
        loss = _weighted(config, vars(config), metrics)
        similarities = {
            "positive_similarity": mean(jnp.mean(jnp.sum(query * key, axis=-1))),
            "negative_similarity": mean(jnp.mean(query, axis=0)) @ jnp.mean(queue, axis=0),
            "chance": jnp.log(len(queue) + 1.0),  # InfoNCE of features that tell nothing
        }
        return loss, metrics | jax.lax.stop_gradient(similarities)

    return objective


def make_sentence_objective(
    config: ObjectiveConfig, numbers: Mapping[str, jax.Array] | None = None
) -> Callable[..., tuple[jax.Array, Metrics]]:
    """The same weighted sum of consecutive sentences' features by two encoders (B.3).

    Alignment and uniformity are of unit features; the contrastive loss is of the features as they
    are, which have no unit norm in the original Quick-Thought.

    Returns:
      `objective(f, g, axis_name) -> (loss, metrics)`; features `[k, d]`, the devices' sentences one
      after the other in the axis' order. `uniform` is the sum of both encoders', as in B.3.
    """
    value = vars(config) | dict(numbers or {})

    def objective(f, g, axis_name):
        unit = l2_normalize(f), l2_normalize(g)
        over = {"axis_name": axis_name}
        metrics = {
            "align": quick_thought_align_loss(*unit, value["align_alpha"], **over),
            "uniform": quick_thought_uniform_loss(*unit, value["uniform_t"], **over),
        }
        if config.contrastive_weight:
            tau = value["contrastive_tau"]
            metrics["contrastive"] = quick_thought_contrastive_loss(f, g, tau, **over)
        return _weighted(config, value, metrics), metrics

    return objective


def _weighted(config: ObjectiveConfig, value: Mapping, metrics: Metrics) -> jax.Array:
    # A term without weight stays out: zero times its infinity would not be zero.
    return sum(
        value[f"{name}_weight"] * metrics[name]
        for name in ("contrastive", "align", "uniform", "supervised")
        if getattr(config, f"{name}_weight")
    )


def init_state(params: Any, stats: Any, optimizer: optax.GradientTransformation) -> TrainState:
    """The state before the first step."""
    return TrainState(jnp.zeros((), jnp.int32), params, stats, optimizer.init(params))


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

        return _updated(state, loss_of, optimizer, axis_name)

    return step


def make_sentence_step(
    apply: Callable,
    objective: Callable,
    optimizer: optax.GradientTransformation,
    *,
    axis_name: str | None,
) -> Callable[..., tuple[TrainState, Metrics]]:
    """A training step of Quick-Thought's two sentence encoders, on one device.

    Args:
      apply: the network, see `models.SentenceGRU`.
      objective: the global loss of both encoders' features, see `make_sentence_objective`.
      optimizer: an optax transformation.
      axis_name: the mapped axis, or None on a single device.

    Returns:
      As `make_step`, where the images are `Packed` sentences: some of a batch of consecutive ones,
      whichever this device was dealt. `padding` among the metrics is the share of the work that is
      padding.

    Source: Logeswaran & Lee 2018; Wang & Isola, B.3.
    """

    def step(state, sentences, labels, indices, key):
        del labels, indices, key  # nothing is drawn, and all sentences are this step's

        def loss_of(params):
            outputs, stats = apply(params, state.stats, sentences, True, axis_name)
            f, g = (_own_part(outputs[name], sentences, axis_name) for name in ("f", "g"))
            loss, metrics = objective(f, g, axis_name)
            return loss, (stats, metrics)

        padding = jnp.mean(sentences.words == PADDING)
        padding = padding if axis_name is None else jax.lax.pmean(padding, axis_name)
        state, metrics = _updated(state, loss_of, optimizer, axis_name)
        return state, metrics | {"padding": padding}

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
    decay: Callable[[jax.Array], jax.Array] = lambda step: 0.999,
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

        state, metrics = _updated(state, loss_of, optimizer, axis_name)
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


def _own_part(x, sentences: Packed, axis_name):
    """Features `[k / devices, d]` of this device's part of the batch, wherever they were made."""
    if axis_name is None:
        return x
    made_here = (sentences.last != ELSEWHERE)[:, None]
    return jax.lax.psum_scatter(jnp.where(made_here, x, 0.0), axis_name, tiled=True)


def _positions(indices, axis_name):
    """The places of this device's samples in the global batch."""
    device = 0 if axis_name is None else jax.lax.axis_index(axis_name)
    return device * len(indices) + jnp.arange(len(indices))


def _updated(state, loss_of, optimizer, axis_name):
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


def _cross_entropy(view1, view2, labels, axis_name):
    losses = [
        optax.softmax_cross_entropy_with_integer_labels(view["logits"], labels).mean()
        for view in (view1, view2)
    ]
    mean = sum(losses) / 2
    return mean if axis_name is None else jax.lax.pmean(mean, axis_name)
