"""Encoders, as pure functions of their parameters: the only place that knows Flax.

`create` gives plain dicts of arrays and a function, of this package's networks and of the user's
(`custom`). Nothing outside sees a module.
"""

import dataclasses
import functools
import pkgutil
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from hypersphere_jax.configs import ModelConfig, UserError, require, section
from hypersphere_jax.configs.base import did_you_mean
from hypersphere_jax.models import custom, functional, heads
from hypersphere_jax.models.functional import Tree
from hypersphere_jax.models.resnet import ResNet18, ResNet34, ResNet50
from hypersphere_jax.models.small_alexnet import SmallAlexNet
from hypersphere_jax.models.small_cnn import SmallCNN

# Text gives the name of its class, since imports go down.
MODELS: dict[str, Any] = {
    "small_cnn": SmallCNN,
    "small_alexnet": SmallAlexNet,
    "resnet18": ResNet18,
    "resnet34": ResNet34,
    "resnet50": ResNet50,
    "sentence_gru": "hypersphere_jax.text.sentence_gru:SentenceGRU",
}

Apply = Callable[..., tuple[dict[str, jax.Array], Tree]]


def create(config: ModelConfig, key: jax.Array) -> tuple[Apply, Tree, Tree]:
    """An encoder with fresh parameters.

    Args:
      config: with `image_size` and `in_channels`, or `vocabulary_size` for sentences.
      key: random key of the initialization.

    Returns:
      apply: `apply(params, stats, x, train, axis_name=None) -> (outputs, stats)`, with `x`
        float32 `[n, image_size, image_size, channels]`, or sentences (see `text.sentence_gru`), and
        `outputs` a dict of the named layers, float32; `"output"` is `[n, dim]` of unit norm. When
        training, batch normalization uses the statistics of the batch, and the running ones come
        back updated; else they come back as they are. Which batch is the config's choice, where
        `axis_name` is the mapped axis over which the global batch lies: all of it ("sync"), this
        device's part ("local"), or each of `bn_groups` equal parts of the global one, consecutive
        samples in the devices' order ("split"; the running statistics that come back are those of
        this device's groups).
      params: nested dict of float32 arrays.
      stats: running statistics of batch normalization, nested dict of float32 arrays.

    Raises:
      UserError: for an unknown model, or an image size that is too small for it.
    """
    config = resolved(config)
    apply, _, _ = abstract(config)
    initial = _builder(config) if config.network is None else _custom(config)[0]
    return apply, *initial(key)


@functools.lru_cache(maxsize=8)  # many encoders of one config are compiled once
def _builder(config: ModelConfig) -> functional.Builder:
    return functional.Builder(functools.partial(_build, config))


def _custom(config: ModelConfig) -> tuple[Callable, Apply]:
    return custom.create(config.network, (*[config.image_size] * 2, config.in_channels))


def _build(config: ModelConfig, key: jax.Array) -> nnx.Module:
    return network_class(config.model)(config, rngs=nnx.Rngs(key))


def network_class(name: str) -> Any:
    """Return the class of a network in `MODELS`."""
    network = MODELS[name]
    return pkgutil.resolve_name(network) if isinstance(network, str) else network


def abstract(config: ModelConfig) -> tuple[Apply, Tree, Tree]:
    """As `create`, with shapes (`jax.ShapeDtypeStruct`) for arrays: it computes nothing."""
    return _abstract(resolved(config))


@functools.lru_cache(maxsize=8)  # programs are shared by what has the same `apply`
def _abstract(config: ModelConfig) -> tuple[Apply, Tree, Tree]:
    if config.network is not None:
        init, own = _custom(config)
        return own, *jax.eval_shape(init, jax.eval_shape(jax.random.key, 0))

    graphdef, params, stats = _builder(config).abstract()
    synchronized = config.batch_norm in (None, "sync")

    def apply(params, stats, x, train, axis_name=None):
        groups = _local_groups(config, axis_name) if train else 1
        over = {"groups": groups, "axis_name": axis_name if synchronized else None}
        outputs, stats = functional.call(graphdef, params, stats, x, train, **over)
        return {name: layer.astype(jnp.float32) for name, layer in outputs.items()}, stats

    return apply, params, stats


def _local_groups(config: ModelConfig, axis_name: str | None) -> int:
    """Groups of batch norm in this device's part of the batch."""
    if config.batch_norm != "split":
        return 1
    devices = 1 if axis_name is None else jax.lax.axis_size(axis_name)
    require(
        config.bn_groups % devices == 0,
        f"bn_groups={config.bn_groups} does not divide over {devices} devices",
    )
    return config.bn_groups // devices


def resolved(config: ModelConfig) -> ModelConfig:
    """Return the model's section of a config, with the stem of a ResNet chosen.

    Below 64 pixels the ImageNet stem and the stages would leave less than 2x2 positions.

    Raises:
      UserError: for an unknown model, or an image size that is too small for it.
    """
    config = section(config, ModelConfig)
    name, size = config.model, config.image_size
    require(name in MODELS, f"unknown model {name!r}{did_you_mean(name, MODELS)}")
    needed = getattr(network_class(name), "required", ("image_size", "in_channels"))
    require(
        all(getattr(config, field) is not None for field in needed),
        f"ModelConfig: {' and '.join(needed)} must be given to build {name}",
    )
    require(
        not isinstance(config.network, str),
        f"the network is not of this package: pass {config.network}, as "
        "hypersphere_jax.load(..., network=...) and train(..., network=...) take it",
    )
    if config.reads_text or config.network is not None:
        return config
    least = network_class(name).min_image_size
    require(
        size >= least,
        f"{name} needs images of at least {least} pixels, not {size}: choose another model=, or "
        "a larger image_size=",
    )
    if config.stem is None and name.startswith("resnet"):
        return dataclasses.replace(config, stem="cifar" if size < 64 else "imagenet")
    return config


def with_classifier(params: Tree, other: Tree) -> Tree:
    """`params` with the classifier of `other`, or without one when `other` has none."""
    head = {name: part for name, part in params.get("head", {}).items() if name != "classifier"}
    if "classifier" in other.get("head", {}):
        head["classifier"] = other["head"]["classifier"]
    body = {name: part for name, part in params.items() if name != "head"}
    return {**body, "head": head} if head else body


def before_head(name: str) -> str:
    """The layer of a model that enters the head: "backbone", or "fc7" of SmallAlexNet."""
    return [layer for layer in network_class(name).layers if layer not in heads.LAYERS][-1]


def layers(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes (for one image) of a model's layers, in the network's order."""
    apply, params, stats = abstract(config)
    if config.reads_text:
        x = network_class(config.model).example(config)
    else:
        # Two images, as a custom network may confuse one image with its batch.
        x = jax.ShapeDtypeStruct((2, *[config.image_size] * 2, config.in_channels), jnp.float32)
    shapes, _ = jax.eval_shape(lambda p, s, x: apply(p, s, x, False), params, stats, x)
    # Tracing sorts the keys of a dict, so the order comes from the model's own list.
    order = shapes if config.network is not None else network_class(config.model).layers
    return {name: shapes[name].shape[1:] for name in order if name in shapes}


def check_layer(config: ModelConfig, layer: str, flag: str = "layers=") -> None:
    """Raise UserError, which names the argument `flag`, unless the model has the layer."""
    known = layers(config)
    if layer not in known:
        hint = did_you_mean(layer, known)
        names = ", ".join(known)
        raise UserError(f"{flag}{layer}: {config.label} has no such layer{hint}; it has {names}")
