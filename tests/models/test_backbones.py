"""Encoders against NumPy: for ResNets and the small AlexNet, of PyTorch's state dict."""

import math
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from torch_networks import ALEXNET, RESNET, batch_norm, conv2d, layers_of, random_state

from hypersphere_jax import models
from hypersphere_jax.configs import ModelConfig, UserError
from hypersphere_jax.models import ops
from hypersphere_jax.models.ops import convolution
from hypersphere_jax.models.resnet import ResNet18, ResNet50
from hypersphere_jax.models.torch_names import from_torch, to_torch, torch_names

CNN = ModelConfig(model="small_cnn", image_size=10, in_channels=2, width=0.2, dim=3, num_classes=4)
TORCHS = {
    "small_alexnet": ALEXNET,
    "resnet18": replace(RESNET, image_size=9, head="moco_v2"),
    "resnet50": replace(RESNET, model="resnet50", image_size=65, head="simclr3", num_classes=4),
}
# Stages of a block or two: most of a network's compiling is its depth.
Short18 = type("Short18", (ResNet18,), {"depths": (1, 1, 1, 1)})
Short50 = type("Short50", (ResNet50,), {"depths": (1, 2, 1, 1)})


def images(config, n=4):
    size = (n, config.image_size, config.image_size, config.in_channels)
    return np.random.default_rng(1).standard_normal(size).astype(np.float32)


def applied(config, params, stats, x, train):
    apply, _, _ = models.abstract(config)
    return jax.jit(apply, static_argnums=3)(params, stats, x, train)


def assert_close(found, expected, tolerance=1e-4):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(a, b, atol=tolerance * np.abs(b).max(), rtol=0)


def test_convolution_is_xlas(rng):
    """Value and gradients; sides that differ, and a stride that leaves a column over."""
    cases = (8, 3, 1, 1, 1), (7, 3, 2, 1, 1), (9, 7, 2, 3, 1), (6, 1, 2, 0, 1), (9, 3, 1, 1, 2)
    for side, kernel, stride, pad, dilation in cases:
        x = rng.standard_normal((2, side, side + 1, 4)).astype("f")
        weights = rng.standard_normal((kernel, kernel, 4, 6)).astype("f")
        window, options = ((stride,) * 2, ((pad, pad),) * 2), {"rhs_dilation": (dilation,) * 2}
        options |= {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}

        def both(x, weights, window=window, options=options):
            for form in (convolution, jax.lax.conv_general_dilated):
                form = partial(form, **options)
                out, back = jax.vjp(lambda x, w, form=form: form(x, w, *window), x, weights)
                yield out, back(jnp.sin(out))

        assert_close(*jax.jit(lambda *a, both=both: list(both(*a)))(x, weights))


RESNET50 = pytest.param("resnet50", marks=pytest.mark.slow)


@pytest.mark.parametrize("name", [*[*TORCHS][:2], RESNET50])
def test_forward_is_numpys(name, monkeypatch, rng):
    monkeypatch.setitem(models.MODELS, "resnet18", Short18)
    monkeypatch.setitem(models.MODELS, "resnet50", Short50)
    config = TORCHS[name]
    state, x = random_state(config, rng), images(config)
    params, stats = from_torch(config, state)
    for train in (True, False) if name == "small_alexnet" else (True,):
        found, new = applied(config, params, stats, x, train)
        expected, wide = layers_of(config, state, x, train)
        assert_close(found, expected, 1e-3 if train else 1e-4)
        assert_close(to_torch(config, params, jax.device_get(new)), wide)
    shapes = [(name, layer.shape[1:]) for name, layer in expected.items()]
    assert list(models.layers(config).items()) == shapes


def test_names_and_shapes_are_torchvisions():
    for name, parameters, tensors, norms in (
        ("resnet18", 11_689_512, 62, 20),
        ("resnet34", 21_797_672, 110, 36),
        ("resnet50", 25_557_032, 161, 53),
    ):
        entries = torch_names(ModelConfig(name, image_size=224, in_channels=3, dim=1000))
        found = {path: (entry.name, entry.shape) for path, entry in entries.items()}
        assert len(dict(found.values())) == len(found) == tensors + 2 * norms
        learned = [shape for path, (_, shape) in found.items() if path.startswith("params/")]
        assert sum(map(math.prod, learned)) == parameters
        assert found["params/conv1/layer/kernel"] == ("conv1.weight", (64, 3, 7, 7))
        assert entries["params/head/output/kernel"].name == "fc.weight"
        mean = entries["stats/layer4/block0/downsample/norm/mean"]
        assert mean.name == "layer4.0.downsample.1.running_mean"


def drawn(config, rng):
    # Some parameters and statistics, without the compiling of an initialization.
    def draw(path, like):
        if path[-1].key in ("scale", "var"):
            return (0.5 + rng.random(like.shape)).astype("f")
        return (rng.standard_normal(like.shape) / np.sqrt(np.prod(like.shape[:-1]))).astype("f")

    return jax.tree_util.tree_map_with_path(draw, models.abstract(config)[1:])


def test_small_cnn_is_numpys(rng):
    (params, stats), x = drawn(CNN, rng), images(CNN)
    for train in (False, True):
        found, new = applied(CNN, params, stats, x, train)
        wide, running = jax.tree.map(lambda a: np.array(a, np.float64), (params, stats))
        expected, z = {}, x.transpose(0, 3, 1, 2)
        for name, stride in (("conv1", 1), ("conv2", 2), ("conv3", 2)):
            kernel = wide[name]["layer"]["kernel"].transpose(3, 2, 0, 1)
            of, norm = running[name]["norm"], wide[name]["norm"]
            of = of["mean"], of["var"], norm["scale"], norm["bias"]
            z = batch_norm(conv2d(z, kernel, stride, 1), *of, train)
            z = z / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))  # GELU
            expected[name] = z.transpose(0, 2, 3, 1)
        features = expected["backbone"] = expected["conv3"].reshape(len(x), -1)
        last, classifier = wide["head"]["output"], wide["head"]["classifier"]
        out = expected["unnormalized"] = features @ last["kernel"] + last["bias"]
        unit = expected["output"] = out / np.linalg.norm(out, axis=1, keepdims=True)
        expected["logits"] = unit @ classifier["kernel"] + classifier["bias"]
        assert_close(found, expected, 1e-3)
        assert_close(new, running)
    assert list(models.layers(CNN)) == list(expected)


def test_layers_of_the_small_alexnet_and_stem_by_the_size_of_images():
    layers = models.layers(ModelConfig("small_alexnet", image_size=64, in_channels=3, dim=128))
    maps = (31, 31, 96), (15, 15, 192), (15, 15, 384), (15, 15, 384), (7, 7, 192)
    assert tuple(layers.values()) == (*maps, (4096,), (4096,), (128,), (128,))
    for size, stem in ((8, "cifar"), (63, "cifar"), (64, "imagenet"), (224, "imagenet")):
        config = ModelConfig("resnet18", image_size=size, in_channels=3)
        assert models.resolved(config).stem == stem, size
    assert models.resolved(replace(config, stem="cifar")).stem == "cifar"
    with pytest.raises(UserError, match="at least 15 pixels, not 8"):
        models.abstract(ModelConfig("small_alexnet", image_size=8, in_channels=1))


def test_heads_have_the_papers_layers_norms_and_biases():
    alexnet = ModelConfig(model="small_alexnet", image_size=15, in_channels=1, dim=128, width=0.5)
    d, out = 2048, 128
    for head, changes, parameters in (
        ("linear", {}, d * out + out),
        ("moco_v2", {}, d * d + d + d * out + out),
        ("simclr2", {}, d * d + 2 * d + d * out + out),
        ("simclr2", {"head_hidden": 9}, d * 9 + 2 * 9 + 9 * out + out),
        ("simclr3", {}, 2 * (d * d + 2 * d) + d * out + out),
        ("balanced", {"width": 0.125}, 512 * d + 2 * d + d * d + 2 * d + d * out + 2 * out),
    ):
        _, params, _ = models.abstract(replace(alexnet, head=head, **changes))
        found = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params["head"]))
        assert found == parameters, head


def test_parameters_start_as_they_should(monkeypatch):
    """Kernels with variance 2 over what enters, for a ResNet over what leaves, by the key."""
    monkeypatch.setitem(models.MODELS, "resnet50", Short50)
    wide = replace(CNN, width=1.0, head="simclr2", head_hidden=64)
    deep = replace(RESNET, model="resnet50", zero_init_residual=True)

    @jax.jit  # as a whole, so that the rest of the networks is not drawn
    def some(key):
        _, params, stats = models.create(wide, key)
        layers = params["conv2"], params["conv3"], params["head"]["projection1"]
        _, resnet, _ = models.create(deep, key)
        norms = [{k: v["norm"] for k, v in block.items()} for block in resnet["layer2"].values()]
        kernel = resnet["layer4"]["block0"]["conv2"]["layer"]["kernel"]
        return [layer["layer"]["kernel"] for layer in layers], kernel, norms, stats["conv1"]["norm"]

    kernels, resnets, norms, stats = jax.device_get(some(jax.random.key(0)))
    for kernel, inputs in zip(kernels, (288, 576, 1152), strict=True):
        np.testing.assert_allclose(kernel.std(), np.sqrt(2 / inputs), rtol=0.03)
    np.testing.assert_allclose(resnets.std(), np.sqrt(2 / (9 * 64)), rtol=0.02)
    np.testing.assert_allclose((resnets**4).mean() / resnets.var() ** 2, 3, rtol=0.1)  # normal
    for norm in norms:  # a block begins as the identity
        assert not norm.pop("conv3")["scale"].any()
        assert all((n["scale"] == 1).all() and not n["bias"].any() for n in norm.values())
    assert not stats["mean"].any() and (stats["var"] == 1).all()
    assert np.abs(some(jax.random.key(1))[0][0] - kernels[0]).max() > 0.1


@pytest.mark.slow
def test_bfloat16_is_close_and_keeps_float32_outside(rng):
    half = replace(CNN, head="simclr2", dtype="bfloat16")
    (params, stats), x = drawn(half, rng), images(half, 32)
    outputs, new = applied(replace(half, dtype="float32"), params, stats, x, True)
    found, found_new = applied(half, params, stats, x, True)
    for name, layer in outputs.items():
        error = np.linalg.norm(found[name] - layer) / np.linalg.norm(layer)
        assert error < 0.05 and (error > 1e-5 or name == "logits"), (name, error)
    np.testing.assert_allclose(jnp.linalg.norm(found["output"], axis=1), 1, rtol=1e-6)
    for leaf in jax.tree.leaves((models.abstract(half)[1:], found, found_new)):
        assert leaf.dtype == jnp.float32
    jax.tree.map(partial(np.testing.assert_allclose, atol=0.02, rtol=0.02), found_new, new)


@pytest.mark.parametrize(
    "padding, shape",
    [(0, (2, 7, 10, 3)), pytest.param(1, (2, 8, 7, 3), marks=pytest.mark.slow)],
)
def test_maximum_pool_and_its_derivatives_are_xlas(padding, shape, rng):
    """Of equal numbers, as after a ReLU, the first has the gradient."""
    pools = (
        partial(ops.max_pool, padding=padding),
        partial(
            nnx.max_pool, window_shape=(3, 3), strides=(2, 2), padding=((padding, padding),) * 2
        ),
    )
    x, moved = np.float32([np.maximum(rng.integers(-3, 4, shape), 0), rng.integers(-9, 10, shape)])
    results = [jax.vjp(pool, x) for pool in pools]
    np.testing.assert_array_equal(results[0][0], results[1][0])
    slopes = np.float32(rng.integers(-9, 10, results[0][0].shape))
    np.testing.assert_array_equal(*(back(slopes)[0] for _, back in results))
    np.testing.assert_array_equal(*(jax.jvp(pool, (x,), (moved,))[1] for pool in pools))
    x[0, 3, 4, 1] = np.nan  # stays, wherever it is in a window
    np.testing.assert_array_equal(*(pool(x) for pool in pools))
