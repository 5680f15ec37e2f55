"""Whether a claim shows: one rule for all tables and figures of encoders.

Two instruments measure every encoder: multinomial logistic regression on standardized features,
minimized to convergence with its L2 chosen on training data, and 5-NN. A claim *shows* if it holds
by both, at the layer that its paper evaluates, beyond chance at 95%; if both say the opposite, that
shows; else it does not show, and what each of them says is told. The paper's own probe stands
beside the two, and decides nothing. Of several comparisons, Holm's correction counts all.

An interval counts seeds and test samples as drawn at random, see `difference`.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import scipy

from experiments.predictions import right
from experiments.statistics import Rows

INSTRUMENTS = {"logistic": "logistic regression", "knn5": "5-NN"}
PAPERS = {"linear": "the paper's probe"}
LAYERS = {"output": "output", "backbone": "before the head", "fc7": "fc7", "conv5": "conv5"}
ALPHA = 0.05


class Estimate(NamedTuple):
    """A value in points of accuracy, the ends of its 95% interval, and its two-sided p-value."""

    value: float
    low: float
    high: float
    p: float

    @property
    def beyond_chance(self) -> bool:
        return self.p < ALPHA

    def __str__(self) -> str:
        return f"{self.value:+.2f} ({self.low:+.2f} to {self.high:+.2f})"


def difference(a: np.ndarray, b: np.ndarray | float = 0.0) -> Estimate:
    """Mean accuracy of encoders less that of others, in points.

    Both were measured on the same n test samples, and are booleans `[seeds, n]`: right or not. The
    squared standard error has three parts: the variance over seeds of each (as in Welch's test),
    and that over samples of the difference of the two means, which are paired. The interaction of
    seeds and samples is in two of these, so that the interval is rather too wide, as that of
    resampling seeds and samples (the pigeonhole bootstrap; Owen, 2007), but with Student's t for
    few seeds, by Satterthwaite's degrees of freedom. Of a single seed the first part is unknown:
    the interval is then of that very encoder.

    Args:
      a: booleans `[seeds, n]`.
      b: of other encoders, or a level to compare with, from 0 to 1.
    """
    sides = [np.asarray(side, float) for side in (a, b) if np.ndim(side)]
    parts = [
        (side.mean(axis=1).var(ddof=1) / len(side), len(side) - 1)
        for side in sides
        if len(side) > 1
    ]
    of_samples = sides[0].mean(axis=0) - (sides[1].mean(axis=0) if len(sides) > 1 else b)
    parts.append((of_samples.var(ddof=1) / len(of_samples), len(of_samples) - 1))
    value, variance = float(of_samples.mean()), sum(part for part, _ in parts)
    if variance == 0:  # all samples and seeds gave the same
        return Estimate(100 * value, 100 * value, 100 * value, float(value == 0))
    freedom = variance**2 / sum(part**2 / df for part, df in parts)
    error = math.sqrt(variance)
    half = scipy.stats.t.ppf(1 - ALPHA / 2, freedom) * error
    p = 2 * scipy.stats.t.sf(abs(value) / error, freedom)
    return Estimate(*(100 * float(x) for x in (value, value - half, value + half)), float(p))


def of_seeds(a: Sequence[float], b: Sequence[float] | float = 0.0) -> Estimate:
    """Mean of a number of each seed, less that of others or a level: Student's t, or Welch's.

    For what is no accuracy: the interval is over seeds alone, and the value in units of its own.
    """
    sides = [np.asarray(side, float) for side in (a, b) if np.ndim(side)]
    value = float(sides[0].mean() - (sides[1].mean() if len(sides) > 1 else b))
    parts = [(side.var(ddof=1) / len(side), len(side) - 1) for side in sides if len(side) > 1]
    variance = sum(part for part, _ in parts)
    if variance == 0 or len(parts) < len(sides):  # a single seed tells no spread
        return Estimate(value, math.nan, math.nan, 1.0)
    freedom = variance**2 / sum(part**2 / df for part, df in parts)
    error = math.sqrt(variance)
    half = float(scipy.stats.t.ppf(1 - ALPHA / 2, freedom)) * error
    p = float(2 * scipy.stats.t.sf(abs(value) / error, freedom))
    return Estimate(value, value - half, value + half, p)


def resampled(settings: Sequence[np.ndarray], draws: int = 2000) -> np.ndarray:
    """Mean accuracies of settings with seeds and test samples drawn anew, `[settings, draws]`.

    The pigeonhole bootstrap (Owen, 2007): samples are drawn once for all settings, whose test split
    is the same, and seeds for each of them. For statistics that are no mean, see `of_draws`.

    Args:
      settings: of each, booleans `[seeds, n]`: right or not.
      draws: how often.
    """
    random = np.random.default_rng(1)
    samples = _samples(settings[0].shape[1], draws)
    accuracies_drawn = np.concatenate(settings).astype(float) @ samples.T
    ends = np.cumsum([len(setting) for setting in settings])[:-1]
    means = []
    for each in np.split(accuracies_drawn, ends):  # [seeds, draws]
        shares = np.full(len(each), 1 / len(each))
        taken = random.multinomial(len(each), shares, size=draws) / len(each)
        means.append((taken.T * each).sum(axis=0))
    return np.stack(means)


@functools.cache
def _samples(n: int, draws: int) -> np.ndarray:
    """Weights of n samples in each draw, `[draws, n]`."""
    return np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=draws) / n


def of_draws(value: float, draws: np.ndarray, level: float = 0.0) -> Estimate:
    """A statistic with the interval of its resampled values, and p for its being at the level."""
    low, high = np.quantile(draws, [ALPHA / 2, 1 - ALPHA / 2])
    tails = [(1 + np.sum(side)) / (1 + len(draws)) for side in (draws <= level, draws >= level)]
    return Estimate(float(value), float(low), float(high), float(min(1, 2 * min(tails))))


def accuracy(rows: Rows, score: str) -> str:
    """The mean over seeds in percent ± half of its 95% interval, such as `98.42 ± 0.71`."""
    return cell(difference(right(rows, score)))


def cell(of: Estimate, digits: int = 2) -> str:
    """A value ± half of its interval, such as `98.42 ± 0.71`; of an unknown one the value."""
    half = (of.high - of.low) / 2
    return f"{of.value:.{digits}f}" + (f" ± {half:.{digits}f}" if math.isfinite(half) else "")


def columns(layers: Sequence[str], papers: bool = True) -> list[str]:
    """Columns of accuracies by all instruments on these layers, the paper's first."""
    names = INSTRUMENTS | (PAPERS if papers else {})
    heads = [name.removesuffix(" regression").removeprefix("the ") for name in names.values()]
    return [f"{LAYERS[layer]}: {head} (%)" for layer in layers for head in heads]


def scores(layers: Sequence[str], papers: bool = True) -> dict[str, str]:
    """Names of columns of rows, and as one reads them: `backbone_knn5`, `before the head: 5-NN`."""
    names = INSTRUMENTS | (PAPERS if papers else {})
    return {
        f"{layer}_{key}": f"{LAYERS[layer]}: {name}"
        for layer in layers
        for key, name in names.items()
    }


def where(layer: str) -> str:
    """A layer in a sentence: `on the output`, or `before the head`."""
    return "on the output" if layer == "output" else LAYERS[layer]


def accuracies(rows: Rows, layers: Sequence[str], papers: bool = True) -> list[str | None]:
    """Cells of these columns, of the seeds of one setting; None without rows."""
    names = INSTRUMENTS | (PAPERS if papers else {})
    scores = [f"{layer}_{name}" for layer in layers for name in names]
    return [accuracy(rows, score) if rows else None for score in scores]


Comparison = Mapping[str, Estimate]  # by the instruments' names


def compare(a: Rows, b: Rows, layer: str, papers: bool = True) -> dict[str, Estimate]:
    """How far the encoders of some rows are ahead of others, by each instrument."""
    names = INSTRUMENTS | (PAPERS if papers else {})
    return {
        name: difference(*(right(rows, f"{layer}_{key}") for rows in (a, b)))
        for key, name in names.items()
    }


def signs(comparisons: Sequence[Comparison]) -> list[int]:
    """1 for each comparison in which the first is ahead beyond chance, -1 behind, 0 neither.

    Both instruments have to say so; Holm's correction (1979) counts the comparisons. The paper's
    probe, where it is among the estimates, has no part in it.
    """
    deciding = [
        [each for name, each in of.items() if name not in PAPERS.values()] for of in comparisons
    ]
    # Both have to reject, so that the larger p is that of the comparison.
    adjusted = holm([max(each.p for each in of) for of in deciding])
    found = []
    for p, of in zip(adjusted, deciding, strict=True):
        alike = {np.sign(each.value) for each in of}
        found.append(int(alike.pop()) if p < ALPHA and len(alike) == 1 else 0)
    return found


def holm(p: Sequence[float]) -> list[float]:
    """P-values adjusted for their number (Holm, 1979), in the order in which they are given."""
    order = np.argsort(p, kind="stable")
    scaled = np.asarray(p, float)[order] * (len(p) - np.arange(len(p)))
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(1, np.maximum.accumulate(scaled))
    return adjusted.tolist()


def sentences(comparisons: Mapping[str, Comparison], layer: str) -> str:
    """What comparisons show, in a sentence; A should be ahead in one named `A against B`."""
    words = {1: "shows", -1: "the opposite shows", 0: "does not show"}
    parts = []
    for (name, of), sign in zip(comparisons.items(), signs([*comparisons.values()]), strict=True):
        by = ", ".join(f"{each} by {instrument}" for instrument, each in of.items())
        parts.append(f"{name} {by}: {words[sign]}")
    place, many = where(layer), len(comparisons) > 1
    counted = f" (Holm's correction counts the {len(comparisons)} comparisons)" if many else ""
    return f"{place[0].upper()}{place[1:]}, in points: {'; '.join(parts)}{counted}."


def short(compared: Mapping[str, Mapping[str, Comparison]]) -> str:
    """Of each layer, in which comparisons the first is ahead, without numbers."""
    words = {1: "ahead", -1: "behind", 0: "not told apart"}
    parts = []
    for layer, of in compared.items():
        found = zip(of, signs([*of.values()]) if of else [], strict=True)
        told = ", ".join(f"{name[0].lower()}{name[1:]} {words[sign]}" for name, sign in found)
        parts += [f"{where(layer)}, {told}"] if told else []
    return "; ".join(parts)
