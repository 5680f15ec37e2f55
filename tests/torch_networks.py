"""An oracle: ResNets and Wang & Isola's small AlexNet from a PyTorch state dict.

Written in PyTorch's conventions (channels first, outputs first in a kernel) and after torchvision's
definitions, for functions of the names that `torch.nn.functional` has: here NumPy's, in float64.
"""

import types

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from hypersphere_jax.config import ModelConfig
from hypersphere_jax.models.torch_names import torch_names

RESNET = ModelConfig(name="resnet18", image_size=16, channels=3, width=0.125, dim=5)
ALEXNET = ModelConfig(name="small_alexnet", image_size=32, channels=3, width=0.05, dim=5)


def random_state(config, rng):
    """A random state dict of a model, of the right names and shapes."""
    state = {}
    for path, entry in torch_names(config).items():
        scale = np.sqrt(2 / max(1, np.prod(entry.shape[1:])))
        state[entry.name] = np.float32(scale * rng.standard_normal(entry.shape))
        if path.endswith(("scale", "var")):
            state[entry.name] = np.float32(0.5 + rng.random(entry.shape))
    return state


def windows(x, side, stride, padding, value):
    """All squares of `[n, c, h, w]`: `[n, c, rows, columns, side, side]`."""
    x = np.pad(x, ((0, 0), (0, 0), (padding,) * 2, (padding,) * 2), constant_values=value)
    return sliding_window_view(x, (side, side), (2, 3))[:, :, ::stride, ::stride]


def conv2d(x, kernel, bias=None, stride=1, padding=0):
    patches = windows(x, kernel.shape[-1], stride, padding, 0.0)
    return np.einsum("nchwij,ocij->nohw", patches, kernel, optimize=True)


def batch_norm(x, mean, var, weight, bias, training):
    axes = (0, 2, 3)[: x.ndim - 1]
    if training:
        # The variance by which it divides is kept here; PyTorch keeps m / (m - 1) times that.
        for running, batch in ((mean, x.mean(axes)), (var, x.var(axes))):
            running += 0.1 * (batch - running)
        mean, var = x.mean(axes), x.var(axes)
    form = (-1, *[1] * (x.ndim - 2))
    normed = (x - mean.reshape(form)) / np.sqrt(var.reshape(form) + 1e-5)
    return normed * weight.reshape(form) + (0 if bias is None else bias.reshape(form))


NUMPY = types.SimpleNamespace(
    conv2d=conv2d,
    batch_norm=batch_norm,
    max_pool2d=lambda x, side, stride, padding: windows(x, side, stride, padding, -np.inf).max(
        (4, 5)
    ),
    linear=lambda x, weight, bias=None: x @ weight.T + (0 if bias is None else bias),
    relu=lambda x: np.maximum(x, 0),
    normalize=lambda x: x / np.linalg.norm(x, axis=1, keepdims=True),
)


class Network:
    """A forward pass: `network(x)` gives layers by name; in training `state` follows the batch."""

    def __init__(self, config, state, training=False, functions=NUMPY):
        self.config, self.training, self.f = config, training, functions
        self.state, self.used = state, set()

    def take(self, *names):
        self.used |= self.state.keys() & set(names)
        return [self.state.get(name) for name in names]

    def normed(self, x, name):
        kinds = ("running_mean", "running_var", "weight", "bias")
        return self.f.batch_norm(x, *self.take(*(f"{name}.{k}" for k in kinds)), self.training)

    def linear(self, x, name):
        return self.f.linear(x, *self.take(f"{name}.weight", f"{name}.bias"))

    def conv(self, x, name, norm, stride=1):
        (kernel,) = self.take(f"{name}.weight")
        return self.normed(
            self.f.conv2d(x, kernel, stride=stride, padding=kernel.shape[-1] // 2), norm
        )

    def block(self, x, name, stride):
        deep = f"{name}.conv3.weight" in self.state
        inner = self.conv(x, f"{name}.conv1", f"{name}.bn1", 1 if deep else stride)
        strided = stride if deep else 1
        inner = self.conv(self.f.relu(inner), f"{name}.conv2", f"{name}.bn2", strided)
        if deep:
            inner = self.conv(self.f.relu(inner), f"{name}.conv3", f"{name}.bn3")
        if f"{name}.downsample.0.weight" in self.state:
            x = self.conv(x, f"{name}.downsample.0", f"{name}.downsample.1", stride)
        return self.f.relu(inner + x)

    def resnet(self, x):
        large = self.config.image_size >= 64
        x = self.f.relu(self.conv(x, "conv1", "bn1", 2 if large else 1))
        x = self.f.max_pool2d(x, 3, 2, 1) if large else x
        yield "conv1", x
        for stage in range(1, 5):
            block = 0
            while f"layer{stage}.{block}.conv1.weight" in self.state:
                x = self.block(x, f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1)
                block += 1
            yield f"layer{stage}", x
        x = x.mean((2, 3))
        yield "backbone", x
        yield from self.head(x, "fc", "fc")

    def alexnet(self, x):
        for number in range(5):
            x = self.f.relu(self.conv(x, f"blocks.{number}.0", f"blocks.{number}.1"))
            x = self.f.max_pool2d(x, 3, 2, 0) if number in (0, 1, 4) else x
            yield f"conv{number + 1}", x
        x = x.reshape(len(x), -1)
        for number, first in ((5, 1), (6, 0)):
            x = self.linear(x, f"blocks.{number}.{first}")
            x = self.f.relu(self.normed(x, f"blocks.{number}.{first + 1}"))
            yield f"fc{number + 1}", x
        yield from self.head(x, "blocks.7", "blocks.7.0")

    def head(self, x, sequence, single):
        """Of a head: the linear one is `single`, an MLP's layers are a `sequence`."""
        normed = self.config.head not in ("linear", "moco_v2")
        hidden = {"linear": 0, "moco_v2": 1, "simclr2": 1, "simclr3": 2, "balanced": 2}
        for number in range(hidden[self.config.head] + 1):
            places = f"{sequence}.{(3 if normed else 2) * number}"
            x = self.linear(x, single if self.config.head == "linear" else places)
            if normed:
                x = self.normed(x, f"{sequence}.{3 * number + 1}")
            if number < hidden[self.config.head]:
                x = self.f.relu(x)
                yield f"projection{number + 1}", x
        yield "unnormalized", x
        yield "output", self.f.normalize(x)

    def __call__(self, x):
        """Layers `[n, h, w, c]` or `[n, c]` of images `[n, h, w, c]`; all of the state is used."""
        forward = self.alexnet if self.config.name == "small_alexnet" else self.resnet
        layers = dict(forward(x))
        if self.config.num_classes:
            layers["logits"] = self.linear(layers[self.config.classifier_layer], "classifier")
        layers = {name: np.asarray(layer) for name, layer in layers.items()}
        assert self.used == self.state.keys()
        return {n: a.transpose(0, 2, 3, 1) if a.ndim == 4 else a for n, a in layers.items()}


def layers_of(config, state, images, training=False):
    """NumPy's layers, and what the state dict becomes."""
    wide = {name: np.array(array, np.float64) for name, array in state.items()}
    return Network(config, wide, training)(np.float64(images).transpose(0, 3, 1, 2)), wide
