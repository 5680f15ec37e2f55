"""Encoders in state dicts: prefixes, names of other libraries, inferred networks."""

from dataclasses import replace

import numpy as np
import pytest
from torch_networks import ALEXNET, HEADLESS, RESNET, assert_same, hugging_face, random_state

from hypersphere_jax import models
from hypersphere_jax.configs import ModelConfig, UserError
from hypersphere_jax.models.state_dicts import infer_model, select_encoder
from hypersphere_jax.models.torch_names import torch_names
from hypersphere_jax.pretrained import default_recipe

NARROW = replace(ALEXNET, width=0.0625)


def prefixed(prefix, state):
    return {f"{prefix}{name}": array for name, array in state.items()}


@pytest.mark.parametrize("prefix", ["", "module.", "backbone."])
@pytest.mark.parametrize("config", [RESNET, ALEXNET], ids=["resnet", "alexnet"])
def test_prefix_is_detected(config, prefix, rng):
    state = random_state(config, rng)
    assert_same(select_encoder(prefixed(prefix, state)), (state, []))


def test_one_of_two_encoders_is_selected(rng):
    query = random_state(RESNET, rng)
    key = random_state(RESNET, rng)
    key_entries = prefixed("module.encoder_k.", key)
    moco = prefixed("module.encoder_q.", query) | key_entries | {"queue": np.ones(3)}
    assert_same(select_encoder(moco), (query, [*sorted(key_entries), "queue"]))
    assert_same(select_encoder(moco, "module.encoder_k")[0], key)
    distillation = prefixed("student.", query) | prefixed("teacher.", key)
    assert_same(select_encoder(distillation, "teacher.")[0], key)
    for prefix in (None, "tutor"):
        with pytest.raises(UserError, match="student"):
            select_encoder(distillation, prefix)


@pytest.mark.parametrize("prefix", ["", "resnet.", "model.resnet."])
def test_hugging_face_names(prefix, rng):
    state = random_state(replace(RESNET, model="resnet50"), rng)
    assert_same(select_encoder(hugging_face(state, prefix)), (state, []))


@pytest.mark.parametrize("first", [2, 3, 4])
def test_positions_in_a_sequential(first, rng):
    state = random_state(HEADLESS, rng)
    positions = {"conv1": 0, "bn1": 1} | {f"layer{k + 1}": first + k for k in range(4)}
    renamed = {}
    for name, array in state.items():
        module, _, rest = name.partition(".")
        renamed[f"backbone.{positions[module]}.{rest}"] = array
    assert_same(select_encoder(renamed), (state, []))


def test_linear_modules_beside_the_network_are_ignored(rng):
    state = random_state(HEADLESS, rng)
    heads = {"prototypes.weight": np.ones((3, 3)), "projection.1.running_mean": np.ones(3)}
    heads["projection.0.weight"] = np.ones((3, 3))
    assert_same(select_encoder(state | heads), (state, sorted(heads)))
    convolution = {"conv2.weight": np.ones((3, 3, 3, 3))}
    assert_same(select_encoder(state | convolution), (state | convolution, []))


@pytest.mark.parametrize(
    ("config", "size", "recipe"),
    [
        (ModelConfig("resnet50", dim=1000, image_size=224, in_channels=3), 224, "moco"),
        (replace(RESNET, model="resnet34", head="simclr3", head_hidden=7), 32, "cifar10"),
        (ModelConfig("small_alexnet", dim=128, image_size=64, in_channels=3), 64, "stl10"),
        (replace(NARROW, head="none", dim=256), 32, "cifar10"),
        (replace(NARROW, head="balanced", head_hidden=9, in_channels=1), 32, "cifar10"),
        (replace(NARROW, head="simclr2", head_hidden=7, num_classes=4), 32, "cifar10"),
        (replace(NARROW, num_classes=4, classifier_layer="fc7"), 32, "cifar10"),
    ],
)
def test_networks_are_inferred_from_shapes(config, size, recipe):
    entries = torch_names(config).values()
    state = {entry.name: np.broadcast_to(0.0, entry.shape) for entry in entries}
    assert infer_model(state, config.image_size) == models.resolved(config)
    inferred = infer_model(state)
    assert inferred.image_size == size
    assert default_recipe(inferred) == recipe


def test_image_size_must_fit_fc6(rng):
    state = random_state(ALEXNET, rng)
    for size in (31, 38):
        assert infer_model(state, size).image_size == size
    for size in (30, 39):
        with pytest.raises(UserError, match=f"image_size={size}"):
            infer_model(state, size)
