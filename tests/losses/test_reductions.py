"""The two reductions over sets of pairs that all pairwise losses consist of.

Values and gradients of any order are compared with a dense matrix in float64, for logits of any
size.
"""

import functools

import jax
import numpy as np
import oracles
import pytest
from jax.sharding import Mesh, PartitionSpec
from scipy.special import logsumexp

from hypersphere_jax.losses._pairwise.options import Exclude, PairOptions
from hypersphere_jax.losses._pairwise.pair_sets import PairsBetween, PairsWithin
from hypersphere_jax.losses._pairwise.points import Points
from hypersphere_jax.losses._pairwise.reductions import logsumexp_all_pairs, mean_row_logsumexp

N = 16
M = 7
D = 4


def dense_logits(x, x_bias, y, y_bias, exclude=0):
    logits = x @ y.T + x_bias[:, None] + y_bias
    if not exclude:
        return logits
    group = np.arange(max(logits.shape)) // exclude
    return np.where(group[: len(x), None] == group[: len(y)], -np.inf, logits)


def dense_mean(logits, positives=None):
    """Mean of the rows' log-sum-exps, or of the cross entropies with their positives."""
    sums = logsumexp(logits, 1)
    if positives is None:
        return np.mean(sums)
    return np.mean(np.logaddexp(sums, positives) - positives)


def total_within(options, x, b):
    return logsumexp_all_pairs(PairsWithin(options), Points(x, b))


def dense_total_within(x, b):
    return logsumexp(dense_logits(x, b, x, b, 1))


def total_replicated(options, x, b, y, c):
    pairs = PairsBetween(options, columns_are_replicated=True)
    return logsumexp_all_pairs(pairs, Points(x, b), Points(y, c))


def dense_total_replicated(*arrays):
    return logsumexp(dense_logits(*arrays))


def mean_within(options, x, b):
    return mean_row_logsumexp(PairsWithin(options, Exclude.NONE), Points(x, b))


def dense_mean_within(x, b):
    return dense_mean(dense_logits(x, b, x, b))


def mean_views(options, x, b, p):
    return mean_row_logsumexp(PairsWithin(options, Exclude.VIEWS), Points(x, b), positives=p)


def dense_mean_views(x, b, p):
    return dense_mean(dense_logits(x, b, x, b, 2), p)


def mean_between(options, x, b, y, c, p):
    pairs = PairsBetween(options, columns_are_anchors=True, exclude=Exclude.SELF)
    return mean_row_logsumexp(pairs, Points(x, b), Points(y, c), positives=p)


def dense_mean_between(x, b, y, c, p):
    logits = dense_logits(x, b, y, c, 1)
    return (dense_mean(logits, p) + dense_mean(logits.T, p)) / 2


def mean_between_rows(options, x, b, y, c):
    return mean_row_logsumexp(PairsBetween(options), Points(x, b), Points(y, c))


def dense_mean_between_rows(*arrays):
    return dense_mean(dense_logits(*arrays))


def mean_replicated(options, x, b, y, c, p):
    pairs = PairsBetween(options, columns_are_replicated=True)
    return mean_row_logsumexp(pairs, Points(x, b), Points(y, c), positives=p)


def dense_mean_replicated(x, b, y, c, p):
    return dense_mean(dense_logits(x, b, y, c), p)


# Function, dense function, and arrays: "x" and "b" are n sharded points and their biases, "y" and
# "c" m replicated points and their biases, "p" n logits of positives.
REDUCTIONS = {
    "total within": (total_within, dense_total_within, "xb"),
    "total replicated": (total_replicated, dense_total_replicated, "xbyc"),
    "mean within": (mean_within, dense_mean_within, "xb"),
    "mean views": (mean_views, dense_mean_views, "xbp"),
    "mean between": (mean_between, dense_mean_between, "xbxbp"),
    "mean between rows": (mean_between_rows, dense_mean_between_rows, "xbxb"),
    "mean replicated": (mean_replicated, dense_mean_replicated, "xbycp"),
}
RINGS = ("total within", "mean views", "mean between")
SIMILAR = ("mean within", "mean between rows")  # to other reductions, so some tests are slow


def inputs(rng, letters, far=0.0):
    """Arrays of logits around `-far`."""
    shapes = {"x": (N, D), "b": N, "y": (M, D), "c": M, "p": N}
    offsets = {"x": 0, "y": 0, "b": far / 2, "c": far / 2, "p": far}
    return tuple(np.float32(rng.standard_normal(shapes[s]) - offsets[s]) for s in letters)


def slopes(gradients, directions):
    return [np.vdot(g, v) for g, v in zip(gradients, directions, strict=True)]


def assert_close(found, expected, rtol=3e-4, atol=1e-4):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_value_gradients_and_forward_mode(name, rng):
    """Logits whose exponentials float32 represents, and others."""
    function, dense, letters = REDUCTIONS[name]

    def value(arrays):
        return function(PairOptions(), *arrays)

    @jax.jit
    def differentiate(arrays, directions):
        forward = jax.jvp(value, (arrays,), (directions,))[1]
        return value(arrays), *jax.value_and_grad(value)(arrays), forward

    for far in (0, 57, 63, 87, 91, 300, -57, -63, -87, -300):
        arrays = inputs(rng, letters, far)
        directions = inputs(rng, letters)
        alone, with_gradient, gradients, forward = differentiate(arrays, directions)
        exact = dense(*map(np.float64, arrays))
        assert_close((alone, with_gradient), (exact, exact), rtol=1e-5, atol=1e-6)
        expected = oracles.numeric_slopes(dense, arrays, directions)
        assert_close(slopes(gradients, directions), expected)
        assert_close([forward], [sum(expected)])


@pytest.mark.slow
@pytest.mark.parametrize("name", REDUCTIONS)
def test_blocks_vmap_and_second_derivatives(name, rng):
    """Forward over reverse, for a batch with one entry of logits beyond exponentials."""
    function, dense, letters = REDUCTIONS[name]

    def value(arrays):
        return function(PairOptions(block_size=3), *arrays)

    @jax.jit
    @jax.vmap
    def differentiate(arrays, directions):
        return jax.jvp(jax.value_and_grad(value), (arrays,), (directions,))

    batch = [(inputs(rng, letters, far), inputs(rng, letters)) for far in (0, 200, 0)]
    found = differentiate(*jax.tree.map(lambda *leaves: np.stack(leaves), *batch))
    for k, (arrays, directions) in enumerate(batch):
        (value_k, gradients), (forward, bends) = jax.tree.map(lambda a, k=k: a[k], found)
        expected = oracles.numeric_slopes(dense, arrays, directions)
        assert_close((value_k, forward), (dense(*map(np.float64, arrays)), sum(expected)))
        assert_close(slopes(gradients, directions), expected)
        ends = []
        for step in (1e-4, -1e-4):
            moved = [np.float64(a) + step * v for a, v in zip(arrays, directions, strict=True)]
            ends.append(oracles.numeric_slopes(dense, moved, directions, 1e-4))
        assert_close(slopes(bends, directions), np.subtract(*ends) / 2e-4, rtol=2e-3)


LAYOUTS = [
    # Without types of what varies over devices, as under `pmap`.
    *((name, False, None, [True]) for name in RINGS),
    # A replicated side needs no ring.
    *((name, True, None, [False]) for name in REDUCTIONS if "replicated" in name),
    *((name, True, None, [False, True]) for name in (*RINGS, "mean between rows")),
    *(pytest.param(name, True, 3, [False, True], marks=pytest.mark.slow) for name in RINGS),
]


@pytest.mark.parametrize(("name", "typed", "block_size", "rings"), LAYOUTS)
def test_devices_change_nothing(name, typed, block_size, rings, rng):
    """Also if one of four devices has logits beyond exponentials, and the others do not."""
    function, dense, letters = REDUCTIONS[name]
    devices = 4

    def differentiate(ring, arrays, directions):
        options = PairOptions(("a", "b"), block_size, ring=ring)
        loss = functools.partial(_apply, function, options)
        # `shard_map` with types has no forward mode for a replicated value.
        forward = [] if typed else [jax.jvp(loss, (arrays,), (directions,))[1]]
        return *jax.value_and_grad(loss)(arrays), forward

    def every_ring(arrays, directions):
        return [differentiate(ring, arrays, directions) for ring in rings]

    whole = PartitionSpec()
    split = PartitionSpec(("a", "b"))
    specs = tuple(split if letter in "xbp" else whole for letter in letters)
    mesh = Mesh(np.array(jax.devices()[:devices]).reshape(2, -1), ("a", "b"))
    mapped = jax.shard_map(
        every_ring,
        mesh=mesh,
        in_specs=(specs, specs),
        out_specs=[(whole, specs, whole)] * len(rings),
        check_vma=typed,
    )
    mapped = jax.jit(mapped)
    for far in (0, 100):
        arrays = inputs(rng, letters)
        directions = inputs(rng, letters)
        for letter, array in zip(letters, arrays, strict=True):
            if letter in "bc":
                array[-N // devices :] += far
        expected = oracles.numeric_slopes(dense, arrays, directions)
        for value, gradients, forward in mapped(arrays, directions):
            assert_close([value], [dense(*map(np.float64, arrays))])
            assert_close(forward, [sum(expected)] * len(forward))
            # Each device has the global value, so gradients are summed over all devices, unless
            # types show that the value is one.
            times = 1 if typed else devices
            found = slopes(gradients, directions)
            assert_close(found, np.multiply(times, expected), rtol=1e-3, atol=1e-3)


def _apply(function, options, arrays):
    return function(options, *arrays)
