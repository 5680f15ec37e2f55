"""Networks of the user: each kind of module as functions of parameters and statistics."""

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from hypersphere_jax import models
from hypersphere_jax.configs import ModelConfig, UserError

SHAPE = (4, 4, 1)


class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([nnx.Linear(16, 6, rngs=rngs)])
        self.norm = nnx.BatchNorm(6, momentum=0.5, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        x = self.norm(self.layers[0](x.reshape(len(x), -1)))
        return {"before": x, "output": self.dropout(x)}


class Linen(linen.Module):
    @linen.compact
    def __call__(self, x, train: bool):
        x = linen.Dense(6)(x.reshape(len(x), -1))
        x = linen.BatchNorm(use_running_average=not train, momentum=0.5)(x)
        return {"before": x, "output": linen.Dropout(0.5, deterministic=not train)(x)}


class Equinox(equinox.Module):
    linear: equinox.nn.Linear
    dropout: equinox.nn.Dropout

    def __init__(self, key):
        self.linear = equinox.nn.Linear(16, 6, key=key)
        self.dropout = equinox.nn.Dropout(0.5)

    def __call__(self, x, key=None):
        x = self.linear(x.ravel())
        return {"before": x, "output": self.dropout(x, key=key)}


def init_linear(key, x):
    return {"w": jax.random.normal(key, (x[0].size, 6))}


def apply_linear(params, x):
    return x.reshape(len(x), -1) @ params["w"]


def init_counting(key, x):
    return init_linear(key, x), {"calls": jnp.zeros(2)}


def apply_counting(params, stats, x, train):
    return apply_linear(params, x), {"calls": stats["calls"] + train}


MODULE = Nnx(nnx.Rngs(0))
PAIR = (init_linear, apply_linear)
COUNTING = (init_counting, apply_counting)
with_statistics = pytest.mark.parametrize("network", [MODULE, Linen()], ids=["nnx", "linen"])


def config_of(network):
    return ModelConfig(network=network, image_size=4, in_channels=1)


def create(network):
    apply, params, stats = models.create(config_of(network), jax.random.key(1))
    return params, stats, jax.jit(apply, static_argnums=3)


@pytest.fixture
def x(rng):
    return rng.standard_normal((5, *SHAPE)).astype(np.float32)


def layers_of_the_module(network, params, stats, x):
    """Call the user's network in its own way."""
    if network is MODULE:
        module = nnx.clone(MODULE)
        module.eval()
        return module(x)
    if isinstance(network, Linen):
        variables = {"params": params, "batch_stats": stats["batch_stats"]}
        return network.apply(variables, x, train=False)
    if isinstance(network, Equinox):
        return jax.vmap(equinox.nn.inference_mode(network))(x)
    return {"output": apply_linear(params, x)}


@pytest.mark.parametrize(
    "network",
    [MODULE, Linen(), Equinox(jax.random.key(0)), PAIR, COUNTING],
    ids=["nnx", "linen", "equinox", "pair", "pair with statistics"],
)
def test_evaluation_is_the_networks_own(network, x):
    """Nothing is random, "output" is normalized, and statistics stay the same."""
    params, stats, apply = create(network)
    layers, after = apply(params, stats, x, False)
    expected = layers_of_the_module(network, params, stats, x)
    expected["unnormalized"] = expected["output"]
    lengths = np.linalg.norm(expected["unnormalized"], axis=1, keepdims=True)
    expected["output"] = expected["unnormalized"] / lengths
    assert layers.keys() == expected.keys()
    for name, layer in layers.items():
        np.testing.assert_allclose(layer, expected[name], rtol=1e-5, atol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, stats, after)


def running_mean(stats):
    return jax.tree.leaves(stats.get("batch_stats", stats.get("norm")))[0]


@with_statistics
def test_training_uses_batch_statistics_and_drops_units(network, x):
    params, stats, apply = create(network)
    layers, first = apply(params, stats, x, True)
    np.testing.assert_allclose(layers["before"].mean(0), 0, atol=1e-5)
    raw = layers["unnormalized"]
    assert 0 < (raw == 0).mean() < 1
    np.testing.assert_allclose(raw[raw != 0], 2 * layers["before"][raw != 0], rtol=1e-5)
    again, second = apply(params, first, x, True)
    assert (again["unnormalized"] != raw).any()  # other units in the next step
    np.testing.assert_array_equal(apply(params, stats, x, True)[0]["unnormalized"], raw)
    moves = np.diff([running_mean(s) for s in (stats, first, second)], axis=0)
    np.testing.assert_allclose(moves[1], moves[0] / 2, rtol=1e-5)


@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")
@with_statistics
def test_statistics_are_those_of_the_global_batch(network, x):
    """Dropout differs between devices."""
    params, stats, apply = create(network)
    x = np.concatenate([x[:4], x[:4] + 1])
    whole, expected = apply(params, stats, x, True)
    plain, _, _ = models.abstract(config_of(network))

    def on_device(params, stats, x):
        return plain(params, stats, x, True, "data")

    mapped = jax.pmap(on_device, "data", in_axes=(None, None, 0), devices=jax.devices()[:2])
    layers, after = mapped(params, stats, x.reshape(2, 4, *SHAPE))
    np.testing.assert_allclose(layers["before"].reshape(8, 6), whole["before"], atol=1e-5)
    np.testing.assert_allclose(running_mean(after)[0], running_mean(expected), atol=1e-6)
    dropped = layers["unnormalized"] == 0
    assert (dropped[0] != dropped[1]).any()


@pytest.mark.parametrize(
    ("network", "match"),
    [
        (3, "network=builtins.int"),
        ("mine.ViT", "mine.ViT"),
        ((init_linear, lambda params, x: {"h": x}), "output"),
        ((lambda key, x: {"n": jnp.arange(3)}, apply_linear), "int32"),
    ],
)
def test_wrong_networks_are_refused(network, match):
    with pytest.raises(UserError, match=match):
        models.layers(config_of(network))
