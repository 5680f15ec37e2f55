"""What is minimized: the losses and the queue that they look at."""

import math
from typing import Literal

from hypersphere_jax.config.base import config, given, positive, require

# The settings that each loss takes, besides the supervised term and the logged metrics.
SETTINGS = {
    "weighted": ("contrastive_weight", "contrastive_tau", "align_weight", "uniform_weight"),
    "nt_xent": ("loss_tau", "similarity"),
    "decoupled_nt_xent": ("loss_tau", "loss_lam", "align_scaling"),
    "generalized_contrastive": ("loss_lam", "prior", "align_scaling"),
    "dcl": ("loss_tau",),
    "balanced_contrastive": ("loss_alpha", "loss_lam"),
    "generalized_nt_xent": ("loss_alpha", "loss_lam"),
    "logsumexp": ("loss_tau",),
    "prior_matching": ("prior",),
}


@config
class ObjectiveConfig:
    """The loss: a weighted sum, as in Tables 8 and 9 of Wang & Isola, or one of other papers."""

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
    loss: Literal[
        "weighted",
        "nt_xent",
        "decoupled_nt_xent",
        "generalized_contrastive",
        "dcl",
        "balanced_contrastive",
        "generalized_nt_xent",
        "logsumexp",
        "prior_matching",
    ] = "weighted"
    """`weighted`: the sum of the weighted losses above. Else this one takes the place of
    contrastive, alignment and uniformity: NT-Xent (SimCLR); the decoupled NT-Xent or the
    generalized contrastive loss (Chen, Luo & Li); DCL, the balanced contrastive loss or the
    generalized NT-Xent (the balanced paper); or what spreads each view's features alone, without
    alignment, by LogSumExp or to a prior (Chen, Luo & Li, Section C)."""
    loss_tau: float | None = None
    """Temperature of `nt_xent`, `dcl`, `logsumexp` (None: 0.5), `decoupled_nt_xent` (None: 1)."""
    loss_alpha: float | None = None
    """Inverse temperature of `balanced_contrastive` (None: 4) and `generalized_nt_xent` (None:
    2)."""
    loss_lam: float | None = None
    """Weight of what spreads the features in `decoupled_nt_xent` (None: 0.1),
    `generalized_contrastive` (None: 5), `balanced_contrastive` and `generalized_nt_xent` (None:
    2)."""
    similarity: Literal["cosine", "dot", "neg_euclidean"] | None = None
    """Of `nt_xent`; None: `cosine`. `dot` and `neg_euclidean` (minus the squared distance) are of
    the features before they are normalized."""
    prior: Literal["hypersphere", "normal", "hypercube"] | None = None
    """Distribution that `generalized_contrastive` and `prior_matching` match the features to; None:
    `hypersphere`. For the others they are not normalized."""
    align_scaling: Literal["per_sample", "per_dimension"] | None = None
    """Alignment in `decoupled_nt_xent` (None: `per_sample`, its Eq. (5)) and
    `generalized_contrastive` (None: `per_dimension`): over samples alone, or over the dimensions
    too, as in the paper's tables, whose lam is d times smaller for it."""
    loss_factor: float = 1.0
    """Factor of the whole loss, of any but `weighted`. (Chen, Luo & Li: 1000 where alignment is
    over the dimensions too and the features are normalized.)"""

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
        for flag in ("contrastive_tau", "align_alpha", "uniform_t", "loss_factor"):
            value = getattr(self, flag)
            positive(flag, value)
        for flag in ("loss_tau", "loss_alpha"):
            value = getattr(self, flag)
            if value is not None:
                positive(flag, value)
        require(
            self.loss_lam is None or 0 <= self.loss_lam < math.inf,
            f"--loss-lam {self.loss_lam}: must be finite and >= 0",
        )
        self._check_settings()

    def _check_settings(self):
        require(
            self.loss != "weighted" or self.loss_factor == 1,
            "--loss-factor is for the other losses: `weighted` has a weight of each term",
        )
        for field in sorted({field for fields in SETTINGS.values() for field in fields}):
            flag = f"--{field.replace('_', '-')}"
            takers = [loss for loss, fields in SETTINGS.items() if field in fields]
            require(
                self.loss in takers or flag not in given(self),
                f"{flag} is for --loss {' or '.join(takers)}, not {self.loss}",
            )


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
