"""The two upper bounds from which the balanced contrastive loss comes, over features of a sample.

The paper's expectations are taken over the views and the images that are given, so that each
theorem holds of them exactly as it holds of a distribution: nothing here is an estimate of it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hypersphere_jax.losses.common import positive

# GPUs would else round the features to 10 bits, which is more than some of the gaps.
PRECISION = lax.Precision.HIGHEST


class AttractingBound(NamedTuple):
    """Both sides of Theorem 4.4, `[n]` each, and where Assumption 4.3 holds, bool `[n]`."""

    left: jax.Array
    right: jax.Array
    assumed: jax.Array


class RepellingBound(NamedTuple):
    """Both sides of Theorem 4.6, the right one times nu (`bracket`), and nu: `[n]` each."""

    left: jax.Array
    right: jax.Array
    bracket: jax.Array
    nu: jax.Array


def attracting_bound(anchors: jax.Array, views: jax.Array) -> AttractingBound:
    r"""Both sides of the bound of the attracting component, for each anchor.

    .. math:: -s(f(t(x)), E_T f(T(x))) \le -E_T s(f(t(x)), f(T(x)))

    (Balanced paper, Theorem 4.4, Eq. (8); s is the cosine, E_T the mean over the views.) With m the
    mean of the views, the sides are -f.m / |m| and -f.m: the bound holds where f.m >= 0, which is
    Assumption 4.3, or where all views coincide, and nowhere else.

    Args:
      anchors: `[n, d]` features f(t(x)) of a view of each image, unit norm.
      views: `[v, n, d]` features f(T(x)) of v views of the same images, unit norm.

    Returns:
      The sides, float32, and where Assumption 4.3 holds. The left side is NaN where the views of an
      image cancel, as the cosine with their mean is not defined.

    Raises:
      ValueError: for shapes that do not fit, no anchors, or no views.

    >>> import jax.numpy as jnp
    >>> anchors = jnp.array([[1.0, 0.0]])
    >>> bound = attracting_bound(anchors, jnp.array([[[0.6, 0.8]], [[0.6, -0.8]]]))
    >>> round(float(bound.left[0]), 4), round(float(bound.right[0]), 4), bool(bound.assumed[0])
    (-1.0, -0.6, True)
    """
    anchors, views = _features(anchors, views)
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
    r"""Both sides of the bound of the repelling component, for each anchor.

    .. math::
        \max_{y' \ne y} s(f(t(x)), E_{T', X'|y'} f(T'(X'))) \le
        \frac{1}{\nu} \Big( \frac{1}{\alpha} E_{T'} \log E_{X'} e^{\alpha s(f(t(x)), f(T'(X')))}
        + \frac{\log n}{\alpha} \Big), \quad
        \nu = \min_{y' \ne y} \| E_{T', X'|y'} f(T'(X')) \|

    (Balanced paper, Theorem 4.6, Eq. (10); n is the number of classes.) T' is "view number j of
    every image" with j uniform, and X' any of the images, so that E_T' is the mean over j, outside
    the logarithm.

    The theorem is proved only where the bracket, that is the right side times nu, is not negative,
    a condition that the paper does not state: Case 1 of the proof divides a maximum that is not
    positive by nu <= 1 and calls the result larger (step (iv), (38)); it is smaller. With three
    classes or more the bound can fail where an anchor points away from all of them:
    `tests/test_bounds.py` has three classes on the circle. What the proof does show is that the
    left side is at most the larger of bracket and bracket / nu. The bracket is never below the mean
    similarity to any class, the anchor's own included, nor below the mean of all plus log(n) /
    alpha: the bound holds for each anchor that is not at an obtuse angle to the mean of every
    class, and for all anchors where alpha <= log(n).

    Args:
      anchors: `[n, d]` features f(t(x)), unit norm.
      labels: integers `[n]`, the classes of the anchors, from 0.
      views: `[v, m, d]` features of v views of each of m images, unit norm.
      view_labels: integers `[m]`, the classes of the images: as many of each (Assumption 4.5).
      alpha: of the log-mean-exp, > 0.
      classes: their number, >= 2.

    Returns:
      The sides, the bracket and nu, float32. The left side is NaN where the features of a class
      cancel, as the cosine with their mean is not defined.

    Raises:
      ValueError: for shapes that do not fit, fewer than two classes, alpha that is not positive,
        labels that are no classes, or classes of different sizes. Under a transformation the values
        of labels are not known and not checked.

    >>> import jax.numpy as jnp
    >>> points, classes = jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.array([0, 1])
    >>> bound = repelling_bound(points, classes, points[None], classes, alpha=1.0, classes=2)
    >>> round(float(bound.left[0]), 4), round(float(bound.right[0]), 4)  # log(e + 1)
    (0.0, 1.3133)
    """
    alpha = positive("alpha", alpha)
    anchors, views = _features(anchors, views)
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

    def log_sum(view):
        similarities = jnp.matmul(anchors, view.T, precision=PRECISION)
        return jax.nn.logsumexp(alpha * similarities, axis=1)

    # One view at a time: memory is that of n times m similarities, whatever their number.
    of_views = jnp.mean(lax.map(log_sum, views), axis=0)
    bracket = (of_views - np.log(images / classes)) / alpha
    return RepellingBound(left, bracket / nu, bracket, nu)


def _features(anchors: jax.Array, views: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Both as float32, after a check of their shapes."""
    anchors, views = jnp.asarray(anchors), jnp.asarray(views)
    fits = anchors.ndim == 2 and views.ndim == 3 and anchors.shape[1] == views.shape[2]
    if not fits or 0 in anchors.shape + views.shape:
        raise ValueError(
            "anchors, views must be [n, d] and [v, m, d], none of them empty, "
            f"got {anchors.shape}, {views.shape}"
        )
    if not all(jnp.issubdtype(array.dtype, jnp.floating) for array in (anchors, views)):
        raise ValueError(
            f"anchors, views must be floating point, got {anchors.dtype}, {views.dtype}"
        )
    return anchors.astype(jnp.float32), views.astype(jnp.float32)


def _labels(name: str, labels: jax.Array, n: int, classes: int, even: bool = False) -> jax.Array:
    """Labels `[n]`, where they are known checked; with `even`, each must occur as often."""
    if not isinstance(labels, jax.core.Tracer):
        known = np.asarray(labels)
        whole = np.issubdtype(known.dtype, np.integer)
        if not whole or known.min(initial=0) < 0 or known.max(initial=0) >= classes:
            raise ValueError(f"{name} must be integers from 0 to {classes - 1}, got {labels}")
        counts = np.bincount(known.ravel(), minlength=classes)
        if even and counts.min() != counts.max():
            raise ValueError(
                f"{name} must have each class as often (Assumption 4.5), got from "
                f"{counts.min()} to {counts.max()} images a class: take as many of each"
            )
    if jnp.shape(labels) != (n,):
        raise ValueError(f"{name} must be [{n}], got shape {jnp.shape(labels)}")
    return jnp.asarray(labels)
