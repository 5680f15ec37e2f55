"""Linear probes and k-NN of runs' checkpoints, or of files of features."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hypersphere_jax import data, text
from hypersphere_jax.configs import ProbeConfig, UserError, require
from hypersphere_jax.configs.base import check_output
from hypersphere_jax.evaluation import results_file
from hypersphere_jax.evaluation.features import augmented_features, split_features
from hypersphere_jax.evaluation.knn import WEIGHTED_KNN, knn_probe
from hypersphere_jax.evaluation.linear import linear_probe
from hypersphere_jax.evaluation.results_file import Result
from hypersphere_jax.evaluation.sgd import MINIBATCH_PROTOCOLS
from hypersphere_jax.training import checkpoints, distributed, run_dir
from hypersphere_jax.training.run_dir import RunEncoder
from hypersphere_jax.utils.arrays import array_names, open_array

Log = Callable[[str], None]
# Features `[n, d]` and labels `[n]` of both splits, in files for a probe.
SPLIT_ARRAYS = ("train_x", "train_y", "test_x", "test_y")
RUN_OPTIONS = ("layers", "pool", "augment", "step", "all_steps", "data", "data_dir")
# Options of each protocol, which are in the name of a result's file if they are not the default.
PROTOCOL_OPTIONS = {
    "knn": ("metric", "vote", "temperature", "seed"),
    "knn_weighted": ("seed",),
    "quick_thought": ("folds", "seed"),
    "lbfgs": ("folds", "l2", "standardize", "seed"),
    **dict.fromkeys(MINIBATCH_PROTOCOLS, ("folds", "augment", "as_printed", "seed")),
}


@distributed.isolated()
def run_probe(
    config: ProbeConfig, log: Log = lambda line: None, log_failure: Log | None = None
) -> list[Result]:
    """Return linear probes and k-NN of checkpoints' layers, or of files of features.

    Args:
      config: what to probe, and how.
      log: called with a line for each encoder about its features.
      log_failure: called with the error of a run or checkpoint that cannot be probed, before the
        next one. By default the error is raised.

    Returns:
      One result for each encoder, layer, protocol and k, as in `eval/` of the runs.

    Raises:
      UserError: for runs, features or options that do not fit.
    """
    check_output(config.out, ".csv", ".json")
    devices = distributed.local_devices(config.devices)
    results: list[Result] = []
    for result in _probe_all(config, devices, log, log_failure):
        results = results_file.sort_results([*results, result], config.sort)
        if config.out is not None:  # each time, because a later one may fail
            results_file.write_results(config.out, results)
    return results


def _probe_all(
    config: ProbeConfig, devices: list[jax.Device], log: Log, log_failure: Log | None
) -> Iterator[Result]:
    for name in config.runs:
        with _failures_to(log_failure, name):
            if _is_feature_path(Path(name)):
                yield from _probe_file(Path(name), config, devices)
                continue
            for folder in run_dir.find_all(name, config.runs_dir):
                with _failures_to(log_failure, str(folder)):
                    yield from _probe_run(folder, config, devices, log, log_failure)


@contextlib.contextmanager
def _failures_to(log_failure: Log | None, name: str) -> Iterator[None]:
    """Log invalid input and unreadable files, or raise them without a logger."""
    try:
        yield
    except (UserError, OSError) as error:
        if log_failure is None:
            raise
        message = str(error)
        log_failure(message if name in message else f"{name}: {message}")


def _is_feature_path(path: Path) -> bool:
    """Return whether a path is a file or folder of features, and not a run."""
    if path.is_dir():
        return any((path / f"{name}.npy").is_file() for name in SPLIT_ARRAYS)
    return path.suffix.lower() in (".npz", ".npy")


def read_splits(path: Path) -> list[np.ndarray]:
    """Return `SPLIT_ARRAYS` from an .npz file, or from a folder of .npy files, which are mapped.

    Raises:
      UserError: for another file, or a missing array.
    """
    if path.is_dir():
        return [open_array(path / f"{name}.npy") for name in SPLIT_ARRAYS]
    names = ", ".join(SPLIT_ARRAYS)
    is_npz = bool(array_names(path))
    require(is_npz, f"{path}: a probe needs an .npz file with {names}, or a folder of .npy files")
    return [open_array(path, name) for name in SPLIT_ARRAYS]


def _probe_file(path: Path, config: ProbeConfig, devices: list[jax.Device]) -> Iterator[Result]:
    refused = results_file.changed_options(config, RUN_OPTIONS)
    require(not refused, f"{path} contains features, and these options are for runs: {refused}")
    options = {"devices": devices, "ignore_label": config.ignore_label}
    for _, result in _probe_arrays(read_splits(path), config, options):
        yield {"features": str(path), "split": "test"} | result


def _probe_run(
    folder: Path, config: ProbeConfig, devices: list[jax.Device], log: Log, log_failure: Log | None
) -> Iterator[Result]:
    require(
        config.ignore_label is None,
        "ignore_label= is for files of features; unlabelled images of a run are always left out",
    )
    tasks = _open_tasks(folder, config)
    steps: list[int | None] = [config.step]
    if config.all_steps:
        steps = [*checkpoints.steps(folder / "checkpoints")]
        require(bool(steps), f"{folder / 'checkpoints'} is empty; `pretrain` saves checkpoints")
    for step in steps:
        name = str(folder) if step is None else f"{folder}, step {step}"
        with _failures_to(log_failure, name):
            encoder = run_dir.load_encoder(folder, step)
            for task, dataset in tasks.items():
                about = {"task": task, "step": step}
                about = {name: value for name, value in about.items() if value is not None}
                suffix = "".join(f"-{name}{value}" for name, value in about.items())
                results = _probe_encoder(encoder, dataset, config, devices, log)
                for layer, protocol, result in results:
                    changed = results_file.changed_options(config, PROTOCOL_OPTIONS[protocol])
                    name = f"knn{result['k']}" if protocol == "knn" else protocol
                    file = folder / "eval" / f"{name}-{layer}{suffix}{changed}.json"
                    results_file.save_result(file, about | result)
                    yield about | result


def _open_tasks(folder: Path, config: ProbeConfig) -> dict[str | None, data.Dataset]:
    """Return the data to classify: the run's (None), or labelled sentences by name."""
    if run_dir.read_config(folder).reads_text:
        return text.probe_tasks(folder, config)
    require(not config.data, f"data= is for sentence encoders, and {folder} encodes images")
    dataset = run_dir.load_data(folder, config.data_dir)
    is_labelled = bool(dataset.class_names)
    require(is_labelled, f"{dataset.origin} has no labels, which a probe needs; use `metrics`")
    run_dir.test_split(dataset)
    return {None: dataset}


def _probe_encoder(
    encoder: RunEncoder, dataset: data.Dataset, config: ProbeConfig, devices: list, log: Log
) -> Iterator[tuple[str, str, Result]]:
    """Yield layer (with its pooling), protocol, and result."""
    started = time.perf_counter()
    sources = [source for source in (dataset.train, dataset.test) if source is not None]
    splits = [split_features(encoder, s, config.layers, devices, config.pool) for s in sources]
    seconds = time.perf_counter() - started
    header = {
        "run": encoder.folder.name,
        "step": encoder.step,
        "data": encoder.config.data,
        "split": "folds" if dataset.test is None else "test",
        "seconds_features": round(seconds, 3),
    }
    computed = sorted({layer for split in splits for layer in split.computed})
    source = f"of {', '.join(computed)} computed" if computed else "from the cache"
    log(f"{header['run']}, step {encoder.step}: features {source} in {seconds:.1f} s")
    options = {"num_classes": len(dataset.class_names), "ignore_label": -1, "devices": devices}
    for layer, pool in splits[0].pools.items():
        arrays = [array for split in splits for array in split.features[layer]]
        about = {"layer": layer}
        name = layer
        if pool != "none":
            about["pool"] = pool
            name += f"-pool{pool}"
        views = None
        if config.augment:
            draw = (layer, devices, config.seed, config.pool)
            views = augmented_features(encoder, dataset.train, *draw)
        for protocol, result in _probe_arrays(arrays, config, options, views):
            yield name, protocol, header | about | result


def _probe_arrays(
    arrays: Sequence[Any],
    config: ProbeConfig,
    options: dict[str, Any],
    views: Callable | None = None,
) -> Iterator[tuple[str, Result]]:
    """Yield each protocol and its results; `views` maps epochs to augmented features."""
    for protocol in config.protocols:
        started = time.perf_counter()
        results = _score(protocol, arrays, config, options | {"seed": config.seed}, views)
        seconds = round(time.perf_counter() - started, 3)
        flags = [name for name in PROTOCOL_OPTIONS[protocol] if getattr(config, name) is True]
        for result in results:
            yield protocol, result | dict.fromkeys(flags, True) | {"seconds_probe": seconds}


def _score(
    protocol: str,
    arrays: Sequence[Any],
    config: ProbeConfig,
    options: dict[str, Any],
    views: Callable | None,
) -> list[Result]:
    """Return the result of a protocol, for k-NN of each k."""
    if protocol == "knn":
        options |= {"metric": config.metric, "vote": config.vote, "temperature": config.temperature}
        return knn_probe(*arrays, k=config.k, **options)
    if protocol == "knn_weighted":
        return [knn_probe(*arrays, **options | WEIGHTED_KNN)]
    if protocol == "quick_thought":
        del options["ignore_label"]
        if config.folds is not None:
            options["inner_folds"] = config.folds
        return [text.sentence_probe(*arrays, **options)]
    options |= {"protocol": protocol, "folds": config.folds}
    if protocol == "lbfgs":
        options |= {"grid": config.l2, "standardize": config.standardize}
    elif config.as_printed:
        options["grid"] = MINIBATCH_PROTOCOLS[protocol].grid[:1]
    if views is not None and protocol != "lbfgs":
        options["epoch_features"] = lambda epoch: views(epoch).x
    return [linear_probe(*arrays, **options)]
