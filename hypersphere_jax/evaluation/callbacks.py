"""Evaluation during training: the current encoder on a part of the data."""

import logging
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from hypersphere_jax.configs import EvaluateConfig, ObjectiveConfig, PretrainConfig, require
from hypersphere_jax.data import Dataset, Source, subsets
from hypersphere_jax.evaluation.features import Extractor, concatenate_layers
from hypersphere_jax.evaluation.knn import WEIGHTED_KNN, knn_probe
from hypersphere_jax.evaluation.linear import linear_probe
from hypersphere_jax.evaluation.metrics import rankme
from hypersphere_jax.losses import align_loss, uniform_loss
from hypersphere_jax.theory import uniformity_optimum
from hypersphere_jax.training import distributed

logger = logging.getLogger("hypersphere_jax")

# Seed of the images and of their two views, the same in every run, so that runs can be compared.
CALLBACK_SEED = 0
LABELLED_EVALUATORS = ("knn", "knn_weighted", "linear", "classifier")
# Features have collapsed if their uniformity is less than this share of the optimum, or RankMe is
# less than this share of its maximum, or than `COLLAPSED_RANK` directions.
COLLAPSED_SHARE = 1 / 32
COLLAPSED_RANK = 1.5
LARGEST_T = 1e6  # largest scale that `uniformity_optimum` takes

_align = jax.jit(align_loss)
_uniform = jax.jit(uniform_loss)


class EvaluatorInputs(NamedTuple):
    """Features of the evaluated images."""

    features: dict[str, np.ndarray]  # [n, d] of each layer
    pairs: list[np.ndarray]  # outputs [n, dim] of two views, if alignment is evaluated
    labels: np.ndarray  # [n]
    bank: int  # the first rows, which are searched and fitted; the others are classified
    num_classes: int
    config: EvaluateConfig
    objective: ObjectiveConfig


def _evaluate(name: str, inputs: EvaluatorInputs) -> dict[str, float]:
    """Return the values of an evaluator, accuracies in percent."""
    features, pairs, labels, bank, num_classes, config, objective = inputs
    if name == "align_uniform":
        align = _align(*pairs, objective.align_alpha)
        uniform = _uniform(features["output"], objective.uniform_t)
        return {"align": float(align), "uniform": float(uniform)}
    if name == "rankme":
        if not features["output"].any():  # the worst collapse
            return {"rankme": 0.0}
        return {"rankme": rankme(features["output"])}
    if name == "classifier":
        is_correct = features["logits"].argmax(axis=1) == labels
        return {"classifier_top1": 100 * float(np.mean(is_correct[bank:]))}
    x = features[config.eval_layer]
    split = (x[:bank], labels[:bank], x[bank:], labels[bank:])
    if name == "linear":
        result = linear_probe(*split, num_classes=num_classes)
    elif name == "knn_weighted":
        result = knn_probe(*split, num_classes=num_classes, **WEIGHTED_KNN)
    else:
        votes = {"vote": config.eval_vote, "temperature": config.eval_temperature}
        result = knn_probe(*split, num_classes=num_classes, k=config.eval_k, **votes)
    return {f"{name}_top1": result["top1"]}


def evaluation_callback(
    config: PretrainConfig, dataset: Dataset, apply: Callable, devices: Sequence[jax.Device]
) -> Callable[..., dict[str, float]]:
    """Return the evaluation of an encoder, on images that are read once.

    Alignment is over two random views of each image, the same each time; all other values are of
    the images without augmentation. Each process may evaluate the same images.

    Args:
      config: config of the run, with all sizes filled in.
      dataset: its data.
      apply: function of the network, see `models.create`.
      devices: local devices.

    Returns:
      `evaluate(params, stats, objective=config)` -> values by name, such as `eval/knn_top1`, with
      alpha and t of the objective. It raises FloatingPointError for features that are not finite.

    Raises:
      UserError: for images without labels, fewer images than neighbours, or a supervised run whose
        training images would be classified.
    """
    bank, queries = split_images(config, dataset)
    source = subsets.Concatenated([bank, queries])
    layers = {"align_uniform": "output", "rankme": "output", "classifier": "logits"}
    pools = {layers.get(name, config.eval_layer): "none" for name in config.evaluators}
    images = Extractor(apply, config, source, devices, pools)
    batches = list(images.read())
    output = {"output": "none"}
    pairs = Extractor(apply, config, source, devices, output, "pairs", CALLBACK_SEED)
    pair_batches = list(pairs.read()) if "align_uniform" in config.evaluators else []
    readable_bank = int(np.sum(np.concatenate(images.indices) < len(bank)))

    def evaluate(params: Any, stats: Any, objective: ObjectiveConfig = config) -> dict[str, float]:
        (features,), labels = concatenate_layers(images.forward(params, stats, batches))
        views: list[np.ndarray] = []
        if pair_batches:
            layers, _ = concatenate_layers(pairs.forward(params, stats, pair_batches))
            views = [layer["output"] for layer in layers]
        for x in (*features.values(), *views):
            if not np.isfinite(x).all():
                raise FloatingPointError("features that are not finite")
        options = (readable_bank, len(dataset.class_names), config, objective)
        inputs = EvaluatorInputs(features, views, labels, *options)
        values: dict[str, float] = {}
        for name in config.evaluators:
            values |= _evaluate(name, inputs)
        if distributed.is_first():
            _warn_if_collapsed(values, len(labels), config.dim, objective)
        return {f"eval/{name}": round(value, 6) for name, value in values.items()}

    return evaluate


def _warn_if_collapsed(
    values: dict[str, float], n: int, d: int, objective: ObjectiveConfig
) -> None:
    """Log a warning if uniformity or RankMe says that features `[n, d]` have collapsed."""
    signs = []
    highest = COLLAPSED_SHARE * uniformity_optimum(d, min(objective.uniform_t, LARGEST_T))
    if values.get("uniform", -math.inf) > highest:
        signs.append(f"uniformity {values['uniform']:.3g} is above {highest:.3g}")
    lowest = max(COLLAPSED_RANK, COLLAPSED_SHARE * min(n, d))
    if objective.uses_labels:
        lowest = COLLAPSED_RANK  # classes need few directions
    if values.get("rankme", math.inf) < lowest:
        signs.append(f"RankMe {values['rankme']:.3g} is below {lowest:.3g}")
    if signs:
        logger.warning(
            "the features have collapsed: %s; lower the learning rate, or give uniformity (or the "
            "negatives) more weight",
            " and ".join(signs),
        )


def split_images(config: PretrainConfig, dataset: Dataset) -> tuple[Source, Source]:
    """Return the images to search and fit on, and the images to classify.

    A run never trains on the labels of images that it classifies.

    Raises:
      UserError: for an evaluator that the run, its images or their number do not allow.
    """
    names = config.evaluators
    has_classifier = config.num_classes > 0
    require(
        "classifier" not in names or has_classifier,
        "evaluators=classifier: this run has no classifier; supervised_weight= adds one",
    )
    labelled = [name for name in names if name in LABELLED_EVALUATORS]
    require(
        bool(dataset.class_names) or not labelled,
        f"evaluators={' '.join(labelled)}: the images of {dataset.origin} have no labels; use "
        "evaluators=align_uniform or rankme",
    )
    is_supervised = bool(labelled) and config.uses_labels
    default = "test" if is_supervised and config.folds > 1 else "train"
    split = config.eval_split or default
    require(
        split == "test" or not is_supervised,
        "eval_split=train: this run trains on the training labels; use eval_split=test, or "
        "pretrain with folds=, which holds out a part of the images",
    )
    count = sys.maxsize if config.eval_images == "all" else config.eval_images
    if split == "train":
        drawn = subsets.sample(dataset.train, count, CALLBACK_SEED)
        bank, queries = subsets.fold(drawn, 2, 0, CALLBACK_SEED)
    else:
        message = f"eval_split=test: {dataset.origin} has no test split; folds= makes one"
        require(dataset.test is not None, message)
        bank = subsets.sample(dataset.train, count // 2, CALLBACK_SEED)
        queries = subsets.sample(dataset.test, count // 2, CALLBACK_SEED)
    for name, k in (("knn", config.eval_k), ("knn_weighted", WEIGHTED_KNN["k"])):
        message = f"evaluators={name} searches {k} images or more, and there are {len(bank)}"
        require(name not in names or k <= len(bank), f"{message}; raise eval_images=")
    return bank, queries
