"""Losses on the unit hypersphere: pure functions of features, global over devices.

A loss takes features `[n, d]` first and options after them. It computes in float32, for float64
features in float64, and returns a scalar. Features that are not finite give a loss that is not
finite. These options are shared:

- `mask`: bool `[n]`, False for rows to ignore, whatever they contain. Masked rows count nowhere.
- `weights`: `[n]`, zero or positive; means over pairs or points become weighted means.
- `axis_name`: mapped axis, in `pmap` and `shard_map`: the rows of all devices act as one batch.
- `mesh_axis`: for global arrays, the axis of the mesh that they are sharded along. It is only
  needed where their types do not show it (`Auto` axes).
- `block_size`: points in a block, at most; memory grows with `n d + block_size^2`. Defaults to
  1,024 to 8,192, by loss and backend.
- `precision`: "highest", "high" or "default", the precision of matrix products, see
  docs/losses.md.
- `ring`: pass the points of the devices along a ring instead of gathering them on each device.

Shapes that do not fit, too few points, and numbers out of range raise ValueError.
"""

from hypersphere_jax.losses.alignment_uniformity import align_loss, uniform_loss, uniform_queue_loss
from hypersphere_jax.losses.contrastive import contrastive_loss, dcl_loss, info_nce_loss
from hypersphere_jax.losses.jepa import lejepa_loss, visreg_loss
from hypersphere_jax.losses.normalize import l2_normalize
from hypersphere_jax.losses.nt_xent import (
    balanced_contrastive_loss,
    decoupled_nt_xent_loss,
    generalized_nt_xent_loss,
    logsumexp_loss,
    nt_xent_loss,
)
from hypersphere_jax.losses.quick_thought import (
    quick_thought_align_loss,
    quick_thought_contrastive_loss,
    quick_thought_uniform_loss,
)
from hypersphere_jax.losses.sliced_wasserstein import (
    generalized_contrastive_loss,
    prior_matching_loss,
    sliced_wasserstein_loss,
)
from hypersphere_jax.losses.supervised import supervised_contrastive_loss

__all__ = [
    "align_loss",
    "balanced_contrastive_loss",
    "contrastive_loss",
    "dcl_loss",
    "decoupled_nt_xent_loss",
    "generalized_contrastive_loss",
    "generalized_nt_xent_loss",
    "info_nce_loss",
    "l2_normalize",
    "lejepa_loss",
    "logsumexp_loss",
    "nt_xent_loss",
    "prior_matching_loss",
    "quick_thought_align_loss",
    "quick_thought_contrastive_loss",
    "quick_thought_uniform_loss",
    "sliced_wasserstein_loss",
    "supervised_contrastive_loss",
    "uniform_loss",
    "uniform_queue_loss",
    "visreg_loss",
]
