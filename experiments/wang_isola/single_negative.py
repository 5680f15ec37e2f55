"""Theorem 2 of Wang & Isola, measured: the contrastive loss with a single negative."""

import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import lax
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from scipy import special

from experiments.reproduction import Result
from hypersphere_jax import info_nce_loss
from hypersphere_jax.plots.common import COLORS, DPI, saved

TAU = 0.5
TAUS = (0.1, 0.5, 1.0)
POINTS = 1440  # of equal mass, that represent a distribution; all sets of points divide it
FREE_POINTS, STARTS, STEPS, STEP_SIZE = 60, 5, 1000, 1.0


def single_negative(cosines: np.ndarray, positive: float, tau: float) -> np.ndarray:
    """The loss with one negative, `log(1 + exp((negative's cosine - positive's) / tau))`."""
    return np.logaddexp(0, (cosines - positive) / tau)


def uniform_single(dim: int, tau: float, positive: float = 1.0) -> float:
    """The loss of uniform features with one negative, by quadrature over the negative's angle.

    `positive` is the cosine of positives; 1, aligned, gives the constant of Theorem 2.
    """
    angles = (np.arange(20_000) + 0.5) * np.pi / 20_000
    weights = np.sin(angles) ** (dim - 2)
    values = single_negative(np.cos(angles), positive, tau)
    return float((weights * values).sum() / weights.sum())


def waves(tau: float, size: int = 4096) -> np.ndarray:
    """Coefficients a_k of the aligned loss on the circle, `sum_k a_k cos(k angle)`, k <= size/2."""
    values = single_negative(np.cos(2 * np.pi * np.arange(size) / size), 1.0, tau)
    coefficients = np.fft.rfft(values).real / size
    coefficients[1:] *= 2
    return coefficients


def von_mises_single(kappa: float, tau: float) -> float:
    """The loss of aligned von Mises-Fisher features on the circle with one negative."""
    coefficients = waves(tau)[:600]
    moments = special.ive(np.arange(600), kappa) / special.ive(0, kappa)
    return float((coefficients * moments**2).sum())


def spaced_single(n: int, tau: float) -> float:
    """The loss of aligned features, equally many at each of n equally spaced points of a circle."""
    return float(single_negative(np.cos(2 * np.pi * np.arange(n) / n), 1.0, tau).mean())


@jax.jit
def all_pairs_loss(x: jax.Array, y: jax.Array, negatives: jax.Array, tau: float) -> jax.Array:
    """`info_nce_loss` with each of the negatives alone, on average: M = 1 over all pairs."""
    return jnp.mean(jax.vmap(lambda one: info_nce_loss(x, y, one[None], tau))(negatives))


@jax.jit
def free_descent(angles: jax.Array, tau: float) -> tuple[jax.Array, jax.Array]:
    """Gradient descent of points on the circle, `[starts, n]` angles, on the aligned loss.

    Gives the last angles, and the loss before each step `[STEPS, starts]`.
    """

    def loss(angles):
        x = jnp.stack((jnp.cos(angles), jnp.sin(angles)), axis=1)
        return all_pairs_loss(x, x, x, tau)

    def step(angles, _):
        values, gradients = jax.vmap(jax.value_and_grad(loss))(angles)
        return angles - STEP_SIZE * angles.shape[1] * gradients, values

    return lax.scan(step, angles, length=STEPS)


def _circle(angles: np.ndarray) -> np.ndarray:
    return np.stack((np.cos(angles), np.sin(angles)), axis=1)


def theorem2(path: Path | None, seed: int = 0) -> Result:
    """Theorem 2: with a single negative, which features have the least contrastive loss."""
    rng = np.random.default_rng(seed)
    rows = []

    def add(tau, dim, name, x, exact, y=None, negatives=None):
        y, negatives = (x if points is None else points for points in (y, negatives))
        x, y, negatives = (np.tile(part, (POINTS // len(part), 1)) for part in (x, y, negatives))
        loss = float(all_pairs_loss(x, y, negatives, tau))
        rows.append([tau, dim, name, loss, exact, exact - uniform_single(dim, tau)])

    even = 2 * np.pi * np.arange(POINTS) / POINTS
    add(TAU, 2, "aligned, uniform", _circle(even), uniform_single(2, TAU))
    for degrees in (10, 30, 90):
        away = math.radians(degrees)
        exact, y = uniform_single(2, TAU, math.cos(away)), _circle(even + away)
        add(TAU, 2, f"positives at {degrees}°, uniform", _circle(even), exact, y=y)
    for kappa in (0.25, 1.0, 4.0, 16.0):
        x = _circle(scipy.stats.vonmises.ppf((np.arange(POINTS) + 0.5) / POINTS, kappa))
        add(TAU, 2, f"aligned, vMF κ = {kappa:g}", x, von_mises_single(kappa, TAU))
    for n in (1, 2, 3, 4, 5, 6):
        x = _circle(2 * np.pi * np.arange(n) / n)
        name = "aligned, one point" if n == 1 else f"aligned, {n} equally spaced points"
        add(TAU, 2, name, x, spaced_single(n, TAU))
    for tau, n in ((0.1, 10), (1.0, 4)):
        x = _circle(2 * np.pi * np.arange(n) / n)
        add(tau, 2, "aligned, uniform", _circle(even), uniform_single(2, tau))
        add(tau, 2, f"aligned, {n} equally spaced points", x, spaced_single(n, tau))
    for dim in (3, 8):
        points = rng.standard_normal((2, POINTS, dim))
        points /= np.linalg.norm(points, axis=2, keepdims=True)
        exact = uniform_single(dim, 1.0)
        add(1.0, dim, "aligned, uniform", points[0], exact, negatives=points[1])
        x = np.concatenate([np.eye(dim), -np.eye(dim)])
        exact = float(single_negative(x @ x[0], 1.0, 1.0).mean())
        add(1.0, dim, f"aligned, {2 * dim} points ±e_i", x, exact)

    starts = rng.uniform(0, 2 * np.pi, (STARTS, FREE_POINTS)).astype(np.float32)
    moved, losses = map(np.asarray, free_descent(starts, TAU))
    constant = uniform_single(2, TAU)
    ends = [single_negative(np.cos(a[:, None] - a), 1.0, TAU).mean() for a in moved.astype(float)]
    best = int(np.argmin(ends))
    name = f"aligned, {FREE_POINTS} free points, best of {STARTS} descents"
    add(TAU, 2, name, _circle(moved[best]), float(ends[best]))
    fewest = min(range(1, 40), key=lambda n: spaced_single(n, TAU))
    least = spaced_single(fewest, TAU) - constant
    draw_single_negative(losses.T - constant, least, path)

    below = [row for row in rows if row[5] < -1e-9]
    gains = {
        tau: 1 - min(spaced_single(n, tau) for n in range(1, 80)) / uniform_single(2, tau)
        for tau in TAUS
    }
    negative = {tau: int(np.argmax(waves(tau)[1:100] < -1e-12)) + 1 for tau in TAUS}
    text = [
        "The paper: if perfectly aligned and uniform encoders exist, they are the exact minimizers "
        "of the contrastive loss for M = 1. The constant that it gives for their loss is an "
        "integral, computed here by quadrature ('exact'); 'loss' is the library's info_nce_loss "
        "with one negative, averaged over all pairs of points.",
        f"Of {len(rows)} kinds of features here, {len(below)} lie below the constant: "
        f"{', '.join(dict.fromkeys(str(row[2]) for row in below))}. All others, such as positives "
        "at an angle and concentrated features, cost as much or more. At tau = 1 four points of a "
        "square have the loss (log 2 + 2 log(1 + 1/e) + log(1 + 1/e^2)) / 4 = "
        f"{spaced_single(4, 1.0):.6f}, and uniform features {uniform_single(2, 1.0):.6f}.",
        f"Gradient descent finds this by itself: {FREE_POINTS} free points from random starts end "
        f"{min(ends) - constant:.2e} to {max(ends) - constant:.2e} from the constant "
        f"{constant:.6f} at tau = {TAU:g}; the best equally spaced set, {fewest} points, is at "
        f"{least:.2e}.",
        "The reason: uniform features are the minimizers only if all waves cos(k angle) in the "
        "loss of two points, log(1 + exp((cos(angle) - 1) / tau)), have coefficients of at least "
        "zero. The first negative one is k = "
        + ", ".join(f"{k} at tau = {tau:g}" for tau, k in negative.items())
        + ". The proof takes the derivative of that loss by the squared distance as completely "
        "monotone; the n-th derivative printed there leaves out inner derivatives, and the third "
        "derivative of it has the other sign for points that lie close.",
        "In practice the difference is small: against the constant, the best equally spaced points "
        "gain "
        + ", ".join(f"{100 * gain:.2f}% at tau = {tau:g}" for tau, gain in gains.items())
        + ". Alignment stays exact: for any features, aligned positives cost least.",
    ]
    columns = ["tau", "d", "features", "loss", "exact", "above aligned + uniform"]
    caption = (
        "The loss with one negative on the circle, above that of aligned and uniform features "
        "(dashed), which the theorem calls the least. Points below the line contradict it. The "
        "lower left axis is logarithmic beyond 0.0001 on both sides; in the lower right, each line "
        "is a random start."
    )
    title = "Theorem 2: the contrastive loss with a single negative"
    verdict = (
        "holds nearly, not exactly: aligned features at a few equally spaced points lie up to "
        f"{100 * max(gains.values()):.1f}% of the loss below aligned and uniform ones"
        if below
        else "none of the features here lie below aligned and uniform ones"
    )
    return Result(title, columns, rows, [(path, caption)], text, verdict)


def draw_single_negative(descents: np.ndarray, least: float, path: Path | None) -> Figure:
    """The loss with one negative, above that of aligned and uniform features.

    Of positives at an angle; von Mises-Fisher features; n equally spaced points, whose least is
    given; and `descents` `[starts, steps]` of free points.
    """
    figure = Figure(figsize=(11, 8), dpi=DPI, layout="constrained")
    (aligned, uniform), (points, free) = figure.subplots(2, 2)
    degrees, kappas, numbers = np.linspace(0, 180, 91), np.geomspace(0.1, 100, 61), range(1, 17)
    for tau, color, marker in zip(TAUS, COLORS, "osD", strict=False):
        constant, style = uniform_single(2, tau), {"color": color, "label": f"τ = {tau:g}"}
        losses = [uniform_single(2, tau, cosine) for cosine in np.cos(np.radians(degrees))]
        aligned.plot(degrees, np.array(losses) - constant, **style)
        losses = [von_mises_single(kappa, tau) for kappa in kappas]
        uniform.plot(kappas, np.array(losses) - constant, **style)
        losses = [spaced_single(n, tau) for n in numbers]
        style |= {"marker": marker, "markersize": 4, "linewidth": 0.8}
        points.plot(numbers, np.array(losses) - constant, **style)
    aligned.set(title="less aligned, uniform", xlabel="angle between positives (degrees)")
    aligned.set_xticks(range(0, 181, 30))
    uniform.set(title="aligned, less uniform: von Mises-Fisher", xscale="log")
    uniform.set_xlabel("concentration κ")
    points.set(title="aligned, at n equally spaced points", xlabel="number of points n")
    points.set(xticks=numbers, ylim=(-5e-3, 3))
    points.set_yscale("symlog", linthresh=1e-4)
    points.yaxis.set_minor_locator(NullLocator())
    free.plot(descents.T)
    free.axhline(least, color="black", linestyle=":", label="best of equally spaced points")
    title = f"aligned, free points under gradient descent, τ = {TAU:g}"
    free.set(title=title, xlabel="step", ylim=(1.6 * least, -4 * least))
    free.ticklabel_format(axis="y", style="sci", scilimits=(-3, -3), useMathText=True)
    for axes in figure.axes:
        axes.axhline(0, color="gray", linestyle="--", linewidth=1)
        axes.set_ylabel("loss above aligned + uniform (nats)")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    return saved(figure, path)
