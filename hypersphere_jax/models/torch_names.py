"""Parameter names and layouts of PyTorch networks.

ResNets use torchvision's names, ViTs timm's. SmallAlexNet uses the names of Wang & Isola's
repository (`align_uniform`, STL-10), where `blocks` is a list of sequential layers.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from hypersphere_jax import models
from hypersphere_jax.configs import ModelConfig, require
from hypersphere_jax.models import heads

LEAVES = {"kernel": "weight", "scale": "weight", "bias": "bias"}
LEAVES |= {"mean": "running_mean", "var": "running_var"}
# Axes in PyTorch's order (outputs, inputs, rows, columns), by the number of axes of the array.
AXES = {1: (0,), 2: (1, 0), 3: (0, 1, 2), 4: (3, 2, 0, 1)}
VIT_NAMES = {
    "position_embedding": "pos_embed",
    "class_token": "cls_token",
    "patches": "patch_embed.proj",
    "qkv": "attn.qkv",
    "proj": "attn.proj",
    "fc1": "mlp.fc1",
    "fc2": "mlp.fc2",
}
HEADS = {"resnet": "fc", "small_alexnet": "blocks.7", "vit": "head"}


class TorchEntry(NamedTuple):
    """An entry of a PyTorch state dict.

    `image` is the shape (h, w, c) of the image that enters a dense layer: PyTorch flattens images
    channels first, this package channels last.
    """

    name: str
    shape: tuple[int, ...]  # in PyTorch
    image: tuple[int, int, int] | None = None


def has_torch_names(config: ModelConfig) -> bool:
    """Return whether a network exists in PyTorch."""
    if config.network is not None:
        return False
    # The number of attention heads does not follow from the shapes of a narrower or wider ViT.
    is_vit = config.model.startswith("vit") and config.width == 1
    return is_vit or config.model.startswith(("small_alexnet", "resnet"))


def torch_names(config: ModelConfig) -> dict[str, TorchEntry]:
    """Return the PyTorch entries by path, such as "params/layer1/block0/conv1/layer/kernel".

    A linear head is `fc`, as in torchvision. An MLP head is a sequence `fc.0`, `fc.1`, … of linear
    layers, batch norms and ReLUs, as in MoCo. The head of SmallAlexNet is `blocks.7`, the head of a
    ViT is `head`.

    Raises:
      UserError: for a network that has no PyTorch names.
    """
    require(
        has_torch_names(config),
        f"{config.label} has no counterpart in PyTorch; use names=own, or a ResNet, a ViT of "
        "width=1, or small_alexnet",
    )
    _, params, stats = models.abstract(config)
    entries = {}
    for path, leaf in flatten_dict({"params": params, "stats": stats}).items():
        name = _entry_name(path[1:], config)
        shape = tuple(leaf.shape[axis] for axis in AXES[leaf.ndim])
        image = None
        if path[1] == "fc6" and leaf.ndim == 2:
            image = models.layers(config)["conv5"]
        entries["/".join(path)] = TorchEntry(name, shape, image)
    return entries


def from_torch(config: ModelConfig, state: Mapping[str, Any]) -> tuple[dict, dict]:
    """Convert a PyTorch state dict to (params, stats) of `models.create`, as float32 of NumPy.

    Entries `num_batches_tracked` are ignored.

    Raises:
      UserError: for missing or unexpected entries, or other shapes.
    """
    entries = torch_names(config)
    names = {name for name in state if not name.endswith("num_batches_tracked")}
    expected = {entry.name for entry in entries.values()}
    missing = sorted(expected - names)
    unexpected = sorted(names - expected)
    require(
        not missing and not unexpected,
        f"not the weights of {config.model} with head={config.head}: missing "
        f"{shortened(missing)}, unexpected {shortened(unexpected)}",
    )
    flat = {}
    for path, entry in entries.items():
        array = np.asarray(state[entry.name], np.float32)
        require(
            array.shape == entry.shape,
            f"{entry.name} has shape {array.shape}, but {config.model} needs {entry.shape}",
        )
        if entry.image is not None:
            h, w, c = entry.image
            array = array.reshape(-1, c, h, w).transpose(0, 2, 3, 1).reshape(entry.shape)
        flat[path] = array.transpose(np.argsort(AXES[array.ndim]))
    tree = unflatten_dict(flat, sep="/")
    return tree["params"], tree.get("stats", {})  # ViTs have no batch norm


def to_torch(config: ModelConfig, params: dict, stats: dict) -> dict[str, np.ndarray]:
    """Convert parameters and batch statistics to a PyTorch state dict; inverse of `from_torch`.

    Returns NumPy arrays by name in PyTorch's shapes, with the same dtypes.
    """
    leaves = flatten_dict({"params": params, "stats": stats}, sep="/")
    state = {}
    for path, entry in torch_names(config).items():
        array = np.asarray(leaves[path])
        array = array.transpose(AXES[array.ndim])
        if entry.image is not None:
            array = array.reshape(-1, *entry.image).transpose(0, 3, 1, 2).reshape(entry.shape)
        state[entry.name] = np.ascontiguousarray(array)
    return state


def _entry_name(path: tuple[str, ...], config: ModelConfig) -> str:
    """Return PyTorch's name of a parameter or statistic."""
    *module, leaf = path
    if leaf not in LEAVES:
        return VIT_NAMES[leaf]
    if config.model.startswith("vit") and module[0] != "head":
        return f"{_vit_module_name(module, config)}.{LEAVES[leaf]}"
    return f"{_module_name(module, config)}.{LEAVES[leaf]}"


def _vit_module_name(path: list[str], config: ModelConfig) -> str:
    """Return timm's name of a layer before the head."""
    match path:
        case ["norm"]:
            return "norm" if config.pool == "token" else "fc_norm"
        case [block, layer]:
            return f"blocks.{int(block.removeprefix('block')) - 1}.{VIT_NAMES.get(layer, layer)}"
    return VIT_NAMES[path[0]]


def _module_name(path: list[str], config: ModelConfig) -> str:
    """Return PyTorch's name of a layer or of its batch norm."""
    is_alexnet = config.model == "small_alexnet"
    is_norm = path[-1] == "norm"
    match path:
        case ["head", "classifier"]:
            return "classifier"
        case ["head", name, *_]:
            return _head_module_name(name, is_norm, config)
        case [layer, _] if is_alexnet:
            position = int(is_norm)
            if layer == "fc6":
                position += 1  # the block starts with the flattening
            return f"blocks.{int(layer[-1]) - 1}.{position}"
        case ["conv1", _]:
            return "bn1" if is_norm else "conv1"
        case [stage, block, "downsample", _]:
            return f"{stage}.{block.removeprefix('block')}.downsample.{int(is_norm)}"
        case [stage, block, layer, _]:
            if is_norm:
                layer = layer.replace("conv", "bn")
            return f"{stage}.{block.removeprefix('block')}.{layer}"
    raise AssertionError(path)


def _head_module_name(name: str, is_norm: bool, config: ModelConfig) -> str:
    """Return PyTorch's name of a layer of the head, or of its batch norm."""
    *hidden, position = mlp_positions(config.head)
    if name != "output":
        position = hidden[int(name.removeprefix("projection")) - 1]
    position += int(is_norm)
    if config.model == "small_alexnet" or hidden:
        return f"{head_module(config.model)}.{position}"
    return head_module(config.model)


def head_module(model: str) -> str:
    """Return PyTorch's name of a model's head."""
    return next(head for family, head in HEADS.items() if model.startswith(family))


def mlp_positions(head: str) -> list[int]:
    """Return the positions of the linear layers in the sequence of a head."""
    form = heads.FORMS[head]
    step = 2 + int(form.normed)  # linear layer, batch norm if the head has them, ReLU
    return [step * number for number in range(form.hidden + 1)]


def shortened(names: list[str]) -> str:
    """Return the first names, and the number of further names."""
    text = ", ".join(names[:4]) or "none"
    if len(names) > 4:
        text += f" and {len(names) - 4} more"
    return text
