"""Weights that others trained: reads files of them, and infers which network they are of.

A file is data: nothing in it is run (PyTorch's `weights_only`, NumPy's `allow_pickle=False`,
safetensors).
"""

import contextlib
import math
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, deserialize

from hypersphere_jax import models
from hypersphere_jax.config import ModelConfig, UserError, require
from hypersphere_jax.extras import how_to_install
from hypersphere_jax.files import read_json
from hypersphere_jax.models.torch_names import from_torch, head_of, shortened

State = dict[str, np.ndarray]
SUFFIXES = (".safetensors", ".npz", ".pth", ".pt", ".tar", ".bin", ".ckpt")
# The file of weights in a folder of Hugging Face's.
OF_FOLDER = "model.safetensors"
# Keys under which training scripts save the state dict among other things.
CONTAINERS = ("state_dict", "model_state_dict", "model_state", "model")
# An entry that every encoder of a family has.
FIRST = {"ResNet": "layer1.0.conv1.weight", "SmallAlexNet": "blocks.0.0.weight"}
# Hugging Face's names of a ResNet, and torchvision's.
STEM = r"(?P<prefix>^|.*?\.)(resnet\.)?embedder\.embedder\."
BLOCK = r"(?P<prefix>^|.*?\.)(resnet\.)?encoder\.stages\.(?P<stage>\d+)\.layers\.(?P<block>\d+)\."
KINDS = {"convolution": "conv", "normalization": "bn"}
# Types by the names of safetensors, whose older versions give NumPy no bfloat16.
DTYPES = {"BF16": jnp.bfloat16, **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)}}
DTYPES |= {f"{k}{bits}": f"{k.lower()}{bits // 8}" for k in "IU" for bits in (8, 16, 32, 64)}


def read_state(file: Path) -> State:
    """The real arrays in a file, by name.

    Args:
      file: .safetensors; .npz; of any other ending, PyTorch's.

    Returns:
      Floating-point arrays of a safetensors file or PyTorch's as float32, others as they are.

    Raises:
      UserError: when it cannot be read, or holds anything but arrays and plain values; when PyTorch
        is needed and not installed.
    """
    require(file.is_file(), f"{file} is not a file")
    read = {".npz": _read_npz, ".safetensors": _read_safetensors}
    state = read.get(file.suffix.lower(), _read_torch)(file)
    require(bool(state), f"{file} holds no arrays")
    own = any(name.startswith("params/") for name in state)
    require(
        not own,
        f"{file} has this package's own names, and not the config that belongs to them: load the "
        "folder that Encoder.save writes",
    )
    _check_config_beside(file)
    return state


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
    renamed = {_as_torchvision(name): name for name in state}
    prefixes = sorted(
        name.removesuffix(first)
        for name in renamed
        for first in FIRST.values()
        if name == first or name.endswith(f".{first}")
    )
    listed = ", ".join(map(repr, prefixes)) or f"none of a {' or a '.join(FIRST)}"
    if prefix is None:
        choice = [name for name in prefixes if name.endswith("encoder_q.")] or prefixes
        several = f"the file holds several encoders, under {listed}: choose one with prefix"
        require(len(choice) <= 1, f"{several}=… in Python, --prefix on the command line")
        require(
            bool(choice),
            "no ResNet (of torchvision, timm, Hugging Face or MoCo) and no SmallAlexNet is in it; "
            f"its entries are {shortened(sorted(state))}",
        )
        prefix = choice[0]
    elif prefix:
        prefix = prefix.removesuffix(".") + "."
    names = [name for name in renamed if name.startswith(prefix)]
    require(bool(names), f"prefix {prefix}: no name begins so; the prefixes are {listed}")
    encoder = {name.removeprefix(prefix): state[renamed[name]] for name in names}
    return encoder, sorted(state.keys() - {renamed[name] for name in names})


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
    return "stl10" if model.name == "small_alexnet" else "moco"


def converted(state: State, model: ModelConfig) -> tuple[dict, dict]:
    """Parameters and statistics of exactly that model.

    Raises:
      UserError: for missing or unexpected entries, other shapes, NaN or infinity.
    """
    infinite = [name for name in sorted(state) if not np.isfinite(state[name]).all()]
    require(not infinite, f"NaN or infinity is in {shortened(infinite)}")
    return from_torch(model, state)


@contextlib.contextmanager
def naming(file: Path) -> Iterator[None]:
    """Errors inside begin with the name of the file."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{file}: {error}") from error


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
    features = _shape(shapes, f"layer4.0.conv{3 if expansion > 1 else 2}.weight", 4)[0]
    return ModelConfig(
        name=known[expansion, depths],
        width=features / expansion / 512,
        stem=stem,
        channels=channels,
        image_size=image_size or (32 if stem == "cifar" else 224),
        **_head(shapes, "fc", features, "backbone"),
    )


def _small_alexnet(shapes: Mapping[str, tuple[int, ...]], image_size: int | None) -> ModelConfig:
    features = _shape(shapes, "blocks.6.0.weight", 2)[0]
    maps = _shape(shapes, "blocks.4.0.weight", 4)[0]
    flat = _shape(shapes, "blocks.5.1.weight", 2)[1]
    side = math.isqrt(flat // maps)
    least = 8 * side + 7  # three pools, each from s to (s - 1) // 2
    size = image_size or least + 1
    require(
        least <= size < least + 8 and side * side * maps == flat,
        f"image_size={size}: its fc6 has {flat} inputs, those of {least} to {least + 7} pixels",
    )
    return ModelConfig(
        name="small_alexnet",
        width=features / 4096,
        channels=_shape(shapes, FIRST["SmallAlexNet"], 4)[1],
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


def _read_npz(file: Path) -> State:
    try:
        with open(file, "rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            state = dict(arrays)
    except (ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{file} is not a readable .npz file of arrays: {error}") from error
    other = [name for name in sorted(state) if state[name].dtype.kind not in "fiu"]
    require(not other, f"{file}: not real numbers (bfloat16?) are {shortened(other)}")
    return state


def _read_safetensors(file: Path) -> State:
    try:
        tensors = dict(deserialize(file.read_bytes()))
    except SafetensorError as error:
        raise UserError(f"{file} is not a readable .safetensors file: {error}") from error
    other = [name for name in sorted(tensors) if tensors[name]["dtype"] not in DTYPES]
    require(not other, f"{file}: not plain real numbers are {shortened(other)}")
    state = {}
    for name, tensor in tensors.items():
        array = np.frombuffer(tensor["data"], DTYPES[tensor["dtype"]]).reshape(tensor["shape"])
        state[name] = array.astype(np.float32) if "F" in tensor["dtype"] else array
    return state


def _read_torch(file: Path) -> State:
    # Older ones run code in files that were made for that, `weights_only` or not.
    install = how_to_install("torch")
    try:
        import torch
    except ImportError as error:
        raise UserError(
            f"{file}: to read PyTorch's files, {install}; or write the state dict as .safetensors "
            "or .npz where PyTorch is installed (docs/torch.md)"
        ) from error
    require(
        tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 6),
        f"{file}: PyTorch {torch.__version__} can be made to run code that is in a file "
        f"(CVE-2025-32434): {install}",
    )
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
        while inner := [v for v in map(content.get, CONTAINERS) if isinstance(v, Mapping)]:
            content = inner[0]
        return {
            name: value.detach().float().numpy()
            for name, value in content.items()
            if isinstance(name, str) and isinstance(value, torch.Tensor)
        }
    except Exception as error:  # PyTorch raises many kinds of a damaged file
        raise UserError(
            f"{file} cannot be read by PyTorch as arrays alone ({type(error).__name__}): it is "
            "damaged, no checkpoint, or holds objects, which could run code: save its state dict "
            "by itself, torch.save(model.state_dict(), …)"
        ) from error
