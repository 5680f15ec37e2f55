"""Trained encoders as functions of images: call, save; `loading` loads them."""

import contextlib
import functools
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hypersphere_jax import __version__, augment, models, pretrained
from hypersphere_jax.configs import PretrainConfig, UserError, require, to_dict
from hypersphere_jax.data.channels import as_channels, same_channels
from hypersphere_jax.data.decode import decode, reason
from hypersphere_jax.data.inputs import as_image, as_images, is_array
from hypersphere_jax.training import distributed
from hypersphere_jax.utils import xla
from hypersphere_jax.utils.files import atomic_write, open_file

WEIGHTS, CONFIG, CARD = "weights.safetensors", "encoder.json", "README.md"
RECORD = "encoder"  # the metadata of WEIGHTS with the content of CONFIG
LARGEST_BATCH = 256  # images on a device at once


class Encoder:
    """A trained encoder: a function from images to points on the unit hypersphere.

    Attributes:
      config: of its run.
      params: nested dict of float32 arrays.
      stats: running statistics of batch normalization, likewise.
      step: of the checkpoint.
      apply: `apply(params, stats, x, train)`, the network itself; see `models.create`.
      origin: the name of the file of weights, if it was not trained here.
    """

    def __init__(
        self,
        config: PretrainConfig,
        params: Any,
        stats: Any,
        step: int,
        apply: Callable,
        origin: str | None = None,
    ):
        self.config, self.params, self.stats = config, params, stats
        self.step, self.apply, self.origin = step, apply, origin
        self._programs: dict[tuple, Callable] = {}

    def __reduce__(self) -> tuple:
        """Pickle and copy without compiled programs and `apply`, which the config determines."""
        config = self.config.replace(source=None)  # which may be the user's images
        return _restored, (config, self.params, self.stats, self.step, self.origin)

    def __repr__(self) -> str:
        config = self.config
        images = f"{config.image_size}x{config.image_size}x{config.in_channels} images"
        count = sum(leaf.size for leaf in jax.tree.leaves(self.params))
        source = f"step {self.step}" if self.origin is None else f"weights of {self.origin}"
        what = f"{config.label}, {images}, {count:,} parameters, {source}"
        return f"Encoder({self.config.name!r}: {what})"

    @functools.cached_property
    @distributed.isolated()
    def layers(self) -> dict[str, tuple[int, ...]]:
        """Names of its layers, in the network's order, and their shapes for one image."""
        return models.layers(self.config)

    def __call__(self, images: Any, layer: str = "output") -> np.ndarray:
        """Features of images, prepared as in the evaluation of its run: resized, and normalized.

        Args:
          images: an array or tensor `[n, h, w, c]` or `[n, h, w]`, uint8 or floats from 0 to 1,
            see `data.inputs.as_images`; or a list of images (see `data.inputs.as_image`) or of
            paths to files. Any size and number. A network of one channel sees the luma of RGB
            images.
          layer: a name in `layers`. "output" is on the unit hypersphere.

        Returns:
          float32 `[n, d]`, or `[n, h, w, c]` of a layer with space. Computed on all devices.

        Raises:
          UserError: for a layer that it does not have, or images that do not fit.
        """
        models.check_layer(self.config, layer, "layer=")
        if is_array(images):
            shape = np.shape(images)
            require(
                len(shape) != 3 or not shape[0] == 3 == self.config.in_channels,
                f"images: shape {shape} may be one channels-first image: pass "
                "images.transpose(1, 2, 0)[None], or grey images as images[..., None]",
            )
            images = as_images(images, "images") if np.shape(images)[:1] != (0,) else images
        else:
            one_path = isinstance(images, str | os.PathLike)
            require(not one_path, f"{images} is one path: pass a list of paths")
            many = hasattr(images, "__iter__") or hasattr(images, "__getitem__")
            what = f"images must be an array or a list, not a {type(images).__name__}"
            require(many and not isinstance(images, Mapping), what)
            images = list(images)
        if not len(images):
            return np.zeros((0, *self.layers[layer]), np.float32)
        return np.concatenate(list(self.batches(images, layer, len(images))))

    def batches(
        self,
        images: Any,
        layer: str = "output",
        count: int | None = None,
        devices: Sequence[jax.Device] | None = None,
    ) -> Iterator[np.ndarray]:
        """The same features batch by batch, of more images than memory holds.

        Args:
          images: an array or tensor, or images one by one, each as in a list.
          layer: a name in `layers`.
          count: how many images there are, or more. None: many.
          devices: to compute on. None: all.
        """
        models.check_layer(self.config, layer, "layer=")
        devices = distributed.local_devices(given=devices)
        wanted = LARGEST_BATCH if count is None else -(-count // len(devices))
        # A power of two, so that few numbers of images are compiled.
        size = min(LARGEST_BATCH, 1 << (wanted - 1).bit_length()) * len(devices)
        if is_array(images):
            starts = range(0, len(images), size)
            parts = (as_images(images[start : start + size], "images") for start in starts)
        else:
            left = iter(images)
            parts = iter(lambda: list(itertools.islice(left, size)), [])
        for part in parts:
            yield self._features(part, layer, size, devices)

    def save(self, folder: str | Path) -> Path:
        """Write weights with the config (safetensors), a copy of the config, and a card.

        `load` reads the weights' file only, which is replaced last and at once: an interrupted save
        leaves the earlier encoder.

        Args:
          folder: new, or one that contains a saved encoder, which is replaced.

        Raises:
          UserError: for a file, or a folder that contains other files.
          OSError: when the files cannot be written.
        """
        folder = Path(folder)
        require(folder.is_dir() or not folder.exists(), f"{folder} is a file: name a folder")
        folder.mkdir(parents=True, exist_ok=True)
        taken = {path.name for path in folder.glob("[!.]*")} - {WEIGHTS, CONFIG, CARD}
        require(
            not taken,
            f"{folder} contains other files, such as {min(taken, default='')}: name another",
        )
        record = {"version": __version__, "step": self.step, "origin": self.origin}
        record_text = json.dumps(record | {"config": to_dict(self.config)}, indent=2)
        arrays = named_arrays(self.params, self.stats)
        weights = pretrained.to_safetensors(arrays, "hypersphere_jax", **{RECORD: record_text})
        texts = {CONFIG: record_text + "\n", CARD: self._card()}
        with contextlib.ExitStack() as stack:
            # The stack replaces the files in the opposite order, after all were written.
            stack.enter_context(atomic_write(folder / WEIGHTS)).write(weights)
            for name, text in texts.items():
                stack.enter_context(atomic_write(folder / name)).write(text.encode())
        return folder

    @distributed.isolated()
    def _features(self, part: Any, layer: str, size: int, devices: Sequence) -> np.ndarray:
        images, cropped = self._array(part)
        padded = np.zeros((size, *images.shape[1:]), images.dtype)
        padded[: len(images)] = images
        program = self._program(layer, cropped, images.shape[1:], tuple(devices))
        rows = distributed.split(padded.reshape(len(devices), -1, *images.shape[1:]), devices)
        with xla.kept_compiled(self.config.cache_dir):
            layers = np.asarray(program(*self._on(tuple(devices)), rows))
        return layers.reshape(-1, *layers.shape[2:])[: len(images)]

    def _array(self, part: Any) -> tuple[np.ndarray, bool]:
        """Images as one uint8 array, and whether they had to be cropped for that."""
        if isinstance(part, np.ndarray):
            return self._recoloured(part), False
        images = [self._recoloured(_image(image)) for image in part]
        if len({image.shape for image in images}) == 1:
            return np.stack(images), False
        config = self.config
        size: Any = config.image_size  # which is known of a trained encoder
        crop = augment.host_crops(augment.recipe_of(config), size)[1]
        return np.stack([crop(image) for image in same_channels(images, "images")]), True

    def _recoloured(self, images: np.ndarray) -> np.ndarray:
        """Grey or RGB images as the run had them: grey, if its network takes one channel."""
        channels = self.config.in_channels
        if self.config.in_channels == 1 and self.config.preprocess is None:
            channels = 1
        if channels is None or images.shape[-1] not in (1, 3):
            return images
        return as_channels(images, channels)

    def _on(self, devices: tuple) -> Any:
        if getattr(self, "_placed", (None,))[0] != devices:
            self._placed = devices, distributed.replicate((self.params, self.stats), devices)
        return self._placed[1]

    def _program(self, layer: str, cropped: bool, shape: tuple, devices: tuple) -> Callable:
        key = layer, cropped, shape, devices
        if key not in self._programs:
            config = self.config
            size: Any = config.image_size
            prepare = augment.make_evaluate(
                augment.recipe_of(config),
                size,
                cropped=cropped,
                extra_channels=config.extra_channels,
            )
            try:
                view = jax.eval_shape(prepare, jax.ShapeDtypeStruct(shape, jnp.uint8))
            except ValueError as error:
                raise UserError(f"images of shape {list(shape)}: {error}") from error
            channels = config.in_channels
            require(
                view.shape[-1] == channels,
                f"images of {shape[-1]} channel(s), and the encoder takes {channels}",
            )

            def features(params: Any, stats: Any, images: jax.Array) -> jax.Array:
                outputs, _ = self.apply(params, stats, jax.vmap(prepare)(images), False)
                return outputs[layer]

            self._programs[key] = distributed.pmap(features, devices)
        return self._programs[key]

    def _card(self) -> str:
        config = self.config
        layers = "\n".join(f"| `{name}` | {list(shape)} |" for name, shape in self.layers.items())
        size = config.image_size
        images, batch = f"by the recipe `{config.recipe}`", config.batch_size
        if self.origin is not None:
            rows = f"| evaluation images | {images} |\n| weights of | `{self.origin}` |"
        else:
            rows = f"""| data | {config.data}, evaluation images {images} |
| trained | step {self.step}, seed {config.seed}, batches of {batch} |"""
        own = {"network": config.network, "preprocess": config.preprocess}
        own = [name for name, value in own.items() if value is not None]
        needs = "".join(f", {name}={name}" for name in own)
        yours = f"  # your own {' and '.join(own)}, as in training" if own else ""
        return f"""# {config.name}

An encoder of images on the unit hypersphere, written by hypersphere_jax {__version__}.

```python
import hypersphere_jax as hj
encoder = hj.load("{config.name}"{needs}){yours}
z = encoder(images)  # float32 [n, {self.layers["output"][-1]}], unit norm
```

| | |
| --- | --- |
| network | {config.label}, {size} x {size} pixels, {config.in_channels} channel(s) |
{rows}

| layer | shape |
| --- | --- |
{layers}
"""


def _restored(config: PretrainConfig, params: Any, stats: Any, step: int, origin: str) -> Encoder:
    apply, _, _ = models.abstract(config)
    return Encoder(config, params, stats, step, apply, origin)


def named_arrays(params: Any, stats: Any) -> dict[str, np.ndarray]:
    """Parameters and statistics by their paths, such as "params/conv1/layer/kernel"."""
    leaves = jax.tree_util.tree_leaves_with_path({"params": params, "stats": stats})
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): np.array(leaf, order="C")
        for path, leaf in leaves
    }


def _image(image: Any) -> np.ndarray:
    try:
        if isinstance(image, str | Path):
            with open_file(image) as stream:
                return decode(stream.read())
        return as_image(image)
    except Exception as error:  # of nearly any type, for a damaged file
        what = f"{image}" if isinstance(image, str | Path) else "an image"
        raise UserError(f"{what}: {reason(error)}") from error
