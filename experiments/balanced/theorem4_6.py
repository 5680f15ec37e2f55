"""Theorem 4.6 of the balanced paper: the bound of the repelling component.

Claim: for features f of unit norm and n classes of equal size, the cosine of f with the mean of the
nearest other class lies below (1/nu) (E log E' exp(alpha s(f, f')) + log n) / alpha, where nu is
the least norm of the mean of another class.

    python run.py reproduce balanced/theorem4.6 --scale laptop

laptop, gpu, paper: the encoders of Theorem 4.4.
Result: not supported; the theorem is false as stated, as a counterexample on the circle shows (left
side -0.423, right side -0.483). On trained encoders it holds for all anchors, but the mean gap is
0.73 to 4.35, and the right side exceeds 1, the largest cosine, for 98.5% of anchors.

The proof divides a negative number by nu <= 1 and calls the result larger (step (iv) of Case 1, Eq.
38). It is valid where the bracket, the right side times nu, is not negative.
"""

import jax
import numpy as np

from experiments.balanced import theorem4_4
from experiments.balanced.theorem4_4 import ROUNDING
from experiments.lib import Rows, stats
from hypersphere_jax import theory

SCALES = theorem4_4.SCALES
SETTINGS = theorem4_4.SETTINGS
runs = theorem4_4.runs
repelling_bound = jax.jit(theory.repelling_bound, static_argnums=5)
MEMBERS = 1000  # images of a class in the counterexample
DEGREES = 115


def counterexample() -> tuple[tuple[np.ndarray, ...], float]:
    """Return an anchor, its label, views and their labels for which the bound fails, and alpha.

    Three classes of 1,000 images on the circle, all views of an image equal: the first at 180
    degrees except for one image, the anchor, at 0; of the second, half at 115 and half at 245
    degrees; the third at 115. Many images are needed, as the anchor's own similarity counts.
    """
    halves = np.repeat([DEGREES, 360 - DEGREES], MEMBERS // 2)
    third = np.full(MEMBERS, DEGREES)
    angles = np.radians(np.concatenate([[0], np.full(MEMBERS - 1, 180), halves, third]))
    points = np.stack((np.cos(angles), np.sin(angles)), axis=1).astype(np.float32)
    labels = np.repeat(np.arange(3), MEMBERS)
    return (points[:1], labels[:1], points[None], labels), 4.0


def analyze(rows: Rows) -> Rows:
    """Check the counterexample, and the bound on the anchors of each encoder."""
    example, alpha = counterexample()
    bound = repelling_bound(*example, alpha, 3)
    left = float(bound[0][0])
    right = float(bound[1][0])
    claim = "the bound holds at the counterexample; right minus left side"
    table = [stats.check(claim, left <= right + ROUNDING, right - left, left=left, right=right)]
    claim = "the bound holds for all anchors of an encoder; mean gap"
    for labels, anchors, views, classes in theorem4_4.features(rows):
        count = len(np.unique(classes))
        bound = repelling_bound(anchors, classes, views, classes, float(labels["alpha"]), count)
        each_left, each_right, bracket, _ = map(np.asarray, bound)
        holds = (each_left <= each_right + ROUNDING).all()
        labels["bracket_percent"] = 100 * float((bracket >= 0).mean())
        labels["vacuous_percent"] = 100 * float((each_right >= 1).mean())
        table.append(stats.check(claim, bool(holds), (each_right - each_left).mean(), **labels))
    return table
