"""Alignment and uniformity of a whole split (Wang & Isola, Section 4.1)."""

import numpy as np

from hypersphere_jax.losses import align_loss, uniform_loss
from hypersphere_jax.theory import uniformity_optimum


def summary(
    x: np.ndarray, pairs: tuple[np.ndarray, np.ndarray], alpha: float = 2.0, t: float = 2.0
) -> dict[str, float]:
    """Both metrics, with the optimum of uniformity for this dimension and t.

    Args:
      x: `[n, d]` unit features of the images as they are, for uniformity.
      pairs: unit features `[n, d]` of two random views of each image, for alignment.
      alpha: power of the distance.
      t: scale of the potential.
    """
    n, d = x.shape
    return {
        "align": float(align_loss(*pairs, alpha)),
        "align_alpha": alpha,
        "uniform": float(uniform_loss(x, t)),
        "uniform_t": t,
        "uniform_optimum": uniformity_optimum(d, t),
        "d": d,
        "n": n,
    }
