"""ResNets, heads and bfloat16: sizes, layers, and what the options change."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hypersphere_jax import models
from hypersphere_jax.config import ModelConfig, UserError

TINY = ModelConfig(name="resnet18", image_size=8, channels=3, width=0.125, dim=5)
HEADS = ModelConfig(image_size=8, channels=1, width=0.2, dim=3)


@functools.cache
def made(config):
    apply, params, stats = models.create(config, jax.random.key(0))
    return jax.jit(apply, static_argnames=("train", "axis_name")), params, stats


def images(config, n=6):
    size = (n, config.image_size, config.image_size, config.channels)
    return np.random.default_rng(1).standard_normal(size).astype(np.float32)


def count(tree):
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize(
    ("name", "parameters"),
    # torchvision's, less their `fc`.
    [("resnet18", 11_176_512), ("resnet34", 21_284_672), ("resnet50", 23_508_032)],
)
def test_parameter_counts(name, parameters):
    for size, stem, side in ((32, "cifar", 3), (224, "imagenet", 7)):
        config = ModelConfig(name=name, image_size=size, channels=3, dim=128)
        assert models.resolved(config).stem == stem
        _, params, stats = models.abstract(config)
        head = params.pop("head")
        assert count(params) == parameters - 64 * 3 * (7**2 - side**2)
        assert count(head) == 128 * (2048 if name == "resnet50" else 512) + 128
        assert {leaf.dtype for leaf in jax.tree.leaves((params, stats))} == {jnp.dtype("float32")}


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_layers(name):
    wide = 4 if name == "resnet50" else 1
    expected = {
        f"layer{number + 1}": (side, side, 64 * 2**number * wide)
        for number, side in enumerate((32, 16, 8, 4))
    }
    small = models.layers(ModelConfig(name=name, image_size=32, channels=3, dim=7))
    rest = {"backbone": (512 * wide,), "unnormalized": (7,), "output": (7,)}
    assert small == {"conv1": (32, 32, 64), **expected, **rest}
    assert list(small) == ["conv1", *expected, *rest]
    large = models.layers(ModelConfig(name=name, image_size=225, channels=3))
    assert large["conv1"] == (57, 57, 64) and large["layer4"] == (8, 8, 512 * wide)
    given = ModelConfig(name=name, image_size=32, channels=3, stem="imagenet", num_classes=4)
    assert models.layers(given)["layer4"] == (1, 1, 512 * wide)
    assert models.layers(given)["logits"] == (4,)


@pytest.mark.slow
def test_zero_scales_make_every_block_the_identity():
    apply, params, stats = made(dataclasses.replace(TINY, zero_init_residual=True))
    outputs, _ = apply(params, stats, images(TINY), train=True)
    np.testing.assert_array_equal(outputs["layer1"], outputs["conv1"])
    scales = params["layer2"]["block0"]
    assert not scales["conv2"]["norm"]["scale"].any()
    assert scales["conv1"]["norm"]["scale"].all() and scales["downsample"]["norm"]["scale"].all()


def test_kernels_start_as_pytorchs():
    # Normal, of variance 2 / (outputs * side^2).
    _, params, _ = made(dataclasses.replace(TINY, zero_init_residual=True))
    kernel = np.asarray(params["layer4"]["block0"]["conv1"]["layer"]["kernel"])
    assert kernel.shape == (3, 3, 32, 64)
    np.testing.assert_allclose(kernel.std(), np.sqrt(2 / (9 * 64)), rtol=0.02)
    np.testing.assert_allclose((kernel**4).mean() / kernel.var() ** 2, 3, rtol=0.1)


@pytest.mark.parametrize("head", ["linear", "moco_v2", "simclr2", "simclr3", "balanced"])
@pytest.mark.slow
def test_head_is_numpys(head):
    hidden = {} if head == "linear" else {"head_hidden": 7}
    config = dataclasses.replace(HEADS, head=head, **hidden)
    apply, params, stats = made(config)
    outputs, _ = apply(params, stats, images(config), train=True)
    weights = jax.tree.map(lambda a: np.asarray(a, np.float64), params["head"])
    x = np.asarray(outputs["backbone"], np.float64)
    hidden = {"linear": 0, "moco_v2": 1, "simclr2": 1, "simclr3": 2, "balanced": 2}[head]
    for name in [*(f"projection{i + 1}" for i in range(hidden)), "output"]:
        layer = weights[name]
        if head in ("linear", "moco_v2"):
            x = x @ layer["kernel"] + layer["bias"]
        else:
            raw = x @ layer["layer"]["kernel"]
            x = (raw - raw.mean(0)) / np.sqrt(raw.var(0) + 1e-5) * layer["norm"]["scale"]
            # SimCLR's last batch norm has no bias.
            assert ("bias" in layer["norm"]) == (name != "output" or head == "balanced")
            x += layer["norm"].get("bias", 0)
        if name == "output":
            raw = outputs["unnormalized"]
            np.testing.assert_allclose(raw, x, rtol=1e-3, atol=1e-4, err_msg="unnormalized")
        x = np.maximum(x, 0) if name != "output" else x / np.linalg.norm(x, axis=1, keepdims=True)
        np.testing.assert_allclose(outputs[name], x, rtol=1e-3, atol=1e-4, err_msg=name)
    assert weights.keys() == {*(f"projection{i + 1}" for i in range(hidden)), "output"}


def test_widths_of_heads():
    config = ModelConfig(name="resnet50", image_size=224, channels=3, dim=128)
    heads = {}
    for head in ("moco_v2", "simclr2", "simclr3", "balanced"):
        _, params, _ = models.abstract(dataclasses.replace(config, head=head))
        heads[head] = count(params["head"])
    assert heads["moco_v2"] == 2048 * 2048 + 2048 + 2048 * 128 + 128
    assert heads["simclr2"] == 2048 * 2048 + 2 * 2048 + 2048 * 128 + 128
    assert heads["simclr3"] == heads["simclr2"] + 2048 * 2048 + 2 * 2048
    small = dataclasses.replace(config, name="resnet18", image_size=32, dim=2048, head="balanced")
    _, params, _ = models.abstract(small)
    assert count(params["head"]) == 512 * 2048 + 2 * 2048 * 2048 + 3 * 2 * 2048


@pytest.mark.parametrize("head", ["linear", "simclr2"])
@pytest.mark.slow
def test_bfloat16_is_close(head):
    full = dataclasses.replace(HEADS, head=head, num_classes=4)
    half = dataclasses.replace(full, dtype="bfloat16")
    (apply, params, stats), (same, half_params, half_stats) = made(full), made(half)
    jax.tree.map(np.testing.assert_array_equal, (params, stats), (half_params, half_stats))
    x = images(full, 32)
    outputs, new = apply(params, stats, x, train=True)
    found, found_new = same(params, stats, x, train=True)
    for name, layer in outputs.items():
        assert found[name].dtype == jnp.float32
        error = np.linalg.norm(found[name] - layer) / np.linalg.norm(layer)
        assert error < 0.05 and (error > 1e-5 or name == "logits"), (name, error)
    np.testing.assert_allclose(jnp.linalg.norm(found["output"], axis=1), 1, rtol=1e-6)
    for a, b in zip(*map(jax.tree.leaves, (found_new, new)), strict=True):
        assert a.dtype == jnp.float32
        np.testing.assert_allclose(a, b, atol=0.02, rtol=0.02)

    def loss(params):
        outputs, _ = same(params, stats, x, train=True)
        return jnp.sum(jnp.sin(3 * outputs["output"]))

    for leaf in jax.tree.leaves(jax.grad(loss)(params)):
        assert leaf.dtype == jnp.float32 and np.isfinite(leaf).all()


def test_bfloat16_keeps_running_statistics_precise():
    config = dataclasses.replace(HEADS, dtype="bfloat16")
    apply, params, stats = made(config)
    # Channels far from zero: in bfloat16 their means would be off by 0.4%.
    params = jax.tree.map(jnp.ones_like, params)
    _, new = apply(params, stats, 1 + 0.01 * images(config, 16), train=True)
    centre = np.float64(new["conv1"]["norm"]["mean"][0]) / 0.1
    # Ones over a 3x3 window with zero padding: 9 inside, 6 on 24 edge places, 4 on 4 corners.
    np.testing.assert_allclose(centre, (9 * 36 + 6 * 24 + 4 * 4) / 64, rtol=2e-3)


def test_errors():
    with pytest.raises(UserError, match="--stem is for ResNets, and small_cnn is none"):
        ModelConfig(stem="cifar")
    with pytest.raises(UserError, match="--zero-init-residual is for ResNets"):
        ModelConfig(name="small_alexnet", zero_init_residual=True)
    with pytest.raises(UserError, match="--head-hidden needs a --head"):
        ModelConfig(head_hidden=8)
    with pytest.raises(UserError, match="--bn-groups 0: must be at least 1"):
        ModelConfig(batch_norm="split", bn_groups=0)
    with pytest.raises(UserError, match="resnet50 needs images of at least 8 pixels, not 6"):
        models.abstract(ModelConfig(name="resnet50", image_size=6, channels=3))
