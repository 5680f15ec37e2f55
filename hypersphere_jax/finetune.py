"""Fine-tuning: a classifier and the whole encoder of a run, on all labels or a part of them.

It is a training run as any other (the same loop, folder and resumption), whose config is made here
from that of the run that gives the encoder; then the classifier is scored on the test split, once.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from hypersphere_jax import data, hosts, models, runs, sharding, training
from hypersphere_jax.augment.recipes import CROP_FLIP
from hypersphere_jax.config import (
    FinetuneConfig,
    MocoConfig,
    OptimizerConfig,
    PretrainConfig,
    require,
)
from hypersphere_jax.data import Dataset, Source, views
from hypersphere_jax.evaluation.features import split_features

# Of the labels, to train on where the learning rate is chosen; the others choose it.
FITTING = 0.8


def finetune(config: FinetuneConfig, command: str = "") -> tuple[Path, dict[str, Any] | None]:
    """Trains, or continues to, and scores the classifier.

    Of several learning rates each has a run of its own in the folder `learning_rates` of the run,
    on 80% of the labels of each class, and is scored on the others. All are rounded as
    `data.views.fraction` does, so that a class with one or two images has none to choose by.

    By default as SimCLR is fine-tuned (Chen et al. 2020, B.5; epochs as in SimCLR v2, B): Nesterov
    momentum 0.9, learning rate 0.05 for 256 images, no weight decay, crop and flip alone. The
    paper names no decay of the rate: here it is a cosine. And here each image of a batch is there
    twice, in two augmentations.

    Args:
      config: of the fine-tuning.
      command: what the user typed, for the line that says how to continue.

    Returns:
      The run's folder, and the result as in `eval/finetune.json`; None on hosts but the first.

    Raises:
      UserError: as `training.train`; for data without labels or a test split; for too few labels.
      Stopped: as `training.train`.
    """
    hosts.join(config.runtime)
    with hosts.ending_together():
        base, whole = _base(config)
    rates, valid, valid_top1 = config.learning_rates, None, None
    if len(rates) > 1:
        valid = held_out(whole, config.fraction, base.data.subset_seed)
        valid_top1 = []
        for rate in rates:
            folder = training.train(_candidate(config, base, whole, rate), command)
            valid_top1.append(score(folder, valid, config.runtime.devices)["top1"])
    chosen = rates[0] if valid_top1 is None else rates[int(np.argmax(valid_top1))]
    run = _with_optimizer(config, base, whole, chosen)
    folder = training.train(run, command)
    if not hosts.is_first():
        return folder, None
    made = runs.read_config(folder)
    result = {
        "run": folder.name,
        "init_from": run.init_from,
        "init_step": run.init_step,
        "data": run.data.name,
        "split": "test",
        "protocol": "finetune",
        "layer": run.model.classifier_layer,
        "fraction": config.fraction,
        "labels": _count(whole, config.fraction, run.data.subset_seed),
        **score(folder, whole.test, config.runtime.devices),
        "num_classes": made.model.num_classes,
        "chosen": {"learning_rate": chosen},
        "learning_rates": list(rates),
        "valid_top1": valid_top1,
        "n_valid": 0 if valid is None else len(valid),
        "epochs": run.optimizer.epochs,
        "batch_size": run.optimizer.batch_size,
        "weight_decay": config.weight_decay,
        "recipe": run.data.recipe,
        "seed": config.seed,
    }
    runs.write_json(folder / "eval" / "finetune.json", result)
    return folder, result


def held_out(dataset: Dataset, fraction: float, seed: int) -> Source:
    """Of a fraction of the labels, those that are not among the 80% to train on.

    Raises:
      UserError: when there are none.
    """
    part, fitting = (
        views.fraction(dataset.train, share, seed) for share in (fraction, FITTING * fraction)
    )
    rows = np.setdiff1d(part.indices, fitting.indices)
    rows = rows[np.asarray(dataset.train.labels)[rows] >= 0]
    require(
        len(rows) > 0,
        f"--fraction {fraction:g}: no class has enough images to hold one out, so that nothing "
        "can choose between several --learning-rates; give one",
    )
    return views.Subset(dataset.train, rows, "held out")


def score(folder: Path, source: Source, devices: int | None = None) -> dict[str, Any]:
    """Top-1 and top-5 (None up to 5 classes) in percent of a run's classifier, newest checkpoint.

    Args:
      folder: of a supervised run.
      source: of images; those without label are left out.
      devices: of this host to compute on; None: all.
    """
    encoder = runs.load_encoder(folder)
    logits = split_features(encoder, source, ["logits"], sharding.local_devices(devices))["logits"]
    labels = np.asarray(logits.labels)
    order = np.argsort(-logits.x[labels >= 0], axis=1, kind="stable")
    rank = (order == labels[labels >= 0, None]).argmax(axis=1)
    require(len(rank) > 0, f"no image of {source.origin} has a label")
    top5 = 100 * float(np.mean(rank < 5)) if encoder.config.model.num_classes > 5 else None
    top1 = 100 * float(np.mean(rank < 1))
    return {"step": encoder.step, "top1": top1, "top5": top5, "n": len(rank)}


def _base(config: FinetuneConfig) -> tuple[PretrainConfig, Dataset]:
    """The run but for its optimizer, and the data with all their labels."""
    folder = runs.find(config.run)
    source = runs.read_config(folder)
    recipe = source.data.recipe
    if config.recipe is None and not recipe.endswith(CROP_FLIP):
        recipe += CROP_FLIP
    place = dataclasses.replace(
        runs.moved(source.data, config.data_dir), recipe=config.recipe or recipe, fraction=1.0
    )
    dataset = data.load(place)
    require(
        bool(dataset.class_names), f"the images of {dataset.origin} have no labels to fine-tune on"
    )
    require(
        dataset.test is not None,
        f"{dataset.origin} has no test split to score the classifier on: add one to the data, or "
        "pretrain with --folds, which holds a part of the training images out",
    )
    model = dataclasses.replace(
        source.model,
        classifier_layer=config.layer or models.before_head(source.model.name),
        # The number of devices is not to shape the run, nor are there keys to keep apart.
        batch_norm="sync",
    )
    objective = dataclasses.replace(
        source.objective,
        contrastive_weight=0.0,
        align_weight=0.0,
        uniform_weight=0.0,
        supervised_weight=1.0,
    )
    base = PretrainConfig(
        name=config.name or f"{folder.resolve().name}-finetune-{config.fraction:g}",
        runs_dir=config.runs_dir,
        seed=config.seed,
        init_from=str(folder.resolve()),
        init_step=config.step,
        data=place,
        model=model,
        objective=objective,
        moco=MocoConfig(),
        runtime=config.runtime,
        evaluate=config.evaluate,
    )
    return base, dataset


def _with_optimizer(
    config: FinetuneConfig,
    base: PretrainConfig,
    whole: Dataset,
    rate: float,
    share: float = 1.0,
) -> PretrainConfig:
    """The run on a share of the fraction of the labels."""
    fraction = share * config.fraction
    count = _count(whole, fraction, base.data.subset_seed)
    require(count >= 2, f"--fraction {config.fraction:g}: {count} labelled image, two are needed")
    return dataclasses.replace(
        base,
        data=dataclasses.replace(base.data, fraction=fraction),
        optimizer=OptimizerConfig(
            epochs=config.epochs or (60 if config.fraction <= 0.01 else 30),
            batch_size=config.batch_size or 2 ** (min(256, count).bit_length() - 1),
            learning_rate=rate,
            schedule="cosine",
            nesterov=True,
            weight_decay=config.weight_decay,
        ),
    )


def _candidate(
    config: FinetuneConfig, base: PretrainConfig, whole: Dataset, rate: float
) -> PretrainConfig:
    folder = runs.folder_of(base) / "learning_rates"
    placed = dataclasses.replace(base, name=str(rate), runs_dir=str(folder))
    return _with_optimizer(config, placed, whole, rate, FITTING)


def _count(dataset: Dataset, fraction: float, seed: int) -> int:
    """Labelled images of a fraction."""
    part = views.fraction(dataset.train, fraction, seed)
    return int(np.sum(np.asarray(part.labels) >= 0))
