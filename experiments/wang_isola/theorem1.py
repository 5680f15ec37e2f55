"""Theorem 1 of Wang & Isola: the contrastive loss with more and more negatives.

Claim: as the number M of negatives grows, the contrastive loss minus log M converges to Eq. (2),
and its absolute deviation decays in O(M^-1/2).

    python run.py reproduce wang-isola/theorem1 --scale laptop

Nothing is trained; two minutes on one CPU core.
Result: supported. The expected loss approaches its limit like 1/M (slopes -1.00), faster than the
bound. Single draws, by which the proof bounds the deviation, have the rate M^-1/2 (slopes -0.52 to
-0.50).

1/M is expected: the first-order random part has mean zero, and the positive's own term and the bias
of the logarithm of a mean are of order 1/M. An older revision of the paper prints M^-2/3, which is
too fast for single draws.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lib.plots import MARKERS, new_figure, printed, shared_legend
from experiments.lib.records import Rows
from experiments.lib.stats import check
from experiments.lib.sweep import no_runs
from hypersphere_jax import data, info_nce_loss, theory
from hypersphere_jax.configs import DataConfig
from hypersphere_jax.reporting.plots.style import COLORS, save_figure

SCALES = ("laptop", "gpu", "paper")
SETTINGS = ()
runs = no_runs
TAU = 0.5
SIZES = (16, 64, 256, 1024, 4096, 16384, 65536)
FIT_FROM = 256  # smaller M have visible higher-order terms
DIM = 4
ANGLE = 60.0  # degrees between positives that are not aligned
DIGITS_PER_CLASS = 5
DIGITS_DIM = 8
DRAWS = 2048
MAX_NEGATIVES = 2**24  # per M, in all draws
CHUNK = 2**18  # negatives at a time
POWERS = {"single draw": -0.5, "expectation": -1.0}


class Population(NamedTuple):
    """Features with a known limit of the loss, one query at a time.

    `draw(random, draws, M)` returns queries `[draws, d]`, positives `[draws, kinds, d]`, negatives
    `[draws, M, d]`, the mean E exp(x . x- / tau) `[draws]`, and -x . y / tau + log of that mean
    `[draws, kinds]`. `constants` are the coefficients of the first order, per kind of positives.
    """

    names: tuple[str, ...]
    draw: Callable[[np.random.Generator, int, int], tuple[np.ndarray, ...]]
    constants: Mapping[str, Sequence[float]]


def uniform_population() -> Population:
    """Return uniform features on the sphere, with positives aligned or at an angle."""
    area = theory.sphere_log_area(DIM)
    mean = math.exp(theory.vmf_log_normalizer(DIM, 1 / TAU) - area)
    square = math.exp(theory.vmf_log_normalizer(DIM, 2 / TAU) - area)
    relative_variance = square / mean**2 - 1
    angles = np.radians([0, ANGLE])
    cosines = np.cos(angles)
    sines = np.sin(angles)

    def draw(random, draws, m):
        points = random.standard_normal((draws, 1 + m, DIM), dtype=np.float32)
        points /= np.linalg.norm(points, axis=-1, keepdims=True)
        x = points[:, 0]
        # Turn pairs of coordinates by 90 degrees: an orthogonal unit vector.
        turned = (x.reshape(draws, -1, 2)[..., ::-1] * np.float32([1, -1])).reshape(x.shape)
        keys = cosines[:, None] * x[:, None] + sines[:, None] * turned[:, None]
        limit = np.tile(math.log(mean) - cosines / TAU, (draws, 1))
        return x, keys.astype(np.float32), points[:, 1:], np.full(draws, mean), limit

    bias = [math.exp(cosine / TAU) / mean - relative_variance / 2 for cosine in cosines]
    name = f"uniform in R^{DIM}"
    names = (f"{name}, aligned", f"{name}, positives at {ANGLE:g}°")
    constants = {"single draw": [math.sqrt(relative_variance)] * 2, "expectation": bias}
    return Population(names, draw, constants)


def digit_pairs(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return features of a few digits, and of the same digits moved by a pixel.

    The encoder projects on the first singular directions of the images and normalizes.
    """
    source = data.load(DataConfig()).train
    random = np.random.default_rng(seed)
    labels = np.asarray(source.labels)
    chosen = [
        random.choice(np.flatnonzero(labels == c), DIGITS_PER_CLASS, False) for c in range(10)
    ]
    indices = np.concatenate(chosen)
    images = np.stack([source[int(i)]["image"] for i in indices]).astype(np.float32)
    moved = np.pad(images, ((0, 0), (0, 0), (1, 0), (0, 0)))[:, :, :-1]
    flat = [part.reshape(len(part), -1) for part in (images, moved)]
    directions = np.linalg.svd(flat[0], full_matrices=False)[2][:DIGITS_DIM]
    x, y = (part @ directions.T for part in flat)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y /= np.linalg.norm(y, axis=1, keepdims=True)
    return x, y


def finite_population(name: str, x: np.ndarray, y: np.ndarray) -> Population:
    """Return the rows of x `[n, d]` as the whole population, with positives y `[n, d]`."""
    exact_x = x.astype(np.float64)
    kernel = np.exp(exact_x @ exact_x.T / TAU)
    mean = kernel.mean(axis=1)
    relative_variance = (kernel / mean[:, None]).var(axis=1)
    aligned = (exact_x * y.astype(np.float64)).sum(axis=1) / TAU
    limit = np.log(mean) - aligned

    def draw(random, draws, m):
        chosen = random.integers(len(x), size=draws)
        negatives = x[random.integers(len(x), size=(draws, m))]
        return x[chosen], y[chosen, None], negatives, mean[chosen], limit[chosen, None]

    bias = float((np.exp(aligned) / mean - relative_variance / 2).mean())
    constants = {"single draw": [math.sqrt(relative_variance.mean())], "expectation": [bias]}
    return Population((name,), draw, constants)


@jax.jit
@functools.partial(jax.vmap, in_axes=(0, 0, 0, 0, None))
def losses(
    x: jax.Array, keys: jax.Array, negatives: jax.Array, mean: jax.Array, tau: float
) -> tuple[jax.Array, jax.Array]:
    """Return the loss per kind of positives, and its first order, which has mean zero."""
    potentials = jnp.exp(negatives @ x / tau)
    side = math.isqrt(len(negatives))  # float32 sums in two stages
    first_order = jnp.mean(jnp.mean(potentials.reshape(side, -1), axis=1)) / mean - 1
    return jax.vmap(lambda y: info_nce_loss(x[None], y[None], negatives, tau))(keys), first_order


def deviations(
    population: Population, m: int, draws: int, max_negatives: int, seed: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return how far `info_nce_loss - log M` is from its limit, with standard errors, per kind.

    The first order of each draw is subtracted from the expectation, to see it below the noise.
    """
    random = np.random.default_rng((seed, m))
    count = max(16, min(draws, max_negatives // m))
    chunk = max(1, min(count, CHUNK // m))
    values = []
    first_orders = []
    for _ in range(-(-count // chunk)):
        *drawn, mean, limit = population.draw(random, chunk, m)
        loss, first_order = losses(*drawn, mean.astype(np.float32), TAU)
        values.append(np.asarray(loss, np.float64) - math.log(m) - limit)
        first_orders.append(np.asarray(first_order, np.float64))
    value = np.concatenate(values)
    rest = value - np.concatenate(first_orders)[:, None]
    scale = math.sqrt(len(value))
    rms = np.sqrt((value**2).mean(axis=0))
    rms_error = (value**2).std(axis=0) / scale / (2 * rms)
    return {
        "single draw": (rms, rms_error),
        "expectation": (rest.mean(axis=0), rest.std(axis=0) / scale),
    }


def power_law(sizes: Sequence[int], values: np.ndarray, errors: np.ndarray) -> tuple[float, float]:
    """Return the slope of log |values| over log sizes by weighted least squares, and its error."""
    x = np.log(sizes)
    y = np.log(np.abs(values))
    weights = np.abs(values) / errors
    fit, covariance = np.polyfit(x, y, 1, w=weights, cov="unscaled")
    residuals = weights * (y - np.polyval(fit, x))
    scatter = (residuals**2).sum() / max(1, len(x) - 2)
    return float(fit[0]), math.sqrt(max(1.0, scatter) * covariance[0, 0])


@functools.cache
def measure(
    sizes: tuple[int, ...] = SIZES,
    draws: int = DRAWS,
    max_negatives: int = MAX_NEGATIVES,
    seed: int = 0,
) -> Rows:
    """Return a row per population, kind of deviation and M: value, standard error, first order."""
    x, y = digit_pairs(seed)
    digits = finite_population(f"{len(x)} digits in R^{DIGITS_DIM}, moved by a pixel", x, y)
    rows: Rows = []
    for population in (uniform_population(), digits):
        for m in sizes:
            found = deviations(population, m, draws, max_negatives, seed)
            for kind, (values, errors) in found.items():
                for index, name in enumerate(population.names):
                    first_order = population.constants[kind][index] * m ** POWERS[kind]
                    row = {"features": name, "kind": kind, "M": m, "deviation": values[index]}
                    rows.append(row | {"error": errors[index], "first_order": first_order})
    return rows


def analyze(rows: Sequence = (), **options) -> Rows:
    """Fit slopes over M on logarithmic axes, with 95% intervals."""
    table = []
    groups: dict[tuple[str, str], Rows] = {}
    for row in measure(**options):
        if row["M"] >= FIT_FROM:
            groups.setdefault((row["kind"], row["features"]), []).append(row)
    for (kind, name), group in groups.items():
        sizes, values, errors = np.array(
            [[row["M"], row["deviation"], row["error"]] for row in group]
        ).T
        slope, error = power_law(sizes, values, errors)
        if kind == "expectation":
            claim = "expected deviation falls at least like M^-1/2: slope"
            holds = slope < -0.5
        else:
            claim = "deviation of single draws falls like M^-1/2: slope"
            holds = abs(slope + 0.5) < 0.1
        ends = {"low": slope - 1.96 * error, "high": slope + 1.96 * error}
        table.append(check(claim, holds, slope, **ends, features=name))
    return table


@printed
def plot(rows: Rows, path: Path | None):
    """Draw deviations over M with two standard errors, and their first order (dashed)."""
    figure, (panels,) = new_figure(1, 2, 3.2, sharey=True)
    for axes, kind in zip(panels, POWERS, strict=True):
        names = dict.fromkeys(row["features"] for row in measure())
        for name, color, marker in zip(names, COLORS, MARKERS, strict=False):
            group = [r for r in measure() if r["features"] == name and r["kind"] == kind]
            values = np.array([[r["deviation"], r["error"], r["first_order"]] for r in group])
            style = {"color": color, "fmt": marker, "label": name}
            axes.errorbar(SIZES, np.abs(values[:, 0]), 2 * values[:, 1], **style)
            axes.plot(SIZES, np.abs(values[:, 2]), "--", color=color, linewidth=0.8)
        axes.set(yscale="log", title=kind, xlabel="number M of negatives")
        axes.set_xscale("log", base=4)
    panels[0].set_ylabel("deviation (nats)")
    shared_legend(figure, panels[0], columns=2)
    return save_figure(figure, path)
