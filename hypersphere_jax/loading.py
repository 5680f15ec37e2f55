"""Trained encoders from folders of runs, folders that one was saved in, and files of weights."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from hypersphere_jax import augment, models, torch_files
from hypersphere_jax.configs import PretrainConfig, UserError, from_dict, require
from hypersphere_jax.encoder import RECORD, WEIGHTS, Encoder
from hypersphere_jax.models.torch_names import shortened
from hypersphere_jax.training import distributed, run_dir
from hypersphere_jax.utils.files import parse_json

logger = logging.getLogger("hypersphere_jax")


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
    """Loads a trained encoder of images.

    Args:
      where: the folder of a run, or its name in `runs_dir`, trained here or imported; a folder
        that `Encoder.save` wrote; or a file of weights that others trained (.safetensors, .npz,
        PyTorch's .pth, .pt, .pth.tar): ResNets of torchvision, timm, Hugging Face, MoCo or SwAV,
        and Wang & Isola's SmallAlexNet. The network is inferred from names and shapes,
        docs/torch.md.
      step: of a run's checkpoint; None: the newest one that is sound.
      runs_dir: folder of all runs.
      network: of an encoder whose network is the user's own, the same as in training.
      preprocess: likewise, image to image in evaluation. Of a file: in place of the recipe.
      image_size: of a file: side of the images that enter, pixels. None: 224 for a ResNet, 32 if it
        begins with a 3x3 convolution; what SmallAlexNet's `fc6` is for.
      recipe: of a file: the name of the recipe that prepares images. None: "moco", ImageNet's
        usual one, for a ResNet; "stl10" for SmallAlexNet; "cifar10" for images below 64 pixels.
      prefix: of a file: that of the encoder's names. None: it is detected.
      head: of a file: False leaves its head, such as a classifier, out. Without a head "output" is
        the layer before it ("backbone", "fc7") divided by its norm.

    Returns:
      The encoder, a function of images.

    Raises:
      UserError: when there is no such encoder, its files are damaged, or it needs a `network` or
        `preprocess`.

    Example:
      >>> import hypersphere_jax as hj
      >>> encoder = hj.load("runs/mine")  # doctest: +SKIP
      >>> z = encoder(images)  # float32 [n, d], unit norm  # doctest: +SKIP
      >>> h = encoder(images, layer="fc7")  # doctest: +SKIP
      >>> resnet = hj.load("resnet50.safetensors", head=False)  # doctest: +SKIP
    """
    own = {"network": network, "preprocess": preprocess}
    own = {name: value for name, value in own.items() if value is not None}
    given = {"image_size": image_size, "recipe": recipe, "prefix": prefix}
    given["head=False"] = None if head else False
    of_file = [name for name, value in given.items() if value is not None]
    file = _file_of_weights(Path(where), runs_dir)
    if file is not None:
        fits = step is None and network is None
        require(fits, f"step and network are not for files of weights, and {file} is one")
        return _load_file(file, own, image_size, recipe, prefix, head)
    require(not of_file, f"{', '.join(of_file)}: for files of weights only, and {where} is none")
    folder = Path(where)
    if (folder / WEIGHTS).is_file():
        require(step is None, f"step={step} is of a run's checkpoints, and {folder} is one encoder")
        return _load_saved(folder, own)
    folder = run_dir.find(str(where), runs_dir)
    config = run_dir.read_config(folder).replace(**own)
    require(not config.reads_text, f"{folder} is an encoder of sentences, not of images")
    _require_preprocess(config)
    loaded = run_dir.load_encoder(folder, step, config)
    return Encoder(config, loaded.params, loaded.stats, loaded.step, loaded.apply)


def _file_of_weights(where: Path, runs_dir: str | Path) -> Path | None:
    """The file of weights that a path means, if it does: itself, or that of a downloaded folder."""
    where = torch_files.file_in(where)
    exists = where.exists() or Path(runs_dir, where).exists()
    missing = not exists and where.suffix.lower() in torch_files.SUFFIXES
    return where if where.is_file() or missing else None


def _load_file(
    file: Path,
    own: dict[str, Any],
    image_size: int | None,
    recipe: str | None,
    prefix: str | None,
    head: bool,
) -> Encoder:
    state = torch_files.read_state(file)
    with torch_files.naming(file):
        state, unused = torch_files.encoder_of(state, prefix)
        state = state if head else torch_files.without_head(state)[0]
        model = torch_files.infer(state, image_size)
        params, stats = torch_files.converted(state, model)
    if unused:
        logger.warning("ignored in %s: %s", file, shortened(unused))
    recipe = torch_files.recipe_of(model) if recipe is None else recipe
    try:
        augment.find(recipe)
    except ValueError as error:
        raise UserError(f"recipe={recipe!r}: {error}") from error
    name = file.resolve().parent.name if file.name == torch_files.OF_FOLDER else file.stem
    options = vars(model) | {"data": "unknown", "recipe": recipe}
    config = PretrainConfig(name=name or "encoder", **options).replace(**own)
    return Encoder(config, params, stats, 0, models.abstract(model)[0], origin=file.name)


def _require_preprocess(config: PretrainConfig) -> None:
    own = config.preprocess
    require(not isinstance(own, str), f"images were prepared by your own {own}: give preprocess=")


def _load_saved(folder: Path, own: dict[str, Any]) -> Encoder:
    saved, metadata = torch_files.read_safetensors(folder / WEIGHTS)
    where, text = f"{folder / WEIGHTS}: config", metadata.get(RECORD, "")
    record = parse_json(text.encode(), where, ("config", "step"), "save the encoder again")
    config = from_dict(PretrainConfig, record["config"]).replace(**own)
    _require_preprocess(config)
    apply, params, stats = models.abstract(config)
    like = {"params": params, "stats": stats}
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]
    require(
        saved.keys() == set(names),
        f"{folder / WEIGHTS} is of another network: missing are "
        f"{sorted(set(names) - saved.keys())[:3]}, unexpected "
        f"{sorted(saved.keys() - set(names))[:3]}",
    )
    arrays = [saved[name] for name in names]
    for name, array, (_, leaf) in zip(names, arrays, leaves, strict=True):
        require(
            array.shape == leaf.shape and array.dtype == leaf.dtype,
            f"{folder / WEIGHTS}: {name} is {array.dtype} {array.shape}, not {leaf.shape}",
        )
    tree = jax.tree.unflatten(structure, arrays)
    origin = record.get("origin")
    return Encoder(config, tree["params"], tree["stats"], record["step"], apply, origin)
