"""Encoders against NumPy: ResNets, ViT and SmallAlexNet by PyTorch's state dicts, and SmallCNN."""

import math
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from torch_networks import ALEXNET, RESNET, VIT, batch_norm, conv2d, layers_of, random_state

from hypersphere_jax import models
from hypersphere_jax.configs import ModelConfig, UserError
from hypersphere_jax.models.torch_names import from_torch, to_torch, torch_names

CNN = ModelConfig(model="small_cnn", image_size=10, in_channels=2, width=0.2, dim=3, num_classes=4)
NETWORKS = {
    "small_alexnet": ALEXNET,
    "resnet18": replace(RESNET, image_size=9, head="moco_v2"),
    "resnet50": replace(RESNET, model="resnet50", image_size=65, head="simclr3", num_classes=4),
    "vit_token": replace(VIT, head="moco_v2", head_hidden=7),
    "vit_mean": replace(VIT, pool="mean", num_classes=4, classifier_layer="backbone"),
}


def draw_images(config, n=4):
    shape = (n, config.image_size, config.image_size, config.in_channels)
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def apply(config, params, stats, x, train):
    function, _, _ = models.abstract(config)
    return jax.jit(function, static_argnums=3)(params, stats, x, train)


def assert_close(found, expected, tolerance):
    def compare(one, other):
        np.testing.assert_allclose(one, other, atol=tolerance * np.abs(other).max(), rtol=0)

    jax.tree.map(compare, dict(found), dict(expected))


@pytest.mark.parametrize(
    ("name", "train"),
    [
        ("small_alexnet", True),
        ("small_alexnet", False),
        ("resnet18", True),
        pytest.param("resnet50", True, marks=pytest.mark.slow),
        ("vit_token", True),
        ("vit_mean", False),
    ],
)
def test_layers_and_statistics_match_numpy(name, train, short_networks, rng):
    config = NETWORKS[name]
    state = random_state(config, rng)
    x = draw_images(config)
    params, stats = from_torch(config, state)
    found, new_stats = apply(config, params, stats, x, train)
    expected, new_state = layers_of(config, state, x, train)
    assert_close(found, expected, 1e-3)
    assert_close(to_torch(config, params, jax.device_get(new_stats)), new_state, 1e-3)
    shapes = [(name, layer.shape[1:]) for name, layer in expected.items()]
    assert list(models.layers(config).items()) == shapes


def backward(config, params, stats, x, remat):
    """Return updated statistics, and the gradient of a loss as a function of its cotangent."""

    def loss(params):
        encode, _, _ = models.abstract(replace(config, remat=remat))
        outputs, updated = encode(params, stats, x, True)
        return jnp.sum(outputs["output"] ** 3), updated

    _, gradient, updated = jax.vjp(loss, params, has_aux=True)
    return updated, gradient


@pytest.mark.parametrize("network", [RESNET, VIT], ids=["resnet", "vit"])
def test_remat_keeps_fewer_activations(network, short_networks):
    config = replace(network, image_size=8, width=0.05)
    arguments = (*models.abstract(config)[1:], draw_images(config, 64))

    def kept(remat):
        _, gradient = jax.eval_shape(partial(backward, config, remat=remat), *arguments)
        return sum(array.size for array in jax.tree.leaves(gradient))

    assert kept(True) < kept(False) / 2


@pytest.mark.slow
def test_remat_changes_no_number(short_networks):
    config = replace(RESNET, image_size=8, width=0.05)
    arguments = (*models.create(config, jax.random.key(0))[1:], draw_images(config))

    @partial(jax.jit, static_argnums=0)
    def differentiate(remat):
        updated, gradient = backward(config, *arguments, remat)
        return updated, gradient(1.0)

    compare = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    jax.tree.map(compare, differentiate(True), differentiate(False))


def small_cnn_layers(params, stats, x, train):
    """SmallCNN in float64; `stats` follows the batch in training."""
    layers = {}
    z = x.transpose(0, 3, 1, 2)
    for name, stride in (("conv1", 1), ("conv2", 2), ("conv3", 2)):
        kernel = params[name]["layer"]["kernel"].transpose(3, 2, 0, 1)
        running = stats[name]["norm"]
        norm = params[name]["norm"]
        z = conv2d(z, kernel, stride, 1)
        z = batch_norm(z, running["mean"], running["var"], norm["scale"], norm["bias"], train)
        z = z / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))  # GELU
        layers[name] = z.transpose(0, 2, 3, 1)
    layers["backbone"] = layers["conv3"].reshape(len(x), -1)
    output = params["head"]["output"]
    classifier = params["head"]["classifier"]
    layers["unnormalized"] = layers["backbone"] @ output["kernel"] + output["bias"]
    lengths = np.linalg.norm(layers["unnormalized"], axis=1, keepdims=True)
    layers["output"] = layers["unnormalized"] / lengths
    layers["logits"] = layers["output"] @ classifier["kernel"] + classifier["bias"]
    return layers


def draw_parameter(name, shape, rng):
    if name in ("scale", "var"):
        return np.float32(0.5 + rng.random(shape))
    return np.float32(rng.standard_normal(shape) / np.sqrt(np.prod(shape[:-1])))


@pytest.mark.parametrize("train", [False, True])
def test_small_cnn_matches_numpy(train, rng):
    params, stats = jax.tree_util.tree_map_with_path(
        lambda path, like: draw_parameter(path[-1].key, like.shape, rng), models.abstract(CNN)[1:]
    )
    x = draw_images(CNN)
    found, new_stats = apply(CNN, params, stats, x, train)
    wide, running = jax.tree.map(np.float64, (params, stats))
    running = jax.tree.map(np.array, running)
    expected = small_cnn_layers(wide, running, x, train)
    assert_close(found, expected, 1e-3)
    assert_close(new_stats, running, 1e-3)
    assert list(models.layers(CNN)) == list(expected)


@pytest.mark.parametrize(
    ("model", "parameters", "tensors", "norms"),
    [
        ("resnet18", 11_689_512, 62, 20),
        ("resnet34", 21_797_672, 110, 36),
        ("resnet50", 25_557_032, 161, 53),
    ],
)
def test_names_and_shapes_are_torchvisions(model, parameters, tensors, norms):
    entries = torch_names(ModelConfig(model, image_size=224, in_channels=3, dim=1000))
    assert len({entry.name for entry in entries.values()}) == tensors + 2 * norms
    learned = [e.shape for path, e in entries.items() if path.startswith("params/")]
    assert sum(map(math.prod, learned)) == parameters
    stem = entries["params/conv1/layer/kernel"]
    assert (stem.name, stem.shape) == ("conv1.weight", (64, 3, 7, 7))
    assert entries["params/head/output/kernel"].name == "fc.weight"
    mean = entries["stats/layer4/block0/downsample/norm/mean"]
    assert mean.name == "layer4.0.downsample.1.running_mean"


@pytest.mark.parametrize(
    ("model", "parameters"), [("vit_tiny", 5_717_416), ("vit_small", 22_050_664)]
)
def test_names_and_shapes_are_timms(model, parameters):
    """The numbers of parameters with 1,000 classes are from timm's list."""
    entries = torch_names(ModelConfig(model, image_size=224, in_channels=3, dim=1000))
    assert len({entry.name for entry in entries.values()}) == len(entries) == 152
    assert sum(math.prod(entry.shape) for entry in entries.values()) == parameters
    width = {"vit_tiny": 192, "vit_small": 384}[model]
    shapes = {entry.name: entry.shape for entry in entries.values()}
    assert shapes["patch_embed.proj.weight"] == (width, 3, 16, 16)
    assert shapes["pos_embed"] == (1, 197, width)
    assert shapes["blocks.11.attn.qkv.weight"] == (3 * width, width)
    assert shapes["head.weight"] == (1000, width)


def test_patches_must_divide_images():
    for size, patch in ((63, 4), (64, 16)):
        config = ModelConfig("vit_tiny", image_size=size // patch * patch, in_channels=3)
        assert models.resolved(config).patch_size == patch
    with pytest.raises(UserError, match="patch_size"):
        models.resolved(ModelConfig("vit_tiny", image_size=10, in_channels=3))


def test_layers_of_small_alexnet_are_the_papers():
    layers = models.layers(ModelConfig("small_alexnet", image_size=64, in_channels=3, dim=128))
    maps = [(31, 31, 96), (15, 15, 192), (15, 15, 384), (15, 15, 384), (7, 7, 192)]
    assert list(layers.values()) == [*maps, (4096,), (4096,), (128,), (128,)]


def test_stem_of_resnets_depends_on_the_image_size():
    for size, stem in ((63, "cifar"), (64, "imagenet")):
        config = ModelConfig("resnet18", image_size=size, in_channels=3)
        assert models.resolved(config).stem == stem
    assert models.resolved(replace(config, stem="cifar")).stem == "cifar"


def test_too_small_images_are_refused():
    with pytest.raises(UserError, match="small_alexnet"):
        models.abstract(ModelConfig("small_alexnet", image_size=8, in_channels=1))


@pytest.mark.parametrize(
    ("head", "kernels", "vectors"),
    [
        ("linear", [(2048, 128)], [128]),
        ("moco_v2", [(2048, 2048), (2048, 128)], [2048, 128]),
        ("simclr2", [(2048, 2048), (2048, 128)], [2048, 2048, 128]),
        ("simclr3", [(2048, 2048)] * 2 + [(2048, 128)], [2048] * 4 + [128]),
        ("balanced", [(2048, 2048)] * 2 + [(2048, 128)], [2048] * 4 + [128] * 2),
    ],
)
def test_heads_have_the_papers_layers(head, kernels, vectors):
    """Kernels, biases and scales: the last batch norm of SimCLR has no bias."""
    config = ModelConfig("small_alexnet", image_size=15, in_channels=1, dim=128, width=0.5)
    _, params, _ = models.abstract(replace(config, head=head))
    shapes = [leaf.shape for leaf in jax.tree.leaves(params["head"])]
    assert sorted(shapes) == sorted([*kernels, *((n,) for n in vectors)])
