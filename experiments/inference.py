"""Whether a claim shows: one rule for all tables and figures of encoders.

Three instruments measure every encoder: multinomial logistic regression on standardized features,
minimized to convergence with its L2 chosen on training data; 5-NN; and the paper's own probe, which
decides nothing (of sentences it is the logistic regression). A claim *shows* if it holds by the
first two, at the layer that its paper evaluates, beyond chance at 95%; if both say the opposite,
that shows; else it does not show, and what each of them says is told. Of several
comparisons that are told together, Holm's correction counts all; where it decides, `by_itself` says
so.

An interval counts seeds and test samples as drawn at random, see `difference`.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from experiments.predictions import right
from experiments.statistics import Rows, values
from hypersphere_jax.configs import require
from hypersphere_jax.evaluate.estimates import students_t

INSTRUMENTS = {"logistic": "logistic regression", "knn5": "5-NN"}
PAPERS = {"linear": "the paper's probe"}
ALL = INSTRUMENTS | PAPERS
LAYERS = {"output": "output", "backbone": "before the head", "fc7": "fc7", "conv5": "conv5"}
ALPHA = 0.05


class Estimate(NamedTuple):
    """A value in points of accuracy, the ends of its 95% interval, and its two-sided p-value.

    Where `single`, a side has one encoder, and the interval is of that very encoder.
    """

    value: float
    low: float
    high: float
    p: float
    single: bool = False

    def __str__(self) -> str:
        return f"{self.value:+.2f} ({self.low:+.2f} to {self.high:+.2f})"


def difference(a: np.ndarray, b: np.ndarray | float = 0.0, paired: bool = False) -> Estimate:
    """Mean accuracy of encoders less that of others, in points: `contrast` with weights 1 and -1.

    Args:
      a: booleans `[seeds, n]`.
      b: of other encoders, or a level to compare with, from 0 to 1.
      paired: a and b have the same seeds in the same order.
    """
    if np.ndim(b):
        return contrast([a, b], [1, -1], paired=paired)
    return contrast([a], [1], b)


def contrast(
    settings: Sequence[np.ndarray],
    weights: Sequence[float],
    level: float = 0.0,
    paired: bool = False,
) -> Estimate:
    """A weighted sum of mean accuracies of encoders, less a level, in points.

    All were measured on the same n test samples. The squared standard error has these parts: of
    each setting the variance over its seeds (as in Welch's test), or, where seeds are paired, that
    of each seed's sum; and the variance over samples of the sum of the means. The interaction of
    seeds and samples is in two of these, so that the interval is rather too wide, as that of
    resampling seeds and samples (the pigeonhole bootstrap; Owen, 2007), but with Student's t for
    few seeds, by Satterthwaite's degrees of freedom. Of a single seed the first part is unknown:
    the interval is then of that very encoder.

    Args:
      settings: of each, booleans `[seeds, n]`: right or not.
      weights: of the settings.
      level: from 0 to 1 where the weights' sum is 1.
      paired: each seed of one setting belongs to that at the same place of the others, as seeds
        that begin from the same encoder do.
    """
    sides = [weight * np.asarray(of, float) for weight, of in zip(weights, settings, strict=True)]
    of_seeds = [sum(sides)] if paired else sides
    parts = [(of.mean(axis=1).var(ddof=1) / len(of), len(of) - 1) for of in of_seeds if len(of) > 1]
    of_samples = sum(side.mean(axis=0) for side in sides) - level
    parts.append((of_samples.var(ddof=1) / len(of_samples), len(of_samples) - 1))
    found, p = students_t(float(of_samples.mean()), parts)
    return Estimate(*(100 * float(end) for end in found), p, min(map(len, sides)) == 1)


def of_seeds(a: Sequence[float], b: Sequence[float] | float = 0.0) -> Estimate:
    """Mean of a number of each seed, less that of others or a level: Student's t, or Welch's.

    For what is no accuracy: the interval is over seeds alone, and the value in units of its own.
    """
    sides = [np.asarray(side, float) for side in (a, b) if np.ndim(side)]
    value = float(sides[0].mean() - (sides[1].mean() if len(sides) > 1 else b))
    parts = [(side.var(ddof=1) / len(side), len(side) - 1) for side in sides if len(side) > 1]
    single = len(parts) < len(sides)
    if single or not any(part for part, _ in parts):  # no spread is told
        return Estimate(value, math.nan, math.nan, 1.0, single)
    found, p = students_t(value, parts)
    return Estimate(*found, p)


def resampled(settings: Sequence[np.ndarray], draws: int = 2000) -> np.ndarray:
    """Mean accuracies of settings with seeds and test samples drawn anew, `[settings, draws]`.

    The pigeonhole bootstrap (Owen, 2007): samples are drawn once for all settings, whose test split
    is the same, and seeds for each of them. Means of k seeds that are drawn of k have (k - 1) / k
    of the variance of those of k new ones: their deviations are scaled by its root. Percentiles of
    three seeds are too narrow still: a weighted sum of means has `contrast`. See `of_draws`.

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
        center = each.mean(axis=0)
        scale = math.sqrt(len(each) / max(1, len(each) - 1))
        means.append(center + scale * ((taken.T * each).sum(axis=0) - center))
    return np.stack(means).round(9)  # equal means differ by rounding, which no rank may tell


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


def columns(layers: Sequence[str]) -> list[str]:
    """Columns of accuracies by all instruments on these layers."""
    heads = [name.removesuffix(" regression").removeprefix("the ") for name in ALL.values()]
    return [f"{LAYERS[layer]}: {head} (%)" for layer in layers for head in heads]


def scores(layers: Sequence[str]) -> dict[str, str]:
    """Names of columns of rows, and as one reads them: `backbone_knn5`, `before the head: 5-NN`."""
    return {
        f"{layer}_{key}": f"{LAYERS[layer]}: {name}"
        for layer in layers
        for key, name in ALL.items()
    }


def where(layer: str) -> str:
    """A layer in a sentence: `on the output`, `before the head`, `on fc7`."""
    return {"output": "on the output", "backbone": "before the head"}.get(layer, f"on {layer}")


def accuracies(rows: Rows, layers: Sequence[str]) -> list[str | None]:
    """Cells of these columns, of the seeds of one setting; None without rows."""
    scores = [f"{layer}_{name}" for layer in layers for name in ALL]
    return [accuracy(rows, score) if rows else None for score in scores]


Comparison = Mapping[str, Estimate]  # by the instruments' names


def compare(a: Rows, b: Rows, layer: str, paired: bool = False) -> dict[str, Estimate]:
    """How far the encoders of some rows are ahead of others, by each instrument.

    Where `paired`, each seed is compared with the same seed of the others, with which it has the
    start in common; a seed that one of both lacks is left out.
    """
    if paired:
        a, b = (sorted(rows, key=lambda row: row["seed"]) for rows in (a, b))
        shared = {*values(a, "seed")} & {*values(b, "seed")}
        require(bool(shared), "no seed is done on both sides of a paired comparison")
        a, b = ([row for row in rows if row["seed"] in shared] for rows in (a, b))
    return {
        name: difference(*(right(rows, f"{layer}_{key}") for rows in (a, b)), paired=paired)
        for key, name in ALL.items()
    }


def signs(comparisons: Sequence[Comparison]) -> list[int]:
    """1 for each comparison in which the first is ahead beyond chance, -1 behind, 0 neither.

    Both instruments have to say so; Holm's correction (1979) counts the comparisons. The paper's
    probe, where it is among the estimates, has no part in it. Of single encoders nothing is said:
    how much another seed would differ is not known.
    """
    adjusted = holm([_p(of) for of in comparisons])
    found = []
    for p, of in zip(adjusted, map(deciding, comparisons), strict=True):
        alike = {np.sign(each.value) for each in of}
        sure = p < ALPHA and len(alike) == 1 and not any(each.single for each in of)
        found.append(int(alike.pop()) if sure else 0)
    return found


def deciding(of: Comparison) -> list[Estimate]:
    """The estimates of a comparison that count: not the paper's probe."""
    return [each for name, each in of.items() if name not in PAPERS.values()]


def _p(of: Comparison) -> float:
    """Both instruments have to reject, so that the larger p is that of the comparison."""
    return max(each.p for each in deciding(of))


def by_itself(of: Comparison, sign: int) -> str:
    """Such as ` (by itself p = 0.04)`, where only the correction keeps it from showing."""
    return f" (by itself p = {_p(of):.2g})" if not sign and signs([of])[0] else ""


def shows(sign: int, claimed: int = 1) -> str:
    """A sign in words, where the claim is that it is this one."""
    return {0: "does not show", claimed: "shows"}.get(sign, "the opposite shows")


def of_claim(sign: int, claimed: int = 1) -> str:
    """The same with its subject: `the claim shows`, or `the opposite shows`."""
    word = shows(sign, claimed)
    return word if word.startswith("the ") else f"the claim {word}"


def stands(sign: int) -> str:
    """A sign of `A against B` in words, between the two."""
    return {1: "ahead of", -1: "behind", 0: "not told apart from"}[sign]


def holm(p: Sequence[float]) -> list[float]:
    """P-values adjusted for their number (Holm, 1979), in the order in which they are given."""
    order = np.argsort(p, kind="stable")
    scaled = np.asarray(p, float)[order] * (len(p) - np.arange(len(p)))
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(1, np.maximum.accumulate(scaled))
    return adjusted.tolist()


def told(of: Comparison) -> str:
    """What each instrument says, such as `+0.90 (+0.10 to +1.70) by 5-NN`."""
    return ", ".join(f"{each} by {name}" for name, each in of.items())


def sentences(comparisons: Mapping[str, Comparison], layer: str) -> str:
    """What comparisons show, in a sentence; A should be ahead in one named `A against B`.

    All are by the same instruments, which are named once.
    """
    parts = []
    for (name, of), sign in zip(comparisons.items(), signs([*comparisons.values()]), strict=True):
        a, _, b = name.partition(" against ")
        numbers = _and([_oriented(each, sign) for each in of.values()])
        by = " by" if sign else ":"
        alone = by_itself(of, sign)
        parts.append(f"{_inner(a)} is {stands(sign)} {b}{by} {numbers} points{alone}")
    place, instruments = where(layer), [*next(iter(comparisons.values()))]
    order = " in this order" if len(instruments) > 1 else ""
    order += ", of which the first two decide" if {*instruments} > {*INSTRUMENTS.values()} else ""
    place = f"{capitalized(place)}, with {_and(instruments)}{order}"
    told = [f"{place}, {'; '.join(parts)}."]
    if len(comparisons) > 1:
        told.append(f"Holm's correction counts the {len(comparisons)} comparisons.")
    if any(each.single for of in comparisons.values() for each in of.values()):
        told.append("Of single encoders nothing is said: their intervals leave seeds out.")
    return " ".join(told)


def _oriented(of: Estimate, sign: int) -> str:
    """Such as `1.00 (0.20 to 1.80)` of what is ahead, or behind; with its sign if neither."""
    if not sign:
        return str(of)
    value, low, high = of[:3] if sign > 0 else (-of.value, -of.high, -of.low)
    return f"{value:.2f} ({low:.2f} to {high:.2f})"


def _and(parts: Sequence[str]) -> str:
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def _inner(text: str) -> str:
    """A sentence's beginning as it stands within one; names such as NT-Xent stay as they are."""
    first = text.partition(" ")[0]
    name = not first.isalpha() or not (first[1:].islower() or len(first) == 1)
    return text if name else f"{text[0].lower()}{text[1:]}"


def short(compared: Mapping[str, Mapping[str, Comparison]]) -> str:
    """Of each layer a sentence: which differences show, and how many do not.

    With the points, by each instrument of `INSTRUMENTS` in their order, of those that show.
    """
    told, papers = [], PAPERS.values()
    for layer, of in compared.items():
        found = dict(zip(of, signs([*of.values()]) if of else [], strict=True))
        parts, unclear = [], [name for name, sign in found.items() if not sign]
        for name, sign in found.items():
            if sign or len(found) == 1:
                a, _, b = name.partition(" against ")
                numbers = _and([_oriented(of[name][i], sign) for i in of[name] if i not in papers])
                by = f" by {numbers} points" if sign else ""
                parts.append(f"{_inner(a)} is {stands(sign)} {b}{by}")
        if unclear and len(found) > 1:
            others = f"the other {len(unclear)}" if parts else f"{len(unclear)}"
            one = "the other difference does not show"
            parts.append(one if len(unclear) == 1 else f"none of {others} differences shows")
        told += [f"{capitalized(where(layer))}, {'; '.join(parts)}."] if parts else []
    return " ".join(told)


def capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]
