"""Whose initialization: laws of what is drawn by closed forms, and which layer has which."""

import math
from pathlib import Path

import jax
import numpy as np
import pytest

from hypersphere_jax import models
from hypersphere_jax.configs import ImportConfig, ModelConfig, UserError
from hypersphere_jax.models import functional, initializers
from hypersphere_jax.models.resnet import ResNet18, ResNet50

# Of unit deviation, the largest value of so many: what tells the families apart.
NORMAL, TRUNCATED, UNIFORM = (3.3, 6), (2.2, 2.274), (1.72, 1.733)
HE, LECUN, BOUND = lambda n: (2 / n) ** 0.5, lambda n: n**-0.5, lambda n: (3 * n) ** -0.5
LAWS = {  # by the inputs of a unit: convolutions, a ResNet's (by outputs), linear maps
    "he": ((HE, TRUNCATED), (HE, NORMAL), (HE, TRUNCATED), (LECUN, TRUNCATED), None),
    "authors": ((lambda n: 0.02, NORMAL),) * 4 + (None,),
    "torch": ((BOUND, UNIFORM), (HE, NORMAL), (BOUND, UNIFORM), (BOUND, UNIFORM), (BOUND, UNIFORM)),
    "simclr": ((LECUN, TRUNCATED),) * 2 + ((lambda n: 0.01, NORMAL),) * 2 + (None,),
}


DRAWN_TWICE = """
import functools, jax, numpy as np
from hypersphere_jax import models
from hypersphere_jax.configs import ModelConfig
from hypersphere_jax.models import functional
config = ModelConfig("small_cnn", image_size=8, in_channels=1, dim=32)
build = functools.partial(models._build, config)
usual = jax.jit(lambda key: functional.split(build(key))[1:])
both = [program(jax.random.key(3)) for program in (functional.Builder(build), usual)]
jax.tree.map(np.testing.assert_array_equal, *both)
key = jax.random.key(3)  # and within another program
made = jax.jit(lambda given: [models.create(config, k)[1:] for k in (given, key)])(key)
close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
jax.tree.map(close, made, [both[0], both[0]])
jax.eval_shape(lambda key: models.create(config, key)[1:], key)
"""


@pytest.mark.parametrize("name", LAWS)
def test_each_source_has_its_law(name):
    scheme, conv, dense = initializers.SCHEMES[name], (3, 3, 48, 64), (432, 64)
    draws = scheme.conv, scheme.residual, scheme.normed, scheme.linear, scheme.bias(432)
    shapes = conv, conv, dense, dense, (2048,)
    for draw, shape, law in zip(draws, shapes, LAWS[name], strict=True):
        values = np.asarray(draw(jax.random.key(1), shape, np.float32)).ravel()
        if law is None:
            assert not values.any()
            continue
        deviation, (low, high) = law
        outputs = (
            draw is scheme.residual and scheme.residual is not scheme.conv and name != "simclr"
        )
        inputs = 9 * 64 if outputs and name != "authors" else 432
        np.testing.assert_allclose(values.std(), deviation(inputs), rtol=0.04)
        assert low < np.abs(values).max() / deviation(inputs) < high
        assert abs(values.mean()) < 4 * deviation(inputs) / math.sqrt(values.size)


def built(config, monkeypatch):
    """Parameters of a network whose draws are numbers that tell their kind."""
    kinds = {"conv": 1, "residual": 2, "normed": 3, "linear": 4}
    scheme = initializers.SCHEMES[config.init]
    full = lambda k: lambda key, shape, dtype: np.full(shape, k, np.float32)  # noqa: E731
    scheme = scheme._replace(**{n: full(k) for n, k in kinds.items()}, bias=lambda n: full(-n))
    monkeypatch.setitem(initializers.SCHEMES, config.init, scheme)
    return functional.split(models._build(config, jax.random.key(0)))[1]


def test_every_layer_asks_for_its_kind(monkeypatch):
    for name, depths in (("resnet18", ResNet18), ("resnet50", ResNet50)):
        monkeypatch.setitem(models.MODELS, name, type("Short", (depths,), {"depths": (1,) * 4}))
    size = {"image_size": 16, "in_channels": 3, "width": 0.05, "dim": 4, "num_classes": 3}
    for name, init, head, conv in (
        ("small_alexnet", "authors", "linear", 1),
        ("small_cnn", "he", "balanced", 1),
        ("resnet18", "torch", "moco_v2", 2),
        ("resnet50", "simclr", "simclr2", 2),
    ):
        config = ModelConfig(
            name, init=init, head=head, stem="cifar" if conv == 2 else None, **size
        )
        params = built(config, monkeypatch)
        normed = head in ("balanced", "simclr2")
        last = {} if init != "simclr" else {0.0}
        for path, values in jax.tree_util.tree_leaves_with_path(params):
            path, value = [key.key for key in path], float(np.ravel(values)[0])
            assert (np.asarray(values) == value).all()
            if path[-1] == "kernel":
                linear = path[-2] == "classifier" or (path[0] == "head" and not normed)
                assert value == (conv if values.ndim == 4 else 4 if linear else 3), path
            elif path[-1] == "scale":
                assert (value in last) == (init == "simclr" and "conv3" in path), path
                assert value in (0, 1)
            else:  # -n of linear maps with n inputs
                inputs = params["head"][path[1]].get("kernel") if path[0] == "head" else None
                assert value == (0 if inputs is None else -inputs.shape[0]), path


@pytest.mark.parametrize(
    ("model", "init"),
    [
        ("small_cnn", "authors"),
        ("small_alexnet", "simclr"),
        ("sentence_gru", "torch"),
        ("resnet18", "chrono"),
    ],
)
def test_an_initialization_of_another_network_is_refused(model, init):
    with pytest.raises(UserError, match=f"init={init}"):
        ModelConfig(model, init=init)


def test_an_initialization_without_effect_is_refused():
    with pytest.raises(UserError, match="init=torch"):
        ImportConfig(file=Path("a.pth"), name="a", init="torch")
    with pytest.raises(UserError, match="init=torch"):
        ModelConfig(init="torch", network=object())
