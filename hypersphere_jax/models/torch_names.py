"""PyTorch's names and layouts of the same weights, for encoders that were trained there.

ResNets have torchvision's names, which MoCo's checkpoints have too (behind a prefix such as
`module.encoder_q.`, which the caller strips); SmallAlexNet those of Wang & Isola's repository
(`align_uniform`, STL-10: `blocks` is a list of sequential layers).
"""

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from hypersphere_jax import models
from hypersphere_jax.config import ModelConfig, require
from hypersphere_jax.models import heads

NORM = {"scale": "weight", "bias": "bias", "mean": "running_mean", "var": "running_var"}
LINEAR = {"kernel": "weight", "bias": "bias"}


class TorchName(NamedTuple):
    """An entry of a PyTorch state dict.

    Attributes:
      name: its key.
      layout: how its axes lie: "vector"; "conv", outputs first, then inputs, rows and columns;
        or "linear", outputs first, then inputs.
      shape: its shape in PyTorch.
      image: for a linear layer on a flattened image, the shape (c, h, w) of that: PyTorch flattens
        channels first, this package last.
    """

    name: str
    layout: Literal["vector", "conv", "linear"]
    shape: tuple[int, ...]
    image: tuple[int, int, int] | None = None


def torch_names(config: ModelConfig) -> dict[str, TorchName]:
    """Which PyTorch entry each parameter and statistic is.

    Heads are named as torchvision and MoCo do: `fc` is the linear head, and of MLPs a sequence
    `fc.0`, … of linear layers, batch norms and ReLUs. (In SmallAlexNet this sequence is block 7.)

    Args:
      config: of a ResNet or of `small_alexnet`, its `image_size` and `channels` given.

    Returns:
      For each path, such as "params/layer1/block0/conv1/layer/kernel" or
      "stats/conv1/norm/mean", the entry.

    Raises:
      UserError: for a model without a counterpart in PyTorch.
    """
    known = config.name == "small_alexnet" or config.name.startswith("resnet")
    require(
        known,
        f"{config.name} has no counterpart in PyTorch: choose --model small_alexnet, resnet18, "
        "resnet34 or resnet50",
    )
    rename = {"small_alexnet": _alexnet}.get(config.name, _resnet)
    _, params, stats = models.abstract(config)
    found = {}
    for path, leaf in _flat({"params": params, "stats": stats}).items():
        _, *parts = path.split("/")
        name, shape, image = rename(parts, config), leaf.shape, None
        layout = {4: "conv", 2: "linear"}.get(len(shape), "vector")
        if layout == "conv":
            shape = (shape[3], shape[2], shape[0], shape[1])
        elif layout == "linear":
            shape = shape[::-1]
            if parts[0] == "fc6":
                h, w, c = models.layers(config)["conv5"]
                image = (c, h, w)
        found[path] = TorchName(name, layout, shape, image)
    return found


def from_torch(config: ModelConfig, state: Mapping[str, Any]) -> tuple[dict, dict]:
    """Parameters and statistics from a PyTorch state dict.

    Args:
      config: of the model, see `torch_names`.
      state: arrays by name; `num_batches_tracked` is left aside, as nothing here uses it.

    Returns:
      (params, stats) as of `models.create`, NumPy float32.

    Raises:
      UserError: when entries are missing or unexpected, or have another shape.
    """
    names = torch_names(config)
    given = {name for name in state if not name.endswith("num_batches_tracked")}
    wanted = {entry.name for entry in names.values()}
    missing, unexpected = sorted(wanted - given), sorted(given - wanted)
    require(
        not missing and not unexpected,
        f"these are not the weights of {config.name} with the head {config.head!r}: "
        f"missing are {few(missing)}, unexpected {few(unexpected)}",
    )
    tree: dict[str, Any] = {}
    for path, entry in names.items():
        *parents, last = path.split("/")
        inner = tree
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = _laid_out(entry, np.asarray(state[entry.name], np.float32))
    return tree["params"], tree["stats"]


def to_torch(config: ModelConfig, params: dict, stats: dict) -> dict[str, np.ndarray]:
    """The PyTorch state dict of parameters and statistics: the inverse of `from_torch`.

    Args:
      config: of the model, see `torch_names`.
      params: as of `models.create`.
      stats: likewise.

    Returns:
      NumPy arrays by name, in PyTorch's shapes and of the dtypes they had.

    Raises:
      UserError: for a model without a counterpart in PyTorch.
    """
    leaves = _flat({"params": params, "stats": stats})
    return {
        entry.name: np.ascontiguousarray(_torchs_layout(entry, np.asarray(leaves[path])))
        for path, entry in torch_names(config).items()
    }


def _laid_out(entry: TorchName, array: np.ndarray) -> np.ndarray:
    require(
        array.shape == entry.shape,
        f"{entry.name} has shape {array.shape}, where the model needs {entry.shape}",
    )
    if entry.layout == "conv":
        return array.transpose(2, 3, 1, 0)
    if entry.layout == "vector":
        return array
    if entry.image is not None:
        in_places = array.reshape(-1, *entry.image).transpose(2, 3, 1, 0)
        return in_places.reshape(math.prod(entry.image), -1)
    return array.T


def _torchs_layout(entry: TorchName, array: np.ndarray) -> np.ndarray:
    if entry.layout == "conv":
        return array.transpose(3, 2, 0, 1)
    if entry.layout == "vector":
        return array
    if entry.image is not None:
        c, h, w = entry.image
        return array.reshape(h, w, c, -1).transpose(3, 2, 0, 1).reshape(entry.shape)
    return array.T


def _resnet(parts: list[str], config: ModelConfig) -> str:
    match parts:
        case ["conv1", kind, leaf]:
            return _pair("conv1", "bn1", kind, leaf)
        case ["head", *rest]:
            return _head("fc", "fc", rest, config)
        case [stage, block, "downsample", kind, leaf]:
            inner = f"{stage}.{block.removeprefix('block')}.downsample"
            return _pair(f"{inner}.0", f"{inner}.1", kind, leaf)
        case [stage, block, layer, kind, leaf]:
            inner = f"{stage}.{block.removeprefix('block')}"
            number = layer.removeprefix("conv")
            return _pair(f"{inner}.conv{number}", f"{inner}.bn{number}", kind, leaf)
    raise AssertionError(parts)


def _alexnet(parts: list[str], config: ModelConfig) -> str:
    if parts[0] == "head":
        return _head("blocks.7", "blocks.7.0", parts[1:], config)
    layer, kind, leaf = parts
    block = int(layer[-1]) - 1
    # A flattening comes before fc6, inside its block.
    first = 1 if layer == "fc6" else 0
    return _pair(f"blocks.{block}.{first}", f"blocks.{block}.{first + 1}", kind, leaf)


def _head(sequence: str, single: str, parts: list[str], config: ModelConfig) -> str:
    """Of a head: `single` is the linear head's name, `sequence` that of an MLP's layers."""
    name, *rest = parts
    if name == "classifier":
        return f"classifier.{LINEAR[rest[0]]}"
    if config.head == "linear":
        return f"{single}.{LINEAR[rest[0]]}"
    hidden = heads.FORMS[config.head].hidden
    number = hidden if name == "output" else int(name[-1]) - 1
    if len(rest) == 1:  # linear layer and ReLU in turns
        return f"{sequence}.{2 * number}.{LINEAR[rest[0]]}"
    return _pair(f"{sequence}.{3 * number}", f"{sequence}.{3 * number + 1}", *rest)


def _pair(layer: str, norm: str, kind: str, leaf: str) -> str:
    return f"{norm}.{NORM[leaf]}" if kind == "norm" else f"{layer}.{LINEAR[leaf]}"


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = {}
    for name, value in tree.items():
        inner = _flat(value, f"{prefix}{name}/") if isinstance(value, dict) else None
        flat |= {f"{prefix}{name}": value} if inner is None else inner
    return flat


def few(names: list[str]) -> str:
    """The first of some names, and how many more there are."""
    shown = ", ".join(names[:4]) or "none"
    return shown + (f" and {len(names) - 4} more" if len(names) > 4 else "")
