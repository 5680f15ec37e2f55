"""The five sums of exponentials of `losses/pairs.py`, of which all pairwise losses are made.

Each has the value and the gradients of a dense matrix in float64, on one device and on several
(gathered or along a ring, under `pmap` and `shard_map`), in blocks, under `vmap`, in forward and
reverse mode and in second derivatives, for logits of any size.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
import oracles
import pytest
from jax.sharding import Mesh, PartitionSpec
from scipy.special import logsumexp

from hypersphere_jax.losses import pairs
from hypersphere_jax.losses.blocks import Points
from hypersphere_jax.losses.devices import Reach

N, M, D = 16, 7, 4


def logits(x, x_bias, y, y_bias):
    return x @ y.T + x_bias[:, None] + y_bias


def without(logits, exclude):
    group = np.arange(len(logits)) // max(exclude, 1)
    return np.where((group[:, None] == group) & (exclude > 0), -np.inf, logits)


def entropies(sums, positives):
    return sums if positives is None else np.logaddexp(sums, positives) - positives


def dense_among(x, bias, positives=None, *, exclude):
    sums = logsumexp(without(logits(x, bias, x, bias), exclude), 1)
    return entropies(sums, positives).mean()


def dense_between(x, x_bias, y, y_bias, positives=None, *, columns, exclude):
    found = without(logits(x, x_bias, y, y_bias), exclude)
    sides = [logsumexp(found, axis) for axis in ((1, 0) if columns else (1,))]
    return np.mean([entropies(side, positives) for side in sides])


def dense_shared(x, x_bias, y, y_bias, positives):
    return entropies(logsumexp(logits(x, x_bias, y, y_bias), 1), positives).mean()


class Sum(NamedTuple):
    """A sum of `pairs`, of a reach and of arrays; the same of the dense matrix; the arrays.

    Letters: "x" and "b" are n points and their biases, "y" and "c" those of m points that every
    device has, "p" the logits of n positives.
    """

    function: Callable
    dense: Callable
    letters: str


def among(exclude):
    def function(reach, x, bias, positives=None):
        return pairs.mean_log_sum(Points(x, bias), exclude, reach, positives)

    return function, functools.partial(dense_among, exclude=exclude)


def between(**options):
    def function(reach, x, x_bias, y, y_bias, positives=None):
        sides = Points(x, x_bias), Points(y, y_bias)
        return pairs.mean_log_sums_between(*sides, reach, **options, positives=positives)

    return function, functools.partial(dense_between, **{"exclude": 0} | options)


ROWS = "mean_log_sums_between, rows"
SUMS = {
    "log_total": Sum(
        lambda reach, x, bias: pairs.log_total(Points(x, bias), reach),
        lambda x, bias: logsumexp(without(logits(x, bias, x, bias), 1)),
        "xb",
    ),
    "log_total_with": Sum(
        lambda reach, x, b, y, c: pairs.log_total_with(Points(x, b), Points(y, c), reach),
        lambda *arrays: logsumexp(logits(*arrays)),
        "xbyc",
    ),
    "mean_log_sum": Sum(*among(0), "xb"),
    "mean_log_sum of views": Sum(*among(2), "xbp"),
    "mean_log_sums_between": Sum(*between(columns=True, exclude=1), "xbxbp"),
    ROWS: Sum(*between(columns=False), "xbxb"),
    "mean_log_sum_shared": Sum(
        lambda reach, x, b, y, c, positives: pairs.mean_log_sum_shared(
            Points(x, b), Points(y, c), positives, reach
        ),
        dense_shared,
        "xbycp",
    ),
}
ON_RINGS = ("log_total", "mean_log_sum of views", "mean_log_sums_between")
ALIKE = ("mean_log_sum", "mean_log_sum of views", ROWS)
each_sum = pytest.mark.parametrize("name", SUMS)


def inputs(rng, letters, far=0.0):
    """Arrays of logits around `-far`."""
    shapes = {"x": (N, D), "b": N, "y": (M, D), "c": M, "p": N}
    low = {"b": far / 2, "c": far / 2, "p": far}
    return tuple(
        (rng.standard_normal(shapes[letter]) - low.get(letter, 0)).astype(np.float32)
        for letter in letters
    )


def slopes(grads, towards):
    return [np.vdot(g, v) for g, v in zip(grads, towards, strict=True)]


def assert_close(found, wanted, rtol=3e-4, atol=1e-4):
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)


@each_sum
def test_value_gradients_and_forward_mode(name, rng):
    """Of logits whose exponentials float32 holds, and of others."""
    function, dense, letters = SUMS[name]
    value = functools.partial(function, Reach())

    @jax.jit
    def every_way(arrays, towards):
        forward = jax.jvp(lambda arrays: value(*arrays), (arrays,), (towards,))[1]
        grads = jax.value_and_grad(lambda arrays: value(*arrays))(arrays)
        return value(*arrays), *grads, forward

    for far in (0, 57, 63, 87, 91, 300, -57, -63, -87, -300):
        arrays, towards = inputs(rng, letters, far), inputs(rng, letters)
        alone, value, grads, forward = every_way(arrays, towards)
        wanted = oracles.numeric_slopes(dense, arrays, towards)
        assert_close((alone, value), 2 * [dense(*map(np.float64, arrays))], rtol=1e-5, atol=1e-6)
        assert_close([*slopes(grads, towards), forward], [*wanted, sum(wanted)])


@pytest.mark.parametrize(
    "name",
    [
        # Others differ in what is left out, which `test_blocks.py` has, or have columns too.
        pytest.param(name, marks=[pytest.mark.slow] * (name in ALIKE))
        for name in SUMS
    ],
)
def test_blocks_vmap_and_second_derivatives(name, rng):
    """Forward over reverse, of a batch one of whose entries has logits beyond exponentials."""
    function, dense, letters = SUMS[name]
    reach = Reach(block_size=5)

    @jax.jit
    @jax.vmap
    def every_way(arrays, towards):
        step = jax.value_and_grad(lambda arrays: function(reach, *arrays))
        return jax.jvp(step, (arrays,), (towards,))

    batch = [(inputs(rng, letters, far), inputs(rng, letters)) for far in (0, 200, 0)]
    found = every_way(*jax.tree.map(lambda *leaves: np.stack(leaves), *batch))
    for k, (arrays, towards) in enumerate(batch):
        (value, grads), (forward, bends) = jax.tree.map(lambda a, k=k: a[k], found)
        wanted = oracles.numeric_slopes(dense, arrays, towards)
        assert_close((value, forward), (dense(*map(np.float64, arrays)), sum(wanted)))
        assert_close(slopes(grads, towards), wanted)
        moved = [
            [a + shift * v for a, v in zip(map(np.float64, arrays), towards, strict=True)]
            for shift in (1e-4, -1e-4)
        ]
        ends = [oracles.numeric_slopes(dense, sides, towards, 1e-4) for sides in moved]
        assert_close(slopes(bends, towards), np.subtract(*ends) / 2e-4, rtol=2e-3)


# What every device has needs no ring.
RINGS = {name: [False] if "y" in SUMS[name].letters else [False, True] for name in SUMS}


@pytest.mark.parametrize(
    ("name", "mapping", "devices", "block_size", "rings"),
    [
        # That `pmap` gathers is seen of every loss in `test_losses.py`.
        *((name, "pmap", 4, None, [True]) for name in ON_RINGS),
        *((name, "shard_map", 4, None, RINGS[name]) for name in SUMS if name != "mean_log_sum"),
        *(
            pytest.param(name, mapping, *layout, RINGS[name], marks=pytest.mark.slow)
            for name in SUMS
            for mapping, *layout in (("shard_map", 4, 3), ("unchecked", 8, 1))
            if mapping != "unchecked" or True in RINGS[name]
        ),
    ],
)
def test_devices_change_nothing(name, mapping, devices, block_size, rings, rng):
    """Also where one of them has logits beyond exponentials, and the others not."""
    function, dense, letters = SUMS[name]
    axes = "data" if mapping == "pmap" else ("a", "b")
    reaches = [Reach(block_size, axes, ring) for ring in rings]
    local, spread = jax.devices()[:devices], [letter in "xbp" for letter in letters]

    def step(arrays, towards):
        found = []
        for reach in reaches:
            loss = functools.partial(lambda reach, arrays: function(reach, *arrays), reach)
            forward = [jax.jvp(loss, (arrays,), (towards,))[1]] if mapping != "shard_map" else []
            found.append((*jax.value_and_grad(loss)(arrays), forward))
        return found

    if mapping == "pmap":
        mapped_axes = tuple(0 if s else None for s in spread)
        mapped = jax.pmap(step, "data", in_axes=(mapped_axes, mapped_axes), devices=local)
    else:
        specs = tuple(PartitionSpec(axes) if s else PartitionSpec() for s in spread)
        mapped = jax.jit(
            jax.shard_map(
                step,
                mesh=Mesh(np.array(local).reshape(2, -1), axes),
                in_specs=(specs, specs),
                out_specs=[(PartitionSpec(), specs, PartitionSpec())] * len(reaches),
                check_vma=mapping == "shard_map",
            )
        )

    def shares(arrays):
        lead = (devices, -1) if mapping == "pmap" else (-1,)
        return tuple(
            a.reshape(*lead, *a.shape[1:]) if s else a for a, s in zip(arrays, spread, strict=True)
        )

    for far in (0, 100):
        arrays, towards = inputs(rng, letters), inputs(rng, letters)
        for letter, array in zip(letters, arrays, strict=True):
            if letter in "bc":
                array[-N // devices :] += far
        value = dense(*map(np.float64, arrays))
        wanted = oracles.numeric_slopes(dense, arrays, towards)
        for same, grads, forward in mapped(shares(arrays), shares(towards)):
            assert_close(np.ravel(same), np.full(same.size, value))
            assert_close(np.ravel(forward), np.full(np.size(forward), sum(wanted)))
            if mapping == "pmap":  # of what all have, each device has the gradient of its points
                grads = [
                    g.reshape(a.shape) if s else np.sum(g, 0)
                    for g, a, s in zip(grads, arrays, spread, strict=True)
                ]
            # Each device has the global value: its gradients are those of all of them, but where
            # types tell that the value is one.
            times = 1 if mapping == "shard_map" else devices
            assert_close(slopes(grads, towards), np.multiply(times, wanted), rtol=1e-3, atol=1e-3)
