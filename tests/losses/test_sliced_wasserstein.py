"""Sliced Wasserstein distance: closed forms, second derivatives, and the losses with a prior."""

import functools

import jax
import numpy as np
import pytest
from points import sphere

import hypersphere_jax as hj

KEY = jax.random.key(0)
PRIORS = ("hypersphere", "hypercube", "normal")


def test_distance_of_a_shift(rng):
    """A shift by c along one of four directions costs c^2 / 4, and nothing across it."""
    h = sphere(rng, 64, 4)
    directions = np.eye(4, dtype=np.float32)
    shifted = h + np.float32([0, 0, 0, 3])
    assert hj.sliced_wasserstein_loss(h, h[::-1], directions) == 0
    np.testing.assert_allclose(hj.sliced_wasserstein_loss(shifted, h, directions), 9 / 4, rtol=1e-5)
    assert hj.sliced_wasserstein_loss(shifted, h, directions[:, [0, 1, 2, 0]]) == 0


def test_second_derivatives(rng):
    """While orders stay the same the distance is a sum of squares of linear functions."""
    sides = tuple(np.float32(rng.standard_normal((2, 16, 5))))
    towards = tuple(np.float32(rng.standard_normal((2, 16, 5))))
    directions = np.float32(rng.standard_normal((5, 7)))
    loss = functools.partial(hj.sliced_wasserstein_loss, directions=directions)
    slope = jax.grad(loss, argnums=(0, 1))
    bends = jax.jit(lambda sides, towards: jax.jvp(slope, sides, towards)[1])(sides, towards)
    moved = []
    for side, direction in zip(sides, towards, strict=True):
        order = np.argsort(side @ directions, axis=0)
        moved.append(np.take_along_axis(direction @ directions, order, axis=0))
    bend = sum(np.vdot(*pair) for pair in zip(bends, towards, strict=True))
    np.testing.assert_allclose(bend, 2 * np.mean((moved[0] - moved[1]) ** 2), rtol=1e-4)


@pytest.mark.parametrize("prior", PRIORS)
def test_samples_of_the_prior_have_the_smallest_loss(prior, rng):
    samples = {
        "hypersphere": sphere(rng, 2048, 4),
        "hypercube": np.float32(rng.uniform(-1, 1, (2048, 4))),
        "normal": np.float32(rng.standard_normal((2048, 4))),
    }
    losses = {name: hj.prior_matching_loss(KEY, z, prior) for name, z in samples.items()}
    own = losses.pop(prior)
    if prior == "hypersphere":  # to which all features are normalized
        assert own < 0.1 * hj.prior_matching_loss(KEY, sphere(rng, 64, 4), prior)
    else:
        assert all(loss > 4 * own for loss in losses.values())


def test_terms_of_the_generalized_contrastive_loss(rng):
    z1, z2 = np.float32(rng.standard_normal((2, 6, 4)))
    loss = functools.partial(hj.generalized_contrastive_loss, KEY, z1, z2, "normal")
    total, alignment, distance = loss(2.0, with_terms=True)
    np.testing.assert_allclose(alignment, np.mean((z1 - z2) ** 2) / 2, rtol=1e-6)
    matching = hj.prior_matching_loss(KEY, np.concatenate([z1, z2]), "normal")
    np.testing.assert_allclose(distance, matching, rtol=1e-5)
    np.testing.assert_allclose(total, alignment + 2 * distance, rtol=1e-5)
    # d times the alignment at d lam is d times the loss.
    per_sample = loss(8.0, scaling="per_sample")
    np.testing.assert_allclose(per_sample, 4 * total, rtol=1e-5)
