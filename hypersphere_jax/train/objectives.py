"""The losses of two views that take the place of the weighted sum, as a config describes them."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax

from hypersphere_jax import losses
from hypersphere_jax.config import ObjectiveConfig
from hypersphere_jax.config.objective import SETTINGS
from hypersphere_jax.losses.nt_xent import (
    Terms,
    balanced_contrastive_terms,
    decoupled_nt_xent_terms,
    generalized_nt_xent_terms,
)
from hypersphere_jax.losses.sliced_wasserstein import generalized_contrastive_terms

FUNCTIONS: dict[str, Callable[..., jax.Array]] = {
    "nt_xent": losses.nt_xent_loss,
    "decoupled_nt_xent": losses.decoupled_nt_xent_loss,
    "generalized_contrastive": losses.generalized_contrastive_loss,
    "dcl": losses.dcl_loss,
    "balanced_contrastive": losses.balanced_contrastive_loss,
    "generalized_nt_xent": losses.generalized_nt_xent_loss,
    "logsumexp": losses.logsumexp_loss,
    "prior_matching": losses.prior_matching_loss,
}
# Of these each view has its own; the others compare the two views.
OF_ONE_VIEW = ("logsumexp", "prior_matching")
# Those that draw samples.
RANDOM = ("generalized_contrastive", "prior_matching")
# The same, of those that have two terms, with these.
WITH_TERMS: dict[str, Callable[..., Terms]] = {
    "decoupled_nt_xent": decoupled_nt_xent_terms,
    "generalized_contrastive": generalized_contrastive_terms,
    "balanced_contrastive": balanced_contrastive_terms,
    "generalized_nt_xent": generalized_nt_xent_terms,
}
# Of features before they are normalized.
UNNORMALIZED = {"similarity": ("dot", "neg_euclidean"), "prior": ("normal", "hypercube")}


def resolved(config: ObjectiveConfig) -> ObjectiveConfig:
    """The config with the settings that it leaves to its loss filled in: those of the function."""
    if config.loss == "weighted":
        return config
    known = inspect.signature(FUNCTIONS[config.loss]).parameters
    defaults = {
        field: known[_argument(field)].default
        for field in SETTINGS[config.loss]
        if getattr(config, field) is None
    }
    return dataclasses.replace(config, **defaults)


def settings(config: ObjectiveConfig) -> dict[str, Any]:
    """What a config gives its loss, by the names of the function's arguments."""
    return _arguments(vars(resolved(config)))


def layer(config: Mapping[str, Any]) -> str:
    """The layer of the network whose features the loss compares."""
    raw = any(config[field] in names for field, names in UNNORMALIZED.items())
    return "unnormalized" if raw else "output"


def loss_of(
    config: Mapping[str, Any],
    view1: Mapping[str, jax.Array],
    view2: Mapping[str, jax.Array],
    axis_name: str | None,
    key: jax.Array | None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The loss of two views' layers, global over the axis, and its terms where it has two.

    Args:
      config: the fields of a resolved config, of which numbers may be traced.
      view1: layers of the first view, each `[n, d]`.
      view2: layers of the second view.
      axis_name: the mapped axis, or None on a single device.
      key: random key for a loss that draws, the same on all devices.

    Returns:
      The loss, times its factor, and `{"loss_alignment": ..., "loss_distribution": ...}` without
      it, or nothing.
    """
    name, of = config["loss"], layer(config)
    options = _arguments(config) | {"axis_name": axis_name}
    if name in RANDOM:
        options["key"] = key
    if name in OF_ONE_VIEW:
        both = [FUNCTIONS[name](z=view[of], **options) for view in (view1, view2)]
        return config["loss_factor"] * (both[0] + both[1]) / 2, {}
    if name not in WITH_TERMS:
        loss = FUNCTIONS[name](z1=view1[of], z2=view2[of], **options)
        return config["loss_factor"] * loss, {}
    found = WITH_TERMS[name](z1=view1[of], z2=view2[of], **options)
    terms = {"loss_alignment": found.alignment, "loss_distribution": found.distribution}
    return config["loss_factor"] * found.loss, terms


def _arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    return {_argument(field): config[field] for field in SETTINGS[config["loss"]]}


def _argument(field: str) -> str:
    return field.removeprefix("loss_").removeprefix("align_")
