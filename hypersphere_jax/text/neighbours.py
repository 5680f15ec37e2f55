"""Alignment and uniformity of two sentence encoders on whole documents."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from hypersphere_jax.configs import require
from hypersphere_jax.evaluation import geometry, metrics
from hypersphere_jax.evaluation.checks import SelectedRows, check_features, check_unit_norm
from hypersphere_jax.evaluation.estimates import Estimate, entries, jsonable
from hypersphere_jax.evaluation.features import split_features
from hypersphere_jax.text.corpus import Corpus
from hypersphere_jax.theory import uniformity_lower_bound, uniformity_optimum
from hypersphere_jax.training.run_dir import RunEncoder

UNIT = 50  # consecutive sentences that are one sample of the standard error of alignment


def neighbour_metrics(
    f,
    g,
    documents,
    alpha: float = 2.0,
    t: float = 2.0,
) -> dict[str, Any]:
    r"""Return alignment and uniformity of two encoders of consecutive sentences.

    .. math::
        \text{align} = \frac{1}{K} \sum_i \sum_{j = i \pm 1} w_{ij} \|f_i - g_j\|_2^\alpha
        \qquad \text{uniform} = \mathcal{L}_{uniform}(f; t) + \mathcal{L}_{uniform}(g; t)

    (Wang & Isola, B.3.) Neighbours are in the same document and have weight 1/2 each, or 1 if there
    is one. K is the number of sentences with a neighbour. On one document these are
    `quick_thought_align_loss` and `quick_thought_uniform_loss`.

    Args:
      f: unit features `[n, d]` of the first encoder, an array or memory map.
      g: unit features `[n, d]` of the second encoder.
      documents: first sentence of each document, then n: integers `[k + 1]`.
      alpha: power of the distance, > 0.
      t: scale of the potential, > 0.

    Returns:
      Values and standard errors, None if unknown. Alignment is a ratio of sums; its error (Cochran,
      Sampling Techniques, 2.11) treats groups of 50 consecutive sentences as samples. The errors of
      `uniform_f` and `uniform_g` assume independent sentences, and `uniform` has their sum.
      `pairs` is the number of (i, j).

    Raises:
      UserError: for invalid features or options, or no neighbours.
    """
    f = check_features("f", f)
    g = check_features("g", g)
    require(f.shape == g.shape, f"f and g: must have the same shape, not {f.shape} and {g.shape}")
    check_unit_norm("f", f)
    check_unit_norm("g", g)
    for name, value in (("alpha", alpha), ("t", t)):
        require(0 < value < math.inf, f"{name} = {value}: must be finite and positive")
    documents = np.asarray(documents)
    n = len(f)
    require(documents[0] == 0 and documents[-1] == n, f"documents: must go from 0 to {n}")
    i, j = _neighbours(documents)
    require(len(i) > 0, "documents: no sentence has a neighbour, since each document has only one")
    uniform_f = metrics.uniformity(f, t)
    uniform_g = metrics.uniformity(g, t)
    uniform = Estimate(*map(sum, zip(uniform_f, uniform_g, strict=True)))
    result = {
        **entries("align", _alignment(f, g, i, j, alpha)),
        "align_alpha": alpha,
        **entries("uniform", uniform),
        **entries("uniform_f", uniform_f),
        **entries("uniform_g", uniform_g),
        "uniform_t": t,
        "n": n,
        "d": f.shape[1],
        "pairs": len(i),
        "documents": len(documents) - 1,
    }
    return jsonable(result)


def _neighbours(documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs (i, j) of neighbouring sentences of a document, both ways."""
    has_next = np.ones(documents[-1] - 1, bool)
    has_next[documents[1:-1] - 1] = False
    before = np.flatnonzero(has_next)
    after = before + 1
    return np.concatenate([before, after]), np.concatenate([after, before])


def _alignment(f, g, i: np.ndarray, j: np.ndarray, alpha: float) -> Estimate:
    """Return the mean over sentences i of the mean power of the distance to their neighbours j."""
    powers = geometry.distances(SelectedRows(f, i), SelectedRows(g, j)) ** alpha
    sums = np.bincount(i, powers)
    neighbours = np.bincount(i)
    rows = np.flatnonzero(neighbours)
    values = sums[rows] / neighbours[rows]
    mean = float(values.mean())
    units = rows // UNIT
    excesses = np.bincount(units, values - mean)
    count = len(np.unique(units))
    error = math.nan
    if count > 1:
        error = math.sqrt(count / (count - 1) * np.sum(excesses**2)) / len(values)
    return Estimate(mean, error)


def neighbour_inputs(
    encoder: RunEncoder, corpus: Corpus, devices: list[jax.Device]
) -> tuple[Any, tuple[Any, Any], Callable[..., dict[str, Any]]]:
    """Compute the features of a corpus for the metrics of a run.

    Returns:
      Features of f; features of f and of g for all pairs of neighbours; and
      `summary(alpha, t)`, the neighbour metrics with the optimum of uniformity.
    """
    features = split_features(encoder, corpus, ["f", "g"], devices).features
    f = check_features("f", features["f"].x)
    g = check_features("g", features["g"].x)
    i, j = _neighbours(corpus.documents)
    pairs = (SelectedRows(f, i), SelectedRows(g, j))
    return f, pairs, functools.partial(_summary, f, g, corpus.documents)


def _summary(f, g, documents: np.ndarray, alpha: float, t: float) -> dict[str, Any]:
    values = neighbour_metrics(f, g, documents, alpha, t)
    n, d = f.shape
    optimum = uniformity_optimum(d, t)
    bound = uniformity_lower_bound(d, t, n)
    return values | {"uniform_optimum": 2 * optimum, "uniform_lower_bound": 2 * bound}
