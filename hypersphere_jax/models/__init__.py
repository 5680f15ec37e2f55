"""Encoders, as pure functions of their parameters: the only place that knows Flax.

`create` gives plain dicts of arrays and a function. Nothing outside sees an NNX object.
"""

import dataclasses
import difflib
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from hypersphere_jax.config import ModelConfig, require
from hypersphere_jax.models import heads
from hypersphere_jax.models.norm import BatchNorm
from hypersphere_jax.models.resnet import ResNet, ResNet18, ResNet34, ResNet50
from hypersphere_jax.models.sentence_gru import SentenceGRU
from hypersphere_jax.models.small_alexnet import SmallAlexNet
from hypersphere_jax.models.small_cnn import SmallCNN

MODELS = {
    "small_cnn": SmallCNN,
    "small_alexnet": SmallAlexNet,
    "resnet18": ResNet18,
    "resnet34": ResNet34,
    "resnet50": ResNet50,
    "sentence_gru": SentenceGRU,
}

Params = dict[str, Any]
Stats = dict[str, Any]
Outputs = dict[str, jax.Array]
Apply = Callable[..., tuple[Outputs, Stats]]


def create(config: ModelConfig, key: jax.Array) -> tuple[Apply, Params, Stats]:
    """An encoder with fresh parameters.

    Args:
      config: its `image_size` and `channels` must be given; of sentences, its `vocabulary`.
      key: random key of the initialization.

    Returns:
      apply: `apply(params, stats, x, train, axis_name=None) -> (outputs, stats)`, with `x`
        float32 `[n, image_size, image_size, channels]`, or `packing.Packed` sentences (or integers
        `[n, words]`, see `SentenceGRU`), and `outputs` a dict of the named layers,
        float32; `"output"` is `[n, dim]` of unit norm. When training, batch normalization uses
        the statistics of the batch, and the running ones come back updated; else they come back
        as they are. Which batch is the config's choice, where `axis_name` is the mapped axis over
        which the global batch lies: all of it ("sync"), this device's part ("local"), or each of
        `bn_groups` equal parts of the global one, consecutive samples in the devices' order
        ("split"; the running statistics that come back are those of this device's groups).
      params: nested dict of float32 arrays.
      stats: running statistics of batch normalization, nested dict of float32 arrays.

    Raises:
      UserError: for an unknown model, or an image size that is too small for it.
    """
    config = resolved(config)
    apply, _, _ = abstract(config)
    return apply, *_initial(config)(key)


@functools.lru_cache(maxsize=2)  # many encoders of one config are compiled once
def _initial(config: ModelConfig) -> Callable:
    @jax.jit
    def initial(key):
        _, params, stats = _split(_build(config, BatchNorm, key))
        return nnx.to_pure_dict(params), nnx.to_pure_dict(stats)

    return initial


def abstract(config: ModelConfig) -> tuple[Apply, Params, Stats]:
    """As `create`, with shapes (`jax.ShapeDtypeStruct`) for arrays: it computes nothing."""
    config = resolved(config)

    @functools.cache
    def definition(groups, axis_name):
        norm = functools.partial(BatchNorm, groups=groups, axis_name=axis_name)
        return _split(nnx.eval_shape(lambda: _build(config, norm, jax.random.key(0))))

    def apply(params, stats, x, train, axis_name=None):
        synchronized = config.batch_norm in (None, "sync")
        graphdef, param_state, stat_state = definition(
            _groups(config, axis_name) if train else 1, axis_name if synchronized else None
        )
        # Copies: without them NNX refuses to update statistics across trace levels.
        model = nnx.merge(
            graphdef, _filled(param_state, params), _filled(stat_state, stats), copy=True
        )
        outputs = {name: layer.astype(jnp.float32) for name, layer in model(x, train).items()}
        return outputs, nnx.to_pure_dict(nnx.state(model, nnx.BatchStat))

    _, params, stats = definition(1, None)
    return apply, nnx.to_pure_dict(params), nnx.to_pure_dict(stats)


def resolved(config: ModelConfig) -> ModelConfig:
    """The config with what it leaves to the model filled in: a ResNet's stem.

    Below 64 pixels the ImageNet stem and the stages would leave less than 2x2 places.

    Raises:
      UserError: for an unknown model, or an image size that is too small for it.
    """
    _check(config)
    if config.stem is None and issubclass(MODELS[config.name], ResNet):
        stem = "cifar" if config.image_size < 64 else "imagenet"
        return dataclasses.replace(config, stem=stem)
    return config


def with_classifier(params: Params, other: Params) -> Params:
    """`params` with the classifier of `other`, or without one when `other` has none."""
    head = {name: layer for name, layer in params["head"].items() if name != "classifier"}
    if "classifier" in other["head"]:
        head["classifier"] = other["head"]["classifier"]
    return {**params, "head": head}


def before_head(name: str) -> str:
    """The layer of a model that enters the head: "backbone", or "fc7" of SmallAlexNet."""
    return [layer for layer in MODELS[name].layers if layer not in heads.LAYERS][-1]


def layers(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes (for one image) of a model's layers, in the network's order."""
    apply, params, stats = abstract(config)
    if config.reads_text:
        x = jax.ShapeDtypeStruct((1, 2), jnp.int32)
    else:
        x = jax.ShapeDtypeStruct((1, *[config.image_size] * 2, config.channels), jnp.float32)
    shapes, _ = jax.eval_shape(lambda p, s, x: apply(p, s, x, False), params, stats, x)
    # Tracing sorts the keys of a dict, so the order comes from the model's own list.
    return {name: shapes[name].shape[1:] for name in MODELS[config.name].layers if name in shapes}


def check_layer(config: ModelConfig, layer: str, flag: str = "--layers") -> None:
    """Raises UserError, with the nearest name, unless the model has the layer.

    Args:
      config: as for `create`.
      layer: its name.
      flag: the option that named it.
    """
    known = layers(config)
    near = difflib.get_close_matches(layer, known, n=1)
    meant = f" (did you mean {near[0]!r}?)" if near else ""
    require(
        layer in known,
        f"{flag} {layer}: {config.name} has no such layer{meant}; its layers are "
        f"{', '.join(known)}",
    )


def _check(config: ModelConfig) -> None:
    require(config.name in MODELS, f"unknown model {config.name!r}: known are {sorted(MODELS)}")
    if config.reads_text:
        require(
            config.vocabulary is not None,
            "ModelConfig: vocabulary must be given to build an encoder of sentences",
        )
        return
    size, least = config.image_size, MODELS[config.name].min_image_size
    require(
        size is not None and config.channels is not None,
        "ModelConfig: image_size and channels must be given to build a model",
    )
    require(
        size >= least,
        f"{config.name} needs images of at least {least} pixels, not {size}: "
        "choose another --model, or a larger --image-size",
    )


def _groups(config: ModelConfig, axis_name: str | None) -> int:
    """Groups of this device's part of the batch."""
    if config.batch_norm != "split":
        return 1
    devices = 1 if axis_name is None else jax.lax.axis_size(axis_name)
    require(
        config.bn_groups % devices == 0,
        f"--bn-groups {config.bn_groups} does not divide over {devices} devices",
    )
    return config.bn_groups // devices


def _build(config: ModelConfig, norm: Callable, key: jax.Array) -> nnx.Module:
    return MODELS[config.name](config, norm=norm, rngs=nnx.Rngs(key))


def _split(model: nnx.Module) -> tuple[nnx.GraphDef, nnx.State, nnx.State]:
    return nnx.split(model, nnx.Param, nnx.BatchStat)


def _filled(like: nnx.State, values: dict[str, Any]) -> nnx.State:
    state = jax.tree.map(lambda leaf: leaf, like)
    nnx.replace_by_pure_dict(state, values)
    return state
