"""Evaluation while a run trains: on a part of the data, of the encoder as it is at the moment."""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from hypersphere_jax import models
from hypersphere_jax.configs import ObjectiveConfig, PretrainConfig, require
from hypersphere_jax.data import Dataset, Source, subsets
from hypersphere_jax.evaluate import knn, linear
from hypersphere_jax.evaluate.features import joined, make_forward
from hypersphere_jax.losses import align_loss, uniform_loss
from hypersphere_jax.training.objectives import uses_labels

# Of the images and of their two views: the same ones in every run, so that runs compare.
SEED = 0
LABELLED = ("knn", "knn_weighted", "linear", "classifier")


class EvaluatorInputs(NamedTuple):
    features: dict[str, np.ndarray]  # of each layer [n, d]
    pairs: list[np.ndarray]  # two views' outputs [n, dim], where alignment is asked for
    labels: np.ndarray
    bank: int  # the number of rows, the first ones, to search and fit on; the others are classified
    num_classes: int
    layer: str  # that is classified
    objective: ObjectiveConfig


def _probed(
    probe: Callable, name: str, inputs: EvaluatorInputs, **options: Any
) -> dict[str, float]:
    x, y, n = inputs.features[inputs.layer], inputs.labels, inputs.bank
    result = probe(x[:n], y[:n], x[n:], y[n:], num_classes=inputs.num_classes, **options)
    return {f"{name}_top1": result["top1"]}


def _neighbours(protocol: str, inputs: EvaluatorInputs) -> dict[str, float]:
    return _probed(knn.knn_probe, protocol, inputs, **knn.PROTOCOLS[protocol])


def _align_uniform(inputs: EvaluatorInputs) -> dict[str, float]:
    objective = inputs.objective
    return {
        "align": float(_align(*inputs.pairs, objective.align_alpha)),
        "uniform": float(_uniform(inputs.features["output"], objective.uniform_t)),
    }


def _classifier(inputs: EvaluatorInputs) -> dict[str, float]:
    best = inputs.features["logits"][inputs.bank :].argmax(axis=1)
    return {"classifier_top1": 100 * float(np.mean(best == inputs.labels[inputs.bank :]))}


_align, _uniform = jax.jit(align_loss), jax.jit(uniform_loss)

EVALUATORS: dict[str, Callable[[EvaluatorInputs], dict[str, float]]] = {
    "knn": partial(_neighbours, "knn"),
    "knn_weighted": partial(_neighbours, "knn_weighted"),
    "linear": partial(_probed, linear.linear_probe, "linear"),
    "align_uniform": _align_uniform,
    "classifier": _classifier,
}


def make_evaluation(
    config: PretrainConfig, dataset: Dataset, apply: Callable, devices: Sequence[jax.Device]
) -> Callable[..., dict[str, float]]:
    """Makes the evaluation of an encoder, on images that are read here once.

    Alignment is over two random views of each image, the same ones each time; all else is of the
    images without augmentation. Accuracies are in percent. Each process may evaluate the same.

    Returns:
      `evaluate(params, stats, objective=config)` -> values by name, such as
      `eval/knn_top1`; alpha and t are the objective's. It raises FloatingPointError when features
      are not finite.

    Raises:
      UserError: for a layer that the network lacks, images without the needed labels, fewer images
        than neighbours, or a supervised run whose own training images would be classified.
    """
    evaluators, layer = config.evaluators, config.eval_layer
    models.check_layer(config, layer, "eval_layer=")
    require(
        "classifier" not in evaluators or config.num_classes > 0,
        "evaluators=classifier: the run has none; supervised_weight= makes one",
    )
    bank, queries = _parts(config, dataset)
    both = subsets.Concatenated([bank, queries])
    if "knn_weighted" in evaluators:
        k = knn.PROTOCOLS["knn_weighted"]["k"]
        require(
            len(bank) >= k,
            f"evaluators=knn_weighted needs {k} images to search, and there are {len(bank)}; "
            "raise eval_images=, or use knn",
        )
    needs = dict.fromkeys(("knn", "knn_weighted", "linear"), layer)
    needs |= {"align_uniform": "output", "classifier": "logits"}
    pools = {needs[name]: "none" for name in evaluators}
    read, forward = make_forward(apply, config, both, devices, pools)
    batches, pair_batches = list(read()), []
    if "align_uniform" in evaluators:
        output = {"output": "none"}
        read, forward_pairs = make_forward(apply, config, both, devices, output, "pairs", SEED)
        pair_batches = list(read())
    indices = np.concatenate([batch.indices for batch in batches])
    readable_bank = int(np.sum((indices >= 0) & (indices < len(bank))))

    def evaluate(params, stats, objective=config):
        (features,), labels = joined(forward(params, stats, batches))
        pairs = []
        if pair_batches:
            views, _ = joined(forward_pairs(params, stats, pair_batches))
            pairs = [view["output"] for view in views]
        for x in (*features.values(), *pairs):
            if not np.isfinite(x).all():
                raise FloatingPointError("features that are not finite")
        classes = len(dataset.class_names)
        inputs = EvaluatorInputs(features, pairs, labels, readable_bank, classes, layer, objective)
        values: dict[str, float] = {}
        for name in evaluators:
            values |= EVALUATORS[name](inputs)
        return {f"eval/{name}": round(value, 6) for name, value in values.items()}

    return evaluate


def _parts(config: PretrainConfig, dataset: Dataset) -> tuple[Source, Source]:
    """Return the images to search and fit on, and those to classify.

    A run never trains on the labels of images that it classifies.
    """
    options = config
    count = sys.maxsize if options.eval_images == "all" else options.eval_images
    labelled = [name for name in options.evaluators if name in LABELLED]
    supervised = bool(labelled) and uses_labels(config)
    split = options.eval_split or ("test" if supervised and config.folds > 1 else "train")
    require(
        split == "test" or not supervised,
        "eval_split=: this run trains on the training labels; take eval_split=test, or pretrain "
        "with folds=, which holds a part of the images out",
    )
    require(
        bool(dataset.class_names) or not labelled,
        f"evaluators={' '.join(labelled)}: the images of {dataset.origin} have no labels; take "
        "align_uniform alone",
    )
    if split == "train":
        return subsets.fold(_sampled(dataset.train, count), 2, 0, SEED)
    require(
        dataset.test is not None,
        f"eval_split=test: {dataset.origin} has no test split; folds= makes one",
    )
    return _sampled(dataset.train, count // 2), _sampled(dataset.test, count // 2)


def _sampled(source: Source, count: int) -> Source:
    """About so many images, the same share of each class; of the labelled ones, if there are."""
    labels = np.asarray(source.labels)
    if (labels >= 0).any() and (labels < 0).any():
        source = subsets.Subset(source, np.flatnonzero(labels >= 0), "labelled images")
    return subsets.fraction(source, min(1.0, count / len(source)), SEED)
