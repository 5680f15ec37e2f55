"""One training step as a pure function of one device: objective, optimizer, state, update.

The step knows devices only as the name of an axis: it runs under `pmap`, under `shard_map`, and,
with `axis_name=None`, on a single device, with the same numbers.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from hypersphere_jax.augment import two_views
from hypersphere_jax.config import ObjectiveConfig, OptimizerConfig
from hypersphere_jax.losses import align_loss, contrastive_loss, uniform_loss

Metrics = dict[str, jax.Array]
# (layers of view 1, layers of view 2, labels [n], axis_name) -> (loss, metrics)
Objective = Callable[[dict, dict, jax.Array, str | None], tuple[jax.Array, Metrics]]


class TrainState(NamedTuple):
    """All that a step changes, and all that a checkpoint holds."""

    step: jax.Array  # int32, steps done
    params: Any
    stats: Any
    opt_state: Any


def make_objective(config: ObjectiveConfig) -> Objective:
    """The weighted sum of losses that a config describes, global over the axis.

    Alignment and uniformity are always among the metrics, with the config's alpha and t, also
    when the loss does not contain them.
    """

    def objective(view1, view2, labels, axis_name):
        x, y = view1["output"], view2["output"]
        t = config.uniform_t
        metrics = {
            "align": align_loss(x, y, config.align_alpha, axis_name=axis_name),
            "uniform": (
                uniform_loss(x, t, axis_name=axis_name) + uniform_loss(y, t, axis_name=axis_name)
            )
            / 2,
        }
        if config.contrastive_weight:
            metrics["contrastive"] = contrastive_loss(
                x, y, config.contrastive_tau, axis_name=axis_name
            )
        if config.supervised_weight:
            metrics["supervised"] = _cross_entropy(view1, view2, labels, axis_name)
        # A term without weight stays out: zero times its infinity would not be zero.
        loss = sum(
            weight * metrics[name]
            for name in ("contrastive", "align", "uniform", "supervised")
            if (weight := getattr(config, f"{name}_weight"))
        )
        return loss, metrics

    return objective


def make_schedule(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """Learning rate at each step of a run, scaled linearly with the batch (per 256 pairs)."""
    peak = config.learning_rate * config.batch_size / 256
    if config.schedule == "cosine":
        return optax.cosine_decay_schedule(peak, steps)
    boundaries: dict[int, float] = {}
    for share in config.decay_at:  # in a short run two decays may fall on one step
        step = round(share * steps)
        boundaries[step] = boundaries.get(step, 1.0) * config.decay_factor
    return optax.piecewise_constant_schedule(peak, boundaries)


def make_optimizer(
    config: OptimizerConfig, schedule: optax.Schedule
) -> optax.GradientTransformation:
    """SGD as PyTorch has it: weight decay goes into the gradient, before momentum."""
    return optax.chain(
        optax.add_decayed_weights(config.weight_decay),
        optax.trace(decay=config.momentum),
        optax.scale_by_learning_rate(schedule),
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
    """A training step of one device.

    Args:
      apply: the network, see `models.create`.
      objective: the global loss of two views, see `make_objective`.
      optimizer: an optax transformation.
      augment: (key, uint8 image) -> float32 image, see `augment.make_augment`.
      axis_name: the mapped axis, or None on a single device.

    Returns:
      `step(state, images, labels, indices, key) -> (state, metrics)`, where `images`
      `[m, h, w, c]` uint8 and `labels` `[m]` are the whole training split, `indices` `[n]` this
      device's part of the batch, and `key` the run's random key.
    """

    def step(state, images, labels, indices, key):
        views, batch_labels = _batch(state.step, images, labels, indices, key)

        def loss_of(params):
            outputs, stats = apply(params, state.stats, views, True, axis_name)
            first = {name: layer[0::2] for name, layer in outputs.items()}
            second = {name: layer[1::2] for name, layer in outputs.items()}
            loss, metrics = objective(first, second, batch_labels, axis_name)
            return loss, (stats, metrics)

        gradient = jax.value_and_grad(loss_of, has_aux=True)
        (loss, (stats, metrics)), grads = gradient(state.params)
        if axis_name is not None:
            # The loss is the global one on every device, so the mean of gradients is its gradient;
            # statistics of parts of the batch become one, as the state is one.
            grads, stats = jax.lax.pmean((grads, stats), axis_name)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        metrics = {"loss": loss, **metrics, "grad_norm": optax.tree.norm(grads)}
        params = optax.apply_updates(state.params, updates)
        return TrainState(state.step + 1, params, stats, opt_state), metrics

    def _batch(step, images, labels, indices, key):
        n = len(indices)
        device = 0 if axis_name is None else jax.lax.axis_index(axis_name)
        positions = device * n + jnp.arange(n)
        views = two_views(augment, jax.random.fold_in(key, step), images[indices], positions)
        # Both views pass through the network at once, so batch norm sees them together; side by
        # side, so that its groups are the same images' on any number of devices.
        both = jnp.stack(views, axis=1)
        return both.reshape(2 * n, *both.shape[2:]), labels[indices]

    return step


def _cross_entropy(view1, view2, labels, axis_name):
    losses = [
        optax.softmax_cross_entropy_with_integer_labels(view["logits"], labels).mean()
        for view in (view1, view2)
    ]
    mean = sum(losses) / 2
    return mean if axis_name is None else jax.lax.pmean(mean, axis_name)
