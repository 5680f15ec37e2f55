"""Fine-tuning: a classifier and the whole encoder of a run, on all labels or a share of them.

A fine-tuning is a training run whose config is made from the encoder's run. Its classifier is
scored on the test split, once.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hypersphere_jax import data, models
from hypersphere_jax.augment.recipes import CROP_FLIP
from hypersphere_jax.configs import (
    DataConfig,
    Diverged,
    EvaluateConfig,
    FinetuneConfig,
    ModelConfig,
    PretrainConfig,
    RuntimeConfig,
    UserError,
    section,
)
from hypersphere_jax.data import Dataset, Source, subsets
from hypersphere_jax.evaluation import results_file
from hypersphere_jax.evaluation.features import split_features
from hypersphere_jax.evaluation.scores import classification_scores
from hypersphere_jax.training import distributed, run_dir
from hypersphere_jax.training import train as training

logger = logging.getLogger("hypersphere_jax")

TRAIN_SHARE = 0.8  # share of the labels to train on; the others choose the learning rate
ENOUGH = 100  # held-out images for a choice without a warning
ADVICE = "choose another name= with lower learning_rates="


@distributed.isolated()
def run_finetune(config: FinetuneConfig, command: str = "") -> tuple[Path, dict[str, Any] | None]:
    """Train the classifier, or resume its run; return its folder and `eval/finetune.json`.

    With several learning rates, each has a run in the folder `learning_rates` of the run, on 80% of
    the labels of each class, and is scored on the other labels. The best rate is chosen, the
    smallest of equals; a rate that diverged is not chosen.

    The defaults are from SimCLR's fine-tuning (Chen et al. 2020, B.5; epochs as in SimCLR v2, B):
    Nesterov momentum 0.9, learning rate 0.05 for 256 images, no weight decay, and only crop and
    flip. The paper names no schedule; this one is a cosine. A batch has two augmentations of each
    image here. The result is None in processes but the first.

    Raises:
      UserError: as `train`; for data without labels or a test split; if all rates diverged.
    """
    distributed.initialize(config)
    with distributed.exit_on_error():
        base, dataset = _base(config)
    choice = _choose_rate(config, base, dataset, command)
    run = _with_optimizer(config, base, dataset, choice["chosen"]["learning_rate"])
    try:
        folder = training.train(run, command)
        if not distributed.is_first():
            return folder, None
        test_scores = score(folder, run_dir.test_split(dataset), config.devices)
    except Diverged as error:
        raise Diverged(error.reason, ADVICE) from error
    result = {
        "run": folder.name,
        "init_from": run.init_from,
        "init_step": run.init_step,
        "data": run.data,
        "split": "test",
        "protocol": "finetune",
        "layer": run.classifier_layer,
        "fraction": config.fraction,
        "labels": _count(dataset, config.fraction, run.subset_seed),
        **test_scores,
        "num_classes": run_dir.read_config(folder).num_classes,
        **choice,
        "epochs": run.epochs,
        "batch_size": run.batch_size,
        "weight_decay": config.weight_decay,
        "recipe": run.recipe,
        "seed": config.seed,
    }
    results_file.save_result(folder / "eval" / "finetune.json", result)
    return folder, result


def held_out(dataset: Dataset, fraction: float, seed: int) -> Source:
    """Return the images of a fraction of the labels that are not in the 80% to train on."""
    part = subsets.fraction(dataset.train, fraction, seed)
    trained = subsets.fraction(dataset.train, TRAIN_SHARE * fraction, seed)
    rows = np.setdiff1d(part.indices, trained.indices)
    rows = rows[np.asarray(dataset.train.labels)[rows] >= 0]
    if not len(rows):
        raise UserError(
            f"fraction={fraction:g}: no class has enough images to hold one out: give one of the "
            "learning_rates="
        )
    return subsets.Subset(dataset.train, rows, "held out")


def best_rate(rates: Sequence[float], valid_top1: Sequence[float | None]) -> float:
    """Return the rate of the best accuracy, the smallest of equals. A diverged rate has None."""
    pairs = zip(rates, valid_top1, strict=True)
    scored = [(-top1, rate) for rate, top1 in pairs if top1 is not None]
    if not scored:
        tried = " ".join(f"{rate:g}" for rate in rates)
        raise UserError(f"learning_rates={tried}: training diverged at each; give lower ones")
    return min(scored)[1]


def score(folder: Path, source: Source, devices: int | None = None) -> dict[str, Any]:
    """Return the scores of a run's classifier on labelled images."""
    encoder = run_dir.load_encoder(folder)
    local = distributed.local_devices(devices)
    logits, labels = split_features(encoder, source, ["logits"], local).features["logits"]
    known = labels >= 0
    if not known.any():
        raise UserError(f"no image of {source.origin} has a label")
    if not np.isfinite(logits[known]).all():
        where = f"step {encoder.step} of {folder}"
        raise Diverged(f"the run diverged: logits that are not finite at {where}", ADVICE)
    num_classes = encoder.config.num_classes
    ranked = np.argsort(-logits[known], axis=1, kind="stable")[:, : min(5, num_classes)]
    seed = encoder.config.seed
    values = classification_scores(ranked, labels[known], num_classes=num_classes, seed=seed)
    return {"step": encoder.step, **values, "n": int(known.sum())}


def _base(config: FinetuneConfig) -> tuple[PretrainConfig, Dataset]:
    """Return the run's config without its optimizer, and the data with all their labels."""
    folder = run_dir.find(config.run, config.runs_dir)
    run_dir.require_images(folder, "finetune")
    source = run_dir.read_config(folder)
    if source.network is not None:
        raise UserError(
            f"finetune is for the networks of this package, and {folder} has {source.label}"
        )
    data_config = _data_config(config, source)
    dataset = data.load(data_config)
    if not dataset.class_names:
        raise UserError(f"the images of {dataset.origin} have no labels to fine-tune on")
    run_dir.test_split(dataset)
    model = section(source, ModelConfig).replace(
        classifier_layer=config.layer or models.before_head(source.model),
        # The result does not depend on the number of devices. A queue is not used.
        batch_norm="sync",
        bn_groups=ModelConfig.bn_groups,
    )
    base = PretrainConfig(
        name=config.name or f"{folder.resolve().name}-finetune-{config.fraction:g}",
        runs_dir=config.runs_dir,
        seed=config.seed,
        init_from=str(folder.resolve()),
        init_step=config.step,
        contrastive_tau=source.contrastive_tau,
        align_weight=0.0,
        align_alpha=source.align_alpha,
        uniform_weight=0.0,
        uniform_t=source.uniform_t,
        supervised_weight=1.0,
        **vars(data_config),
        **vars(model),
        **vars(section(config, RuntimeConfig)),
        **vars(section(config, EvaluateConfig)),
    )
    return base, dataset


def _data_config(config: FinetuneConfig, source: PretrainConfig) -> DataConfig:
    """Return the data of the encoder's run, with all labels and the recipe to fine-tune with."""
    recipe = source.recipe
    if not recipe.endswith(CROP_FLIP):
        recipe += CROP_FLIP
    moved = run_dir.moved(section(source, DataConfig), config.data_dir)
    return moved.replace(recipe=config.recipe or recipe, augment=None, fraction=1.0)


def _with_optimizer(
    config: FinetuneConfig, base: PretrainConfig, dataset: Dataset, rate: float, share: float = 1.0
) -> PretrainConfig:
    """Return the config of a run on a share of the fraction of the labels."""
    fraction = share * config.fraction
    count = _count(dataset, fraction, base.subset_seed)
    if count < 2:
        raise UserError(f"fraction={config.fraction:g}: {count} labelled image, two are needed")
    return base.replace(
        fraction=fraction,
        epochs=config.epochs or (60 if config.fraction <= 0.01 else 30),
        batch_size=config.batch_size or 2 ** (min(256, count).bit_length() - 1),
        learning_rate=rate,
        schedule="cosine",
        nesterov=True,
        weight_decay=config.weight_decay,
    )


def _choose_rate(
    config: FinetuneConfig, base: PretrainConfig, dataset: Dataset, command: str
) -> dict[str, Any]:
    """Choose the learning rate, as recorded in the result."""
    rates = config.learning_rates
    choice: dict[str, Any] = {"chosen": {"learning_rate": rates[0]}, "learning_rates": list(rates)}
    if len(rates) == 1:
        return choice | {"valid_top1": None, "n_valid": 0}
    valid = held_out(dataset, config.fraction, base.subset_seed)
    if len(valid) < ENOUGH:
        logger.warning("learning_rates=: %d held-out images: a noisy choice", len(valid))
    folder = run_dir.folder_of(base) / "learning_rates"
    valid_top1: list[float | None] = []
    for rate in rates:
        candidate = base.replace(name=str(rate), runs_dir=str(folder))
        run = _with_optimizer(config, candidate, dataset, rate, TRAIN_SHARE)
        try:
            trained = training.train(run, command)
            valid_top1.append(score(trained, valid, config.devices)["top1"])
        except Diverged as error:
            logger.warning("learning_rates=: %g is left out: %s", rate, error.reason)
            valid_top1.append(None)
    chosen = {"learning_rate": best_rate(rates, valid_top1)}
    return choice | {"chosen": chosen, "valid_top1": valid_top1, "n_valid": len(valid)}


def _count(dataset: Dataset, fraction: float, seed: int) -> int:
    """Return the number of labelled images of a fraction."""
    part = subsets.fraction(dataset.train, fraction, seed)
    return int(np.sum(np.asarray(part.labels) >= 0))
