"""Features of any images by any image encoder, written to a file."""

import contextlib
import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import jax
import numpy as np

from hypersphere_jax import data, models
from hypersphere_jax.configs import DataConfig, FeaturesConfig, PretrainConfig, require
from hypersphere_jax.configs.base import check_output
from hypersphere_jax.data import Source
from hypersphere_jax.data.channels import with_channels
from hypersphere_jax.data.inputs import read_image
from hypersphere_jax.data.layouts import EXTENSIONS
from hypersphere_jax.data.pipeline import read
from hypersphere_jax.data.source import Arrays
from hypersphere_jax.data.subsets import Subset
from hypersphere_jax.encoder import WEIGHTS, Encoder, load
from hypersphere_jax.evaluation.features import Extractor, collect_features
from hypersphere_jax.training import distributed, run_dir
from hypersphere_jax.utils.files import atomic_write


class WrittenFeatures(NamedTuple):
    """Files that `run_features` wrote, and the features in them."""

    files: list[Path]
    shapes: dict[str, tuple[int, int]]  # [n, d] by split; "" if there is a single split
    is_labelled: bool  # whether every image has a label


class _Split(NamedTuple):
    x: np.ndarray  # float32 [n, d]
    labels: np.ndarray  # [n]
    files: list[str]  # path of each image, or empty
    class_names: Sequence[str]


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
    check_output(out, ".npy", ".npz")
    files = [out]
    if out.suffix.lower() == ".npy":
        files.append(out.with_suffix(".csv"))
        check_output(files[1], ".csv")
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
    is_labelled = all(bool((split.labels >= 0).all()) for split in splits.values())
    return WrittenFeatures(files, shapes, is_labelled)


def _open_sources(config: FeaturesConfig, encoder: Encoder) -> dict[str, Source]:
    """Return the splits by name, train first; the name of a single split is empty."""
    train, test = _open_splits(config, encoder)
    if config.split == "test":
        require(test is not None, f"split=test: {train.origin} has no test split")
        return {"": test}
    if config.split == "train" or test is None:
        return {"": train}
    return {"train": train, "test": test}


def _open_splits(config: FeaturesConfig, encoder: Encoder) -> tuple[Source, Source | None]:
    if config.images is not None:
        path = Path(config.images).expanduser()
        if path.suffix[1:].lower() in EXTENSIONS and path.is_file():
            return _ImageFile(read_image(path)[None], None, (), str(path)), None
        options = {"data_dir": config.data_dir, "bad_images": config.bad_images}
        return data.load_raw_splits(DataConfig(data=config.images, **options))
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


class _ImageFile(Arrays):
    """One image with the path of its file."""

    def file(self, index: int) -> str:
        return self.origin


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
    if len(encoder.layers[config.layer]) > 1:
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
    message = f"the encoder takes images with bits={trained.bits}, as in its run: omit images="
    require(not trained.extra_channels, message)
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


def _arrays(splits: dict[str, _Split]) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file."""
    arrays = {}
    for name, split in splits.items():
        keys = (f"{name}_x", f"{name}_y", f"{name}_files")
        if not name:
            keys = ("features", "labels", "files")
        values = (split.x, split.labels, np.array(split.files, np.str_))
        arrays |= dict(zip(keys, values, strict=True))
        arrays["names"] = np.array(split.class_names, np.str_)
    return arrays


def _write_rows(stream: BinaryIO, parts: Sequence[np.ndarray]) -> None:
    """Write arrays of rows, which may be larger than memory, as one .npy array."""
    shape = (sum(map(len, parts)), parts[0].shape[1])
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    for x in parts:
        stream.write(np.ascontiguousarray(x, "<f4").data)


def _write_table(stream: BinaryIO, splits: dict[str, _Split]) -> None:
    """Write split, label (-1 for none), class and file of each image, as far as they are known."""
    text = io.TextIOWrapper(stream, "utf-8", "surrogateescape", newline="")
    first, *_ = splits.values()
    columns = {"split": len(splits) > 1, "label": True, "class": bool(first.class_names)}
    columns["file"] = bool(first.files)
    names = [name for name, is_known in columns.items() if is_known]
    writer = csv.DictWriter(text, names, extrasaction="ignore")
    writer.writeheader()
    for name, split in splits.items():
        for row, label in enumerate(split.labels.tolist()):
            known = {"split": name, "label": label, "class": "", "file": ""}
            if label >= 0 and split.class_names:
                known["class"] = split.class_names[label]
            if split.files:
                known["file"] = split.files[row]
            writer.writerow(known)
    text.detach()
