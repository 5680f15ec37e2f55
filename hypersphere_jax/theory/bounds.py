"""Bounds of the balanced paper: attracting and repelling components, prototype bias.

The expectations in the bounds are means over the given views and images. The theorems are true for
this empirical distribution exactly.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hypersphere_jax.losses import align_loss
from hypersphere_jax.losses._pairwise.validation import check_positive
from hypersphere_jax.theory.optima import checked_points

# GPUs round features to 10 bits by default.
PRECISION = lax.Precision.HIGHEST


class AttractingBound(NamedTuple):
    """Both sides of Theorem 4.4, `[n]` each, and whether Assumption 4.3 is true, bool `[n]`."""

    left: jax.Array
    right: jax.Array
    assumed: jax.Array


class RepellingBound(NamedTuple):
    """Both sides of Theorem 4.6, the right side times nu (`bracket`), and nu: `[n]` each."""

    left: jax.Array
    right: jax.Array
    bracket: jax.Array
    nu: jax.Array


def prototype_bias(x: jax.Array, same_class: jax.Array) -> jax.Array:
    r"""Return the mean distance between features of images of the same class.

    .. math:: \frac{1}{n} \sum_i \|f(t_i(x'_i)) - f(t_i(x_i))\|_2

    Source: balanced paper, Eq. (51), an estimate of Eq. (16) with one draw of the augmentation and
    the other image for each image. Its expectation is above Eq. (16).

    Args:
      x: `[n, d]` features of one augmentation of each image.
      same_class: `[n, d]` features of another random image of the same class, with the augmentation
        of the same row of `x`.

    Returns:
      float32 scalar.

    Raises:
      ValueError: for shapes that differ, or no rows.

    >>> import jax.numpy as jnp
    >>> x, same_class = jnp.array([[3.0, 0.0], [0.0, 1.0]]), jnp.array([[0.0, 4.0], [0.0, 1.0]])
    >>> float(prototype_bias(x, same_class))
    2.5
    """
    x, same_class = checked_points(x, same_class, names="x, same_class")
    return align_loss(x, same_class, alpha=1.0)


def attracting_bound(anchors: jax.Array, views: jax.Array) -> AttractingBound:
    r"""Return both sides of the bound of the attracting component for each anchor.

    .. math:: -s(f(t(x)), E_T f(T(x))) \le -E_T s(f(t(x)), f(T(x)))

    Source: balanced paper, Theorem 4.4, Eq. (8); s is the cosine, E_T the mean over the views. With
    the mean m of the views, the sides are -f.m / |m| and -f.m. The bound is true where f.m >= 0
    (Assumption 4.3) or where all views coincide, and false elsewhere.

    Args:
      anchors: `[n, d]` features f(t(x)) of a view of each image, unit norm.
      views: `[v, n, d]` features f(T(x)) of v views of the same images, unit norm.

    Returns:
      The sides, float32, and whether Assumption 4.3 is true. The left side is NaN where the views
      of an image cancel and the cosine with their mean is undefined.

    Raises:
      ValueError: for shapes that do not fit, no anchors, or no views.

    >>> import jax.numpy as jnp
    >>> anchors = jnp.array([[1.0, 0.0]])
    >>> bound = attracting_bound(anchors, jnp.array([[[0.6, 0.8]], [[0.6, -0.8]]]))
    >>> round(float(bound.left[0]), 4), round(float(bound.right[0]), 4), bool(bound.assumed[0])
    (-1.0, -0.6, True)
    """
    anchors, views = _anchors_and_views(anchors, views)
    if views.shape[1] != anchors.shape[0]:
        raise ValueError(
            f"views must be of the images of the anchors, [v, {anchors.shape[0]}, d], "
            f"got {views.shape}"
        )
    mean = jnp.mean(views, axis=0)
    along = jnp.sum(anchors * mean, axis=-1)
    return AttractingBound(-along / jnp.linalg.norm(mean, axis=-1), -along, along >= 0)


def repelling_bound(
    anchors: jax.Array,
    labels: jax.Array,
    views: jax.Array,
    view_labels: jax.Array,
    alpha: float,
    classes: int,
) -> RepellingBound:
    r"""Return both sides of the bound of the repelling component for each anchor.

    .. math::
        \max_{y' \ne y} s(f(t(x)), E_{T', X'|y'} f(T'(X'))) \le
        \frac{1}{\nu} \Big( \frac{1}{\alpha} E_{T'} \log E_{X'} e^{\alpha s(f(t(x)), f(T'(X')))}
        + \frac{\log n}{\alpha} \Big), \quad
        \nu = \min_{y' \ne y} \| E_{T', X'|y'} f(T'(X')) \|

    Source: balanced paper, Theorem 4.6, Eq. (10); n is the number of classes. T' is "view j of each
    image" with uniform j, and X' is a random image: E_T' is the mean over j outside the logarithm.

    The proof needs a condition that the paper does not state: the bracket (the right side times nu)
    must not be negative. Step (iv), Eq. (38), divides a maximum that may be negative by nu <= 1 and
    takes the result to be larger. With three or more classes the bound can be false (see
    `tests/test_theory.py`). The left side is always at most the larger of bracket and bracket / nu.
    The bound is true for all anchors if alpha <= log(n), and for each anchor that has an angle of
    at most 90 degrees to the mean of some class.

    Args:
      anchors: `[n, d]` features f(t(x)), unit norm.
      labels: integers `[n]`, the classes of the anchors, starting at 0.
      views: `[v, m, d]` features of v views of each of m images, unit norm.
      view_labels: integers `[m]`, the classes of the images, in equal numbers (Assumption 4.5).
      alpha: scale of the log-mean-exp, > 0.
      classes: number of classes, >= 2.

    Returns:
      The sides, the bracket and nu, float32. The left side is NaN where the features of a class
      cancel and the cosine with their mean is undefined.

    Raises:
      ValueError: for shapes that do not fit, fewer than two classes, alpha that is not positive,
        labels out of range, or classes of different sizes. Traced labels are not checked.

    >>> import jax.numpy as jnp
    >>> points, classes = jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.array([0, 1])
    >>> bound = repelling_bound(points, classes, points[None], classes, alpha=1.0, classes=2)
    >>> round(float(bound.left[0]), 4), round(float(bound.right[0]), 4)  # log(e + 1)
    (0.0, 1.3133)
    """
    anchors, views = _anchors_and_views(anchors, views)
    alpha = check_positive("alpha", alpha, anchors.dtype)
    if classes < 2:
        raise ValueError(f"repelling_bound needs at least two classes, got classes={classes}")
    labels = _labels("labels", labels, anchors.shape[0], classes)
    view_labels = _labels("view_labels", view_labels, views.shape[1], classes, even=True)
    images = views.shape[1]
    members = (view_labels[None, :] == jnp.arange(classes)[:, None]).astype(jnp.float32)
    mean_views = jnp.mean(views, axis=0)
    means = jnp.matmul(members, mean_views, precision=PRECISION) * (classes / images)
    norms = jnp.linalg.norm(means, axis=-1)[None, :]
    others = labels[:, None] != jnp.arange(classes)[None, :]
    cosines = jnp.matmul(anchors, means.T, precision=PRECISION) / norms
    left = jnp.max(jnp.where(others, cosines, -jnp.inf), axis=1)
    nu = jnp.min(jnp.where(others, norms, jnp.inf), axis=1)

    def log_sum(view: jax.Array) -> jax.Array:
        similarities = jnp.matmul(anchors, view.T, precision=PRECISION)
        return jax.nn.logsumexp(alpha * similarities, axis=1)

    # One view at a time needs memory for n times m similarities.
    mean_log_sums = jnp.mean(lax.map(log_sum, views), axis=0)
    bracket = (mean_log_sums - np.log(images / classes)) / alpha
    return RepellingBound(left, bracket / nu, bracket, nu)


def _anchors_and_views(anchors: jax.Array, views: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return `[n, d]` and `[v, m, d]` as float32; raise ValueError for empty arrays."""
    if jnp.ndim(views) != 3 or 0 in jnp.shape(views):
        raise ValueError(f"views must be [v, m, d], none of these 0, got {jnp.shape(views)}")
    anchors, *views = checked_points(anchors, *views, names="anchors, each of views", same_n=False)
    return anchors, jnp.stack(views)


def _labels(name: str, labels: jax.Array, n: int, classes: int, even: bool = False) -> jax.Array:
    """Return labels `[n]`, checked unless traced; with `even`, classes must have equal sizes."""
    if jnp.shape(labels) != (n,):
        raise ValueError(f"{name} must be [{n}], got shape {jnp.shape(labels)}")
    if not isinstance(labels, jax.core.Tracer):
        known = np.asarray(labels)
        integers = np.issubdtype(known.dtype, np.integer)
        if not integers or known.min() < 0 or known.max() >= classes:
            raise ValueError(f"{name} must be integers from 0 to {classes - 1}, got {labels}")
        if even and len(set(np.bincount(known, minlength=classes))) > 1:
            raise ValueError(f"{name} must have equally many of each class (Assumption 4.5)")
    return jnp.asarray(labels)
