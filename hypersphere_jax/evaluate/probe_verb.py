"""From checkpoints, or files of features, to scores, a JSON file for each, and a table."""

import contextlib
import logging
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hypersphere_jax import data
from hypersphere_jax.config import ProbeConfig, UserError, require
from hypersphere_jax.evaluate import feature_files, knn, linear, results
from hypersphere_jax.evaluate.feature_cache import Features
from hypersphere_jax.evaluate.features import Extraction, augmented_features, extract
from hypersphere_jax.evaluate.sentences import sentence_probe
from hypersphere_jax.evaluate.sgd import PROTOCOLS
from hypersphere_jax.files import write_json
from hypersphere_jax.train import checkpoint, run_folder, sharding
from hypersphere_jax.train.run_folder import Encoder

logger = logging.getLogger("hypersphere_jax")

Result = dict[str, Any]
Say = Callable[[str], None]
# Options of a run that a file of features has no use for.
OF_RUNS = ("layers", "pool", "augment", "step", "all_steps", "data", "data_dir")


def probe(
    config: ProbeConfig, say: Say = lambda line: None, failed: Say | None = None
) -> list[Result]:
    """Linear probes and k-NN of checkpoints' layers, or of files of features.

    Of sentence encoders, on the labelled sentences that the config names.

    Hyper-parameters are chosen on the training split; the test split is scored once.

    Args:
      config: what to probe, and how.
      say: is told of each encoder what was computed, what came from the cache, and the time.
      failed: is told why a run or checkpoint could not be probed, and the others go on. None: that
        error is raised, and ends all.

    Returns:
      One result for each encoder, layer, protocol and k: that which stands in `eval/`.

    Raises:
      UserError: for what cannot be probed, unless `failed` is there to be told.
    """
    devices = sharding.local_devices(config.devices)
    found: list[Result] = []
    for result in _all(config, devices, say, failed):
        found = results.ordered([*found, result], config.sort)
        if config.out is not None:  # each time, as one that comes later may fail
            results.write(config.out, found)
    return found


def _all(
    config: ProbeConfig, devices: list[jax.Device], say: Say, failed: Say | None
) -> Iterator[Result]:
    for name in config.runs:
        with _set_aside(name, failed):
            if feature_files.are_features(Path(name)):
                yield from _of_features(Path(name), config, devices)
                continue
            for folder in run_folder.find_all(name):
                with _set_aside(str(folder), failed):
                    yield from _of_run(folder, config, devices, say, failed)


@contextlib.contextmanager
def _set_aside(name: str, failed: Say | None) -> Iterator[None]:
    """Tells `failed`, if there is one, of an error that a user can mend."""
    try:
        yield
    except (UserError, OSError) as error:
        if failed is None:
            raise
        text = str(error)
        failed(text if name in text else f"{name}: {text}")


def _of_run(
    folder: Path, config: ProbeConfig, devices: list[jax.Device], say: Say, failed: Say | None
) -> Iterator[Result]:
    datasets = _labelled_data(folder, config)
    steps = checkpoint.steps(folder / "checkpoints") if config.all_steps else [config.step]
    require(bool(steps), f"no checkpoint in {folder / 'checkpoints'}: `pretrain` saves one there")
    for step in steps:
        with _set_aside(str(folder) if step is None else f"{folder}, step {step}", failed):
            encoder = run_folder.load_encoder(folder, step)
            for task, dataset in datasets.items():
                its = {"task": task and _called(task), "step": step}
                about = {} if task is None else {"task": Path(task).name}
                found = _of_encoder(encoder, dataset, about, config, devices, say)
                for name, options, result in found:
                    _save(folder, name, its | options, result)
                    yield result


def _called(task: str) -> str:
    """A task in a file's name: tasks of one name in two folders differ there."""
    path = Path(task)
    return task if path.name == task else f"{path.name}-{zlib.crc32(task.encode()):08x}"


def _labelled_data(folder: Path, config: ProbeConfig) -> dict[str | None, data.Dataset]:
    """What is classified: the run's own data (None), or for text that of each task by its name."""
    its = run_folder.read_config(folder)
    if its.model.reads_text:
        require(
            bool(config.data),
            f"{folder} holds encoders of sentences, and its text has no labels: say with --data "
            "what to classify, such as mr (with --data-dir), or START of START.pos and START.neg",
        )
        vocabulary = run_folder.read_vocabulary(folder)
        where = None if config.data_dir is None else Path(config.data_dir).expanduser()
        found = {task: data.load_labelled(task, where, vocabulary) for task in config.data}
        others = [protocol for protocol in config.protocols if protocol != "quick_thought"]
        for task, dataset in found.items():
            require(
                not others or dataset.test is not None,
                f"--protocols {' '.join(others)}: {task} has no test split, without which only "
                "quick_thought scores it",
            )
        return found
    require(not config.data, f"--data is for encoders of sentences, and {folder} is of images")
    dataset = run_folder.load_data(folder, config.data_dir)
    require(
        bool(dataset.class_names),
        f"the images of {dataset.origin} have no labels, which a probe needs",
    )
    run_folder.test_split(dataset)
    return {None: dataset}


def _of_encoder(
    encoder: Encoder,
    dataset: data.Dataset,
    about: dict[str, Any],
    config: ProbeConfig,
    devices: list[jax.Device],
    say: Say,
) -> Iterator[tuple[str, dict[str, Any], Result]]:
    """Results, and the name and options that their files have."""
    sources = [source for source in (dataset.train, dataset.test) if source is not None]
    splits = [extract(encoder, source, config.layers, devices, config.pool) for source in sources]
    say(f"{encoder.folder.name}, step {encoder.step}: {_told(splits, encoder.folder)}")
    about = {
        "run": encoder.folder.name,
        "step": encoder.step,
        "data": encoder.config.data.name,
        "split": "test" if len(splits) == 2 else "folds",
        **about,
    }
    for layer, pool in splits[0].pools.items():
        x_and_y = [part for split in splits for part in _labelled(split.features[layer])]
        for name, labels in zip(("training", "test"), x_and_y[1::2], strict=False):
            kind = "sentence" if about.get("task") else "image"
            require(len(labels) > 0, f"no {name} {kind} of {dataset.origin} has a label")

        def epochs(layer=layer):
            make = augmented_features(
                encoder, dataset.train, layer, devices, config.seed, config.pool
            )
            return lambda epoch: _labelled(make(epoch)).x

        pooled = None if pool == "none" else pool
        of_layer = about | {"layer": layer} | ({"pool": pool} if pooled else {})
        timed = {
            "seconds_features": round(sum(split.seconds for split in splits), 3),
            "data_wait": _data_wait(splits),
        }
        classes = len(dataset.class_names)
        for name, options, result in _scores(x_and_y, classes, config, devices, epochs):
            yield f"{name}-{layer}", {"pool": pooled, **options}, of_layer | result | timed


def _of_features(path: Path, config: ProbeConfig, devices: list[jax.Device]) -> Iterator[Result]:
    standard = ProbeConfig((str(path),))
    for name in OF_RUNS:
        given = getattr(config, name) != getattr(standard, name)
        flag = name.replace("_", "-")
        require(not given, f"--{flag} is for runs, and {str(path)!r} holds features")
    train_x, train_y, test_x, test_y = feature_files.read_splits(path)
    train_y, test_y, classes = feature_files.numbered(train_y, test_y)
    about = {"features": str(path), "split": "test"}
    if not np.array_equal(classes, np.arange(len(classes))):
        about["classes"] = classes.tolist()
    x_and_y = (train_x, train_y, test_x, test_y)
    for _, _, result in _scores(x_and_y, len(classes), config, devices):
        yield about | result


def _scores(
    x_and_y: tuple,
    num_classes: int,
    config: ProbeConfig,
    devices: list[jax.Device],
    epochs: Callable[[], Callable] | None = None,
) -> Iterator[tuple[str, dict[str, Any], Result]]:
    """Name, options that are not the default, and result of each protocol."""
    if "quick_thought" in config.protocols:
        began = time.perf_counter()
        more = {} if config.folds is None else {"inner_folds": config.folds}
        result = sentence_probe(
            *x_and_y, num_classes=num_classes, seed=config.seed, devices=devices, **more
        )
        options = {"folds": config.folds, "seed": config.seed or None}
        yield "quick_thought", options, _timed(result, began)
    others = [protocol for protocol in config.protocols if protocol != "quick_thought"]
    many = max(config.k)
    require(
        "knn" not in config.protocols or many <= len(x_and_y[1]),
        f"--k {many}: there are only {len(x_and_y[1])} training samples",
    )
    for protocol in others:
        if protocol == "knn":
            vote = {"vote": config.vote, "temperature": config.temperature}
            vote = vote if config.vote == "similarity" else {}
            metric = None if config.metric == "cosine" else config.metric
            for k in config.k:
                began = time.perf_counter()
                result = knn.knn_probe(
                    *x_and_y,
                    num_classes=num_classes,
                    k=k,
                    metric=config.metric,
                    devices=devices,
                    **vote,
                )
                yield f"knn{k}", {"metric": metric, **vote}, _timed(result, began)
            continue
        augment = config.augment and protocol != "lbfgs"
        more = {} if config.folds is None else {"folds": config.folds}
        printed = config.as_printed and protocol != "lbfgs"
        if printed:
            more["grid"] = PROTOCOLS[protocol].grid[:1]
        elif protocol == "lbfgs" and config.l2 is not None:
            more["grid"] = config.l2
        if augment:
            more["epoch_features"] = epochs()
        began = time.perf_counter()
        result = linear.linear_probe(
            *x_and_y,
            num_classes=num_classes,
            protocol=protocol,
            seed=config.seed,
            devices=devices,
            **more,
        )
        result |= {"augment": True} if augment else {}
        result |= {"as_printed": True} if printed else {}
        options = {"folds": config.folds, "augment": "" if augment else None}
        options["printed"] = "" if printed else None
        if protocol == "lbfgs" and config.l2 is not None:
            options["l2"] = "_".join(f"{l2:g}" for l2 in config.l2)
        yield protocol, {**options, "seed": config.seed or None}, _timed(result, began)


def _timed(result: Result, began: float) -> Result:
    return result | {"seconds_probe": round(time.perf_counter() - began, 3)}


def _data_wait(extractions: Sequence[Extraction]) -> float | None:
    """The largest share of the time that one of them waited for images; None: none was computed."""
    waits = [each.data_wait for each in extractions if each.data_wait is not None]
    return max(waits, default=None)


def _told(splits: Sequence[Extraction], folder: Path) -> str:
    """One line for people: what was computed, what came from the cache, and the time."""
    layers = splits[0].pools
    computed = [layer for layer in layers if any(layer in split.computed for split in splits)]
    cached = [layer for layer in layers if layer not in computed]
    wait = _data_wait(splits)
    parts = [f"{', '.join(computed)} computed, {wait:.0%} data wait"] if computed else []
    parts += [f"{', '.join(cached)} from the cache"] if cached else []
    seconds = sum(split.seconds for split in splits)
    return f"features of {'; '.join(parts)}; {seconds:.1f} s ({folder / 'features'})"


def _labelled(features: Features) -> Features:
    known = features.labels >= 0
    if known.all():  # as they are, on disk
        return features
    return Features(features.x[known], features.labels[known])


def _save(folder: Path, name: str, options: dict[str, Any], result: dict[str, Any]) -> None:
    """Writes a result under a name that tells it from those with other options."""
    suffix = "".join(f"-{key}{value}" for key, value in options.items() if value is not None)
    try:
        write_json(folder / "eval" / f"{name}{suffix}.json", result)
    except OSError as error:
        logger.warning("the result is not kept: %s", error)
