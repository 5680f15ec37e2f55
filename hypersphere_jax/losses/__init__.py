"""Losses on the unit hypersphere: pure functions of features, in float32, global over devices."""

from hypersphere_jax.losses.alignment_uniformity import align_loss, uniform_loss
from hypersphere_jax.losses.common import l2_normalize
from hypersphere_jax.losses.contrastive import contrastive_loss

__all__ = ["align_loss", "contrastive_loss", "l2_normalize", "uniform_loss"]
