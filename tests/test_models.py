"""Encoders against a NumPy forward pass, their shapes, and their batch statistics."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hypersphere_jax import models
from hypersphere_jax.config import ModelConfig, UserError
from hypersphere_jax.models.convolution import convolution

ALEXNET = ModelConfig(name="small_alexnet", image_size=32, channels=3, width=0.05, dim=5)
CNN = ModelConfig(name="small_cnn", image_size=8, channels=1, width=0.2, dim=3, num_classes=4)


@functools.cache
def made(config):
    apply, params, stats = models.create(config, jax.random.key(0))
    stats = jax.tree.map(
        lambda s: s + 0.2 * jnp.sin(jnp.arange(len(s))), stats
    )  # not the trivial ones
    return jax.jit(apply, static_argnames=("train", "axis_name")), params, stats


def images(config, n=4):
    size = (n, config.image_size, config.image_size, config.channels)
    return np.random.default_rng(1).standard_normal(size).astype(np.float32)


# The same network in NumPy, float64.


def conv(x, kernel, stride=1):
    n, side, _, _ = x.shape
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    out = -(-side // stride)
    result = np.zeros((n, out, out, kernel.shape[-1]))
    for i in range(out):
        for j in range(out):
            window = padded[:, i * stride : i * stride + 3, j * stride : j * stride + 3]
            result[:, i, j] = np.tensordot(window, kernel, 3)
    return result


def normed(x, params, stats):
    scaled = (x - stats["mean"]) / np.sqrt(stats["var"] + 1e-5)
    return scaled * params["scale"] + params["bias"]


def relu(x):
    return np.maximum(x, 0)


def gelu(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def pool(x):
    side = (x.shape[1] - 1) // 2
    rows = [
        [x[:, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3].max((1, 2)) for j in range(side)]
        for i in range(side)
    ]
    return np.array(rows).transpose(2, 0, 1, 3)


def head(x, params):
    raw = x @ params["output"]["kernel"] + params["output"]["bias"]
    return {"unnormalized": raw, "output": raw / np.linalg.norm(raw, axis=1, keepdims=True)}


def alexnet(x, params, stats):
    outputs = {}
    for number in range(1, 6):
        name = f"conv{number}"
        x = conv(x, params[name]["layer"]["kernel"])
        x = relu(normed(x, params[name]["norm"], stats[name]["norm"]))
        outputs[name] = x = pool(x) if number in (1, 2, 5) else x
    x = x.reshape(len(x), -1)
    for name in ("fc6", "fc7"):
        x = x @ params[name]["layer"]["kernel"]
        outputs[name] = x = relu(normed(x, params[name]["norm"], stats[name]["norm"]))
    return outputs | head(x, params["head"])


def cnn(x, params, stats):
    outputs = {}
    for number, stride in ((1, 1), (2, 2), (3, 2)):
        name = f"conv{number}"
        x = conv(x, params[name]["layer"]["kernel"], stride)
        outputs[name] = x = gelu(normed(x, params[name]["norm"], stats[name]["norm"]))
    outputs["backbone"] = x = x.reshape(len(x), -1)
    outputs |= head(x, params["head"])
    classifier = params["head"]["classifier"]
    outputs["logits"] = outputs["output"] @ classifier["kernel"] + classifier["bias"]
    return outputs


@pytest.mark.parametrize(
    ("side", "kernel", "stride", "pad"), [(8, 3, 1, 1), (7, 3, 2, 1), (9, 7, 2, 3), (6, 1, 2, 0)]
)
def test_convolution_is_xlas(rng, side, kernel, stride, pad):
    x = rng.standard_normal((2, side, side + 1, 3)).astype(np.float32)
    weights = rng.standard_normal((kernel, kernel, 3, 4)).astype(np.float32)
    common = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
    window = ((stride, stride), [(pad, pad)] * 2)

    def ours(x, weights):
        return convolution(x, weights, *window, **common)

    def xlas(x, weights):
        return jax.lax.conv_general_dilated(x, weights, *window, **common)

    np.testing.assert_allclose(ours(x, weights), xlas(x, weights), rtol=1e-4, atol=1e-4)
    grads = [
        jax.grad(lambda *args, f=f: jnp.sum(jnp.sin(f(*args))), argnums=(0, 1))(x, weights)
        for f in (ours, xlas)
    ]
    for a, b in zip(*grads, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_convolution_with_dilation_or_groups(rng):
    x = rng.standard_normal((1, 9, 9, 4)).astype(np.float32)
    common = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
    for options, inputs in (({"rhs_dilation": (2, 2)}, 4), ({"feature_group_count": 2}, 2)):
        weights = rng.standard_normal((3, 3, inputs, 4)).astype(np.float32)
        args = (x, weights, (1, 1), [(1, 1)] * 2)
        np.testing.assert_array_equal(
            convolution(*args, **options, **common),
            jax.lax.conv_general_dilated(*args, **options, **common),
        )


@pytest.mark.parametrize(("config", "oracle"), [(ALEXNET, alexnet), (CNN, cnn)])
def test_forward(config, oracle):
    apply, params, stats = made(config)
    x = images(config)
    outputs, same = apply(params, stats, x, train=False)
    wide = jax.tree.map(lambda a: np.asarray(a, np.float64), (params, stats))
    expected = oracle(x.astype(np.float64), *wide)
    assert outputs.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(outputs[name], value, rtol=1e-3, atol=1e-4, err_msg=name)
    jax.tree.map(np.testing.assert_array_equal, same, stats)


@pytest.mark.parametrize("config", [ALEXNET, CNN])
def test_layers(config):
    apply, params, stats = made(config)
    outputs, _ = apply(params, stats, images(config), train=False)
    layers = models.layers(config)
    assert layers == {name: value.shape[1:] for name, value in outputs.items()}
    first, *_, last = layers
    assert first == "conv1" and last in ("output", "logits")


@pytest.mark.parametrize(
    ("size", "conv5", "parameters"),
    # Weights: 3x3 convolutions, fc6, fc7, scales and biases of batch norm, the output's 128.
    [(64, 7, 9408), (32, 3, 1728)],
)
def test_small_alexnet_is_the_papers(size, conv5, parameters):
    config = ModelConfig(name="small_alexnet", image_size=size, channels=3, dim=128)
    layers = models.layers(config)
    assert layers["conv1"][-1] == 96 and layers["conv2"][-1] == 192
    assert layers["conv3"][-1] == layers["conv4"][-1] == 384
    assert layers["conv5"] == (conv5, conv5, 192)
    assert layers["fc6"] == layers["fc7"] == (4096,) and layers["output"] == (128,)
    _, params, _ = models.abstract(config)
    count = sum(np.prod(p.shape) for p in jax.tree.leaves(params))
    convs = 9 * (3 * 96 + 96 * 192 + 192 * 384 + 384 * 384 + 384 * 192)
    norms = 2 * (96 + 192 + 384 + 384 + 192 + 4096 + 4096)
    assert count == convs + norms + parameters * 4096 + 4096 * 4096 + 4096 * 128 + 128


def test_training_uses_and_updates_batch_statistics():
    apply, params, stats = made(CNN)
    x = images(CNN, 16)
    outputs, new = apply(params, stats, x, train=True)
    raw = conv(x.astype(np.float64), np.asarray(params["conv1"]["layer"]["kernel"], np.float64))
    mean, var = raw.mean((0, 1, 2)), raw.var((0, 1, 2))
    old, now = stats["conv1"]["norm"], new["conv1"]["norm"]
    np.testing.assert_allclose(now["mean"], 0.9 * old["mean"] + 0.1 * mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(now["var"], 0.9 * old["var"] + 0.1 * var, rtol=1e-4, atol=1e-5)
    expected = gelu(
        normed(raw, jax.device_get(params["conv1"]["norm"]), {"mean": mean, "var": var})
    )
    np.testing.assert_allclose(outputs["conv1"], expected, rtol=1e-3, atol=1e-4)


def test_synchronized_batch_norm_is_that_of_the_global_batch():
    apply, params, stats = made(CNN)
    x = images(CNN, 16)
    whole, whole_stats = apply(params, stats, x, train=True)
    for axis_name, agrees in (("data", True), (None, False)):
        mapped = jax.pmap(
            lambda x, axis_name=axis_name: apply(params, stats, x, train=True, axis_name=axis_name),
            axis_name="data",
            devices=jax.devices()[:4],
        )
        parts, part_stats = mapped(x.reshape(4, 4, *x.shape[1:]))
        output = parts["output"].reshape(16, -1)
        assert np.allclose(output, whole["output"], atol=1e-5) == agrees
        if agrees:
            for a, b in zip(*map(jax.tree.leaves, (part_stats, whole_stats)), strict=True):
                np.testing.assert_allclose(a[0], b, rtol=1e-4, atol=1e-5)


def test_outputs_have_unit_norm():
    for config in (ALEXNET, CNN):
        apply, params, stats = made(config)
        outputs, _ = apply(params, stats, images(config), train=True)
        np.testing.assert_allclose(jnp.linalg.norm(outputs["output"], axis=1), 1, rtol=1e-6)


def test_errors():
    with pytest.raises(UserError, match=r"at least 15 pixels, not 8.*--image-size"):
        models.abstract(ModelConfig(name="small_alexnet", image_size=8, channels=1))
    with pytest.raises(UserError, match="must be given"):
        models.abstract(ModelConfig())
    with pytest.raises(UserError, match=r"unknown model 'vit'.*small_alexnet"):
        models.abstract(ModelConfig(name="vit", image_size=8, channels=1))
