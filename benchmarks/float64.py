"""The losses once more in float64, in NumPy: their values, and their gradients at some points.

All pairwise losses of two sets of points are made of the same sums, `log sum_j e^{x_i . y_j / tau}`
over the other points of the same set and of the other one. So one pass over the n^2 products of
each pair of sets serves all of them, in blocks. The points' norms are at most 1, but for rounding.
"""

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

import hypersphere_jax as hj

BLOCK = 2**24  # numbers of a block of products
Array = np.ndarray
Reference = tuple[float, list[Array]]  # the value, and gradients at the chosen points


class Block(NamedTuple):
    """Sums over pairs of two sets of points, of `e^{x_i . y_j / tau}` as logs: rows and columns.

    `near` is the sum of `e^{-|x_i - y_j|^2 / (2 tau)}` over all pairs.
    """

    rows: Array
    columns: Array
    near: float


class Sums:
    """Of points x and y `[n, d]`: all that the losses need of their pairs.

    A point and its own positive, or itself, are no pair here.
    """

    def __init__(self, x: Array, y: Array, labels: Array, tau: float):
        self.x, self.y, self.labels, self.tau = np.float64(x), np.float64(y), labels, tau
        self.positives = np.sum(self.x * self.y, axis=1) / tau

    @functools.cached_property
    def cross(self) -> Block:
        return self._summed(self.x, self.y)

    @functools.cached_property
    def within(self) -> tuple[Block, Block]:
        return self._summed(self.x, self.x), self._summed(self.y, self.y)

    def exponentials(self, a: Array, rows: Array, b: Array) -> Array:
        """`e^{(a_i . b_j - 1) / tau}` of some rows; 0 for i = j."""
        e = a[rows] @ b.T
        e -= 1
        e /= self.tau
        np.exp(e, out=e)
        e[np.arange(len(rows)), rows] = 0
        return e

    def lift(self, a: Array) -> Array:
        """Factors that make exponentials of products those of squared distances."""
        return np.exp((1 - np.sum(a**2, axis=1)) / (2 * self.tau))

    def _summed(self, a: Array, b: Array) -> Block:
        n = len(a)
        lifts, size = (self.lift(a), self.lift(b)), max(1, BLOCK // n)
        blocks = [np.arange(i, min(n, i + size)) for i in range(0, n, size)]

        def of(rows):
            e = self.exponentials(a, rows, b)
            return e.sum(1), e.sum(0), lifts[0][rows] @ (e @ lifts[1])

        columns, near, sums = np.zeros(n), 0.0, []
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for row_sums, column_sums, near_sum in pool.map(of, blocks):
                sums.append(row_sums)
                columns, near = columns + column_sums, near + near_sum
        with np.errstate(divide="ignore"):
            logs = (np.log(each) + 1 / self.tau for each in (np.concatenate(sums), columns))
        return Block(*logs, near)

    def pull(self, a: Array, b: Array, at: Array, own: Array, others: Array) -> Array:
        """`sum_j (own_i + others_j) e^{a_i . b_j / tau} b_j / tau` of some i.

        own and others are logs.
        """
        e = self.exponentials(a, at, b)
        with np.errstate(divide="ignore"):
            e *= np.exp(own + 1 / self.tau)[at, None] + np.exp(others + 1 / self.tau)[None]
        return e @ b / self.tau


def entropies(
    sums: Sums, at: Array, terms: str, factor: float, slope: float, views: int = 2
) -> Reference:
    """The mean over anchors of `factor log(sum) + slope p`, by which most losses differ.

    Args:
      sums: of the points.
      at: the points whose gradients are asked for.
      terms: what the sum has, each as often as named: the anchor's positive (p, its logit), the
        other points of the other view (c), and of its own (w).
      factor: of the log-sum-exp.
      slope: of the logit of the positive.
      views: whose points are anchors; with one of them, the gradient is that of x.
    """
    n, weight = len(sums.positives), 1 / (views * len(sums.positives))
    nothing = np.full(n, -np.inf)
    value, by_positive = 0.0, np.zeros(n)
    logs: dict[str, list[Array]] = {"c": [nothing, nothing], "w": [nothing, nothing]}
    for view in range(views):
        of = {"p": sums.positives}
        if "c" in terms:
            of["c"] = sums.cross.rows if view == 0 else sums.cross.columns
        if "w" in terms:
            of["w"] = sums.within[view].rows
        total = functools.reduce(np.logaddexp, [of[term] for term in terms])
        value += weight * np.sum(factor * total + slope * sums.positives)
        by_positive += weight * (slope + factor * terms.count("p") * np.exp(of["p"] - total))
        for term in "cw":  # the log of the slope by each exponential in this anchor's sum
            if term in terms:
                logs[term][view] = np.log(weight * factor) - total
    gradients = []
    for view in range(views):
        own, other = (sums.x, sums.y) if view == 0 else (sums.y, sums.x)
        gradient = by_positive[at, None] * other[at] / sums.tau
        if "c" in terms:
            gradient += sums.pull(own, other, at, logs["c"][view], logs["c"][1 - view])
        if "w" in terms:
            gradient += sums.pull(own, own, at, logs["w"][view], logs["w"][view])
        gradients.append(gradient)
    return value, gradients


def near(sums: Sums, at: Array, side: int = 0) -> tuple[float, Array]:
    """The sum of `e^{-t |x_i - x_j|^2}`, t = 1 / (2 tau), over i != j; its gradient at points."""
    x = (sums.x, sums.y)[side]
    return sums.within[side].near, 2 * _near_gradient(sums, x, x, at)


def _near_gradient(sums: Sums, a: Array, b: Array, at: Array) -> Array:
    weights = sums.exponentials(a, at, b) * sums.lift(a)[at, None] * sums.lift(b)[None]
    return (weights @ b - weights.sum(1)[:, None] * a[at]) / sums.tau


def uniform(sums: Sums, at: Array, side: int = 0) -> Reference:
    total, gradient = near(sums, at, side)
    n = len(sums.x)
    return np.log(total) - np.log(n * (n - 1)), [gradient / total]


def queue(sums: Sums, at: Array) -> Reference:
    """X as queries, y as the queue, where the positives' pairs count as well."""
    n, x, y = len(sums.x), sums.x, sums.y
    apart = x - y
    positive = np.exp(-np.sum(apart**2, axis=1) / (2 * sums.tau))
    among, slope = near(sums, at)
    total = sums.cross.near + positive.sum() + among / 2
    across = _near_gradient(sums, x, y, at) - positive[at, None] * apart[at] / sums.tau
    return np.log(total) - np.log(n * n + n * (n - 1) / 2), [(across + slope / 2) / total]


def info_nce(sums: Sums, at: Array) -> Reference:
    """The first half of x as queries, of y as keys; the second half of y as negatives."""
    half, tau = len(sums.x) // 2, sums.tau
    x, y, others = sums.x[:half], sums.y[:half], sums.y[half:]
    blocks = np.array_split(np.arange(half), max(1, half * len(others) // BLOCK))
    logs = [np.log(np.exp((x[rows] @ others.T - 1) / tau).sum(1)) + 1 / tau for rows in blocks]
    apart = np.concatenate(logs) - sums.positives[:half]
    total = sums.positives[:half] + np.logaddexp(0, apart)
    at_queries = at[at < half]
    weights = np.exp(x[at_queries] @ others.T / tau - total[at_queries, None])
    slopes = np.expm1(-np.logaddexp(0, apart))[at_queries, None]
    gradient = np.zeros((len(at), x.shape[1]))
    gradient[at < half] = (weights @ others + slopes * y[at_queries]) / (half * tau)
    return np.mean(np.logaddexp(0, apart)), [gradient]


def supervised(sums: Sums, at: Array) -> Reference:
    """Of x, whose classes all have two points or more."""
    value, (gradient,) = entropies(sums, at, "w", 1.0, 0.0, views=1)
    n, labels, x = len(sums.x), sums.labels, sums.x
    totals = np.zeros((labels.max() + 1, x.shape[1]))
    np.add.at(totals, labels, x)
    others = (totals[labels] - x) / (np.bincount(labels)[labels] - 1)[:, None]
    attraction = np.sum(x * others) / (n * sums.tau)
    return value - attraction, [gradient - 2 * others[at] / (n * sums.tau)]


def align(sums: Sums, at: Array) -> Reference:
    apart, n = sums.x - sums.y, len(sums.x)
    return np.sum(apart**2) / n, [2 * apart[at] / n, -2 * apart[at] / n]


def _neighbours(n: int) -> list[tuple[Array, Array, Array]]:
    """Indices i and j = i + 1 or i - 1, and the weight of j as a positive of i."""
    counts = np.full(n, 2.0)
    counts[[0, -1]] = 1
    first, second = np.arange(n - 1), np.arange(1, n)
    return [(i, j, 1 / counts[i]) for i, j in ((first, second), (second, first))]


def quick_thought_contrastive(sums: Sums, at: Array) -> Reference:
    n, x, y, tau = len(sums.x), sums.x, sums.y, sums.tau
    value, (of_x,) = entropies(sums, at, "pc", 1.0, 0.0, views=1)
    total = np.logaddexp(sums.positives, sums.cross.rows)
    own = np.exp(sums.positives - total)[:, None] * x / (n * tau)
    of_y = own[at] + sums.pull(y, x, at, np.full(n, -np.inf), -np.log(n) - total)
    pull_x, pull_y = np.zeros_like(x), np.zeros_like(y)
    for i, j, weight in _neighbours(n):
        value -= np.sum(weight * np.sum(x[i] * y[j], axis=1)) / (n * tau)
        np.add.at(pull_x, i, weight[:, None] * y[j] / (n * tau))
        np.add.at(pull_y, j, weight[:, None] * x[i] / (n * tau))
    return value, [of_x - pull_x[at], of_y - pull_y[at]]


def quick_thought_align(sums: Sums, at: Array) -> Reference:
    n, value, gradients = len(sums.x), 0.0, (np.zeros_like(sums.x), np.zeros_like(sums.y))
    for i, j, weight in _neighbours(n):
        apart = weight[:, None] * (sums.x[i] - sums.y[j])
        value += np.sum(apart * (sums.x[i] - sums.y[j])) / n
        for gradient, rows, sign in zip(gradients, (i, j), (2, -2), strict=True):
            np.add.at(gradient, rows, sign * apart / n)
    return value, [gradient[at] for gradient in gradients]


def quick_thought_uniform(sums: Sums, at: Array) -> Reference:
    values, gradients = zip(*(uniform(sums, at, side) for side in (0, 1)), strict=True)
    return sum(values), [gradient for (gradient,) in gradients]


def sliced_wasserstein(sums: Sums, at: Array) -> Reference:
    """X as features, y as samples of the prior, along the axes."""
    order = np.argsort(sums.x, axis=0, kind="stable")
    apart = np.take_along_axis(sums.x, order, axis=0) - np.sort(sums.y, axis=0)
    gradient = np.empty_like(sums.x)
    np.put_along_axis(gradient, order, 2 * apart / apart.size, axis=0)
    return np.mean(apart**2), [gradient[at]]


class Case(NamedTuple):
    """A loss of (x, y, labels), what it is in float64, and whether it has gradients of y, too."""

    loss: Callable
    reference: Callable[[Sums, Array], Reference]
    sides: int
    pairwise: bool = True  # whether it takes `precision`


def cases(tau: float, dim: int) -> Mapping[str, Case]:
    """All losses at a temperature: t = 1 / (2 tau), alpha = 1 / tau.

    Left out is what draws its prior at random; its parts are here.
    """

    def made_of(terms: str, factor: float, slope: float, views: int = 2) -> Callable:
        return functools.partial(entropies, terms=terms, factor=factor, slope=slope, views=views)

    t, lam, axes = 1 / (2 * tau), 0.5, np.eye(dim, dtype=np.float32)

    def of_two(loss: Callable, reference: Callable, **options) -> Case:
        return Case(lambda x, y, _, **how: loss(x, y, **options, **how), reference, 2)

    return {
        "align": Case(lambda x, y, _: hj.align_loss(x, y), align, 2, pairwise=False),
        "uniform": Case(lambda x, y, _, **how: hj.uniform_loss(x, t, **how), uniform, 1),
        "uniform_queue": Case(
            lambda x, y, _, **how: hj.uniform_queue_loss(x, y, t, **how), queue, 1
        ),
        "contrastive": of_two(hj.contrastive_loss, made_of("pc", 1, -1), tau=tau),
        "dcl": of_two(hj.dcl_loss, made_of("c", 1, -1), tau=tau),
        "info_nce": Case(_info_nce(tau), info_nce, 1),
        "nt_xent": of_two(hj.nt_xent_loss, made_of("pcw", 1, -1), tau=tau, similarity="dot"),
        "decoupled_nt_xent": of_two(
            hj.decoupled_nt_xent_loss, made_of("pcw", lam, -tau), tau=tau, lam=lam
        ),
        "generalized_nt_xent": of_two(
            hj.generalized_nt_xent_loss, made_of("pcw", lam * tau, -tau), alpha=1 / tau, lam=lam
        ),
        "balanced_contrastive": of_two(
            hj.balanced_contrastive_loss, made_of("cw", lam * tau, -tau), alpha=1 / tau, lam=lam
        ),
        "logsumexp": Case(
            lambda x, y, _, **how: hj.logsumexp_loss(x, tau, **how), made_of("w", 1, 0, 1), 1
        ),
        "supervised_contrastive": Case(
            lambda x, y, labels, **how: hj.supervised_contrastive_loss(x, labels, tau, **how),
            supervised,
            1,
        ),
        "quick_thought_contrastive": of_two(
            hj.quick_thought_contrastive_loss, quick_thought_contrastive, tau=tau
        ),
        "quick_thought_align": Case(
            lambda x, y, _: hj.quick_thought_align_loss(x, y, 2.0),
            quick_thought_align,
            2,
            pairwise=False,
        ),
        "quick_thought_uniform": of_two(hj.quick_thought_uniform_loss, quick_thought_uniform, t=t),
        "sliced_wasserstein": Case(
            lambda x, y, _: hj.sliced_wasserstein_loss(x, y, axes),
            sliced_wasserstein,
            1,
            pairwise=False,
        ),
    }


def _info_nce(tau: float) -> Callable:
    def loss(x, y, _, **how):
        half = len(x) // 2
        return hj.info_nce_loss(x[:half], y[:half], y[half:], tau, **how)

    return loss


def points(n: int, dim: int, classes: int = 10) -> tuple[Array, Array, Array]:
    """X and y `[n, d]` as of a trained encoder, of float32, and the classes they lie around.

    A tenth of the positives are those of the next point, so that no loss is next to zero.
    """
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.arange(n) % min(classes, max(1, n // 2)))
    centres = rng.standard_normal((classes, dim))
    x = centres[labels] + 0.7 * rng.standard_normal((n, dim))
    partner = np.arange(n)
    partner[::10] = (partner[::10] + 1) % n
    y = x[partner] + 0.3 * rng.standard_normal((n, dim))
    x, y = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (x, y))
    return np.float32(x), np.float32(y), labels.astype(np.int32)


def error(found: Sequence[Array], wanted: Sequence[Array]) -> float:
    """The norm of the difference, relative to that of the wanted arrays."""
    one, other = (
        np.concatenate([np.ravel(np.float64(a)) for a in each]) for each in (found, wanted)
    )
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))
