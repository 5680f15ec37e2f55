"""The optimizer and its schedule."""

from typing import Literal

from hypersphere_jax.config.base import check_range, config, require


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
    """Its growth with the batch: times `batch_size / 256`, times the square root of that (SimCLR's
    0.075 sqrt(batch size) is 1.2 for 256 pairs), or none."""
    schedule: Literal["step", "cosine"] = "step"
    """`step`: times `decay_factor` at each of `decay_at`; `cosine`: to zero over the run."""
    decay_at: tuple[float, ...] = (0.775, 0.85, 0.925)
    """Shares of the run after which the rate decays: epochs 155, 170, 185 of 200. Empty: never."""
    decay_factor: float = 0.1
    """Factor of each decay."""
    warmup_epochs: float = 0.0
    """Epochs in which the rate first rises linearly from 0; the cosine begins after them."""
    momentum: float = 0.9
    """Momentum of SGD and LARS."""
    nesterov: bool = False
    """Nesterov's form of that momentum."""
    weight_decay: float = 1e-4
    """L2 decay; enters the gradient right after clipping, as in PyTorch's optimizers."""
    exclude_norm_and_bias: bool = False
    """No weight decay of biases and normalization. LARS never decays or adapts them."""
    clip_norm: float | None = None
    """Largest global norm of the gradient; a larger one is scaled down to it."""
    lars_trust: float = 0.001
    """Trust coefficient of LARS (eta)."""
    adam_betas: tuple[float, float] = (0.9, 0.999)
    """Decay of Adam's first and second moments."""
    adam_eps: float = 1e-8
    """Added to the denominator in Adam."""

    def __post_init__(self):
        check_range(self, "[1, inf)", "epochs")
        check_range(self, "[2, inf)", "batch_size")
        check_range(self, "[0, inf)", "learning_rate", "weight_decay")
        check_range(self, "(0, inf)", "decay_factor", "clip_norm", "lars_trust", "adam_eps")
        check_range(self, "[0, 1)", "momentum", "adam_betas")
        check_range(self, "(0, 1]", "decay_at")
        check_range(self, f"[0, {self.epochs})", "warmup_epochs")
        require(
            not self.nesterov or (self.optimizer != "adam" and self.momentum > 0),
            "--nesterov needs --optimizer sgd or lars, and --momentum above 0",
        )
        require(
            self.schedule != "step"
            or all(self.warmup_epochs <= share * self.epochs for share in self.decay_at),
            f"--decay-at {self.decay_at} of --epochs {self.epochs}: the rate decays before "
            f"--warmup-epochs {self.warmup_epochs} are over; shorten these, or decay later",
        )
