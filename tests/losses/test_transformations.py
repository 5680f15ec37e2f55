"""Losses under JAX's transformations and in blocks: second derivatives, `vmap`, export, memory."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import oracles
from loss_cases import CASES, MASKED, each_loss, inputs

# One loss for each kind of pairs, and the others.
ENGINE = ("uniform", "contrastive", "nt_xent", "info_nce")
OTHERS = ("queue and batch", "nt_xent distance", "dcl", "balanced", "supervised", "logsumexp")
UNBLOCKED = ("align", "quick_thought_align", "sliced_wasserstein")


def in_blocks(name):
    """The loss of arrays, with blocks that do not divide the points."""
    options = dict(CASES[name].numbers[0])
    if name not in UNBLOCKED:
        options["block_size"] = 5
    return lambda arrays: CASES[name].loss(*arrays, **options)


@each_loss(ENGINE, slow=[*OTHERS, *UNBLOCKED])
def test_blocks_vmap_and_hessian_vector_products(name, rng):
    """Forward over reverse mode, for a batch of two."""
    oracle = functools.partial(CASES[name].oracle, **CASES[name].numbers[0])
    shapes = CASES[name].shapes
    batch = [(inputs(rng, shapes), inputs(rng, shapes)) for _ in range(2)]

    @jax.jit
    @jax.vmap
    def differentiate(arrays, directions):
        return jax.jvp(jax.value_and_grad(in_blocks(name)), (arrays,), (directions,))

    results = differentiate(*jax.tree.map(lambda *leaves: np.stack(leaves), *batch))
    for k, (arrays, directions) in enumerate(batch):
        (found, slopes), (forward, bends) = jax.tree.map(lambda leaf, k=k: leaf[k], results)
        np.testing.assert_allclose(found, oracle(*arrays), rtol=2e-5, atol=1e-5)
        expected = oracles.numeric_slopes(oracle, arrays, directions)
        along = [np.vdot(*pair) for pair in zip(slopes, directions, strict=True)]
        np.testing.assert_allclose(along, expected, rtol=3e-4, atol=1e-4)
        np.testing.assert_allclose(forward, sum(expected), rtol=3e-4, atol=2e-4)
        bend = sum(np.vdot(*pair) for pair in zip(bends, directions, strict=True))
        expected = oracles.numeric_bend(oracle, arrays, directions)
        np.testing.assert_allclose(bend, expected, rtol=2e-3, atol=2e-3)


@each_loss(ENGINE, slow=OTHERS)
def test_memory_is_linear_in_the_batch(name):
    """No array of value or gradients, also with a mask, is as large as a part of all pairs."""
    n = 512
    options = {"block_size": 16}
    if name in MASKED:
        options["mask"] = np.ones(n, bool)
    if name == "supervised":
        options["labels"] = np.arange(n) // 2
    step = jax.value_and_grad(lambda arrays: CASES[name].loss(*arrays, **options))
    arrays = [jax.ShapeDtypeStruct((n, 2), jnp.float32) for _ in CASES[name].shapes]
    shapes = re.findall(r"(?:f32|bool)\[([\d,]+)\]", str(jax.make_jaxpr(step)(arrays)))
    largest = max(math.prod(map(int, shape.split(","))) for shape in shapes)
    assert 2 * n <= largest <= 6 * n
