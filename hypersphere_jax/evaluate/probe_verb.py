"""The verb `probe`: from checkpoints, or files of features, to scores and a JSON file for each."""

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax

from hypersphere_jax import data, text
from hypersphere_jax.configs import ProbeConfig, UserError, require
from hypersphere_jax.configs.base import check_output
from hypersphere_jax.evaluate import feature_files, knn, linear, results_file
from hypersphere_jax.evaluate.feature_cache import Features
from hypersphere_jax.evaluate.features import augmented_features, split_features
from hypersphere_jax.evaluate.sgd import PROTOCOLS
from hypersphere_jax.training import checkpoints, distributed, run_dir
from hypersphere_jax.training.run_dir import RunEncoder

Result = dict[str, Any]
Log = Callable[[str], None]
RUN_OPTIONS = ("layers", "pool", "augment", "step", "all_steps", "data", "data_dir")


@distributed.isolated()
def run_probe(
    config: ProbeConfig, log: Log = lambda line: None, log_failure: Log | None = None
) -> list[Result]:
    """Linear probes and k-NN of checkpoints' layers, or of files of features.

    Of sentence encoders, on the labelled sentences that the config names.

    Args:
      config: what to probe, and how.
      log: takes a line for each encoder: what was computed, and the time.
      log_failure: takes the error of a run or checkpoint that cannot be probed, and the others go
        on. None: it is raised.

    Returns:
      One result for each encoder, layer, protocol and k, as in `eval/`.
    """
    check_output(config.out, ".csv", ".json")
    results: list[Result] = []
    for result in _results(config, log, log_failure):
        results = results_file.ordered([*results, result], config.sort)
        if config.out is not None:  # each time, as one that comes later may fail
            results_file.write(config.out, results)
    return results


def _results(config: ProbeConfig, log: Log, log_failure: Log | None) -> Iterator[Result]:
    devices = distributed.local_devices(config.devices)
    for name in config.runs:
        with _caught(name, log_failure):
            if feature_files.are_features(Path(name)):
                yield from _probe_features(Path(name), config, devices)
                continue
            for folder in run_dir.find_all(name, config.runs_dir):
                with _caught(str(folder), log_failure):
                    yield from _probe_run(folder, config, devices, log, log_failure)


@contextlib.contextmanager
def _caught(name: str, log_failure: Log | None) -> Iterator[None]:
    """Gives `log_failure`, if there is one, invalid input and files that cannot be read."""
    try:
        yield
    except (UserError, OSError) as error:
        if log_failure is None:
            raise
        text = str(error)
        log_failure(text if name in text else f"{name}: {text}")


def _probe_run(
    folder: Path, config: ProbeConfig, devices: list[jax.Device], log: Log, log_failure: Log | None
) -> Iterator[Result]:
    datasets = _datasets(folder, config)
    steps = checkpoints.steps(folder / "checkpoints") if config.all_steps else [config.step]
    require(bool(steps), f"no checkpoint in {folder / 'checkpoints'}: `pretrain` saves one there")
    for step in steps:
        with _caught(str(folder) if step is None else f"{folder}, step {step}", log_failure):
            encoder = run_dir.load_encoder(folder, step)
            for task, dataset in datasets.items():
                for name, options, result in _probe_encoder(encoder, dataset, config, devices, log):
                    options = {"task": task, "step": step} | options
                    name += "".join(f"-{k}{v}" for k, v in options.items() if v is not None)
                    result = ({"task": task} if task else {}) | result
                    results_file.save(folder / "eval" / f"{name}.json", result)
                    yield result


def _datasets(folder: Path, config: ProbeConfig) -> dict[str | None, data.Dataset]:
    """What is classified: the run's own data (None), or for text each task, by its last name."""
    if not run_dir.read_config(folder).reads_text:
        require(not config.data, f"data= is for encoders of sentences, and {folder} is of images")
        dataset = run_dir.load_data(folder, config.data_dir)
        labelled = bool(dataset.class_names)
        needed = "have no labels, which a probe needs; `metrics` needs none"
        require(labelled, f"the images of {dataset.origin} {needed}")
        run_dir.test_split(dataset)
        return {None: dataset}
    return text.probe_tasks(folder, config)


def _probe_encoder(
    encoder: RunEncoder, dataset: data.Dataset, config: ProbeConfig, devices: list, log: Log
) -> Iterator[tuple[str, dict[str, Any], Result]]:
    """Results, and the name and options that their files have."""
    sources = [source for source in (dataset.train, dataset.test) if source is not None]
    layers, pool = config.layers, config.pool
    splits = [split_features(encoder, source, layers, devices, pool) for source in sources]
    waits = [split.data_wait for split in splits if split.data_wait is not None]
    header = {
        "run": encoder.folder.name,
        "step": encoder.step,
        "data": encoder.config.data,
        "split": "test" if len(splits) == 2 else "folds",
        "seconds_features": round(sum(split.seconds for split in splits), 3),
        "data_wait": max(waits, default=None),
    }
    computed = sorted({layer for split in splits for layer in split.computed})
    made = f"{', '.join(computed)} computed, {max(waits):.0%} data wait" if computed else "cached"
    seconds = header["seconds_features"]
    log(f"{encoder.folder.name}, step {encoder.step}: features {made}; {seconds:.1f} s")
    for layer, pool in splits[0].pools.items():
        arrays = [array for split in splits for array in _labelled(split.features[layer])]

        def epoch_features(layer=layer):
            seed, pool = config.seed, config.pool
            views = augmented_features(encoder, dataset.train, layer, devices, seed, pool)
            return lambda epoch: _labelled(views(epoch)).x

        pooled = {} if pool == "none" else {"pool": pool}
        classes = len(dataset.class_names)
        for name, options, result in _scores(arrays, classes, config, devices, epoch_features):
            yield f"{name}-{layer}", pooled | options, header | {"layer": layer} | pooled | result


def _probe_features(path: Path, config: ProbeConfig, devices: list[jax.Device]) -> Iterator[Result]:
    refused = results_file.suffix(config, RUN_OPTIONS)
    require(not refused, f"{str(path)!r} holds features, and these options are for runs: {refused}")
    header = {"features": str(path), "split": "test"}
    for _, _, result in _scores(feature_files.read_splits(path), None, config, devices):
        yield header | result


def _scores(
    arrays: Any, classes: int | None, config: ProbeConfig, devices: list, epoch_features: Any = None
) -> Iterator[tuple[str, dict[str, Any], Result]]:
    """Name, options that are not the default, and result of each protocol and k."""
    for protocol in config.protocols:
        for name, options, score in _protocol(protocol, config, epoch_features):
            began = time.perf_counter()
            result = score(*arrays, num_classes=classes, devices=devices)
            result["seconds_probe"] = round(time.perf_counter() - began, 3)
            result |= {"augment": True} if "augment" in options else {}
            result |= {"as_printed": True} if "printed" in options else {}
            result |= {"standardized": True} if "standardized" in options else {}
            yield name, options, result


def _protocol(
    protocol: str, config: ProbeConfig, epoch_features: Callable[[], Callable] | None
) -> Iterator[tuple[str, dict[str, Any], Callable[..., Result]]]:
    """Name, options that are not the default, and what scores: for k-NN, of each k."""
    if protocol == "knn":
        options: dict[str, Any] = {} if config.metric == "cosine" else {"metric": config.metric}
        if config.vote == "similarity":
            options |= {"vote": config.vote, "temperature": config.temperature}
        if config.data and config.seed:  # of folds
            options["seed"] = config.seed
        for k in config.k:
            yield f"knn{k}", options, partial(knn.knn_probe, k=k, **options)
        return
    if protocol == "knn_weighted":
        options = {"seed": config.seed} if config.data and config.seed else {}
        score = partial(knn.knn_probe, **knn.PROTOCOLS[protocol], **options)
        yield protocol, options, score
        return
    folds = {} if config.folds is None else {"folds": config.folds}
    seed = {"seed": config.seed} if config.seed else {}
    if protocol == "quick_thought":
        inner = {"inner_folds": config.folds} if folds else {}
        yield protocol, folds | seed, partial(text.sentence_probe, seed=config.seed, **inner)
        return
    names: dict[str, str] = {}
    options = dict(folds)
    if protocol == "lbfgs" and config.l2 is not None:
        names, options["grid"] = {"l2": "_".join(f"{l2:g}" for l2 in config.l2)}, config.l2
    if protocol == "lbfgs" and config.standardize:
        names["standardized"], options["standardize"] = "", True
    if protocol != "lbfgs":
        if config.augment:
            names["augment"], options["epoch_features"] = "", epoch_features()
        if config.as_printed:
            names["printed"], options["grid"] = "", PROTOCOLS[protocol].grid[:1]
    score = partial(linear.linear_probe, protocol=protocol, seed=config.seed, **options)
    yield protocol, folds | names | seed, score


def _labelled(features: Features) -> Features:
    known = features.labels >= 0
    require(known.any(), "no image, or sentence, of a split has a label")
    # Without a copy where they stay on disk.
    return features if known.all() else Features(*(array[known] for array in features))
