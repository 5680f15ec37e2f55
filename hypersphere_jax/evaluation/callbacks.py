"""Evaluation during training: the current encoder on a part of the data."""

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from hypersphere_jax import models
from hypersphere_jax.configs import ObjectiveConfig, PretrainConfig, require
from hypersphere_jax.data import Dataset, Source, subsets
from hypersphere_jax.evaluation.features import Extractor, concatenate_layers
from hypersphere_jax.evaluation.knn import KNN_PROTOCOLS, knn_probe
from hypersphere_jax.evaluation.linear import linear_probe
from hypersphere_jax.losses import align_loss, uniform_loss
from hypersphere_jax.training.objectives import uses_labels

# Seed of the images and of their two views, the same in every run, so that runs can be compared.
CALLBACK_SEED = 0
PROBES: dict[str, Callable] = {
    "knn": functools.partial(knn_probe, **KNN_PROTOCOLS["knn"]),
    "knn_weighted": functools.partial(knn_probe, **KNN_PROTOCOLS["knn_weighted"]),
    "linear": linear_probe,
}
LABELLED_EVALUATORS = (*PROBES, "classifier")

_align = jax.jit(align_loss)
_uniform = jax.jit(uniform_loss)


class EvaluatorInputs(NamedTuple):
    """Features of the evaluated images."""

    features: dict[str, np.ndarray]  # [n, d] of each layer
    pairs: list[np.ndarray]  # outputs [n, dim] of two views, if alignment is evaluated
    labels: np.ndarray  # [n]
    bank: int  # the first rows, which are searched and fitted; the others are classified
    num_classes: int
    layer: str  # layer to classify
    objective: ObjectiveConfig


def _probe(name: str, inputs: EvaluatorInputs) -> dict[str, float]:
    x = inputs.features[inputs.layer]
    y = inputs.labels
    n = inputs.bank
    result = PROBES[name](x[:n], y[:n], x[n:], y[n:], num_classes=inputs.num_classes)
    return {f"{name}_top1": result["top1"]}


def _align_uniform(inputs: EvaluatorInputs) -> dict[str, float]:
    objective = inputs.objective
    align = _align(*inputs.pairs, objective.align_alpha)
    uniform = _uniform(inputs.features["output"], objective.uniform_t)
    return {"align": float(align), "uniform": float(uniform)}


def _classifier(inputs: EvaluatorInputs) -> dict[str, float]:
    predicted = inputs.features["logits"][inputs.bank :].argmax(axis=1)
    return {"classifier_top1": 100 * float(np.mean(predicted == inputs.labels[inputs.bank :]))}


# Functions from features to values, accuracies in percent.
EVALUATORS: dict[str, Callable[[EvaluatorInputs], dict[str, float]]] = {
    **{name: functools.partial(_probe, name) for name in PROBES},
    "align_uniform": _align_uniform,
    "classifier": _classifier,
}


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
      UserError: for a layer that the network lacks, images without labels, fewer images than
        neighbours, or a supervised run whose training images would be classified.
    """
    models.check_layer(config, config.eval_layer, "eval_layer=")
    bank, queries = split_images(config, dataset)
    source = subsets.Concatenated([bank, queries])
    layers = dict.fromkeys(PROBES, config.eval_layer)
    layers |= {"align_uniform": "output", "classifier": "logits"}
    pools = {layers[name]: "none" for name in config.evaluators}
    images = Extractor(apply, config, source, devices, pools)
    batches = list(images.read())
    output = {"output": "none"}
    pairs = Extractor(apply, config, source, devices, output, "pairs", CALLBACK_SEED)
    pair_batches = list(pairs.read()) if "align_uniform" in config.evaluators else []
    indices = np.concatenate([batch.indices for batch in batches])
    readable_bank = int(np.sum((indices >= 0) & (indices < len(bank))))

    def evaluate(params: Any, stats: Any, objective: ObjectiveConfig = config) -> dict[str, float]:
        (features,), labels = concatenate_layers(images.forward(params, stats, batches))
        views: list[np.ndarray] = []
        if pair_batches:
            layers, _ = concatenate_layers(pairs.forward(params, stats, pair_batches))
            views = [layer["output"] for layer in layers]
        for x in (*features.values(), *views):
            if not np.isfinite(x).all():
                raise FloatingPointError("features that are not finite")
        options = (readable_bank, len(dataset.class_names), config.eval_layer, objective)
        inputs = EvaluatorInputs(features, views, labels, *options)
        values: dict[str, float] = {}
        for name in config.evaluators:
            values |= EVALUATORS[name](inputs)
        return {f"eval/{name}": round(value, 6) for name, value in values.items()}

    return evaluate


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
        "align_uniform only",
    )
    is_supervised = bool(labelled) and uses_labels(config)
    default = "test" if is_supervised and config.folds > 1 else "train"
    split = config.eval_split or default
    require(
        split == "test" or not is_supervised,
        "eval_split=train: this run trains on the training labels; use eval_split=test, or "
        "pretrain with folds=, which holds out a part of the images",
    )
    count = sys.maxsize if config.eval_images == "all" else config.eval_images
    if split == "train":
        bank, queries = subsets.fold(_sample(dataset.train, count), 2, 0, CALLBACK_SEED)
    else:
        message = f"eval_split=test: {dataset.origin} has no test split; folds= makes one"
        require(dataset.test is not None, message)
        bank = _sample(dataset.train, count // 2)
        queries = _sample(dataset.test, count // 2)
    k = KNN_PROTOCOLS["knn_weighted"]["k"]
    require(
        "knn_weighted" not in names or len(bank) >= k,
        f"evaluators=knn_weighted searches {k} images or more, and there are {len(bank)}; raise "
        "eval_images=, or use knn",
    )
    return bank, queries


def _sample(source: Source, count: int) -> Source:
    """Return about `count` images, the same share of each class; labelled images if possible."""
    labels = np.asarray(source.labels)
    if (labels >= 0).any() and (labels < 0).any():
        source = subsets.Subset(source, np.flatnonzero(labels >= 0), "labelled images")
    return subsets.fraction(source, min(1.0, count / len(source)), CALLBACK_SEED)
