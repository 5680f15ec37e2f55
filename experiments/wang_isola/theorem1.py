"""Theorem 1 of Wang & Isola: the contrastive loss with more and more negatives.

Claim: as the number M of negatives grows, the contrastive loss minus log M converges to Eq. (2),
and its absolute deviation decays in O(M^-1/2).

    python run.py reproduce wang-isola/theorem1 --scale laptop

Nothing is trained; a minute on one CPU core.
Result: supported for uniform features, with positives that are aligned or at 60 degrees. The
expected loss approaches its limit like 1/M (slopes -1.00), faster than the bound. Single draws, by
which the proof bounds the deviation, have the rate M^-1/2 (slopes -0.51 and -0.50). The first-order
random part has mean zero, and the terms that remain are of order 1/M.
"""

import functools
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lib import Rows, plots, stats
from hypersphere_jax import info_nce_loss, theory

SCALES = ("laptop", "gpu", "paper")
TAU = 0.5
SIZES = (16, 64, 256, 1024, 4096, 16384, 65536)
FIT_FROM = 256  # smaller M have visible higher-order terms
DIM = 4
ANGLES = (0, 60)  # degrees between positives
NAMES = (f"uniform in R^{DIM}, aligned", f"uniform in R^{DIM}, positives at {ANGLES[1]}°")
DRAWS = 2048
MAX_NEGATIVES = 2**24  # per M, in all draws
CHUNK = 2**18  # negatives at a time
SINGLE = "single draw"
EXPECTATION = "expectation"


def draw(random: np.random.Generator, count: int, m: int) -> tuple[np.ndarray, ...]:
    """Return queries `[count, d]`, positives `[count, angles, d]` and negatives `[count, M, d]`."""
    points = random.standard_normal((count, 1 + m, DIM), dtype=np.float32)
    points /= np.linalg.norm(points, axis=-1, keepdims=True)
    x = points[:, 0]
    # Turn pairs of coordinates by 90 degrees: an orthogonal unit vector.
    turned = (x.reshape(count, -1, 2)[..., ::-1] * np.array([1, -1], np.float32)).reshape(x.shape)
    angles = np.radians(ANGLES)[:, None]
    positives = np.cos(angles) * x[:, None] + np.sin(angles) * turned[:, None]
    return x, positives.astype(np.float32), points[:, 1:]


@jax.jit
@functools.partial(jax.vmap, in_axes=(0, 0, 0, None))
def losses(
    x: jax.Array, positives: jax.Array, negatives: jax.Array, mean: float
) -> tuple[jax.Array, jax.Array]:
    """Return the loss per angle, and its first order, which has mean zero."""
    potentials = jnp.exp(negatives @ x / TAU)
    side = math.isqrt(len(negatives))  # float32 sums in two stages
    first_order = jnp.mean(jnp.mean(potentials.reshape(side, -1), axis=1)) / mean - 1
    loss = jax.vmap(lambda y: info_nce_loss(x[None], y[None], negatives, TAU))(positives)
    return loss, first_order


def deviations(m: int) -> tuple[np.ndarray, np.ndarray]:
    """Return how far draws of `info_nce_loss - log M` are from the limit, `[draws, angles]`.

    The limit is log E exp(x . x- / tau) - x . y / tau. The second array lacks the first order of
    each draw, to see the expectation below the noise.
    """
    mean = math.exp(theory.vmf_log_normalizer(DIM, 1 / TAU) - theory.sphere_log_area(DIM))
    limit = math.log(mean) - np.cos(np.radians(ANGLES)) / TAU
    random = np.random.default_rng((0, m))
    count = max(16, min(DRAWS, MAX_NEGATIVES // m))
    chunk = max(1, min(count, CHUNK // m))
    values = []
    rests = []
    for _ in range(-(-count // chunk)):
        loss, first_order = losses(*draw(random, chunk, m), mean)
        value = np.asarray(loss, np.float64) - math.log(m) - limit
        values.append(value)
        rests.append(value - np.asarray(first_order, np.float64)[:, None])
    return np.concatenate(values), np.concatenate(rests)


@functools.cache
def measure() -> dict[str, dict[str, list[plots.Point]]]:
    """Return absolute deviations over M with two standard errors, by kind and angle."""
    lines: dict[str, dict[str, list[plots.Point]]] = {SINGLE: {}, EXPECTATION: {}}
    for m in SIZES:
        values, rests = deviations(m)
        scale = math.sqrt(len(values))
        rms = np.sqrt((values**2).mean(axis=0))
        rms_error = (values**2).std(axis=0) / scale / (2 * rms)
        mean = np.abs(rests.mean(axis=0))
        mean_error = rests.std(axis=0) / scale
        for kind, *arrays in ((SINGLE, rms, rms_error), (EXPECTATION, mean, mean_error)):
            for name, value, error in zip(NAMES, *arrays, strict=True):
                point = plots.Point(m, value, value - 2 * error, value + 2 * error)
                lines[kind].setdefault(name, []).append(point)
    return lines


def power_law(points: list[plots.Point]) -> tuple[float, float]:
    """Return the slope on logarithmic axes by weighted least squares, and its standard error."""
    x, values, low, high = np.array(points).T
    weights = 4 * values / (high - low)  # an interval is four standard errors
    fit, covariance = np.polyfit(np.log(x), np.log(values), 1, w=weights, cov="unscaled")
    residuals = weights * (np.log(values) - np.polyval(fit, np.log(x)))
    scatter = (residuals**2).sum() / max(1, len(x) - 2)
    return float(fit[0]), math.sqrt(max(1.0, scatter) * covariance[0, 0])


def analyze(rows: Rows) -> Rows:
    """Fit slopes over M on logarithmic axes, with 95% intervals."""
    table = []
    for kind, lines in measure().items():
        for name, points in lines.items():
            slope, error = power_law([point for point in points if point.x >= FIT_FROM])
            claim = "deviation of single draws falls like M^-1/2: slope"
            holds = abs(slope + 0.5) < 0.1
            if kind == EXPECTATION:
                claim = "expected deviation falls at least like M^-1/2: slope"
                holds = slope < -0.5
            ends = {"low": slope - 1.96 * error, "high": slope + 1.96 * error}
            table.append(stats.check(claim, holds, slope, **ends, features=name))
    return table


def plot(rows: Rows, path: Path) -> None:
    """Draw deviations over M."""
    labels = {"xlabel": "number M of negatives", "ylabel": "deviation (nats)"}
    plots.curves(measure(), path, xscale="log", yscale="log", **labels)
