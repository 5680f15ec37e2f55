"""Theorem 1 of Wang & Isola, measured: the contrastive loss with more and more negatives."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from experiments.plots.style import PAGE, printed
from experiments.reproduction import Result
from hypersphere_jax import data, info_nce_loss, theory
from hypersphere_jax.configs import DataConfig
from hypersphere_jax.plots.common import COLORS, DPI, saved

TAU = 0.5
SIZES = (16, 64, 256, 1024, 4096, 16384, 65536)
FIT_FROM = 256  # first order in 1 / sqrt(M): below, the next order bends the line
DIM, ANGLE = 4, 60.0  # uniform features, and degrees between positives that are not aligned
PER_CLASS = 5  # digits of each class that make the second distribution
DIGIT_DIM = 8
DRAWS = 2048  # at most, for each M
CHUNK = 2**18  # negatives at once
# Deviation of: (what is measured, power of M of the first order, title of its panel).
KINDS = {
    "rms": ("one draw (root mean square)", -0.5, "one draw (root mean square)"),
    "bias": ("expectation", -1.0, "expectation over draws (absolute)"),
}
Deviations = Mapping[str, np.ndarray]  # for each of KINDS: values and standard errors, [2, k] by M


class Features(NamedTuple):
    """Features of which the limit of the loss is known, one query at a time."""

    names: tuple[str, ...]  # one a kind of positives
    # (generator, draws, M) -> queries [draws, d], positives of each kind [draws, kinds, d],
    # negatives [draws, M, d], E exp(x . x- / tau) [draws], and the limit of Eq. (2) before its mean
    # over queries, -x . y / tau + log of that [draws, kinds].
    draw: Callable[[np.random.Generator, int, int], tuple[np.ndarray, ...]]
    constants: Mapping[str, Sequence[float]]  # of the first order, for each kind of positives


def uniform_features() -> Features:
    """Uniform features on the sphere; positives aligned, or at an angle. All in closed form."""
    # E exp(scale u . v), u uniform on the sphere: 0F1(; dim/2; scale^2 / 4).
    mean, squares = (
        math.exp(theory.vmf_log_normalizer(DIM, scale) - theory.sphere_log_area(DIM))
        for scale in (1 / TAU, 2 / TAU)
    )
    spread = squares / mean**2 - 1  # variance over squared mean
    angles = np.radians([0, ANGLE])
    cosines, sines = np.cos(angles), np.sin(angles)

    def draw(rng, draws, m):
        points = rng.standard_normal((draws, 1 + m, DIM), dtype=np.float32)
        points /= np.linalg.norm(points, axis=-1, keepdims=True)
        x = points[:, 0]
        # Any unit vector at a right angle will do: coordinates in pairs, turned by 90 degrees.
        turned = (x.reshape(draws, -1, 2)[..., ::-1] * np.float32([1, -1])).reshape(x.shape)
        keys = cosines[:, None] * x[:, None] + sines[:, None] * turned[:, None]
        limit = np.tile(math.log(mean) - cosines / TAU, (draws, 1))
        return x, keys.astype(np.float32), points[:, 1:], np.full(draws, mean), limit

    name = f"uniform on the sphere in R^{DIM}"
    names = f"{name}, aligned", f"{name}, positives at {ANGLE:g}°"
    bias = [math.exp(cosine / TAU) / mean - spread / 2 for cosine in cosines]
    return Features(names, draw, {"rms": [math.sqrt(spread)] * 2, "bias": bias})


def digit_pairs(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A linear encoder of a few digits of each class, and of the same moved by a pixel: x, y.

    It projects pixels to the first singular directions of the images, and normalizes.
    """
    source = data.load(DataConfig()).train
    rng = np.random.default_rng(seed)
    labels = np.asarray(source.labels)
    chosen = [rng.choice(np.flatnonzero(labels == c), PER_CLASS, False) for c in range(10)]
    images = np.stack([source[int(i)]["image"] for i in np.concatenate(chosen)]).astype(np.float32)
    moved = np.pad(images, ((0, 0), (0, 0), (1, 0), (0, 0)))[:, :, :-1]
    flat = [part.reshape(len(part), -1) for part in (images, moved)]
    directions = np.linalg.svd(flat[0], full_matrices=False)[2][:DIGIT_DIM]
    x, y = (part @ directions.T for part in flat)
    return tuple(part / np.linalg.norm(part, axis=1, keepdims=True) for part in (x, y))


def population(name: str, x: np.ndarray, y: np.ndarray) -> Features:
    """The rows of x `[n, d]` as the whole data, each as likely; positives y `[n, d]`."""
    exact_x, exact_y = x.astype(np.float64), y.astype(np.float64)
    kernel = np.exp(exact_x @ exact_x.T / TAU)
    mean = kernel.mean(axis=1)
    spread = (kernel / mean[:, None]).var(axis=1)
    aligned = (exact_x * exact_y).sum(axis=1) / TAU
    limit = np.log(mean) - aligned

    def draw(rng, draws, m):
        chosen = rng.integers(len(x), size=draws)
        negatives = x[rng.integers(len(x), size=(draws, m))]
        return x[chosen], y[chosen, None], negatives, mean[chosen], limit[chosen, None]

    bias = float((np.exp(aligned) / mean - spread / 2).mean())
    return Features((name,), draw, {"rms": [math.sqrt(spread.mean())], "bias": [bias]})


@jax.jit
@functools.partial(jax.vmap, in_axes=(0, 0, 0, 0, None))
def _losses(
    x: jax.Array, keys: jax.Array, negatives: jax.Array, mean: jax.Array, tau: float
) -> tuple[jax.Array, jax.Array]:
    """Of each draw: the loss for each kind of positives, and `mean_j e^{x . x_j / tau} / E - 1`.

    The latter is the loss's first order, of mean zero.
    """
    potentials = jnp.exp(negatives @ x / tau)
    side = math.isqrt(len(negatives))  # in two stages, for float32's sake
    first_order = jnp.mean(jnp.mean(potentials.reshape(side, -1), axis=1)) / mean - 1
    losses = jax.vmap(lambda y: info_nce_loss(x[None], y[None], negatives, tau))(keys)
    return losses, first_order


def deviations(
    features: Features, sizes: Sequence[int], draws: int, negatives: int, seed: int
) -> list[Deviations]:
    """How far `info_nce_loss - log M` lies from its limit, for each kind of positives.

    Each draw has a query and M (a square) negatives of its own; for each M there are at most so
    many draws, and negatives in all, but 16 draws at least.
    """
    measured = []
    for m in sizes:
        rng = np.random.default_rng((seed, m))
        count = max(16, min(draws, negatives // m))
        chunk = max(1, min(count, CHUNK // m))
        first_order, values = [], []
        for _ in range(-(-count // chunk)):
            *drawn, mean, limit = features.draw(rng, chunk, m)
            losses, order = _losses(*drawn, mean.astype(np.float32), TAU)
            values.append(np.asarray(losses, np.float64) - math.log(m) - limit)
            first_order.append(np.asarray(order, np.float64))
        values, first_order = np.concatenate(values), np.concatenate(first_order)[:, None]
        scale = math.sqrt(len(values))
        rms = np.sqrt((values**2).mean(axis=0))
        rms_error = (values**2).std(axis=0) / scale / (2 * rms)
        rest = values - first_order
        measured.append([[rms, rms_error], [rest.mean(axis=0), rest.std(axis=0) / scale]])
    columns = np.array(measured).transpose(3, 1, 2, 0)  # [kinds, rms or bias, 2, k]
    return [dict(zip(KINDS, kind, strict=True)) for kind in columns]


def power_law(sizes: Sequence[int], values: np.ndarray, errors: np.ndarray) -> tuple[float, float]:
    """Slope of log |values| over log sizes by weighted least squares, and its standard error."""
    x, y, weights = np.log(sizes), np.log(np.abs(values)), np.abs(values) / errors
    fit, covariance = np.polyfit(x, y, 1, w=weights, cov="unscaled")
    residuals = weights * (y - np.polyval(fit, x))
    scatter = (residuals**2).sum() / max(1, len(x) - 2)
    return float(fit[0]), math.sqrt(max(1.0, scatter) * covariance[0, 0])


def theorem1(
    path: Path | None,
    seed: int = 0,
    sizes: Sequence[int] = SIZES,
    draws: int = DRAWS,
    negatives: int = 2**24,
) -> Result:
    """Theorem 1: how fast the normalized contrastive loss goes to its limit; see `deviations`."""
    x, y = digit_pairs(seed)
    digits = population(f"{len(x)} digits in R^{DIGIT_DIM}, positives moved by a pixel", x, y)
    fitted = np.array(sizes) >= FIT_FROM
    series, rows, slopes = {}, [], {key: [] for key in KINDS}
    for features in (uniform_features(), digits):
        measured = deviations(features, sizes, draws, negatives, seed)
        for place, (name, one) in enumerate(zip(features.names, measured, strict=True)):
            constants = {key: of[place] for key, of in features.constants.items()}
            series[name] = one, constants
            for key, (label, power, *_) in KINDS.items():
                slope, error = power_law(np.array(sizes)[fitted], *one[key][:, fitted])
                slopes[key].append(slope)
                first_order = constants[key] * sizes[-1] ** power
                rows.append([name, label, slope, error, power, *one[key][:, -1], first_order])
    draw_deviations(sizes, series, path)
    ranges = {key: f"{min(of):.3f} to {max(of):.3f}" for key, of in slopes.items()}
    worst = max(row[3] for row in rows if row[1] == KINDS["bias"][0])
    limit = float(theory.contrastive_limit(x, y, TAU))
    text = [
        "The paper: as the number M of negatives grows, the contrastive loss less log M converges "
        "to Eq. (2), and the absolute deviation decays in O(M^-1/2) (result 3). This is an upper "
        "bound: it says that the deviation falls at least so fast. An older revision prints "
        "M^-2/3.",
        f"Measured with the library's info_nce_loss at tau = {TAU:g}, for M = {sizes[0]} to "
        f"{sizes[-1]}. Uniform features have the limit -s/tau + log 0F1(; d/2; 1/(4 tau^2)) for "
        f"positives with inner product s. The {len(x)} digits, in their first {DIGIT_DIM} singular "
        "directions and normalized, are a population: each negative is any of them, and the limit "
        f"is the same mean over them, theory.contrastive_limit = {limit:.6f}. Slopes are fitted on "
        f"logarithmic axes from M = {FIT_FROM}, by weighted least squares.",
        "The loss of the theorem is the expectation over queries and negatives. Its deviation "
        f"falls with slopes of {ranges['bias']}: like 1/M, within the bound and faster than it. "
        "One expects 1/M: the random part of first order has the mean zero, and what is left are "
        "the positive's own term in the sum and the bias of the log of a mean, both of order 1/M. "
        "(So that it can be seen below the noise of draws, each draw's first order, the relative "
        "error of its mean potential, is subtracted.)",
        "The proof bounds this by the mean absolute deviation of single draws, in (11), and that "
        "has the rate M^-1/2 itself: with one draw of a query and its negatives, the root mean "
        f"square deviation falls with slopes of {ranges['rms']}. So the bound is the best that "
        "this step of the proof gives; the older revision's M^-2/3 would be too fast for it, and "
        "holds for the expectation.",
        "The last column has the first order in closed form at the largest M.",
    ]
    columns = ["features", "deviation of", "slope", "its error", "expected"]
    columns += [f"at M = {sizes[-1]}", "standard error", "first order"]
    caption = (
        "Deviation of the loss from its limit against the number of negatives, dots with two "
        "standard errors; dashed: the first order in closed form. Left: one draw of a query and "
        "its negatives. Right: the expectation, of which the theorem says that it falls at least "
        "like the dotted line."
    )
    title = "Theorem 1: deviation of the normalized contrastive loss from its limit"
    close = all(abs(slope + 0.5) < 0.1 for slope in slopes["rms"])
    within = all(slope < -0.5 for slope in slopes["bias"])
    verdict = (
        f"The measurement {'confirms' if within else 'does NOT confirm'} the theorem, whose "
        f"O(M^-1/2) is an upper bound: the expected loss of {len(slopes['bias'])} kinds of "
        f"features nears its limit with slopes of {ranges['bias']} on logarithmic axes (standard "
        f"errors up to {worst:.3f}), like 1/M and so within the bound; the deviation of single "
        f"draws, by which the proof bounds it, {'has' if close else 'does NOT have'} the bound's "
        f"own rate ({ranges['rms']})"
    )
    return Result(title, columns, rows, [(path, caption)], text, verdict)


@printed
def draw_deviations(
    sizes: Sequence[int], series: Mapping[str, tuple[Deviations, Mapping]], path: Path | None
) -> Figure:
    """Deviations against M with two standard errors; dashed: their first order, by its constant."""
    figure = Figure(figsize=(PAGE, 3.2), dpi=DPI, layout="constrained")
    powers = np.array(sizes, float)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (key, (_, power, title)) in zip(panels, KINDS.items(), strict=True):
        for (name, (measured, constants)), color, marker in zip(
            series.items(), COLORS, "osD^v", strict=False
        ):
            values, errors = measured[key]
            style = {"color": color, "marker": marker, "linestyle": "", "label": name}
            axes.errorbar(sizes, np.abs(values), 2 * errors, **style)
            first_order = abs(constants[key]) * powers**power
            axes.plot(sizes, first_order, color=color, linestyle="--", linewidth=0.8)
        axes.set(yscale="log", title=title, xlabel="number M of negatives")
        axes.set_xscale("log", base=4)
        axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
        axes.set_xticks([], minor=True)
    panels[0].set_ylabel("deviation (nats)")
    highest = max(constants["rms"] for _, constants in series.values())
    bound, label = highest * powers**-0.5, "slope −1/2, the theorem's rate"
    panels[1].plot(sizes, bound, color="black", linestyle=":", label=label)
    panels[1].plot([], [], color="gray", linestyle="--", linewidth=0.8, label="first order")
    handles, labels = panels[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return saved(figure, path)
