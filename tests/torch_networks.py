"""NumPy oracles of torchvision's ResNets, timm's ViT and the SmallAlexNet, in float64.

Also random weights under their names.
"""

from dataclasses import replace
from functools import partial

import jax
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy.special import erf, softmax

from hypersphere_jax.configs import ModelConfig
from hypersphere_jax.models.torch_names import torch_names

RESNET = ModelConfig(model="resnet18", image_size=16, in_channels=3, width=0.125, dim=5)
ALEXNET = ModelConfig(model="small_alexnet", image_size=32, in_channels=3, width=0.05, dim=5)
VIT = ModelConfig(model="vit_tiny", image_size=8, patch_size=4, in_channels=3, dim=5)
HEADLESS = replace(RESNET, head="none", dim=64)


def random_state(config, rng):
    state = {}
    for path, entry in torch_names(config).items():
        drawn = np.sqrt(2 / max(1, np.prod(entry.shape[1:]))) * rng.standard_normal(entry.shape)
        positive = path.endswith(("scale", "var"))
        state[entry.name] = np.float32(0.5 + rng.random(entry.shape) if positive else drawn)
    return state


def without(state, *prefixes):
    return {name: array for name, array in state.items() if not name.startswith(prefixes)}


def assert_same(made, expected):
    assert jax.tree.structure(made) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, made, expected)


def hugging_face(state, prefix="resnet."):
    """A ResNet's entries under the names of transformers' modules, written out from these."""
    modules = {"conv1": "embedder.embedder.convolution", "bn1": "embedder.embedder.normalization"}
    for stage in range(4):
        for block in range(6):
            there, here = f"encoder.stages.{stage}.layers.{block}", f"layer{stage + 1}.{block}"
            modules[f"{here}.downsample.0"] = f"{there}.shortcut.convolution"
            modules[f"{here}.downsample.1"] = f"{there}.shortcut.normalization"
            for number in range(3):
                modules[f"{here}.conv{number + 1}"] = f"{there}.layer.{number}.convolution"
                modules[f"{here}.bn{number + 1}"] = f"{there}.layer.{number}.normalization"
    named = {}
    for name, array in state.items():
        module, _, leaf = name.rpartition(".")
        head = f"{prefix.removesuffix('resnet.')}classifier.1"
        named[f"{head if module == 'fc' else prefix + modules[module]}.{leaf}"] = array
    return named


relu = partial(np.maximum, 0)


def windows(x, side, stride, padding, value):  # [n, c, rows, columns, side, side]
    x = np.pad(x, ((0, 0), (0, 0), (padding,) * 2, (padding,) * 2), constant_values=value)
    return sliding_window_view(x, (side, side), (2, 3))[:, :, ::stride, ::stride]


def conv2d(x, kernel, stride=1, padding=0):
    patches = windows(x, kernel.shape[-1], stride, padding, 0.0)
    return np.einsum("nchwij,ocij->nohw", patches, kernel, optimize=True)


def batch_norm(x, mean, var, weight, bias, training):
    axes = (0, 2, 3)[: x.ndim - 1]
    if training:  # the variance by which it divides is kept; PyTorch keeps m / (m - 1) times that
        for running, batch in ((mean, x.mean(axes)), (var, x.var(axes))):
            running += 0.1 * (batch - running)
        mean, var = x.mean(axes), x.var(axes)
    form = (-1, *[1] * (x.ndim - 2))
    normed = (x - mean.reshape(form)) / np.sqrt(var.reshape(form) + 1e-5)
    return normed * weight.reshape(form) + (0 if bias is None else bias.reshape(form))


class Network:
    """A forward pass: `network(x)` gives layers by name; in training `state` follows the batch."""

    def __init__(self, config, state, training=False):
        self.config, self.state, self.training, self.used = config, state, training, set()

    def of(self, name, *kinds):
        names = [f"{name}.{kind}" for kind in kinds]
        self.used |= self.state.keys() & set(names)
        return [self.state.get(name) for name in names]

    def normed(self, x, name):
        of = self.of(name, "running_mean", "running_var", "weight", "bias")
        return batch_norm(x, *of, self.training)

    def linear(self, x, name):
        weight, bias = self.of(name, "weight", "bias")
        return x @ weight.T + (0 if bias is None else bias)

    def conv(self, x, name, norm, stride=1):
        (kernel,) = self.of(name, "weight")
        return self.normed(conv2d(x, kernel, stride, kernel.shape[-1] // 2), norm)

    def block(self, x, name, stride):
        inner, deep = x, f"{name}.conv3.weight" in self.state
        for number, step in enumerate((1, stride, 1) if deep else (stride, 1), 1):
            inner = inner if number == 1 else relu(inner)
            inner = self.conv(inner, f"{name}.conv{number}", f"{name}.bn{number}", step)
        if f"{name}.downsample.0.weight" in self.state:
            x = self.conv(x, f"{name}.downsample.0", f"{name}.downsample.1", stride)
        return relu(inner + x)

    def resnet(self, x):
        large = self.state["conv1.weight"].shape[-1] == 7
        x = relu(self.conv(x, "conv1", "bn1", 2 if large else 1))
        x = windows(x, 3, 2, 1, -np.inf).max((4, 5)) if large else x
        yield "conv1", x
        for stage in range(1, 5):
            block = 0
            while f"layer{stage}.{block}.conv1.weight" in self.state:
                x = self.block(x, f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1)
                block += 1
            yield f"layer{stage}", x
        yield "backbone", x.mean((2, 3))
        yield from self.head(x.mean((2, 3)), "fc", "fc")

    def alexnet(self, x):
        for number in range(5):
            x = relu(self.conv(x, f"blocks.{number}.0", f"blocks.{number}.1"))
            x = windows(x, 3, 2, 0, -np.inf).max((4, 5)) if number in (0, 1, 4) else x
            yield f"conv{number + 1}", x
        x = x.reshape(len(x), -1)
        for number, first in ((5, 1), (6, 0)):
            x = self.linear(x, f"blocks.{number}.{first}")
            x = relu(self.normed(x, f"blocks.{number}.{first + 1}"))
            yield f"fc{number + 1}", x
        yield from self.head(x, "blocks.7", "blocks.7.0")

    def layer_norm(self, x, name):
        weight, bias = self.of(name, "weight", "bias")
        centered = x - x.mean(-1, keepdims=True)
        return centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-6) * weight + bias

    def attention(self, x, name, heads):
        width = x.shape[-1]
        query, key, value = np.split(self.linear(x, f"{name}.qkv"), 3, axis=-1)
        mixed = np.zeros_like(x)
        for head in range(heads):
            part = slice(head * width // heads, (head + 1) * width // heads)
            logits = query[..., part] @ key[..., part].transpose(0, 2, 1)
            weights = softmax(logits / np.sqrt(width / heads), axis=-1)
            mixed[..., part] = weights @ value[..., part]
        return self.linear(mixed, f"{name}.proj")

    def vit(self, x):
        kernel, bias = self.of("patch_embed.proj", "weight", "bias")
        x = conv2d(x, kernel, kernel.shape[-1]) + bias[:, None, None]
        x = x.reshape(*x.shape[:2], -1).transpose(0, 2, 1)
        self.used |= {"cls_token", "pos_embed"}
        token = np.broadcast_to(self.state["cls_token"], (len(x), 1, x.shape[-1]))
        x = np.concatenate([token, x], axis=1) + self.state["pos_embed"]
        block = 0
        while f"blocks.{block}.norm1.weight" in self.state:
            name = f"blocks.{block}"
            x = x + self.attention(self.layer_norm(x, f"{name}.norm1"), f"{name}.attn", 3)
            hidden = self.linear(self.layer_norm(x, f"{name}.norm2"), f"{name}.mlp.fc1")
            gelu = hidden * (1 + erf(hidden / np.sqrt(2))) / 2
            x = x + self.linear(gelu, f"{name}.mlp.fc2")
            block += 1
            yield f"block{block}", x
        if self.config.pool == "mean":
            x = self.layer_norm(x[:, 1:].mean(1), "fc_norm")
        else:
            x = self.layer_norm(x, "norm")[:, 0]
        yield "backbone", x
        yield from self.head(x, "head", "head")

    def head(self, x, sequence, single):  # the linear one, or an MLP's layers in sequence
        form = self.config.head
        hidden = {"none": 0, "linear": 0, "moco_v2": 1, "simclr2": 1, "simclr3": 2, "balanced": 2}[
            form
        ]
        normed = form not in ("none", "linear", "moco_v2")
        for number in range(hidden + 1 if form != "none" else 0):
            place = (3 if normed else 2) * number
            x = self.linear(x, f"{sequence}.{place}" if hidden else single)
            x = self.normed(x, f"{sequence}.{place + 1}") if normed else x
            if number < hidden:
                x = relu(x)
                yield f"projection{number + 1}", x
        yield "unnormalized", x
        yield "output", x / np.linalg.norm(x, axis=1, keepdims=True)

    def __call__(self, x):
        """Layers `[n, h, w, c]` or `[n, c]` of images `[n, c, h, w]`; all of the state is used."""
        family = {"small_alexnet": self.alexnet, "vit_tiny": self.vit}
        layers = dict(family.get(self.config.model, self.resnet)(x))
        if self.config.num_classes:
            layers["logits"] = self.linear(layers[self.config.classifier_layer], "classifier")
        assert self.used == self.state.keys()
        return {n: a.transpose(0, 2, 3, 1) if a.ndim == 4 else a for n, a in layers.items()}


def layers_of(config, state, images, training=False):
    wide = {name: np.array(array, np.float64) for name, array in state.items()}
    return Network(config, wide, training)(np.float64(images).transpose(0, 3, 1, 2)), wide
