"""Optimizers and learning-rate schedules of the papers, in optax.

docs/optimizers.md lists the flags of each paper's settings.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from hypersphere_jax.configs import OptimizerConfig

# Parameters without weight decay, in addition to all of fewer than two dimensions.
NOT_WEIGHTS = {"bias", "scale", "class_token", "position_embedding"}


class RateSchedule(NamedTuple):
    """Learning rate as a function of the number of steps done."""

    rate: optax.Schedule
    steps: int  # number of steps of the run

    def __call__(self, step: Any) -> Any:
        return self.rate(step)


def make_schedule(
    config: OptimizerConfig, steps: int, learning_rate: jax.Array | None = None
) -> RateSchedule:
    r"""Learning rate at each step of a run.

    The peak is the config's rate r for 256 pairs, scaled to a batch of b:

    .. math:: r b / 256, \qquad r \sqrt{b / 256}, \qquad r

    (Goyal et al., 2017; SimCLR, B.1, with r = 1.2.) Over the first w steps the rate is s / w of it.
    Then the decays follow, at shares of the whole run; or a cosine over the remaining S - w steps
    (as in SimCLR), :math:`(1 + \cos(\pi (s - w) / (S - w))) / 2` of the peak; if it is by epochs,
    as in MoCo's code, s is the first step of the epoch (or w, if that is later).

    `steps` is S; `learning_rate` overrides the config's r and may be traced.
    """
    if learning_rate is not None:
        unit = make_schedule(dataclasses.replace(config, learning_rate=1.0), steps)
        return RateSchedule(lambda step: learning_rate * unit(step), steps)
    peak = _peak(config)
    warmup = min(round(config.warmup_epochs * steps / config.epochs), steps - 1)
    rate = _decay(config, peak, steps, warmup)
    if warmup > 0:
        rate = optax.join_schedules([optax.linear_schedule(0.0, peak, warmup), rate], [warmup])
    return RateSchedule(rate, steps)


def _decay(config: OptimizerConfig, peak: float, steps: int, warmup: int) -> optax.Schedule:
    """Return the learning rate after the warm-up."""
    if config.schedule == "step":
        boundaries: dict[int, float] = {}
        for share in config.decay_at:  # in a short run two decays may be at the same step
            step = round(share * steps) - warmup
            boundaries[step] = boundaries.get(step, 1.0) * config.decay_factor
        return optax.piecewise_constant_schedule(peak, boundaries)
    cosine = optax.cosine_decay_schedule(peak, steps - warmup)
    if config.schedule == "cosine":
        return cosine
    epoch = max(1, steps // config.epochs)
    return lambda s: cosine(jnp.maximum(0, (s + warmup) // epoch * epoch - warmup))


def make_optimizer(
    config: OptimizerConfig,
    schedule: RateSchedule,
    scalars: Mapping[str, jax.Array] | None = None,
) -> optax.GradientTransformation:
    r"""Return SGD, LARS, Adam or AdamW; weight decay is added to the gradient g after clipping.

    SGD and Adam are PyTorch's. LARS is SimCLR's (after You et al., 2017): momentum accumulates the
    update of each layer with its rate,

    .. math::
        v \leftarrow m v + r \frac{\eta \|w\|}{\|g + \lambda w\|} (g + \lambda w),
        \qquad w \leftarrow w - v

    where the fraction is 1 if one of the norms is 0, and for parameters outside `weight_mask`,
    which have no decay either. AdamW (Loshchilov & Hutter, 2019) is PyTorch's: it adds
    :math:`\lambda w` to Adam's update instead of the gradient, for parameters in `weight_mask`.

    With `weight_decay_end`, :math:`\lambda` goes from start to end over the S steps of the run by
    :math:`\lambda_S + (\lambda_0 - \lambda_S) (1 + \cos(\pi s / S)) / 2` (DINO).

    `scalars` override the config's `weight_decay` and `momentum`; they may be traced.
    """
    value = vars(config) | dict(scalars or {})
    weight_decay = _weight_decay(config, value["weight_decay"], schedule)
    momentum = value["momentum"]
    if config.optimizer == "lars":
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
        excludes = config.exclude_norm_and_bias or config.optimizer == "adamw"
        decayed = weight_mask if excludes else network_mask
        decay = optax.add_decayed_weights(weight_decay, decayed)
        rule = optax.scale_by_adam(*config.adam_betas, eps=config.adam_eps)
        if config.optimizer == "sgd":
            rule = optax.trace(momentum, config.nesterov)
        rules = [decay, rule]
        if config.optimizer == "adamw":
            rules = [rule, decay]
        rules.append(optax.scale_by_learning_rate(schedule))
    if config.clip_norm is not None:
        rules = [optax.clip_by_global_norm(config.clip_norm), *rules]
    return optax.chain(*rules)


def _weight_decay(config: OptimizerConfig, start: Any, schedule: RateSchedule) -> Any:
    """Return the weight decay, as a function of the step if it changes."""
    end = config.weight_decay_end
    if end is None:
        return start
    cosine = optax.cosine_decay_schedule(1.0, schedule.steps)
    return lambda step: end + (start - end) * cosine(step)


def weight_mask(params: Any) -> Any:
    """Return a tree of booleans: False for biases and the parameters of normalization.

    These are named "bias" or "scale", or have fewer than two dimensions. The class token and the
    position embedding of a ViT are excluded as well.
    """
    return jax.tree_util.tree_map_with_path(_is_weight, params)


def network_mask(params: Any) -> Any:
    """Return a tree of booleans: False for the learned temperature."""
    temperature = jax.tree_util.GetAttrKey("logit_scale")
    return jax.tree_util.tree_map_with_path(lambda path, _: path[:1] != (temperature,), params)


def _is_weight(path: tuple, array: jax.Array) -> bool:
    names = [getattr(key, "key", None) for key in path[-1:]]
    return array.ndim >= 2 and not NOT_WEIGHTS & set(names)


def _peak(config: OptimizerConfig) -> float:
    if config.scaling == "linear":
        return config.learning_rate * config.batch_size / 256
    if config.scaling == "sqrt":
        return config.learning_rate * math.sqrt(config.batch_size / 256)
    return config.learning_rate
