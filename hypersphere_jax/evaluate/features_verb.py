"""The verb `features`: layers of any images by any encoder, in a file."""

import contextlib
import csv
import functools
import io
import itertools
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import jax
import numpy as np

from hypersphere_jax import data, encoder, models
from hypersphere_jax.configs import DataConfig, FeaturesConfig, UserError, require
from hypersphere_jax.configs.base import check_output
from hypersphere_jax.data import Source, subsets
from hypersphere_jax.data.decode import decode, reason
from hypersphere_jax.data.image_files import EXTENSIONS, ImageFiles
from hypersphere_jax.data.pipeline import BadImages, read
from hypersphere_jax.data.source import Arrays
from hypersphere_jax.data.threads import thread_pool
from hypersphere_jax.evaluate.feature_cache import write_header
from hypersphere_jax.evaluate.features import POOLS
from hypersphere_jax.training import distributed, run_dir
from hypersphere_jax.utils.files import atomic_write
from hypersphere_jax.utils.terminal import track


class Written(NamedTuple):
    """What `run_features` wrote."""

    files: list[Path]
    shapes: dict[str, tuple[int, int]]  # [n, d] of features, by the split; "" where there is one
    norms: tuple[float, float]  # of features, the least and the largest
    labelled: bool  # whether every image has a label


class _File(Arrays):
    """The image of one file."""

    def file(self, i: int) -> str:
        return self.origin


class _Split:
    """Images of one split, and which of them could be read."""

    def __init__(self, name: str, source: Source, on_bad: Any):
        self.name, self.source, self.bad = name, source, BadImages(source, on_bad)
        self.rows: list[int] = []

    @property
    def labels(self) -> np.ndarray:
        return self.source.labels[self.rows]

    @property
    def files(self) -> list[str]:
        name_of = _names(self.source)
        return [] if name_of is None else [name_of(i) for i in self.rows]

    def images(self) -> Iterable:
        """All that can be read, in their order, decoded a few at a time."""
        if isinstance(self.source, Arrays):
            self.rows += range(len(self.source))
            return self.source.images
        return self._decoded()

    def _decoded(self) -> Iterator[np.ndarray]:
        numbers = iter(range(len(self.source)))
        one = functools.partial(read, self.source, replace=False)
        with thread_pool(os.cpu_count()) as pool:
            while few := list(itertools.islice(numbers, encoder.LARGEST_BATCH)):
                for i, (sample, missing) in zip(few, pool.map(one, few), strict=True):
                    self.bad.report(missing)
                    if sample:
                        self.rows.append(i)
                        yield sample["image"]


@distributed.isolated()
def run_features(config: FeaturesConfig) -> Written:
    """Writes a layer of images, as `hypersphere_jax.load` gives it, flattened, in their order.

    Features go to the disk batch by batch, and the file has its name when it is whole.

    Raises:
      UserError: for an encoder, images or a layer that are not there, and for unreadable images.
    """
    devices, table = distributed.local_devices(config.devices), config.out.with_suffix(".csv")
    alone = config.out.suffix.lower() == ".npy"
    check_output(config.out, ".npy", ".npz")
    check_output(table if alone else None, ".csv")
    network = encoder.load(config.run, config.step, runs_dir=config.runs_dir)
    models.check_layer(network.config, config.layer, "layer=")
    splits, norms = _splits(config, network), list[float]()
    batches = {split.name: _batches(config, network, split, devices, norms) for split in splits}
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(atomic_write(config.out))
        if alone:
            shapes = {"": _write(stream, itertools.chain(*batches.values())).shape}
            _write_table(stack.enter_context(atomic_write(table)), splits)
        else:
            arrays, shapes = {"names": np.array(splits[0].source.class_names, np.str_)}, {}
            for split in splits:
                names = [f"{split.name}_{name}" for name in ("x", "y", "files")]
                names = names if split.name else ["features", "labels", "files"]
                kept = stack.enter_context(tempfile.TemporaryFile(dir=config.out.parent))
                x = _write(kept, batches[split.name])
                values = (x, split.labels, np.array(split.files, np.str_))
                arrays |= zip(names, values, strict=True)
                shapes[split.name] = x.shape
            np.savez(stream, **arrays)
    labelled = all(bool((split.labels >= 0).all()) for split in splits)
    files = [config.out, table] if alone else [config.out]
    return Written(files, shapes, (min(norms), max(norms)), labelled)


def _splits(config: FeaturesConfig, network: encoder.Encoder) -> list[_Split]:
    """The splits to take, in their order; of one that is alone the name is empty."""
    own, on_bad = network.config, config.bad_images
    if config.images is not None:
        train, test = _named(config)
    else:
        train, test = _own(config, network)
        on_bad = "skip" if "skip" in (on_bad, own.bad_images) else "error"
    sources = {"train": train, "test": test}
    if config.split != "all":
        source = sources[config.split]
        require(source is not None, f"split=test: {train.origin} has no test split")
        return [_Split("", source, on_bad)]
    if test is None:
        return [_Split("", train, on_bad)]
    return [_Split(name, source, on_bad) for name, source in sources.items()]


def _named(config: FeaturesConfig) -> tuple[Source, Source | None]:
    path = Path(config.images).expanduser()
    if path.suffix[1:].lower() in EXTENSIONS and path.is_file():
        try:
            image = decode(path.read_bytes())
        except Exception as error:  # of nearly any type, for a damaged file
            raise UserError(f"{path}: {reason(error)}") from error
        return _File(image[None], None, (), str(path)), None
    options = {"data_dir": config.data_dir, "bad_images": config.bad_images}
    return data.load_raw_splits(DataConfig(data=config.images, **options))


def _own(config: FeaturesConfig, network: encoder.Encoder) -> tuple[Source, Source | None]:
    own = network.config
    why = None
    if network.origin is not None:
        why = "holds weights alone"
    elif isinstance(own.source, str):
        why = f"was trained on your own {own.source}"
    require(why is None, f"{config.run} {why}: name images with images=")
    if (Path(config.run) / encoder.WEIGHTS).is_file():
        dataset = data.load(run_dir.moved(own, config.data_dir))
    else:
        folder = run_dir.find(config.run, config.runs_dir)
        dataset = run_dir.load_data(folder, config.data_dir)
    return dataset.train, dataset.test


def _batches(
    config: FeaturesConfig,
    network: encoder.Encoder,
    split: _Split,
    devices: Sequence[jax.Device],
    norms: list[float],
) -> Iterator[np.ndarray]:
    """Features `[b, d]`; adds the least and the largest of their norms."""
    pool = POOLS[config.pool] if len(network.layers[config.layer]) == 3 else POOLS["none"]
    n = len(split.source)
    parts = network.batches(split.images(), config.layer, n, devices)
    count = -(-n // (encoder.LARGEST_BATCH * len(devices)))
    for x in track(parts, " ".join(["features", split.name]).strip(), count):
        x = np.asarray(pool(x)).reshape(len(x), -1)
        lengths = np.linalg.norm(x, axis=1)
        norms += [float(lengths.min()), float(lengths.max())]
        yield x


def _write(stream: BinaryIO, batches: Iterable[np.ndarray]) -> np.ndarray:
    """Writes rows as an .npy file, and maps them."""
    n, width = 0, 0
    for x in batches:
        if not n:
            width = x.shape[1]
            write_header(stream, (0, width))
        stream.write(np.ascontiguousarray(x, "<f4").data)
        n += len(x)
    start = stream.tell() - 4 * n * width
    stream.seek(0)
    write_header(stream, (n, width))
    stream.flush()
    return np.memmap(stream, "<f4", "r", start, (n, width))


def _write_table(stream: BinaryIO, splits: list[_Split]) -> None:
    """Split, label (-1: none), class and file of each row."""
    columns: dict[str, list] = {}
    if len(splits) > 1:
        columns["split"] = [split.name for split in splits for _ in split.rows]
    columns["label"] = labels = np.concatenate([split.labels for split in splits]).tolist()
    if names := splits[0].source.class_names:
        columns["class"] = [names[label] if label >= 0 else "" for label in labels]
    if files := [file for split in splits for file in split.files]:
        columns["file"] = files
    text = io.TextIOWrapper(stream, "utf-8", "surrogateescape", newline="")
    csv.writer(text).writerows([columns, *zip(*columns.values(), strict=True)])
    text.detach()


def _names(source: Any) -> Callable[[int], str] | None:
    """What maps numbers of a source to paths of files; None where images are no files."""
    if isinstance(source, ImageFiles | _File):
        return source.file
    name_of = _names(source.source) if hasattr(source, "source") else None
    if name_of is not None and isinstance(source, subsets.Subset):
        return lambda i: name_of(int(source.indices[i]))
    return name_of
