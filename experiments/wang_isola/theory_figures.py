"""What needs no training in Wang & Isola: Figures 4, 10 and 11, propositions and theorems."""

import itertools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from scipy import special

from experiments.plots.circle import potential_figure
from experiments.plots.style import COLUMN, printed
from experiments.reproduction import Context, Reproduction, Result, Scale
from experiments.statistics import Rows
from experiments.wang_isola import circle
from experiments.wang_isola.many_negatives import theorem1
from experiments.wang_isola.point_sets import proposition2
from experiments.wang_isola.propositions import proposition1, proposition3
from experiments.wang_isola.single_negative import theorem2
from hypersphere_jax import theory, uniform_loss
from hypersphere_jax.reporting.plots.style import COLORS, DPI, UNIFORM_LABEL, save_figure

T = 2.0  # of the potential in Figure 4
POINTS = 10_000  # of each of its panels, as in the paper
WAVES = np.arange(1, 80)  # Fourier coefficients of the potential; those after them have died

Z = (0.25, 1.0, 4.0, 16.0)  # of Figure 10: t^2 at t = 1/2, 1, 2, 4, as in Corollary 1
TABLE_ALPHAS = (0.5, 16.0, 512.0)
# Figure 11. The paper trains at t = 2, and with 128 and 256 dimensions most often.
SCALES = (0.5, 1.0, 2.0, 4.0)
DIMS = 2 ** np.arange(1, 13)
TABLE_DIMS = (2, 128, 4096)


class CircleDistribution(NamedTuple):
    """A distribution of angles whose trigonometric moments are known."""

    sample: Callable[[np.random.Generator, int], np.ndarray]  # (generator, n) -> angles [n]
    moment: Callable[[np.ndarray], np.ndarray]  # integers k >= 0 -> |E exp(i k angle)|


def von_mises_mixture(kappa: float, modes: int = 1) -> CircleDistribution:
    """Equal parts of von Mises-Fisher distributions around equally spaced modes."""
    return CircleDistribution(
        lambda rng, n: 2 * np.pi / modes * rng.integers(modes, size=n) + rng.vonmises(0, kappa, n),
        lambda k: (k % modes == 0) * special.ive(k, kappa) / special.ive(0, kappa),
    )


DISTRIBUTIONS = {
    "uniform": CircleDistribution(
        lambda rng, n: rng.uniform(-np.pi, np.pi, n), lambda k: np.where(k == 0, 1.0, 0)
    ),
    "three vMF, κ = 10": von_mises_mixture(10.0, modes=3),
    "vMF, κ = 1": von_mises_mixture(1.0),
    "uniform on a half circle": CircleDistribution(
        lambda rng, n: rng.uniform(-np.pi / 2, np.pi / 2, n), lambda k: np.abs(np.sinc(k / 2))
    ),
    "two vMF, κ = 10": von_mises_mixture(10.0, modes=2),
    "vMF, κ = 10": von_mises_mixture(10.0),
    "vMF, κ = 100": von_mises_mixture(100.0),
    "one point": CircleDistribution(lambda rng, n: np.zeros(n), lambda k: np.ones(len(k))),
}


def expected_potential(moment: Callable[[np.ndarray], np.ndarray], t: float = T) -> float:
    r"""The mean Gaussian potential of independent pairs on the circle, from moments of the angle.

    .. math:: E e^{-t |u - v|^2} = e^{-2t} \sum_{k=-\infty}^\infty I_k(2t) |E e^{i k \theta}|^2

    as `|u - v|^2 = 2 - 2 cos(a - b)`, and I_k are the Fourier coefficients of exp(2t cos).
    """
    terms = special.ive(WAVES, 2 * t) * moment(WAVES) ** 2
    return float(special.ive(0, 2 * t) + 2 * terms.sum())


def potential_error(features: np.ndarray) -> float:
    """Standard error of the mean potential of n points `[n, 2]`: that of a U-statistic of pairs."""
    angles = np.arctan2(features[:, 1], features[:, 0]).astype(np.float64)
    waves = np.exp(1j * WAVES * angles[:, None])
    moments = waves.mean(axis=0)
    of_points = 2 * (waves.conj() @ (special.ive(WAVES, 2 * T) * moments)).real  # and a constant
    mean, squares = (expected_potential(lambda k: np.abs(moments), t) for t in (T, 2 * T))
    of_pairs = max(0.0, squares - mean**2) / len(angles)
    # Each point's own potential is a mean over pairs and scatters by that alone. What it scatters
    # more counts; uniform points have no more.
    variance = 4 * max(0.0, of_points.var() - of_pairs) + 2 * of_pairs
    return math.sqrt(variance / len(angles))


def figure4(context: Context, rows: Rows) -> Result:
    """Figure 4: the mean pairwise potential G_2 of points on the circle, and of encoders."""
    rng = np.random.default_rng(0)
    points, exact = {}, {}
    for name, kind in DISTRIBUTIONS.items():
        angles = kind.sample(rng, POINTS)
        points[name] = np.stack((np.cos(angles), np.sin(angles)), axis=1)
        exact[name] = expected_potential(kind.moment)
    points |= {one["name"]: one["features"] for one in circle.encoders(context, rows)}
    panels, table = [], []
    for name, features in points.items():
        features = np.asarray(features, np.float32)
        measured = math.exp(float(jax.jit(uniform_loss)(features, T)))
        panels.append({"name": name, "features": features, "potential": measured})
        against = [exact[name], measured - exact[name]] if name in exact else [None, None]
        line = [name, math.log(measured), measured, potential_error(features)]
        table.append([*line, *against])
    potential_figure(panels, context.figure, T)
    known = table[: len(DISTRIBUTIONS)]
    near = [abs(row[5]) < 3 * row[3] + 1e-5 for row in known]
    named = {row[0]: row[2] for row in table}
    clusters, broad = (named[name] for name in ("three vMF, κ = 10", "vMF, κ = 1"))
    text = [
        f"The paper draws {POINTS} points on the circle for each of several distributions and for "
        "the encoders of its Figure 3, and finds that their average pairwise Gaussian potential "
        "G_2 agrees with what one calls uniform: lower is more uniform. Which distributions it "
        "drew is in the titles of its plots, which its text does not give: these here are "
        "chosen to go from uniform to a single point, and no value can be compared with the "
        "paper's.",
        f"The potential is exp(L_uniform) at t = {T:g}, over all pairs of different points: "
        "estimator (9) of the paper, in which no point is paired with itself, so that its mean is "
        "the exact value of the distribution. That is a sum of Bessel functions, from the "
        "moments of the angle.",
        f"The uniform points have {known[0][2]:.4f} beside {known[0][4]:.4f}, the least that there "
        f"is (Corollary 1); coinciding points have {named['one point']:.4f}, the most. Of "
        f"{len(near)} measured values, {sum(near)} lie within three standard errors of the exact "
        "one (and float32's rounding).",
        "The order is what one expects, with one thing to learn: three narrow clusters "
        f"({clusters:.4f}) {'count' if clusters < broad else 'do not count'} as more uniform than "
        f"one broad one ({broad:.4f}), since the mean over all pairs weighs their spread "
        "around the whole circle more than gaps between clusters.",
    ]
    caption = (
        f"{POINTS} points on the circle from named distributions, and encoders if there are any, "
        "with their mean pairwise potential. The exact parameters of the paper's plots are not in "
        "its text; these are of our choice."
    )
    columns = ["points", "L_uniform", "measured", "standard error", "exact", "difference"]
    title = "Figure 4: average pairwise G_2 potential as a measure of uniformity"
    least = known[0][2] == min(row[2] for row in known)
    verdict = (
        f"{sum(near)} of {len(near)} potentials are the exact ones within three standard errors; "
        f"uniform points {'have' if least else 'do NOT have'} the least"
    )
    return Result(title, columns, table, [(context.figure, caption)], text, verdict)


def hypergeometric(alpha: float, z: float) -> float:
    """0F1(; alpha; z) for alpha >= 1/2 and z > 0, from the optimum of uniformity."""
    t = math.sqrt(z)
    return math.exp(theory.uniformity_optimum(2 * alpha, t) + 2 * t)


def _curves(
    xs: np.ndarray, curves: Mapping[float, np.ndarray], parameter: str, **style: str
) -> tuple[Figure, Axes]:
    """Values at xs for each value of a parameter."""
    figure = Figure(figsize=(COLUMN, 2.5), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    for (value, ys), color in zip(curves.items(), COLORS, strict=False):
        axes.plot(xs, ys, color=color, label=f"{parameter} = {value:g}", **style)
    return figure, axes


@printed
def figure10(path: Path | None) -> Result:
    """Figure 10: 0F1(; alpha; z) against alpha, which converges to 1."""
    alphas = np.geomspace(0.5, 512, 161)
    curves = {z: np.array([hypergeometric(alpha, z) for alpha in alphas]) for z in Z}
    figure, axes = _curves(alphas, curves, "z")
    axes.axhline(1, color="gray", linestyle="--", linewidth=0.8, label="limit 1")
    axes.set(xscale="log", yscale="log", xlabel=r"$\alpha$", xlim=(alphas[0], alphas[-1]))
    axes.set_ylabel(r"${}_0F_1(;\alpha;z)$")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 5)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("")
    axes.legend()
    save_figure(figure, path)

    rows = []
    for z, alpha in itertools.product(Z, TABLE_ALPHAS):
        ours, scipy = hypergeometric(alpha, z), float(special.hyp0f1(alpha, z))
        rows.append([z, alpha, scipy, ours, ours - scipy, ours - 1, z / alpha])
    worst = max(abs(row[4]) / row[2] for row in rows)
    last = [row[5] for row in rows if row[1] == TABLE_ALPHAS[-1]]
    falls = all((np.diff(values) < 0).all() for values in curves.values())
    text = [
        "The paper: for z > 0, as alpha grows larger, 0F1(; alpha; z) converges to 1. This is why "
        "the least uniformity of Corollary 1 goes to -2t in many dimensions. It prints no numbers; "
        "it names SciPy's hyp0f1, which shares no code with the series summed here.",
        f"Computed at {len(alphas)} values of alpha from 0.5 to 512 for {len(Z)} values of z. Over "
        f"the table, our values differ from SciPy's by at most {worst:.1e} of their size.",
        f"The curves {'all fall' if falls else 'do NOT all fall'} with alpha. At alpha = 512 they "
        f"are above 1 by {min(last):.4f} to {max(last):.4f}: the first term of the series, "
        "z / alpha (last column), which is the rate of convergence.",
    ]
    columns = ["z", "alpha", "0F1 by SciPy", "ours", "difference", "above 1", "z / alpha"]
    caption = "0F1(; alpha; z) against alpha for several z, on logarithmic axes. Dashed: the limit."
    title = "Figure 10: asymptotic behaviour of 0F1(; alpha; z)"
    verdict = (
        f"The computed curves {'agree' if falls else 'do NOT agree'} with the figure: at each z "
        f"the function falls towards 1, and is at most {max(last):.4f} above it at alpha = 512; "
        f"the values are SciPy's within {worst:.0e} of their size"
    )
    return Result(title, columns, rows, [(path, caption)], text, verdict)


@printed
def figure11(path: Path | None) -> Result:
    """Figure 11: the least uniformity against the dimension."""
    curves = {t: np.array([theory.uniformity_optimum(int(dim), t) for dim in DIMS]) for t in SCALES}
    figure, axes = _curves(DIMS, curves, "t", marker=".")
    for t, color in zip(SCALES, COLORS, strict=False):
        axes.axhline(-2 * t, color=color, linestyle="--", linewidth=0.8)
    axes.plot([], [], color="gray", linestyle="--", linewidth=0.8, label="limit −2t")
    axes.set_xscale("log", base=2)
    axes.set_xticks(DIMS[::2], [f"{dim:g}" for dim in DIMS[::2]])
    axes.set(xlabel="feature dimension m", ylabel=f"optimal {UNIFORM_LABEL}")
    axes.legend(loc="upper right", bbox_to_anchor=(1, 0.53))
    save_figure(figure, path)

    rows = []
    for t, dim in itertools.product(SCALES, TABLE_DIMS):
        printed = -2 * t + math.log(special.hyp0f1(dim / 2, t**2))
        ours = theory.uniformity_optimum(dim, t)
        rows.append([t, dim, printed, ours, ours - printed, -2 * t, ours + 2 * t])
    worst = max(abs(row[4]) for row in rows)
    falls = all((np.diff(values) < 0).all() for values in curves.values())
    of_two = {row[1]: row for row in rows if row[0] == T}
    text = [
        "The paper: the optimal L_uniform, that of perfectly uniform features, strictly decreases "
        "with the feature dimension m and converges to -2t (Corollary 1, Figure 11).",
        f"Computed for t = {', '.join(f'{t:g}' for t in SCALES)} and m = {DIMS[0]} to {DIMS[-1]}. "
        "The paper's column is its formula, -2t + log 0F1(; m/2; t^2), with SciPy's hyp0f1 as it "
        f"advises; the largest difference from ours is {worst:.1e}.",
        f"The values {'strictly decrease' if falls else 'do NOT decrease'} with m for every t. At "
        f"t = 2 they are {of_two[2][3]:.4f} on the circle, {of_two[128][3]:.4f} in 128 dimensions "
        f"and {of_two[4096][3]:.4f} in 4096, {of_two[4096][6]:.4f} above the limit -4: the "
        "distance from the limit is about 2 t^2 / m, the larger t the later.",
    ]
    columns = ["t", "m", "paper's formula", "ours", "difference", "limit", "above the limit"]
    caption = "Optimal L_uniform against the feature dimension m for several t. Dashed: limits -2t."
    title = "Figure 11: optimal L_uniform against the feature dimension"
    verdict = (
        f"The computed curves {'agree' if falls else 'do NOT agree'} with the figure: the optimum "
        f"strictly decreases with the dimension at each t, and is {of_two[4096][6]:.4f} above its "
        "limit -4 in 4,096 dimensions at t = 2"
    )
    return Result(title, columns, rows, [(path, caption)], text, verdict)


def _computed(title: str, compute: Callable[[Path], Result]) -> Reproduction:
    """Without encoders, the same at both scales."""
    none = Scale(data=(), seconds=60.0)
    return Reproduction(title, lambda context, rows: compute(context.figure), none, none)


REPRODUCTIONS = {
    "wang-isola/figure4": Reproduction(
        "average pairwise potential of points on the circle",
        figure4,
        **circle.REPRODUCTIONS["wang-isola/figure3"].scales,
    ),
    "wang-isola/figure10": _computed("0F1(; alpha; z) goes to 1", figure10),
    "wang-isola/figure11": _computed("the optimal uniformity over the dimension", figure11),
    "wang-isola/proposition1": _computed("the least mean Gaussian potential", proposition1),
    "wang-isola/proposition2": _computed("points of the least potential", proposition2),
    "wang-isola/proposition3": _computed("the range of the mean potential", proposition3),
    "wang-isola/theorem1": _computed("deviation of the loss from its limit", theorem1),
    "wang-isola/theorem2": _computed("the least loss with a single negative", theorem2),
}
