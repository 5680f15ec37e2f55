"""Optimizers and learning rate schedules of the papers, made of optax.

docs/optimizers.md says which flags give which paper's settings.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from hypersphere_jax.configs import OptimizerConfig


def make_schedule(
    config: OptimizerConfig, steps: int, learning_rate: jax.Array | None = None
) -> optax.Schedule:
    r"""Learning rate at each step of a run.

    The peak is the config's rate r for 256 pairs, scaled to a batch of b:

    .. math:: r b / 256, \qquad r \sqrt{b / 256}, \qquad r

    (Goyal et al., 2017; SimCLR, B.1, with r = 1.2.) Over the first w steps the rate is s / w of it.
    Then follow the decays, at shares of the whole run; or a cosine over the S - w steps that
    remain (as in SimCLR), :math:`(1 + \cos(\pi (s - w) / (S - w))) / 2` of the peak; where that is
    by epochs, as in MoCo's code, s is the first step of the epoch (w, if that comes later).

    Args:
      config: of the optimizer; its epochs are the unit of the warm-up.
      steps: steps of the run S, >= 1.
      learning_rate: takes the place of the config's r, and may be traced.

    Returns:
      A function of the number of steps done.
    """
    if learning_rate is not None:
        unit = make_schedule(dataclasses.replace(config, learning_rate=1.0), steps)
        return lambda step: learning_rate * unit(step)
    peak = _peak(config)
    warmup = min(round(config.warmup_epochs * steps / config.epochs), steps - 1)
    if config.schedule.startswith("cosine"):
        decay = cosine = optax.cosine_decay_schedule(peak, steps - warmup)
        if config.schedule == "cosine_epochs":
            epoch = max(1, steps // config.epochs)
            decay = lambda s: cosine(jnp.maximum(0, (s + warmup) // epoch * epoch - warmup))  # noqa: E731
    else:
        boundaries: dict[int, float] = {}
        for share in config.decay_at:  # in a short run two decays may fall on one step
            step = round(share * steps) - warmup
            boundaries[step] = boundaries.get(step, 1.0) * config.decay_factor
        decay = optax.piecewise_constant_schedule(peak, boundaries)
    if warmup == 0:
        return decay
    return optax.join_schedules([optax.linear_schedule(0.0, peak, warmup), decay], [warmup])


def make_optimizer(
    config: OptimizerConfig,
    schedule: optax.Schedule,
    scalars: Mapping[str, jax.Array] | None = None,
) -> optax.GradientTransformation:
    r"""SGD, LARS or Adam; weight decay goes into the gradient g before all else but clipping.

    SGD and Adam are PyTorch's. LARS is SimCLR's (after You et al., 2017): momentum accumulates the
    update of each layer with its rate,

    .. math::
        v \leftarrow m v + r \frac{\eta \|w\|}{\|g + \lambda w\|} (g + \lambda w),
        \qquad w \leftarrow w - v

    where the fraction is 1 if one of the norms is 0, and for biases and the parameters of
    normalization, which have no decay either.

    Args:
      config: of the optimizer.
      schedule: learning rate r at each step, see `make_schedule`.
      scalars: in place of the config's `weight_decay` and `momentum`; may be traced.
    """
    value = vars(config) | dict(scalars or {})
    weight_decay, momentum = value["weight_decay"], value["momentum"]
    weights = weight_mask if config.exclude_norm_and_bias else None
    decay = optax.add_decayed_weights(weight_decay, weights)
    rate = optax.scale_by_learning_rate(schedule)
    if config.optimizer == "adam":
        rules = [decay, optax.scale_by_adam(*config.adam_betas, eps=config.adam_eps), rate]
    elif config.optimizer == "lars":
        lars = optax.lars(
            schedule,
            weight_decay,
            weight_decay_mask=weight_mask,
            trust_coefficient=config.lars_trust,
            trust_ratio_mask=weight_mask,
            momentum=momentum,
            nesterov=config.nesterov,
        )
        rules = [lars]
    else:
        rules = [decay, optax.trace(momentum, config.nesterov), rate]
    if config.clip_norm is not None:
        rules = [optax.clip_by_global_norm(config.clip_norm), *rules]
    return optax.chain(*rules)


def weight_mask(params: Any) -> Any:
    """True for weights; False for biases and the parameters of normalization.

    These are named "bias" or "scale", or have fewer than two dimensions.

    Args:
      params: nested dict of arrays, see `models.create`.

    Returns:
      Nested dict of the same structure, of booleans.
    """

    def is_weight(path, array):
        name = getattr(path[-1], "key", None) if path else None
        return name not in ("bias", "scale") and array.ndim >= 2

    return jax.tree_util.tree_map_with_path(is_weight, params)


def _peak(config: OptimizerConfig) -> float:
    if config.scaling == "linear":
        return config.learning_rate * config.batch_size / 256
    if config.scaling == "sqrt":
        return config.learning_rate * math.sqrt(config.batch_size / 256)
    return config.learning_rate
