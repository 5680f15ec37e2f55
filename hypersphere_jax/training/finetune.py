"""The verb `finetune`: a classifier and the whole encoder of a run, on all labels or a part.

It is a training run as any other, whose config is made here from that of the run that gives the
encoder; then the classifier is scored on the test split, once.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
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
    require,
    section,
)
from hypersphere_jax.data import Dataset, Source, subsets
from hypersphere_jax.evaluate import results_file
from hypersphere_jax.evaluate.features import split_features
from hypersphere_jax.evaluate.scores import classification_scores
from hypersphere_jax.training import distributed, run_dir
from hypersphere_jax.training import train as training
from hypersphere_jax.utils.files import read_kept, write_json

logger = logging.getLogger("hypersphere_jax")

FITTING = 0.8  # of the labels, to train on where the others choose the learning rate
ENOUGH = 100  # held-out images for a choice without a warning
ADVICE = "choose another name= with lower learning_rates="


@distributed.isolated()
def run_finetune(config: FinetuneConfig, command: str = "") -> tuple[Path, dict[str, Any] | None]:
    """Trains, or continues to, and scores the classifier.

    Of several learning rates each has a run of its own in the folder `learning_rates` of the run,
    on 80% of the labels of each class, and is scored on the others. A rate that diverged is not
    chosen, nor tried again by the same command; of equals the smallest is.

    By default as SimCLR is fine-tuned (Chen et al. 2020, B.5; epochs as in SimCLR v2, B): Nesterov
    momentum 0.9, learning rate 0.05 for 256 images, no weight decay, crop and flip alone. The paper
    names no schedule: here it is a cosine. And here a batch has two augmentations of each image.

    Args:
      config: of the fine-tuning.
      command: what the user typed, for the line that says how to continue.

    Returns:
      The run's folder, and the result as in `eval/finetune.json`; None in processes but the first.

    Raises:
      UserError: as `train`; for data without labels or a test split; if all rates diverged.
    """
    distributed.initialize(config)
    with distributed.exit_on_error():
        base, whole = _base(config)
    rates, valid, valid_top1 = config.learning_rates, None, None
    if len(rates) > 1:
        valid = held_out(whole, config.fraction, base.subset_seed)
        if len(valid) < ENOUGH:
            logger.warning("learning_rates=: %d held-out images: a noisy choice", len(valid))
        valid_top1 = [_valid_top1(config, base, whole, rate, valid, command) for rate in rates]
    chosen = rates[0] if valid_top1 is None else best_rate(rates, valid_top1)
    run = _with_optimizer(config, base, whole, chosen)
    try:
        folder = training.train(run, command)
        if not distributed.is_first():
            return folder, None
        test_scores = score(folder, run_dir.test_split(whole), config.devices)
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
        "labels": _count(whole, config.fraction, run.subset_seed),
        **test_scores,
        "num_classes": run_dir.read_config(folder).num_classes,
        "chosen": {"learning_rate": chosen},
        "learning_rates": list(rates),
        "valid_top1": valid_top1,
        "n_valid": 0 if valid is None else len(valid),
        "epochs": run.epochs,
        "batch_size": run.batch_size,
        "weight_decay": config.weight_decay,
        "recipe": run.recipe,
        "seed": config.seed,
    }
    results_file.save_result(folder / "eval" / "finetune.json", result)
    return folder, result


def recorded(folder: Path) -> FinetuneConfig:
    """The options of the fine-tuning that made a run.

    Raises:
      UserError: for a run that began from no other.
    """
    run = run_dir.read_config(folder)
    require(
        run.init_from is not None,
        f"{folder} was made by `pretrain`, which continues it: name the run to fine-tune, and "
        "another name=",
    )
    tried = [float(file.parent.name) for file in folder.glob("learning_rates/*/config.json")]
    return FinetuneConfig(
        run=run.init_from or "",
        step=run.init_step,
        name=run.name,
        runs_dir=run.runs_dir,
        fraction=run.fraction,
        layer=run.classifier_layer,
        learning_rates=tuple(sorted(tried)) or (run.learning_rate,),
        epochs=run.epochs,
        batch_size=run.batch_size,
        weight_decay=run.weight_decay,
        recipe=run.recipe,
        data_dir=run.data if Path(run.data).is_absolute() else run.data_dir,
        seed=run.seed,
        **vars(section(run, RuntimeConfig)),
        **vars(section(run, EvaluateConfig)),
    )


def held_out(dataset: Dataset, fraction: float, seed: int) -> Source:
    """Of a fraction of the labels, those that are not among the 80% to train on."""
    shares = fraction, FITTING * fraction
    part, fitting = (subsets.fraction(dataset.train, share, seed) for share in shares)
    rows = np.setdiff1d(part.indices, fitting.indices)
    rows = rows[np.asarray(dataset.train.labels)[rows] >= 0]
    require(
        len(rows) > 0,
        f"fraction={fraction:g}: no class has enough images to hold one out: give one of the "
        "learning_rates=",
    )
    return subsets.Subset(dataset.train, rows, "held out")


def best_rate(rates: Sequence[float], valid_top1: Sequence[float | None]) -> float:
    """The rate with the best accuracy, the smallest of equals; UserError if all diverged (None)."""
    pairs = zip(rates, valid_top1, strict=True)
    scored = [(-top1, rate) for rate, top1 in pairs if top1 is not None]
    tried = " ".join(f"{rate:g}" for rate in rates)
    require(bool(scored), f"learning_rates={tried}: training diverged at each; give lower ones")
    return min(scored)[1]


def score(folder: Path, source: Source, devices: int | None = None) -> dict[str, Any]:
    """Scores of a run's classifier on labelled images; `Diverged` for NaN or infinite logits."""
    encoder, local = run_dir.load_encoder(folder), distributed.local_devices(devices)
    logits, labels = split_features(encoder, source, ["logits"], local).features["logits"]
    known = labels >= 0
    require(known.any(), f"no image of {source.origin} has a label")
    if not np.isfinite(logits[known]).all():
        where = f"step {encoder.step} of {folder}"
        raise Diverged(f"the run diverged: logits that are not finite at {where}", ADVICE)
    num_classes = encoder.config.num_classes
    ranked = np.argsort(-logits[known], axis=1, kind="stable")[:, : min(5, num_classes)]
    seed = encoder.config.seed
    values = classification_scores(ranked, labels[known], num_classes=num_classes, seed=seed)
    return {"step": encoder.step, **values, "n": int(known.sum())}


def _base(config: FinetuneConfig) -> tuple[PretrainConfig, Dataset]:
    """The run but for its optimizer, and the data with all their labels."""
    folder = run_dir.find(config.run, config.runs_dir)
    run_dir.require_images(folder, "finetune")
    source = run_dir.read_config(folder)
    label = source.label
    require(
        source.network is None,
        f"finetune is for the networks of this package, and {folder} has {label}",
    )
    recipe = source.recipe
    if config.recipe is None and not recipe.endswith(CROP_FLIP):
        recipe += CROP_FLIP
    moved = run_dir.moved(section(source, DataConfig), config.data_dir)
    data_config = moved.replace(recipe=config.recipe or recipe, augment=None, fraction=1.0)
    dataset = data.load(data_config)
    labelled = bool(dataset.class_names)
    require(labelled, f"the images of {dataset.origin} have no labels to fine-tune on")
    run_dir.test_split(dataset)
    model = section(source, ModelConfig).replace(
        classifier_layer=config.layer or models.before_head(source.model),
        # The number of devices shall not shape the run, and there are no keys to keep apart.
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


def _with_optimizer(
    config: FinetuneConfig, base: PretrainConfig, whole: Dataset, rate: float, share: float = 1.0
) -> PretrainConfig:
    """The run on a share of the fraction of the labels."""
    fraction = share * config.fraction
    count = _count(whole, fraction, base.subset_seed)
    require(count >= 2, f"fraction={config.fraction:g}: {count} labelled image, two are needed")
    return base.replace(
        fraction=fraction,
        epochs=config.epochs or (60 if config.fraction <= 0.01 else 30),
        batch_size=config.batch_size or 2 ** (min(256, count).bit_length() - 1),
        learning_rate=rate,
        schedule="cosine",
        nesterov=True,
        weight_decay=config.weight_decay,
    )


def _valid_top1(
    config: FinetuneConfig,
    base: PretrainConfig,
    whole: Dataset,
    rate: float,
    valid: Source,
    command,
) -> float | None:
    """Accuracy of one learning rate on the held-out images; None where training diverged."""
    folder = run_dir.folder_of(base) / "learning_rates"
    placed = replace(base, name=str(rate), runs_dir=str(folder))
    run = _with_optimizer(config, placed, whole, rate, FITTING)
    file = run_dir.folder_of(run) / "diverged.json"
    run_of_record = {"config": run_dir.training_config(run), "data_digest": whole.digest()}
    record = read_kept(file, ("reason",)) or {}
    if record | run_of_record != record:
        try:
            folder = training.train(run, command)
            return score(folder, valid, config.devices)["top1"]
        except Diverged as error:
            record = run_of_record | {"reason": error.reason}
            write_json(file, record)
    logger.warning("learning_rates=: %g is left out: %s", rate, record["reason"])
    return None


def _count(dataset: Dataset, fraction: float, seed: int) -> int:
    """Labelled images of a fraction."""
    part = subsets.fraction(dataset.train, fraction, seed)
    return int(np.sum(np.asarray(part.labels) >= 0))
