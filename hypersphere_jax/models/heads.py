"""From the backbone's features to the hypersphere: the papers' projections, linear, or none."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from hypersphere_jax.configs import ModelConfig, require
from hypersphere_jax.losses import l2_normalize
from hypersphere_jax.models.blocks import dense, linear

LAYERS = ("projection1", "projection2", "unnormalized", "output", "logits")


class Form(NamedTuple):
    hidden: int  # hidden layers, each with ReLU
    normed: bool  # batch norm after every layer, the last one too; else every layer has a bias
    last_bias: bool = True  # whether the last batch norm has one
    width: int | None = None  # of the hidden layers, by default; None: as the features that enter


FORMS = {
    "none": Form(0, normed=False),
    "linear": Form(0, normed=False),
    # Chen et al. 2020, "Improved baselines with momentum contrastive learning".
    "moco_v2": Form(1, normed=False),
    # SimCLR and SimCLR v2, which "Intriguing properties of contrastive losses" follows: as in the
    # authors' code, where the last batch norm only scales.
    "simclr2": Form(1, normed=True, last_bias=False),
    "simclr3": Form(2, normed=True, last_bias=False),
    # The balanced contrastive loss's A.3.1: batch norm on all three layers, ReLU on the first two.
    "balanced": Form(2, normed=True, width=2048),
}


class Head(nnx.Module):
    """The map to the hypersphere, and a linear classifier when there are classes.

    Its hidden layers are "projection1" and "projection2", after ReLU; "output" is "unnormalized"
    divided by its norm; that is what enters, where the head is "none". The classifier is on
    "output", a hidden layer, or the layer (with `inputs` features) that enters the head; UserError
    for another one.
    """

    def __init__(self, inputs: int, config: ModelConfig, *, layer: str, init, dtype, rngs):
        form = FORMS[config.head]
        self.hidden = tuple(f"projection{number + 1}" for number in range(form.hidden))
        self.normed, self.layer = form.normed, layer
        widths = {layer: inputs}
        common = {"init": init, "dtype": dtype, "rngs": rngs}
        normed = {"activation": jax.nn.identity, **common}
        for name in self.hidden:
            width = config.head_hidden or form.width or inputs
            if form.normed:
                hidden = dense(inputs, width, **normed)
            else:
                hidden = linear(inputs, width, **common)
            setattr(self, name, hidden)
            widths[name] = inputs = width
        widths["output"] = config.dim
        if config.head == "none":
            require(
                config.dim == inputs,
                f"head=none: the output is the layer {layer}: take dim={inputs}",
            )
            self.output: Any = None
        elif form.normed:
            self.output = dense(inputs, config.dim, use_bias=form.last_bias, **normed)
        else:
            # Summed in float32, as nothing follows that would hide the rounding.
            wide = {"preferred_element_type": jnp.float32}
            self.output = linear(inputs, config.dim, **wide, **common)
        self.classified = config.classifier_layer if config.num_classes else None
        if self.classified:
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
        for name in self.hidden:
            outputs[name] = x = nnx.relu(self._apply(name, x, train))
        outputs["unnormalized"] = self._apply("output", x, train).astype(jnp.float32)
        outputs["output"] = l2_normalize(outputs["unnormalized"])
        if self.classified:
            outputs["logits"] = self.classifier(outputs[self.classified].astype(jnp.float32))
        return outputs

    def _apply(self, name, x, train):
        layer = getattr(self, name)
        if layer is None:
            return x
        return layer(x, train) if self.normed else layer(x)
