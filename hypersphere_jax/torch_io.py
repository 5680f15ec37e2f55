"""Encoders from PyTorch as runs that can be probed, and back: see docs/torch.md.

A file that is imported is data: nothing in it is run (PyTorch's `weights_only`, NumPy's
`allow_pickle=False`).
"""

import contextlib
import dataclasses
import hashlib
import logging
import pickle
import re
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
from hypersphere_jax.files import whole_file
from hypersphere_jax.models.torch_names import few, from_torch, to_torch, torch_names
from hypersphere_jax.train import checkpoint, resolve, run_folder, sharding

logger = logging.getLogger("hypersphere_jax")

State = dict[str, np.ndarray]
# Under what a training script puts the state dict that it saves among other things.
CONTAINERS = ("state_dict", "model_state_dict", "model_state", "model")
# A state dict lies at most so deep in what it was saved with.
DEPTH = 3
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
    require(not config.file.is_dir(), f"{config.file} is a folder: name the file in it")
    require(config.file.is_file(), f"{config.file}: there is no such file")
    state, left = encoder_of(read_state(config.file), config.model.name, config.prefix)
    dataset = data.load(config.data)
    run = resolve.resolve(_with_stem(run, state), dataset)
    if config.fresh_head:
        state, old = _without_head(run.model, state)
        left += old
    run = dataclasses.replace(run, model=_with_classes(run.model, state))
    parts = _converted(config.file, run.model, state)
    if config.fresh_head:
        fresh = _fresh_head(run.model, config.seed)
        parts = tuple(part | head for part, head in zip(parts, fresh, strict=True))
    if left:
        logger.warning("left aside of %s: %s", config.file, few(left))
    if config.fresh_head:
        before = "backbone" if "backbone" in models.layers(run.model) else "fc7"
        logger.warning("the head is random: probe --layers %s, or one before it", before)

    origin = {
        "file": str(config.file.resolve()),
        "sha256": _sha256(config.file),
        "head": "random" if config.fresh_head else "of the file",
        "left_aside": left,
    }
    with run_folder.lock(folder):
        run_folder.open_folder(run, sharding.local_devices(), dataset.digest(), command, origin)
        with contextlib.closing(checkpoint.Checkpoints(folder / "checkpoints")) as checkpoints:
            checkpoints.save(0, dict(zip(("params", "stats"), parts, strict=True)))
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
    with whole_file(config.out) as stream:
        np.savez(stream, **state)
    return config.out


def read_state(file: Path) -> State:
    """The arrays of a state dict: float32 those of PyTorch's files, as they are those of .npz.

    Args:
      file: an .npz file; else one of PyTorch, in which the state dict may lie under "state_dict",
        "model" and the like.

    Raises:
      UserError: when it holds anything but arrays and plain values, or PyTorch is not there.
    """
    return _read_npz(file) if file.suffix.lower() == ".npz" else _read_torch(file)


def encoder_of(
    state: Mapping[str, np.ndarray], model: str, prefix: str | None = None
) -> tuple[State, list[str]]:
    """The entries of one encoder, without what stands before their names.

    Args:
      state: arrays by name.
      model: name of the model.
      prefix: what stands there, with or without the last dot. None: it is found; of several
        encoders, MoCo's `encoder_q` is taken.

    Returns:
      The encoder's entries, and the names of the others.

    Raises:
      UserError: when the choice is not clear, or nothing has that prefix.
    """
    first = "blocks.0.0.weight" if model == "small_alexnet" else "layer1.0.conv1.weight"
    found = sorted(
        name.removesuffix(first) for name in state if name == first or name.endswith(f".{first}")
    )
    if prefix is None:
        queries = [name for name in found if name.endswith("encoder_q.")]
        choice = queries if len(found) > 1 and queries else found
        require(
            len(choice) <= 1,
            f"the file holds several encoders, under {', '.join(map(repr, found))}: choose one "
            "with --prefix",
        )
        prefix = choice[0] if choice else ""
    elif prefix:
        prefix = prefix.removesuffix(".") + "."
    mine = {name.removeprefix(prefix): a for name, a in state.items() if name.startswith(prefix)}
    known = ", ".join(map(repr, found)) or f"none that a {model} has"
    require(bool(mine), f"--prefix {prefix}: no name begins so; the prefixes are {known}")
    return mine, sorted(name for name in state if not name.startswith(prefix))


def _with_stem(run: PretrainConfig, state: State) -> PretrainConfig:
    """The config with the stem that a ResNet's file has, where the user named none."""
    first = state.get("conv1.weight")
    if run.model.stem or first is None or not run.model.name.startswith("resnet"):
        return run
    stem = STEMS.get(first.shape[2:])
    return dataclasses.replace(run, model=dataclasses.replace(run.model, stem=stem))


def _with_classes(model: ModelConfig, state: State) -> ModelConfig:
    """The config with the classifier on the output that the encoder of a supervised run has."""
    classes = state["classifier.weight"].shape[:1] if "classifier.weight" in state else (0,)
    return dataclasses.replace(model, num_classes=sum(classes))


def _without_head(model: ModelConfig, state: State) -> tuple[State, list[str]]:
    """The state with zeros for the model's head in place of its own, and the names of that."""
    old = sorted(name for name in state if _of_head(model, name))
    body = {name: array for name, array in state.items() if name not in old}
    entries = torch_names(model).values()
    return body | {e.name: np.zeros(e.shape) for e in entries if _of_head(model, e.name)}, old


def _fresh_head(model: ModelConfig, seed: int) -> tuple[dict, dict]:
    """The "head" of fresh parameters, and of statistics where it has some."""

    @jax.jit  # as a whole, so that the rest of the network is not drawn
    def head(key):
        _, *fresh = models.create(model, key)
        return tuple({name: tree[name] for name in tree if name == "head"} for tree in fresh)

    return jax.tree.map(np.asarray, head(jax.random.key(seed)))


def _converted(file: Path, model: ModelConfig, state: State) -> tuple[dict, dict]:
    """Parameters and statistics, exactly those of the model."""
    head = _shapes({name: array for name, array in state.items() if _of_head(model, name)})
    entries = {entry.name: entry for entry in torch_names(model).values()}
    needed = _shapes({name: entries[name] for name in entries if _of_head(model, name)})
    body = {name for name in state if not name.endswith("num_batches_tracked")} - head.keys()
    if body == entries.keys() - needed.keys():
        head = {name: head[name] for name in head if not name.endswith("num_batches_tracked")}
        require(
            head == needed,
            f"{file}: its head is {_listed(head)}, but --head {model.head} with --dim {model.dim} "
            f"is {_listed(needed)}: give the options that fit it, or --fresh-head to leave it "
            "aside and probe the layers before it",
        )
    bad = [name for name in sorted(state) if not np.isfinite(state[name]).all()]
    require(not bad, f"{file} holds NaN or infinity in {few(bad)}")
    try:
        return from_torch(model, state)
    except UserError as error:
        raise UserError(f"{file}: {error}") from error


def _of_head(model: ModelConfig, name: str) -> bool:
    head = "blocks.7." if model.name == "small_alexnet" else "fc."
    return name.startswith((head, "classifier."))


def _shapes(entries: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(entry.shape) for name, entry in entries.items()}


def _read_npz(file: Path) -> State:
    try:
        with open(file, "rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            state = dict(arrays)
    except (ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{file} is not a readable .npz file of arrays: {error}") from error
    other = [name for name in sorted(state) if state[name].dtype.kind not in "fiu"]
    require(not other, f"{file} holds what are no real numbers (bfloat16?): {few(other)}")
    return state


def _read_torch(file: Path) -> State:
    try:
        import torch
    except ImportError as error:
        raise UserError(
            f"{file}: to read PyTorch's files, pip install 'torch>={SAFE_TORCH}'; or write the "
            "state dict as .npz where PyTorch is (docs/torch.md)"
        ) from error
    require(
        tuple(map(int, torch.__version__.split(".")[:2])) >= tuple(map(int, SAFE_TORCH.split("."))),
        f"{file}: PyTorch {torch.__version__} can be made to run code that is in a file "
        f"(CVE-2025-32434): pip install 'torch>={SAFE_TORCH}'",
    )
    try:
        with warnings.catch_warnings(action="ignore"):  # what matters of them, an error says
            content = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.search(r"(?i)global:? ([\w.]+\.\w+)", str(error))
        what = f"it asks for {named[1]}" if named else "it is damaged or of another kind"
        raise UserError(
            f"{file} cannot be read as arrays alone ({what}), and nothing else is unpickled, as "
            "that could run code: save its state dict by itself, torch.save(model.state_dict(), …)"
        ) from error
    except OSError:
        raise
    except Exception as error:  # whatever PyTorch comes upon in a damaged file
        line = " ".join([type(error).__name__, *str(error).splitlines()[:1]])
        raise UserError(
            f"{file} cannot be read as a file of PyTorch ({line[:200]}): is it a checkpoint?"
        ) from error
    state = {}
    for name, tensor in _innermost(content).items():
        if isinstance(name, str) and isinstance(tensor, torch.Tensor):
            dense = tensor.layout == torch.strided and not tensor.is_quantized
            require(
                dense and not tensor.is_complex(),
                f"{file}: {name} is no dense array of real numbers",
            )
            state[name] = tensor.detach().float().numpy()
    require(bool(state), f"{file} holds no state dict, neither by itself nor as {CONTAINERS}")
    return state


def _innermost(content: Any) -> Mapping:
    """The state dict in what a training script saved; empty where there is none."""
    for _ in range(DEPTH):
        if isinstance(content, Mapping):
            inner = (content.get(key) for key in CONTAINERS)
            content = next((found for found in inner if isinstance(found, Mapping)), content)
    return content if isinstance(content, Mapping) else {}


def _sha256(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _listed(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return few([f"{name} {list(shapes[name])}" for name in sorted(shapes)]) if shapes else "none"
