"""What a config describes: its open fields filled in, the images, the start, and the step."""

import dataclasses
import functools
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from hypersphere_jax import augment, data, models
from hypersphere_jax.config import PretrainConfig, UserError, require
from hypersphere_jax.data import subsets
from hypersphere_jax.data.sampling import make_sampler
from hypersphere_jax.moco import momentum_schedule
from hypersphere_jax.shuffle import shuffle
from hypersphere_jax.train import checkpoint, objectives, run_folder, sharding
from hypersphere_jax.train.optimizers import make_optimizer, make_schedule
from hypersphere_jax.train.step import (
    make_moco_step,
    make_objective,
    make_queue_objective,
    make_sentence_objective,
    make_sentence_step,
    make_step,
)

logger = logging.getLogger("hypersphere_jax")

# Of a text's sentences, those in whole batches are usually more than this share.
MOST_USED = 0.9
# What may differ between encoders that train together, besides the seed and the start.
WEIGHTS = ("contrastive_weight", "align_weight", "uniform_weight", "supervised_weight")
NUMBERS = {
    "objective": (
        *WEIGHTS,
        *("contrastive_tau", "align_alpha", "uniform_t"),
        *("loss_tau", "loss_alpha", "loss_lam", "loss_factor"),
    ),
    "optimizer": ("learning_rate", "weight_decay", "momentum"),
}


def resolve(config: PretrainConfig, dataset: data.Dataset) -> PretrainConfig:
    """Fills in what the config leaves open: recipe, image size, classes, batch norm, and the like.

    A file is named by its whole path, so that the run can be evaluated from any folder.

    Raises:
      UserError: for options that do not fit the data.
    """
    is_text = isinstance(dataset.pretrain, data.Corpus)
    kinds = ("sentences", "images") if is_text else ("images", "sentences")
    require(
        is_text == config.model.reads_text,
        f"{dataset.origin} holds {kinds[0]}, and --model {config.model.name} is for {kinds[1]}"
        + (": take --model sentence_gru" if is_text else ""),
    )
    if is_text:
        return _resolved_text(config, dataset)
    recipe = config.data.recipe or dataset.recipe
    shape, size = dataset.pretrain.image_shape, config.model.image_size
    require(
        bool(shape or size),
        f"the images of {dataset.pretrain.origin} differ in size: give the side of those that "
        "enter the network, such as --image-size 224",
    )
    size = size or max(shape[:2])
    extra = config.data.extra_channels
    image = jax.ShapeDtypeStruct(shape or (size, size, 3 + extra), np.uint8)
    try:
        evaluate = augment.make_evaluate(recipe, size, extra_channels=extra)
        view = jax.eval_shape(evaluate, image)
    except ValueError as error:
        raise UserError(f"--recipe {recipe}: {error}") from error
    supervised = config.objective.supervised_weight > 0
    require(
        bool(dataset.class_names) or not supervised,
        f"--supervised-weight: the images of {dataset.origin} have no labels",
    )
    return dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, recipe=recipe, **data.located(config.data)),
        objective=objectives.resolved(config.objective),
        model=models.resolved(
            dataclasses.replace(
                config.model,
                image_size=size,
                channels=view.shape[-1],
                num_classes=len(dataset.class_names) if supervised else 0,
                batch_norm=config.model.batch_norm
                or ("split" if config.moco.queue_size else "sync"),
            )
        ),
    )


def _resolved_text(config: PretrainConfig, dataset: data.Dataset) -> PretrainConfig:
    for unfit, flag in (
        (config.moco.queue_size > 0, "--queue-size"),
        (config.objective.supervised_weight > 0, "--supervised-weight"),
        (config.evaluate.eval_every_epochs is not None, "--eval-every-epochs"),
        (config.runtime.pipeline != "auto", "--pipeline"),
        (config.runtime.workers > 0, "--workers"),
    ):
        require(not unfit, f"{flag} is for images, and {dataset.origin} holds sentences")
    source, size = dataset.pretrain, config.optimizer.batch_size
    used = size * make_sampler(source, size, config.seed).steps_per_epoch
    if used < MOST_USED * len(source):
        logger.warning(
            "%.0f%% of the %d sentences are left out: a batch is of --batch-size %d consecutive "
            "ones of a document, and many documents have fewer",
            100 * (1 - used / len(source)),
            len(source),
            size,
        )
    return dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, recipe=dataset.recipe, **data.located(config.data)),
        model=dataclasses.replace(config.model, vocabulary=len(dataset.pretrain.vocabulary)),
    )


def check_groups(config: PretrainConfig, devices: int) -> None:
    """Refuses batch norm's groups before a folder is made, where the step would only later.

    Raises:
      UserError: for groups that do not fit, or would give the positives away.
    """
    norm, groups = config.model.batch_norm, config.model.bn_groups
    batch_size = config.optimizer.batch_size
    if norm == "split":
        require(
            groups % devices == 0 and batch_size % groups == 0,
            f"--bn-groups {groups}: must be a multiple of the {devices} device(s), and divide "
            f"--batch-size {batch_size}",
        )
    if not config.moco.queue_size:
        return
    require(
        not (norm == "split" and groups == 1) and not (norm == "local" and devices == 1),
        "keys would have the batch statistics of their queries' images, which give the positives "
        "away: with a queue on one device take --batch-norm split with several --bn-groups",
    )
    if norm == "sync":
        logger.warning(
            "--batch-norm sync with a queue: keys have the batch statistics of their queries' "
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
        f"--supervised-weight: the labelled images of {dataset.origin} are all of one class, and "
        "two are needed",
    )
    train = dataset.train
    if len(known) < len(labels):
        train = subsets.Subset(train, known, "labelled images")
    return dataset._replace(train=train, pretrain=train)


def from_run(
    config: PretrainConfig, params: Any, stats: Any, vocabulary: Sequence[str] | None = None
) -> tuple[Any, Any]:
    """Parameters and statistics of the run to start from; a classifier of its own stays fresh.

    Raises:
      UserError: for a run of another encoder, or of other words than the vocabulary.
    """
    folder = run_folder.find(config.init_from)
    if vocabulary is not None:
        require(
            run_folder.read_config(folder).model.reads_text
            and run_folder.read_vocabulary(folder) == tuple(vocabulary),
            f"--init-from {config.init_from}: it knows other words than {config.data.name}; "
            "prepare that text as the run's was",
        )
    its = run_folder.read_config(folder).model
    classifier = {"num_classes": its.num_classes, "classifier_layer": its.classifier_layer}
    source = dataclasses.replace(config.model, **classifier)
    _, source_params, source_stats = models.abstract(source)
    like = {"params": source_params, "stats": source_stats}
    _, tree = checkpoint.restore(folder / "checkpoints", like, config.init_step)
    if source != config.model:  # in their classifiers, that is
        tree["params"] = models.with_classifier(tree["params"], params)
    return tree["params"], tree["stats"]


def step_of(
    config: PretrainConfig,
    apply: Callable,
    optimizer: Any,
    dataset: data.Dataset,
    total: int,
    resident: bool,
    numbers: Mapping[str, jax.Array] | None = None,
) -> Callable:
    """The step of one device that a config describes: of sentences, or images with a queue or not.

    Without a queue, `numbers` may take the place of the objective's, see `make_objective`.
    """
    if config.model.reads_text:
        objective = make_sentence_objective(config.objective, numbers)
        return make_sentence_step(apply, objective, optimizer, axis_name=sharding.AXIS)
    transform = augment.make_augment(
        config.data.recipe,
        config.model.image_size,
        cropped=dataset.pretrain.image_shape is None,
        extra_channels=config.data.extra_channels,
    )
    options = {"axis_name": sharding.AXIS}
    if not config.moco.queue_size:
        objective = make_objective(config.objective, numbers)
        return make_step(apply, objective, optimizer, transform, **options)
    final = 1.0 if config.moco.ema_schedule == "cosine" else config.moco.ema_decay
    return make_moco_step(
        apply,
        make_queue_objective(config.objective),
        optimizer,
        transform,
        decay=momentum_schedule(config.moco.ema_decay, final, total),
        own_stats=config.moco.ema_stats == "own",
        separate=_separate(config),
        resident=resident,
        **options,
    )


def structure(config: PretrainConfig) -> Hashable:
    """What a config shares with those that can train together with it: all but its numbers.

    Which weights are zero belongs to it, as a term without weight stays out of the loss.
    """
    standard = PretrainConfig()
    objective = {name: getattr(standard.objective, name) for name in NUMBERS["objective"]}
    objective |= {name: float(getattr(config.objective, name) > 0) for name in WEIGHTS}
    optimizer = {name: getattr(standard.optimizer, name) for name in NUMBERS["optimizer"]}
    places = ("name", "runs_dir", "seed", "init_from", "init_step")
    return dataclasses.replace(
        config,
        **{name: getattr(standard, name) for name in places},
        objective=dataclasses.replace(config.objective, **objective),
        optimizer=dataclasses.replace(config.optimizer, **optimizer),
    )


def numbers_of(config: PretrainConfig) -> dict[str, dict[str, np.ndarray]]:
    """A config's numbers, as the step of `step_together` takes them; float32 scalars.

    Those that its loss does not have, None in a config with open fields filled in, are left out.
    """
    return {
        part: {
            name: np.float32(number)
            for name in names
            if (number := getattr(getattr(config, part), name)) is not None
        }
        for part, names in NUMBERS.items()
    }


def step_together(
    config: PretrainConfig, apply: Callable, dataset: data.Dataset, total: int
) -> Callable:
    """The step of one device for encoders of one structure, whose images are resident.

    Args:
      config: of any of them.
      apply: the network, see `models.create`.
      dataset: of which `pretrain` is trained on.
      total: steps of a run.

    Returns:
      `step(state, images, labels, indices, key, numbers) -> (state, metrics)` as `make_step`'s,
      where all but `images` and `labels` have a leading axis of the encoders.
    """

    def step(state, images, labels, indices, key, numbers):
        rule = numbers["optimizer"]
        schedule = make_schedule(config.optimizer, total, rule["learning_rate"])
        optimizer = make_optimizer(config.optimizer, schedule, rule)
        one = step_of(config, apply, optimizer, dataset, total, True, numbers["objective"])
        return one(state, images, labels, indices, key)

    return jax.vmap(step, in_axes=(0, None, None, 0, 0, 0))


def _separate(config: PretrainConfig) -> Callable | None:
    """Puts keys into other groups of batch norm than their queries, where there are groups."""
    if config.model.batch_norm == "sync":
        return None
    groups = config.model.bn_groups if config.model.batch_norm == "split" else None
    return functools.partial(shuffle, groups=groups, axis_name=sharding.AXIS)
