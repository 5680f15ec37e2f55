"""Pretrained weights: read files of other libraries, import them as runs, and export encoders.

`.safetensors` and `.npz` files are read without PyTorch; other files are read by
`torch.load(weights_only=True)`. No code in a file is executed.
"""

import contextlib
import dataclasses
import hashlib
import json
import logging
import re
import shlex
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

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
from hypersphere_jax.configs.base import WRITER, check_output
from hypersphere_jax.models.state_dicts import (
    SUPPORTED,
    StateDict,
    encoder_prefixes,
    infer_model,
    select_encoder,
    torchvision_names,
    without_head,
)
from hypersphere_jax.models.torch_names import from_torch, has_torch_names, shortened, to_torch
from hypersphere_jax.training import checkpoints, distributed, resolve, run_dir
from hypersphere_jax.utils.arrays import array_names, checksum, entry, open_array
from hypersphere_jax.utils.files import atomic_write, read_json

logger = logging.getLogger("hypersphere_jax")

SUFFIXES = (".safetensors", ".npz", ".pth", ".pt", ".tar", ".bin", ".ckpt")
HUGGING_FACE_FILE = "model.safetensors"  # in a folder downloaded from Hugging Face
CHECKSUM = "arrays_crc32"  # key in the metadata of a safetensors file
# NumPy types by the names in safetensors. safetensors.numpy cannot load bfloat16.
DTYPES = {"BF16": jnp.bfloat16, "BOOL": "bool", "F16": "f2", "F32": "f4", "F64": "f8"}
DTYPES |= {f"I{bits}": f"i{bits // 8}" for bits in (8, 16, 32, 64)}
DTYPES |= {f"U{bits}": f"u{bits // 8}" for bits in (8, 16, 32, 64)}


@dataclasses.dataclass(frozen=True)
class EncoderWeights:
    """One encoder of a file.

    Attributes:
      file: file that was read.
      state: arrays under the names of torchvision, or of Wang & Isola's SmallAlexNet.
      model: network inferred from names and shapes.
      ignored: names in the file that do not belong to the encoder.
    """

    file: Path
    state: StateDict
    model: ModelConfig
    ignored: list[str]


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


def read_state(file: Path) -> StateDict:
    """Read the arrays of a file by name, as float32.

    Raises:
      UserError: for a damaged file, or one without arrays.
    """
    require(file.is_file(), f"{file} is not a file")
    suffix = file.suffix.lower()
    if suffix == ".npz":
        state = {name: open_array(file, name) for name in array_names(file)}
    elif suffix == ".safetensors":
        state, _ = read_safetensors(file)
    else:
        state = _read_torch(file)
    require(bool(state), f"{file} contains no arrays; save a state dict")
    is_own = any(name.startswith("params/") for name in state)
    require(not is_own, f"{file} has no config; load the folder that Encoder.save writes instead")
    _check_config_json(file)
    return {name: np.array(array, np.float32) for name, array in state.items()}


def read_safetensors(file: Path) -> tuple[StateDict, dict[str, str]]:
    """Read the arrays and the metadata of a safetensors file.

    Raises:
      UserError: for a damaged file, or other types than real numbers.
    """
    try:
        content = file.read_bytes()
        tensors = dict(deserialize(content))
        header_size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + header_size])
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file} cannot be read as .safetensors: {error}") from error
    unknown = [name for name in sorted(tensors) if tensors[name]["dtype"] not in DTYPES]
    require(not unknown, f"{file}: unsupported number type of {shortened(unknown)}")
    state = {}
    for name, tensor in tensors.items():
        values = np.frombuffer(tensor["data"], DTYPES[tensor["dtype"]])
        state[name] = values.reshape(tensor["shape"])
    metadata = header.get("__metadata__") or {}
    is_intact = metadata.get(CHECKSUM) in (None, _checksum(state))
    require(is_intact, f"{file} is damaged: its checksum differs; copy or download it again")
    return state, metadata


def to_safetensors(arrays: StateDict, names: str, **metadata: str) -> bytes:
    """Return a safetensors file with a checksum, which `read_safetensors` verifies.

    `names` is the format in the metadata; Hugging Face's libraries expect "pt".
    """
    metadata |= {"format": names, "written_by": WRITER, CHECKSUM: _checksum(arrays)}
    return save(arrays, metadata)


def _checksum(arrays: StateDict) -> str:
    return str(checksum({name: entry(array) for name, array in arrays.items()}))


def _read_torch(file: Path) -> StateDict:
    """Read the state dict of a PyTorch file."""
    try:
        import torch
    except ImportError as error:
        raise UserError(
            f"{file}: reading PyTorch files needs PyTorch; run `pip install torch`, or convert the "
            f"file where PyTorch is installed: `{_conversion_command(file)}`"
        ) from error
    try:
        _verify_checksums(file)
        with warnings.catch_warnings(action="ignore"):
            content = torch.load(file, map_location="cpu", weights_only=True)
        state = _find_state_dict(content, torch.Tensor)
        # NumPy has no bfloat16.
        return {name: tensor.detach().float().numpy() for name, tensor in state.items()}
    except Exception as error:  # torch.load raises nearly any type for a damaged file
        raise UserError(f"{file} {_torch_problem(error)}") from error


def _find_state_dict(content: Any, tensor_type: type) -> dict[str, Any]:
    """Return the tensors by name of the mapping that contains an encoder.

    Without an encoder, or with several, names are prefixed by their path in the file.
    """
    found = {}
    visited = set()
    pending = [("", content)]
    while pending:
        path, value = pending.pop()
        if id(value) in visited:
            continue
        visited.add(id(value))
        if isinstance(value, list | tuple):
            value = dict(enumerate(value))
        if not isinstance(value, Mapping):
            continue
        tensors = {str(key): item for key, item in value.items() if isinstance(item, tensor_type)}
        if tensors:
            found[path] = tensors
        pending += [(f"{path}{key}.", item) for key, item in value.items()]
    encoders = [path for path in found if encoder_prefixes(torchvision_names(found[path]))]
    if len(encoders) == 1:
        return found[encoders[0]]
    state = {}
    for path in encoders or found:
        state |= {f"{path}{name}": tensor for name, tensor in found[path].items()}
    return state


def _verify_checksums(file: Path) -> None:
    """Compare the checksums in a zip file, which `torch.load` ignores."""
    if not zipfile.is_zipfile(file):  # PyTorch's format until version 1.5
        return
    with zipfile.ZipFile(file) as archive:
        if damaged := archive.testzip():
            raise zipfile.BadZipFile(f"the checksum of {damaged} differs")


def _torch_problem(error: Exception) -> str:
    """Return PyTorch's message, which has several lines, in one line."""
    if refused := re.search(r"GLOBAL ([\w.]+)", str(error)):
        return (
            f"contains {refused[1]}, which torch.load(weights_only=True) refuses; save only the "
            "state dict with torch.save(model.state_dict(), FILE)"
        )
    cause = re.split(r"\n|\. ", str(error))[0][:200]
    return f"is damaged or has no state dict ({type(error).__name__}: {cause}); download it again"


def _conversion_command(file: Path) -> str:
    """Return the shell command that converts a PyTorch file to safetensors."""
    target = file.with_name(file.name.partition(".")[0] + ".safetensors")
    code = (
        "import sys, torch; from safetensors.torch import save_file; "
        "state = torch.load(sys.argv[1], map_location='cpu', weights_only=True); "
        "state = state.get('state_dict', state); "
        "save_file({name: value.contiguous().clone() for name, value in state.items() "
        "if torch.is_tensor(value)}, sys.argv[2])"
    )
    return f'python -c "{code}" {shlex.quote(str(file))} {shlex.quote(str(target))}'


def _check_config_json(file: Path) -> None:
    """Refuse networks whose `config.json` names a difference that names and shapes do not show."""
    config_file = file.with_name("config.json")
    if not config_file.is_file():
        return
    config = read_json(config_file)
    differences = {
        "anti-aliasing": re.match(r"resnet(aa|blur)", str(config.get("architecture"))),
        "a stride in the first stage": config.get("downsample_in_first_stage"),
        "bottlenecks with a strided 1x1 convolution": config.get("downsample_in_bottleneck"),
        "another activation than ReLU": config.get("hidden_act", "relu") != "relu",
    }
    for difference, exists in differences.items():
        require(not exists, f"{file}: {config_file.name} has {difference}; {SUPPORTED}")


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
      config: File, options that the file does not determine, and data for evaluation.
      command: Command that the user typed, for the record.

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
    return dataclasses.replace(weights, state=weights.state | head)


def _remove_unfinished_import(folder: Path) -> None:
    """Remove the record of an import that was interrupted before it saved its checkpoint."""
    record = folder / "config.json"
    has_checkpoint = bool(checkpoints.steps(folder / "checkpoints"))
    other_files = {path.name for path in folder.glob("[!.]*")} - {record.name, "checkpoints"}
    if has_checkpoint or other_files or not record.is_file():
        return
    if "imported" in run_dir.read_record(folder)["sessions"][0]:
        record.unlink()
