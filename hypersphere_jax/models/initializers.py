"""How a network begins, by whose code: `ModelConfig.init`."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from flax.nnx import initializers as init

from hypersphere_jax.configs import ModelConfig

# He et al.: the variance that keeps activations constant through ReLU.
he_normal = init.variance_scaling(2.0, "fan_in", "truncated_normal")
# The same for gradients: torchvision's of ResNets.
he_normal_out = init.variance_scaling(2.0, "fan_out", "normal")
_lecun_normal = init.lecun_normal()
_fiftieth, _hundredth = init.normal(1 / 50), init.normal(1 / 100)
# PyTorch's of nn.Conv2d and nn.Linear: uniform in +-1 / sqrt(fan_in).
_uniform = init.variance_scaling(1 / 3, "fan_in", "uniform")


def _zeros(inputs: int) -> Callable:
    return init.zeros_init()


def _uniform_bias(inputs: int) -> Callable:
    bound = 1 / np.sqrt(inputs)
    return lambda key, shape, dtype: init.uniform(2 * bound)(key, shape, dtype) - bound


class Scheme(NamedTuple):
    """What draws the parameters; the scales of batch norm are 1 and its biases 0."""

    conv: Callable
    residual: Callable  # convolutions of ResNets
    normed: Callable  # linear maps before batch norm
    linear: Callable  # the others
    bias: Callable[[int], Callable] = _zeros  # of these, by their inputs
    zero_residual: bool = False  # the last scale of every residual block


SCHEMES = {
    "he": Scheme(he_normal, he_normal_out, he_normal, _lecun_normal),
    # github.com/SsnL/align_uniform, examples/stl10/encoder.py.
    "authors": Scheme(_fiftieth, _fiftieth, _fiftieth, _fiftieth),
    # nn.Conv2d and nn.Linear; torchvision/models/resnet.py.
    "torch": Scheme(_uniform, he_normal_out, _uniform, _uniform, _uniform_bias),
    # github.com/google-research/simclr, resnet.py and model_util.py.
    "simclr": Scheme(_lecun_normal, _lecun_normal, _hundredth, _hundredth, zero_residual=True),
}


def scheme_of(config: ModelConfig) -> Scheme:
    """The scheme of a config, with the convolutions of its network."""
    scheme = SCHEMES[config.init]
    return scheme._replace(conv=scheme.residual) if config.model.startswith("resnet") else scheme
