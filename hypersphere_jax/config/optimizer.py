"""The optimizer and its schedule."""

from typing import Annotated, Literal

from tyro.conf import arg

from hypersphere_jax.config.base import config, require
from hypersphere_jax.config.values import Count, NotNegative, Positive, Share, Within


@config
class OptimizerConfig:
    """The optimizer and its schedule; by default SGD as in Wang & Isola B.1."""

    epochs: Count = 200
    """Passes over the training images."""
    batch_size: Annotated[int, Within("[2, inf)"), arg(aliases=["--bs"])] = 256
    """Positive pairs in the global batch."""
    optimizer: Literal["sgd", "lars", "adam"] = "sgd"
    """`sgd` with momentum; `lars` (You et al., as in SimCLR); `adam`."""
    learning_rate: Annotated[NotNegative, arg(aliases=["--lr"])] = 0.12
    """Learning rate for 256 pairs."""
    scaling: Literal["linear", "sqrt", "none"] = "linear"
    """Its growth with the batch: times `batch_size / 256`, times the square root of that (SimCLR's
    0.075 sqrt(batch size) is 1.2 for 256 pairs), or none."""
    schedule: Literal["step", "cosine", "cosine_epochs"] = "step"
    """`step`: times `decay_factor` at each of `decay_at`; `cosine`: to zero over the run;
    `cosine_epochs`: the same, constant within an epoch, as in MoCo's code."""
    decay_at: tuple[Share, ...] = (0.775, 0.85, 0.925)
    """Shares of the run after which the rate decays: epochs 155, 170, 185 of 200. Empty: never."""
    decay_factor: Positive = 0.1
    """Factor of each decay."""
    warmup_epochs: NotNegative = 0.0
    """Epochs in which the rate first rises linearly from 0; a cosine begins after them."""
    momentum: Annotated[float, Within("[0, 1)")] = 0.9
    """Momentum of SGD and LARS."""
    nesterov: bool = False
    """Nesterov's form of that momentum."""
    weight_decay: Annotated[NotNegative, arg(aliases=["--wd"])] = 1e-4
    """L2 decay; enters the gradient right after clipping, as in PyTorch's optimizers."""
    exclude_norm_and_bias: bool = False
    """No weight decay of biases and normalization. LARS never decays or adapts them."""
    clip_norm: Positive | None = None
    """Largest global norm of the gradient; a larger one is scaled down to it."""
    lars_trust: Positive = 0.001
    """Trust coefficient of LARS (eta)."""
    adam_betas: Annotated[tuple[float, float], Within("[0, 1)")] = (0.9, 0.999)
    """Decay of Adam's first and second moments."""
    adam_eps: Positive = 1e-8
    """Added to the denominator in Adam."""

    def __post_init__(self):
        require(
            self.warmup_epochs < self.epochs,
            f"warmup_epochs={self.warmup_epochs}: must be below epochs={self.epochs}",
        )
        require(
            not self.nesterov or (self.optimizer != "adam" and self.momentum > 0),
            "nesterov= needs optimizer=sgd or lars, and momentum= above 0",
        )
        require(
            self.schedule != "step"
            or all(self.warmup_epochs <= share * self.epochs for share in self.decay_at),
            f"decay_at={self.decay_at} of epochs={self.epochs}: the rate decays before "
            f"warmup_epochs={self.warmup_epochs} are over; shorten these, or decay later",
        )
