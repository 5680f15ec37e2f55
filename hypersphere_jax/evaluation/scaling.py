"""Standardization of features `[n, d]`, computed in blocks of rows."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hypersphere_jax.evaluation.checks import as_float32, row_blocks

SCALING_ENTRIES = 2**21  # numbers in a block of rows in float64


class FeatureScaling(NamedTuple):
    """Standardized features are `(x - centre) / scale`."""

    centre: np.ndarray  # float32 [d]
    scale: float | np.ndarray  # one number, or [d]

    @property
    def penalty_factor(self) -> float:
        """Factor of l2 for the same penalty on other features.

        These are the original features, or features of variance 1 with a scale per dimension.
        """
        if np.ndim(self.scale):
            return float(np.size(self.scale))
        return float(self.scale**2)

    def apply(self, x: Any) -> jax.Array:
        """Return standardized rows of any real dtype, float32 `[n, d]`."""
        scale = np.broadcast_to(np.float32(self.scale), self.centre.shape)
        return _standardize(jnp.asarray(x, jnp.float32), self.centre, scale)


def fit_scaling(x: Any, standardize: bool) -> FeatureScaling:
    """Return the scaling of features `[n, d]`, from float64 sums on the host."""
    n, d = x.shape
    blocks = row_blocks(n, d, SCALING_ENTRIES)
    # Sums of equal float32 numbers are exact in float64, so constant dimensions have variance 0.
    centre = sum(as_float32(x[rows]).sum(axis=0, dtype=np.float64) for rows in blocks) / n
    variances = np.zeros(d)
    for rows in blocks:
        deviations = as_float32(x[rows]) - centre
        variances += np.einsum("nd,nd->d", deviations, deviations) / n
    if standardize:
        return FeatureScaling(
            np.float32(centre), np.sqrt(d * np.where(variances > 0, variances, 1 / d))
        )
    return FeatureScaling(np.float32(centre), math.sqrt(variances.sum()) or 1.0)


@jax.jit
def _standardize(x: jax.Array, centre: jax.Array, scale: jax.Array) -> jax.Array:
    return (x - centre[None]) / scale[None]
