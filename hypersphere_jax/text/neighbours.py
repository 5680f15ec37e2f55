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


def neighbour_inputs(
    encoder: RunEncoder, corpus: Corpus, devices: list[jax.Device]
) -> tuple[Any, tuple[Any, Any], Callable[..., dict[str, Any]]]:
    """Return features of f, features of f and g for all pairs of neighbours, and the metrics.

    The metrics are a function of (alpha, t), see `neighbour_metrics`.
    """
    features = split_features(encoder, corpus, ["f", "g"], devices).features
    f, g = (check_features(name, features[name].x) for name in ("f", "g"))
    check_unit_norm("f", f)
    check_unit_norm("g", g)
    i, j = _neighbours(corpus.documents)
    pairs = (SelectedRows(f, i), SelectedRows(g, j))
    return f, pairs, functools.partial(neighbour_metrics, f, g, corpus.documents)


def neighbour_metrics(
    f: Any, g: Any, documents: np.ndarray, alpha: float = 2.0, t: float = 2.0
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
      alpha: power of the distance.
      t: scale of the potential.

    Returns:
      Values and standard errors, None if unknown, and the optimum of `uniform`. Alignment is a
      ratio of sums; its error (Cochran, Sampling Techniques, 2.11) treats groups of 50 consecutive
      sentences as samples. The errors of `uniform_f` and `uniform_g` assume independent sentences,
      and `uniform` has their sum. `pairs` is the number of (i, j).

    Raises:
      UserError: if no sentence has a neighbour.
    """
    i, j = _neighbours(documents)
    uniform_f = metrics.uniformity(f, t)
    uniform_g = metrics.uniformity(g, t)
    uniform = Estimate(*map(sum, zip(uniform_f, uniform_g, strict=True)))
    n, d = f.shape
    result = {
        **entries("align", _alignment(f, g, i, j, alpha)),
        "align_alpha": alpha,
        **entries("uniform", uniform),
        **entries("uniform_f", uniform_f),
        **entries("uniform_g", uniform_g),
        "uniform_t": t,
        "n": n,
        "d": d,
        "pairs": len(i),
        "documents": len(documents) - 1,
        "uniform_optimum": 2 * uniformity_optimum(d, t),
        "uniform_lower_bound": 2 * uniformity_lower_bound(d, t, n),
    }
    return jsonable(result)


def _neighbours(documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs (i, j) of neighbouring sentences of a document, both ways."""
    before = np.setdiff1d(np.arange(documents[-1]), documents[1:] - 1)
    require(len(before) > 0, "no sentence has a neighbour, since each document has only one")
    after = before + 1
    return np.concatenate([before, after]), np.concatenate([after, before])


def _alignment(f: Any, g: Any, i: np.ndarray, j: np.ndarray, alpha: float) -> Estimate:
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
