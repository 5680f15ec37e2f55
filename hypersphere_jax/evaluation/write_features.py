"""Features of any images by any image encoder, written to a file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from hypersphere_jax import data, models
from hypersphere_jax.configs import DataConfig, FeaturesConfig, require
from hypersphere_jax.configs.base import check_output
from hypersphere_jax.data import Arrays, Source
from hypersphere_jax.data.channels import with_channels
from hypersphere_jax.data.inputs import read_image
from hypersphere_jax.data.layouts import EXTENSIONS
from hypersphere_jax.data.pipeline import read
from hypersphere_jax.data.subsets import Subset
from hypersphere_jax.encoder import WEIGHTS, Encoder, load
from hypersphere_jax.evaluation.features import Extractor, collect_features
from hypersphere_jax.training import distributed, run_dir
from hypersphere_jax.utils.files import atomic_write


class WrittenSplit(NamedTuple):
    """Features of a split, and the images that they are of."""

    x: np.ndarray  # float32 [n, d], on disk
    labels: np.ndarray  # [n], -1 for unlabelled images
    files: list[str]  # path of each image, or empty
    class_names: Sequence[str]


@distributed.isolated()
def run_features(config: FeaturesConfig) -> dict[str, WrittenSplit]:
    """Write a flattened layer of images, as returned by `hypersphere_jax.load(run)(images, layer)`.

    The file appears when it is complete.

    Args:
      config: encoder, images, layer and file.

    Returns:
      What was written, by split: train first; the name of a single split is empty.

    Raises:
      UserError: for an encoder, images or a layer that do not exist, and for unreadable images.
    """
    check_output(config.out, ".npy", ".npz")
    devices = distributed.local_devices(config.devices)
    encoder = load(config.run, config.step, runs_dir=config.runs_dir)
    models.check_layer(encoder.config, config.layer, "layer=")
    train, test = _open_splits(config, encoder)
    sources = {"train": train, "test": test}
    if config.split == "test":
        require(test is not None, f"split=test: {train.origin} has no test split")
        sources = {"": test}
    elif config.split == "train" or test is None:
        sources = {"": train}
    splits = {name: _extract(config, encoder, sources[name], devices) for name in sources}
    with atomic_write(config.out) as stream:
        if config.out.suffix.lower() == ".npz":
            np.savez(stream, **_arrays(splits))
        elif len(splits) == 1:
            np.save(stream, splits[""].x)  # which may be larger than memory
        else:
            np.save(stream, np.concatenate([split.x for split in splits.values()]))
    return splits


def _open_splits(config: FeaturesConfig, encoder: Encoder) -> tuple[Source, Any]:
    """Return the training split, and the test split or None."""
    if config.images is not None:
        path = Path(config.images).expanduser()
        if path.suffix[1:].lower() in EXTENSIONS and path.is_file():
            return Arrays(read_image(path)[None], None, (), str(path)), None
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


def _extract(
    config: FeaturesConfig, encoder: Encoder, source: Source, devices: list[jax.Device]
) -> WrittenSplit:
    """Return the features of the readable images of a split, in their order."""
    trained = encoder.config
    if config.images is not None:
        trained = trained.replace(bad_images=config.bad_images)
        source = _fit_channels(source, encoder)
    elif config.bad_images == "skip":
        trained = trained.replace(bad_images="skip")
    pools = {config.layer: "none"}
    if len(encoder.layers[config.layer]) > 1:
        pools[config.layer] = config.pool
    extractor = Extractor(encoder.apply, trained, source, devices, pools)
    batches = extractor.forward(encoder.params, encoder.stats, extractor.read())
    x, labels = collect_features(batches, config.out.resolve().parent)[config.layer]
    files = [_file_of(source, int(index)) for index in np.concatenate(extractor.indices)]
    return WrittenSplit(x, labels, [file for file in files if file], source.class_names)


def _fit_channels(source: Source, encoder: Encoder) -> Source:
    """Convert gray or RGB images to the channels of the encoder; UserError for others."""
    trained = encoder.config
    if trained.preprocess is not None:
        return source
    message = f"the encoder takes images with bits={trained.bits}, as in its run: omit images="
    require(not trained.extra_channels, message)
    channels = trained.in_channels
    if channels in (1, 3):
        return with_channels(source, channels)
    sample, _ = read(source, 0)
    found = sample["image"].shape[2]
    message = f"{source.origin} has images of {found} channels, and the encoder takes {channels}"
    require(found == channels, message)
    return source


def _file_of(source: Any, index: int) -> str:
    """Return the path of an image, or an empty string for images that are not in files."""
    while hasattr(source, "source"):
        if isinstance(source, Subset):
            index = int(source.indices[index])
        source = source.source
    return source.file(index) if hasattr(source, "file") else ""


def _arrays(splits: dict[str, WrittenSplit]) -> dict[str, np.ndarray]:
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
