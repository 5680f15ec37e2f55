"""PyTorch's names and layouts of the same weights, for encoders that were trained there.

ResNets have torchvision's names, which MoCo's checkpoints have too (behind a prefix such as
`module.encoder_q.`, which the caller strips); SmallAlexNet those of Wang & Isola's repository
(`align_uniform`, STL-10: `blocks` is a list of sequential layers).
"""

import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from hypersphere_jax import models
from hypersphere_jax.configs import ModelConfig, UserError, require
from hypersphere_jax.models import heads

LEAVES = {"kernel": "weight", "scale": "weight", "bias": "bias"}
LEAVES |= {"mean": "running_mean", "var": "running_var"}
# The axes in PyTorch's order, of a vector, a dense layer, and a convolution: outputs come first,
# then inputs (then rows and columns).
AXES = {1: (0,), 2: (1, 0), 4: (3, 2, 0, 1)}


class TorchEntry(NamedTuple):
    """An entry of a PyTorch state dict.

    Attributes:
      name: its key.
      shape: its shape in PyTorch.
      image: for a dense layer on a flattened image, the shape (h, w, c) of that: PyTorch flattens
        channels first, this package last.
    """

    name: str
    shape: tuple[int, ...]
    image: tuple[int, int, int] | None = None


def has_torch_names(config: ModelConfig) -> bool:
    """Whether a model has a counterpart in PyTorch."""
    return config.network is None and config.model.startswith(("small_alexnet", "resnet"))


def torch_names(config: ModelConfig) -> dict[str, TorchEntry]:
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
    require(
        has_torch_names(config),
        f"{config.label} has no counterpart in PyTorch: only small_alexnet and ResNets have",
    )
    _, params, stats = models.abstract(config)
    entries = {}
    for path, leaf in flatten_dict({"params": params, "stats": stats}).items():
        name = f"{_module_name(path[1:-1], config)}.{LEAVES[path[-1]]}"
        shape = tuple(leaf.shape[axis] for axis in AXES[leaf.ndim])
        image = models.layers(config)["conv5"] if path[1] == "fc6" and leaf.ndim == 2 else None
        entries["/".join(path)] = TorchEntry(name, shape, image)
    return entries


def head_of(names: Collection[str], sequence: str) -> tuple[str, list[str]]:
    """Which head a state dict has, and the names of its weights, in their order.

    Args:
      names: of the entries.
      sequence: the head's, "fc" or "blocks.7".

    Raises:
      UserError: for a head that is not known.
    """
    if f"{sequence}.weight" in names:
        return "linear", [f"{sequence}.weight"]
    inside = [name for name in names if name.startswith(f"{sequence}.")]
    if not inside:
        return "none", []
    numbers = {int(n) for name in inside for n in re.findall(r"\.(\d+)\.weight$", name)}
    for head, form in heads.FORMS.items():
        step = 3 if form.normed else 2  # layer, batch norm if any, ReLU
        places = [step * number for number in range(form.hidden + 1)]
        norms = [place + 1 for place in places if form.normed]
        bias = not norms or (f"{sequence}.{norms[-1]}.bias" in names) == form.last_bias
        if head != "none" and numbers == {*places, *norms} and bias:
            return head, [f"{sequence}.{place}.weight" for place in places]
    raise UserError(
        f"no head of this package has the entries {shortened(sorted(inside))}: leave the head out, "
        "with head=False in Python, --head none on the command line"
    )


def from_torch(config: ModelConfig, state: Mapping[str, Any]) -> tuple[dict, dict]:
    """Parameters and statistics from a PyTorch state dict.

    Args:
      config: of the model, see `torch_names`.
      state: arrays by name; `num_batches_tracked` is ignored, as nothing here uses it.

    Returns:
      (params, stats) as of `models.create`, NumPy float32.

    Raises:
      UserError: when entries are missing or unexpected, or have another shape.
    """
    entries = torch_names(config)
    names = {name for name in state if not name.endswith("num_batches_tracked")}
    expected = {entry.name for entry in entries.values()}
    missing, unexpected = sorted(expected - names), sorted(names - expected)
    require(
        not missing and not unexpected,
        f"these are not the weights of {config.model} with the head {config.head!r}: "
        f"missing are {shortened(missing)}, unexpected {shortened(unexpected)}",
    )
    flat = {}
    for path, entry in entries.items():
        array = np.asarray(state[entry.name], np.float32)
        require(
            array.shape == entry.shape,
            f"{entry.name} has shape {array.shape}, where {config.model} needs {entry.shape}",
        )
        if entry.image is not None:
            h, w, c = entry.image
            array = array.reshape(-1, c, h, w).transpose(0, 2, 3, 1).reshape(entry.shape)
        flat[path] = array.transpose(np.argsort(AXES[array.ndim]))
    tree = unflatten_dict(flat, sep="/")
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
    leaves = flatten_dict({"params": params, "stats": stats}, sep="/")
    state = {}
    for path, entry in torch_names(config).items():
        array = np.asarray(leaves[path])
        array = array.transpose(AXES[array.ndim])
        if entry.image is not None:
            array = array.reshape(-1, *entry.image).transpose(0, 3, 1, 2).reshape(entry.shape)
        state[entry.name] = np.ascontiguousarray(array)
    return state


def _module_name(path: tuple[str, ...], config: ModelConfig) -> str:
    """PyTorch's name of a layer or of its batch norm."""
    alexnet, norm = config.model == "small_alexnet", int(path[-1] == "norm")
    match path:
        case ["head", "classifier"]:
            return "classifier"
        case ["head", name, *_]:
            form = heads.FORMS[config.head]
            if form.hidden == 0:
                return "blocks.7.0" if alexnet else "fc"
            number = form.hidden if name == "output" else int(name[-1]) - 1
            place = (3 if form.normed else 2) * number + norm  # layer, batch norm if any, ReLU
            return f"blocks.7.{place}" if alexnet else f"fc.{place}"
        case [layer, _] if alexnet:
            flattened = int(layer == "fc6")  # inside the block of fc6, before it
            return f"blocks.{int(layer[-1]) - 1}.{flattened + norm}"
        case ["conv1", _]:
            return "bn1" if norm else "conv1"
        case [stage, block, "downsample", _]:
            return f"{stage}.{block.removeprefix('block')}.downsample.{norm}"
        case [stage, block, layer, _]:
            layer = layer.replace("conv", "bn") if norm else layer
            return f"{stage}.{block.removeprefix('block')}.{layer}"
    raise AssertionError(path)


def shortened(names: list[str]) -> str:
    """The first of some names, and how many more there are."""
    first = ", ".join(names[:4]) or "none"
    return first + (f" and {len(names) - 4} more" if len(names) > 4 else "")
