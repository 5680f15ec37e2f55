"""Encoders as pure functions of their parameters.

`create` returns plain dicts of arrays and a function, for this package's networks and for the
user's (`custom`). Modules of Flax stay inside this folder.
"""

import functools
import pkgutil
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from hypersphere_jax.configs import ModelConfig, UserError, section
from hypersphere_jax.models import custom, functional, heads
from hypersphere_jax.models.functional import Tree
from hypersphere_jax.models.resnet import ResNet18, ResNet34, ResNet50
from hypersphere_jax.models.small_alexnet import SmallAlexNet
from hypersphere_jax.models.small_cnn import SmallCNN
from hypersphere_jax.models.vit import ViTSmall, ViTTiny

# Text gives the name of its class, since imports go down.
MODELS: dict[str, Any] = {
    "small_cnn": SmallCNN,
    "small_alexnet": SmallAlexNet,
    "resnet18": ResNet18,
    "resnet34": ResNet34,
    "resnet50": ResNet50,
    "vit_tiny": ViTTiny,
    "vit_small": ViTSmall,
    "sentence_gru": "hypersphere_jax.text.sentence_gru:SentenceGRU",
}

Apply = Callable[..., tuple[dict[str, jax.Array], Tree]]


def create(config: ModelConfig, key: jax.Array) -> tuple[Apply, Tree, Tree]:
    """Return an encoder with initial parameters.

    `apply(params, stats, x, train, axis_name=None) -> (outputs, stats)` takes float32 images
    `[n, image_size, image_size, channels]`, `text.packing.Packed` sentences, or token ids
    `[n, words]`. It returns the named layers as float32; `"output"` is `[n, dim]` with unit norm.

    In training, batch norm uses the statistics of a batch and returns updated running statistics.
    `batch_norm` of the config chooses the batch: the global batch over the mapped axis `axis_name`
    ("sync"), this device's part ("local"), or each of `bn_groups` equal parts of the global batch,
    consecutive in the order of the devices ("split"; each device returns the running statistics of
    its own groups).

    Args:
      config: with `image_size` and `in_channels`, or `vocabulary_size` for sentences.
      key: random key of the initialization.

    Returns:
      apply: the function above.
      params: nested dict of float32 arrays.
      stats: running statistics of batch normalization, nested dict of float32 arrays.

    Raises:
      UserError: for an unknown model, or an image size that is too small for it.
    """
    config = resolved(config)
    apply, _, _ = abstract(config)
    if config.network is None:
        return apply, *_builder(config)(key)
    init, _ = _custom(config)
    return apply, *init(key)


@functools.lru_cache(maxsize=8)  # encoders of one config share a compiled initialization
def _builder(config: ModelConfig) -> functional.Builder:
    network = network_class(config.model)
    return functional.Builder(lambda key: network(config, rngs=nnx.Rngs(key)))


def _custom(config: ModelConfig) -> tuple[Callable, Apply]:
    return custom.create(config.network, _image_shape(config))


def _image_shape(config: ModelConfig) -> tuple[Any, ...]:
    return (config.image_size, config.image_size, config.in_channels)


def network_class(name: str) -> Any:
    """Return the class of a network in `MODELS`."""
    network = MODELS[name]
    return pkgutil.resolve_name(network) if isinstance(network, str) else network


def abstract(config: ModelConfig) -> tuple[Apply, Tree, Tree]:
    """Return what `create` returns, with `jax.ShapeDtypeStruct` for arrays."""
    return _abstract(resolved(config))


@functools.lru_cache(maxsize=8)  # users of the same `apply` share compiled programs
def _abstract(config: ModelConfig) -> tuple[Apply, Tree, Tree]:
    if config.network is not None:
        init, apply_custom = _custom(config)
        return apply_custom, *jax.eval_shape(init, jax.eval_shape(jax.random.key, 0))

    graphdef, params, stats = _builder(config).abstract()

    def apply(params, stats, x, train, axis_name=None):
        batch_norm = {"groups": 1, "axis_name": axis_name}
        if train and config.batch_norm == "split":
            batch_norm["groups"] = _groups_per_device(config, axis_name)
        if config.batch_norm not in (None, "sync"):
            batch_norm["axis_name"] = None
        outputs, stats = functional.call(graphdef, params, stats, x, train, **batch_norm)
        return {name: layer.astype(jnp.float32) for name, layer in outputs.items()}, stats

    return apply, params, stats


def _groups_per_device(config: ModelConfig, axis_name: str | None) -> int:
    """Return the number of batch-norm groups in a device's part of the batch."""
    devices = 1
    if axis_name is not None:
        devices = jax.lax.axis_size(axis_name)
    if config.bn_groups % devices:
        raise UserError(f"bn_groups={config.bn_groups} does not divide over {devices} devices")
    return config.bn_groups // devices


def resolved(config: ModelConfig) -> ModelConfig:
    """Return the model's section of a config, with the stem of a ResNet or the patches of a ViT.

    Below 64 pixels, the default stem is "cifar", and the default patch size is 4.

    Raises:
      UserError: for an unknown model, or an image size that is too small for it.
    """
    config = section(config, ModelConfig)
    name = config.model
    size = config.image_size
    if name not in MODELS:
        raise UserError(f"unknown model {name!r}: give one of {', '.join(MODELS)}")
    needed = getattr(network_class(name), "required", ("image_size", "in_channels"))
    if any(getattr(config, field) is None for field in needed):
        raise UserError(f"ModelConfig: {' and '.join(needed)} must be given to build {name}")
    if isinstance(config.network, str):
        raise UserError(
            f"pass the network {config.network} itself, as in hypersphere_jax.load(..., "
            "network=...) or train(..., network=...)"
        )
    if config.reads_text or config.network is not None:
        return config
    least = network_class(name).min_image_size
    if size < least:
        raise UserError(
            f"{name} needs images of at least {least} pixels, not {size}; choose another model= "
            "or a larger image_size="
        )
    if config.stem is None and name.startswith("resnet"):
        return config.replace(stem="cifar" if size < 64 else "imagenet")
    if config.patch_size is None and name.startswith("vit"):
        patch_size = 4 if size < 64 else 16
        if size % patch_size:
            raise UserError(
                f"image_size={size} is not a multiple of the default patch_size={patch_size}; "
                "pass a patch_size= that divides it"
            )
        return config.replace(patch_size=patch_size)
    return config


def with_classifier(params: Tree, other: Tree) -> Tree:
    """Return `params` with the classifier of `other`, or without one if `other` has none."""
    head = {name: part for name, part in params.get("head", {}).items() if name != "classifier"}
    if "classifier" in other.get("head", {}):
        head["classifier"] = other["head"]["classifier"]
    body = {name: part for name, part in params.items() if name != "head"}
    return {**body, "head": head} if head else body


def before_head(name: str) -> str:
    """Return the layer of a model that the head reads: "backbone", or "fc7" for SmallAlexNet."""
    return [layer for layer in network_class(name).layers if layer not in heads.LAYERS][-1]


def layers(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return names and shapes (for one image) of a model's layers, in the network's order."""
    apply, params, stats = abstract(config)
    if config.reads_text:
        x = network_class(config.model).example(config)
    else:
        # Two images, because a custom network may confuse one image with a batch.
        x = jax.ShapeDtypeStruct((2, *_image_shape(config)), jnp.float32)
    shapes, _ = jax.eval_shape(lambda p, s, x: apply(p, s, x, False), params, stats, x)
    names: Any = shapes
    if config.network is None:  # tracing sorts the keys of a dict
        names = network_class(config.model).layers
    return {name: shapes[name].shape[1:] for name in names if name in shapes}


def check_layer(config: ModelConfig, layer: str, flag: str = "layers=") -> None:
    """Raise UserError, with the argument's name `flag`, unless the model has the layer."""
    known = layers(config)
    if layer not in known:
        names = ", ".join(known)
        raise UserError(f"{flag}{layer}: {config.label} has no such layer; it has {names}")
