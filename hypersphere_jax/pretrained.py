"""Pretrained weights: find the encoder in a file, import it as a run, and export encoders."""

import contextlib
import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from hypersphere_jax import data, models
from hypersphere_jax.configs import (
    DataConfig,
    ExportConfig,
    ImportConfig,
    ModelConfig,
    PretrainConfig,
    UserError,
    require,
    section,
)
from hypersphere_jax.configs.base import check_output
from hypersphere_jax.models.state_dicts import StateDict, infer_model, select_encoder, without_head
from hypersphere_jax.models.torch_names import from_torch, has_torch_names, shortened, to_torch
from hypersphere_jax.models.weight_files import read_state, to_safetensors
from hypersphere_jax.training import checkpoints, distributed, resolve, run_dir
from hypersphere_jax.utils.files import atomic_write

logger = logging.getLogger("hypersphere_jax")

SUFFIXES = (".safetensors", ".npz", ".pth", ".pt", ".tar", ".bin", ".ckpt")
HUGGING_FACE_FILE = "model.safetensors"  # in a folder downloaded from Hugging Face


class EncoderWeights(NamedTuple):
    """One encoder of a file."""

    file: Path
    state: StateDict  # arrays under the names of torchvision, or of Wang & Isola's SmallAlexNet
    model: ModelConfig  # inferred from names and shapes
    ignored: list[str]  # names in the file that do not belong to the encoder


def weights_file(path: Path) -> Path:
    """Return `model.safetensors` in a folder from Hugging Face, otherwise the path itself."""
    file = path / HUGGING_FACE_FILE
    return file if file.is_file() else path


def read_encoder(
    file: Path, prefix: str | None = None, *, head: bool = True, image_size: int | None = None
) -> EncoderWeights:
    """Read the weights of one encoder, with or without its head, and infer its network.

    Raises:
      UserError: for an unreadable file, or a network that this package does not have.
    """
    file = weights_file(file)
    state = read_state(file)
    with _prefix_errors(file):
        state, ignored = select_encoder(state, prefix)
        if ignored:
            logger.warning("ignored in %s: %s", file, shortened(ignored))
        if not head:
            state, head_names = without_head(state)
            ignored = ignored + head_names
        model = infer_model(state, image_size)
    return EncoderWeights(file, state, model, ignored)


def default_recipe(model: ModelConfig) -> str:
    """Return the augmentation recipe whose evaluation images such encoders expect."""
    if model.image_size < 64:
        return "cifar10"
    if model.model == "small_alexnet":
        return "stl10"
    return "moco"


def to_params(weights: EncoderWeights, model: ModelConfig) -> tuple[dict, dict]:
    """Convert weights to parameters and batch statistics of a model.

    Raises:
      UserError: for missing or unexpected entries, other shapes, NaN, infinity, or a negative
        variance.
    """
    state = weights.state
    nonfinite = [name for name in sorted(state) if not np.isfinite(state[name]).all()]
    variances = [name for name in sorted(state) if "running_var" in name]
    negative = [name for name in variances if (state[name] < 0).any()]
    with _prefix_errors(weights.file):
        require(not nonfinite, f"NaN or infinity in {shortened(nonfinite)}")
        require(not negative, f"negative variance in {shortened(negative)}")
        return from_torch(model, state)


@contextlib.contextmanager
def _prefix_errors(file: Path) -> Iterator[None]:
    """Prefix the messages of user errors with the name of the file."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{file}: {error}") from error


def import_torch(config: ImportConfig, command: str = "") -> Path:
    """Make a run whose checkpoint 0 is a pretrained encoder.

    The run's `config.json` records the file. Its objective and optimizer are the defaults.

    Args:
      config: file, options that the file does not determine, and data for evaluation.
      command: command that the user typed, for the record.

    Returns:
      The run's folder.

    Raises:
      UserError: for an unreadable file, a network that this package does not have, or a folder that
        contains a run.
    """
    folder = Path(config.runs_dir, config.name)
    has_run = bool(checkpoints.steps(folder / "checkpoints"))
    require(not has_run, f"{folder} contains a run; choose another name=")
    keep_head = config.head == "file"
    weights = read_encoder(config.file, config.prefix, head=keep_head, image_size=config.image_size)
    dataset = data.load(config)
    run = _run_config(config, weights.model, dataset)
    model = section(run, ModelConfig)
    if config.has_random_head:
        weights = _with_random_head(weights, model, run.seed)
    params, stats = to_params(weights, model)
    origin = {
        "file": str(weights.file.resolve()),
        "sha256": hashlib.sha256(weights.file.read_bytes()).hexdigest(),
        "head": config.head,
        "ignored": weights.ignored,
    }
    devices = distributed.local_devices()
    digest = dataset.digest()
    with run_dir.lock(folder):
        _remove_unfinished_import(folder)
        run_dir.check_resume(run, len(devices), digest)
        run_dir.add_session(run, devices, digest, command, dataset, {"imported": origin})
        with contextlib.closing(checkpoints.Checkpointer(folder / "checkpoints")) as checkpointer:
            checkpointer.save(0, checkpoints.STEP | {"params": params, "stats": stats})
    return folder


def _run_config(config: ImportConfig, model: ModelConfig, dataset: data.Dataset) -> PretrainConfig:
    """Return the config of an imported run."""
    model = model.replace(dtype=config.dtype)
    if config.has_random_head:
        head = {name: getattr(config, name) for name in ("head", "dim", "head_hidden", "init")}
        model = model.replace(**head)
    run = PretrainConfig(
        name=config.name,
        runs_dir=config.runs_dir,
        seed=config.seed,
        **vars(section(config, DataConfig)) | {"recipe": config.recipe or default_recipe(model)},
        **vars(model),
    )
    # `resolve` takes the number of classes from the dataset, but the classifier is the file's.
    return resolve.resolve(run, dataset).replace(num_classes=model.num_classes)


def export(config: ExportConfig) -> Path:
    """Write an encoder to a .safetensors or .npz file.

    Returns:
      The file.

    Raises:
      UserError: for a run without this checkpoint, or PyTorch's names for a network that PyTorch
        does not have.
    """
    from hypersphere_jax import encoder  # it imports this module

    check_output(config.out, ".safetensors", ".npz")
    if (Path(config.run) / encoder.WEIGHTS).is_file():
        source: Any = encoder.load(config.run, config.step)
    else:
        source = run_dir.load_encoder(run_dir.find(config.run, config.runs_dir), config.step)
    model = section(source.config, ModelConfig)
    if config.names == "torch" or (config.names is None and has_torch_names(model)):
        state = to_torch(model, source.params, source.stats)
        safetensors_format = "pt"
    else:
        state = encoder.named_arrays(source.params, source.stats)
        safetensors_format = "hypersphere_jax"
    with atomic_write(config.out) as stream:
        if config.out.suffix.lower() == ".npz":
            np.savez(stream, **state)
        else:
            stream.write(to_safetensors(state, safetensors_format))
    return config.out


def _with_random_head(weights: EncoderWeights, model: ModelConfig, seed: int) -> EncoderWeights:
    _, params, stats = models.create(model, jax.random.key(seed))
    random_state = to_torch(model, params, stats)
    _, head_names = without_head(random_state)
    head = {name: random_state[name] for name in head_names}
    logger.warning("the head is random: probe layers=%s", models.before_head(model.model))
    return weights._replace(state=weights.state | head)


def _remove_unfinished_import(folder: Path) -> None:
    """Remove the record of an import that was interrupted before it saved its checkpoint."""
    record = folder / "config.json"
    has_checkpoint = bool(checkpoints.steps(folder / "checkpoints"))
    other_files = {path.name for path in folder.glob("[!.]*")} - {record.name, "checkpoints"}
    if has_checkpoint or other_files or not record.is_file():
        return
    if "imported" in run_dir.read_record(folder)["sessions"][0]:
        record.unlink()
