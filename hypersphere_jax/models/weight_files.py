"""Files of weights: read as arrays by name, and written as safetensors.

`.safetensors` and `.npz` files are read without PyTorch; other files are read by
`torch.load(weights_only=True)`. No code in a file is executed.
"""

import json
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

from hypersphere_jax.configs import UserError, require
from hypersphere_jax.configs.base import WRITER
from hypersphere_jax.models.state_dicts import (
    SUPPORTED,
    StateDict,
    encoder_prefixes,
    torchvision_names,
)
from hypersphere_jax.models.torch_names import shortened
from hypersphere_jax.utils.arrays import array_names, checksum, entry, open_array
from hypersphere_jax.utils.files import read_json

CHECKSUM = "arrays_crc32"  # key in the metadata of a safetensors file
# NumPy types by the names in safetensors. safetensors.numpy cannot load bfloat16.
DTYPES = {"BF16": jnp.bfloat16, "BOOL": "bool", "F16": "f2", "F32": "f4", "F64": "f8"}
DTYPES |= {f"I{bits}": f"i{bits // 8}" for bits in (8, 16, 32, 64)}
DTYPES |= {f"U{bits}": f"u{bits // 8}" for bits in (8, 16, 32, 64)}


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
            "file where PyTorch is installed by the command in docs/torch.md"
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
