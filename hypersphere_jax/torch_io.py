"""Encoders from PyTorch as runs that can be probed, and back: see docs/torch.md.

A file that is imported is data: nothing in it is run (PyTorch's `weights_only`, NumPy's
`allow_pickle=False`).
"""

import contextlib
import dataclasses
import hashlib
import logging
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hypersphere_jax import data, models
from hypersphere_jax.config import (
    ExportConfig,
    ImportConfig,
    ModelConfig,
    PretrainConfig,
    UserError,
    require,
)
from hypersphere_jax.files import atomic_write
from hypersphere_jax.models.torch_names import from_torch, shortened, to_torch
from hypersphere_jax.train import checkpoint, resolve, run_folder, sharding

logger = logging.getLogger("hypersphere_jax")

State = dict[str, np.ndarray]
# Keys under which training scripts save the state dict among other things.
CONTAINERS = ("state_dict", "model_state_dict", "model_state", "model")
# Older ones run code in files that were made for that, `weights_only` or not.
SAFE_TORCH = "2.6"
# By the rows and columns of the first convolution.
STEMS = {(3, 3): "cifar", (7, 7): "imagenet"}


def import_torch(config: ImportConfig, command: str = "") -> Path:
    """Makes a run whose checkpoint of step 0 is an encoder from PyTorch.

    Its `config.json` says of the data and the model what a trained run's does, and in `sessions`
    where the encoder comes from. Objective and optimizer there are the defaults: the file does not
    say how it was trained.

    Args:
      config: file, model, and the data that the encoder is to be evaluated on.
      command: what the user typed, for the record.

    Returns:
      The run's folder.

    Raises:
      UserError: when the file cannot be read as arrays alone, or is not exactly the model that
        was named; when the folder holds a run already.
    """
    file = config.file
    run = PretrainConfig(
        name=config.name,
        runs_dir=config.runs_dir,
        seed=config.seed,
        data=config.data,
        model=config.model,
    )
    folder = run_folder.folder_of(run)
    require(
        not checkpoint.steps(folder / "checkpoints"),
        f"{folder} holds a run already: choose another --name",
    )
    require(file.is_file(), f"{file} is not a file")
    state, unused = encoder_of(read_state(file), config.model.name, config.prefix)
    dataset = data.load(config.data)
    run = resolve.resolve(_with_stem(run, state), dataset)
    model = run.model
    if config.fresh_head:
        head = {name for name in state if _in_head(model, name)}
        unused += sorted(head)
        state = {name: state[name] for name in state.keys() - head} | _fresh_head(model, run.seed)
        logger.warning("the head is random: probe --layers %s", models.before_head(model.name))
    classes = len(state.get("classifier.weight", ()))
    model = dataclasses.replace(model, num_classes=classes)
    params, stats = _converted(file, model, state)
    if unused:
        logger.warning("ignored in %s: %s", file, shortened(unused))

    origin = {
        "file": str(file.resolve()),
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "head": "random" if config.fresh_head else "of the file",
        "left_aside": unused,
    }
    run = dataclasses.replace(run, model=model)
    with run_folder.lock(folder):
        run_folder.open_folder(run, sharding.local_devices(), dataset.digest(), command, origin)
        with contextlib.closing(checkpoint.Checkpoints(folder / "checkpoints")) as checkpoints:
            checkpoints.save(0, {"params": params, "stats": stats})
    return folder


def export_npz(config: ExportConfig) -> Path:
    """Writes an encoder's parameters and statistics under PyTorch's names, in its layouts.

    Returns:
      The file.

    Raises:
      UserError: for a run without such a checkpoint, or a model that PyTorch has no names for.
    """
    encoder = run_folder.load_encoder(run_folder.find(config.run), config.step)
    state = to_torch(encoder.config.model, encoder.params, encoder.stats)
    with atomic_write(config.out) as stream:
        np.savez(stream, **state)
    return config.out


def read_state(file: Path) -> State:
    """The arrays of a state dict: float32 those of PyTorch's files, as they are those of .npz.

    Args:
      file: an .npz file; else one of PyTorch, in which the state dict may lie under "state_dict",
        "model" and the like.

    Raises:
      UserError: when it holds anything but arrays and plain values, or PyTorch is not installed.
    """
    return _read_npz(file) if file.suffix.lower() == ".npz" else _read_torch(file)


def encoder_of(
    state: Mapping[str, np.ndarray], model: str, prefix: str | None = None
) -> tuple[State, list[str]]:
    """The entries of one encoder, without the prefix of their names.

    Args:
      state: arrays by name.
      model: name of the model.
      prefix: with or without the last dot. None: it is detected; of several encoders, MoCo's
        `encoder_q` is taken.

    Returns:
      The encoder's entries, and the names of the others.

    Raises:
      UserError: when the choice is not clear, or nothing has that prefix.
    """
    first = "blocks.0.0.weight" if model == "small_alexnet" else "layer1.0.conv1.weight"
    prefixes = sorted(
        name.removesuffix(first) for name in state if name == first or name.endswith(f".{first}")
    )
    listed = ", ".join(map(repr, prefixes)) or f"none that a {model} has"
    if prefix is None:
        choice = [name for name in prefixes if name.endswith("encoder_q.")] or prefixes
        require(
            len(choice) <= 1,
            f"the file holds several encoders, under {listed}: choose one with --prefix",
        )
        prefix = choice[0] if choice else ""
    elif prefix:
        prefix = prefix.removesuffix(".") + "."
    names = [name for name in state if name.startswith(prefix)]
    require(bool(names), f"--prefix {prefix}: no name begins so; the prefixes are {listed}")
    encoder = {name.removeprefix(prefix): state[name] for name in names}
    return encoder, sorted(state.keys() - set(names))


def _with_stem(run: PretrainConfig, state: State) -> PretrainConfig:
    """The config with the stem that a ResNet's file has, where the user named none."""
    first = state.get("conv1.weight")
    if run.model.stem or first is None or not run.model.name.startswith("resnet"):
        return run
    stem = STEMS.get(first.shape[2:])
    return dataclasses.replace(run, model=dataclasses.replace(run.model, stem=stem))


def _in_head(model: ModelConfig, name: str) -> bool:
    head = "blocks.7." if model.name == "small_alexnet" else "fc."
    return name.startswith((head, "classifier."))


def _fresh_head(model: ModelConfig, seed: int) -> State:
    """The entries of a random head."""
    _, params, stats = models.create(model, jax.random.key(seed))
    state = to_torch(model, params, stats)
    return {name: array for name, array in state.items() if _in_head(model, name)}


def _converted(file: Path, model: ModelConfig, state: State) -> tuple[dict, dict]:
    """Parameters and statistics, exactly those of the model."""
    infinite = [name for name in sorted(state) if not np.isfinite(state[name]).all()]
    require(not infinite, f"{file} holds NaN or infinity in {shortened(infinite)}")
    try:
        return from_torch(model, state)
    except UserError as error:
        raise UserError(
            f"{file}: {error}; give --model, --width, --head, --head-hidden and --dim {model.dim} "
            "as the file has them, or --fresh-head to replace its head"
        ) from error


def _read_npz(file: Path) -> State:
    try:
        with open(file, "rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            state = dict(arrays)
    except (ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{file} is not a readable .npz file of arrays: {error}") from error
    other = [name for name in sorted(state) if state[name].dtype.kind not in "fiu"]
    require(not other, f"{file}: not real numbers (bfloat16?) are {shortened(other)}")
    return state


def _read_torch(file: Path) -> State:
    install = f"pip install 'torch>={SAFE_TORCH}'"
    try:
        import torch
    except ImportError as error:
        raise UserError(
            f"{file}: to read PyTorch's files, {install}; or write the state dict as .npz where "
            "PyTorch is installed (docs/torch.md)"
        ) from error
    version, safe = (
        tuple(map(int, text.split(".")[:2])) for text in (torch.__version__, SAFE_TORCH)
    )
    require(
        version >= safe,
        f"{file}: PyTorch {torch.__version__} can be made to run code that is in a file "
        f"(CVE-2025-32434): {install}",
    )
    try:
        with warnings.catch_warnings(action="ignore"):  # what matters of them, an error says
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # PyTorch raises many kinds of a damaged file
        raise UserError(
            f"{file} cannot be read by PyTorch as arrays alone ({type(error).__name__}): it is "
            "damaged, no checkpoint, or holds objects, which could run code: save its state dict "
            "by itself, torch.save(model.state_dict(), …)"
        ) from error
    state = {}
    for name, tensor in _state_dict(content).items():
        if isinstance(name, str) and isinstance(tensor, torch.Tensor):
            dense = tensor.layout == torch.strided and not tensor.is_quantized
            require(
                dense and not tensor.is_complex(),
                f"{file}: {name} is no dense array of real numbers",
            )
            state[name] = tensor.detach().float().numpy()
    require(bool(state), f"{file} holds no state dict, neither by itself nor as {CONTAINERS}")
    return state


def _state_dict(content: Any) -> Mapping:
    """The state dict in what a training script saved, nested to any depth; else empty."""
    if not isinstance(content, Mapping):
        return {}
    inner = (content.get(key) for key in CONTAINERS)
    nested = next((value for value in inner if isinstance(value, Mapping)), None)
    return content if nested is None else _state_dict(nested)
