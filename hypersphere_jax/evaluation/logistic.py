"""Multinomial logistic regression by full-batch L-BFGS, for several penalties at once.

Each fit minimizes, over weights W `[num_classes, d]` and a bias that is not penalized,

    mean cross-entropy over its rows + l2 / 2 |W|^2

The fits share two matrix products with the features, block by block of rows. L-BFGS starts from a
model of the Hessian at W = 0, on weights whose sum over the classes is zero: M / num_classes + l2,
with the second moments M of the centred features. The leading eigenvectors of M come from a sample
of rows (Halko, Martinsson & Tropp, 2011, Algorithm 5.3).
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from hypersphere_jax.configs import require
from hypersphere_jax.evaluation import lbfgs
from hypersphere_jax.evaluation.checks import as_float32, row_blocks
from hypersphere_jax.evaluation.scores import Classifier, linear_logits
from hypersphere_jax.training import distributed

TOLERANCE = 1e-6  # norm of the gradient
TOLERANCE_BY_L2 = 3.0  # weights are at most the norm of the gradient / l2 off the minimum
MAX_STEPS = 1000
MIN_STEP = 1e-4  # a step that has to be shorter is limited by float32's rounding
RANK = 256  # eigenvectors of the curvature model
SAMPLE = 8192  # rows that the curvature model is computed from
# Numbers of features or logits in a block of rows on a device. Products of 2,048 rows are faster
# than products of 512 on CPUs.
CPU_ENTRIES = 2**23
ACCELERATOR_ENTRIES = 2**26
SMALL = 2**30  # multiplications of an evaluation that takes less time than a compilation
SCALING_ENTRIES = 2**21  # numbers in a block of rows in float64
COLUMN_MULTIPLE = 16  # products have a multiple of 16 columns, which is faster on CPUs
LBFGS_MEMORY_SHARE = 0.8  # share of a device's memory for its features
WEIGHTS_AT_ONCE = 2**24  # weights of all fits at once, of which L-BFGS keeps about 25 copies

_matmul = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)


class FeatureScaling(NamedTuple):
    """Standardized features are `(x - centre) / scale`."""

    centre: np.ndarray  # float32 [d]
    scale: float | np.ndarray  # one number, or [d]

    def apply(self, x: Any) -> jax.Array:
        """Return standardized rows of any real dtype, float32 `[n, d]`."""
        scale = np.broadcast_to(np.float32(self.scale), self.centre.shape)
        return _standardize(jnp.asarray(x, jnp.float32), self.centre, scale)


class CurvatureModel(NamedTuple):
    """Second moments of standardized features, as a model of the Hessian at W = 0."""

    basis: jax.Array  # [d, r] eigenvectors
    variances: jax.Array  # [r] variances along the eigenvectors
    rest: jax.Array  # mean variance along all other directions

    def solve(self, l2s: jax.Array, vectors: jax.Array) -> jax.Array:
        """Multiply `[g, num_classes, d + 1]` by the inverse of the modelled Hessian."""
        num_classes = vectors.shape[1]
        floor = l2s + 1e-7  # float32 rounds smaller variances
        inside = 1 / (self.variances[None] / num_classes + floor[:, None])  # [g, r]
        outside = 1 / (self.rest / num_classes + floor)  # [g]
        weights = vectors[..., :-1]
        along = jnp.einsum("gcd,dr->gcr", weights, self.basis, precision="highest")
        along = along * (inside - outside[:, None])[:, None]
        weights = weights * outside[:, None, None]
        weights = weights + jnp.einsum("gcr,dr->gcd", along, self.basis, precision="highest")
        return jnp.concatenate([weights, vectors[..., -1:] * num_classes], axis=-1)


class Problem(NamedTuple):
    """Standardized training rows on the devices."""

    blocks: list[tuple[jax.Array, jax.Array]]  # x float32 [rows, d] and y int32 [rows], padded
    scaling: FeatureScaling
    model: CurvatureModel
    num_classes: int
    fits: int  # largest number of fits at once
    is_small: bool  # fewer fits are filled up to this number, because a compilation takes longer
    by_rows: NamedSharding  # divides rows over the devices
    copied: NamedSharding  # copies arrays to all devices


class LogisticFit(NamedTuple):
    """Fitted classifiers `[g, …]` of standardized features, and how each fit ended."""

    classifiers: Classifier
    steps: np.ndarray  # [g]
    gradient_norm: np.ndarray  # [g]


class _State(NamedTuple):
    """State of g minimizations over points `[g, num_classes, d + 1]`: weights and bias."""

    trial: jax.Array  # point + step * direction, where the next gradient is computed
    step: jax.Array  # [g]
    point: jax.Array
    gradient: jax.Array  # at the point
    direction: jax.Array
    memory: lbfgs.Memory
    steps: jax.Array  # [g] number of steps taken
    norm: jax.Array  # [g] norm of the gradient
    done: jax.Array  # [g]


def limit(l2: Any) -> Any:
    """Return the norm of the gradient at which a fit with a penalty l2 ends."""
    return np.minimum(TOLERANCE, TOLERANCE_BY_L2 * np.asarray(l2))


def place(
    x: Any,
    y: np.ndarray,
    *,
    num_classes: int,
    standardize: bool = False,
    fits: int = 1,
    devices: Sequence[jax.Device] | None = None,
) -> Problem:
    """Place a standardized float32 copy of training rows on devices, which share the rows.

    Args:
      x: `[n, d]` finite features.
      y: `[n]` labels below `num_classes`.
      num_classes: number of classes.
      standardize: divide each dimension by its standard deviation and by sqrt(d), instead of all
        dimensions by the root mean square norm of the centred features.
      fits: number of penalties to fit at once.
      devices: local devices. Defaults to JAX's first.

    Raises:
      UserError: for features that exceed the devices' memory.
    """
    devices = distributed.local_devices(1, devices)
    n, d = x.shape
    needed = 4 * -(-n // len(devices)) * d
    memory = distributed.device_memory(devices)
    require(
        needed <= LBFGS_MEMORY_SHARE * memory,
        f"protocol lbfgs needs {needed / 1e9:.3g} GB on each of {len(devices)} device(s) of "
        f"{memory / 1e9:.3g} GB; use more devices, or a minibatch protocol",
    )
    fits = max(1, min(fits, WEIGHTS_AT_ONCE // (num_classes * d)))
    mesh = Mesh(np.asarray(devices), ("rows",))
    by_rows = NamedSharding(mesh, PartitionSpec("rows"))
    copied = NamedSharding(mesh, PartitionSpec())
    scaling = _fit_scaling(x, standardize)
    size = _block_size(n, max(d, fits * num_classes), devices)
    blocks = []
    for rows in row_blocks(n, 1, size):
        count = rows.stop - rows.start
        x_block = np.zeros((size, d), np.float32)
        x_block[:count] = x[rows]
        y_block = np.pad(np.int32(y[rows]), (0, size - count))
        x_block, y_block = jax.device_put((x_block, y_block), by_rows)
        blocks.append((scaling.apply(x_block), y_block))
    sample = np.sort(np.random.default_rng(0).permutation(n)[:SAMPLE])
    model = jax.device_put(_fit_curvature(scaling.apply(x[sample])), copied)
    is_small = n * d * num_classes * fits < SMALL
    return Problem(blocks, scaling, model, num_classes, fits, is_small, by_rows, copied)


def fit_logistic(
    problem: Problem,
    rows: np.ndarray,
    l2s: Sequence[float],
    *,
    start: Classifier | None = None,
    excess: float = 0.0,
) -> LogisticFit:
    """Minimize the objective on some rows for each of g penalties.

    Args:
      problem: from `place`.
      rows: booleans `[n]`, the rows to fit.
      l2s: `[g]` strengths of the penalty, > 0.
      start: initial classifier. Defaults to zeros.
      excess: a fit ends when the norm of its gradient is at most its `limit`, or its objective is
        at most about `excess` above the minimum (half of the Newton decrement).
    """
    if len(l2s) > problem.fits:
        starts = range(0, len(l2s), problem.fits)
        groups = [l2s[first : first + problem.fits] for first in starts]
        fits = [fit_logistic(problem, rows, l2s, start=start, excess=excess) for l2s in groups]
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *fits)
    padded = np.asarray(l2s, np.float32)
    if problem.is_small:
        padded = np.resize(padded, problem.fits)
    weights = _by_block(problem, np.float32(rows))
    points = np.zeros((len(padded), problem.num_classes, problem.model.basis.shape[0] + 1))
    if start is not None:
        points[:] = np.concatenate([start.weights, start.bias[:, None]], axis=1)
    settings = (padded, np.float32(limit(padded)), np.float32(excess))
    state, sums, settings = jax.device_put((*_begin(np.float32(points)), settings), problem.copied)
    for _ in range(MAX_STEPS + 1):
        for (x, y), block_weights in zip(problem.blocks, weights, strict=True):
            sums = _add_gradients(sums, state.trial, x, y, block_weights)
        state, sums = _advance(state, sums, problem.model, *settings)
        if np.asarray(state.done).all():
            break
    ends = (state.point, state.steps, state.norm)
    points, steps, norms = (np.asarray(end)[: len(l2s)] for end in ends)
    return LogisticFit(Classifier(points[..., :-1], points[..., -1]), steps, norms)


def accuracies(problem: Problem, classifiers: Classifier, rows: np.ndarray) -> np.ndarray:
    """Return the accuracies of classifiers `[g, …]` on rows, booleans `[n]`, in percent: `[g]`."""
    points = np.concatenate([classifiers.weights, classifiers.bias[..., None]], axis=-1)
    hits = np.zeros(len(points), np.int64)
    for (x, y), block_rows in zip(problem.blocks, _by_block(problem, rows), strict=True):
        hits += np.asarray(_count_hits(points, x, y, block_rows))
    return 100 * hits / np.sum(rows)


def cross_validate(
    problem: Problem, part: np.ndarray, l2s: np.ndarray, *, excess: float = 0.0
) -> tuple[np.ndarray, Classifier]:
    """Fit without part 0, 1, … of the rows `[n]`, for penalties l2s `[folds, cells]`.

    Rows of negative parts are in no fit.

    Returns:
      Accuracies in percent `[folds, cells]` on the held-out parts, and the classifiers `[cells, …]`
      of the first fold.
    """
    fits = []
    valid_top1 = []
    for fold, fold_l2s in enumerate(l2s):
        fit = fit_logistic(problem, (part != fold) & (part >= 0), fold_l2s, excess=excess)
        fits.append(fit)
        valid_top1.append(accuracies(problem, fit.classifiers, part == fold))
    return np.array(valid_top1), fits[0].classifiers


def _block_size(n: int, width: int, devices: Sequence[jax.Device]) -> int:
    """Return the number of rows of a block, which divides over the devices."""
    entries = ACCELERATOR_ENTRIES
    if devices[0].platform == "cpu":
        entries = CPU_ENTRIES
    unit = COLUMN_MULTIPLE * len(devices)
    blocks = -(-n // (len(devices) * max(1, entries // width)))
    return unit * -(-n // (blocks * unit))


def _by_block(problem: Problem, values: np.ndarray) -> list[jax.Array]:
    """Return a value for each row `[n]`, zero for padding, for each block."""
    padded = np.zeros((len(problem.blocks), len(problem.blocks[0][1])), values.dtype)
    padded.ravel()[: len(values)] = values
    return [jax.device_put(rows, problem.by_rows) for rows in padded]


def _fit_scaling(x: Any, standardize: bool) -> FeatureScaling:
    """Return the scaling of features `[n, d]`, from float64 sums on the host."""
    n, d = x.shape
    blocks = row_blocks(n, d, SCALING_ENTRIES)
    # Sums of equal float32 numbers are exact in float64, so constant dimensions have variance 0.
    centre = sum(as_float32(x[rows]).sum(axis=0, dtype=np.float64) for rows in blocks) / n
    variances = np.zeros(d)
    for rows in blocks:
        deviations = as_float32(x[rows]) - centre
        variances += np.einsum("nd,nd->d", deviations, deviations) / n
    scale: Any = math.sqrt(variances.sum()) or 1.0
    if standardize:
        scale = np.sqrt(d * np.where(variances > 0, variances, 1 / d))
    return FeatureScaling(np.float32(centre), scale)


@jax.jit
def _standardize(x: jax.Array, centre: jax.Array, scale: jax.Array) -> jax.Array:
    return (x - centre[None]) / scale[None]


@jax.jit
def _fit_curvature(x: jax.Array) -> CurvatureModel:
    """Return the model of standardized rows `[m, d]`."""
    m, d = x.shape
    probes = jax.random.normal(jax.random.key(0), (d, min(d, RANK)))
    basis, _ = jnp.linalg.qr(_matmul(x.T, _matmul(x, probes)))
    along = _matmul(x, basis)
    variances, rotation = jnp.linalg.eigh(_matmul(along.T, along) / m)
    variances = jnp.maximum(variances, 0.0)
    rest = jnp.maximum(jnp.vdot(x, x) / m - variances.sum(), 0.0) / max(1, d - RANK)
    return CurvatureModel(_matmul(basis, rotation), variances, rest)


@jax.jit
def _begin(points: jax.Array) -> tuple:
    """Return the state at initial points, and the sums of no rows."""
    g, num_classes, width = points.shape
    zeros = jnp.zeros_like(points)
    ones = jnp.ones(g)
    memory = lbfgs.empty_memory(points)
    state = _State(
        points, ones, points, zeros, zeros, memory, steps=jnp.full(g, -1), norm=ones, done=ones < 0
    )
    sums = (jnp.zeros((g * num_classes, width - 1)), jnp.zeros(g * num_classes), jnp.zeros(()))
    return state, sums


@functools.partial(jax.jit, donate_argnums=0)
def _add_gradients(sums, points, x, y, weights) -> tuple[jax.Array, ...]:
    """Add a block's sums of the gradient of the cross-entropy, and its number of rows."""
    g, num_classes, _ = points.shape
    targets = jax.nn.one_hot(y, num_classes)[:, None]
    errors = (jax.nn.softmax(_many_logits(points, x)) - targets) * weights[:, None, None]
    errors = errors.reshape(-1, g * num_classes)
    # CPUs take up to twice as long for a product over the rows of both; one is transposed before.
    transposed = lax.optimization_barrier(errors.T)
    return jax.tree.map(jnp.add, sums, (_matmul(transposed, x), errors.sum(axis=0), weights.sum()))


@functools.partial(jax.jit, donate_argnums=(0, 1))
def _advance(state: _State, sums, model: CurvatureModel, l2s, limits, excess) -> tuple:
    """Take or shorten the current steps, given the sums of gradients over all rows.

    The line search needs no value of the objective, whose changes near the minimum are below
    float32's resolution. A step is taken if the slope at its end is not much above zero (the
    approximate Wolfe condition of Hager & Zhang, 2005, delta = 0.1). Otherwise it is cut where the
    secant of the slopes is zero.
    """
    weights, bias, count = sums
    points = state.trial
    means = jnp.concatenate([weights, bias[:, None]], axis=1).reshape(points.shape) / count
    gradient = means + points.at[..., -1].set(0.0) * l2s[:, None, None]
    slope = lbfgs.inner(state.gradient, state.direction)
    end_slope = lbfgs.inner(gradient, state.direction)
    taken = (end_slope <= 0.8 * -slope) & ~state.done
    solve = functools.partial(model.solve, l2s)
    differences = (points - state.point, gradient - state.gradient)
    memory = lbfgs.remember(state.memory, *differences, taken, solve)
    direction = -lbfgs.inverse_hessian_product(memory, gradient, solve)
    new = (points, gradient, direction)
    old = (state.point, state.gradient, state.direction)
    point, gradient, direction = jax.tree.map(
        lambda a, b: jnp.where(taken[:, None, None], a, b), new, old
    )
    secant = jnp.where(taken | state.done, 1.0, slope - end_slope)
    step = jnp.where(taken, 1.0, state.step * slope / secant)
    norm = jnp.sqrt(lbfgs.inner(gradient, gradient))
    decrement = -lbfgs.inner(gradient, direction) / 2
    done = state.done | (step < MIN_STEP) | (norm <= limits) | (decrement <= excess)
    step = jnp.where(done, 0.0, step)
    trial = point + step[:, None, None] * direction
    steps = state.steps + taken
    state = _State(trial, step, point, gradient, direction, memory, steps, norm, done)
    return state, jax.tree.map(jnp.zeros_like, sums)


@jax.jit
def _count_hits(points, x, y, rows) -> jax.Array:
    is_correct = jnp.argmax(_many_logits(points, x), axis=-1) == y[:, None]
    return (is_correct & rows[:, None]).sum(axis=0)


def _many_logits(points: jax.Array, x: jax.Array) -> jax.Array:
    """Return logits `[n, g, num_classes]` of points W `[g, num_classes, d + 1]`, by one product."""
    g, num_classes, width = points.shape
    flat = points.reshape(g * num_classes, width)
    flat = jnp.pad(flat, ((0, -len(flat) % COLUMN_MULTIPLE), (0, 0)))
    outputs = linear_logits(Classifier(flat[:, :-1], flat[:, -1]), x)
    return outputs[:, : g * num_classes].reshape(-1, g, num_classes)
