"""Multinomial logistic regression by full-batch L-BFGS, many fits at once.

Each fit minimizes, over weights W `[num_classes, d]` and a bias,

    mean cross-entropy over its rows + l2 / 2 |W|^2        (the bias is not penalized)

All fits (values of l2, folds) read the features in the same two matrix products, so that five cost
little more than one. L-BFGS with memory m = 10 (Nocedal & Wright, Numerical Optimization, Algorithm
7.4) starts each of its directions from a model of the curvature: at W = 0, the Hessian is

    M / num_classes + l2        (on weights whose sum over the classes is zero)

with M the second moments of centred features. Their leading eigenvectors come from a sample of the
rows by one step of subspace iteration (Halko, Martinsson & Tropp, 2011, Algorithm 4.4).
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hypersphere_jax.evaluate import lbfgs
from hypersphere_jax.evaluate.checks import as_float32, row_blocks
from hypersphere_jax.evaluate.classifier import Classifier, logits
from hypersphere_jax.train import sharding

TOLERANCE, MAX_STEPS = 1e-6, 1000  # on the norm of the gradient
# The weights are at most the norm of the gradient / l2 away from the minimum: below an l2 of about
# 1e-6 the limit falls with l2, or accuracies are not those of the minimum.
TOLERANCE_BY_L2 = 3.0
RANK, SAMPLE = 512, 16384  # of the model of the curvature: eigenvectors, rows
BLOCK = 2**24  # logits of a block of rows
READ = 2**20  # numbers of the features that are read at a time
NONE = -1  # as a part: no row's
PADDING = -2  # a row that no fit knows


class Scaling(NamedTuple):
    """Features are moved by `-centre [d]` and divided by `scale`."""

    centre: np.ndarray
    scale: float

    def centred(self, x) -> np.ndarray:
        """float64, since differences and squares of large float32 may not fit into float32."""
        return np.subtract(as_float32(x), self.centre[None], dtype=np.float64)

    def apply(self, x) -> np.ndarray:
        """Scaled rows, float32, of features `[n, d]` of any real dtype."""
        centred = self.centred(x)
        centred /= self.scale
        return centred.astype(np.float32)


class Rows(NamedTuple):
    """Rows on devices, each leaf with leading axes (devices, blocks, rows of a block)."""

    x: jax.Array  # float32 [..., d]
    y: jax.Array  # int32
    part: jax.Array  # int32, PADDING in rows that only fill up the last block


class Problem(NamedTuple):
    """Scaled training rows, and what shapes the steps towards every fit on them."""

    rows: Rows
    basis: jax.Array  # [d, r] leading eigenvectors of the second moments
    variances: jax.Array  # [r] of the features along them
    rest: jax.Array  # mean variance along what is orthogonal to them
    num_classes: int
    devices: Sequence[jax.Device]


class LogisticFit(NamedTuple):
    """Fitted classifiers `[g, ...]`, and how each fit ended."""

    classifiers: Classifier
    steps: np.ndarray  # [g]
    gradient_norm: np.ndarray  # [g]


def scaling(x) -> Scaling:
    """The mean of features `[n, d]`, and the root mean square norm of the centred ones."""
    slices = row_blocks(*x.shape, READ)
    centre = sum(as_float32(x[rows]).sum(axis=0, dtype=np.float64) for rows in slices) / len(x)
    moved = Scaling(centre.astype(np.float32), 1.0)  # rounded: a constant dimension becomes 0
    total = 0.0
    for rows in slices:
        centred = moved.centred(x[rows])
        total += float(np.vdot(centred, centred))
    # 0: an encoder that maps all to one point.
    return moved._replace(scale=(total / len(x)) ** 0.5) if total > 0 else moved


def limit(l2):
    """The norm of the gradient at which a fit with that l2 ends."""
    return np.minimum(TOLERANCE, TOLERANCE_BY_L2 * np.asarray(l2))


def place(
    x,
    y,
    part,
    scaling: Scaling,
    *,
    num_classes: int,
    fits: int = 1,
    devices: Sequence[jax.Device] | None = None,
) -> Problem:
    """Puts the scaled rows on devices: the only copy of the features that is made.

    Args:
      x: `[n, d]`, an array or memory map of any real dtype.
      y: int32 `[n]` labels.
      part: `[n]` integers, at least 0: which part of the rows each belongs to.
      scaling: of the features; with the RMS norm 1 the tolerances are in useful units.
      num_classes: number of classes.
      fits: as many as will be made at once, which decides how many rows make a block.
      devices: of this host, which share the rows. None: JAX's first.
    """
    devices = jax.local_devices()[:1] if devices is None else devices
    n, d = x.shape
    each = -(-n // len(devices))
    blocks = max(1, -(-each * fits * num_classes // BLOCK))
    size = -(-each // blocks)
    # In the alignment for which JAX on CPU takes the array as it is, without another copy.
    total = len(devices) * blocks * size
    scaled = _aligned(total, d)
    for rows in row_blocks(n, d, READ):
        scaled[rows] = scaling.apply(x[rows])
    scaled[n:] = 0
    sample = np.sort(np.random.default_rng(0).permutation(n)[:SAMPLE])
    model = _curvature(jnp.asarray(scaled[sample]))

    def padded(values, filler):
        return np.concatenate([values, np.full(total - n, filler)]).astype(np.int32)

    host = Rows(scaled, padded(y, 0), padded(part, PADDING))
    shape = (len(devices), blocks, size)
    host = jax.tree.map(lambda leaf: leaf.reshape(shape + leaf.shape[1:]), host)
    return Problem(sharding.split(host, devices), *model, num_classes, devices)


def with_parts(problem: Problem, part) -> Problem:
    """The same rows, divided into parts `[n]` in another way; those of `PADDING` are in no fit.

    All divisions share the copy of the features, and its shapes: nothing is compiled again.
    """
    rows = problem.rows
    padded = np.full(rows.part.shape, PADDING, np.int32)
    padded.reshape(-1)[: len(part)] = part
    return problem._replace(rows=rows._replace(part=sharding.split(padded, problem.devices)))


def fit_logistic(
    problem: Problem,
    l2s: Sequence[float],
    held_out: Sequence[int],
    *,
    start: Classifier | None = None,
    excess: float = 0.0,
    max_steps: int = MAX_STEPS,
) -> LogisticFit:
    """Minimizes the objective of this module, for g fits at once.

    Args:
      problem: from `place`.
      l2s: g strengths of the penalty, each > 0.
      held_out: g numbers of parts: each fit leaves the rows of that part out. `NONE`: no row.
      start: classifiers `[g, ...]` to begin with. None: zeros.
      excess: a fit ends when the norm of the objective's gradient is at most its `limit`, or when
        the objective is by at most about that above its minimum, as L-BFGS estimates it: half of
        the product of the gradient and the direction (the Newton decrement).
      max_steps: give up after so many.

    Returns:
      The classifiers of the scaled features.
    """
    shape = (len(l2s), problem.num_classes, len(problem.basis) + 1)
    trial = np.zeros(shape, np.float32)
    if start is not None:
        trial[:] = np.concatenate([start.weights, np.asarray(start.bias)[..., None]], axis=-1)
    model = (problem.basis, problem.variances, problem.rest)
    about = (
        np.float32(l2s),
        np.int32(held_out),
        np.float32(limit(l2s)),
        np.float32(excess),
        *model,
    )
    about = sharding.replicate(about, problem.devices)
    devices = tuple(problem.devices)
    state = _mapped(lbfgs.begin, devices)(sharding.replicate(trial, devices))
    advance = _mapped(_advance, devices, donate=(0,))
    for _ in range(max_steps + 1):
        state = advance(state, problem.rows, *about)
        if sharding.unreplicate(state.done).all():
            break
    point, steps, norm = sharding.unreplicate((state.point, state.steps, state.norm))
    return LogisticFit(Classifier(point[..., :-1], point[..., -1]), steps, norm)


def hits(problem: Problem, classifiers: Classifier, held_out: Sequence[int]) -> np.ndarray:
    """How many rows of its held-out part each of g classifiers gets right, `[g]`."""
    about = sharding.replicate((classifiers, np.int32(held_out)), problem.devices)
    counts = _mapped(_hits, tuple(problem.devices))(problem.rows, *about)
    return sharding.unreplicate(counts)


@functools.cache
def _mapped(function: Callable, devices: tuple, donate: tuple[int, ...] = ()) -> Callable:
    """The same for all problems, so that those of one shape share a compiled program."""
    return sharding.pmap(function, devices, donate)


def _advance(state: lbfgs.State, rows: Rows, l2s, held_out, limits, excess, *model) -> lbfgs.State:
    gradient_at = functools.partial(_gradient, rows, l2s, held_out)
    model_inverse = functools.partial(_model_inverse, *model, l2s)
    return lbfgs.advance(state, gradient_at, model_inverse, limits, excess)


def _gradient(rows: Rows, l2s, held_out, trial) -> jax.Array:
    """Of each fit's objective, over the rows of all devices: `[g, num_classes, d + 1]`."""
    g, classes, _ = trial.shape
    weights = trial[..., :-1]
    flat = Classifier(weights.reshape(g * classes, -1), trial[..., -1].reshape(-1))

    def add(sums, block: Rows):
        scores = logits(flat, block.x).reshape(-1, g, classes)
        counted = _counted(block.part, held_out)
        truth = jax.nn.one_hot(block.y, classes)[:, None]
        errors = (jax.nn.softmax(scores) - truth) * counted[..., None]
        found = Classifier(
            jnp.einsum("nk,nd->kd", errors.reshape(-1, g * classes), block.x, precision="highest"),
            errors.sum(axis=0).reshape(-1),
        )
        return jax.tree.map(jnp.add, sums, (found, counted.sum(axis=0))), None

    zeros = (jax.tree.map(jnp.zeros_like, flat), jnp.zeros(g))
    (sums, counts), _ = lax.scan(add, zeros, rows)
    (sums, counts) = lax.psum((sums, counts), sharding.AXIS)
    sums = jnp.concatenate([sums.weights, sums.bias[:, None]], axis=1).reshape(trial.shape)
    penalty = jnp.pad(l2s[:, None, None] * weights, ((0, 0), (0, 0), (0, 1)))
    return sums / counts[:, None, None] + penalty


def _hits(rows: Rows, classifiers: Classifier, held_out) -> jax.Array:
    g, classes, d = classifiers.weights.shape
    flat = Classifier(classifiers.weights.reshape(g * classes, d), classifiers.bias.reshape(-1))

    def add(counts, block: Rows):
        scores = logits(flat, block.x).reshape(-1, g, classes)
        right = jnp.argmax(scores, axis=-1) == block.y[:, None]
        return counts + (right & (block.part[:, None] == held_out[None])).sum(axis=0), None

    counts, _ = lax.scan(add, jnp.zeros(g, jnp.int32), rows)
    return lax.psum(counts, sharding.AXIS)


def _counted(part, held_out) -> jax.Array:
    """1.0 where a fit `[g]` counts a row `[n]`: `[n, g]`."""
    inside = (part[:, None] != held_out[None]) & (part != PADDING)[:, None]
    return inside.astype(jnp.float32)


def _model_inverse(basis, variances, rest, l2s, vectors) -> jax.Array:
    """The inverse of the curvature at W = 0, times `vectors [g, num_classes, d + 1]`."""
    classes = vectors.shape[1]
    # A variance is known to float32's rounding at best: a curvature below that would be noise.
    floor = l2s + 1e-7
    inside = 1 / (variances[None] / classes + floor[:, None])  # [g, r]
    outside = 1 / (rest / classes + floor)  # [g]
    weights, bias = vectors[..., :-1], vectors[..., -1:]
    along = jnp.einsum("gcd,dr->gcr", weights, basis, precision="highest")
    along = along * (inside - outside[:, None])[:, None]
    weights = weights * outside[:, None, None]
    weights = weights + jnp.einsum("gcr,dr->gcd", along, basis, precision="highest")
    return jnp.concatenate([weights, bias * classes], axis=-1)


@jax.jit
def _curvature(sample) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`basis`, `variances` and `rest` of a `Problem`, from scaled rows `[m, d]`."""
    m, d = sample.shape
    times = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)
    start = jax.random.normal(jax.random.key(0), (d, min(d, RANK)))
    basis, _ = jnp.linalg.qr(times(sample.T, times(sample, start)))
    along = times(sample, basis)
    variances, turn = jnp.linalg.eigh(times(along.T, along) / m)
    variances = jnp.maximum(variances, 0.0)
    rest = jnp.vdot(sample, sample) / m - jnp.sum(variances)
    return times(basis, turn), variances, jnp.maximum(rest, 0.0) / max(d - basis.shape[1], 1)


def _aligned(n: int, d: int) -> np.ndarray:
    """An uninitialized float32 `[n, d]` that begins at a multiple of 64 bytes."""
    raw = np.empty(4 * n * d + 64, np.uint8)
    begin = -raw.ctypes.data % 64
    return raw[begin : begin + 4 * n * d].view(np.float32).reshape(n, d)
