"""What is minimized: the losses and the queue that they look at."""

from typing import Annotated, Any, Literal

from tyro.conf import Suppress

from hypersphere_jax.config.base import changed, config, hold_custom, refuse, require
from hypersphere_jax.config.values import NotNegative, Positive, Within

# The terms of the loss "weighted".
WEIGHTS = ("contrastive_weight", "align_weight", "uniform_weight", "supervised_weight")
# The settings of each loss, besides the supervised term and the logged metrics.
SETTINGS = {
    "weighted": (*WEIGHTS[:3], "contrastive_tau"),
    "nt_xent": ("loss_tau", "similarity"),
    "decoupled_nt_xent": ("loss_tau", "loss_lam", "align_scaling", "self_similarity"),
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

    contrastive_weight: NotNegative = 0.0
    """Weight of the contrastive loss (B.1: symmetric, in the batch)."""
    contrastive_tau: Positive = 0.5
    """Its temperature."""
    align_weight: NotNegative = 1.0
    """Weight of the alignment loss."""
    align_alpha: Positive = 2.0
    """Power of the distance in the alignment loss (and in the logged `align`)."""
    uniform_weight: NotNegative = 1.0
    """Weight of the uniformity loss."""
    uniform_t: Positive = 2.0
    """Scale t of the Gaussian potential in the uniformity loss (and in the logged `uniform`)."""
    uniform_intra_batch: bool = True
    """With a queue: whether pairs inside the batch count in the uniformity, too."""
    supervised_weight: NotNegative = 0.0
    """Weight of the cross entropy of a linear classifier, trained along."""
    loss: Literal[*SETTINGS] = "weighted"  # type: ignore[valid-type]  # it wants literals
    """`weighted`: the sum of the weighted losses above. Else this one replaces contrastive,
    alignment and uniformity: NT-Xent (SimCLR); the decoupled NT-Xent or the generalized contrastive
    loss (Chen, Luo & Li); DCL, the balanced contrastive loss or the generalized NT-Xent (the
    balanced paper); or, without alignment, LogSumExp or a prior (Chen, Luo & Li, Section C)."""
    loss_tau: Positive | None = None
    """Temperature of `nt_xent`, `dcl`, `logsumexp` (None: 0.5), `decoupled_nt_xent` (None: 1)."""
    loss_alpha: Positive | None = None
    """Inverse temperature of `balanced_contrastive` (None: 4), `generalized_nt_xent` (None: 2)."""
    loss_lam: NotNegative | None = None
    """Weight of the uniformity term in `decoupled_nt_xent` (None: 0.1), `generalized_contrastive`
    (None: 5), `balanced_contrastive` and `generalized_nt_xent` (None: 2)."""
    similarity: Literal["cosine", "dot", "neg_euclidean"] | None = None
    """Of `nt_xent`; None: `cosine`. `dot` and `neg_euclidean` (minus the squared distance) see
    unnormalized features."""
    prior: Literal["hypersphere", "normal", "hypercube"] | None = None
    """Prior of the features in `generalized_contrastive` and `prior_matching`; None: `hypersphere`.
    For the others they are not normalized."""
    align_scaling: Literal["per_sample", "per_dimension"] | None = None
    """Mean of alignment in `decoupled_nt_xent` (None: `per_sample`, its Eq. (5)) and
    `generalized_contrastive` (None: `per_dimension`): over samples, or over dimensions too, as in
    the paper's tables, whose lam is d times smaller for it."""
    self_similarity: bool = False
    """In `decoupled_nt_xent`: keep a view's similarity with itself among those that repel, as the
    notebook of Chen, Luo & Li."""
    loss_factor: Positive = 1.0
    """Factor of the whole loss, of any but `weighted`. (Chen, Luo & Li: 1000 where alignment is
    over the dimensions too and the features are normalized.)"""

    function: Annotated[Any, Suppress] = None
    """A loss of one's own, in place of the weighted sum; from Python only."""

    def __post_init__(self):
        hold_custom(self, "function")
        if self.function is not None:
            names = set(changed(self)) - {"function", "align_alpha", "uniform_t"}
            what = ", ".join(sorted(names))
            require(not names, f"{what}: for this package's losses, and loss= is your own")
        require(
            any(getattr(self, name) for name in WEIGHTS),
            "all weights of the loss are 0: at least one must be above",
        )
        if self.loss == "weighted":
            reason = "is for the other losses: `weighted` has a weight of each term"
            refuse(self, ["loss_factor"], reason)
        for name in changed(self):
            takers = [loss for loss, names in SETTINGS.items() if name in names]
            require(
                not takers or self.loss in takers,
                f"{name}= is for loss={' or '.join(takers)}, not {self.loss}",
            )


@config
class MocoConfig:
    """Momentum Contrast: keys by a slowly moving encoder, kept in a queue."""

    queue_size: int = 0
    """Keys in the queue; 0: no queue and no momentum encoder. With a queue the contrastive loss is
    InfoNCE, and uniformity is of the queries and the queue."""
    ema_decay: Annotated[float, Within("[0, 1]")] = 0.999
    """Decay of the momentum encoder's parameters."""
    ema_schedule: Literal["constant", "cosine"] = "constant"
    """`cosine`: the decay goes to 1 over the run."""
    ema_stats: Literal["own", "averaged"] = "own"
    """Running statistics of the momentum encoder's batch norm: of the keys, or averaged."""

    def __post_init__(self):
        if self.queue_size == 0:
            refuse(self, changed(self), "needs queue_size= above 0")
