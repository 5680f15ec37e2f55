"""The five sums of exponentials of `losses/pairs.py`, of which all pairwise losses are made.

Value and gradients of any order are those of a dense matrix in float64, for logits of any size.
"""

import functools

import jax
import numpy as np
import oracles
import pytest
from jax.sharding import Mesh, PartitionSpec
from scipy.special import logsumexp

from hypersphere_jax.losses import pairs
from hypersphere_jax.losses.blocks import Points
from hypersphere_jax.losses.devices import PairOptions

N, M, D = 16, 7, 4


def logits(x, x_bias, y, y_bias, exclude=0):
    found = x @ y.T + x_bias[:, None] + y_bias
    group = np.arange(max(found.shape)) // max(exclude, 1)
    apart = group[: len(x), None] != group[: len(y)]
    return np.where(apart | (exclude == 0), found, -np.inf)


def mean_of(logits, positives=None):
    """The mean of the rows' sums, or of the cross-entropies with their positives."""
    sums = logsumexp(logits, 1)
    return np.mean(sums if positives is None else np.logaddexp(sums, positives) - positives)


def dense_between(x, b, y, c, p):
    found = logits(x, b, y, c, 1)
    return (mean_of(found, p) + mean_of(found.T, p)) / 2


def between(options, x, b, y, c, p=None, **of):
    return pairs.mean_log_sums_between(Points(x, b), Points(y, c), options, positives=p, **of)


def shared(options, x, b, y, c, p):
    return pairs.mean_log_sum_shared(Points(x, b), Points(y, c), p, options)


ROWS = "mean_log_sums_between, rows"
# Of arrays: "x" and "b" are n points and their biases, "y" and "c" those of m points that every
# device has, "p" n positives' logits.
OURS = {
    "log_total": lambda r, x, b: pairs.log_total(Points(x, b), r),
    "log_total_with": lambda r, x, b, y, c: pairs.log_total_with(Points(x, b), Points(y, c), r),
    "mean_log_sum": lambda r, x, b: pairs.mean_log_sum(Points(x, b), 0, r, None),
    "mean_log_sum of views": lambda r, x, b, p: pairs.mean_log_sum(Points(x, b), 2, r, p),
    "mean_log_sums_between": functools.partial(between, columns=True, exclude=1),
    ROWS: functools.partial(between, columns=False),
    "mean_log_sum_shared": shared,
}
DENSE = {
    "log_total": ("xb", lambda x, b: logsumexp(logits(x, b, x, b, 1))),
    "log_total_with": ("xbyc", lambda *arrays: logsumexp(logits(*arrays))),
    "mean_log_sum": ("xb", lambda x, b: mean_of(logits(x, b, x, b))),
    "mean_log_sum of views": ("xbp", lambda x, b, p: mean_of(logits(x, b, x, b, 2), p)),
    "mean_log_sums_between": ("xbxbp", dense_between),
    ROWS: ("xbxb", lambda *arrays: mean_of(logits(*arrays))),
    "mean_log_sum_shared": ("xbycp", lambda *arrays: mean_of(logits(*arrays[:4]), arrays[4])),
}
SUMS = {name: (OURS[name], dense, letters) for name, (letters, dense) in DENSE.items()}
ON_RINGS = ("log_total", "mean_log_sum of views", "mean_log_sums_between")
ALIKE = ("mean_log_sum", ROWS)


def inputs(rng, letters, far=0.0):
    """Arrays of logits around `-far`."""
    shapes = {"x": (N, D), "b": N, "y": (M, D), "c": M, "p": N}
    low = {"x": 0, "y": 0, "b": far / 2, "c": far / 2, "p": far}
    return tuple(np.float32(rng.standard_normal(shapes[s]) - low[s]) for s in letters)


def slopes(grads, towards):
    return [np.vdot(g, v) for g, v in zip(grads, towards, strict=True)]


def assert_close(found, wanted, rtol=3e-4, atol=1e-4):
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", SUMS)
def test_value_gradients_and_forward_mode(name, rng):
    """Of logits whose exponentials float32 holds, and of others."""
    function, dense, letters = SUMS[name]
    value = lambda arrays: function(PairOptions(), *arrays)  # noqa: E731

    @jax.jit
    def every_way(arrays, towards):
        forward = jax.jvp(value, (arrays,), (towards,))[1]
        return value(arrays), *jax.value_and_grad(value)(arrays), forward

    for far in (0, 57, 63, 87, 91, 300, -57, -63, -87, -300):
        arrays, towards = inputs(rng, letters, far), inputs(rng, letters)
        alone, beside, grads, forward = every_way(arrays, towards)
        wanted = oracles.numeric_slopes(dense, arrays, towards)
        assert_close((alone, beside), 2 * [dense(*map(np.float64, arrays))], rtol=1e-5, atol=1e-6)
        assert_close([*slopes(grads, towards), forward], [*wanted, sum(wanted)])


SLOW_ALIKE = [pytest.param(name, marks=[pytest.mark.slow] * (name in ALIKE)) for name in SUMS]


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW_ALIKE)
def test_blocks_vmap_and_second_derivatives(name, rng):
    """Forward over reverse, of a batch one of whose entries has logits beyond exponentials."""
    function, dense, letters = SUMS[name]
    options = PairOptions(block_size=3)

    @jax.jit
    @jax.vmap
    def every_way(arrays, towards):
        step = jax.value_and_grad(lambda arrays: function(options, *arrays))
        return jax.jvp(step, (arrays,), (towards,))

    batch = [(inputs(rng, letters, far), inputs(rng, letters)) for far in (0, 200, 0)]
    found = every_way(*jax.tree.map(lambda *leaves: np.stack(leaves), *batch))
    for k, (arrays, towards) in enumerate(batch):
        (value, grads), (forward, bends) = jax.tree.map(lambda a, k=k: a[k], found)
        wanted = oracles.numeric_slopes(dense, arrays, towards)
        assert_close((value, forward), (dense(*map(np.float64, arrays)), sum(wanted)))
        assert_close(slopes(grads, towards), wanted)
        pairs = [(np.float64(a), v) for a, v in zip(arrays, towards, strict=True)]
        moved = [[a + shift * v for a, v in pairs] for shift in (1e-4, -1e-4)]
        ends = [oracles.numeric_slopes(dense, sides, towards, 1e-4) for sides in moved]
        assert_close(slopes(bends, towards), np.subtract(*ends) / 2e-4, rtol=2e-3)


# What every device has needs no ring.
RINGS = {name: [False, True] if "y" not in SUMS[name][2] else [False] for name in SUMS}


@pytest.mark.parametrize(
    ("name", "typed", "devices", "block_size", "rings"),
    [
        # Without types of what varies over devices, as in the `pmap` of `test_losses.py`.
        *((name, False, 4, None, [True]) for name in ON_RINGS),
        *((name, True, 4, None, RINGS[name]) for name in SUMS if name != "mean_log_sum"),
        *(
            pytest.param(name, typed, *layout, RINGS[name], marks=pytest.mark.slow)
            for name in SUMS
            for typed, *layout in ((True, 4, 3),)
        ),
    ],
)
def test_devices_change_nothing(name, typed, devices, block_size, rings, rng):
    """Also where one of them has logits beyond exponentials, and the others not."""
    function, dense, letters = SUMS[name]
    forms = [PairOptions(block_size, ("a", "b"), ring) for ring in rings]

    def step(arrays, towards):
        found = []
        for options in forms:
            loss = functools.partial(lambda options, arrays: function(options, *arrays), options)
            forward = [] if typed else [jax.jvp(loss, (arrays,), (towards,))[1]]
            found.append((*jax.value_and_grad(loss)(arrays), forward))
        return found

    every, split = PartitionSpec(), PartitionSpec(("a", "b"))
    specs = tuple(split if letter in "xbp" else every for letter in letters)
    mesh = Mesh(np.array(jax.devices()[:devices]).reshape(2, -1), ("a", "b"))
    out = [(every, specs, every)] * len(forms)
    layout = {"mesh": mesh, "in_specs": (specs, specs), "out_specs": out, "check_vma": typed}
    mapped = jax.jit(jax.shard_map(step, **layout))
    for far in (0, 100):
        arrays, towards = inputs(rng, letters), inputs(rng, letters)
        for letter, array in zip(letters, arrays, strict=True):
            if letter in "bc":
                array[-N // devices :] += far
        wanted = oracles.numeric_slopes(dense, arrays, towards)
        for value, grads, forward in mapped(arrays, towards):
            assert_close([value], [dense(*map(np.float64, arrays))])
            assert_close(forward, [sum(wanted)] * len(forward))
            # Each device has the global value: its gradients are those of all of them, but where
            # types tell that the value is one.
            times = 1 if typed else devices
            assert_close(slopes(grads, towards), np.multiply(times, wanted), rtol=1e-3, atol=1e-3)
