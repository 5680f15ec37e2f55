"""Proposition 2 of Wang & Isola: points of the least mean Gaussian potential, more and more."""

import itertools
import math
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from scipy import optimize
from threadpoolctl import threadpool_limits

from experiments.plots.style import PAGE, printed
from experiments.reproduction import Result
from experiments.wang_isola.propositions import MARKERS, T, potential, uniform_potential
from hypersphere_jax.reporting.plots.style import COLORS, DPI, save_figure

NUMBERS = (4, 6, 12, 32, 64, 128, 256)
STARTS = 3
FLAT = 1e-7  # above the bound, where sets of points differ by little more than rounding
MEAN_DISTANCES = {2: 4 / math.pi, 3: 4 / 3}  # of two uniform points
# Cosines of a point of a universally optimal set with all of its points (Cohn & Kumar, 2007).
SOLIDS = {
    4: np.array([1] + [-1 / 3] * 3),
    6: np.array([1, -1] + [0] * 4),
    12: np.array([1, -1] + [5**-0.5, -(5**-0.5)] * 5),
}


def minimized(start: np.ndarray, t: float = T) -> np.ndarray:
    """Points `[n, d]` of the least mean potential that L-BFGS finds from a start."""
    shape = start.shape

    def value_and_slope(flat):
        lengths = np.linalg.norm(flat.reshape(shape), axis=1, keepdims=True)
        points = flat.reshape(shape) / lengths
        kernel = potential(points @ points.T, t)
        pull = kernel @ points
        pull -= (pull * points).sum(axis=1, keepdims=True) * points
        # Times n, as the mean over pairs changes the less by one point the more there are.
        return kernel.mean() * shape[0], (4 * t / shape[0] * pull / lengths).ravel()

    options = {"maxiter": 1000, "maxfun": 1500, "ftol": 0.0, "gtol": 1e-12}
    with threadpool_limits(1):  # threads would only wait for one another on so little
        found = optimize.minimize(
            value_and_slope, start.ravel(), jac=True, method="L-BFGS-B", options=options
        ).x.reshape(shape)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def distance(cosines: np.ndarray, dim: int) -> float:
    """Distance of points to the uniform distribution, from the cosines of all their pairs.

    `sqrt(E |u - v| - mean_ij |x_i - x_j|)`, u and v uniform: the energy distance, that is (but for
    a factor of the dimension) the L2 discrepancy over spherical caps, by Stolarsky. It goes to zero
    exactly for measures that converge weak* to the uniform one.
    """
    apart = np.sqrt(np.maximum(0, 2 - 2 * np.asarray(cosines))).mean()
    return math.sqrt(max(0.0, MEAN_DISTANCES[dim] - apart))


def known_cosines(dim: int, n: int) -> np.ndarray | None:
    """Cosines of a point with all points of the least potential; None where none are known."""
    return np.cos(2 * np.pi * np.arange(n) / n) if dim == 2 else SOLIDS.get(n)


def proposition2(path: Path | None, seed: int = 0, numbers: tuple[int, ...] = NUMBERS) -> Result:
    """Proposition 2: N points of the least mean potential converge to the uniform distribution."""
    rng = np.random.default_rng(seed)
    rows = []
    for dim, n in itertools.product((2, 3), numbers):
        ends = [minimized(rng.standard_normal((n, dim))) for _ in range(STARTS)]
        found = min((end @ end.T for end in ends), key=lambda cosines: potential(cosines).mean())
        value, known = float(potential(found).mean()), known_cosines(dim, n)
        row = [dim, n, (n * value - 1) / (n - 1)]  # without pairs of a point and itself
        row += [None if known is None else value - float(potential(known).mean())]
        row += [value - uniform_potential(dim), distance(found, dim)]
        row += [None if known is None else distance(known, dim)]
        rows.append([*row, math.sqrt(MEAN_DISTANCES[dim] / n)])
    exact = [abs(row[3]) for row in rows if row[3] is not None]
    draw_proposition2(rows, path)
    falls = {dim: [row[5] for row in rows if row[0] == dim] for dim in (2, 3)}
    slopes = {
        dim: float(np.polyfit(np.log(numbers), np.log(values), 1)[0])
        for dim, values in falls.items()
    }
    falling = all((np.diff(values) < 0).all() for values in falls.values())
    flat = [row for row in rows if row[4] < FLAT]
    text = [
        "The paper: for each N, take N points of the least mean potential; as N grows, the measure "
        "that gives each of them 1/N converges weak* to the uniform distribution.",
        f"Computed for N = {numbers[0]} to {numbers[-1]} on the circle and on the sphere in R^3, "
        f"t = {T:g}: the lowest of {STARTS} minimizations (L-BFGS, in float64) from random points. "
        "G_2 is the mean over pairs of different points, which the proposition speaks of, and "
        "comes from below; 'above uniform' counts each point with itself, too, so that the uniform "
        "distribution's potential is the bound.",
        "The distance to the uniform distribution is the root of E|u - v| for uniform u and v less "
        "the mean distance of the points, but for a factor their L2 discrepancy over spherical "
        "caps. It goes to zero exactly for measures that converge weak*. Last columns: that of "
        "known minimizers, and of independent uniform points (root of the mean square).",
        f"Minimizers are known on the circle, regular polygons, and of 4, 6 and 12 points on the "
        f"sphere, regular solids (Cohn & Kumar, 2007). In these {len(exact)} cases the points "
        f"found have the known potential within {max(exact):.0e}. The others are the lowest found, "
        f"with no proof that none are lower. In {len(flat)} of {len(rows)} cases the potential is "
        f"within {FLAT:g} of the bound. It is so flat there that a search ends before the "
        "minimizer (on the circle short of the polygon, which is nearer to uniform), and what is "
        "checked is that points of so low a potential are near uniform.",
        f"The distance {'falls at each step' if falling else 'does NOT fall at each step'}: from "
        + " and from ".join(
            f"{values[0]:.3f} to {values[-1]:.4f} ({'circle' if dim == 2 else 'sphere'}, slope "
            f"{slopes[dim]:.2f} on logarithmic axes)"
            for dim, values in falls.items()
        )
        + "; independent points have the slope -0.5, polygons -1. A finite N shows no limit: "
        "the proposition follows from the positive eigenvalues of Proposition 1.",
    ]
    columns = ["d", "N", "G_2", "above known", "above uniform", "distance"]
    columns += ["of known", "of random points"]
    caption = (
        "Points of the least potential found, N = 4 to 256. Left: mean potential, each point with "
        "itself, above the uniform distribution's. Crosses: known minimizers, where they are "
        "above rounding (1e-16). Right: distance to the uniform distribution. Dashed: independent "
        "uniform points, on average (root of the mean square)."
    )
    title = "Proposition 2: points of the least mean Gaussian potential"
    verdict = (
        f"The numbers {'agree' if falling else 'do NOT agree'} with the proposition as far "
        "as finitely many points can: the distance to the uniform distribution falls to "
        f"{falls[2][-1]:.4f} (circle) and {falls[3][-1]:.4f} (sphere) at N = {numbers[-1]}, where "
        f"independent points have {rows[len(numbers) - 1][7]:.3f} and {rows[-1][7]:.3f}, and the "
        f"{len(exact)} known minima are met within {max(exact):.0e}"
    )
    return Result(title, columns, rows, [(path, caption)], text, verdict)


@printed
def draw_proposition2(rows: list[list], path: Path | None) -> None:
    figure = Figure(figsize=(PAGE, 2.6), dpi=DPI, layout="constrained")
    left, right = figure.subplots(1, 2)
    for dim, name, color, marker in zip(
        (2, 3), ("circle", "sphere in $R^3$"), COLORS, MARKERS, strict=False
    ):
        of_dim = [row for row in rows if row[0] == dim]
        numbers, excess, distances = np.array([[row[i] for i in (1, 4, 5)] for row in of_dim]).T
        random = [row[7] for row in of_dim]
        style = {"color": color, "marker": marker, "linewidth": 0.8}
        left.plot(numbers, excess, **style)
        right.plot(numbers, distances, label=name, **style)
        known = [(row[1], row[4] - row[3], row[6]) for row in of_dim if row[3] is not None]
        for axes, place in ((left, 1), (right, 2)):
            points = [(one[0], one[place]) for one in known if one[place] > 1e-16]
            axes.plot(*np.transpose(points), "x", color="black", markersize=5, zorder=3)
        left.plot(numbers, (1 - uniform_potential(dim)) / numbers, "--", color=color, linewidth=0.8)
        right.plot(numbers, random, "--", color=color, linewidth=0.8)
    right.plot([], [], "--", color="gray", linewidth=0.8, label="independent points")
    right.plot([], [], "x", color="black", markersize=5, label="known minimizers")
    left.set(title="mean potential", ylabel="$G_2$ above uniform")
    right.set(title="distance to the uniform distribution", ylabel="distance")
    for axes in (left, right):
        axes.set(xscale="log", yscale="log", xlabel="number N of points")
        axes.set_xticks(numbers, [f"{n:g}" for n in numbers], minor=False)
        axes.set_xticks([], minor=True)
    right.yaxis.set_minor_formatter("")
    right.set_ylim(3e-3, 1)
    right.legend(loc="lower left")
    save_figure(figure, path)
