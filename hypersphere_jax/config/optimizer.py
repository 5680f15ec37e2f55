"""The optimizer and its schedule."""

import math
from typing import Literal

from hypersphere_jax.config.base import config, positive, require


@config
class OptimizerConfig:
    """The optimizer and its schedule; by default SGD as in Wang & Isola B.1."""

    epochs: int = 200
    """Passes over the training images."""
    batch_size: int = 256
    """Positive pairs in the global batch."""
    optimizer: Literal["sgd", "lars", "adam"] = "sgd"
    """`sgd` with momentum; `lars` (You et al., as in SimCLR); `adam`."""
    learning_rate: float = 0.12
    """Learning rate for 256 pairs."""
    scaling: Literal["linear", "sqrt", "none"] = "linear"
    """Its growth with the batch: times `batch_size / 256`; times the square root of that (SimCLR's
    0.075 sqrt(batch size) is 1.2 for 256 pairs); or none at all."""
    schedule: Literal["step", "cosine"] = "step"
    """`step`: times `decay_factor` at each of `decay_at`; `cosine`: to zero over the run."""
    decay_at: tuple[float, ...] = (0.775, 0.85, 0.925)
    """Shares of the run after which the rate decays: epochs 155, 170 and 185 of 200. None at all:
    a constant rate."""
    decay_factor: float = 0.1
    """Factor of each decay."""
    warmup_epochs: float = 0.0
    """Epochs, or a fraction of one, in which the rate first rises linearly from 0. They are part of
    the run; the cosine begins after them."""
    momentum: float = 0.9
    """Momentum of SGD and LARS."""
    nesterov: bool = False
    """Nesterov's form of that momentum."""
    weight_decay: float = 1e-4
    """L2 decay; goes into the gradient before all else but clipping, as in PyTorch's optimizers."""
    exclude_norm_and_bias: bool = False
    """Leave biases and the parameters of normalization out of weight decay. LARS always leaves them
    out of it, and of its adaptation too."""
    clip_norm: float | None = None
    """Largest norm of the gradient of all parameters together; a longer one is shortened to it."""
    lars_trust: float = 0.001
    """Trust coefficient of LARS (eta)."""
    adam_betas: tuple[float, float] = (0.9, 0.999)
    """Decay of Adam's first and second moments."""
    adam_eps: float = 1e-8
    """Added to the denominator in Adam."""

    def __post_init__(self):
        require(self.epochs >= 1, f"--epochs {self.epochs}: must be at least 1")
        require(self.batch_size >= 2, f"--batch-size {self.batch_size}: needs at least 2 pairs")
        require(
            self.learning_rate >= 0 and math.isfinite(self.learning_rate),
            f"--learning-rate {self.learning_rate}: must be finite and >= 0",
        )
        for flag in ("decay_factor", "lars_trust", "adam_eps"):
            positive(flag, getattr(self, flag))
        if self.clip_norm is not None:
            positive("clip_norm", self.clip_norm)
        require(0 <= self.momentum < 1, f"--momentum {self.momentum}: must be in [0, 1)")
        require(
            0 <= self.weight_decay < math.inf,
            f"--weight-decay {self.weight_decay}: must be finite and >= 0",
        )
        require(
            all(0 <= beta < 1 for beta in self.adam_betas),
            f"--adam-betas {self.adam_betas}: both must be in [0, 1)",
        )
        require(
            not self.nesterov or (self.optimizer != "adam" and self.momentum > 0),
            "--nesterov needs --optimizer sgd or lars, and --momentum above 0",
        )
        require(
            all(0 < share <= 1 for share in self.decay_at),
            f"--decay-at {self.decay_at}: shares of the run, each in (0, 1]",
        )
        require(
            0 <= self.warmup_epochs < self.epochs,
            f"--warmup-epochs {self.warmup_epochs} of --epochs {self.epochs}: "
            "must be at least 0, and less than the run",
        )
        require(
            self.schedule != "step"
            or all(self.warmup_epochs <= share * self.epochs for share in self.decay_at),
            f"--decay-at {self.decay_at} of --epochs {self.epochs}: the rate decays before "
            f"--warmup-epochs {self.warmup_epochs} are over; shorten these, or decay later",
        )
