"""Encoders from PyTorch as runs that can be probed, and back: see docs/torch.md."""

import contextlib
import dataclasses
import hashlib
import logging
from pathlib import Path

import jax
import numpy as np

from hypersphere_jax import data, encoder, loading, models, torch_files
from hypersphere_jax.configs import (
    DataConfig,
    ExportConfig,
    ImportConfig,
    ModelConfig,
    PretrainConfig,
    require,
    section,
)
from hypersphere_jax.configs.base import changed, check_output
from hypersphere_jax.models.torch_names import has_torch_names, shortened, to_torch
from hypersphere_jax.training import checkpoints, distributed, resolve, run_dir
from hypersphere_jax.utils.files import atomic_write

logger = logging.getLogger("hypersphere_jax")


def import_torch(config: ImportConfig, command: str = "") -> Path:
    """Makes a run whose checkpoint of step 0 is an encoder from PyTorch.

    The network is inferred from the file. The run's `config.json` says in `sessions` where the
    encoder comes from. Objective and optimizer there are the defaults: the file does not say how
    it was trained.

    Args:
      config: file, model, and the data that the encoder is to be evaluated on.
      command: what the user typed, for the record.

    Returns:
      The run's folder.

    Raises:
      UserError: when the file cannot be read as arrays alone, or is not exactly a network of this
        package, or not that of the flags; when the folder holds a run already.
    """
    file = torch_files.file_in(config.file)
    data_options = vars(section(config, DataConfig))
    run = PretrainConfig(
        name=config.name, runs_dir=config.runs_dir, seed=config.seed, **data_options
    )
    folder = run_dir.folder_of(run)
    held = checkpoints.steps(folder / "checkpoints")
    require(not held, f"{folder} holds a run already: choose another name=")
    state = torch_files.read_state(file)
    with torch_files.naming(file):
        state, unused = torch_files.encoder_of(state, config.prefix)
        if config.fresh_head or config.head == "none":
            state, head = torch_files.without_head(state)
            unused = unused + head
        model = _with_flags(torch_files.infer(state, config.image_size), config)
        recipe = config.recipe or torch_files.recipe_of(model)
    dataset = data.load(config)
    run = run.replace(**vars(model) | {"recipe": recipe})
    # The classifier is the file's, whatever classes the data have.
    classes, run = model.num_classes, resolve.resolve(run, dataset)
    model = section(run, ModelConfig).replace(num_classes=classes)
    if config.fresh_head:
        _, params, stats = models.create(model, jax.random.key(run.seed))
        fresh = to_torch(model, params, stats)
        state = state | {name: fresh[name] for name in torch_files.without_head(fresh)[1]}
        logger.warning("the head is random: probe layers=%s", models.before_head(model.model))
    with torch_files.naming(file):
        params, stats = torch_files.converted(state, model)
    if unused:
        logger.warning("ignored in %s: %s", file, shortened(unused))
    origin = {
        "file": str(file.resolve()),
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "head": "random" if config.fresh_head else _head_of(model),
        "left_aside": unused,
    }
    run = run.replace(num_classes=classes)
    with run_dir.lock(folder):
        _clear_unfinished(folder)
        devices, digest = distributed.local_devices(), dataset.digest()
        run_dir.check_resume(run, len(devices), digest)
        run_dir.add_session(run, devices, digest, command, dataset, {"imported": origin})
        checkpointer = checkpoints.Checkpointer(folder / "checkpoints")
        with contextlib.closing(checkpointer):
            checkpointer.save(0, checkpoints.STEP | {"params": params, "stats": stats})
    return folder


def export(config: ExportConfig) -> Path:
    """Writes an encoder's arrays, under PyTorch's names and in its layouts or under our own.

    Returns:
      The file.

    Raises:
      UserError: for a run without such a checkpoint, or PyTorch's names of a model that has none.
    """
    check_output(config.out, ".safetensors", ".npz")
    if (Path(config.run) / encoder.WEIGHTS).is_file():
        found = loading.load(config.run, config.step)
    else:
        found = run_dir.load_encoder(run_dir.find(config.run, config.runs_dir), config.step)
    model = section(found.config, ModelConfig)
    names = config.names or ("torch" if has_torch_names(model) else "own")
    if names == "torch":
        state = to_torch(model, found.params, found.stats)
    else:
        state = encoder.named_arrays(found.params, found.stats)
    with atomic_write(config.out) as stream:
        if config.out.suffix.lower() == ".npz":
            np.savez(stream, **state)
        else:
            form = "pt" if names == "torch" else "hypersphere_jax"
            stream.write(torch_files.to_safetensors(state, form))
    return config.out


def _clear_unfinished(folder: Path) -> None:
    """Removes the record of an import that ended before its checkpoint, if it is alone there."""
    there, record = {path.name for path in folder.glob("[!.]*")}, folder / "config.json"
    if checkpoints.steps(folder / "checkpoints") or not there <= {record.name, "checkpoints"}:
        return
    if record.name in there and "imported" in run_dir.read_record(folder)["sessions"][0]:
        record.unlink()


def _head_of(model: ModelConfig) -> str:
    return "none" if model.head == "none" else "of the file"


def _with_flags(model: ModelConfig, config: ImportConfig) -> ModelConfig:
    """The model of the file with the flags that it leaves open; a fresh head is theirs.

    Raises:
      UserError: for a flag that says otherwise than the file.
    """
    flags = {name: getattr(config, name) for name in changed(config, ModelConfig)}
    fixed, head = ["model", "stem"], ["head", "dim", "head_hidden"]
    if config.fresh_head:
        flags |= {name: getattr(config, name) for name in head}
    else:
        fixed += head
    for name in fixed:
        shown = getattr(model, name)
        given = flags.get(name, shown)
        require(given == shown, f"{name}={given}: the file has {shown}; leave that option out")
    return dataclasses.replace(model, **flags)
