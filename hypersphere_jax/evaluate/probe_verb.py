"""The verb `probe`: of checkpoints, or files of features, to scores and a JSON file for each."""

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hypersphere_jax import data
from hypersphere_jax.config import ProbeConfig, UserError, require
from hypersphere_jax.evaluate import feature_files, knn, linear, results
from hypersphere_jax.evaluate.feature_cache import Features
from hypersphere_jax.evaluate.features import Extraction, augmented_features, split_features
from hypersphere_jax.evaluate.sentences import sentence_probe
from hypersphere_jax.evaluate.sgd import PROTOCOLS
from hypersphere_jax.train import checkpoint, run_folder, sharding
from hypersphere_jax.train.run_folder import Encoder

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
      One result for each encoder, layer, protocol and k, as in `eval/`.

    Raises:
      UserError: for what cannot be probed, unless `failed` is given.
    """
    every: list[Result] = []
    for result in _results(config, say, failed):
        every = results.ordered([*every, result], config.sort)
        if config.out is not None:  # each time, as one that comes later may fail
            results.write(config.out, every)
    return every


def _results(config: ProbeConfig, say: Say, failed: Say | None) -> Iterator[Result]:
    devices = sharding.local_devices(config.devices)
    for name in config.runs:
        with _reported(name, failed):
            if feature_files.are_features(Path(name)):
                yield from _of_features(Path(name), config, devices)
                continue
            for folder in run_folder.find_all(name):
                with _reported(str(folder), failed):
                    yield from _of_run(folder, config, devices, say, failed)


@contextlib.contextmanager
def _reported(name: str, failed: Say | None) -> Iterator[None]:
    """Tells `failed`, if it is given, of invalid input and of files that cannot be read."""
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
    datasets = _datasets(folder, config)
    steps = checkpoint.steps(folder / "checkpoints") if config.all_steps else [config.step]
    require(bool(steps), f"no checkpoint in {folder / 'checkpoints'}: `pretrain` saves one there")
    for step in steps:
        with _reported(str(folder) if step is None else f"{folder}, step {step}", failed):
            encoder = run_folder.load_encoder(folder, step)
            for task, dataset in datasets.items():
                options = {"task": task, "step": step}
                about = {"task": task} if task else {}
                for name, more, result in _of_encoder(encoder, dataset, config, devices, say):
                    known = [f"-{k}{v}" for k, v in (options | more).items() if v is not None]
                    results.save(folder / "eval" / f"{name}{''.join(known)}.json", about | result)
                    yield about | result


def _datasets(folder: Path, config: ProbeConfig) -> dict[str | None, data.Dataset]:
    """What is classified: the run's own data (None), or for text each task, by its last name."""
    if not run_folder.read_config(folder).model.reads_text:
        require(not config.data, f"--data is for encoders of sentences, and {folder} is of images")
        dataset = run_folder.load_data(folder, config.data_dir)
        labelled = bool(dataset.class_names)
        require(labelled, f"the images of {dataset.origin} have no labels, which a probe needs")
        run_folder.test_split(dataset)
        return {None: dataset}
    require(
        bool(config.data),
        f"{folder} holds encoders of sentences, and its text has no labels: say with --data "
        "what to classify, such as mr (with --data-dir), or START of START.pos and START.neg",
    )
    vocabulary = run_folder.read_vocabulary(folder)
    where = None if config.data_dir is None else Path(config.data_dir).expanduser()
    tasks = {Path(task).name: data.load_labelled(task, where, vocabulary) for task in config.data}
    require(len(tasks) == len(config.data), "--data: two of these have the same name")
    others = [protocol for protocol in config.protocols if protocol != "quick_thought"]
    for task, dataset in tasks.items():
        require(
            not others or dataset.test is not None,
            f"--protocols {' '.join(others)}: {task} has no test split, without which only "
            "quick_thought scores it",
        )
    return tasks


def _of_encoder(
    encoder: Encoder, dataset: data.Dataset, config: ProbeConfig, devices: list, say: Say
) -> Iterator[tuple[str, dict[str, Any], Result]]:
    """Results, and the name and options that their files have."""
    sources = [source for source in (dataset.train, dataset.test) if source is not None]
    layers, pool = config.layers, config.pool
    splits = [split_features(encoder, source, layers, devices, pool) for source in sources]
    waits = [split.data_wait for split in splits if split.data_wait is not None]
    about = {
        "run": encoder.folder.name,
        "step": encoder.step,
        "data": encoder.config.data.name,
        "split": "test" if len(splits) == 2 else "folds",
        "seconds_features": round(sum(split.seconds for split in splits), 3),
        "data_wait": max(waits, default=None),
    }
    say(f"{encoder.folder.name}, step {encoder.step}: {_told(splits, about)}")
    for layer, pool in splits[0].pools.items():
        x_and_y = [part for split in splits for part in _labelled(split.features[layer])]

        def epoch_features(layer=layer):
            seed, pool = config.seed, config.pool
            views = augmented_features(encoder, dataset.train, layer, devices, seed, pool)
            return lambda epoch: _labelled(views(epoch)).x

        pooled = {} if pool == "none" else {"pool": pool}
        classes = len(dataset.class_names)
        for name, options, result in _scores(x_and_y, classes, config, devices, epoch_features):
            yield f"{name}-{layer}", pooled | options, about | {"layer": layer} | pooled | result


def _of_features(path: Path, config: ProbeConfig, devices: list[jax.Device]) -> Iterator[Result]:
    given = results.suffix(config, OF_RUNS)
    require(not given, f"{str(path)!r} holds features, and these options are for runs: {given}")
    train_x, train_y, test_x, test_y = feature_files.read_splits(path)
    train_y, test_y, classes = feature_files.numbered(train_y, test_y)
    about = {"features": str(path), "split": "test"}
    if not np.array_equal(classes, np.arange(len(classes))):
        about["classes"] = classes.tolist()
    splits = (train_x, train_y, test_x, test_y)
    for _, _, result in _scores(splits, len(classes), config, devices):
        yield about | result


def _scores(
    x_and_y: Any,
    num_classes: int,
    config: ProbeConfig,
    devices: list[jax.Device],
    epoch_features: Callable[[], Callable] | None = None,
) -> Iterator[tuple[str, dict[str, Any], Result]]:
    """Name, options that are not the default, and result of each protocol and k."""
    for protocol in config.protocols:
        for name, options, score in _protocol(protocol, config, epoch_features):
            began = time.perf_counter()
            result = score(*x_and_y, num_classes=num_classes, devices=devices)
            result["seconds_probe"] = round(time.perf_counter() - began, 3)
            result |= {"augment": True} if "augment" in options else {}
            result |= {"as_printed": True} if "printed" in options else {}
            yield name, options, result


def _protocol(
    protocol: str, config: ProbeConfig, epoch_features: Callable[[], Callable] | None
) -> Iterator[tuple[str, dict[str, Any], Callable[..., Result]]]:
    """Name, options that are not the default, and what scores: for k-NN, of each k."""
    if protocol == "knn":
        metric = {} if config.metric == "cosine" else {"metric": config.metric}
        vote = {"vote": config.vote, "temperature": config.temperature}
        options = metric | (vote if config.vote == "similarity" else {})
        for k in config.k:
            yield f"knn{k}", options, partial(knn.knn_probe, k=k, **options)
        return
    folds = {} if config.folds is None else {"folds": config.folds}
    seed = {"seed": config.seed} if config.seed else {}
    if protocol == "quick_thought":
        inner = {"inner_folds": config.folds} if folds else {}
        yield protocol, folds | seed, partial(sentence_probe, seed=config.seed, **inner)
        return
    options, more = {}, {}
    if protocol == "lbfgs" and config.l2 is not None:
        options, more = {"l2": "_".join(f"{l2:g}" for l2 in config.l2)}, {"grid": config.l2}
    elif protocol != "lbfgs":
        asked = {"augment": config.augment, "printed": config.as_printed}
        options = {key: "" for key, value in asked.items() if value}
        more = {"epoch_features": epoch_features()} if config.augment else {}
        more |= {"grid": PROTOCOLS[protocol].grid[:1]} if config.as_printed else {}
    more |= folds
    score = partial(linear.linear_probe, protocol=protocol, seed=config.seed, **more)
    yield protocol, folds | options | seed, score


def _told(splits: list[Extraction], about: Result) -> str:
    """What was computed, what came from the cache, and the time."""
    layers = splits[0].pools
    computed = [layer for layer in layers if any(layer in split.computed for split in splits)]
    cached = [layer for layer in layers if layer not in computed]
    parts = (
        [f"{', '.join(computed)} computed, {about['data_wait']:.0%} data wait"] if computed else []
    )
    parts += [f"{', '.join(cached)} from the cache"] if cached else []
    return f"features of {'; '.join(parts)}; {about['seconds_features']:.1f} s"


def _labelled(features: Features) -> Features:
    known = features.labels >= 0
    require(known.any(), "no image, or sentence, of a split has a label")
    if known.all():  # as they are, on disk
        return features
    return Features(features.x[known], features.labels[known])
