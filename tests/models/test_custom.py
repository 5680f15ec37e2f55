"""Networks of the user's own: each kind as plain functions, beside the kind's own call."""

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from hypersphere_jax import configs as C
from hypersphere_jax import models
from hypersphere_jax.configs.base import Custom
from hypersphere_jax.models import custom

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
        self.linear, self.dropout = equinox.nn.Linear(16, 6, key=key), equinox.nn.Dropout(0.5)

    def __call__(self, x, key=None):
        x = self.linear(x.ravel())
        return {"before": x, "output": self.dropout(x, key=key)}


def initial(key, x):
    return {"w": jax.random.normal(key, (x[0].size, 6))}


PAIR = (initial, lambda params, x: x.reshape(len(x), -1) @ params["w"])
STATEFUL = (
    lambda key, x: (initial(key, x), {"calls": jnp.zeros(2)}),
    lambda params, stats, x, train: (PAIR[1](params, x), {"calls": stats["calls"] + train}),
)


def made(network):
    init, apply = custom.create(Custom(network), SHAPE)
    params, stats = init(jax.random.key(1))
    return params, stats, jax.jit(apply, static_argnums=3)


@pytest.fixture
def x(rng):
    return rng.standard_normal((5, *SHAPE)).astype(np.float32)


def normalized(raw):
    return raw / np.linalg.norm(raw, axis=1, keepdims=True)


def test_evaluation_is_the_modules_own(x):
    """Layers, with "output" normalized; nothing is drawn, and statistics stay."""
    nnx_module, equinox_module = Nnx(nnx.Rngs(0)), Equinox(jax.random.key(0))
    linen_variables = Linen().init(jax.random.key(7), x, train=False)
    nnx_module.eval()
    inference = equinox.nn.inference_mode(equinox_module)
    for network, expected in (
        (nnx_module, nnx_module(x)),
        (equinox_module, jax.vmap(inference)(x)),
        (PAIR, None),
        (STATEFUL, None),
        (Linen(), None),
    ):
        params, stats, apply = made(network)
        if network is PAIR or network is STATEFUL:
            expected = {"output": PAIR[1](params, x)}
        elif expected is None:
            assert jax.tree.map(jnp.shape, params) == jax.tree.map(
                jnp.shape, linen_variables["params"]
            )
            kept = {"params": params, "batch_stats": stats["batch_stats"]}
            expected = network.apply(kept, x, train=False)
        outputs, after = apply(params, stats, x, False)
        np.testing.assert_allclose(outputs["unnormalized"], expected["output"], rtol=1e-5)
        np.testing.assert_allclose(outputs["output"], normalized(expected["output"]), rtol=1e-5)
        assert set(outputs) == {*expected, "unnormalized"}
        assert all(layer.dtype == jnp.float32 for layer in outputs.values())
        jax.tree.map(np.testing.assert_array_equal, stats, after)


@pytest.mark.parametrize("network", [Nnx(nnx.Rngs(0)), Linen()], ids=["nnx", "linen"])
def test_training_takes_the_batchs_statistics_and_drops_units(network, x):
    params, stats, apply = made(network)
    outputs, first = apply(params, stats, x, True)
    before = outputs["before"]
    np.testing.assert_allclose(before.mean(0), 0, atol=1e-5)  # batch norm over the batch
    raw = outputs["unnormalized"]
    assert 0 < (raw == 0).mean() < 1
    np.testing.assert_allclose(raw[raw != 0], 2 * before[raw != 0], rtol=1e-5)
    again, second = apply(params, first, x, True)
    assert (again["unnormalized"] != raw).any()  # other units in the next step
    same, _ = apply(params, stats, x, True)
    np.testing.assert_array_equal(same["unnormalized"], raw)  # a function of the statistics
    means = [
        jax.tree.leaves(s.get("batch_stats", s.get("norm")))[0] for s in (stats, first, second)
    ]
    np.testing.assert_allclose(means[2] - means[1], (means[1] - means[0]) / 2, rtol=1e-5)


@pytest.mark.parametrize("network", [Nnx(nnx.Rngs(0)), Linen()], ids=["nnx", "linen"])
def test_statistics_over_devices_are_the_global_batchs(network, x):
    """Of modules whose batch norm has no axis of its own; dropout differs by device."""
    params, stats, apply = made(network)
    x = np.concatenate([x[:4], x[:4] + 1])
    whole, after = apply(params, stats, x, True)
    _, plain = custom.create(Custom(network), SHAPE)
    part = lambda *trees: plain(*trees, True, "data")  # noqa: E731
    axes = {"in_axes": (None, None, 0), "devices": jax.devices()[:2]}
    parts = jax.pmap(part, "data", **axes)(params, stats, x.reshape(2, 4, *SHAPE))
    np.testing.assert_allclose(parts[0]["before"].reshape(8, 6), whole["before"], atol=1e-5)
    means = [jax.tree.leaves(s.get("batch_stats", s.get("norm")))[0] for s in (parts[1], after)]
    np.testing.assert_allclose(means[0][0], means[1], atol=1e-6)
    dropped = parts[0]["unnormalized"] == 0
    assert (dropped[0] != dropped[1]).any()


def test_statistics_of_a_pair_of_functions(x):
    params, stats, apply = made(STATEFUL)
    _, after = apply(params, apply(params, stats, x, True)[1], x, True)
    np.testing.assert_array_equal(after["calls"], [2, 2])


def test_as_a_model_of_a_config(x):
    config = C.ModelConfig(network=Nnx(nnx.Rngs(0)), image_size=4, in_channels=1)
    apply, params, stats = models.create(config, jax.random.key(0))
    assert models.layers(config) == {"before": (6,), "output": (6,), "unnormalized": (6,)}
    abstract = models.abstract(config)[1:]
    jax.tree.map(lambda a, b: None, abstract, (params, stats))  # of one structure
    assert apply(params, stats, x, False)[0]["output"].shape == (5, 6)
    with pytest.raises(C.UserError, match="before, output, unnormalized"):
        models.check_layer(config, "fc7")
    with pytest.raises(C.UserError, match=r"mine\.ViT.*network="):
        models.resolved(C.ModelConfig(network="mine.ViT", image_size=4, in_channels=1))
    with pytest.raises(C.UserError, match="width="):
        C.ModelConfig(network=PAIR, width=0.5)


def test_nnx_parameters_are_those_of_the_time(x):
    module = Nnx(nnx.Rngs(0))
    config = C.ModelConfig(network=module, image_size=4, in_channels=1)
    before = models.create(config, jax.random.key(0))[1]
    nnx.update(module, nnx.state(Nnx(nnx.Rngs(1)), nnx.Param))
    after = models.create(config, jax.random.key(0))[1]
    kernels = [tree["layers"]["0"]["kernel"] for tree in (before, after)]
    assert (kernels[0] != kernels[1]).any()


@pytest.mark.parametrize(
    ("network", "match"),
    [
        (3, "network=builtins.int must be a module"),
        ((initial, lambda params, x: {"h": x}), "none is 'output'"),
        ((initial, lambda params, x: x), r"network=.* \[2, 4, 4, 1\]"),
        ((lambda key, x: {"n": jnp.arange(3)}, PAIR[1]), "is int32, and must be floating"),
    ],
)
def test_what_is_no_network(network, match):
    with pytest.raises(C.UserError, match=match):
        models.layers(C.ModelConfig(network=network, image_size=4, in_channels=1))
