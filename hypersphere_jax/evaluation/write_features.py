"""Features of any images by any image encoder, written to a file."""

import contextlib
import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import jax
import numpy as np
from numpy.lib import format as npy

from hypersphere_jax import data, models
from hypersphere_jax.configs import DataConfig, FeaturesConfig, PretrainConfig, UserError, require
from hypersphere_jax.configs.base import check_output
from hypersphere_jax.data import Source
from hypersphere_jax.data.channels import with_channels
from hypersphere_jax.data.decode import decode, reason
from hypersphere_jax.data.layouts import EXTENSIONS
from hypersphere_jax.data.pipeline import read
from hypersphere_jax.data.source import Arrays
from hypersphere_jax.data.subsets import Subset
from hypersphere_jax.encoder import WEIGHTS, Encoder, load
from hypersphere_jax.evaluation.checks import CHECKED_ENTRIES
from hypersphere_jax.evaluation.feature_files import collect_features
from hypersphere_jax.evaluation.features import Extractor
from hypersphere_jax.evaluation.rows import row_blocks
from hypersphere_jax.training import distributed, run_dir
from hypersphere_jax.utils.files import atomic_write


class WrittenFeatures(NamedTuple):
    """Files that `run_features` wrote, and the features in them."""

    files: list[Path]
    shapes: dict[str, tuple[int, int]]  # [n, d] by split; "" if there is a single split
    norms: tuple[float, float]  # smallest and largest norm of a row
    is_labelled: bool  # whether every image has a label


class _Split(NamedTuple):
    x: np.ndarray  # float32 [n, d]
    labels: np.ndarray  # [n]
    files: list[str]  # path of each image, or empty
    class_names: Sequence[str]


class _ImageFile(Arrays):
    def file(self, i: int) -> str:
        return self.origin


@distributed.isolated()
def run_features(config: FeaturesConfig) -> WrittenFeatures:
    """Write a flattened layer of images, as returned by `hypersphere_jax.load(run)(images, layer)`.

    A file appears when it is complete.

    Args:
      config: encoder, images, layer and file.

    Raises:
      UserError: for an encoder, images or a layer that do not exist, and for unreadable images.
    """
    out = config.out
    files = [out] if out.suffix.lower() == ".npz" else [out, out.with_suffix(".csv")]
    check_output(out, ".npy", ".npz")
    for file in files[1:]:
        check_output(file, ".csv")
    devices = distributed.local_devices(config.devices)
    encoder = load(config.run, config.step, runs_dir=config.runs_dir)
    models.check_layer(encoder.config, config.layer, "layer=")
    sources = _open_sources(config, encoder)
    splits = {name: _extract(config, encoder, sources[name], devices) for name in sources}
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(atomic_write(file)) for file in files]
        if len(streams) == 1:
            np.savez(streams[0], **_arrays(splits))
        else:
            _write_rows(streams[0], [split.x for split in splits.values()])
            _write_table(streams[1], splits)
    shapes = {name: split.x.shape for name, split in splits.items()}
    blocks = [split.x[rows] for split in splits.values() for rows in _blocks(split.x)]
    norms = np.concatenate([np.linalg.norm(block, axis=1) for block in blocks])
    is_labelled = all(bool((split.labels >= 0).all()) for split in splits.values())
    return WrittenFeatures(files, shapes, (float(norms.min()), float(norms.max())), is_labelled)


def _open_sources(config: FeaturesConfig, encoder: Encoder) -> dict[str, Source]:
    """Return the splits by name, train first; the name of a single split is empty."""
    if config.images is None:
        train, test = _run_splits(config, encoder)
    else:
        train, test = _named_splits(config)
    if config.split == "test":
        require(test is not None, f"split=test: {train.origin} has no test split")
        return {"": test}
    if config.split == "train" or test is None:
        return {"": train}
    return {"train": train, "test": test}


def _named_splits(config: FeaturesConfig) -> tuple[Source, Source | None]:
    path = Path(config.images).expanduser()
    if path.suffix[1:].lower() in EXTENSIONS and path.is_file():
        try:
            image = decode(path.read_bytes())
        except Exception as error:  # of nearly any type, for a damaged file
            raise UserError(f"{path}: {reason(error)}") from error
        return _ImageFile(image[None], None, (), str(path)), None
    options = {"data_dir": config.data_dir, "bad_images": config.bad_images}
    return data.load_raw_splits(DataConfig(data=config.images, **options))


def _run_splits(config: FeaturesConfig, encoder: Encoder) -> tuple[Source, Source | None]:
    trained = encoder.config
    advice = "pass the images with images="
    require(encoder.origin is None, f"{config.run} contains weights only; {advice}")
    is_custom = isinstance(trained.source, str)
    require(not is_custom, f"{config.run} was trained on a custom {trained.source}; {advice}")
    if (Path(config.run) / WEIGHTS).is_file():
        dataset = data.load(run_dir.moved(trained, config.data_dir))
    else:
        dataset = run_dir.load_data(run_dir.find(config.run, config.runs_dir), config.data_dir)
    return dataset.train, dataset.test


def _extract(
    config: FeaturesConfig, encoder: Encoder, source: Source, devices: list[jax.Device]
) -> _Split:
    """Return the features of the readable images of a split, in their order."""
    trained = encoder.config
    if config.images is not None:
        trained = trained.replace(bad_images=config.bad_images)
        source = _fit_channels(source, trained)
    elif config.bad_images == "skip":
        trained = trained.replace(bad_images="skip")
    pools = {config.layer: "none"}
    if len(encoder.layers[config.layer]) == 3:
        pools[config.layer] = config.pool
    extractor = Extractor(encoder.apply, trained, source, devices, pools)
    batches = extractor.forward(encoder.params, encoder.stats, extractor.read())
    folder = config.out.resolve().parent
    x, labels = collect_features(batches, folder)[config.layer]
    files = [_file_of(source, int(index)) for index in np.concatenate(extractor.indices)]
    return _Split(x, labels, [file for file in files if file], source.class_names)


def _fit_channels(source: Source, trained: PretrainConfig) -> Source:
    """Convert gray or RGB images to the channels of the encoder; UserError for others."""
    if trained.preprocess is not None:
        return source
    bits = f"the encoder takes images with bits={trained.bits}: omit images= for those of its run"
    require(not trained.extra_channels, bits)
    channels = trained.in_channels
    if channels in (1, 3):
        return with_channels(source, channels)
    shape = source.image_shape
    if shape is None:
        sample, _ = read(source, 0)
        shape = sample["image"].shape
    message = f"{source.origin} has images of {shape[2]} channels, and the encoder takes {channels}"
    require(shape[2] == channels, message)
    return source


def _file_of(source: Any, index: int) -> str:
    """Return the path of an image, or an empty string for images that are not in files."""
    while hasattr(source, "source"):
        if isinstance(source, Subset):
            index = int(source.indices[index])
        source = source.source
    return source.file(index) if hasattr(source, "file") else ""


def _blocks(x: np.ndarray) -> list[slice]:
    return row_blocks(*x.shape, CHECKED_ENTRIES)


def _arrays(splits: dict[str, _Split]) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file."""
    first, *_ = splits.values()
    arrays = {"names": np.array(first.class_names, np.str_)}
    for name, split in splits.items():
        keys = (f"{name}_x", f"{name}_y", f"{name}_files")
        if not name:
            keys = ("features", "labels", "files")
        values = (split.x, split.labels, np.array(split.files, np.str_))
        arrays |= dict(zip(keys, values, strict=True))
    return arrays


def _write_rows(stream: BinaryIO, parts: Sequence[np.ndarray]) -> None:
    """Write arrays of rows as one .npy array."""
    shape = (sum(map(len, parts)), parts[0].shape[1])
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(stream, header)
    for x in parts:
        for rows in _blocks(x):
            stream.write(np.ascontiguousarray(x[rows], "<f4").data)


def _write_table(stream: BinaryIO, splits: dict[str, _Split]) -> None:
    """Write split, label (-1 for none), class and file of each image, as far as they are known."""
    parts = list(splits.values())
    labels = np.concatenate([split.labels for split in parts]).tolist()
    files = [file for split in parts for file in split.files]
    names = parts[0].class_names
    columns: dict[str, list] = {}
    if len(parts) > 1:
        columns["split"] = [name for name, split in splits.items() for _ in split.x]
    columns["label"] = labels
    if names:
        columns["class"] = [names[label] if label >= 0 else "" for label in labels]
    if files:
        columns["file"] = files
    text = io.TextIOWrapper(stream, "utf-8", "surrogateescape", newline="")
    csv.writer(text).writerows([columns, *zip(*columns.values(), strict=True)])
    text.detach()
