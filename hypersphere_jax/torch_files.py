"""Weights that others trained: reads files of them, and infers which network they are of.

A file is data: nothing in it is run.
"""

import contextlib
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

from hypersphere_jax import models, torch_format
from hypersphere_jax.configs import ModelConfig, UserError, require
from hypersphere_jax.configs.base import WRITER
from hypersphere_jax.models.torch_names import from_torch, head_of, shortened
from hypersphere_jax.utils.arrays import array_names, checksum, entry, open_array
from hypersphere_jax.utils.files import read_json

State = dict[str, np.ndarray]
SUFFIXES = (".safetensors", ".npz", ".pth", ".pt", ".tar", ".bin", ".ckpt")
CHECKSUM = "arrays_crc32"  # of a safetensors file, in its metadata
# The file of weights in a folder of Hugging Face's.
OF_FOLDER = "model.safetensors"
MAX_NAME = 1000  # characters of a tensor's name with its place in a file
# An entry that every encoder of a family has.
FIRST = {"ResNet": "layer1.0.conv1.weight", "SmallAlexNet": "blocks.0.0.weight"}
# The modules of these. Others beside them are left aside if they are linear.
MODULES = ("conv1", "bn1", "layer1", "layer2", "layer3", "layer4", "fc", "blocks", "classifier")
# Hugging Face's names of a ResNet, and torchvision's.
STEM = r"(?P<prefix>^|.*?\.)(resnet\.)?embedder\.embedder\."
BLOCK = r"(?P<prefix>^|.*?\.)(resnet\.)?encoder\.stages\.(?P<stage>\d+)\.layers\.(?P<block>\d+)\."
KINDS = {"convolution": "conv", "normalization": "bn"}
# A block in a stage of a ResNet that is a sequence of torchvision's modules.
IN_SEQUENCE = r"(?P<prefix>^|.*?\.)(?P<stage>\d+)\.\d+\.(conv\d|bn\d|downsample\.\d)\."
# Types by the names of safetensors, whose older versions give NumPy no bfloat16.
DTYPES = {"BF16": jnp.bfloat16, "BOOL": "bool", "F16": "f2", "F32": "f4", "F64": "f8"}
DTYPES |= {f"{k}{bits}": f"{k.lower()}{bits // 8}" for k in "IU" for bits in (8, 16, 32, 64)}


def file_in(where: Path) -> Path:
    """The file of weights in a folder as Hugging Face has it; else the path itself."""
    return where / OF_FOLDER if (where / OF_FOLDER).is_file() else where


def read_state(file: Path) -> State:
    """The real arrays in a file, by name.

    Args:
      file: .safetensors; .npz; of any other ending, PyTorch's.

    Returns:
      Those of floating-point numbers as float32.

    Raises:
      UserError: when it cannot be read, or holds anything but arrays and plain values.
    """
    require(file.is_file(), f"{file} is not a file")
    if file.suffix.lower() == ".npz":
        state = {name: open_array(file, name) for name in array_names(file)}
    else:
        is_safetensors = file.suffix.lower() == ".safetensors"
        state = read_safetensors(file)[0] if is_safetensors else _read_torch(file)
    require(bool(state), f"{file} holds no arrays")
    own = any(name.startswith("params/") for name in state)
    require(
        not own,
        f"{file} has this package's own names, and not the config that belongs to them: load the "
        "folder that Encoder.save writes",
    )
    _check_config_beside(file)
    return {
        name: array.astype(np.float32) if jnp.issubdtype(array.dtype, jnp.floating) else array
        for name, array in state.items()
    }


def read_safetensors(file: Path) -> tuple[State, dict[str, str]]:
    """The arrays of a safetensors file, and its metadata.

    Raises:
      UserError: when it is damaged, or holds anything but real numbers.
    """
    try:
        data = file.read_bytes()
        tensors = dict(deserialize(data))
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file} cannot be read as .safetensors: {error}") from error
    other = [name for name in sorted(tensors) if tensors[name]["dtype"] not in DTYPES]
    require(not other, f"{file}: not plain real numbers are {shortened(other)}")
    arrays = {
        name: np.frombuffer(tensor["data"], DTYPES[tensor["dtype"]]).reshape(tensor["shape"])
        for name, tensor in tensors.items()
    }
    metadata = header.get("__metadata__") or {}
    said = metadata.get(CHECKSUM)
    require(said in (None, _checksum(arrays)), f"{file} cannot be read: its checksum differs")
    return arrays, metadata


def to_safetensors(arrays: State, names: str, **metadata: str) -> bytes:
    """A safetensors file with a checksum, which `read_safetensors` compares.

    Args:
      arrays: by name.
      names: whose they are; "pt" is the one that Hugging Face's libraries read.
      metadata: further texts to store.
    """
    metadata |= {"format": names, "written_by": WRITER, CHECKSUM: _checksum(arrays)}
    return save(arrays, metadata)


def encoder_of(
    state: Mapping[str, np.ndarray], prefix: str | None = None
) -> tuple[State, list[str]]:
    """The entries of one encoder under torchvision's names, and the names of all others.

    Args:
      state: arrays by name.
      prefix: of the encoder's names, with or without the last dot. None: it is detected; of several
        encoders, MoCo's `encoder_q` is taken.

    Raises:
      UserError: when the choice is not clear, or nothing has that prefix.
    """
    renamed = _renamed(state)
    prefixes = _prefixes(renamed)
    listed = ", ".join(map(repr, prefixes)) or f"none of a {' or a '.join(FIRST)}"
    if prefix is None:
        choice = [name for name in prefixes if name.endswith("encoder_q.")] or prefixes
        several = f"the file holds several encoders, under {listed}: choose one with prefix"
        require(len(choice) <= 1, f"{several}=… in Python, --prefix on the command line")
        require(
            bool(choice),
            "no ResNet (torchvision's names, or Hugging Face's) and no SmallAlexNet is in it; "
            f"its entries are {shortened(sorted(state))}",
        )
        prefix = choice[0]
    elif prefix:
        prefix = prefix.removesuffix(".") + "."
    modules: dict[str, dict[str, str]] = defaultdict(dict)
    for name, old in renamed.items():
        if name.startswith(prefix):
            name = name.removeprefix(prefix)
            modules[name.partition(".")[0]][name] = old
    require(bool(modules), f"prefix {prefix}: no name begins so; the prefixes are {listed}")
    kept = {
        name: old
        for module, names in modules.items()
        if module in MODULES or max(np.ndim(state[old]) for old in names.values()) != 2
        for name, old in names.items()
    }
    return {name: state[old] for name, old in kept.items()}, sorted(state.keys() - kept.values())


def without_head(state: Mapping[str, np.ndarray]) -> tuple[State, list[str]]:
    """The entries before the head, and the names of the head's."""
    head = ("blocks.7.",) if FIRST["SmallAlexNet"] in state else ("fc.",)
    names = sorted(name for name in state if name.startswith((*head, "classifier.")))
    return {name: array for name, array in state.items() if name not in names}, names


def infer(state: Mapping[str, np.ndarray], image_size: int | None = None) -> ModelConfig:
    """The network of a state dict, by its names and shapes: depth, width, stem, head and sizes.

    Args:
      state: as of `encoder_of`.
      image_size: pixels. None: of a SmallAlexNet what `fc6` is for, such as 64; of a ResNet 224, or
        32 where the stem is a 3x3 convolution.

    Raises:
      UserError: for a network that this package does not have.
    """
    shapes = {name: np.shape(array) for name, array in state.items()}
    if FIRST["SmallAlexNet"] in shapes:
        return _small_alexnet(shapes, image_size)
    return _resnet(shapes, image_size)


def recipe_of(model: ModelConfig) -> str:
    """The recipe with the evaluation that such encoders are usually trained for."""
    if model.image_size < 64:
        return "cifar10"
    return "stl10" if model.model == "small_alexnet" else "moco"


def converted(state: State, model: ModelConfig) -> tuple[dict, dict]:
    """Parameters and statistics of exactly that model.

    Raises:
      UserError: for missing or unexpected entries, other shapes, NaN, infinity, or a variance
        below zero.
    """
    infinite = [name for name in sorted(state) if not np.isfinite(state[name]).all()]
    require(not infinite, f"NaN or infinity is in {shortened(infinite)}")
    below = [name for name in sorted(state) if "running_var" in name and (state[name] < 0).any()]
    require(not below, f"a variance below zero is in {shortened(below)}")
    return from_torch(model, state)


@contextlib.contextmanager
def naming(file: Path) -> Iterator[None]:
    """Errors inside begin with the name of the file."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{file}: {error}") from error


def _prefixes(names: Iterable[str]) -> list[str]:
    """Where the encoders begin among torchvision's names."""
    return sorted(
        name.removesuffix(first)
        for name in names
        for first in FIRST.values()
        if name == first or name.endswith(f".{first}")
    )


def _renamed(names: Iterable[str]) -> dict[str, str]:
    """The names, by those that torchvision has for the same entries."""
    stages = defaultdict(set)
    for name in names:
        if match := re.match(IN_SEQUENCE, name):
            stages[match["prefix"]].add(int(match["stage"]))
    sequences = {
        f"{prefix}{number}.": f"{prefix}{module}."
        for prefix, numbers in stages.items()
        for number, module in zip((0, 1, *sorted(numbers)), MODULES, strict=False)
    }
    renamed = {}
    for name in names:
        old = next((old for old in sequences if name.startswith(old)), "")
        renamed[sequences.get(old, "") + _as_torchvision(name.removeprefix(old))] = name
    return renamed


def _as_torchvision(name: str) -> str:
    """Torchvision's name of an entry of Hugging Face's; other names stay."""
    if match := re.match(STEM + r"(?P<kind>\w+)\.", name):
        inner = f"{KINDS.get(match['kind'])}1."
    elif match := re.match(BLOCK + r"layer\.(?P<number>\d+)\.(?P<kind>\w+)\.", name):
        inner = f"{KINDS.get(match['kind'])}{int(match['number']) + 1}."
    elif match := re.match(BLOCK + r"shortcut\.(?P<kind>\w+)\.", name):
        inner = f"downsample.{int(match['kind'] == 'normalization')}."
    elif match := re.match(r"(?P<prefix>^|.*?\.)classifier\.1\.", name):
        inner = "fc."
    else:
        return name
    if "stage" in match.groupdict():
        inner = f"layer{int(match['stage']) + 1}.{match['block']}.{inner}"
    return match["prefix"] + inner + name[match.end() :]


def _resnet(shapes: Mapping[str, tuple[int, ...]], image_size: int | None) -> ModelConfig:
    plain = "and of ResNets only the plain 18, 34 and 50 are known"
    stem, pooled = "conv1.0.weight" in shapes, any(".downsample.2." in name for name in shapes)
    require(not stem, f"its stem has several convolutions (ResNet-C, -D or -T), {plain}")
    require(not pooled, f"its shortcuts pool before their convolution (ResNet-D), {plain}")
    expansion = 4 if "layer1.0.conv3.weight" in shapes else 1
    depths = tuple(
        len({name.split(".")[1] for name in shapes if name.startswith(f"layer{stage}.")})
        for stage in range(1, 5)
    )
    known = {
        (of.expansion, of.depths): name for name, of in models.MODELS.items() if "resnet" in name
    }
    kind = "bottlenecks" if expansion > 1 else "basic blocks"
    require((expansion, depths) in known, f"its stages have {depths} {kind}, {plain}")
    _, channels, *sides = _shape(shapes, "conv1.weight", 4)
    stem = {(3, 3): "cifar", (7, 7): "imagenet"}.get(tuple(sides))
    require(stem is not None, f"its first convolution is {sides}, not 3x3 or 7x7, {plain}")
    usual_size = 32 if stem == "cifar" else 224
    features = _shape(shapes, f"layer4.0.conv{3 if expansion > 1 else 2}.weight", 4)[0]
    return ModelConfig(
        model=known[expansion, depths],
        width=features / expansion / 512,
        stem=stem,
        in_channels=channels,
        image_size=usual_size if image_size is None else image_size,
        **_head(shapes, "fc", features, "backbone"),
    )


def _small_alexnet(shapes: Mapping[str, tuple[int, ...]], image_size: int | None) -> ModelConfig:
    features = _shape(shapes, "blocks.6.0.weight", 2)[0]
    maps = _shape(shapes, "blocks.4.0.weight", 4)[0]
    flat = _shape(shapes, "blocks.5.1.weight", 2)[1]
    side = math.isqrt(flat // maps)
    least = 8 * side + 7  # three pools, each from s to (s - 1) // 2
    size = least + 1 if image_size is None else image_size
    require(
        least <= size < least + 8 and side * side * maps == flat,
        f"image_size={size}: its fc6 has {flat} inputs, those of {least} to {least + 7} pixels",
    )
    return ModelConfig(
        model="small_alexnet",
        width=features / 4096,
        in_channels=_shape(shapes, FIRST["SmallAlexNet"], 4)[1],
        image_size=size,
        **_head(shapes, "blocks.7", features, "fc7"),
    )


def _head(
    shapes: Mapping[str, tuple[int, ...]], sequence: str, features: int, layer: str
) -> dict[str, Any]:
    """The fields of a config for the head and the classifier."""
    form, weights = head_of(shapes, sequence)
    widths = [_shape(shapes, name, 2)[0] for name in weights]
    dim = widths[-1] if widths else features
    hidden = {f"projection{number + 1}": width for number, width in enumerate(widths[:-1])}
    fields: dict[str, Any] = {"head": form, "dim": dim, "head_hidden": hidden.get("projection1")}
    if "classifier.weight" in shapes:
        classes, inputs = _shape(shapes, "classifier.weight", 2)
        places = {"output": dim, layer: features, **hidden}
        place = next((name for name, width in places.items() if width == inputs), "output")
        fields |= {"num_classes": classes, "classifier_layer": place}
    return fields


def _shape(shapes: Mapping[str, tuple[int, ...]], name: str, axes: int) -> tuple[int, ...]:
    require(name in shapes, f"these are not the weights of an encoder: missing is {name}")
    shape = shapes[name]
    require(len(shape) == axes, f"{name} has shape {shape}, which needs {axes} axes")
    return shape


def _check_config_beside(file: Path) -> None:
    """Refuses what no name or shape shows, by the `config.json` of timm and of Hugging Face."""
    beside = file.with_name("config.json")
    config = read_json(beside) if beside.is_file() else {}
    unlike = {
        "anti-aliasing": re.match(r"resnet(aa|blur)", str(config.get("architecture"))),
        "a stride in the first stage": config.get("downsample_in_first_stage"),
        "the stride of a bottleneck on its 1x1 convolution": config.get("downsample_in_bottleneck"),
        "another activation than ReLU": config.get("hidden_act", "relu") != "relu",
    }
    for what, has in unlike.items():
        require(not has, f"{file}: {beside.name} says {what}, which the plain ResNets do not have")


def _checksum(arrays: State) -> str:
    return str(checksum({name: entry(array) for name, array in arrays.items()}))


def _read_torch(file: Path) -> State:
    """The mapping of names to tensors that has an encoder; of several, each name with its place."""
    try:
        content, array = torch_format.read(file.read_bytes())
        found = dict(_tensors(content, "", set()))
        found = {at: of for at, of in found.items() if _prefixes(_renamed(of))} or found
        return {
            f"{place}{name}" if len(found) > 1 else name: array(tensor)
            for place, tensors in found.items()
            for name, tensor in tensors.items()
        }
    except Exception as error:  # a damaged pickle raises nearly any kind
        why = str(error) or type(error).__name__
        raise UserError(f"{file} cannot be read as arrays of PyTorch: {why}") from error


def _tensors(
    value: Any, place: str, seen: set[int]
) -> Iterator[tuple[str, dict[str, torch_format.Tensor]]]:
    """Tensors by name of each mapping that has some in a file's content, and its place there."""
    if len(place) > MAX_NAME and isinstance(value, Mapping | list | tuple):
        raise ValueError(f"the name {place[:40]}… in it is longer than {MAX_NAME} characters")
    if isinstance(value, torch_format.Tensor) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    if isinstance(value, Mapping):
        if tensors := {str(k): v for k, v in value.items() if isinstance(v, torch_format.Tensor)}:
            yield place, tensors
        for key, one in value.items():
            yield from _tensors(one, f"{place}{key}.", seen)
