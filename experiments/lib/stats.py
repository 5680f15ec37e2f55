"""Estimates with intervals, and the rule that turns them into a verdict.

Three instruments measure an encoder: logistic regression on standardized features, 5-NN, and the
paper's own probe. The first two decide. A comparison is *supported* if both differ from the level
in the claimed direction at 5%, after Holm's correction over the comparisons that are judged
together. It is *not supported* if both differ in the opposite direction, and *inconclusive*
otherwise. Intervals treat seeds and test samples as random.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from experiments.lib.records import PREDICTIONS, Rows, column, correct, finished, group_by
from hypersphere_jax.configs import require
from hypersphere_jax.evaluation.estimates import students_t

ALPHA = 0.05
DRAWS = 2000  # of the bootstrap
PAPER_PROBE = "linear"
INSTRUMENTS = ("logistic", "knn5", PAPER_PROBE)
LAYERS = ("backbone", "output")
SUPPORTED = "supported"
NOT_SUPPORTED = "not supported"
INCONCLUSIVE = "inconclusive"


class Estimate(NamedTuple):
    """An effect with its 95% interval and two-sided p-value.

    `single_seed` marks an effect with one encoder on a side: its interval ignores seed variance.
    """

    effect: float
    low: float
    high: float
    p: float
    single_seed: bool = False


@dataclass(frozen=True)
class Comparison:
    """A claim about an effect, with its estimate by each instrument."""

    claim: str
    estimates: Mapping[str, Estimate]  # by instrument
    expected: int = 1  # sign of (effect - level) that the claim predicts
    level: float = 0.0
    labels: Mapping[str, Any] = field(default_factory=dict)  # extra columns, e.g. data and layer

    @property
    def deciding(self) -> list[Estimate]:
        """Estimates of all instruments except the paper's probe."""
        return [each for name, each in self.estimates.items() if name != PAPER_PROBE]

    def verdict(self, p: float) -> str:
        """Return the verdict at a p-value that is corrected for the number of comparisons."""
        signs = {int(np.sign(each.effect - self.level)) for each in self.deciding}
        has_single_seed = any(each.single_seed for each in self.deciding)
        if p >= ALPHA or len(signs) > 1 or has_single_seed:
            return INCONCLUSIVE
        return SUPPORTED if signs == {self.expected} else NOT_SUPPORTED


def judge(comparisons: Sequence[Comparison]) -> Rows:
    """Return a tidy row per comparison and instrument; Holm's correction counts all comparisons."""
    rows: Rows = []
    # All deciding instruments have to reject.
    largest = [max(each.p for each in comparison.deciding) for comparison in comparisons]
    corrected = holm(largest)
    for comparison, p_holm in zip(comparisons, corrected, strict=True):
        verdict = comparison.verdict(p_holm)
        for instrument, estimate in comparison.estimates.items():
            row = {"claim": comparison.claim, **comparison.labels, "instrument": instrument}
            numbers = estimate._asdict() | {"p_holm": p_holm, "verdict": verdict}
            del numbers["single_seed"]
            rows.append(row | numbers)
    return rows


def check(claim: str, holds: bool, value: float, **numbers: Any) -> dict[str, Any]:
    """Return a tidy row for an exact or numerical check, which needs no test."""
    verdict = SUPPORTED if holds else NOT_SUPPORTED
    return {"claim": claim, "effect": float(value), **numbers, "verdict": verdict}


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm, 1979), in the given order."""
    order = np.argsort(p_values, kind="stable")
    scaled = np.asarray(p_values, float)[order] * (len(p_values) - np.arange(len(p_values)))
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(1, np.maximum.accumulate(scaled))
    return corrected.tolist()


def contrast(
    settings: Sequence[np.ndarray],
    weights: Sequence[float],
    level: float = 0.0,
    paired: bool = False,
) -> Estimate:
    """Return a weighted sum of mean accuracies minus a level between 0 and 1, in points.

    The squared standard error adds the variance over each setting's seeds (over each seed's sum if
    `paired`) and the variance over test samples of the sum of means. Both contain the interaction
    of seeds and samples, so the interval is conservative. Degrees of freedom are Satterthwaite's.

    A setting has booleans `[seeds, n]`: which samples were classified correctly. With `paired`, row
    i of all settings belongs to the same seed.
    """
    sides = [weight * np.asarray(of, float) for weight, of in zip(weights, settings, strict=True)]
    by_seed = [np.sum(sides, axis=0)] if paired else sides
    parts = _seed_variances([side.mean(axis=1) for side in by_seed])
    samples = np.sum([side.mean(axis=0) for side in sides], axis=0) - level
    parts.append((samples.var(ddof=1) / len(samples), len(samples) - 1))
    interval, p = students_t(float(samples.mean()), parts)
    single_seed = min(map(len, sides)) == 1
    return Estimate(*(100 * float(end) for end in interval), p, single_seed)


def _seed_variances(sides: Sequence[np.ndarray]) -> list[tuple[float, int]]:
    """Return the variance of the mean over seeds of each side, with its degrees of freedom."""
    return [(side.var(ddof=1) / len(side), len(side) - 1) for side in sides if len(side) > 1]


def accuracy(rows: Rows, score: str) -> Estimate:
    """Return the mean accuracy of encoders in percent."""
    return contrast([correct(rows, score)], [1])


def columns_of(layer: str) -> dict[str, str]:
    """Return the score column of each instrument, e.g. `output_knn5`."""
    return {instrument: f"{layer}_{instrument}" for instrument in INSTRUMENTS}


def layers_of(rows: Rows, layers: Sequence[str] = LAYERS) -> list[str]:
    """Return the layers that all rows have accuracies of."""
    return [layer for layer in layers if all(f"{layer}_logistic" in row for row in rows)]


def compare(
    a: Rows, b: Rows, columns: Mapping[str, str], paired: bool = False, level: float = 0.0
) -> dict[str, Estimate]:
    """Return the accuracy of encoders a minus the accuracy of encoders b, by instrument.

    With `paired`, seeds that both sides have are compared with each other. The level is in points.
    """
    if paired:
        seeds_a = {row["seed"]: row for row in a}
        seeds_b = {row["seed"]: row for row in b}
        shared = [seed for seed in seeds_a if seed in seeds_b]
        require(bool(shared), "no seed is done on both sides of a paired comparison")
        a = [seeds_a[seed] for seed in shared]
        b = [seeds_b[seed] for seed in shared]
    return {
        instrument: contrast([correct(a, score), correct(b, score)], [1, -1], level / 100, paired)
        for instrument, score in columns.items()
    }


class Claim(NamedTuple):
    """A claim that encoders `better` are more accurate than encoders `worse`."""

    text: str
    better: Rows
    worse: Rows
    labels: Mapping[str, Any] = {}


def judge_accuracies(
    claims: Sequence[Claim],
    layers: Sequence[str] = LAYERS,
    paired: bool = False,
    expected: int = 1,
) -> Rows:
    """Judge claims on each layer that was evaluated; Holm's correction counts a layer's claims.

    With `paired`, encoders of equal seeds are compared. `expected` is -1 if the claims predict that
    the first side is worse.
    """
    table: Rows = []
    for layer in layers_of(claims[0].better, layers):
        comparisons = []
        for text, better, worse, labels in claims:
            estimates = compare(better, worse, columns_of(layer), paired)
            comparisons.append(Comparison(text, estimates, expected, 0, {**labels, "layer": layer}))
        table += judge(comparisons)
    return table


def seed_difference(a: np.ndarray, b: np.ndarray | None = None) -> Estimate:
    """Return the mean of a minus the mean of b over seeds, by Welch's t, or the mean of a."""
    sides = [a] if b is None else [a, b]
    effect = float(a.mean()) if b is None else float(a.mean() - b.mean())
    parts = _seed_variances(sides)
    single_seed = len(parts) < len(sides)
    if single_seed or not any(part for part, _ in parts):
        return Estimate(effect, math.nan, math.nan, 1.0, single_seed)
    interval, p = students_t(effect, parts)
    return Estimate(*interval, p)


def resample(
    settings: Sequence[np.ndarray], values: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean accuracies and mean values `[settings, draws]` with resampled seeds and samples.

    This is the pigeonhole bootstrap (Owen, 2007). Samples are drawn once for all settings, seeds
    per setting. Deviations over k seeds are scaled by sqrt(k / (k - 1)). A setting has booleans
    `[seeds, n]` and values `[seeds]`.
    """
    random = np.random.default_rng(1)
    samples = _sample_weights(settings[0].shape[1])
    drawn = np.concatenate(settings).astype(float) @ samples.T
    ends = np.cumsum([len(setting) for setting in settings])[:-1]
    means = []
    other_means = []
    for accuracies, others in zip(np.split(drawn, ends), values, strict=True):  # [seeds, draws]
        k = len(accuracies)
        counts = random.multinomial(k, np.full(k, 1 / k), size=DRAWS)
        weights = (1 + math.sqrt(k / max(1, k - 1)) * (counts - 1)) / k
        means.append((weights.T * accuracies).sum(axis=0))
        other_means.append(weights @ others)
    # Without rounding, equal means would get different ranks.
    return np.stack(means).round(9), np.stack(other_means).round(9)


@functools.cache
def _sample_weights(n: int) -> np.ndarray:
    """Return bootstrap weights of n samples, `[draws, n]`."""
    return np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=DRAWS) / n


def bootstrap(effect: float, draws: np.ndarray) -> Estimate:
    """Return an effect with the percentile interval of its draws, and p against 0."""
    low, high = np.quantile(draws, [ALPHA / 2, 1 - ALPHA / 2]).tolist()
    beyond = min(np.sum(draws <= 0), np.sum(draws >= 0))
    return Estimate(float(effect), low, high, min(1.0, 2 * float(1 + beyond) / (1 + len(draws))))


def summarize(rows: Rows, settings: Sequence[str]) -> Rows:
    """Return a row per setting: mean metrics and accuracies ± half of the 95% interval.

    `settings` are the columns that distinguish settings; rows without one of them are left out.
    """
    table = []
    complete = [row for row in finished(rows) if all(name in row for name in settings)]
    for group in group_by(complete, *settings).values():
        line = {name: group[0][name] for name in settings} | {"seeds": len(group)}
        for metric in ("align", "uniform", "final_loss"):
            if all(metric in row for row in group):
                line[metric] = float(column(group, metric).mean())
        for score in group[0].get(PREDICTIONS, {}):
            if all(score in row[PREDICTIONS] for row in group):
                mean = accuracy(group, score)
                line[score] = f"{mean.effect:.2f} ± {(mean.high - mean.low) / 2:.2f}"
        table.append(line)
    return table
