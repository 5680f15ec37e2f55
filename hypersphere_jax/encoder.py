"""Trained encoders as functions of images: load, call, save."""

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hypersphere_jax import __version__, augment, models, pretrained
from hypersphere_jax.configs import PretrainConfig, UserError, from_dict, require, to_dict
from hypersphere_jax.data.channels import as_channels, same_channels
from hypersphere_jax.data.inputs import as_images, is_array, read_image
from hypersphere_jax.evaluation.features import PER_DEVICE, compile_layers
from hypersphere_jax.models.functional import named_arrays, named_leaves
from hypersphere_jax.models.torch_names import shortened
from hypersphere_jax.models.weight_files import read_safetensors, to_safetensors
from hypersphere_jax.training import distributed, run_dir
from hypersphere_jax.utils import xla
from hypersphere_jax.utils.files import atomic_write, parse_json

WEIGHTS = "weights.safetensors"
RECORD = "encoder"  # key of config and step in the metadata of WEIGHTS


@distributed.isolated()
def load(
    where: str | Path,
    step: int | None = None,
    *,
    runs_dir: str | Path = "runs",
    network: Any = None,
    preprocess: Callable | None = None,
    image_size: int | None = None,
    recipe: str | None = None,
    prefix: str | None = None,
    head: bool = True,
) -> "Encoder":
    """Load a trained image encoder.

    Args:
      where: a run (folder, or name in `runs_dir`), a folder written by `Encoder.save`, or a file of
        pretrained weights (.safetensors, .npz, or a PyTorch file if PyTorch is installed): a ResNet
        of torchvision, timm, Hugging Face, MoCo or SwAV, a ViT-Tiny or -Small of timm, or Wang &
        Isola's SmallAlexNet. The network is inferred from names and shapes; see docs/torch.md.
      step: checkpoint of a run. Defaults to the newest intact one.
      runs_dir: folder of all runs.
      network: custom network of the run, the same as in training.
      preprocess: custom preprocessing of the run, or of a file, instead of a recipe.
      image_size: side of the input images of a file in pixels. Defaults to 224 for a ResNet (32
        with a 3x3 stem), otherwise to the size that fits the weights.
      recipe: recipe that prepares the images for a file. Defaults to "moco" (ImageNet's) for a
        ResNet or ViT, "stl10" for SmallAlexNet, and "cifar10" for images below 64 pixels.
      prefix: prefix of the encoder's names in a file. Detected by default.
      head: False drops the head of a file, such as a classifier. "output" is then the last layer
        ("backbone" or "fc7") divided by its norm.

    Returns:
      The encoder, a function of images.

    Raises:
      UserError: for a missing encoder, damaged files, or a missing `network` or `preprocess`.

    Example:
      >>> import hypersphere_jax as hj
      >>> encoder = hj.load("runs/mine")  # doctest: +SKIP
      >>> z = encoder(images)  # float32 [n, d], unit norm  # doctest: +SKIP
      >>> h = encoder(images, layer="fc7")  # doctest: +SKIP
      >>> resnet = hj.load("resnet50.safetensors", head=False)  # doctest: +SKIP
    """
    custom = {"network": network, "preprocess": preprocess}
    custom = {name: value for name, value in custom.items() if value is not None}
    folder = Path(where)
    file = _weights_file(folder, runs_dir)
    if file is not None:
        is_plain = step is None and network is None
        require(is_plain, f"{file} is a file of weights; omit step and network")
        weights = pretrained.read_encoder(file, prefix, head=head, image_size=image_size)
        return _from_weights(weights, recipe, custom)
    file_options = {"image_size": image_size, "recipe": recipe, "prefix": prefix}
    given = [name for name, value in file_options.items() if value is not None]
    if not head:
        given.append("head=False")
    require(not given, f"{where} is not a file of weights; omit {', '.join(given)}")
    if (folder / WEIGHTS).is_file():
        require(step is None, f"{folder} is a saved encoder without checkpoints; omit step={step}")
        return _load_saved(folder / WEIGHTS, custom)
    folder = run_dir.find(str(where), runs_dir)
    config = _with_custom(run_dir.read_config(folder), custom)
    require(not config.reads_text, f"{folder} is an encoder of sentences, not of images")
    loaded = run_dir.load_encoder(folder, step, config)
    return Encoder(config, loaded.params, loaded.stats, loaded.step, loaded.apply)


def _weights_file(where: Path, runs_dir: str | Path) -> Path | None:
    """Return the file of weights at a path, existing or not; None for runs and saved encoders."""
    file = pretrained.weights_file(where)
    exists = file.exists() or Path(runs_dir, file).exists()
    is_missing = not exists and file.suffix.lower() in pretrained.SUFFIXES
    return file if file.is_file() or is_missing else None


def _from_weights(
    weights: pretrained.EncoderWeights, recipe: str | None, custom: dict[str, Any]
) -> "Encoder":
    file = weights.file
    params, stats = pretrained.to_params(weights, weights.model)
    recipe = recipe or pretrained.default_recipe(weights.model)
    try:
        augment.find(recipe)
    except ValueError as error:
        raise UserError(f"recipe={recipe!r}: {error}") from error
    name = file.stem
    if file.name == pretrained.HUGGING_FACE_FILE:
        name = file.resolve().parent.name
    options = vars(weights.model) | {"data": "unknown", "recipe": recipe}
    config = PretrainConfig(name=name or "encoder", **options).replace(**custom)
    apply, _, _ = models.abstract(weights.model)
    return Encoder(config, params, stats, 0, apply, origin=file.name)


def _load_saved(file: Path, custom: dict[str, Any]) -> "Encoder":
    saved, metadata = read_safetensors(file)
    text = metadata.get(RECORD, "").encode()
    record = parse_json(text, f"{file}: config", ("config", "step"), "save the encoder again")
    config = _with_custom(from_dict(PretrainConfig, record["config"]), custom)
    apply, params, stats = models.abstract(config)
    expected = named_leaves({"params": params, "stats": stats})
    types = {name: (np.dtype(leaf.dtype), leaf.shape) for name, leaf in expected.items()}
    found = {name: (array.dtype, array.shape) for name, array in saved.items()}
    names = sorted(types.keys() | found.keys())
    others = [name for name in names if types.get(name) != found.get(name)]
    require(not others, f"{file} is of another network, which differs in {shortened(others)}")
    structure = jax.tree.structure({"params": params, "stats": stats})
    tree = jax.tree.unflatten(structure, [saved[name] for name in expected])
    origin = record.get("origin")
    return Encoder(config, tree["params"], tree["stats"], record["step"], apply, origin)


def _with_custom(config: PretrainConfig, custom: dict[str, Any]) -> PretrainConfig:
    """Return the recorded config of an encoder with the custom parts that it names."""
    config = config.replace(**custom)
    name = config.preprocess  # a string, if the preprocessing itself is missing
    message = f"the images were prepared by {name}; pass it to hypersphere_jax.load(preprocess=…)"
    require(not isinstance(name, str), message)
    return config


@dataclasses.dataclass(eq=False, repr=False)
class Encoder:
    """A trained encoder: a function from images to points on the unit hypersphere.

    Attributes:
      config: config of its run.
      params: nested dict of float32 arrays.
      stats: running statistics of batch normalization, likewise.
      step: step of the checkpoint.
      apply: `apply(params, stats, x, train)`, the network; see `models.create`.
      origin: name of the file of weights, if it was not trained here.
    """

    config: PretrainConfig
    params: Any
    stats: Any
    step: int
    apply: Callable
    origin: str | None = None

    def __post_init__(self) -> None:
        self._programs: dict[tuple, Callable] = {}

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
        """Names of the layers in the network's order, and their shapes for one image."""
        return models.layers(self.config)

    def __call__(self, images: Any, layer: str = "output") -> np.ndarray:
        """Compute features of images, prepared as in the evaluation of its run.

        Args:
          images: an array or tensor `[n, h, w, c]` or `[n, h, w]`, uint8 or floats from 0 to 1,
            see `data.inputs.as_images`; or a list of images (see `data.inputs.as_image`) or of
            paths to files. Any size and number. A network of one channel sees the luma of RGB
            images.
          layer: a name in `layers`. "output" is on the unit hypersphere.

        Returns:
          float32 `[n, d]`, or `[n, h, w, c]` of a spatial layer. Computed on all devices.

        Raises:
          UserError: for an unknown layer, or images that do not fit.
        """
        models.check_layer(self.config, layer, "layer=")
        images = self._checked(images)
        count = len(distributed.local_devices())
        # A power of two on each device, so that few numbers of images are compiled.
        per_device = 2 ** max(0, -(-len(images) // count) - 1).bit_length()
        size = count * min(PER_DEVICE, per_device)
        parts = [np.zeros((0, *self.layers[layer]), np.float32)]
        for start in range(0, len(images), size):
            parts.append(self._features(images[start : start + size], layer, size))
        return np.concatenate(parts)

    def save(self, folder: str | Path) -> Path:
        """Write the weights with the config into one safetensors file.

        The file is replaced at once: an interrupted save leaves the earlier encoder.

        Args:
          folder: new, or one that contains a saved encoder, which is replaced.

        Raises:
          UserError: for a file, or a folder that contains other files.
          OSError: if the file cannot be written.
        """
        folder = Path(folder)
        require(folder.is_dir() or not folder.exists(), f"{folder} is a file: name a folder")
        others = {path.name for path in folder.glob("[!.]*")} - {WEIGHTS}
        example = min(others, default="")
        require(not others, f"{folder} contains other files, such as {example}: name another")
        record = {"version": __version__, "step": self.step, "origin": self.origin}
        record_text = json.dumps(record | {"config": to_dict(self.config)}, indent=2)
        arrays = named_arrays(self.params, self.stats)
        weights = to_safetensors(arrays, "hypersphere_jax", **{RECORD: record_text})
        with atomic_write(folder / WEIGHTS) as file:
            file.write(weights)
        return folder

    def _checked(self, images: Any) -> Any:
        """Return images as one array, or as a list."""
        if is_array(images):
            shape = np.shape(images)
            require(
                len(shape) != 3 or not shape[0] == 3 == self.config.in_channels,
                f"images: shape {shape} may be one channels-first image: pass "
                "images.transpose(1, 2, 0)[None], or grey images as images[..., None]",
            )
            return images if shape[:1] == (0,) else as_images(images, "images")
        is_several = hasattr(images, "__iter__") and not isinstance(images, str | Mapping)
        require(is_several, f"images must be an array, or a list of images or paths: {images!r}")
        return list(images)

    @distributed.isolated()
    def _features(self, part: Any, layer: str, size: int) -> np.ndarray:
        """Return the features of a batch, which is padded to `size` images."""
        images, cropped = self._array(part)
        padded = np.zeros((size, *images.shape[1:]), images.dtype)
        padded[: len(images)] = images
        devices = distributed.local_devices()
        rows = padded.reshape(len(devices), -1, *images.shape[1:])
        positions = np.arange(size, dtype=np.int32).reshape(len(devices), -1)
        program = self._program(layer, cropped, images.shape[1:])
        with xla.kept_compiled(self.config.cache_dir):
            (layers,) = program(self._weights, *distributed.split((rows, positions), devices))
            features = np.asarray(layers[layer])
        return features.reshape(-1, *self.layers[layer])[: len(images)]

    @functools.cached_property
    def _weights(self) -> Any:
        """Parameters and running statistics on all devices, and a key that nothing uses."""
        shared = ((self.params, self.stats), jax.random.key(0))
        return distributed.replicate(shared, distributed.local_devices())

    def _array(self, part: Any) -> tuple[np.ndarray, bool]:
        """Return images as one uint8 array, and whether they were cropped for that."""
        if isinstance(part, np.ndarray):
            return self._recoloured(part), False
        images = [self._recoloured(read_image(image)) for image in part]
        if len({image.shape for image in images}) == 1:
            return np.stack(images), False
        size: Any = self.config.image_size  # known for a trained encoder
        _, crop = augment.host_crops(augment.recipe_of(self.config), size)
        return np.stack([crop(image) for image in same_channels(images, "images")]), True

    def _recoloured(self, images: np.ndarray) -> np.ndarray:
        """Return grey or RGB images with the channels of the run's images."""
        config = self.config
        channels = config.channels
        if config.in_channels == 1 and config.preprocess is None:
            channels = 1
        if channels is None or images.shape[-1] not in (1, 3):
            return images
        return as_channels(images, channels)

    def _program(self, layer: str, cropped: bool, shape: tuple) -> Callable:
        """Return the compiled network for images of a shape that fits."""
        key = (layer, cropped, shape)
        if key not in self._programs:
            config = self.config
            size: Any = config.image_size
            options: Any = {"cropped": cropped, "extra_channels": config.extra_channels}
            prepare = augment.make_evaluate(augment.recipe_of(config), size, **options)
            try:
                view = jax.eval_shape(prepare, jax.ShapeDtypeStruct(shape, jnp.uint8))
            except ValueError as error:
                raise UserError(f"images of shape {list(shape)}: {error}") from error
            require(
                view.shape[-1] == config.in_channels,
                f"images of {shape[-1]} channel(s), and the encoder takes {config.in_channels}",
            )
            pools = {layer: "none"}
            devices = distributed.local_devices()
            program = compile_layers(self.apply, config, cropped, "evaluation", pools, devices)
            self._programs[key] = program
        return self._programs[key]
