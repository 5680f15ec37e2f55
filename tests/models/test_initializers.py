"""Initial parameters of each scheme: deviation and distribution of every layer."""

import math

import jax
import numpy as np
import pytest

from hypersphere_jax import models
from hypersphere_jax.configs import ModelConfig

SIZE = {"image_size": 16, "in_channels": 3, "dim": 64, "num_classes": 48}
# Largest of many values over their deviation.
LARGEST = {"normal": (2.8, 6), "truncated": (2.0, 2.3), "uniform": (1.6, 1.76)}


# Variance times inputs, outputs or 1, and family of distributions, for convolutions, linear layers
# with batch norm, and other linear layers.
HE = (2, "inputs", "truncated")
LECUN = (1, "inputs", "truncated")
TORCH = (1 / 3, "inputs", "uniform")
SCHEMES = {
    "small_cnn he": [HE, HE, LECUN],
    "small_alexnet authors": [(0.02**2, "one", "normal")] * 3,
    "resnet18 torch": [(2, "outputs", "normal"), TORCH, TORCH],
    "resnet50 simclr": [LECUN, *[(0.01**2, "one", "normal")] * 2],
}
HEADS = {"small_cnn": "balanced", "resnet18": "moco_v2", "resnet50": "simclr2"}


@pytest.mark.parametrize(
    "scheme",
    [pytest.param(name, marks=[pytest.mark.slow] * name.startswith("resnet")) for name in SCHEMES],
)
def test_every_layer_follows_its_scheme(scheme, short_networks):
    """Residual blocks of SimCLR start as the identity; PyTorch draws biases of linear layers."""
    model, init = scheme.split()
    head = HEADS.get(model, "linear")
    config = ModelConfig(model, init=init, head=head, width=0.25, **SIZE)
    _, params, _ = models.create(config, jax.random.key(0))
    for path, values in jax.tree_util.tree_leaves_with_path(params):
        names = [key.key for key in path]
        values = np.asarray(values)
        if names[-1] == "kernel":
            conv, normed, linear = SCHEMES[scheme]
            law = linear
            if values.ndim == 4:
                law = conv
            elif names[-2] == "layer":
                law = normed
            check_kernel(values, *law)
        elif names[-1] == "scale":
            assert (values == (0 if init == "simclr" and "conv3" in names else 1)).all(), names
        elif init == "torch" and names[0] == "head":
            bound = 1 / math.sqrt(params["head"][names[1]]["kernel"].shape[0])
            assert 0.8 * bound < np.abs(values).max() <= bound, names
        else:
            assert not values.any(), names


def check_kernel(values, variance, over, family):
    """Compare moments and the largest value of a kernel with its distribution."""
    window = math.prod(values.shape[:-2])
    sizes = {"one": 1, "inputs": window * values.shape[-2], "outputs": window * values.shape[-1]}
    expected = math.sqrt(variance / sizes[over])
    np.testing.assert_allclose(values.std(), expected, rtol=4 / math.sqrt(values.size))
    assert abs(values.mean()) < 5 * expected / math.sqrt(values.size)
    low, high = LARGEST[family]
    assert values.size < 2000 or low < np.abs(values).max() / expected < high
