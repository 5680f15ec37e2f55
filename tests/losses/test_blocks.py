"""`losses/blocks.py`: both passes over blocks of any size have what the whole matrix has."""

import functools

import jax
import numpy as np
import pytest
from scipy.special import logsumexp

from hypersphere_jax.losses.blocks import Points, log_sums, pull


def whole(a, b, exclude):
    """The logits in float64."""
    a, b = (Points(*map(np.float64, side)) for side in (a, a if b is None else b))
    logits = a.x @ b.x.T + a.bias[:, None] + b.bias
    group = np.arange(len(logits)) // max(exclude, 1)
    return (
        np.where((group[:, None] == group) & (exclude > 0), -np.inf, logits) if exclude else logits
    )


@pytest.mark.parametrize(
    ("n", "m", "exclude", "limit"),
    [
        *((14, None, exclude, limit) for exclude, limit in ((0, 1), (1, 3), (2, 5))),
        (11, 11, 1, 4),
        (11, 7, 0, 3),
        *(
            pytest.param(*case, limit, marks=pytest.mark.slow)
            for case in ((14, None, 0), (13, None, 1), (14, None, 2), (11, 11, 1), (5, 11, 0))
            for limit in (1, 6, 13)
        ),
    ],
)
def test_any_size(n, m, exclude, limit, rng):
    """None are left over, or some; a pair is left out, or a pair of pairs that no border parts."""
    points = [
        size and Points(*(rng.standard_normal(s).astype(np.float32) for s in ((size, 3), size)))
        for size in (n, m)
    ]
    r, c = (p and p.bias + 1 for p in points)
    c = r if m is None else c
    options = {"exclude": exclude, "limit": limit}

    sums, (rows, columns) = jax.jit(
        lambda a, b, r, c: (log_sums(a, b, **options), pull(a, b, r, c, **options))
    )(*points, r, c)
    logits = whole(*points, exclude)
    close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-5)
    close(sums[0], logsumexp(logits, 1))
    close(sums[1], logsumexp(logits, 0))
    weights = np.exp(logits - r[:, None]) + np.exp(logits - c)
    a, b = points[0], points[1] or points[0]
    close(rows.x, weights @ b.x)
    close(rows.bias, weights.sum(1))
    close(columns.x, weights.T @ a.x)
    close(columns.bias, weights.sum(0))
