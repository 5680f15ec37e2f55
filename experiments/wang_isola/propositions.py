"""Propositions 1 and 3 of Wang & Isola: what values the mean Gaussian potential has, and where."""

import itertools
import math
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from scipy import special

from experiments.plots.style import PAGE, printed
from experiments.reproduction import Result
from experiments.wang_isola import harmonics
from hypersphere_jax import theory
from hypersphere_jax.reporting.plots.style import COLORS, DPI, save_figure

T = 2.0  # of the potential, as the paper trains
DIMS = (2, 3, 8, 128)
MARKERS = "osD^"
DEGREES = 17
ABOVE = 1e3 * harmonics.ROUNDING  # eigenvalues that the quadrature has with three digits at least
KAPPAS = (0.1, 1.0, 10.0)

SCALES = (0.5, 1.0, 2.0, 4.0)
ATOMS = (2, 8, 64)
MEASURES = 100  # random ones of each number of atoms
SHARES = np.linspace(0, 1, 6)
DRAWN = 1000  # points


def potential(cosines: np.ndarray, t: float = T) -> np.ndarray:
    """The Gaussian kernel G_t of two points by their cosine."""
    return np.exp(2 * t * (np.asarray(cosines) - 1))


def exact_eigenvalues(dim: int, degrees: int, t: float = T) -> np.ndarray:
    r"""Eigenvalues of G_t, in closed form.

    .. math:: \lambda_k = e^{-2t} \Gamma(d/2) t^{1 - d/2} I_{k + d/2 - 1}(2t)
    """
    log_scale = math.lgamma(dim / 2) - (dim / 2 - 1) * math.log(t)
    return math.exp(log_scale) * special.ive(np.arange(degrees) + dim / 2 - 1, 2 * t)


def uniform_potential(dim: int, t: float = T) -> float:
    return math.exp(theory.uniformity_optimum(dim, t))


def von_mises_fisher(dim: int, kappa: float, t: float = T) -> float:
    """The potential of a von Mises-Fisher distribution, a sum over degrees."""
    orders = np.arange(60) + dim / 2 - 1
    moments = special.ive(orders, kappa) / special.ive(orders[0], kappa)
    counts = harmonics.multiplicities(dim, 60)
    return float((exact_eigenvalues(dim, 60, t) * counts * moments**2).sum())


def measures(dim: int) -> dict[str, tuple[float, float]]:
    """Measures by name: their exact potential, and the mean cosine of two points."""
    order = dim / 2 - 1
    known = {
        "uniform": (uniform_potential(dim), 0.0),
        f"{2 * dim} points ±e_i": (
            float(potential([1, -1] + [0] * (2 * dim - 2)).mean()),
            0.0,
        ),
        "two poles": (float(potential([1, -1]).mean()), 0.0),
        "one point": (1.0, 1.0),
    }
    if dim > 2:
        known["uniform on the equator"] = uniform_potential(dim - 1), 0.0
    for kappa in KAPPAS:
        mean = special.ive(order + 1, kappa) / special.ive(order, kappa)
        known[f"vMF, κ = {kappa:g}"] = von_mises_fisher(dim, kappa), float(mean**2)
    return known


def proposition1(path: Path | None) -> Result:
    """Proposition 1: the uniform distribution is the only minimizer of the mean potential."""
    rows, spectra = [], {}
    for dim in DIMS:
        least = uniform_potential(dim)
        rows += [[dim, name, *both, both[0] - least] for name, both in measures(dim).items()]
        found = harmonics.eigenvalues(potential, dim, DEGREES)
        spectra[dim] = found, exact_eigenvalues(dim, DEGREES)
    draw_proposition1(spectra, path)
    parts = [
        (found / exact - 1)[
            exact * np.sqrt(harmonics.multiplicities(dim, DEGREES)) > ABOVE * exact[0]
        ]
        for dim, (found, exact) in spectra.items()
    ]
    worst, compared = max(np.abs(part).max() for part in parts), sum(map(len, parts))
    positive = all((exact > 0).all() for _, exact in spectra.values()) and worst < 1
    others = [row for row in rows if row[1] != "uniform"]
    above = all(row[4] > 0 for row in others)
    centred = [row for row in others if row[3] == 0]
    text = [
        "The paper: among all distributions on the sphere, the uniform one alone has the least "
        "mean Gaussian potential G_t of two independent points.",
        "Why it holds: G_t acts on a spherical harmonic of degree k as a number, its eigenvalue "
        "exp(-2t) Gamma(d/2) t^(1 - d/2) I_(k + d/2 - 1)(2t). The potential of a distribution is "
        "that of the uniform one plus these eigenvalues times squares of the distribution's "
        "harmonic moments. Bessel functions I of positive arguments are positive, so that it "
        "is the least if, and only if, all moments but the first are zero.",
        f"What is computed: eigenvalues by quadrature, which does not know the closed form, in "
        f"{', '.join(map(str, DIMS))} dimensions at t = {T:g}. The {compared} of degree up to "
        f"{DEGREES - 1} that are above rounding differ from the closed form by {worst:.0e} of "
        f"their size at most. That all degrees are positive is the closed form's, and no "
        "computation of finitely many.",
        f"The table has exact potentials of other distributions. {'All' if above else 'NOT all'} "
        f"{len(others)} lie above the uniform one's. In {len(centred)} of them two points have the "
        "mean cosine 0, as in the uniform one: the mean inner product, or squared distance, "
        "would not tell them from it, which is the paper's reason for another kernel.",
    ]
    columns = ["d", "distribution", "G_2", "mean cosine", "above uniform"]
    caption = (
        "Left: eigenvalues of the Gaussian kernel at t = 2 over that of degree 0, times the root "
        "of how many harmonics there are of the degree; dots by quadrature, lines in closed form. "
        "Right: mean potential of von Mises-Fisher distributions above the uniform one's."
    )
    title = "Proposition 1: the least mean Gaussian potential"
    verdict = (
        f"The numbers {'agree with' if positive and above else 'CONTRADICT'} the proposition: "
        "the closed form of the kernel's eigenvalues, which is positive in every "
        f"degree, is met by quadrature in {', '.join(map(str, DIMS))} dimensions, and each "
        f"of the {len(others)} other distributions lies above the uniform one; "
        "uniqueness rests on the closed form"
    )
    return Result(title, columns, rows, [(path, caption)], text, verdict)


def _seen(dim: int, exact: np.ndarray) -> np.ndarray:
    """Which eigenvalues `[degrees]` lie well above the quadrature's rounding."""
    sizes = exact * np.sqrt(harmonics.multiplicities(dim, len(exact)))
    return sizes > ABOVE * exact[0]


@printed
def draw_proposition1(spectra: dict[int, tuple[np.ndarray, np.ndarray]], path: Path | None) -> None:
    """Eigenvalues `[degrees]`, by quadrature and exact, by dimension; von Mises-Fisher's excess."""
    figure = Figure(figsize=(PAGE, 2.6), dpi=DPI, layout="constrained")
    left, right = figure.subplots(1, 2)
    kappas = np.geomspace(0.03, 300, 81)
    for (dim, (found, exact)), color, marker in zip(spectra.items(), COLORS, MARKERS, strict=False):
        sizes = np.sqrt(harmonics.multiplicities(dim, DEGREES)) / exact[0]
        seen = _seen(dim, exact)
        left.plot(np.arange(DEGREES)[seen], (sizes * exact)[seen], color=color, linewidth=0.8)
        style = {"color": color, "marker": marker, "linestyle": ""}
        left.plot(np.arange(DEGREES)[seen], (sizes * found)[seen], **style)
        least = uniform_potential(dim)
        excess = [von_mises_fisher(dim, kappa) - least for kappa in kappas]
        right.plot(kappas, excess, color=color)
        right.plot([], [], color=color, marker=marker, label=f"d = {dim}")
    left.set(yscale="log", xlabel="degree k", title="eigenvalues of $G_2$, all positive")
    left.set_ylabel(r"$\lambda_k \sqrt{N_k}\ /\ \lambda_0$")
    left.set_xticks(range(0, DEGREES, 4))
    right.set(xscale="log", yscale="log", xlabel="concentration κ", ylim=(1e-6, 2))
    right.set(title="von Mises-Fisher distributions", ylabel="$G_2$ above uniform")
    right.legend()
    save_figure(figure, path)


def mixture(dim: int, share: float, t: float = T) -> float:
    """The potential of a point's mass, of that share, and the uniform distribution."""
    least = uniform_potential(dim, t)
    return least + share**2 * (1 - least)


def random_potentials(rng: np.random.Generator, dim: int, t: float) -> np.ndarray:
    """Potentials of random weighted points, as many of each of `ATOMS`."""
    found = []
    for n, _ in itertools.product(ATOMS, range(MEASURES)):
        points = rng.standard_normal((n, dim))
        points /= np.linalg.norm(points, axis=1, keepdims=True)
        weights = rng.dirichlet(np.ones(n))
        found.append(weights @ potential(points @ points.T, t) @ weights)
    return np.array(found)


def measured_mixture(
    rng: np.random.Generator, dim: int, share: float, t: float = T
) -> tuple[float, float]:
    """The mean potential of random points of a mixture, and its standard error."""
    points = rng.standard_normal((DRAWN, dim))
    points[rng.random(DRAWN) < share] = np.eye(dim)[0]
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    kernel = potential(points @ points.T, t)
    own = (kernel.sum(axis=1) - 1) / (DRAWN - 1)
    pairs = kernel.var() / DRAWN  # what a mean of so many pairs scatters if points add nothing
    variance = (4 * max(0.0, own.var() - pairs) + 2 * pairs) / DRAWN
    return float(own.mean()), math.sqrt(variance)


def proposition3(path: Path | None, seed: int = 0) -> Result:
    """Proposition 3: the range of the mean potential."""
    rng = np.random.default_rng(seed)
    rows, inside = [], True
    for t, dim in itertools.product(SCALES, DIMS):
        least = uniform_potential(dim, t)
        other = float(harmonics.eigenvalues(lambda s, t=t: potential(s, t), dim, 1)[0])
        drawn = random_potentials(rng, dim, t)
        inside &= bool((least < drawn).all() and (drawn < 1).all())
        rows.append([t, dim, least, other - least, drawn.min(), drawn.max(), math.exp(-2 * t)])
    mixed = {dim: np.array([measured_mixture(rng, dim, share) for share in SHARES]) for dim in DIMS}
    draw_proposition3(mixed, path)
    near = [
        abs(value - mixture(dim, share)) < 3 * error + 1e-12
        for dim, values in mixed.items()
        for share, (value, error) in zip(SHARES, values, strict=True)
    ]
    worst = max(abs(row[3]) for row in rows)
    optima = {t: [uniform_potential(dim, t) for dim in range(2, 4097)] for t in SCALES}
    falls = all((np.diff(values) < 0).all() for values in optima.values())
    last = {t: values[-1] / math.exp(-2 * t) - 1 for t, values in optima.items()}
    text = [
        "The paper: the mean potential of a distribution on the sphere in R^m lies between "
        "exp(-2t) 0F1(; m/2; t^2) and 1. The least is that of the uniform distribution alone, "
        "strictly decreases with the dimension and goes to exp(-2t); the largest is that of a "
        "single point alone.",
        f"The least by the paper's formula, summed as a series, and by quadrature of its integral "
        f"differ by {worst:.0e} at most. For m = 2, 3, ..., 4096 it "
        f"{'strictly decreases' if falls else 'does NOT strictly decrease'} at each t, and in 4096 "
        "dimensions it is above exp(-2t) by "
        + ", ".join(f"{100 * rest:.3f}% (t = {t:g})" for t, rest in last.items())
        + ". Figures 10 and 11 draw this.",
        f"{'All' if inside else 'NOT all'} of {len(rows) * len(ATOMS) * MEASURES} random "
        f"distributions ({ATOMS[0]} to {ATOMS[-1]} random points with random weights) lie strictly "
        "inside the range; the table has the least and the largest.",
        "All of the range is taken: a share s of the mass at one point and the rest uniform gives "
        f"least + s^2 (1 - least). Of {len(near)} such mixtures, {sum(near)} measured values "
        f"({DRAWN} random points each) lie within three standard errors of this.",
        "That no other distribution has the least or the largest value is not to be computed; the "
        "former is Proposition 1, the latter elementary: G_t is 1 only for a point and itself.",
    ]
    columns = ["t", "m", "least", "by quadrature", "least drawn", "largest drawn", "exp(-2t)"]
    caption = (
        "Mean potential at t = 2 of mixtures of a single point (share s) and the uniform "
        "distribution; dots with three standard errors: 1,000 random points; lines: exact. "
        "Right: the least value against the dimension, on logarithmic axes; dashed: exp(-2t)."
    )
    title = "Proposition 3: range of the mean Gaussian potential"
    holds = inside and falls and worst < 1e-12
    verdict = (
        f"The numbers {'agree with' if holds else 'CONTRADICT'} the proposition: the formula "
        f"of the least value is the integral's within {worst:.0e}, it decreases in each of 4,094 "
        "steps of the dimension, and all random distributions lie inside the range, of which "
        "mixtures with a point take every value; that the ends belong to one "
        "distribution alone rests on proof"
    )
    return Result(title, columns, rows, [(path, caption)], text, verdict)


@printed
def draw_proposition3(mixed: dict[int, np.ndarray], path: Path | None) -> None:
    figure = Figure(figsize=(PAGE, 2.6), dpi=DPI, layout="constrained")
    left, right = figure.subplots(1, 2)
    fine = np.linspace(0, 1, 101)
    for (dim, values), color, marker in zip(mixed.items(), COLORS, MARKERS, strict=False):
        left.plot(fine, mixture(dim, fine), color=color, linewidth=0.8)
        measured, errors = values.T
        style = {"color": color, "marker": marker, "linestyle": "", "label": f"m = {dim}"}
        left.errorbar(SHARES, measured, 3 * errors, **style)
    left.set(title="range, $t$ = 2", xlabel="share s of mass at one point", ylim=(0, 1.03))
    left.set_ylabel("mean potential")
    left.legend()
    dims = 2 ** np.arange(1, 13)
    for t, color in zip(SCALES, COLORS, strict=False):
        values = [uniform_potential(int(dim), t) for dim in dims]
        right.plot(dims, values, color=color, label=f"t = {t:g}")
        right.axhline(math.exp(-2 * t), color=color, linestyle="--", linewidth=0.8)
    right.set(title="least value", xlabel="dimension m", yscale="log", ylim=(2e-5, 1))
    right.set_xscale("log", base=2)
    right.set_xticks(dims[::2], [f"{dim}" for dim in dims[::2]])
    right.legend(ncols=2, loc="lower left")
    save_figure(figure, path)
