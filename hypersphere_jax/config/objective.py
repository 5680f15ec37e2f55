"""What is minimized: the losses and the queue that they look at."""

import math
from typing import Literal

from hypersphere_jax.config.base import config, given, positive, require


@config
class ObjectiveConfig:
    """The loss: a weighted sum, as in Tables 8 and 9 of Wang & Isola."""

    contrastive_weight: float = 0.0
    """Weight of the contrastive loss (B.1: symmetric, in the batch)."""
    contrastive_tau: float = 0.5
    """Its temperature."""
    align_weight: float = 1.0
    """Weight of the alignment loss."""
    align_alpha: float = 2.0
    """Power of the distance in the alignment loss (and in the logged `align`)."""
    uniform_weight: float = 1.0
    """Weight of the uniformity loss."""
    uniform_t: float = 2.0
    """Scale t of the Gaussian potential in the uniformity loss (and in the logged `uniform`)."""
    uniform_intra_batch: bool = True
    """With a queue: whether pairs inside the batch count in the uniformity, too."""
    supervised_weight: float = 0.0
    """Weight of the cross entropy of a linear classifier, trained along."""

    def __post_init__(self):
        weights = (
            self.contrastive_weight,
            self.align_weight,
            self.uniform_weight,
            self.supervised_weight,
        )
        require(
            all(math.isfinite(w) and w >= 0 for w in weights) and any(w > 0 for w in weights),
            f"the loss weights are {weights}: all must be finite and >= 0, and one of them > 0",
        )
        for flag in ("contrastive_tau", "align_alpha", "uniform_t"):
            value = getattr(self, flag)
            positive(flag, value)


@config
class MocoConfig:
    """Momentum Contrast: keys by a slowly moving encoder, kept in a queue."""

    queue_size: int = 0
    """Keys in the queue; 0: no queue and no momentum encoder. With a queue, contrastive weighs
    InfoNCE, and uniformity is that of the queries and the queue."""
    ema_decay: float = 0.999
    """Decay of the momentum encoder's parameters."""
    ema_schedule: Literal["constant", "cosine"] = "constant"
    """`cosine`: the decay goes to 1 over the run."""
    ema_stats: Literal["own", "averaged"] = "own"
    """Running statistics of the momentum encoder's batch norm: those of the keys, as in MoCo's
    code, or averaged like the parameters."""

    def __post_init__(self):
        require(self.queue_size >= 0, f"--queue-size {self.queue_size}: must be at least 0")
        require(0 <= self.ema_decay <= 1, f"--ema-decay {self.ema_decay}: must be in [0, 1]")
        for flag in given(self):
            require(self.queue_size > 0, f"{flag} needs --queue-size above 0")
