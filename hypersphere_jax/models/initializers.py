"""Parameter initialization as in four public codebases: `ModelConfig.init`."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from flax.nnx import initializers as init

from hypersphere_jax.configs import ModelConfig

# He et al. 2015: keeps the variance of activations through ReLU.
he_normal = init.variance_scaling(2.0, "fan_in", "truncated_normal")
# Keeps the variance of gradients; torchvision's ResNets.
he_normal_out = init.variance_scaling(2.0, "fan_out", "normal")
_lecun_normal = init.lecun_normal()
_normal_002 = init.normal(1 / 50)
_normal_001 = init.normal(1 / 100)
# PyTorch's nn.Conv2d and nn.Linear: uniform in +-1 / sqrt(fan_in).
_uniform = init.variance_scaling(1 / 3, "fan_in", "uniform")


def _zeros(inputs: int) -> Callable:
    return init.zeros_init()


def _uniform_bias(inputs: int) -> Callable:
    bound = 1 / np.sqrt(inputs)
    return lambda key, shape, dtype: init.uniform(2 * bound)(key, shape, dtype) - bound


class Scheme(NamedTuple):
    """Initializers of the kinds of layers. Scales of batch norm start at 1, biases at 0."""

    conv: Callable  # convolutions outside ResNets
    residual: Callable  # convolutions of ResNets
    normed: Callable  # linear layers with batch norm
    linear: Callable  # other linear layers
    bias: Callable[[int], Callable] = _zeros  # other linear layers' biases, by number of inputs
    zero_residual: bool = False  # the last scale of every residual block starts at 0


SCHEMES = {
    "he": Scheme(he_normal, he_normal_out, he_normal, _lecun_normal),
    # github.com/SsnL/align_uniform, examples/stl10/encoder.py.
    "authors": Scheme(_normal_002, _normal_002, _normal_002, _normal_002),
    # nn.Conv2d and nn.Linear; torchvision/models/resnet.py.
    "torch": Scheme(_uniform, he_normal_out, _uniform, _uniform, _uniform_bias),
    # github.com/google-research/simclr, resnet.py and model_util.py.
    "simclr": Scheme(_lecun_normal, _lecun_normal, _normal_001, _normal_001, zero_residual=True),
}


def scheme_of(config: ModelConfig) -> Scheme:
    """Return the scheme of a config, with `conv` for the convolutions of its network."""
    scheme = SCHEMES[config.init]
    if config.model.startswith("resnet"):
        return scheme._replace(conv=scheme.residual)
    return scheme
