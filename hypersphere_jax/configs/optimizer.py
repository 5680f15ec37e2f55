"""Optimizer and learning-rate schedule."""

from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import arg

from hypersphere_jax.configs.base import Config, check_range, refuse, require


@dataclass(frozen=True)
class OptimizerConfig(Config):
    """Optimizer and schedule; the defaults are Wang & Isola's (B.1)."""

    epochs: int = 200
    """Passes over the training images."""
    batch_size: Annotated[int, arg(aliases=["--bs"])] = 256
    """Positive pairs in the global batch."""
    microbatch_size: int | None = None
    """Pairs that the network encodes at a time, to save memory. Loss and gradient are exact for the
    whole batch (GradCache); each microbatch has separate batch statistics."""
    optimizer: Literal["sgd", "lars", "adam", "adamw"] = "sgd"
    """SGD with momentum, LARS (SimCLR), Adam, or AdamW (decoupled weight decay, for ViTs)."""
    learning_rate: Annotated[float, arg(aliases=["--lr"])] = 0.12
    """Learning rate for 256 pairs."""
    scaling: Literal["linear", "sqrt", "none"] = "linear"
    """Factor of the learning rate: batch_size / 256, sqrt(batch_size) (as in SimCLR), or none."""
    schedule: Literal["step", "cosine", "cosine_epochs"] = "step"
    """`step`: times `decay_factor` at each of `decay_at`; `cosine`: to zero over the
    run; `cosine_epochs`: the same, constant within an epoch, as in MoCo's code."""
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
    """L2 decay, added to the gradient after clipping; AdamW adds it to Adam's update."""
    weight_decay_end: float | None = None
    """Weight decay at the end of the run, to which it changes by a cosine, as in DINO."""
    exclude_norm_and_bias: bool = False
    """Exclude biases, norms, position embeddings and class tokens, as LARS and AdamW do."""
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
        check_range(self, "epochs", "microbatch_size", at_least=1)
        check_range(self, "batch_size", at_least=2)
        divides = self.batch_size % (self.microbatch_size or 1) == 0
        size = self.microbatch_size
        require(divides, f"microbatch_size={size}: must divide batch_size={self.batch_size}")
        check_range(self, "learning_rate", "weight_decay", "weight_decay_end", at_least=0)
        check_range(self, "warmup_epochs", at_least=0, below=self.epochs)
        check_range(self, "decay_factor", "clip_norm", "lars_trust", "adam_eps", above=0)
        check_range(self, "decay_at", above=0, at_most=1)
        check_range(self, "momentum", "adam_betas", at_least=0, below=1)
        require(
            not self.nesterov or (self.optimizer in ("sgd", "lars") and self.momentum > 0),
            "nesterov= needs optimizer=sgd or lars, and momentum= above 0",
        )
        if self.optimizer != "lars":
            refuse(self, ["lars_trust"], "needs optimizer=lars: leave it out")
        if not self.optimizer.startswith("adam"):
            refuse(
                self,
                ["adam_betas", "adam_eps"],
                "needs optimizer=adam or adamw: leave it at its default",
            )
        if self.schedule != "step" and self.decay_at:
            refuse(self, ["decay_at"], "needs schedule=step: give decay_at= no values")
            refuse(self, ["decay_factor"], "needs schedule=step: leave it out")
        first_decay = min(self.decay_at, default=1) * self.epochs
        is_warm = self.schedule != "step" or self.warmup_epochs <= first_decay
        warmup = f"warmup_epochs={self.warmup_epochs:g} ends after the first decay_at="
        require(is_warm, f"{warmup}: shorten it, or change decay_at=")

    @property
    def microbatches(self) -> int:
        """Number of microbatches in a batch."""
        return self.batch_size // (self.microbatch_size or self.batch_size)
