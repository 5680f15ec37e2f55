"""Multinomial logistic regression by full-batch L-BFGS, many fits at once.

Each fit minimizes, over weights W `[num_classes, d]` and a bias that is not penalized,

    mean cross-entropy over its rows + l2 / 2 |W|^2

All fits (values of l2, folds) read the features in the same two matrix products, block by block of
rows. L-BFGS starts each of its directions from a model of the curvature, the Hessian at W = 0:

    M / num_classes + l2        (on weights whose sum over the classes is zero)

with M the second moments of centred features. Their leading eigenvectors come from a sample of the
rows by the Nystrom method (Frangella, Tropp & Udell, 2021, Algorithm 2.1).
"""

import functools
import operator
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hypersphere_jax.configs import require
from hypersphere_jax.evaluate import lbfgs
from hypersphere_jax.evaluate.checks import as_float32, row_blocks
from hypersphere_jax.evaluate.scaling import PADDING, Scaling, folded, mapped, scaled, scaling_of
from hypersphere_jax.evaluate.scores import Classifier, logits
from hypersphere_jax.training import distributed

TOLERANCE = 1e-6  # on the norm of the gradient
MAX_STEPS = 1000
TOLERANCE_BY_L2 = 3.0  # the weights are at most the norm of the gradient / l2 off the minimum
RANK, SAMPLE = 256, 8192  # of the model of the curvature: eigenvectors, rows
# Numbers of the features, or of their logits, in a block of rows: on CPUs, whose products of 2,048
# rows are faster than of 512, and elsewhere.
READ = 2**23
RESIDENT = 2**26
AT_ONCE = 2**24  # weights of fits that are made at once, of which L-BFGS keeps some twenty copies
SMALL = 2**30  # multiplications of an evaluation that takes less time than a compilation
COLUMNS = 16  # of weights in a product are filled up to a multiple, which takes CPUs less time
ALIGNED = 16  # numbers: arrays that begin at a multiple are on a CPU without a copy
MEMORY_SHARE = 0.8  # of a device's memory, for its share of the features
NONE = -1  # as a held-out part: no row's


class Block(NamedTuple):
    """Rows with leading axes (devices, rows of a device)."""

    x: jax.Array  # float32 [..., d], scaled if `Problem.frame` and `Problem.fold` are None
    y: jax.Array  # int32, PADDING in rows that only fill up the block


class Problem(NamedTuple):
    """Training rows, and what shapes the steps towards every fit on them."""

    blocks: list[Block]
    places: list[np.ndarray]  # of each block's rows among all, (devices, rows of a device)
    scaling: Scaling
    frame: tuple | None  # of the scaling, by which each pass scales; None: none does
    fold: tuple | None  # centre and 1 / scale, by which weights are scaled in its place
    model: tuple[jax.Array, jax.Array, jax.Array]  # of the curvature, see `_curvature`
    num_classes: int
    fits: int  # that are made at once
    small: bool  # few fits are filled up with copies, for the program of `fits` is compiled
    devices: tuple[jax.Device, ...]


class LogisticFit(NamedTuple):
    """Fitted classifiers `[g, ...]` of scaled features, and how each fit ended."""

    classifiers: Classifier
    steps: np.ndarray  # [g]
    gradient_norm: np.ndarray  # [g]
    hits: np.ndarray  # [g] rows of the held-out part that are classified right


def limit(l2):
    """The norm of the gradient at which a fit with that l2 ends."""
    return np.minimum(TOLERANCE, TOLERANCE_BY_L2 * np.asarray(l2))


def place(
    x,
    y,
    *,
    num_classes: int,
    standardize: bool = False,
    scaling: Scaling | None = None,
    jobs: int = 1,
    devices: Sequence[jax.Device] | None = None,
) -> Problem:
    """Rows x `[n, d]` and labels y `[n]` in blocks, scaled on the devices.

    A scaled float32 copy is made on the devices. On CPU there is none of float32 features that
    begin at a multiple of 64 bytes, such as memory maps of .npy files: the weights are scaled, or,
    where the features are far from 0, each pass scales these.

    Args:
      x: `[n, d]` finite features.
      y: `[n]` labels below `num_classes`.
      num_classes: number of classes.
      standardize: see `scaling.scaling_of`.
      scaling: in place of that of these rows.
      jobs: fits in all, which decide how many are made at once and how many rows make a block.
      devices: of this process, which share each block. None: JAX's first.

    Raises:
      UserError: for features that do not fit into the devices' memory.
    """
    devices = tuple(distributed.local_devices(1, devices))
    count, on_host = len(devices), devices[0].platform == "cpu"
    n, d = x.shape
    in_place = on_host and isinstance(x, np.ndarray) and x.dtype == np.float32
    in_place = in_place and x.flags.c_contiguous and x.ctypes.data % (4 * ALIGNED) == 0
    needed, room = 4 * -(-n // count) * d, distributed.device_memory(devices)
    require(
        in_place or needed <= MEMORY_SHARE * room,
        f"L-BFGS needs {needed / 1e9:.3g} GB on each of {count} device(s), which hold "
        f"{room / 1e9:.3g} GB: take more devices, or a protocol by minibatches",
    )
    at_once = max(1, AT_ONCE // (num_classes * d))
    fits = -(-jobs // -(-jobs // at_once))
    most = (READ if on_host else RESIDENT) // max(d, fits * num_classes)
    many = -(-n // (count * max(1, most)))
    size = count * ALIGNED * -(-n // (count * many * ALIGNED))  # rows of a block
    blocks, places = [], []
    for begin in range(0, n, size):
        # The last block begins early, so that all have one shape: PADDING marks what came before.
        rows = max(0, min(begin, n - size)) + np.arange(size)
        labels = np.where((rows < begin) | (rows >= n), PADDING, y[np.minimum(rows, n - 1)])
        rows = np.minimum(rows, n - 1)
        values = as_float32(x[rows[0] : rows[0] + size] if size <= n else x[rows])
        block = Block(values.reshape(count, -1, d), np.int32(labels).reshape(count, -1))
        blocks.append(distributed.split(block, devices))
        places.append(rows.reshape(count, -1))
    if scaling is None:
        near = np.asarray(blocks[0].x).mean(axis=(0, 1), dtype=np.float64)
        scaling = scaling_of(blocks, near, n, standardize, devices)
    rows = np.sort(np.random.default_rng(0).permutation(n)[:SAMPLE])
    sample = np.empty((len(rows), d), np.float32)
    for some in row_blocks(len(rows), d, READ):
        sample[some] = as_float32(x[rows[some]])
    model = _curvature(sample, *scaling.frame)
    frame, fold = distributed.replicate(scaling.frame, devices), None
    if in_place and scaling.folds:
        factor = np.broadcast_to(np.float32(1 / np.asarray(scaling.scale)), scaling.centre.shape)
        frame, fold = None, distributed.replicate((np.float32(scaling.centre), factor), devices)
    if not in_place:
        for index, block in enumerate(blocks):  # so that each is freed when it is scaled
            blocks[index] = block._replace(x=mapped(scaled, devices)(block.x, *frame))
        frame = None
    small = n * d * num_classes * fits < SMALL
    made = {"num_classes": num_classes, "fits": fits, "small": small, "devices": devices}
    return Problem(blocks, places, scaling, frame, fold, model, **made)


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
    part = np.asarray(part, np.int32)
    parts = [distributed.split(part[rows], problem.devices) for rows in problem.places]
    l2s, held_out = np.asarray(l2s, np.float32), np.asarray(held_out, np.int32)
    d = problem.blocks[0].x.shape[-1]
    fits = []
    for group in np.array_split(np.arange(len(l2s)), -(-len(l2s) // problem.fits)):
        filled = np.resize(group, problem.fits) if problem.small else group
        trial = np.zeros((len(filled), problem.num_classes, d + 1), np.float32)
        if start is not None:
            trial[:] = np.concatenate([start.weights, start.bias[:, None]], axis=1)
        settings = l2s[filled], held_out[filled], np.float32(excess)
        fit = _fit(problem, parts, trial, *settings)
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


def _fit(problem: Problem, parts, trial: np.ndarray, l2s, held_out, excess) -> LogisticFit:
    """The fits of a group, from points `[g, num_classes, d + 1]`."""
    devices = problem.devices

    def settings(which):
        values = l2s[which], held_out[which], np.float32(limit(l2s[which])), excess
        return distributed.replicate(values, devices)

    every = np.arange(len(trial))
    # The last one that runs goes on alone, by the program that a fit on all rows needs too.
    rest = int(len(trial) > 1 and not problem.small)
    state = distributed.replicate(lbfgs.begin(trial), devices)
    state = _minimize(problem, parts, state, settings(every), rest)
    ends = distributed.unreplicate((state.point, state.steps, state.norm))
    left = np.flatnonzero(~distributed.unreplicate(state.done))
    if rest and len(left) == 1:
        state = mapped(lbfgs.only, devices)(state, distributed.replicate(left[0], devices))
        state = _minimize(problem, parts, state, settings(left), 0)
        for values, last in zip(ends, (state.point, state.steps, state.norm), strict=True):
            values[left] = distributed.unreplicate(last)

    points, steps, norms = ends
    classifiers = Classifier(points[..., :-1], points[..., -1])
    hits = _hits(problem, parts, points, held_out)
    return LogisticFit(classifiers, steps, norms, hits)


def _hits(problem: Problem, parts, points, held_out) -> np.ndarray:
    hits, devices = np.zeros(len(points), np.int32), problem.devices
    if (held_out == NONE).all():
        return hits
    hit = mapped(_hit, devices, donate=(0,))
    sums, *settings = distributed.replicate((hits, points, held_out), devices)
    settings[0] = _of_features(problem, settings[0])
    for block, part in zip(problem.blocks, parts, strict=True):
        sums = hit(sums, settings[0], *block, part, settings[1], problem.frame)
    return np.asarray(sums).sum(axis=0)


def _minimize(problem: Problem, parts, state, settings, rest: int) -> lbfgs.State:
    """Steps until no more than `rest` of the fits run."""
    devices = problem.devices
    add = mapped(_add, devices, donate=(0,))
    advance = mapped(_advance, devices, donate=(0, 1))
    model = distributed.replicate(problem.model, devices)
    sums = distributed.replicate(_zeros(*state.trial.shape[1:]), devices)
    for _ in range(MAX_STEPS + 1):
        points = _of_features(problem, state.trial)
        for block, part in zip(problem.blocks, parts, strict=True):
            sums = add(sums, points, *block, part, settings[1], problem.frame)
        state, sums = advance(state, sums, problem.fold, *settings, *model)
        if np.sum(~distributed.unreplicate(state.done)) <= rest:
            break
    return state


def _of_features(problem: Problem, points) -> jax.Array:
    """Points for the features as the blocks have them."""
    if problem.fold is None:
        return points
    return mapped(folded, problem.devices)(points, *problem.fold)


def _zeros(g: int, classes: int, width: int) -> tuple[np.ndarray, ...]:
    """The sums of no rows."""
    shapes = (g * classes, width - 1), (g * classes,), (g,)
    return tuple(np.zeros(shape, np.float32) for shape in shapes)


def _logits(points, x) -> jax.Array:
    """`[n, g, num_classes]` of points `[g, num_classes, d + 1]`, in one matrix product."""
    g, classes, width = points.shape
    flat = jnp.pad(points.reshape(g * classes, width), ((0, -(g * classes) % COLUMNS), (0, 0)))
    found = logits(Classifier(flat[:, :-1], flat[:, -1]), x)
    return found[:, : g * classes].reshape(-1, g, classes)


def _add(sums, points, x, y, part, held_out, frame) -> tuple:
    """A device's sums for the gradients of cross-entropy, with those of its rows of a block."""
    x = x if frame is None else scaled(x, *frame)
    g, classes, _ = points.shape
    inside = (part[:, None] != held_out[None]) & ((part != PADDING) & (y != PADDING))[:, None]
    counted = inside.astype(jnp.float32)  # [n, g]
    truth = jax.nn.one_hot(y, classes)[:, None]
    errors = (jax.nn.softmax(_logits(points, x)) - truth) * counted[..., None]
    errors = errors.reshape(-1, g * classes)
    # A product over the rows of both takes CPUs up to twice as long: one is transposed before.
    transposed = lax.optimization_barrier(errors.T)
    products = jnp.matmul(transposed, x, precision="highest")
    return jax.tree.map(jnp.add, sums, (products, errors.sum(axis=0), counted.sum(axis=0)))


def _advance(state: lbfgs.State, sums, fold, l2s, held_out, limits, excess, *model) -> tuple:
    """A step of each fit by the sums over all rows; and zeros, to sum again."""
    del held_out
    weights, bias, counts = lax.psum(sums, distributed.AXIS)
    if fold is not None:
        centre, factor = fold
        weights = (weights - bias[:, None] * centre[None]) * factor[None]
    points = state.trial
    means = jnp.concatenate([weights, bias[:, None]], axis=1).reshape(points.shape)
    penalty = jnp.pad(l2s[:, None, None] * points[..., :-1], ((0, 0), (0, 0), (0, 1)))
    gradient = means / counts[:, None, None] + penalty
    model_inverse = functools.partial(_model_inverse, *model, l2s)
    state = lbfgs.advance(state, gradient, model_inverse, limits, excess)
    return state, jax.tree.map(jnp.zeros_like, sums)


def _hit(hits, points, x, y, part, held_out, frame) -> jax.Array:
    """A device's rows of the held-out parts that are classified right, with those of a block."""
    x = x if frame is None else scaled(x, *frame)
    right = jnp.argmax(_logits(points, x), axis=-1) == y[:, None]
    return hits + (right & (part[:, None] == held_out[None])).sum(axis=0)


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
def _curvature(sample, *frame) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Of second moments: eigenvectors `[d, r]`, variances `[r]` along them, mean of the others."""
    x = scaled(sample, *frame)
    m, d = x.shape
    times = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)
    if d <= RANK:
        variances, basis = jnp.linalg.eigh(times(x.T, x) / m)
        return basis, jnp.maximum(variances, 0.0), jnp.float32(0)
    total = jnp.vdot(x, x) / m
    shift = 1e-6 * total + 1e-7  # above float32's rounding
    start, _ = jnp.linalg.qr(jax.random.normal(jax.random.key(0), (d, RANK)))
    along = times(x, start)
    moments = times(x.T, along) / m + shift * start
    inner, turn = jnp.linalg.eigh(times(along.T, along) / m)
    root = times(moments, turn) / jnp.sqrt(jnp.maximum(inner, 0.0) + shift)[None]
    variances, turn = jnp.linalg.eigh(times(root.T, root))
    basis = times(root, turn) / jnp.sqrt(jnp.maximum(variances, shift))[None]
    variances = jnp.maximum(variances - shift, 0.0)
    return basis, variances, jnp.maximum(total - jnp.sum(variances), 0.0) / (d - RANK)
