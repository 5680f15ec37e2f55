"""Optimizer and learning-rate schedule."""

from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import arg

from hypersphere_jax.configs.base import (
    Config,
    check_at_least,
    check_below_one,
    check_positive,
    check_share,
    require,
)


@dataclass(frozen=True)
class OptimizerConfig(Config):
    """Optimizer and schedule; the defaults are Wang & Isola's (B.1)."""

    epochs: int = 200
    """Passes over the training images."""
    batch_size: Annotated[int, arg(aliases=["--bs"])] = 256
    """Positive pairs in the global batch."""
    microbatch_size: int | None = None
    """Pairs that the network encodes at a time, on all devices together, to save memory. Loss and
    gradient are exact for the whole batch (GradCache); each microbatch has separate batch
    statistics; a step needs about a third more operations."""
    optimizer: Literal["sgd", "lars", "adam", "adamw"] = "sgd"
    """`sgd` with momentum, `lars` (You et al., as in SimCLR), `adam`, or `adamw` (decoupled weight
    decay, for ViTs)."""
    learning_rate: Annotated[float, arg(aliases=["--lr"])] = 0.12
    """Learning rate for 256 pairs."""
    scaling: Literal["linear", "sqrt", "none"] = "linear"
    """Scaling of the learning rate with the batch: times `batch_size / 256`, times its square root
    (SimCLR's 0.075 sqrt(batch size) is 1.2 for 256 pairs), or none."""
    schedule: Literal["step", "cosine", "cosine_epochs"] = "step"
    """`step`: times `decay_factor` at each of `decay_at`; `cosine`: to zero over the run;
    `cosine_epochs`: the same, constant within an epoch, as in MoCo's code."""
    decay_at: tuple[float, ...] = (0.775, 0.85, 0.925)
    """Shares of the run after which the rate decays: epochs 155, 170, 185 of 200."""
    decay_factor: float = 0.1
    """Factor of each decay."""
    warmup_epochs: float = 0.0
    """Epochs in which the rate rises linearly from 0; a cosine schedule starts after them."""
    momentum: float = 0.9
    """Momentum of SGD and LARS."""
    nesterov: bool = False
    """Use Nesterov's form of momentum."""
    weight_decay: Annotated[float, arg(aliases=["--wd"])] = 1e-4
    """L2 decay; added to the gradient after clipping, as in PyTorch's optimizers. AdamW adds it to
    Adam's update."""
    weight_decay_end: float | None = None
    """Weight decay at the end of the run, to which it changes by a cosine, as in DINO."""
    exclude_norm_and_bias: bool = False
    """Exclude biases, normalization, position embeddings and class tokens from weight decay. LARS
    and AdamW always do."""
    clip_norm: float | None = None
    """Largest global norm of the gradient; larger gradients are scaled down."""
    lars_trust: float = 0.001
    """Trust coefficient of LARS."""
    adam_betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of Adam's first and second moments."""
    adam_eps: float = 1e-8
    """Epsilon of Adam."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "epochs")
        check_at_least(self, 2, "batch_size")
        check_at_least(self, 1, "microbatch_size")
        require(
            self.microbatch_size is None or self.batch_size % self.microbatch_size == 0,
            f"microbatch_size={self.microbatch_size}: must divide batch_size={self.batch_size}",
        )
        check_at_least(
            self, 0, "learning_rate", "warmup_epochs", "weight_decay", "weight_decay_end"
        )
        check_positive(self, "decay_factor", "clip_norm", "lars_trust", "adam_eps")
        check_share(self, "decay_at")
        check_below_one(self, "momentum", "adam_betas")
        require(
            self.warmup_epochs < self.epochs,
            f"warmup_epochs={self.warmup_epochs:g}: must be below epochs={self.epochs}",
        )
        require(
            not self.nesterov or (self.optimizer in ("sgd", "lars") and self.momentum > 0),
            "nesterov=True needs optimizer=sgd or lars, and momentum= above 0",
        )
        first_decay = min(self.decay_at, default=1) * self.epochs
        require(
            self.schedule != "step" or self.warmup_epochs <= first_decay,
            f"warmup_epochs={self.warmup_epochs:g}: the rate decays at epoch {first_decay:g}, "
            "before the warmup ends; shorten it, or change decay_at=",
        )

    @property
    def microbatches(self) -> int:
        """Number of microbatches in a batch."""
        return self.batch_size // (self.microbatch_size or self.batch_size)
