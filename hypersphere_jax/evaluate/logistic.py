"""Multinomial logistic regression by full-batch L-BFGS, many fits at once.

Each fit minimizes, over weights W `[num_classes, d]` and a bias that is not penalized,

    mean cross-entropy over its rows + l2 / 2 |W|^2

All fits (values of l2, folds) read the features in the same two matrix products. L-BFGS with memory
10 (Nocedal & Wright, Numerical Optimization, Algorithm 7.4) starts each of its directions from a
model of the curvature, the Hessian at W = 0, scaled to the newest pair of differences:

    M / num_classes + l2        (on weights whose sum over the classes is zero)

with M the second moments of centred features. Their leading eigenvectors come from a sample of the
rows by one step of subspace iteration (Halko, Martinsson & Tropp, 2011, Algorithm 4.4).
"""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hypersphere_jax.config import require
from hypersphere_jax.evaluate.checks import as_float32, row_blocks
from hypersphere_jax.evaluate.scores import Classifier, logits
from hypersphere_jax.training import sharding

TOLERANCE = 1e-6  # on the norm of the gradient
MAX_STEPS = 1000
TOLERANCE_BY_L2 = 3.0  # the weights are at most the norm of the gradient / l2 off the minimum
MEMORY = 10  # pairs of differences that L-BFGS keeps
RANK, SAMPLE = 512, 16384  # of the model of the curvature: eigenvectors, rows
BLOCK = 2**24  # logits of a block of rows
READ = 2**20  # numbers of the features that are read at a time
AT_ONCE = 2**24  # weights of fits that are made at once, of which L-BFGS keeps some twenty copies
SMALL = 2**30  # multiplications of an evaluation that takes less time than a compilation
MEMORY_SHARE = 0.8  # of a device's memory, for its share of the scaled features
NONE = -1  # as a held-out part: no row's
PADDING = -2  # the part of rows that are in no fit


class Scaling(NamedTuple):
    """Features are moved by `-centre [d]` and divided by `scale`, one number or one a dimension."""

    centre: np.ndarray
    scale: float | np.ndarray

    def centred(self, x) -> np.ndarray:
        """Float64, since differences and squares of large float32 may not fit into float32."""
        return np.subtract(as_float32(x), self.centre[None], dtype=np.float64)

    @property
    def penalized(self) -> float:
        """Times l2: the same penalty on features as they are, or on standardized ones."""
        return float(self.scale**2) if np.ndim(self.scale) == 0 else float(np.size(self.scale))

    def apply(self, x) -> np.ndarray:
        return (self.centred(x) / self.scale).astype(np.float32)


class Samples(NamedTuple):
    """Rows on devices, with leading axes (devices, blocks, rows of a block)."""

    x: jax.Array  # float32 [..., d]
    y: jax.Array  # int32
    part: jax.Array  # int32, PADDING in rows that only fill up the last block


class Problem(NamedTuple):
    """Scaled training rows, and what shapes the steps towards every fit on them."""

    samples: Samples
    model: tuple[jax.Array, jax.Array, jax.Array]  # of the curvature, see `_curvature`
    num_classes: int
    fits: int  # that are made at once
    small: bool  # few fits are filled up with copies, for the program of `fits` is compiled
    devices: Sequence[jax.Device]


class LogisticFit(NamedTuple):
    """Fitted classifiers `[g, ...]` of scaled features, and how each fit ended."""

    classifiers: Classifier
    steps: np.ndarray  # [g]
    gradient_norm: np.ndarray  # [g]
    hits: np.ndarray  # [g] rows of the held-out part that are classified right


def scaling(x, standardize: bool = False) -> Scaling:
    """The mean of features `[n, d]`, and the root mean square norm of the centred ones.

    To standardize, each dimension has a scale of its own, after which its variance is 1 / d; a
    constant one becomes 0.
    """
    n, d = x.shape
    blocks = row_blocks(n, d, READ)
    centre = sum(as_float32(x[rows]).sum(axis=0, dtype=np.float64) for rows in blocks) / n
    moved = Scaling(centre.astype(np.float32), 1.0)  # rounded: a constant dimension becomes 0
    squares = np.zeros(d)
    for rows in blocks:
        centred = moved.centred(x[rows])
        squares += np.einsum("nd,nd->d", centred, centred)
    if standardize:
        return moved._replace(scale=np.where(squares > 0, (squares / n * d) ** 0.5, 1.0))
    # 0: all features coincide.
    return moved._replace(scale=(squares.sum() / n) ** 0.5) if squares.any() else moved


def limit(l2):
    """The norm of the gradient at which a fit with that l2 ends."""
    return np.minimum(TOLERANCE, TOLERANCE_BY_L2 * np.asarray(l2))


def place(
    x, y, scaling: Scaling, *, num_classes: int, jobs: int = 1, devices: Sequence | None = None
) -> Problem:
    """Puts scaled rows x `[n, d]` and labels y `[n]` on devices: the only copy that is made.

    `jobs`, the fits in all, decide how many are made at once and how many rows make a block.

    Raises:
      UserError: for features that do not fit into the devices' memory.
    """
    devices = jax.local_devices()[:1] if devices is None else devices
    n, d = x.shape
    each = -(-n // len(devices))
    needed, room = 4 * each * d, sharding.memory(devices)
    require(
        needed <= MEMORY_SHARE * room,
        f"L-BFGS needs {needed / 1e9:.3g} GB on each of {len(devices)} device(s), which hold "
        f"{room / 1e9:.3g} GB: take more devices, or a protocol by minibatches",
    )
    at_once = max(1, AT_ONCE // (num_classes * d))
    fits = -(-jobs // -(-jobs // at_once))
    blocks = max(1, -(-each * fits * num_classes // BLOCK))
    size = -(-each // blocks)
    shape = (len(devices), blocks, size)
    # In the alignment for which JAX on CPU takes the array as it is, without another copy.
    scaled = _aligned(np.prod(shape), d)
    for rows in row_blocks(n, d, READ):
        scaled[rows] = scaling.apply(x[rows])
    scaled[n:] = 0
    sample = np.sort(np.random.default_rng(0).permutation(n)[:SAMPLE])
    model = _curvature(jnp.asarray(scaled[sample]))
    none = np.full(shape, PADDING, np.int32)
    samples = Samples(scaled.reshape(*shape, d), _padded(y, 0, shape), none)
    small = n * d * num_classes * fits < SMALL
    return Problem(sharding.split(samples, devices), model, num_classes, fits, small, devices)


def fit_logistic(
    problem: Problem,
    part,
    l2s: Sequence[float],
    held_out: Sequence[int],
    *,
    start: Classifier | None = None,
    excess: float = 0.0,
) -> LogisticFit:
    """Minimizes the objective g times, for l2s `[g]`.

    Args:
      problem: from `place`.
      part: `[n]` integers: the part of each row; rows of `PADDING` are in no fit.
      l2s: strengths of the penalty, each > 0.
      held_out: `[g]` the part that is left out of each fit; `NONE`: no row is.
      start: a classifier to begin with. None: zeros.
      excess: a fit ends when the norm of the objective's gradient is at most its `limit`, or the
        objective at most about `excess` above its minimum (half of the Newton decrement).
    """
    devices = tuple(problem.devices)
    part = _padded(part, PADDING, problem.samples.part.shape)
    samples = problem.samples._replace(part=sharding.split(part, devices))
    begin, advance = _mapped(lbfgs_begin, devices), _mapped(_advance, devices, donate=(0,))
    l2s, held_out = np.asarray(l2s, np.float32), np.asarray(held_out, np.int32)
    fits = []
    for group in np.array_split(np.arange(len(l2s)), -(-len(l2s) // problem.fits)):
        filled = np.resize(group, problem.fits) if problem.small else group
        d = samples.x.shape[-1]
        trial = np.zeros((len(filled), problem.num_classes, d + 1), np.float32)
        if start is not None:
            trial[:] = np.concatenate([start.weights, start.bias[:, None]], axis=1)
        limits = np.float32(limit(l2s[filled]))
        settings = l2s[filled], held_out[filled], limits, np.float32(excess), *problem.model
        settings = sharding.replicate(settings, devices)
        state = begin(sharding.replicate(trial, devices))
        for _ in range(MAX_STEPS + 1):
            state = advance(state, samples, *settings)
            if sharding.unreplicate(state.done).all():
                break
        hits = _mapped(_hits, devices)(samples, state.point, settings[1])
        point, *ends = sharding.unreplicate((state.point, state.steps, state.norm, hits))
        fit = LogisticFit(Classifier(point[..., :-1], point[..., -1]), *ends)
        fits.append(jax.tree.map(operator.itemgetter(slice(len(group))), fit))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *fits)


def cross_validate(
    problem: Problem, part, l2s: np.ndarray, *, excess: float = 0.0
) -> tuple[np.ndarray, Classifier]:
    """Fits without part 0, 1, ... of the rows, for penalties l2s `[folds, cells]`.

    Returns:
      Accuracies in percent `[folds, cells]` on the held-out parts, and the classifiers `[folds *
      cells, ...]`.
    """
    held_out = np.repeat(np.arange(len(l2s)), l2s.shape[1])
    fit = fit_logistic(problem, part, l2s.ravel(), held_out, excess=excess)
    rows = np.bincount(part[part >= 0])[: len(l2s), None]
    return 100 * fit.hits.reshape(l2s.shape) / rows, fit.classifiers


def _padded(values, filler: int, shape: tuple[int, ...]) -> np.ndarray:
    padding = 0, math.prod(shape) - len(values)
    return np.pad(np.int32(values), padding, constant_values=filler).reshape(shape)


_mapped = functools.cache(sharding.pmap)  # problems of one shape share a compiled program


def _advance(state: "State", samples: Samples, l2s, held_out, limits, excess, *model) -> "State":
    gradient_at = functools.partial(_gradient, samples, l2s, held_out)
    model_inverse = functools.partial(_model_inverse, *model, l2s)
    return lbfgs_advance(state, gradient_at, model_inverse, limits, excess)


def _logits(points, x) -> jax.Array:
    """`[n, g, num_classes]` of points `[g, num_classes, d + 1]`, in one matrix product."""
    g, classes, width = points.shape
    flat = points.reshape(g * classes, width)
    return logits(Classifier(flat[:, :-1], flat[:, -1]), x).reshape(-1, g, classes)


def _gradient(samples: Samples, l2s, held_out, points) -> jax.Array:
    """Of each fit's objective, over the rows of all devices: `[g, num_classes, d + 1]`."""
    g, classes, width = points.shape

    def add(sums, block: Samples):
        inside = (block.part[:, None] != held_out[None]) & (block.part != PADDING)[:, None]
        counted = inside.astype(jnp.float32)  # [n, g]
        truth = jax.nn.one_hot(block.y, classes)[:, None]
        errors = (jax.nn.softmax(_logits(points, block.x)) - truth) * counted[..., None]
        errors = errors.reshape(-1, g * classes)
        products = jnp.einsum("nk,nd->kd", errors, block.x, precision="highest")
        of_block = products, errors.sum(axis=0), counted.sum(axis=0)
        return jax.tree.map(jnp.add, sums, of_block), None

    zeros = jnp.zeros((g * classes, width - 1)), jnp.zeros(g * classes), jnp.zeros(g)
    weights, bias, counts = lax.psum(lax.scan(add, zeros, samples)[0], sharding.AXIS)
    sums = jnp.concatenate([weights, bias[:, None]], axis=1).reshape(points.shape)
    penalty = jnp.pad(l2s[:, None, None] * points[..., :-1], ((0, 0), (0, 0), (0, 1)))
    return sums / counts[:, None, None] + penalty


def _hits(samples: Samples, points, held_out) -> jax.Array:
    def add(counts, block: Samples):
        right = jnp.argmax(_logits(points, block.x), axis=-1) == block.y[:, None]
        return counts + (right & (block.part[:, None] == held_out[None])).sum(axis=0), None

    counts, _ = lax.scan(add, jnp.zeros(len(points), jnp.int32), samples)
    return lax.psum(counts, sharding.AXIS)


def _model_inverse(basis, variances, rest, l2s, vectors) -> jax.Array:
    """The inverse of the curvature at W = 0, times `vectors [g, num_classes, d + 1]`."""
    classes = vectors.shape[1]
    floor = l2s + 1e-7  # float32 rounds smaller variances
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
    """Of second moments: eigenvectors `[d, r]`, variances `[r]` along them, mean of the others."""
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


class State(NamedTuple):
    """Of g minimizations; points and gradients are `[g, a, b]`."""

    trial: jax.Array  # where the gradient is computed next: point + step * direction
    step: jax.Array  # [g]
    point: jax.Array
    gradient: jax.Array  # at the point
    direction: jax.Array
    moves: jax.Array  # [MEMORY, g, ...] ring of differences of points ...
    changes: jax.Array  # ... and of gradients
    inverse: jax.Array  # [MEMORY, g] 1 / (move . change); 0: no such pair
    turn: jax.Array  # next place in the ring
    model_scale: jax.Array  # [g] of the inverse of the model of the curvature
    steps: jax.Array  # [g] taken
    norm: jax.Array  # [g] of the gradient
    done: jax.Array  # [g]


def lbfgs_begin(trial: jax.Array) -> State:
    """Starts at points `[g, a, b]`: the first `lbfgs_advance` computes the gradients there."""
    g = len(trial)
    ones, zeros, ring = jnp.ones(g), jnp.zeros_like(trial), jnp.zeros((MEMORY, *trial.shape))
    pairs = ring, ring, jnp.zeros((MEMORY, g)), jnp.int32(0)
    ends = jnp.full(g, -1), jnp.full(g, jnp.inf), jnp.zeros(g, bool)
    return State(trial, ones, trial, zeros, zeros, *pairs, ones, *ends)


def lbfgs_advance(
    state: State, gradient_at: Callable, model_inverse: Callable, tolerance, excess
) -> State:
    """One evaluation of all gradients, and a step where the slope at its end allows it.

    The line search needs no value of the convex objective, whose changes near the minimum are below
    float32's resolution: the slope must not be much above zero (the approximate Wolfe condition of
    Hager & Zhang, 2005, delta = 0.1). A longer step is cut where the secant of the slopes is zero.

    `model_inverse` multiplies by the inverse of a model of each objective's second derivative;
    `tolerance` is on the norm of the gradient and `excess` on the Newton decrement.
    """
    gradient = gradient_at(state.trial)
    slope, slope_there = _dot(state.gradient, state.direction), _dot(gradient, state.direction)
    taken = (slope_there <= 0.8 * -slope) & ~state.done

    move, change = state.trial - state.point, gradient - state.gradient
    product, bent = _dot(move, change), _dot(change, model_inverse(change))
    known = taken & (product > 0)
    inverse = jnp.where(known, 1 / jnp.where(known, product, 1.0), 0.0)
    model_scale = jnp.where(known & (bent > 0), product / jnp.where(bent > 0, bent, 1.0), 1.0)
    ring = state._replace(
        moves=state.moves.at[state.turn].set(move),
        changes=state.changes.at[state.turn].set(change),
        inverse=state.inverse.at[state.turn].set(inverse),
        model_scale=jnp.where(taken, model_scale, state.model_scale),
        turn=(state.turn + 1) % MEMORY,
    )
    point = _where(taken, state.trial, state.point)
    gradient = _where(taken, gradient, state.gradient)
    direction = _where(taken, -_two_loops(ring, gradient, model_inverse), state.direction)
    secant = jnp.where(taken | state.done, 1.0, slope - slope_there)
    step = jnp.where(taken, 1.0, state.step * slope / secant)

    norm = jnp.sqrt(_dot(gradient, gradient))
    above = -_dot(gradient, direction) / 2
    # A step that had to be that short was shortened by float32's rounding.
    stuck = step < 1e-4
    done = state.done | stuck | (norm <= tolerance) | (above <= excess)
    trial = _where(done, point, point + step[:, None, None] * direction)
    ring = ring._replace(trial=trial, step=step, point=point, gradient=gradient)
    return ring._replace(direction=direction, steps=state.steps + taken, norm=norm, done=done)


def _two_loops(ring: State, gradient, model_inverse) -> jax.Array:
    """The inverse of the curvature, as L-BFGS knows it, times the gradient."""
    newest_first = (ring.turn - 1 - jnp.arange(MEMORY)) % MEMORY

    def backwards(q, place):
        factor = ring.inverse[place] * _dot(ring.moves[place], q)
        return q - factor[:, None, None] * ring.changes[place], factor

    def forwards(r, at):
        place, factor = at
        excess = factor - ring.inverse[place] * _dot(ring.changes[place], r)
        return r + excess[:, None, None] * ring.moves[place], None

    q, factors = lax.scan(backwards, gradient, newest_first)
    r = ring.model_scale[:, None, None] * model_inverse(q)
    return lax.scan(forwards, r, (newest_first, factors), reverse=True)[0]


def _dot(a, b) -> jax.Array:
    """Inner products `[g]` of `[g, a, b]`."""
    return jnp.einsum("gcd,gcd->g", a, b, precision="highest")


def _where(taken, new, old) -> jax.Array:
    return jnp.where(taken[:, None, None], new, old)
