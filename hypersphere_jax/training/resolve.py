"""A config with its open fields filled in from the data, and refused where it does not fit them."""

import logging
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from hypersphere_jax import augment, data, models, text
from hypersphere_jax.configs import PretrainConfig, UserError, require
from hypersphere_jax.data import subsets
from hypersphere_jax.training import distributed, objectives

logger = logging.getLogger("hypersphere_jax")


def resolve(config: PretrainConfig, dataset: data.Dataset) -> PretrainConfig:
    """Fills in what the config leaves open: recipe, image size, classes, batch norm, and the like.

    A file is named by its whole path, so that the run can be evaluated from any folder.

    Raises:
      UserError: for options that do not fit the data.
    """
    if config.reads_text:
        return text.resolve_text(config, dataset)
    recipe = config.recipe or ("none" if config.augment else dataset.recipe)
    shape, size = dataset.pretrain.image_shape, config.image_size
    require(
        bool(shape or size),
        f"the images of {dataset.pretrain.origin} differ in size: give the side of those that "
        "enter the network, such as image_size=224",
    )
    size = size or max(shape[:2])
    extra = config.extra_channels
    try:
        whole = augment.recipe_of(config.replace(recipe=recipe))
        evaluate = augment.make_evaluate(whole, size, extra_channels=extra)
        view = jax.eval_shape(evaluate, _image(config, dataset.pretrain, size))
    except ValueError as error:
        if config.preprocess is not None:  # an error in the user's code
            raise
        raise UserError(f"recipe={recipe}: {error}") from error
    supervised = config.supervised_weight > 0
    require(
        bool(dataset.class_names) or not objectives.uses_labels(config),
        f"the loss takes labels, and the images of {dataset.origin} have none: leave "
        "supervised_weight= out, or take another loss",
    )
    filled: dict[str, Any] = {"image_size": size, "in_channels": view.shape[-1], "recipe": recipe}
    if config.network is None:
        default_norm = "split" if config.queue_size else "sync"
        filled["batch_norm"] = config.batch_norm or default_norm
        filled["num_classes"] = len(dataset.class_names) if supervised else 0
    else:
        require(not supervised, "supervised_weight= is for this package's networks: pass a loss=")
        network = config.replace(image_size=size, in_channels=view.shape[-1])
        filled["dim"] = models.layers(network)["output"][0]
    config = objectives.resolved(config.replace(**filled, **data.located(config)))
    return config.replace(stem=models.resolved(config).stem)


def _image(config: PretrainConfig, source: data.Source, size: int) -> jax.ShapeDtypeStruct:
    """An image of a source, or one of the network's size where images differ in size."""
    channels = (config.channels or 3) + config.extra_channels
    return jax.ShapeDtypeStruct(source.image_shape or (size, size, channels), np.uint8)


def check_custom(config: PretrainConfig, source: data.Source, devices: Sequence) -> None:
    """Trace the user's augmentation, network and loss, before the run's folder is made.

    Raises:
      UserError: for one that returns something of the wrong kind.
    """
    size, extra = config.image_size, config.extra_channels
    key = jax.eval_shape(jax.random.key, 0)
    transform = augment.make_augment(augment.recipe_of(config), size, extra_channels=extra)
    view = jax.eval_shape(transform, key, _image(config, source, size))
    require(
        view.shape[-1] == config.in_channels,
        f"augment= returns {view.shape[-1]} channels, and images of an evaluation have "
        f"{config.in_channels}: change augment= or preprocess=",
    )
    rows = config.batch_size // len(devices)
    apply, params, stats = models.abstract(config)

    def loss(params, stats, views, labels, queue, key):
        layers = apply(params, stats, views, True, distributed.AXIS)[0]
        if not config.queue_size:
            objective = objectives.make_objective(config)
            return objective(layers, layers, labels, distributed.AXIS, key)[0]
        objective = objectives.make_queue_objective(config)
        return objective(layers["output"], layers["output"], queue, distributed.AXIS)[0]

    views = jax.ShapeDtypeStruct((rows, *view.shape), view.dtype)
    labels = jax.ShapeDtypeStruct((rows,), np.int32)
    queue = jax.ShapeDtypeStruct((config.queue_size, config.dim), np.float32)
    each = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((len(distributed.local(devices)), *x.shape), x.dtype),
        (params, stats, views, labels, queue, key),
    )
    jax.eval_shape(distributed.pmap(loss, devices), *each)


def check_batch_norm(config: PretrainConfig, devices: int) -> None:
    """Refuses batch norm's groups before a folder is made, where the step would only later.

    Raises:
      UserError: for groups that do not fit, or would give the positives away.
    """
    norm, groups = config.batch_norm, config.bn_groups
    batch_size = config.batch_size
    if norm == "split":
        require(
            groups % devices == 0 and batch_size % groups == 0,
            f"bn_groups={groups}: must be a multiple of the {devices} device(s), and divide "
            f"batch_size={batch_size}",
        )
    if not config.queue_size:
        return
    require(
        not (norm == "split" and groups == 1) and not (norm == "local" and devices == 1),
        "keys would have the batch statistics of their queries' images, which give the positives "
        "away: with a queue on one device take batch_norm=split with several bn_groups=",
    )
    if norm == "sync":
        logger.warning(
            "batch_norm=sync with a queue: keys have the batch statistics of their queries' "
            "images, which give the positives away; split or local keep them apart"
        )


def labelled(dataset: data.Dataset) -> data.Dataset:
    """The data with labelled images alone to train on.

    Raises:
      UserError: when they are all of one class.
    """
    labels = np.asarray(dataset.train.labels)
    known, classes = np.flatnonzero(labels >= 0), np.unique(labels[labels >= 0])
    require(
        len(classes) > 1,
        f"supervised_weight=: the labelled images of {dataset.origin} are all of one class, and "
        "two are needed",
    )
    train = dataset.train
    if len(known) < len(labels):
        train = subsets.Subset(train, known, "labelled images")
    return dataset._replace(train=train, pretrain=train)
