"""Alignment and uniformity of whole data sets, with standard errors."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hypersphere_jax.configs import require
from hypersphere_jax.data.inputs import as_numpy
from hypersphere_jax.evaluation import checks, estimates, geometry
from hypersphere_jax.evaluation.estimates import UNKNOWN_ESTIMATE, Estimate
from hypersphere_jax.losses._pairwise.options import Exclude, PairOptions
from hypersphere_jax.losses._pairwise.points import make_points
from hypersphere_jax.losses._pairwise.sums import pair_logsumexp
from hypersphere_jax.theory import uniformity_lower_bound, uniformity_optimum
from hypersphere_jax.training import distributed


@distributed.isolated()
def measure(
    x: Any,
    y: Any = None,
    *,
    labels: Any = None,
    alpha: float = 2.0,
    t: float = 2.0,
    ignore_label: int = -1,
) -> dict[str, Any]:
    r"""Return alignment, uniformity and rank of features, with standard errors.

    Args:
      x: `[n, d]` features of unit norm, an array or a memory map, n >= 2.
      y: `[n, d]` features of the positives, in the order of `x`.
      labels: `[n]`, integers or strings, instead of y: alignment is then over all pairs of two
        points of one class.
      alpha: power of the distance in alignment, > 0.
      t: scale of the potential in uniformity, > 0.
      ignore_label: label of points without a class, which alignment leaves out.

    Returns:
      `align`, `uniform`, and each with `_standard_error`; `uniform_optimum`, the value of the
      uniform distribution in d dimensions, and `uniform_lower_bound`, the bound for n points
      (Wang & Isola, A.1.1); `effective_rank` (Roy & Vetterli 2007) and `participation_ratio`, both
      d for the uniform distribution; `n`, `d`, `align_alpha`, `uniform_t`. Unknown values are None,
      such as alignment without y and labels. Recall@k and MAP@R: see `retrieval_scores`.

    Raises:
      UserError: for shapes that differ, features that are not of unit norm (see `l2_normalize`),
        y together with labels, or labels without two points of one class.

    >>> import numpy as np
    >>> corners = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> round(measure(corners)["effective_rank"], 4)
    2.0
    """
    require(y is None or labels is None, "y and labels both define positives; pass one of them")
    x = as_numpy(x)
    _check_points("x", x)
    align = UNKNOWN_ESTIMATE
    if y is not None:
        y = as_numpy(y)
        _check_points("y", y)
        align = alignment(x, y, alpha)
    elif labels is not None:
        groups = geometry.class_rows(labels, len(x), ignore_label)
        align = geometry.class_alignment(x, groups, alpha)
    ranks = geometry.effective_rank(x)._asdict()
    del ranks["singular_values"]
    return summary(x, align, alpha, t) | ranks


def _check_points(name: str, x: np.ndarray) -> None:
    checks.check_matrix(name, x)
    checks.check_unit_norm(name, x)


def rankme(x: Any, eps: float = 1e-7) -> float:
    r"""Return RankMe of features `[n, d]`: a smooth rank, from 1 to min(n, d).

    .. math:: \exp(-\sum_i p_i \log p_i), \quad p_i = \sigma_i / \sum_j \sigma_j + \epsilon

    with the singular values of the features, not centred (Garrido et al. 2023, Eq. (1)). It is the
    effective rank of `measure` with a small constant. It needs no labels: the paper finds that
    encoders with a higher RankMe tend to be better on other tasks. A low one indicates collapse.

    Args:
      x: `[n, d]` features, an array, a tensor or a memory map. The paper has n > d.
      eps: the constant epsilon.

    Raises:
      UserError: for features that are not finite, or all zero.

    >>> round(rankme(np.eye(4)), 3)
    4.0
    """
    values = geometry.effective_rank(checks.check_features("x", x)).singular_values
    shares = values / values.sum() + eps
    return math.exp(-np.sum(shares * np.log(shares)))


def alignment(x: Any, y: Any, alpha: float = 2.0) -> Estimate:
    """Return the mean of `|x_i - y_i|^alpha` over pairs of rows `[n, d]`, as `align_loss`.

    Raises:
      UserError: for shapes that differ, or no pairs.
    """
    return estimates.mean_estimate(geometry.distances(x, y) ** alpha)


def uniformity(x: Any, t: float = 2.0) -> Estimate:
    """Return the log of the mean Gaussian potential of all pairs of rows `[n, d]`: `uniform_loss`.

    The features are copied to one device in float32. Time grows with n^2, memory with n. The
    standard error of a U-statistic (Hoeffding) is rough for fewer than about 20 points.

    Raises:
      UserError: for fewer than two points.
    """
    n, d = x.shape
    require(n >= 2, f"uniformity needs at least two points, got {n}")
    centre = geometry.mean_point(x)
    points = np.zeros((_round_up(n), d), np.float32)
    for rows, block in geometry.float64_blocks(x):
        points[rows] = block - centre
    sums = np.asarray(_log_sums(points, np.arange(len(points)) < n, np.float32(t)), np.float64)
    return _u_statistic(*sums[:, :n])


def summary(x: Any, align: Estimate, alpha: float = 2.0, t: float = 2.0) -> dict[str, Any]:
    """Return an alignment, the uniformity of unit features `[n, d]`, and its optimal values."""
    n, d = x.shape
    bounds = {
        "uniform_t": t,
        "uniform_optimum": uniformity_optimum(d, t),
        "uniform_lower_bound": uniformity_lower_bound(d, t, n),
    }
    aligned = estimates.entries("align", align) | {"align_alpha": alpha}
    uniform = estimates.entries("uniform", uniformity(x, t))
    return estimates.jsonable(aligned | uniform | bounds | {"d": d, "n": n})


def _round_up(n: int) -> int:
    """Round to three binary digits after the first, so that few sizes are compiled."""
    step = 2 ** max(3, n.bit_length() - 4)
    return -(-n // step) * step


@jax.jit
def _log_sums(x: jax.Array, is_point: jax.Array, t: jax.Array) -> jax.Array:
    """Return the log-sums of each point's potentials, and of their squares: `[2, n]`."""
    points = make_points(x, is_point)
    sums = [pair_logsumexp(points, None, PairOptions(), s, Exclude.SELF) for s in (2 * t, 4 * t)]
    return jnp.stack([rows for rows, _ in sums])


def _u_statistic(sums: np.ndarray, squares: np.ndarray) -> Estimate:
    """Return the log of the mean potential, from log-sums over each point `[n]`.

    With potentials `theta + g_i + g_j + h_ij` of uncorrelated terms, the variance of their mean is
    `(2 v + 4 (n - 2) var(g)) / (n (n - 1))`, where v is the variance of all potentials. The
    variance of the points' mean potentials is a sum of v and var(g), too, which gives var(g).
    """
    n = len(sums)
    value = np.logaddexp.reduce(sums) - math.log(n * (n - 1))
    if n < 5:
        return Estimate(float(value), math.nan)
    of_means = np.var(np.exp(sums - math.log(n - 1) - value), ddof=1)
    of_all = math.expm1(np.logaddexp.reduce(squares) - math.log(n * (n - 1)) - 2 * value)
    of_points = (of_means * (n - 1) ** 2 / (n - 2) - of_all) / (n - 4)
    # Potentials that differ by less than float32's rounding are equal.
    if of_all < 2e-6:
        return Estimate(float(value), 0.0)
    # var(g) is zero for uniform points, and its estimate may be negative. The variance is at least
    # 2 v. Bounded by 2 v, the error would be too large by a tenth on average for such points;
    # bounded by v, it is right within a few hundredths.
    variance = max(2 * of_all + 4 * (n - 2) * of_points, of_all) / (n * (n - 1))
    return Estimate(float(value), math.sqrt(variance))
