"""Find an encoder in a state dict of another library, and infer its network."""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hypersphere_jax import models
from hypersphere_jax.configs import ModelConfig, UserError, require
from hypersphere_jax.models import heads
from hypersphere_jax.models.torch_names import head_module, mlp_positions, shortened

StateDict = dict[str, np.ndarray]
Shapes = Mapping[str, tuple[int, ...]]

# Every encoder of a family has this entry.
RESNET_ENTRY = "layer1.0.conv1.weight"
ALEXNET_ENTRY = "blocks.0.0.weight"
VIT_ENTRY = "patch_embed.proj.weight"
ENTRIES = (RESNET_ENTRY, ALEXNET_ENTRY, VIT_ENTRY)
RESNET_MODULES = ("conv1", "bn1", "layer1", "layer2", "layer3", "layer4", "fc")
MODULES = (*RESNET_MODULES, "blocks", "classifier")
PREFIX = r"(?P<prefix>^|.*?\.)"
# A block in a ResNet that is an `nn.Sequential` of torchvision's modules.
SEQUENTIAL = re.compile(PREFIX + r"(?P<stage>\d+)\.\d+\.(conv\d|bn\d|downsample\.\d)\.")
# Modules of Hugging Face's ResNets.
KINDS = {"convolution": "conv", "normalization": "bn"}
STEM = re.compile(PREFIX + r"(resnet\.)?embedder\.embedder\.(?P<kind>convolution|normalization)\.")
BLOCK = re.compile(
    PREFIX + r"(resnet\.)?encoder\.stages\.(?P<stage>\d+)\.layers\.(?P<block>\d+)\."
    r"(layer\.(?P<layer>\d+)|shortcut)\.(?P<kind>convolution|normalization)\."
)
CLASSIFIER = re.compile(PREFIX + r"classifier\.1\.")
SUPPORTED = "only the plain ResNet-18, -34 and -50 are supported"


def select_encoder(
    state: Mapping[str, np.ndarray], prefix: str | None = None
) -> tuple[StateDict, list[str]]:
    """Return one encoder under torchvision's names, and the names of all other entries.

    Linear modules next to the network, such as projections and prototypes, are not part of it. The
    prefix of the encoder's names is detected by default, where MoCo's `encoder_q` is preferred.

    Raises:
      UserError: for an unknown prefix, several encoders, or none.
    """
    names = torchvision_names(state)
    prefixes = encoder_prefixes(names)
    if prefix is None:
        prefix = _detect_prefix(prefixes, state)
    elif prefix:
        prefix = prefix.removesuffix(".") + "."
    inside = {}
    ndims = defaultdict(set)
    for name, name_in_file in names.items():
        if name.startswith(prefix):
            name = name.removeprefix(prefix)
            inside[name] = name_in_file
            ndims[name.partition(".")[0]].add(np.ndim(state[name_in_file]))
    known = ", ".join(map(repr, prefixes)) or "none"
    require(bool(inside), f"prefix={prefix}: no name starts with it; prefixes of encoders: {known}")
    linear = {module for module in ndims if max(ndims[module]) == 2} - set(MODULES)
    if VIT_ENTRY in inside:
        linear.discard("head")
    selected = {name: old for name, old in inside.items() if name.partition(".")[0] not in linear}
    ignored = sorted(state.keys() - set(selected.values()))
    return {name: state[old] for name, old in selected.items()}, ignored


def without_head(state: Mapping[str, np.ndarray]) -> tuple[StateDict, list[str]]:
    """Return the entries before the head, and the names of the head's entries."""
    families = {ALEXNET_ENTRY: "small_alexnet", VIT_ENTRY: "vit"}
    family = next((family for entry, family in families.items() if entry in state), "resnet")
    prefixes = (f"{head_module(family)}.", "classifier.")
    head_names = sorted(name for name in state if name.startswith(prefixes))
    return {name: array for name, array in state.items() if name not in head_names}, head_names


def infer_model(state: Mapping[str, np.ndarray], image_size: int | None = None) -> ModelConfig:
    """Infer the network from the names and shapes of one encoder.

    Args:
      state: one encoder, see `select_encoder`.
      image_size: side of the input images in pixels. Defaults to the size that fits the `fc6` of a
        SmallAlexNet or the position embedding of a ViT; for a ResNet to 224, or 32 with a 3x3 stem.

    Raises:
      UserError: for a network that this package does not have.
    """
    shapes = {name: np.shape(array) for name, array in state.items()}
    if ALEXNET_ENTRY in shapes:
        return _infer_small_alexnet(shapes, image_size)
    if VIT_ENTRY in shapes:
        return _infer_vit(shapes, image_size)
    return _infer_resnet(shapes, image_size)


def torchvision_names(names: Iterable[str]) -> dict[str, str]:
    """Map torchvision's name of each entry to its name in the file.

    Names may be of torchvision, Hugging Face, or an `nn.Sequential` of torchvision's modules, with
    any prefix. Unknown names are kept.
    """
    names = list(names)
    modules = _sequential_modules(names)
    renamed = {}
    for name in names:
        position = next((prefix for prefix in modules if name.startswith(prefix)), "")
        module = modules.get(position, "")
        renamed[module + _from_hugging_face(name.removeprefix(position))] = name
    return renamed


def encoder_prefixes(names: Iterable[str]) -> list[str]:
    """Return the prefix of each encoder among torchvision's names, sorted."""
    entry = re.compile(rf"(.*\.)?({'|'.join(map(re.escape, ENTRIES))})")
    matches = [entry.fullmatch(name) for name in names]
    return sorted(match[1] or "" for match in matches if match)


def _detect_prefix(prefixes: list[str], state: Mapping[str, Any]) -> str:
    candidates = [prefix for prefix in prefixes if prefix.endswith("encoder_q.")] or prefixes
    require(
        bool(candidates),
        "no ResNet (names of torchvision or Hugging Face), ViT (timm) or SmallAlexNet in the file; "
        f"its entries are {shortened(sorted(state))}",
    )
    require(
        len(candidates) == 1,
        f"several encoders in the file, under {', '.join(map(repr, prefixes))}; choose one with "
        "prefix= in Python or --prefix on the command line",
    )
    return candidates[0]


def _sequential_modules(names: Iterable[str]) -> dict[str, str]:
    """Map prefixes such as `backbone.4.` to torchvision's, such as `backbone.layer1.`."""
    stages = defaultdict(set)
    for name in names:
        if match := SEQUENTIAL.match(name):
            stages[match["prefix"]].add(int(match["stage"]))
    modules = {}
    for prefix, numbers in stages.items():
        positions = (0, 1, *sorted(numbers))
        for position, module in zip(positions, RESNET_MODULES, strict=False):
            modules[f"{prefix}{position}."] = f"{prefix}{module}."
    return modules


def _from_hugging_face(name: str) -> str:
    """Return torchvision's name for a name of Hugging Face's; other names are kept."""
    if match := STEM.match(name):
        module = f"{KINDS[match['kind']]}1"
    elif match := BLOCK.match(name):
        if match["layer"] is None:
            module = f"downsample.{list(KINDS).index(match['kind'])}"
        else:
            module = f"{KINDS[match['kind']]}{int(match['layer']) + 1}"
        module = f"layer{int(match['stage']) + 1}.{match['block']}.{module}"
    elif match := CLASSIFIER.match(name):
        module = "fc"
    else:
        return name
    return f"{match['prefix']}{module}.{name[match.end() :]}"


def _infer_resnet(shapes: Shapes, image_size: int | None) -> ModelConfig:
    has_deep_stem = "conv1.0.weight" in shapes
    has_pooled_shortcuts = any(".downsample.2." in name for name in shapes)
    require(not has_deep_stem, f"the stem has several convolutions (ResNet-C, -D, -T); {SUPPORTED}")
    require(not has_pooled_shortcuts, f"the shortcuts are pooled (ResNet-D); {SUPPORTED}")
    _, channels, *kernel = _shape(shapes, "conv1.weight", 4)
    stem = {(3, 3): "cifar", (7, 7): "imagenet"}.get(tuple(kernel))
    require(stem is not None, f"the kernel of conv1 is {kernel}, not 3x3 or 7x7; {SUPPORTED}")
    if image_size is None:
        image_size = {"cifar": 32, "imagenet": 224}[stem]
    depths = [_count_blocks(shapes, f"layer{stage}") for stage in range(1, 5)]
    last_convolution = "conv2"
    expansion = 1
    if "layer1.0.conv3.weight" in shapes:
        last_convolution = "conv3"
        expansion = 4
    networks = {name: models.MODELS[name] for name in ("resnet18", "resnet34", "resnet50")}
    known = {(net.expansion, net.depths): name for name, net in networks.items()}
    name = known.get((expansion, tuple(depths)))
    require(name is not None, f"{depths} blocks, each ending in {last_convolution}; {SUPPORTED}")
    features = _shape(shapes, f"layer4.0.{last_convolution}.weight", 4)[0]
    return ModelConfig(
        model=name,
        width=features / expansion / 512,
        stem=stem,
        in_channels=channels,
        image_size=image_size,
        **_infer_head(shapes, "fc", features, "backbone"),
    )


def _infer_small_alexnet(shapes: Shapes, image_size: int | None) -> ModelConfig:
    features = _shape(shapes, "blocks.6.0.weight", 2)[0]
    channels = _shape(shapes, "blocks.4.0.weight", 4)[0]
    fc6_inputs = _shape(shapes, "blocks.5.1.weight", 2)[1]
    side = math.isqrt(fc6_inputs // channels)
    smallest = 8 * side + 7  # each of three pools maps a side s to (s - 1) // 2
    largest = smallest + 7
    if image_size is None:
        image_size = smallest + 1
    require(
        smallest <= image_size <= largest and side * side * channels == fc6_inputs,
        f"image_size={image_size} does not fit the file; use {smallest} to {largest} pixels",
    )
    return ModelConfig(
        model="small_alexnet",
        width=features / 4096,
        in_channels=_shape(shapes, ALEXNET_ENTRY, 4)[1],
        image_size=image_size,
        **_infer_head(shapes, "blocks.7", features, "fc7"),
    )


def _infer_vit(shapes: Shapes, image_size: int | None) -> ModelConfig:
    width, channels, patch_size, _ = _shape(shapes, VIT_ENTRY, 4)
    _, tokens, _ = _shape(shapes, "pos_embed", 3)
    depth = _count_blocks(shapes, "blocks")
    model = {192: "vit_tiny", 384: "vit_small"}.get(width)
    require(
        model is not None and depth == models.MODELS[model].depth,
        f"{depth} blocks of width {width}; only ViT-Tiny and ViT-Small are supported",
    )
    size = patch_size * math.isqrt(tokens - 1)
    require(
        image_size in (None, size),
        f"image_size={image_size} does not fit the position embedding; use {size} pixels",
    )
    return ModelConfig(
        model=model,
        patch_size=patch_size,
        pool="mean" if "fc_norm.weight" in shapes else "token",
        in_channels=channels,
        image_size=size,
        **_infer_head(shapes, "head", width, "backbone"),
    )


def _count_blocks(shapes: Shapes, module: str) -> int:
    return len({name.split(".")[1] for name in shapes if name.startswith(f"{module}.")})


def _infer_head(shapes: Shapes, module: str, features: int, last_layer: str) -> dict[str, Any]:
    """Return the config's fields of the head and the classifier."""
    head, weights = _head_weights(shapes, module)
    widths = [_shape(shapes, name, 2)[0] for name in weights] or [features]
    *hidden, dim = widths
    fields: dict[str, Any] = {"head": head, "dim": dim}
    if hidden:
        fields["head_hidden"] = hidden[0]
    if "classifier.weight" not in shapes:
        return fields
    classes, inputs = _shape(shapes, "classifier.weight", 2)
    layers = {"output": dim, last_layer: features}
    layers |= {f"projection{number}": width for number, width in enumerate(hidden, 1)}
    matching = [layer for layer, width in layers.items() if width == inputs]
    return fields | {"num_classes": classes, "classifier_layer": next(iter(matching), "output")}


def _head_weights(shapes: Shapes, module: str) -> tuple[str, list[str]]:
    """Return the form of the head and the names of its linear weights in order."""
    if f"{module}.weight" in shapes:
        return "linear", [f"{module}.weight"]
    entries = sorted(name for name in shapes if name.startswith(f"{module}."))
    if not entries:
        return "none", []
    positions = {int(n) for name in entries for n in re.findall(r"\.(\d+)\.weight$", name)}
    for head, form in heads.FORMS.items():
        linear = mlp_positions(head)
        norms = [position + 1 for position in linear if form.normed]
        has_bias = f"{module}.{linear[-1] + 1}.bias" in shapes
        fits_bias = not form.normed or has_bias == form.last_bias
        if head != "none" and positions == {*linear, *norms} and fits_bias:
            return head, [f"{module}.{position}.weight" for position in linear]
    raise UserError(
        f"no head of this package has the entries {shortened(entries)}; drop the head with "
        "head=False in Python or --head none on the command line"
    )


def _shape(shapes: Shapes, name: str, ndim: int) -> tuple[int, ...]:
    require(name in shapes, f"not the weights of an encoder: {name} is missing")
    shape = shapes[name]
    require(len(shape) == ndim, f"{name} has shape {shape}; it must have {ndim} axes")
    return shape
