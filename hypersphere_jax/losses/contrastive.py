"""Contrastive losses over the pairs of a batch."""

import jax
import jax.numpy as jnp

from hypersphere_jax.losses.common import AxisName, features, gather, global_mean, positive


def contrastive_loss(
    x: jax.Array, y: jax.Array, tau: float = 0.5, *, axis_name: AxisName = None
) -> jax.Array:
    r"""The symmetric in-batch contrastive loss, the mean of 2n cross entropies.

    .. math::
        -\frac{1}{2n} \sum_i \left[
          \log \frac{e^{x_i^\top y_i / \tau}}{\sum_j e^{x_i^\top y_j / \tau}} +
          \log \frac{e^{x_i^\top y_i / \tau}}{\sum_j e^{x_j^\top y_i / \tau}} \right]

    (Wang & Isola, B.1, which prints it without the minus sign.) The negatives of `x_i` are the
    other `y_j`, and those of `y_i` the other `x_j`.

    Args:
      x: `[n, d]` features, unit norm in the paper.
      y: `[n, d]` features of the positives, in the order of `x`.
      tau: temperature, > 0.
      axis_name: a mapped axis: the pairs are those of all devices.

    Returns:
      float32 scalar, at least 0; `log n` when all features coincide.

    Raises:
      ValueError: for shapes that differ, no pairs, or tau that is not positive.

    >>> import jax.numpy as jnp
    >>> x = jnp.array([[1.0, 0.0], [-1.0, 0.0]])
    >>> round(float(contrastive_loss(x, x, tau=1.0)), 4)
    0.1269
    """
    positive(tau=tau)
    x, y = features(x, y, names="x, y")
    x, y = gather(x, axis_name), gather(y, axis_name)
    if x.shape[0] == 0:
        raise ValueError(f"contrastive_loss needs at least one pair, got {x.shape}, {y.shape}")
    logits = jnp.matmul(x, y.T, precision=jax.lax.Precision.HIGHEST) / tau
    positives = jnp.diagonal(logits)
    x_anchors = jax.nn.logsumexp(logits, axis=1) - positives
    y_anchors = jax.nn.logsumexp(logits, axis=0) - positives
    return global_mean(jnp.mean(x_anchors + y_anchors) / 2, axis_name)
