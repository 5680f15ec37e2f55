"""Theorems 4.4 and 4.6 of the balanced paper, the bounds that its loss is made of, on encoders."""

import functools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np

from experiments.balanced import grids, seeds, settings
from experiments.items import Context, Item, Scale
from experiments.measures import Rows
from experiments.shown import Shown
from hypersphere_jax import bounds, data, plots
from hypersphere_jax.config import ObjectiveConfig, require
from hypersphere_jax.data.subsets import uniform
from hypersphere_jax.evaluate.features import pair_features
from hypersphere_jax.train import objectives, run_folder, sharding

VIEWS = 16  # whose mean is the expectation over augmentations; another one is the anchor
IMAGES = {"laptop": 100, "paper": 10}  # of a class, at most
ALPHAS = (1.0, 2.0, 4.0, 8.0, 16.0)
ROUNDING = 1e-5  # of float32 sums, divided by nu
DRAWN = 4  # encoders whose anchors are drawn
ABOUT = ("loss", "alpha", "lambda", "seed")
CELLS = ("holds (%)", "left", "right", "mean gap", "least gap", "largest gap")
BEST = (settings.BALANCED, *map(float, grids.BEST[grids.FIGURE4][settings.BALANCED]))


class Seen(NamedTuple):
    """An encoder, and its features of as many test images of each class.

    Attributes:
      run: its name.
      loss: name of what it was trained with, whose `alpha` and `lam` follow.
      seed: of the training.
      anchors: `[n, d]`, one view of each image.
      views: `[VIEWS, n, d]`, others of the same images.
      labels: `[n]`, from 0.
      classes: their number.
    """

    run: str
    loss: str
    alpha: float
    lam: float
    seed: int
    anchors: np.ndarray
    views: np.ndarray
    labels: np.ndarray
    classes: int


class Sides(NamedTuple):
    """Of an encoder both sides of a bound, `[n]` each; `right` is the upper bound."""

    left: np.ndarray
    right: np.ndarray

    @property
    def gap(self) -> np.ndarray:
        """Right less left side."""
        return self.right - self.left

    @property
    def holds(self) -> np.ndarray:
        """Where the bound holds, up to rounding."""
        return self.left <= self.right + ROUNDING


def encoders(context: Context, rows: Rows) -> Iterator[Seen]:
    """The encoders that are done, one at a time."""
    done = dict.fromkeys(row["run"] for row in rows if row["status"] == "done")
    require(bool(done), "none of the encoders is done: nothing to check the theorem on")
    devices = sharding.local_devices(1)
    for run in done:
        encoder = run_folder.load_encoder(context.runs_dir / run)
        # All encoders are one program, which is compiled once only if it is kept.
        sharding.keep_compiled(encoder.config.runtime.cache_dir)
        test = run_folder.test_split(data.load(encoder.config.data))
        known, sizes = np.unique(test.labels[test.labels >= 0], return_counts=True)
        each = min(int(sizes.min()), IMAGES[context.scale])
        images = uniform(test, 0, each * len(known))
        pairs = [pair_features(encoder, images, devices, seed) for seed in range(VIEWS // 2 + 1)]
        alpha, lam = strengths(encoder.config.objective)
        yield Seen(
            run,
            encoder.config.objective.loss,
            alpha,
            lam,
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


def attracting(context: Context, rows: Rows) -> Shown:
    """Theorem 4.4: the view's similarity to the mean of views, and its mean similarity to them."""
    compute = jax.jit(bounds.attracting_bound)
    table, found = [], []
    for seen in encoders(context, rows):
        left, right, assumed = map(np.asarray, compute(seen.anchors, seen.views))
        sides = Sides(left, right)
        norm = np.linalg.norm(seen.views.mean(axis=0), axis=1)
        more = [_mean(norm), _percent(assumed)]
        table.append([*_about(seen), *_cells(sides), *more])
        # Without Assumption 4.3 the theorem says nothing.
        agree = (sides.holds == assumed) | (np.abs(sides.gap) < ROUNDING)
        found.append((seen, sides, assumed, bool(agree.all())))
    figure = _picture(context, [each[:2] for each in found])
    anchors = sum(len(sides.left) for _, sides, *_ in found)
    within = np.concatenate([sides.holds[assumed] for _, sides, assumed, _ in found])
    outside = anchors - len(within)
    exactly = all(agrees for *_, agrees in found)
    least, largest, which = _least_and_largest([each[:2] for each in found])
    images = len(found[0][1].left)
    text = [
        "The theorem: to pull a view of an image towards the mean of all its views (their "
        "prototype), it is enough to pull it towards single other views, as a loss of pairs does. "
        "For features f of unit norm, and s the cosine, -s(f, E f') <= -E s(f, f'): what is meant "
        "to be small, on the left, lies below what the loss makes small. Assumption 4.3 is part of "
        "it: the view and the mean are at no obtuse angle.",
        f"Computed on {images} test images, as many of each class: one random view of each is f, "
        f"{VIEWS} others are f', and the expectation is the mean over these, of which the theorem "
        "holds as of any distribution.",
        f"The bound holds for {_percent(within):.2f}% of the {len(within)} anchors of "
        f"{len(found)} encoder(s) for which Assumption 4.3 holds; of the other ones, {outside}, "
        "the theorem says nothing. With m the mean of the views the sides are -f.m / |m| and "
        "-f.m, so that without the assumption the bound fails unless |m| = 1: here it "
        f"{'holds exactly' if exactly else 'does NOT hold exactly'} where the assumption does."
        + _failing([each[:2] for each in found]),
        f"The gap is f.m (1/|m| - 1): it closes as the views of an image come together. On "
        f"average over anchors it is {least:.4f} to {largest:.4f} by encoder, {which}",
    ]
    columns = [*ABOUT, *CELLS, "norm of m", "Assumption 4.3 (%)"]
    verdict = (
        f"the bound holds for {_percent(within):.2f}% of the anchors that Assumption 4.3 holds for "
        f"({_percent([len(within) / anchors]):.2f}% of all), over {len(found)} encoder(s); mean "
        f"gap {least:.4f} to {largest:.4f}"
    )
    title = "Theorem 4.4: upper bound of the attracting component"
    caption = "Both sides of (8) of each anchor, and the gap of each encoder"
    return Shown(title, columns, table, [(figure, caption)], text, verdict)


def repelling(context: Context, rows: Rows) -> Shown:
    """Theorem 4.6: similarity to the nearest other class, and the log-mean-exp over all images."""
    table, found, swept, chosen = [], [], [], None
    for seen in encoders(context, rows):
        sides, bracket, nu = _repelling(seen, seen.alpha)
        table.append([*_about(seen), *_repelled(seen, seen.alpha, sides, bracket, nu)])
        found.append((seen, sides, bracket))
        best = (seen.loss, seen.alpha, seen.lam) == BEST
        if chosen is None or (best and (chosen.loss, chosen.alpha, chosen.lam) != BEST):
            chosen = seen
    for alpha in ALPHAS:
        sides, bracket, nu = _repelling(chosen, alpha)
        table.append([*_about(chosen), *_repelled(chosen, alpha, sides, bracket, nu)])
        swept.append((alpha, sides, math.log(chosen.classes) / alpha / nu))
    sweep = {
        "alpha": np.array(ALPHAS),
        "left": np.array([_mean(sides.left) for _, sides, _ in swept]),
        "right": np.array([_mean(sides.right) for _, sides, _ in swept]),
        "slack": np.array([_mean(slack) for *_, slack in swept]),
    }
    figure = _picture(context, [each[:2] for each in found], sweep)
    holds = np.concatenate([sides.holds for _, sides, _ in found])
    allowed = np.concatenate([bracket >= 0 for *_, bracket in found])
    broken = int((~holds & allowed).sum())
    void = np.concatenate([sides.right >= 1 for _, sides, _ in found])
    least, largest, which = _least_and_largest([each[:2] for each in found])
    classes, n = found[0][0].classes, len(found[0][1].left)
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
        f"last {len(ALPHAS)}, which are one encoder ({_name(chosen)}) over alpha.",
        "The proof has a gap: where an anchor points away from every other class, it divides a "
        "negative number by nu <= 1 and calls the result larger (step (iv) of Case 1, (38)). So "
        "the theorem is proved only where the bracket, the right side times nu, is not negative. "
        "That is so where the anchor is at no obtuse angle to the mean of one class at least, such "
        "as its own, and for any features if alpha <= log n. Otherwise it can fail: three classes "
        "on the circle, two images each, at 180 and 180, 120 and 240, 135 and 135 degrees, an "
        "anchor of the first at 0, alpha = 4: the left side is -0.707, the right one -0.774. What "
        "the proof does show is that the left side is at most the larger of the bracket and "
        "bracket / nu.",
        f"The bound holds for {_percent(holds):.2f}% of the {len(holds)} anchors of {len(found)} "
        f"encoder(s); the bracket is not negative for {_percent(allowed):.2f}%."
        + _failing([each[:2] for each in found])
        + (
            " Wherever it is not negative, the bound holds."
            if not broken
            else f" For {broken} anchors the bound fails although the bracket is not negative: "
            "that must not be."
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
        f"the bound holds for {_percent(holds):.2f}% of the anchors of {len(found)} encoder(s) "
        f"(bracket >= 0 for {_percent(allowed):.2f}%), with a mean gap of {least:.3f} to "
        f"{largest:.3f}, its right side being 1 or more for {_percent(void):.2f}%; the proof has a "
        "gap, and a counterexample is given"
    )
    title = "Theorem 4.6: upper bound of the repelling component"
    caption = "Both sides of (10) of each anchor, the gap of each encoder, and one over alpha"
    return Shown(title, columns, table, [(figure, caption)], text, verdict)


def _about(seen: Seen) -> list:
    return [seen.loss, seen.alpha, seen.lam, seen.seed]


def _cells(sides: Sides) -> list[float]:
    gap = sides.gap
    return [
        _percent(sides.holds),
        _mean(sides.left),
        _mean(sides.right),
        _mean(gap),
        float(gap.min()),
        float(gap.max()),
    ]


@functools.partial(jax.jit, static_argnames="classes")
def _bound(anchors, labels, views, alpha, classes):
    return bounds.repelling_bound(anchors, labels, views, labels, alpha, classes)


def _repelling(seen: Seen, alpha: float) -> tuple[Sides, np.ndarray, np.ndarray]:
    """Both sides, bracket and nu of one encoder, whose labels are even by construction."""
    found = _bound(seen.anchors, seen.labels, seen.views, alpha, seen.classes)
    left, right, bracket, nu = map(np.asarray, found)
    return Sides(left, right), bracket, nu


def _repelled(
    seen: Seen, alpha: float, sides: Sides, bracket: np.ndarray, nu: np.ndarray
) -> list[float]:
    slack = _mean(math.log(seen.classes) / alpha / nu)
    return [alpha, *_cells(sides), _mean(nu), _percent(bracket >= 0), slack]


def _picture(context: Context, found: list[tuple[Seen, Sides]], sweep: dict | None = None):
    """Anchors of a few encoders, from the first to the last, and the gaps of all."""
    places = np.unique(np.linspace(0, len(found) - 1, DRAWN).round().astype(int))
    anchors = {_name(found[i][0]): found[i][1] for i in places}
    gaps = [
        {
            "loss": seen.loss,
            "alpha": seen.alpha,
            "lam": seen.lam,
            "mean": _mean(sides.gap),
            "least": float(sides.gap.min()),
            "largest": float(sides.gap.max()),
        }
        for seen, sides in found
    ]
    path = context.folder / "figure.png"
    plots.bound_sheet(anchors, gaps, path, sweep)
    return path


def _name(seen: Seen) -> str:
    return f"{seen.loss}, alpha {seen.alpha:g}, lambda {seen.lam:g}, seed {seen.seed}"


def _least_and_largest(found: list[tuple[Seen, Sides]]) -> tuple[float, float, str]:
    """Mean gaps of two encoders, and which these are."""
    ordered = sorted(((_mean(sides.gap), _name(seen)) for seen, sides in found))
    (least, nearest), (largest, farthest) = ordered[0], ordered[-1]
    which = f"the least with {nearest}, the largest with {farthest}."
    return least, largest, which


def _failing(found: list[tuple[Seen, Sides]]) -> str:
    """With which encoders a bound fails, and how often; nothing where it always holds."""
    failing = [(_name(seen), int((~sides.holds).sum()), len(sides.left)) for seen, sides in found]
    listed = "; ".join(f"{name} ({count} of {n} anchors)" for name, count, n in failing if count)
    return f" It fails with {listed}." if listed else ""


def _mean(values: np.ndarray) -> float:
    return float(np.mean(values, dtype=np.float64))


def _percent(values: np.ndarray) -> float:
    return 100 * _mean(values)


def _item(theorem: str, title: str, show: Callable[[Context, Rows], Shown]) -> dict[str, Item]:
    laptop = functools.partial(grids.plan, settings.DIGITS)
    paper = functools.partial(seeds.plan, settings.IMAGENET, grids.BEST[grids.FIGURE4])
    scales = {
        "laptop": Scale(("digits",), 0.2, (laptop,)),
        "paper": Scale(("imagenet2012",), 260_000, (paper,)),
    }
    return {f"balanced/{theorem}": Item(title, scales, show)}


ITEMS = {
    **_item("theorem4.4", "the bound of the attracting component, on encoders", attracting),
    **_item("theorem4.6", "the bound of the repelling component, on encoders", repelling),
}
