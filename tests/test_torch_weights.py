"""The same weights give the same numbers as in PyTorch, where PyTorch is installed."""

import dataclasses

import jax
import numpy as np
import pytest

from hypersphere_jax import models
from hypersphere_jax.config import ModelConfig, UserError
from hypersphere_jax.models.torch_names import from_torch, torch_names

RESNET = ModelConfig(name="resnet18", image_size=16, channels=3, width=0.125, dim=5)
ALEXNET = ModelConfig(name="small_alexnet", image_size=32, channels=3, width=0.05, dim=5)


def stated(config, rng):
    """A random state dict of a model, of the right names and shapes."""
    state = {}
    for path, entry in torch_names(config).items():
        scale = np.sqrt(2 / max(1, np.prod(entry.shape[1:])))
        state[entry.name] = scale * rng.standard_normal(entry.shape).astype(np.float32)
        if path.endswith(("scale", "var")):
            state[entry.name] = (0.5 + rng.random(entry.shape)).astype(np.float32)
    return state


def test_names_are_torchvisions():
    config = dataclasses.replace(RESNET, name="resnet50", width=1.0, image_size=224, dim=1000)
    names = {path: (entry.name, entry.shape) for path, entry in torch_names(config).items()}
    assert names["params/conv1/layer/kernel"] == ("conv1.weight", (64, 3, 7, 7))
    assert names["stats/conv1/norm/var"] == ("bn1.running_var", (64,))
    assert names["params/layer3/block5/conv2/norm/scale"] == ("layer3.5.bn2.weight", (256,))
    assert names["params/layer4/block0/downsample/layer/kernel"] == (
        "layer4.0.downsample.0.weight",
        (2048, 1024, 1, 1),
    )
    assert names["stats/layer4/block0/downsample/norm/mean"][0] == (
        "layer4.0.downsample.1.running_mean"
    )
    assert names["params/head/output/kernel"] == ("fc.weight", (1000, 2048))
    # torchvision's resnet50: 161 parameters, and two statistics of each of 53 batch norms.
    assert len(names) == 161 + 2 * 53 == len({name for name, _ in names.values()})
    mlp = torch_names(dataclasses.replace(RESNET, head="moco_v2"))
    assert mlp["params/head/projection1/kernel"].name == "fc.0.weight"
    assert mlp["params/head/output/bias"].name == "fc.2.bias"
    projection = torch_names(dataclasses.replace(RESNET, head="simclr3"))
    assert projection["params/head/projection2/norm/scale"].name == "fc.4.weight"
    assert projection["params/head/output/layer/kernel"].name == "fc.6.weight"


def test_names_of_the_small_alexnet():
    names = {path: (entry.name, entry.shape) for path, entry in torch_names(ALEXNET).items()}
    assert names["params/conv5/norm/bias"][0] == "blocks.4.1.bias"
    assert names["params/fc6/layer/kernel"] == ("blocks.5.1.weight", (205, 10 * 3 * 3))
    assert names["stats/fc6/norm/mean"][0] == "blocks.5.2.running_mean"
    assert names["params/fc7/layer/kernel"][0] == "blocks.6.0.weight"
    assert names["params/head/output/kernel"] == ("blocks.7.0.weight", (5, 205))


@pytest.mark.parametrize("config", [RESNET, ALEXNET], ids=["resnet18", "small_alexnet"])
def test_every_weight_comes_through(config, rng):
    params, stats = from_torch(config, stated(config, rng))
    _, like_params, like_stats = models.abstract(config)
    for made, like in ((params, like_params), (stats, like_stats)):
        shapes = jax.tree.map(lambda a: (a.shape, a.dtype), made)
        assert shapes == jax.tree.map(lambda a: (a.shape, a.dtype), like)


def test_errors(rng):
    state = stated(RESNET, rng)
    with pytest.raises(UserError, match=r"missing are fc\.0\.bias.*unexpected fc\.bias"):
        from_torch(dataclasses.replace(RESNET, head="moco_v2"), state)
    with pytest.raises(UserError, match=r"fc\.bias has shape \(5,\).* needs \(6,\)"):
        from_torch(dataclasses.replace(RESNET, dim=6), state)
    with pytest.raises(UserError, match="small_cnn has no counterpart"):
        torch_names(ModelConfig(image_size=8, channels=1))


def torchs_resnet(torch, config):
    """The network in PyTorch, with torchvision's names; the layers come out by name."""
    nn = torch.nn
    bottleneck = config.name == "resnet50"
    depths = {"resnet18": (2, 2, 2, 2), "resnet50": (3, 4, 6, 3)}[config.name]
    widths = [round(base * config.width) for base in (64, 128, 256, 512)]

    def conv(inputs, outputs, side, stride=1):
        return nn.Conv2d(inputs, outputs, side, stride, side // 2, bias=False)

    class Block(nn.Module):
        def __init__(self, inputs, base, stride):
            super().__init__()
            outputs = 4 * base if bottleneck else base
            if bottleneck:
                self.conv1, self.bn1 = conv(inputs, base, 1), nn.BatchNorm2d(base)
                self.conv2, self.bn2 = conv(base, base, 3, stride), nn.BatchNorm2d(base)
                self.conv3, self.bn3 = conv(base, outputs, 1), nn.BatchNorm2d(outputs)
            else:
                self.conv1, self.bn1 = conv(inputs, base, 3, stride), nn.BatchNorm2d(base)
                self.conv2, self.bn2 = conv(base, outputs, 3), nn.BatchNorm2d(outputs)
            self.downsample = None
            if stride != 1 or inputs != outputs:
                self.downsample = nn.Sequential(
                    conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)
                )

        def forward(self, x):
            inner = torch.relu(self.bn1(self.conv1(x)))
            inner = self.bn2(self.conv2(inner))
            if bottleneck:
                inner = self.bn3(self.conv3(torch.relu(inner)))
            return torch.relu(inner + (x if self.downsample is None else self.downsample(x)))

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            large = config.image_size >= 64
            self.conv1 = conv(3, widths[0], 7 if large else 3, 2 if large else 1)
            self.bn1 = nn.BatchNorm2d(widths[0])
            self.pool = nn.MaxPool2d(3, 2, 1) if large else nn.Identity()
            inputs = widths[0]
            for number, (base, depth) in enumerate(zip(widths, depths, strict=True)):
                blocks = []
                for place in range(depth):
                    blocks.append(Block(inputs, base, 2 if number and not place else 1))
                    inputs = 4 * base if bottleneck else base
                setattr(self, f"layer{number + 1}", nn.Sequential(*blocks))
            if config.head == "linear":
                self.fc = nn.Linear(inputs, config.dim)
            else:
                hidden = nn.Linear(inputs, inputs)
                self.fc = nn.Sequential(hidden, nn.ReLU(), nn.Linear(inputs, config.dim))

        def forward(self, x):
            layers = {}
            layers["conv1"] = x = self.pool(torch.relu(self.bn1(self.conv1(x))))
            for name in ("layer1", "layer2", "layer3", "layer4"):
                layers[name] = x = getattr(self, name)(x)
            layers["backbone"] = x = x.mean((2, 3))
            layers["output"] = nn.functional.normalize(self.fc(x))
            return layers

    return Network()


def torchs_alexnet(torch, config):
    nn = torch.nn
    c1, c2, c3, c4, c5, hidden = (
        round(base * config.width) for base in (96, 192, 384, 384, 192, 4096)
    )

    def conv(inputs, outputs, *pool):
        layer = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.ReLU(), *pool)

    def dense(inputs, *first):
        layer = nn.Linear(inputs, hidden, bias=False)
        return nn.Sequential(*first, layer, nn.BatchNorm1d(hidden), nn.ReLU())

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            pool = nn.MaxPool2d(3, 2)
            convs = [conv(3, c1, pool), conv(c1, c2, pool), conv(c2, c3), conv(c3, c4)]
            full = [dense(c5 * 9, nn.Flatten()), dense(hidden)]
            last = nn.Sequential(nn.Linear(hidden, config.dim))
            self.blocks = nn.ModuleList([*convs, conv(c4, c5, pool), *full, last])

        def forward(self, x):
            layers = {}
            names = ("conv1", "conv2", "conv3", "conv4", "conv5", "fc6", "fc7", "output")
            for name, block in zip(names, self.blocks, strict=True):
                layers[name] = x = block(x)
            layers["output"] = nn.functional.normalize(x)
            return layers

    return Network()


@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize(
    "config",
    [
        RESNET,
        dataclasses.replace(RESNET, image_size=65, head="moco_v2"),
        dataclasses.replace(RESNET, name="resnet50", image_size=64, channels=3),
        ALEXNET,
    ],
    ids=["resnet18-cifar", "resnet18-imagenet-moco", "resnet50-imagenet", "small_alexnet"],
)
def test_forward_is_pytorchs(config, train, rng):
    torch = pytest.importorskip("torch")
    network = (torchs_alexnet if config.name == "small_alexnet" else torchs_resnet)(torch, config)
    state = stated(config, rng)
    given = {name: torch.tensor(array) for name, array in state.items()}
    missing, unexpected = network.load_state_dict(given, strict=False)
    assert not unexpected and all(name.endswith("num_batches_tracked") for name in missing)
    size = config.image_size
    x = rng.standard_normal((8, size, size, 3)).astype(np.float32)
    # In float64, so that what differs is the rounding of one side only.
    network.double().train(train)
    with torch.no_grad():
        expected = network(torch.tensor(x.transpose(0, 3, 1, 2)).double())

    apply, _, _ = models.abstract(config)
    outputs, new = jax.jit(apply, static_argnums=3)(*from_torch(config, state), x, train)
    assert outputs.keys() >= expected.keys()
    for name, layer in expected.items():
        layer = layer.numpy()
        layer = layer.transpose(0, 2, 3, 1) if layer.ndim == 4 else layer
        scale = np.abs(layer).max()
        np.testing.assert_allclose(outputs[name] / scale, layer / scale, atol=2e-4, err_msg=name)
    if train:
        after = {name: array.numpy() for name, array in network.state_dict().items()}
        after = {name: array for name, array in after.items() if "num_batches" not in name}
        _, theirs = from_torch(config, after)
        np.testing.assert_allclose(
            new["conv1"]["norm"]["mean"], theirs["conv1"]["norm"]["mean"], atol=1e-5
        )
        # PyTorch keeps the unbiased variance.
        side = -(-size // 2) if size >= 64 and config.name != "small_alexnet" else size
        values = len(x) * side**2
        old = state[torch_names(config)["stats/conv1/norm/var"].name]
        batch = (theirs["conv1"]["norm"]["var"] - 0.9 * old) / 0.1 * (values - 1) / values
        np.testing.assert_allclose(new["conv1"]["norm"]["var"], 0.9 * old + 0.1 * batch, rtol=1e-4)


@pytest.mark.slow
def test_resnet50_of_full_size_is_pytorchs(rng):
    """23,508,032 parameters without the head, at 224 pixels; features to 1e-4."""
    torch = pytest.importorskip("torch")
    config = ModelConfig("resnet50", dim=128, image_size=224, channels=3, stem="imagenet")
    state = stated(config, rng)
    network = torchs_resnet(torch, config)
    network.load_state_dict({n: torch.tensor(a) for n, a in state.items()}, strict=False)
    body = [p.numel() for name, p in network.named_parameters() if not name.startswith("fc.")]
    assert sum(body) == 23_508_032
    x = rng.standard_normal((2, 224, 224, 3)).astype(np.float32)
    with torch.no_grad():
        expected = network.double().eval()(torch.tensor(x.transpose(0, 3, 1, 2)).double())
    apply, _, _ = models.abstract(config)
    outputs, _ = jax.jit(apply, static_argnums=3)(*from_torch(config, state), x, False)
    for name in ("backbone", "output"):
        layer = expected[name].numpy()
        scale = np.abs(layer).max()
        np.testing.assert_allclose(outputs[name] / scale, layer / scale, atol=1e-4, err_msg=name)
