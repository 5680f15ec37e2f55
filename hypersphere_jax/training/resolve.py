"""Fill in the open fields of a config from its data, and check it against data and devices."""

import logging
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from hypersphere_jax import augment, data, models, text
from hypersphere_jax.configs import PretrainConfig, UserError
from hypersphere_jax.training import distributed, objectives

logger = logging.getLogger("hypersphere_jax")


def resolve(config: PretrainConfig, dataset: data.Dataset) -> PretrainConfig:
    """Fill in the open fields of a config: recipe, image size, classes, batch norm, and more.

    A data file is named by its absolute path, so that the run can be evaluated from any folder.

    Raises:
      UserError: If the options do not fit the data.
    """
    if config.reads_text:
        return text.resolve_text(config, dataset)
    if config.uses_labels:
        _check_labels(config, dataset)
    config = _with_image_shape(objectives.with_loss_defaults(config), dataset)
    if config.network is None:
        num_classes = len(dataset.class_names) if config.supervised_weight else 0
        config = config.replace(num_classes=num_classes, batch_norm=_batch_norm(config))
        network = models.resolved(config)
        config = config.replace(stem=network.stem, patch_size=network.patch_size)
    else:
        config = config.replace(dim=models.layers(config)["output"][0])
    if config.eval_every_epochs is not None:
        models.check_layer(config, config.eval_layer, "eval_layer=")
    return config.replace(**data.located(config))


def _check_labels(config: PretrainConfig, dataset: data.Dataset) -> None:
    """Check the labels of a loss that takes them."""
    if config.supervised_weight and config.network is not None:
        raise UserError("supervised_weight= is for this package's networks: pass a loss=")
    if not dataset.class_names:
        raise UserError(
            f"the loss takes labels, and the images of {dataset.origin} have none: pass labels, or "
            "train without supervised_weight= and with a loss that takes no labels"
        )
    labels = np.unique(np.asarray(dataset.train.labels))
    if config.function is None and np.sum(labels >= 0) < 2:
        raise UserError(
            f"the labelled images of {dataset.origin} are all of one class, and a loss with labels "
            "needs two"
        )


def _batch_norm(config: PretrainConfig) -> Any:
    """Return how batch norm is computed; "sync" for networks without batch norm."""
    if _has_batch_norm(config):
        default = "split" if config.queue_size else "sync"
        return config.batch_norm or default
    if config.batch_norm in (None, "sync") and config.bn_groups == PretrainConfig.bn_groups:
        return "sync"
    raise UserError(
        f"batch_norm= and bn_groups= have no effect, because {config.model} with "
        f"head={config.head} has no batch norm: leave them out"
    )


def _has_batch_norm(config: PretrainConfig) -> bool:
    if config.network is not None:
        return True  # perhaps
    _, _, stats = models.abstract(config)
    return bool(jax.tree.leaves(stats))


def _with_image_shape(config: PretrainConfig, dataset: data.Dataset) -> PretrainConfig:
    """Fill in the recipe, and the size and the channels of the images that enter the network."""
    recipe = config.recipe or dataset.recipe
    if config.augment and not config.recipe:
        recipe = "none"
    config = config.replace(recipe=recipe)
    source = dataset.pretrain
    size = config.image_size
    if size is None and source.image_shape is None:
        raise UserError(
            f"the images of {source.origin} differ in size: give the side of those that enter the "
            "network, such as image_size=224"
        )
    if size is None:
        size = max(source.image_shape[:2])
    try:
        transform = augment.make_evaluate(
            augment.recipe_of(config), size, extra_channels=config.extra_channels
        )
        view = jax.eval_shape(transform, _image(config, source, size))
    except ValueError as error:
        if config.preprocess is not None:  # an error in the user's code
            raise
        raise UserError(f"recipe={config.recipe}: {error}") from error
    return config.replace(image_size=size, in_channels=view.shape[-1])


def _image(config: PretrainConfig, source: data.Source, size: int) -> jax.ShapeDtypeStruct:
    """Return the shape of an image, which has the network's size if images differ in size."""
    channels = (config.channels or 3) + config.extra_channels
    return jax.ShapeDtypeStruct(source.image_shape or (size, size, channels), np.uint8)


def check_devices(config: PretrainConfig, source: data.Source, devices: Sequence) -> None:
    """Check a complete config against the devices, before the run's folder is made.

    Raises:
      UserError: For groups of batch norm that do not fit, or that leak the positives; for custom
        parts that return something of another kind.
    """
    if _has_batch_norm(config):
        _check_batch_norm(config, len(devices))
    custom = (config.network, config.function, config.augment, config.preprocess)
    if any(part is not None for part in custom):
        _check_custom(config, source, devices)


def _check_batch_norm(config: PretrainConfig, devices: int) -> None:
    norm = config.batch_norm
    groups = config.bn_groups
    if norm == "split" and (groups % devices or config.batch_size % groups):
        raise UserError(
            f"bn_groups={groups}: must be a multiple of the {devices} device(s), and divide "
            f"batch_size={config.batch_size}"
        )
    if not config.queue_size:
        return
    if (norm == "split" and groups == 1) or (norm == "local" and devices == 1):
        raise UserError(
            "keys would have the batch statistics of their queries' images, which give the "
            "positives away: with a queue on one device take batch_norm=split with several "
            "bn_groups="
        )
    if norm == "sync":
        logger.warning(
            "batch_norm=sync with a queue: keys have the batch statistics of their queries' "
            "images, which give the positives away; split or local keep them apart"
        )


def _check_custom(config: PretrainConfig, source: data.Source, devices: Sequence) -> None:
    """Trace the user's augmentation, network and loss."""
    size = config.image_size
    key = jax.eval_shape(jax.random.key, 0)
    transform = augment.make_augment(
        augment.recipe_of(config), size, extra_channels=config.extra_channels
    )
    view = jax.eval_shape(transform, key, _image(config, source, size))
    if view.shape[-1] != config.in_channels:
        raise UserError(
            f"augment= returns {view.shape[-1]} channels, and images of an evaluation have "
            f"{config.in_channels}: change augment= or preprocess="
        )
    apply, params, stats = models.abstract(config)

    def loss(params, stats, views, labels, queue, key):
        layers = apply(params, stats, views, True, distributed.AXIS)[0]
        if not config.queue_size:
            objective = objectives.make_objective(config)
            return objective(layers, layers, labels, distributed.AXIS, key)[0]
        objective = objectives.make_queue_objective(config)
        return objective(layers["output"], layers["output"], queue, distributed.AXIS)[0]

    rows = config.batch_size // len(devices)
    views = jax.ShapeDtypeStruct((rows, *view.shape), view.dtype)
    labels = jax.ShapeDtypeStruct((rows,), np.int32)
    queue = jax.ShapeDtypeStruct((config.queue_size, config.dim), np.float32)
    arguments = distributed.stacked_shapes((params, stats, views, labels, queue, key), devices)
    jax.eval_shape(distributed.pmap(loss, devices), *arguments)
