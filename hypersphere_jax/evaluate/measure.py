"""Alignment, uniformity and rank of features from any source."""

from typing import Any

from hypersphere_jax.configs import require
from hypersphere_jax.data.inputs import as_numpy
from hypersphere_jax.evaluate import geometry, metrics
from hypersphere_jax.evaluate.checks import check_matrix, check_unit_norm
from hypersphere_jax.training import distributed


@distributed.isolated()
def measure(
    x: Any, y: Any = None, *, labels: Any = None, alpha: float = 2.0, t: float = 2.0
) -> dict[str, Any]:
    r"""Alignment, uniformity and rank of features, with standard errors.

    Args:
      x: `[n, d]` features of unit norm, an array or a memory map, any n >= 2.
      y: `[n, d]` features of the positives, in the order of `x`.
      labels: `[n]`, integers or strings, in place of y: alignment is then over all pairs of two
        points of one class. -1 marks points without a class.
      alpha: power of the distance in alignment, > 0.
      t: scale of the potential in uniformity, > 0.

    Returns:
      `align`, `uniform`, and each with `_standard_error`; `uniform_optimum`, that of the uniform
      distribution in d dimensions, and `uniform_lower_bound`, that of n points (Wang & Isola,
      A.1.1); `effective_rank` (Roy & Vetterli 2007) and `participation_ratio`, both d for the
      uniform distribution; `n`, `d`, `align_alpha`, `uniform_t`. Unknown values are None, such as
      alignment without y and labels.

    Raises:
      UserError: for shapes that differ, features that are not of unit norm (see `l2_normalize`),
        y together with labels, or labels without two points of one class.

    >>> import numpy as np
    >>> corners = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> round(measure(corners)["effective_rank"], 4)
    2.0
    """
    require(y is None or labels is None, "y and labels: give one of them, both define positives")
    sides = [as_numpy(side) for side in (x, y) if side is not None]
    for name, side in zip(("x", "y"), sides, strict=False):
        check_matrix(name, side)
        check_unit_norm(name, side)
    x, *rest = sides
    require(len(x) > 1, f"x has {len(x)} point: uniformity needs two")
    require(not rest or rest[0].shape == x.shape, f"x is {x.shape}, and y {rest and rest[0].shape}")
    groups = None if labels is None else geometry.class_rows(labels, len(x))
    rank = geometry.effective_rank(x)
    result = metrics.summary(x, (x, rest[0]) if rest else None, alpha, t)
    if groups is not None:
        result |= metrics.entries("align", geometry.class_alignment(x, groups, alpha))
    result["effective_rank"] = rank.effective_rank
    result["participation_ratio"] = rank.participation_ratio
    return result
