"""Projection heads from the backbone's features to the hypersphere."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from hypersphere_jax.configs import ModelConfig, require
from hypersphere_jax.losses import l2_normalize
from hypersphere_jax.models.blocks import dense, linear

LAYERS = ("projection1", "projection2", "unnormalized", "output", "logits")


class Form(NamedTuple):
    """Layers of a head."""

    hidden: int  # number of hidden layers, each followed by ReLU
    normed: bool  # batch norm after every layer; otherwise every layer has a bias
    last_bias: bool = True  # whether the last batch norm has a bias
    width: int | None = None  # width of the hidden layers; defaults to the input's width


FORMS = {
    "none": Form(0, normed=False),
    "linear": Form(0, normed=False),
    # Chen et al. 2020, "Improved baselines with momentum contrastive learning".
    "moco_v2": Form(1, normed=False),
    # SimCLR, SimCLR v2 and "Intriguing properties of contrastive losses"; in the authors' code the
    # last batch norm has no bias.
    "simclr2": Form(1, normed=True, last_bias=False),
    "simclr3": Form(2, normed=True, last_bias=False),
    # Balanced contrastive loss, A.3.1: batch norm on all three layers, ReLU on the first two.
    "balanced": Form(2, normed=True, width=2048),
}


class Head(nnx.Module):
    """Projection to the hypersphere, and a linear classifier if the config has classes.

    The hidden layers are "projection1" and "projection2", after ReLU. "output" is "unnormalized"
    divided by its norm; with head "none", "unnormalized" is the input. The classifier reads
    "output", a hidden layer or the input.

    Raises:
      UserError: for a classifier on another layer, or head "none" with another dimension.
    """

    def __init__(self, inputs: int, config: ModelConfig, *, layer: str, init, dtype, rngs):
        form = FORMS[config.head]
        self.layer = layer
        self.normed = form.normed
        self.hidden = tuple(f"projection{number + 1}" for number in range(form.hidden))
        options = {"init": init, "dtype": dtype, "rngs": rngs}
        widths = {layer: inputs}
        for name in self.hidden:
            width = config.head_hidden or form.width or inputs
            if form.normed:
                hidden: Any = dense(inputs, width, activation=jax.nn.identity, **options)
            else:
                hidden = linear(inputs, width, **options)
            setattr(self, name, hidden)
            widths[name] = width
            inputs = width
        widths["output"] = config.dim
        self.output = self._output_layer(inputs, config, options)
        self.classified: str | None = None
        if config.num_classes:
            self.classified = config.classifier_layer
            require(
                self.classified in widths,
                f"classifier_layer={self.classified}: with head={config.head} a classifier of "
                f"{config.model} is on {', '.join(widths)}",
            )
            self.classifier = linear(
                widths[self.classified], config.num_classes, init=init, rngs=rngs
            )

    def __call__(self, x: jax.Array, train: bool) -> dict[str, jax.Array]:
        outputs = {self.layer: x}
        inputs = (train,) if self.normed else ()
        for name in self.hidden:
            outputs[name] = x = nnx.relu(getattr(self, name)(x, *inputs))
        if self.output is not None:
            x = self.output(x, *inputs)
        outputs["unnormalized"] = x.astype(jnp.float32)
        outputs["output"] = l2_normalize(outputs["unnormalized"])
        if self.classified:
            outputs["logits"] = self.classifier(outputs[self.classified].astype(jnp.float32))
        return outputs

    def _output_layer(self, inputs: int, config: ModelConfig, options: dict[str, Any]) -> Any:
        """Return the last layer, or None for head "none"."""
        if config.head == "none":
            require(
                config.dim == inputs,
                f"head=none: the output is the layer {self.layer}; use dim={inputs}",
            )
            return None
        if self.normed:
            options = options | {"use_bias": FORMS[config.head].last_bias}
            return dense(inputs, config.dim, activation=jax.nn.identity, **options)
        # Sums in float32, because no batch norm follows.
        return linear(inputs, config.dim, preferred_element_type=jnp.float32, **options)
