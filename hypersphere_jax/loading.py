"""Load trained encoders: runs, saved encoders, and pretrained weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from hypersphere_jax import augment, models, pretrained
from hypersphere_jax.configs import PretrainConfig, UserError, from_dict, require
from hypersphere_jax.encoder import RECORD, WEIGHTS, Encoder
from hypersphere_jax.models.torch_names import shortened
from hypersphere_jax.training import distributed, run_dir
from hypersphere_jax.utils.files import parse_json


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
) -> Encoder:
    """Load a trained image encoder.

    Args:
      where: a run (folder, or name in `runs_dir`), a folder written by `Encoder.save`, or a file of
        pretrained weights (.safetensors, .npz, or a PyTorch file if PyTorch is installed): a ResNet
        of torchvision, timm, Hugging Face, MoCo or SwAV, or Wang & Isola's SmallAlexNet. The
        network is inferred from names and shapes; see docs/torch.md.
      step: checkpoint of a run. Defaults to the newest intact one.
      runs_dir: folder of all runs.
      network: custom network of the run, the same as in training.
      preprocess: custom preprocessing of the run, or of a file, instead of a recipe.
      image_size: side of the input images of a file in pixels. Defaults to 224 for a ResNet (32
        with a 3x3 stem), and to the size that fits the `fc6` of a SmallAlexNet.
      recipe: recipe that prepares the images for a file. Defaults to "moco" (ImageNet's) for a
        ResNet, "stl10" for SmallAlexNet, and "cifar10" for images below 64 pixels.
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
    file = _weights_file(Path(where), runs_dir)
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
    folder = Path(where)
    if (folder / WEIGHTS).is_file():
        require(step is None, f"{folder} is a saved encoder without checkpoints; omit step={step}")
        return _load_saved(folder, custom)
    folder = run_dir.find(str(where), runs_dir)
    config = run_dir.read_config(folder).replace(**custom)
    require(not config.reads_text, f"{folder} is an encoder of sentences, not of images")
    _require_preprocess(config)
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
) -> Encoder:
    file = weights.file
    params, stats = pretrained.to_params(weights, weights.model)
    if recipe is None:
        recipe = pretrained.default_recipe(weights.model)
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


def _require_preprocess(config: PretrainConfig) -> None:
    name = config.preprocess
    require(
        not isinstance(name, str), f"the images were prepared by {name}; pass preprocess={name}"
    )


def _load_saved(folder: Path, custom: dict[str, Any]) -> Encoder:
    file = folder / WEIGHTS
    saved, metadata = pretrained.read_safetensors(file)
    text = metadata.get(RECORD, "").encode()
    record = parse_json(text, f"{file}: config", ("config", "step"), "save the encoder again")
    config = from_dict(PretrainConfig, record["config"]).replace(**custom)
    _require_preprocess(config)
    apply, params, stats = models.abstract(config)
    leaves, structure = jax.tree_util.tree_flatten_with_path({"params": params, "stats": stats})
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]
    missing = sorted(set(names) - saved.keys())
    unexpected = sorted(saved.keys() - set(names))
    require(
        not missing and not unexpected,
        f"{file} is of another network: missing {shortened(missing)}, unexpected "
        f"{shortened(unexpected)}",
    )
    arrays = [saved[name] for name in names]
    for name, array, (_, leaf) in zip(names, arrays, leaves, strict=True):
        require(
            array.shape == leaf.shape and array.dtype == leaf.dtype,
            f"{file}: {name} is {array.dtype} {array.shape}, not {leaf.dtype} {leaf.shape}",
        )
    tree = jax.tree.unflatten(structure, arrays)
    origin = record.get("origin")
    return Encoder(config, tree["params"], tree["stats"], record["step"], apply, origin)
