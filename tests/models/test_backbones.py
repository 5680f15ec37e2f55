"""Encoders against NumPy's forward passes, from the initialization to bfloat16.

The oracle of ResNets and the small AlexNet reads PyTorch's state dict (`torch_networks.py`), so
that names, layouts and networks are seen at once.
"""

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from torch_networks import ALEXNET, RESNET, batch_norm, conv2d, layers_of, random_state

from hypersphere_jax import models
from hypersphere_jax.config import ModelConfig, UserError
from hypersphere_jax.models.convolution import convolution
from hypersphere_jax.models.heads import FORMS
from hypersphere_jax.models.resnet import ResNet18, ResNet50
from hypersphere_jax.models.torch_names import from_torch, to_torch

CNN = ModelConfig(name="small_cnn", image_size=10, channels=2, width=0.2, dim=3, num_classes=4)


class Short18(ResNet18):
    """Each stage with a block: most of a network's compiling is its depth."""

    depths = (1, 1, 1, 1)


class Short50(ResNet50):
    depths = (1, 2, 1, 1)


def images(config, n=4):
    size = (n, config.image_size, config.image_size, config.channels)
    return np.random.default_rng(1).standard_normal(size).astype(np.float32)


def assert_close(found, expected, tolerance=1e-4):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        scale = np.abs(value).max()
        np.testing.assert_allclose(
            found[name] / scale, value / scale, atol=tolerance, rtol=0, err_msg=name
        )


def test_convolution_is_xlas(rng):
    """Value and gradients; sides that differ, and a stride that leaves a column over."""
    for side, kernel, stride, pad, options in (
        *((8, 3, 1, 1, {}), (7, 3, 2, 1, {}), (9, 7, 2, 3, {}), (6, 1, 2, 0, {})),
        *((9, 3, 1, 1, {"rhs_dilation": (2, 2)}), (9, 3, 1, 1, {"feature_group_count": 2})),
    ):
        inputs = 4 // options.get("feature_group_count", 1)
        x = rng.standard_normal((2, side, side + 1, 4)).astype("f")
        weights = rng.standard_normal((kernel, kernel, inputs, 6)).astype("f")
        options |= {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
        window = (stride,) * 2, ((pad, pad),) * 2

        def both(x, weights, window=window, options=options):
            for function in (convolution, jax.lax.conv_general_dilated):
                form = partial(function, **options)
                out, back = jax.vjp(lambda x, w, form=form: form(x, w, *window), x, weights)
                yield out, back(jnp.sin(out))

        ours, xlas = jax.jit(lambda *a, both=both: list(both(*a)))(x, weights)
        for a, b in zip(*map(jax.tree.leaves, (ours, xlas)), strict=True):
            what = f"{side} {kernel} {stride} {options}"
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3, err_msg=what)


@pytest.mark.parametrize(
    "config",
    [
        ALEXNET,
        dataclasses.replace(RESNET, image_size=9, head="moco_v2"),
        dataclasses.replace(
            RESNET,
            **{"name": "resnet50", "image_size": 65, "head": "simclr3"},
            **{"num_classes": 4, "classifier_layer": "projection1"},
        ),
    ],
    ids=["small_alexnet", "resnet18-cifar", "resnet50-imagenet"],
)
def test_forward_is_numpys(config, monkeypatch, rng):
    """All layers and all running statistics, of networks that have PyTorch's weights."""
    monkeypatch.setitem(models.MODELS, "resnet18", Short18)
    monkeypatch.setitem(models.MODELS, "resnet50", Short50)
    state, x = random_state(config, rng), images(config)
    params, stats = from_torch(config, state)
    apply, _, _ = models.abstract(config)
    for train in (False, True):
        found, new = jax.jit(apply, static_argnums=3)(params, stats, x, train)
        expected, wide = layers_of(config, state, x, train)
        assert_close(found, expected, 1e-3 if train else 1e-4)
        assert_close(to_torch(config, params, jax.device_get(new)), wide)
    assert models.layers(config) == {name: layer.shape[1:] for name, layer in expected.items()}
    assert list(models.layers(config)) == list(expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50"])
def test_forward_of_full_size_is_numpys(name, rng):
    config = ModelConfig(name, dim=128, image_size=224, channels=3)
    state, x = random_state(config, rng), images(config, 2)
    apply, _, _ = models.abstract(config)
    found, _ = jax.jit(apply, static_argnums=3)(*from_torch(config, state), x, False)
    assert_close(found, layers_of(config, state, x)[0])


def gelu(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def drawn(config, rng):
    """Some parameters and statistics, without the compiling of an initialization."""

    def draw(path, like):
        if path[-1].key in ("scale", "var"):
            return (0.5 + rng.random(like.shape)).astype("f")
        return (rng.standard_normal(like.shape) / np.sqrt(np.prod(like.shape[:-1]))).astype("f")

    return jax.tree_util.tree_map_with_path(draw, models.abstract(config)[1:])


def test_small_cnn_is_numpys(rng):
    """Its batch statistics, in training and after it, and its classifier."""
    (apply, _, _), (params, stats), x = models.abstract(CNN), drawn(CNN, rng), images(CNN)
    for train in (False, True):
        found, new = jax.jit(apply, static_argnums=3)(params, stats, x, train)
        wide, running = jax.tree.map(lambda a: np.array(a, np.float64), (params, stats))
        expected, z = {}, x.transpose(0, 3, 1, 2)
        for name, stride in (("conv1", 1), ("conv2", 2), ("conv3", 2)):
            kernel = wide[name]["layer"]["kernel"].transpose(3, 2, 0, 1)
            of, norm = running[name]["norm"], wide[name]["norm"]
            z = conv2d(z, kernel, stride=stride, padding=1)
            z = gelu(batch_norm(z, of["mean"], of["var"], norm["scale"], norm["bias"], train))
            expected[name] = z.transpose(0, 2, 3, 1)
        expected["backbone"] = expected["conv3"].reshape(len(x), -1)
        for name, of in (("unnormalized", "backbone"), ("logits", "output")):
            layer = wide["head"]["output" if name == "unnormalized" else "classifier"]
            expected[name] = expected[of] @ layer["kernel"] + layer["bias"]
            if name == "unnormalized":
                length = np.linalg.norm(expected[name], axis=1, keepdims=True)
                expected["output"] = expected[name] / length
        assert_close(found, expected, 1e-3)
        for a, b in zip(*map(jax.tree.leaves, (new, running)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert list(models.layers(CNN)) == [*list(expected)[:-2], "output", "logits"]


def test_layers_of_the_small_alexnet_are_the_papers():
    assert models.layers(ModelConfig("small_alexnet", image_size=64, channels=3, dim=128)) == {
        **{"conv1": (31, 31, 96), "conv2": (15, 15, 192), "conv3": (15, 15, 384)},
        **{"conv4": (15, 15, 384), "conv5": (7, 7, 192), "fc6": (4096,), "fc7": (4096,)},
        **{"unnormalized": (128,), "output": (128,)},
    }


def test_heads_are_the_papers():
    """Hidden layers, batch norms, biases; as wide as the features, 2048 for the balanced loss's.

    What they compute is seen in the forward passes above, of a head of each kind.
    """
    assert {name: tuple(form[:3]) for name, form in FORMS.items()} == {
        **{"linear": (0, False, True), "moco_v2": (1, False, True)},
        **{"simclr2": (1, True, False), "simclr3": (2, True, False), "balanced": (2, True, True)},
    }

    def count(head, **changes):
        config = ModelConfig(name="small_alexnet", image_size=15, channels=1, dim=128, width=0.5)
        _, params, _ = models.abstract(dataclasses.replace(config, head=head, **changes))
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params["head"]))

    d, out, h = 2048, 128, 512
    assert count("moco_v2") == d * d + d + d * out + out
    assert count("simclr2") == d * d + 2 * d + d * out + out
    narrow = count("balanced", width=0.125, dim=2048)
    assert narrow == h * 2048 + 2 * 2048 * 2048 + 3 * 2 * 2048
    assert count("simclr2", head_hidden=9) == d * 9 + 2 * 9 + 9 * out + out


def test_stem_by_the_size_of_images():
    for size, stem in ((8, "cifar"), (63, "cifar"), (64, "imagenet"), (224, "imagenet")):
        config = ModelConfig("resnet18", image_size=size, channels=3)
        assert models.resolved(config).stem == stem, size
    kept = ModelConfig("resnet18", image_size=224, channels=3, stem="cifar")
    assert models.resolved(kept) == kept and models.resolved(CNN) == CNN


def test_parameters_start_as_they_should(monkeypatch):
    """Kernels with variance 2 over what enters, for a ResNet over what leaves, by the key."""
    monkeypatch.setitem(models.MODELS, "resnet50", Short50)
    wide = dataclasses.replace(CNN, width=1.0, head="simclr2", head_hidden=64)
    deep = dataclasses.replace(RESNET, name="resnet50", zero_init_residual=True)

    @jax.jit  # as a whole, so that the rest of the networks is not drawn
    def some(key):
        _, params, stats = models.create(wide, key)
        layers = params["conv2"], params["conv3"], params["head"]["projection1"]
        _, resnet, _ = models.create(deep, key)
        blocks = resnet["layer2"]["block0"], resnet["layer2"]["block1"]
        norms = [{name: layer["norm"] for name, layer in block.items()} for block in blocks]
        kernel = resnet["layer4"]["block0"]["conv2"]["layer"]["kernel"]
        return [layer["layer"]["kernel"] for layer in layers], kernel, norms, stats["conv1"]["norm"]

    kernels, resnets, norms, stats = jax.device_get(some(jax.random.key(0)))
    for name, kernel, fan in zip(
        ("conv2", "conv3", "dense"), kernels, (288, 576, 1152), strict=True
    ):
        np.testing.assert_allclose(kernel.std(), np.sqrt(2 / fan), rtol=0.03, err_msg=name)
    np.testing.assert_allclose(resnets.std(), np.sqrt(2 / (9 * 64)), rtol=0.02)
    np.testing.assert_allclose((resnets**4).mean() / resnets.var() ** 2, 3, rtol=0.1)  # normal
    for norm in norms:  # a block begins as the identity
        assert not norm.pop("conv3")["scale"].any()
        assert all((n["scale"] == 1).all() and not n["bias"].any() for n in norm.values())
    assert not stats["mean"].any() and (stats["var"] == 1).all()

    again, other = (some(jax.random.key(seed))[0][0] for seed in (0, 1))
    np.testing.assert_array_equal(again, kernels[0])
    assert np.abs(other - kernels[0]).max() > 0.1


HALF = dataclasses.replace(CNN, head="simclr2", dtype="bfloat16")


def test_bfloat16_is_close_and_keeps_float32_outside(rng):
    (params, stats), x = drawn(HALF, rng), images(HALF, 32)
    # Far from zero: in bfloat16 the running means of such channels would be off by 0.4%.
    params["conv1"]["layer"]["kernel"][..., 0] = 1
    x[..., 0] += 1
    (outputs, new), (found, found_new) = (
        jax.jit(models.abstract(config)[0], static_argnums=3)(params, stats, x, True)
        for config in (dataclasses.replace(HALF, dtype="float32"), HALF)
    )
    for name, layer in outputs.items():
        assert found[name].dtype == jnp.float32, name
        error = np.linalg.norm(found[name] - layer) / np.linalg.norm(layer)
        assert error < 0.05 and (error > 1e-5 or name == "logits"), (name, error)
    np.testing.assert_allclose(jnp.linalg.norm(found["output"], axis=1), 1, rtol=1e-6)
    for leaf in jax.tree.leaves((models.abstract(HALF)[1:], found_new)):
        assert leaf.dtype == jnp.float32
    for a, b in zip(*map(jax.tree.leaves, (found_new, new)), strict=True):
        np.testing.assert_allclose(a, b, atol=0.02, rtol=0.02)
    means = [
        (n["conv1"]["norm"]["mean"] - 0.9 * stats["conv1"]["norm"]["mean"])[0]
        for n in (new, found_new)
    ]
    np.testing.assert_allclose(means[1], means[0], rtol=2e-3)


def test_errors():
    for changes, message in (
        ({"name": "small_alexnet", "image_size": 8}, r"at least 15 pixels, not 8.*--image-size"),
        (
            {"name": "resnet50", "image_size": 6},
            "resnet50 needs images of at least 8 pixels, not 6",
        ),
        ({"channels": None, "image_size": 8}, "must be given"),
        ({"name": "vit", "image_size": 8}, r"unknown model 'vit'.*small_alexnet"),
    ):
        with pytest.raises(UserError, match=message):
            models.abstract(ModelConfig(**{"channels": 1} | changes))
    for changes, message in (
        ({"stem": "cifar"}, "--stem is for ResNets, and small_cnn is none"),
        ({"name": "small_alexnet", "zero_init_residual": True}, "--zero-init-residual is for ResN"),
        ({"head_hidden": 8}, "--head-hidden needs a --head"),
        ({"batch_norm": "split", "bn_groups": 0}, "--bn-groups 0: must be at least 1"),
    ):
        with pytest.raises(UserError, match=message):
            ModelConfig(**changes)
    models.check_layer(CNN, "logits")
    with pytest.raises(UserError, match=r"--layers conv22: .*did you mean 'conv2'"):
        models.check_layer(CNN, "conv22")
