"""Objectives: from a config to the global loss of a step, and the metrics to log."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hypersphere_jax import losses
from hypersphere_jax.configs import ObjectiveConfig, UserError
from hypersphere_jax.configs.base import described
from hypersphere_jax.configs.objective import SETTINGS, WEIGHTS
from hypersphere_jax.losses import (
    align_loss,
    contrastive_loss,
    info_nce_loss,
    uniform_loss,
    uniform_queue_loss,
)
from hypersphere_jax.losses._pairwise.collectives import (
    all_gather,
    global_mean,
    global_positions,
)

T = TypeVar("T", bound=ObjectiveConfig)

Metrics = dict[str, jax.Array]
# (layers of view 1, layers of view 2, labels [n], axis_name, random key,
# log of one over the learned temperature or None) -> (loss, metrics)
Objective = Callable[..., tuple[jax.Array, Metrics]]

# The losses that may replace the weighted sum: `nt_xent` is `nt_xent_loss`.
FUNCTIONS = {name: getattr(losses, f"{name}_loss") for name in SETTINGS if name != "weighted"}
# Losses of a single view; the others compare the two views.
OF_ONE_VIEW = ("logsumexp", "prior_matching")
# Losses that draw samples.
RANDOM = ("generalized_contrastive", "prior_matching", "lejepa", "visreg")
# Losses of two terms, which are logged.
WITH_TERMS = (
    "decoupled_nt_xent",
    "generalized_contrastive",
    "balanced_contrastive",
    "generalized_nt_xent",
    "lejepa",
    "visreg",
)
# Values of options for which the loss takes unnormalized features.
UNNORMALIZED = {
    "loss": ("lejepa", "visreg"),
    "similarity": ("dot", "neg_euclidean"),
    "prior": ("normal", "hypercube"),
}


def make_objective(
    config: ObjectiveConfig, scalars: Mapping[str, jax.Array] | None = None
) -> Objective:
    """Return the weighted sum of losses, or the other loss, of a config, global over the axis.

    Alignment and uniformity are always among the metrics. `scalars` override the config's fields of
    these names; they may be traced. The random key is the same on all devices.
    """
    if config.function is not None:
        return _custom(config)
    config = with_loss_defaults(config)
    values = vars(config) | dict(scalars or {})

    def objective(view1, view2, labels, axis_name, key=None, logit_scale=None):
        value = _with_temperature(values, config, logit_scale)
        x = view1["output"]
        y = view2["output"]
        metrics = _align_uniform(x, y, value["align_alpha"], value["uniform_t"], axis_name)
        if config.contrastive_weight:
            metrics["contrastive"] = contrastive_loss(
                x, y, value["contrastive_tau"], axis_name=axis_name
            )
        if config.supervised_weight:
            metrics["supervised"] = _cross_entropy(view1, view2, labels, axis_name)
        if config.loss == "weighted":
            return _weighted(config, value, metrics), metrics
        loss, terms = two_view_loss(value, view1, view2, labels, axis_name, key)
        if config.supervised_weight:
            loss += value["supervised_weight"] * metrics["supervised"]
        return loss, metrics | terms

    return objective


def initial_logit_scale(config: ObjectiveConfig) -> np.ndarray | None:
    """Return the log of one over the temperature of a resolved config that learns it, or None."""
    option = config.temperature_option
    if not config.learn_tau or option is None:
        return None
    return np.asarray(-math.log(getattr(config, option)), np.float32)


def _with_temperature(
    value: dict[str, Any], config: ObjectiveConfig, logit_scale: jax.Array | None
) -> dict[str, Any]:
    """Return the options of a loss with the learned temperature, if there is one."""
    if logit_scale is None:
        return value
    option = config.temperature_option
    assert option is not None, "only losses with a temperature have a logit_scale"
    return value | {option: jnp.exp(-logit_scale)}


def _align_uniform(x, y, alpha, t, axis_name) -> Metrics:
    uniform = uniform_loss(x, t, axis_name=axis_name) + uniform_loss(y, t, axis_name=axis_name)
    return {"align": align_loss(x, y, alpha, axis_name=axis_name), "uniform": uniform / 2}


def _custom(config: ObjectiveConfig) -> Objective:
    """Return the objective of a custom loss, of both outputs or of all layers and labels.

    A loss without an argument `axis_name` receives the features of all devices.
    """
    loss, count = _custom_loss(config, (2, 4))

    def objective(view1, view2, labels, axis_name, key=None, logit_scale=None):
        x = view1["output"]
        y = view2["output"]
        metrics = _align_uniform(x, y, config.align_alpha, config.uniform_t, axis_name)
        if count == 2:
            return loss(x, y, axis_name=axis_name), metrics
        return loss(view1, view2, labels, key, axis_name=axis_name), metrics

    return objective


def _custom_loss(config: ObjectiveConfig, counts: Sequence[int]) -> tuple[Callable, int]:
    """Return the global loss over an axis, and the number of its positional arguments."""
    name = config.function.name
    function = config.function.value
    signature = inspect.signature(function)
    takes_axis = "axis_name" in signature.parameters
    count = next((n for n in counts if n in config.loss_arguments), 0)
    if count == 0:
        raise UserError(
            f"loss={name} takes {signature}: it must take (x, y), or (layers of view 1, layers of "
            "view 2, labels, key); with a queue (query, key, queue)"
        )

    def loss(*arguments, axis_name):
        if takes_axis:
            value = function(*arguments, axis_name=axis_name)
        else:
            # The last argument, a key or the queue, is the same on every device.
            sharded = 3 if count == 4 else 2
            gathered = jax.tree.map(lambda a: all_gather(a, axis_name), arguments[:sharded])
            value = function(*gathered, *arguments[sharded:])
        is_float = isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jnp.floating)
        if not is_float or value.shape:
            raise UserError(
                f"loss={name} returns {described(value)}: it must return a JAX float scalar"
            )
        return global_mean(jnp.asarray(value, jnp.float32), axis_name)

    return loss, count


def make_queue_objective(
    config: ObjectiveConfig, scalars: Mapping[str, jax.Array] | None = None
) -> Callable[..., tuple[jax.Array, Metrics]]:
    """Return the weighted sum against a queue of keys (Wang & Isola B.2); see `make_objective`.

    It is `objective(query, key, queue, axis_name, logit_scale) -> (loss, metrics)`. The metrics
    contain the mean similarity of a query with its key and with the queue, and the InfoNCE of
    uninformative features, log(k + 1).
    """
    custom = None
    if config.function is not None:
        custom, _ = _custom_loss(config, (3,))
    values = vars(config) | dict(scalars or {})

    def objective(query, key, queue, axis_name, logit_scale=None):
        value = _with_temperature(values, config, logit_scale)
        metrics = {
            "align": align_loss(query, key, value["align_alpha"], axis_name=axis_name),
            "uniform": uniform_queue_loss(
                query, queue, value["uniform_t"], config.uniform_intra_batch, axis_name=axis_name
            ),
        }
        if config.contrastive_weight:
            metrics["contrastive"] = info_nce_loss(
                query, key, queue, value["contrastive_tau"], axis_name=axis_name
            )
        if custom is None:
            loss = _weighted(config, value, metrics)
        else:
            loss = custom(query, key, queue, axis_name=axis_name)
        return loss, metrics | jax.lax.stop_gradient(_similarities(query, key, queue, axis_name))

    return objective


def _similarities(query, key, queue, axis_name) -> Metrics:
    positive = global_mean(jnp.mean(jnp.sum(query * key, axis=-1)), axis_name)
    mean_query = global_mean(jnp.mean(query, axis=0), axis_name)
    return {
        "positive_similarity": positive,
        "negative_similarity": mean_query @ jnp.mean(queue, axis=0),
        "chance": jnp.log(len(queue) + 1.0),
    }


def _weighted(config: ObjectiveConfig, value: Mapping, metrics: Metrics) -> jax.Array:
    # A term without weight is left out, since zero times infinity is NaN.
    return sum(
        value[name] * metrics[name.removesuffix("_weight")]
        for name in WEIGHTS
        if getattr(config, name)
    )


def with_loss_defaults(config: T) -> T:
    """Return the config with the defaults of its loss function filled in."""
    if config.loss == "weighted":
        return config
    known = inspect.signature(FUNCTIONS[config.loss]).parameters
    defaults = {
        field: known[_argument(field)].default
        for field in SETTINGS[config.loss]
        if getattr(config, field) is None
    }
    return config.replace(**defaults)


def settings(config: ObjectiveConfig) -> dict[str, Any]:
    """Return the arguments of a config's loss by name."""
    return _arguments(vars(with_loss_defaults(config)))


def layer(config: Mapping[str, Any]) -> str:
    """Return the layer of the network whose features the loss compares."""
    raw = any(config[field] in names for field, names in UNNORMALIZED.items())
    return "unnormalized" if raw else "output"


def two_view_loss(
    config: Mapping[str, Any],
    view1: Mapping[str, jax.Array],
    view2: Mapping[str, jax.Array],
    labels: jax.Array,
    axis_name: str | None,
    key: jax.Array | None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Return the loss of two views' layers, times its factor, and its terms without it, by name.

    `config` contains the fields of a resolved config; numbers may be traced. An unlabelled image
    has the label -1.
    """
    name = config["loss"]
    function = FUNCTIONS[name]
    z1 = view1[layer(config)]
    z2 = view2[layer(config)]
    options = _arguments(config) | {"axis_name": axis_name}
    if name in RANDOM:
        options["key"] = key
    if name == "supervised_contrastive":
        classes = jnp.tile(_one_class_per_unlabelled(labels, axis_name), 2)
        loss = function(jnp.concatenate([z1, z2]), classes, **options)
        return config["loss_factor"] * loss, {}
    if name in OF_ONE_VIEW:
        loss = (function(z=z1, **options) + function(z=z2, **options)) / 2
        return config["loss_factor"] * loss, {}
    if name not in WITH_TERMS:
        return config["loss_factor"] * function(z1=z1, z2=z2, **options), {}
    terms = function(z1=z1, z2=z2, with_terms=True, **options)
    logged = {"loss_alignment": terms.alignment, "loss_distribution": terms.distribution}
    return config["loss_factor"] * terms.loss, logged


def _one_class_per_unlabelled(labels: jax.Array, axis_name: str | None) -> jax.Array:
    """Give each unlabelled image a separate class, whose only positive is the other view."""
    new_classes = -1 - global_positions(len(labels), axis_name)
    return jnp.where(labels < 0, new_classes, labels)


def _cross_entropy(view1, view2, labels, axis_name):
    losses = [
        optax.softmax_cross_entropy_with_integer_labels(view["logits"], labels).mean()
        for view in (view1, view2)
    ]
    return global_mean(sum(losses) / 2, axis_name)


def _arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    return {_argument(field): config[field] for field in SETTINGS[config["loss"]]}


def _argument(field: str) -> str:
    return field.removeprefix("loss_").removeprefix("align_")
