"""Theorems 4.4 and 4.6 of the balanced paper, the bounds that its loss is made of, on encoders."""

import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from experiments.balanced import alpha_lambda, seeds, settings
from experiments.balanced.bound_figure import bound_figure
from experiments.reproduction import Context, Reproduction, Result, scale
from experiments.statistics import Rows, by
from hypersphere_jax import data, theory
from hypersphere_jax.config import ObjectiveConfig, require
from hypersphere_jax.data.subsets import uniform
from hypersphere_jax.evaluate.features import pair_features
from hypersphere_jax.training import objectives, run_folder, sharding

VIEWS = 16  # whose mean is the expectation over augmentations; another one is the anchor
IMAGES = {"laptop": 100, "paper": 10}  # of a class, at most
ALPHAS = (1.0, 2.0, 4.0, 8.0, 16.0)
ROUNDING = 1e-5  # of float32 sums, divided by nu
DRAWN = 4  # encoders whose anchors are drawn
ABOUT = ("loss", "alpha", "lambda", "seed")
CELLS = ("holds (%)", "left", "right", "mean gap", "least gap", "largest gap")
BEST = (settings.BALANCED, *alpha_lambda.BEST[alpha_lambda.FIGURE4][settings.BALANCED])


class EncoderFeatures(NamedTuple):
    """An encoder, and its features of as many test images of each class."""

    loss: str  # that it was trained with, whose alpha and lambda follow
    alpha: float
    lam: float
    seed: int
    anchors: np.ndarray  # [n, d], one view of each image
    views: np.ndarray  # [VIEWS, n, d], others of the same images
    labels: np.ndarray  # [n], from 0
    classes: int

    @property
    def name(self) -> str:
        return f"{self.loss}, alpha {self.alpha:g}, lambda {self.lam:g}, seed {self.seed}"


class Sides(NamedTuple):
    """Of an encoder both sides of a bound, and where its condition is met, `[n]` each."""

    encoder: EncoderFeatures
    left: np.ndarray
    right: np.ndarray  # the upper bound
    allowed: np.ndarray

    @property
    def gap(self) -> np.ndarray:
        return self.right - self.left

    @property
    def holds(self) -> np.ndarray:
        return self.left <= self.right + ROUNDING

    def cells(self, *alpha: float) -> list:
        """Of the table: ABOUT, alpha of the bound where it has one, and CELLS."""
        of, gap = self.encoder, self.gap
        means = [_mean(values) for values in (self.left, self.right, gap)]
        ends = [float(gap.min()), float(gap.max())]
        about = [of.loss, of.alpha, of.lam, of.seed]
        return [*about, *alpha, _percent(self.holds), *means, *ends]


def encoders(context: Context, rows: Rows) -> Iterator[EncoderFeatures]:
    """The encoders that are done, one at a time."""
    runs = by(rows, "run")
    require(bool(runs), "none of the encoders is done: nothing to check the theorem on")
    devices = sharding.local_devices(1)
    for run in runs:
        encoder = run_folder.load_encoder(context.runs_dir / run)
        # All encoders are one program, which is compiled once only if it is kept.
        sharding.keep_compiled(encoder.config.runtime.cache_dir)
        test = run_folder.test_split(data.load(encoder.config.data))
        known, sizes = np.unique(test.labels[test.labels >= 0], return_counts=True)
        each = min(int(sizes.min()), IMAGES[context.scale])
        images = uniform(test, 0, each * len(known))
        pairs = [pair_features(encoder, images, devices, seed) for seed in range(VIEWS // 2 + 1)]
        yield EncoderFeatures(
            encoder.config.objective.loss,
            *strengths(encoder.config.objective),
            encoder.config.seed,
            pairs[-1][0],
            np.stack([view for pair in pairs[:-1] for view in pair]),
            np.searchsorted(known, images.labels),
            len(known),
        )


def strengths(objective: ObjectiveConfig) -> tuple[float, float]:
    """Alpha and lambda of a loss; NT-Xent is the generalized one at 1 / tau and 1."""
    given = objectives.settings(objective)
    if objective.loss == "nt_xent":
        return 1 / given["tau"], 1.0
    return given["alpha"], given["lam"]


def attracting(context: Context, rows: Rows) -> Result:
    """Theorem 4.4: the view's similarity to the mean of views, and its mean similarity to them."""
    compute = jax.jit(theory.attracting_bound)
    table, checked = [], []
    for one in encoders(context, rows):
        sides = Sides(one, *map(np.asarray, compute(one.anchors, one.views)))
        norm = np.linalg.norm(one.views.mean(axis=0), axis=1)
        table.append([*sides.cells(), _mean(norm), _percent(sides.allowed)])
        checked.append(sides)
    _draw(context.figure, checked)
    holds, assumed, gaps = (_joined(checked, name) for name in ("holds", "allowed", "gap"))
    within = holds[assumed]
    # Without Assumption 4.3 the theorem says nothing.
    exactly = bool(((holds == assumed) | (np.abs(gaps) < ROUNDING)).all())
    least, largest, which = _least_and_largest(checked)
    text = [
        "The theorem: to pull a view of an image towards the mean of all its views (their "
        "prototype), it is enough to pull it towards single other views, as a loss of pairs does. "
        "For features f of unit norm, and s the cosine, -s(f, E f') <= -E s(f, f'): what is meant "
        "to be small, on the left, lies below what the loss makes small. Assumption 4.3 is part of "
        "it: the view and the mean are at no obtuse angle.",
        f"Computed on {len(checked[0].left)} test images, as many of each class: one random view "
        f"of each is f, {VIEWS} others are f', and the expectation is the mean over these, of "
        "which the theorem holds as of any distribution.",
        f"The bound holds for {_percent(within):.2f}% of the {len(within)} anchors of "
        f"{len(checked)} encoder(s) for which Assumption 4.3 holds; of the other ones, "
        f"{len(holds) - len(within)}, "
        "the theorem says nothing. With m the mean of the views the sides are -f.m / |m| and "
        "-f.m, so that without the assumption the bound fails unless |m| = 1: here it "
        f"{'holds exactly' if exactly else 'does NOT hold exactly'} where the assumption does."
        + _failing(checked),
        f"The gap is f.m (1/|m| - 1): it closes as the views of an image come together. On "
        f"average over anchors it is {least:.4f} to {largest:.4f} by encoder, {which}",
    ]
    columns = [*ABOUT, *CELLS, "norm of m", "Assumption 4.3 (%)"]
    verdict = (
        f"the bound holds for {_percent(within):.2f}% of the anchors that Assumption 4.3 holds for "
        f"({_percent(assumed):.2f}% of all), over {len(checked)} encoder(s); mean "
        f"gap {least:.4f} to {largest:.4f}"
    )
    title = "Theorem 4.4: upper bound of the attracting component"
    caption = "Both sides of (8) of each anchor, and the gap of each encoder"
    return Result(title, columns, table, [(context.figure, caption)], text, verdict)


def repelling(context: Context, rows: Rows) -> Result:
    """Theorem 4.6: similarity to the nearest other class, and the log-mean-exp over all images."""
    table, checked = [], []
    for one in encoders(context, rows):
        sides, line = _repelling(one, one.alpha)
        table.append(line)
        checked.append(sides)
    chosen = next((sides for sides in checked if sides.encoder[:3] == BEST), checked[0]).encoder
    swept = [_repelling(chosen, alpha) for alpha in ALPHAS]
    table += [line for _, line in swept]
    sweep = {
        "alpha": np.array(ALPHAS),
        "left": np.array([_mean(sides.left) for sides, _ in swept]),
        "right": np.array([_mean(sides.right) for sides, _ in swept]),
        "slack": np.array([line[-1] for _, line in swept]),
    }
    _draw(context.figure, checked, sweep)
    holds, allowed, right = (_joined(checked, name) for name in ("holds", "allowed", "right"))
    broken, void = int((~holds & allowed).sum()), right >= 1
    least, largest, which = _least_and_largest(checked)
    classes, n = chosen.classes, len(checked[0].left)
    gap = sweep["right"] - sweep["left"]
    text = [
        "The theorem: to push a view of an image away from the classes that are not its own, it is "
        "enough to push it away from all images, as a loss without labels does. For features f of "
        "unit norm and n classes of equal size, the cosine of f with the mean of the nearest other "
        "class lies below (1/nu) (E log E' exp(alpha s(f, f')) + log n) / alpha. E' is over all "
        "images, E over augmentations, and nu the least norm of the mean of another class, small "
        "where the views of a class lie far apart.",
        f"Computed on {n} test images, as many of each of {classes} classes (Assumption 4.5): one "
        f"random view of each is f, f' is view number j of any image, and E the mean over {VIEWS} "
        "values of j. Alpha of the bound is that of the encoder's own loss, in all rows but the "
        f"last {len(ALPHAS)}, which are one encoder ({chosen.name}) over alpha.",
        "The proof has a gap: where an anchor points away from every other class, it divides a "
        "negative number by nu <= 1 and calls the result larger (step (iv) of Case 1, (38)). So "
        "the theorem is proved only where the bracket, the right side times nu, is not negative. "
        "That is so where the anchor is at no obtuse angle to the mean of one class at least, such "
        "as its own, and for any features if alpha <= log n. Otherwise it can fail: three classes "
        "on the circle, two images each, at 180 and 180, 120 and 240, 135 and 135 degrees, an "
        "anchor of the first at 0, alpha = 4: the left side is -0.707, the right one -0.774. What "
        "the proof does show is that the left side is at most the larger of the bracket and "
        "bracket / nu.",
        f"The bound holds for {_percent(holds):.2f}% of the {len(holds)} anchors of {len(checked)} "
        f"encoder(s); the bracket is not negative for {_percent(allowed):.2f}%."
        + _failing(checked)
        + (
            f" For {broken} anchors the bound fails although the bracket is not negative: that "
            "must not be."
            if broken
            else " Wherever it is not negative, the bound holds."
        ),
        f"How tight it is: on average over anchors the gap is {least:.3f} to {largest:.3f} by "
        f"encoder, {which} Two cosines differ by 2 at most, and a right side of 1 or more, as "
        f"{_percent(void):.2f}% of the anchors have it, says nothing of a cosine.",
        f"Over alpha, of one encoder: the gap is {', '.join(f'{each:.3f}' for each in gap)} at "
        f"alpha = {', '.join(f'{alpha:g}' for alpha in ALPHAS)}; the least of these at "
        f"alpha = {ALPHAS[int(gap.argmin())]:g}. The part log(n) / (nu alpha) goes to zero, the "
        "gap does not: as alpha grows, the log-mean-exp goes to the similarity of the nearest "
        "image of all, which may be of the anchor's own class, or the anchor's own image.",
    ]
    columns = [*ABOUT, "alpha of (10)", *CELLS, "nu", "bracket >= 0 (%)", "log(n) / (nu alpha)"]
    verdict = (
        f"the bound holds for {_percent(holds):.2f}% of the anchors of {len(checked)} encoder(s) "
        f"(bracket >= 0 for {_percent(allowed):.2f}%), with a mean gap of {least:.3f} to "
        f"{largest:.3f}, its right side being 1 or more for {_percent(void):.2f}%; the proof has a "
        "gap, and a counterexample is given"
    )
    title = "Theorem 4.6: upper bound of the repelling component"
    caption = "Both sides of (10) of each anchor, the gap of each encoder, and one over alpha"
    return Result(title, columns, table, [(context.figure, caption)], text, verdict)


@functools.partial(jax.jit, static_argnames="classes")
def _bound(anchors, labels, views, alpha, classes):
    return theory.repelling_bound(anchors, labels, views, labels, alpha, classes)


def _repelling(one: EncoderFeatures, alpha: float) -> tuple[Sides, list]:
    """Both sides, and the line of the table, of one encoder."""
    bound = _bound(one.anchors, one.labels, one.views, alpha, one.classes)
    left, right, bracket, nu = map(np.asarray, bound)
    sides, slack = Sides(one, left, right, bracket >= 0), math.log(one.classes) / alpha / nu
    return sides, [*sides.cells(alpha), _mean(nu), _percent(sides.allowed), _mean(slack)]


def _draw(path: Path, checked: list[Sides], sweep: dict | None = None) -> None:
    """Anchors of a few encoders, from the first to the last, and the gaps of all."""
    places = np.unique(np.linspace(0, len(checked) - 1, DRAWN).round().astype(int))
    anchors = {checked[i].encoder.name: (checked[i].left, checked[i].right) for i in places}
    keys = ("loss", "alpha", "lam", "mean", "least", "largest")
    gaps = [(*sides.encoder[:3], *sides.cells()[-3:]) for sides in checked]
    bound_figure(anchors, [dict(zip(keys, gap, strict=True)) for gap in gaps], path, sweep)


def _least_and_largest(checked: list[Sides]) -> tuple[float, float, str]:
    """Mean gaps of two encoders, and which these are."""
    ordered = sorted((_mean(sides.gap), sides.encoder.name) for sides in checked)
    (least, nearest), (largest, farthest) = ordered[0], ordered[-1]
    return least, largest, f"the least with {nearest}, the largest with {farthest}."


def _failing(checked: list[Sides]) -> str:
    """With which encoders a bound fails, and how often; nothing where it always holds."""
    listed = "; ".join(
        f"{sides.encoder.name} ({(~sides.holds).sum()} of {len(sides.left)} anchors)"
        for sides in checked
        if not sides.holds.all()
    )
    return f" It fails with {listed}." if listed else ""


def _joined(checked: list[Sides], name: str) -> np.ndarray:
    return np.concatenate([getattr(sides, name) for sides in checked])


def _mean(values: np.ndarray) -> float:
    return float(np.mean(values, dtype=np.float64))


def _percent(values: np.ndarray) -> float:
    return 100 * _mean(values)


def _theorem(title: str, result: Callable[[Context, Rows], Result]) -> Reproduction:
    best = alpha_lambda.BEST[alpha_lambda.FIGURE4]
    grid = functools.partial(alpha_lambda.plan, settings.DIGITS)
    chosen = functools.partial(seeds.plan, settings.IMAGENET, best)
    scales = scale("digits", grid), scale("imagenet2012", chosen)
    return Reproduction(title, result, *scales)


REPRODUCTIONS = {
    "balanced/theorem4.4": _theorem(
        "the bound of the attracting component, on encoders", attracting
    ),
    "balanced/theorem4.6": _theorem("the bound of the repelling component, on encoders", repelling),
}
