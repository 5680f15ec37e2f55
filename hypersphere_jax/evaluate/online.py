"""Evaluation while a run trains: on a part of the data, of the encoder as it is at the moment."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hypersphere_jax import augment, models
from hypersphere_jax.config import PretrainConfig, require
from hypersphere_jax.data import Dataset, Source, subsets
from hypersphere_jax.data.batches import eval_batches, two_crops
from hypersphere_jax.evaluate import knn, linear
from hypersphere_jax.evaluate.forward import as_seen, batch_size, make_mapped, on_host, one_crop
from hypersphere_jax.losses import align_loss, uniform_loss
from hypersphere_jax.train import sharding

# Of the images and of their two views: the same ones in every run, so that runs compare.
SEED = 0
LABELLED = ("knn", "linear", "classifier")


class Held(NamedTuple):
    """What the evaluators see; the first `bank` rows are searched and fitted on."""

    config: PretrainConfig
    features: dict[str, np.ndarray]  # of each layer [n, d]
    pairs: dict[str, np.ndarray]  # two views' outputs [n, dim], where alignment is asked for
    labels: np.ndarray
    num_classes: int
    bank: int


class Images(NamedTuple):
    """Images that could be read, on the host."""

    images: np.ndarray
    labels: np.ndarray
    numbers: np.ndarray  # in their source


def _classified(function: Callable, name: str, held: Held) -> dict[str, float]:
    x, y, bank = held.features[held.config.evaluate.eval_layer], held.labels, held.bank
    result = function(x[:bank], y[:bank], x[bank:], y[bank:], num_classes=held.num_classes)
    return {f"{name}_top1": result["top1"]}


def _align_uniform(held: Held) -> dict[str, float]:
    objective = held.config.objective
    return {
        "align": float(_align(held.pairs["view1"], held.pairs["view2"], objective.align_alpha)),
        "uniform": float(_uniform(held.features["output"], objective.uniform_t)),
    }


def _classifier(held: Held) -> dict[str, float]:
    best = held.features["logits"][held.bank :].argmax(axis=1)
    return {"classifier_top1": 100 * float(np.mean(best == held.labels[held.bank :]))}


_align, _uniform = jax.jit(align_loss), jax.jit(uniform_loss)

EVALUATORS: dict[str, Callable[[Held], dict[str, float]]] = {
    "knn": partial(_classified, knn.knn_probe, "knn"),
    "linear": partial(_classified, linear.linear_probe, "linear"),
    "align_uniform": _align_uniform,
    "classifier": _classifier,
}


def make_evaluation(
    config: PretrainConfig, dataset: Dataset, apply: Callable, devices: Sequence[jax.Device]
) -> Callable[..., dict[str, float]]:
    """What evaluates an encoder again and again, on images that are read here once.

    Alignment is over two random views of each image, the same ones each time; all else is of the
    images as they are. Accuracies are in percent.

    Args:
      config: of the run, with its sizes.
      dataset: of the run.
      apply: of the network, see `models.create`.
      devices: of this host. Nothing here talks to other hosts: each may do the same.

    Returns:
      `evaluate(params, stats, objective=config.objective)` -> values by name, such as
      `eval/knn_top1`. Another objective, of a run that trains together with this one, gives its
      alpha and t. It raises FloatingPointError when features are not finite.

    Raises:
      UserError: for a layer that the network has not, images without the labels that it takes, or
        a supervised run whose own training images would be classified.
    """
    asked = config.evaluate
    _check(config, dataset)
    bank, queries = _parts(config, dataset)
    both = subsets.Concatenated([bank, queries])
    size = batch_size(both, devices)
    crop = one_crop(config, both)
    read = _read(config, both, size, devices, crop)
    labelled = any(name in LABELLED for name in asked.evaluators)
    layers = {"output"} if "align_uniform" in asked.evaluators else set()
    layers |= {asked.eval_layer} if {"knn", "linear"} & set(asked.evaluators) else set()
    layers |= {"logits"} if "classifier" in asked.evaluators else set()
    outputs = _make_layers(as_seen(config, both), apply, sorted(layers), devices, size)
    two_views = None
    if "align_uniform" in asked.evaluators:
        two_views = _make_two_views(config, both, apply, devices, size)
    held = Held(
        config,
        features={},
        pairs={},
        labels=read.labels,
        num_classes=len(dataset.class_names),
        bank=int(np.sum(read.numbers < len(bank))),
    )
    if labelled:
        _check_labels(held)

    def evaluate(params, stats, objective=config.objective):
        weights = sharding.replicate((params, stats), devices)
        its = dataclasses.replace(config, objective=objective)
        found = held._replace(config=its, features=_over(outputs, weights, size, read.images))
        if two_views is not None:
            found = found._replace(pairs=two_views(weights))
        for name, x in (found.features | found.pairs).items():
            if not np.isfinite(x).all():
                raise FloatingPointError(f"features ({name}) that are not finite")
        values: dict[str, float] = {}
        for name in asked.evaluators:
            values |= EVALUATORS[name](found)
        return {f"eval/{name}": round(value, 6) for name, value in values.items()}

    return evaluate


def _parts(config: PretrainConfig, dataset: Dataset) -> tuple[Source, Source]:
    """Images to search and fit on, and images to classify."""
    asked = config.evaluate
    if _split(config) == "test":
        return tuple(_some(s, asked.eval_images // 2) for s in (dataset.train, dataset.test))
    part = _some(dataset.train, asked.eval_images)
    require(len(part) > 1, f"--eval-images: {dataset.origin} has one training image")
    return subsets.fold(part, 2, 0, SEED)


def _split(config: PretrainConfig) -> str:
    """Which split the classified half is from: none whose labels the run trains on."""
    asked = config.evaluate
    need = any(name in LABELLED for name in asked.evaluators)
    if not (need and config.objective.supervised_weight > 0):
        return asked.eval_split or "train"
    split = asked.eval_split or ("test" if config.data.folds > 1 else "train")
    require(
        split == "test",
        "--eval-split: a supervised run trains on the labels of the training images, so that it "
        "is not evaluated on these; take --eval-split test, or pretrain with --folds, which holds "
        "a part of them out",
    )
    return split


def _some(source: Source, count: int) -> Source:
    """About so many images, the same share of each class; of the labelled ones, if there are."""
    labels = np.asarray(source.labels)
    if (labels >= 0).any() and (labels < 0).any():
        source = subsets.Subset(source, np.flatnonzero(labels >= 0), "labelled images")
    return subsets.fraction(source, min(1.0, count / len(source)), SEED)


def _read(config, source, size, devices, prepare) -> Images:
    batches = list(eval_batches(config, source, size, devices, prepare))
    joined = [np.concatenate(part) for part in zip(*batches, strict=True)]
    images, labels, numbers = joined
    readable = numbers >= 0
    return Images(images[readable], labels[readable], np.flatnonzero(readable))


def _make_layers(seen, apply, layers, devices, size) -> Callable:
    """(weights, images) -> flattened layers of images as evaluation sees them."""

    def function(weights, images):
        outputs, _ = apply(*weights, seen(images), False)
        return {name: jnp.reshape(outputs[name], (len(images), -1)) for name in layers}

    return make_mapped(function, devices, size)


def _make_two_views(config, source, apply, devices, size) -> Callable:
    """(weights) -> outputs of two random views of each image."""
    recipe, side = config.data.recipe, config.model.image_size
    crops = two_crops(source, recipe, side, SEED)
    read = _read(config, source, size, devices, crops)
    transform = augment.make_augment(
        recipe, side, cropped=crops is not None, extra_channels=config.data.extra_channels
    )

    def function(weights, images, positions):
        pair = augment.two_views(transform, jax.random.key(SEED), images, positions)
        names = ("view1", "view2")
        return {
            name: apply(*weights, view, False)[0]["output"]
            for name, view in zip(names, pair, strict=True)
        }

    mapped = make_mapped(function, devices, size)
    positions = read.numbers.astype(np.int32)
    return lambda weights: _over(mapped, weights, size, read.images, positions)


def _over(mapped, weights, size, *rows) -> dict[str, np.ndarray]:
    starts = range(0, len(rows[0]), size)
    parts = ([row[start : start + size] for row in rows] for start in starts)
    found = [on_host(mapped(weights, *part), len(part[0])) for part in parts]
    return {name: np.concatenate([part[name] for part in found]) for name in found[0]}


def _check(config: PretrainConfig, dataset: Dataset) -> None:
    asked = config.evaluate
    models.check_layer(config.model, asked.eval_layer, "--eval-layer")
    require(
        "classifier" not in asked.evaluators or config.model.num_classes > 0,
        "--evaluators classifier: the run has none; --supervised-weight makes one",
    )
    need = [name for name in asked.evaluators if name in LABELLED]
    require(
        bool(dataset.class_names) or not need,
        f"--evaluators {' '.join(need)}: the images of {dataset.origin} have no labels; take "
        "align_uniform alone",
    )
    require(
        _split(config) == "train" or dataset.test is not None,
        f"--eval-split test: {dataset.origin} has no test split; --folds makes one of the "
        "training images",
    )


def _check_labels(held: Held) -> None:
    """Now, rather than after the first epochs."""
    known, asked = held.labels[: held.bank], held.config.evaluate
    if "linear" in asked.evaluators:
        require(
            len(np.unique(known)) > 1,
            "--evaluators linear: the images are all of one class, and two are needed",
        )
    require(
        "knn" not in asked.evaluators or len(known) >= 5,
        f"--evaluators knn: 5 neighbours among {len(known)} images; more --eval-images are needed",
    )
    require(held.bank < len(held.labels), "--eval-images: no image is left to classify")
