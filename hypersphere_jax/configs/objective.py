"""Losses, and the queue of Momentum Contrast."""

import contextlib
import inspect
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from tyro.conf import Suppress, arg

from hypersphere_jax.configs.base import Auto, Config, changed, check_range, refuse, require

# The terms of the loss "weighted".
WEIGHTS = ("contrastive_weight", "align_weight", "uniform_weight", "supervised_weight")
# The options of each loss, besides the supervised term and the logged metrics.
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
    "lejepa": ("loss_lam",),
    "visreg": ("loss_lam",),
    "supervised_contrastive": ("loss_tau",),
}
ChenLoss = Literal["decoupled_nt_xent", "generalized_contrastive", "logsumexp", "prior_matching"]
BalancedLoss = Literal["dcl", "balanced_contrastive", "generalized_nt_xent"]
Loss = Literal[
    "weighted", "nt_xent", ChenLoss, BalancedLoss, "lejepa", "visreg", "supervised_contrastive"
]
# Losses whose temperature can be learned. The others decrease as it goes to 0 or infinity.
LEARNABLE_TEMPERATURE = ("nt_xent", "dcl", "supervised_contrastive")
MIN_TAU = 0.01  # of a learned temperature, as in CLIP
MAX_TAU = 1.0


@dataclass(frozen=True)
class ObjectiveConfig(Config):
    """Loss."""

    contrastive_weight: float = 0.0
    """Weight of the contrastive loss (Wang & Isola B.1: symmetric, within the batch)."""
    contrastive_tau: Annotated[float, arg(aliases=["--temperature"])] = 0.5
    """Temperature of the contrastive loss."""
    align_weight: float = 1.0
    """Weight of the alignment loss."""
    align_alpha: float = 2.0
    """Power of the distance in the alignment loss, and in the logged `align`."""
    uniform_weight: float = 1.0
    """Weight of the uniformity loss."""
    uniform_t: float = 2.0
    """Scale t of the Gaussian potential in the uniformity loss, and in the logged `uniform`."""
    uniform_intra_batch: bool = True
    """With a queue: count pairs within the batch in the uniformity loss as well."""
    supervised_weight: float = 0.0
    """Weight of the cross-entropy of a linear classifier that is trained along."""
    loss: Loss = "weighted"
    """`weighted`: the sum of the weighted losses above. Another loss replaces contrastive,
    alignment and uniformity: NT-Xent (SimCLR); decoupled NT-Xent, generalized contrastive loss,
    LogSumExp or a prior (Chen et al.); DCL, balanced contrastive loss or generalized
    NT-Xent (balanced paper); LeJEPA; VISReg; or the supervised contrastive loss."""
    loss_tau: Auto[float] = None
    """Temperature: 0.5 by default, 1 for `decoupled_nt_xent`, 0.1 for `supervised_contrastive`."""
    loss_alpha: Auto[float] = None
    """Inverse temperature of `balanced_contrastive` (default 4), `generalized_nt_xent` (2)."""
    loss_lam: Auto[float] = None
    """Weight of the uniformity term
    of `decoupled_nt_xent` (default 0.1), `generalized_contrastive` (5), `balanced_contrastive`
    and `generalized_nt_xent` (2); or, at most 1, of the distribution term of `lejepa` (0.02)
    and `visreg` (0.9)."""
    learn_tau: bool = False
    """Learn the temperature of `contrastive_weight`, `nt_xent`, `dcl` or `supervised_contrastive`,
    in log space, between 0.01 and 1 and without weight decay. It is logged as `tau`."""
    similarity: Auto[Literal["cosine", "dot", "neg_euclidean"]] = None
    """Similarity of `nt_xent` (default `cosine`); the others use unnormalized features."""
    prior: Auto[Literal["hypersphere", "normal", "hypercube"]] = None
    """Prior (default `hypersphere`). The others use unnormalized features."""
    align_scaling: Auto[Literal["per_sample", "per_dimension"]] = None
    """Mean of the alignment term over samples (default of `decoupled_nt_xent`, Eq. (5)), or over
    dimensions as well (default of `generalized_contrastive`, as in the paper's tables)."""
    self_similarity: bool = False
    """Keep a view's similarity with itself in `decoupled_nt_xent`, as the authors' notebook."""
    loss_factor: float = 1.0
    """Factor of the whole loss, except `weighted` (Chen et al.: 1000 with `per_dimension`)."""
    function: Annotated[Any, Suppress] = None
    """A custom loss instead of the weighted sum; from Python only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, *WEIGHTS, "loss_lam", at_least=0)
        check_range(self, "contrastive_tau", "align_alpha", "uniform_t", above=0)
        check_range(self, "loss_tau", "loss_alpha", "loss_factor", above=0)
        if self.function is not None:
            own = {"function", "align_alpha", "uniform_t"}
            names = [name for name in changed(self, ObjectiveConfig) if name not in own]
            refuse(self, names, "is for the losses of this package, and loss= is a custom one")
        has_weight = any(getattr(self, name) for name in WEIGHTS)
        require(has_weight, "all weights of the loss are 0: at least one must be above 0")
        if self.loss in ("lejepa", "visreg"):
            check_range(self, "loss_lam", at_most=1)
        if self.learn_tau:
            option = self.temperature_option or ""
            losses = " or ".join(LEARNABLE_TEMPERATURE)
            require(option != "", f"learn_tau= needs contrastive_weight= above 0, or loss={losses}")
            check_range(self, option, at_least=MIN_TAU, at_most=MAX_TAU)
        if self.loss == "weighted":
            refuse(self, ["loss_factor"], "is for the other losses; `weighted` has weights")
        for name in changed(self, ObjectiveConfig):
            users = [loss for loss, names in SETTINGS.items() if name in names]
            is_used = not users or self.loss in users
            require(is_used, f"{name}= is for loss={' or '.join(users)}, not {self.loss}")

    @property
    def temperature_option(self) -> str | None:
        """Name of the option whose temperature can be learned, if the loss has one."""
        if self.loss == "weighted" and self.contrastive_weight:
            return "contrastive_tau"
        return "loss_tau" if self.loss in LEARNABLE_TEMPERATURE else None

    @property
    def uses_labels(self) -> bool:
        """Whether the loss takes the labels of the training images."""
        if self.function is not None:
            return self.loss_arguments == [4]
        return self.supervised_weight > 0 or self.loss == "supervised_contrastive"

    @property
    def loss_arguments(self) -> list[int]:
        """Numbers of positional arguments that a custom loss takes: 2, 3 (a queue), 4 (labels)."""
        signature = inspect.signature(self.function.value)
        options = {"axis_name": None} if "axis_name" in signature.parameters else {}
        counts = []
        for count in (2, 3, 4):
            with contextlib.suppress(TypeError):
                signature.bind(*[None] * count, **options)
                counts.append(count)
        return counts


@dataclass(frozen=True)
class MocoConfig(Config):
    """Momentum Contrast."""

    queue_size: int = 0
    """Keys in the queue. 0: no queue and no momentum encoder. With a queue the contrastive loss is
    InfoNCE, and uniformity is between the queries and the queue."""
    ema_decay: float = 0.999
    """Decay of the momentum encoder's parameters."""
    ema_schedule: Literal["constant", "cosine"] = "constant"
    """`cosine`: the decay rises to 1 over the run."""
    ema_stats: Literal["own", "averaged"] = "own"
    """Running batch statistics of the momentum encoder: from its keys, or averaged."""
    moco_symmetric: bool = False
    """Both views are queries, and the keys of both enter the queue, as in MoCo's notebook."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "queue_size", at_least=0)
        check_range(self, "ema_decay", at_least=0, at_most=1)
        if self.queue_size == 0:
            refuse(self, changed(self, MocoConfig), "needs queue_size= above 0")
