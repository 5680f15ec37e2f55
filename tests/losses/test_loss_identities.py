"""Relations of the losses to each other, closed forms and theory: see docs/losses.md."""

import math

import jax
import numpy as np
import pytest
from loss_cases import N, gradients, inputs, value
from oracles import lightly_dcl_oracle, uniform_oracle
from points import sphere

from hypersphere_jax import (
    generalized_contrastive_loss,
    sliced_wasserstein_loss,
    supervised_contrastive_loss,
    theory,
)

KEY = jax.random.key(0)


def test_closed_forms():
    same = np.eye(5)[:1].repeat(N, 0)
    for name, arrays, numbers, expected in (
        ("align", (same, -same), {"alpha": 3}, 8),
        ("uniform", (same,), {"t": 2}, 0),
        ("queue (22)", (same, same[:7]), {"t": 2}, 0),
        ("contrastive", (same, same), {"tau": 0.5}, math.log(N)),
        ("dcl", (same, same), {"tau": 0.5}, math.log(N - 1)),
        ("nt_xent", (same, same), {"tau": 0.5}, math.log(2 * N - 1)),
        ("info_nce", (same, same, same[:7]), {"tau": 0.07}, math.log(8)),
        ("balanced", (same, same), {"alpha": 2, "lam": 3}, 2 + 1.5 * math.log(2 * N - 2)),
        ("generalized", (same, same), {"alpha": 2, "lam": 3}, 2 + 1.5 * math.log(2 * N - 1)),
        ("decoupled", (same, same), {"tau": 0.5, "lam": 3}, 5 + 3 * math.log(2 * N - 1)),
        ("logsumexp", (same,), {"tau": 0.1}, 10 + math.log(N - 1)),
        ("quick_thought_contrastive", (same, same), {"tau": 0.1}, math.log(N)),
    ):
        found = value(name, *arrays, **numbers)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5, err_msg=name)
    # Two antipodal points: the only pair has potential exp(-4t), and exp(0) with itself.
    both = np.float32([[1, 0], [-1, 0]])
    for t in (5.0, 14.9, 15.1, 22.0, 50.0):
        np.testing.assert_allclose(value("uniform", both, t=t), -4 * t, rtol=1e-6)
    expected = math.log((1 + math.exp(-20)) / 2)
    np.testing.assert_allclose(value("uniform (8)", both, t=5), expected, rtol=1e-6)


def test_generalized_nt_xent_at_lam_1_is_nt_xent(rng):
    views = inputs(rng, "nn")
    for alpha in (0.5, 2.0, 30.0):
        found = alpha * value("generalized", *views, alpha=alpha, lam=1)
        np.testing.assert_allclose(found, value("nt_xent", *views, tau=1 / alpha), rtol=1e-5)


def test_supervised_of_the_images_numbers_is_nt_xent(rng):
    loss = jax.jit(supervised_contrastive_loss)
    views = inputs(rng, "nn")
    found = loss(np.concatenate(views), np.tile(rng.permutation(N), 2), 0.2)
    np.testing.assert_allclose(found, value("nt_xent", *views, tau=0.2), rtol=1e-5)
    # The loss of one class of equal points has a closed form; without positives it is zero.
    same = np.eye(5, dtype=np.float32)[:1].repeat(2 * N, 0)
    found = loss(same, np.zeros(2 * N, int), 0.2)
    np.testing.assert_allclose(found, math.log(2 * N - 1), rtol=2e-5)
    assert loss(np.concatenate(views), np.arange(2 * N), 0.2) == 0


def test_decoupled_at_lam_tau_is_tau_times_nt_xent(rng):
    views = inputs(rng, "nn")
    for tau in (0.05, 0.5, 2.0):
        decoupled = value("decoupled", *views, tau=tau, lam=tau)
        np.testing.assert_allclose(decoupled, tau * value("nt_xent", *views, tau=tau), rtol=1e-5)


def test_the_two_scalings_of_the_decoupled_loss(rng):
    # For unit features of five dimensions the alignment of the tables is (1 - z . z') / 5.
    views = inputs(rng, "nn")
    tables = value("in tables", *views, tau=0.3, lam=0.02)
    equation = value("decoupled", *views, tau=0.3, lam=0.1)
    np.testing.assert_allclose(5 * tables, 1 + equation, rtol=1e-5)


def test_self_similarity_repels_less(rng):
    """For views at equal places of a ring, the factor is 1 + e^(1/tau) over the sum of others."""
    angles = np.arange(N) % 4 * np.pi / 2
    sides = [np.pad(np.stack([np.cos(a), np.sin(a)], 1), ((0, 0), (0, 3)))
             for a in (angles, angles + 0.2)]  # fmt: skip
    tangent = sides[0][:, [1, 0, 2, 3, 4]] * [-1, 1, 0, 0, 0]
    for tau in (0.05, 0.1, 1.0):
        forces = []
        for name in ("in tables", "notebook"):
            by_lam = [gradients(name, sides, tau=tau, lam=lam)[1][0][0] for lam in (1.0, 0.0)]
            forces.append(np.sum((by_lam[0] - by_lam[1]) * tangent, 1))
        others = np.exp(np.concatenate(sides) @ sides[0][0] / tau)[1:].sum()
        expected = 1 + math.exp(1 / tau) / others
        np.testing.assert_allclose(forces[0] / forces[1], expected, rtol=1e-3)
    # The docs' numbers: 128 pairs of similarity 0.9, otherwise uniform in 64 dimensions.
    for tau, times in ((0.05, 8.4), (0.1, 3.5)):
        random = math.exp(theory.uniformity_optimum(64, 0.5 / tau) + 1 / tau)
        found = 1 + math.exp(1 / tau) / (math.exp(0.9 / tau) + 254 * random)
        np.testing.assert_allclose(found, times, atol=0.05)


def test_balanced_is_the_dcl_loss_of_lightly(rng):
    views = inputs(rng, "nn")
    for tau in (0.1, 0.5):
        found = value("balanced", *views, alpha=1 / tau, lam=1) / tau
        np.testing.assert_allclose(found, lightly_dcl_oracle(*views, tau), rtol=1e-5)
        assert abs(value("dcl", *views, tau=tau) - found) > 0.1


def test_logsumexp_is_what_spreads_in_the_decoupled_loss(rng):
    z = sphere(rng, N, 5)  # all 2n views as the features of one
    zero, two = (value("decoupled", *np.split(z, 2), tau=0.3, lam=lam) for lam in (0.0, 2.0))
    np.testing.assert_allclose(two - zero, 2 * value("logsumexp", z, tau=0.3), rtol=1e-5)


def test_negative_squared_distance_is_twice_the_cosine_for_unit_features(rng):
    views = inputs(rng, "nn")
    by_distance = value("nt_xent neg_euclidean", *views, tau=1)
    np.testing.assert_allclose(by_distance, value("nt_xent", *views, tau=0.5), rtol=1e-5)


def test_cosine_normalizes(rng):
    z1, z2 = inputs(rng, "nn")
    unit = value("nt_xent", z1, z2, tau=0.5)
    for long in ((z1, 0.2 * z2), (3 * z1, z2)):
        np.testing.assert_allclose(value("nt_xent", *long, tau=0.5), unit, rtol=1e-6)
        assert abs(value("nt_xent dot", *long, tau=0.5) - unit) > 0.1


def test_balanced_approaches_the_hardest_negative(rng):
    z1, z2 = inputs(rng, "nn")
    similarity = np.float64(z := np.concatenate([z1, z2])) @ z.T
    negatives = np.where(np.tile(np.eye(N), (2, 2)), -np.inf, similarity)
    limit = np.mean(-np.diag(similarity, N)) + 2 * negatives.max(1).mean()
    gaps = [value("balanced", z1, z2, alpha=alpha, lam=2) - limit for alpha in (10, 100, 1e4)]
    assert gaps[0] > gaps[1] > gaps[2] > -1e-5 and gaps[2] < 1e-3


def test_dcl_is_contrastive_without_the_positive(rng):
    # exp(contrastive) - exp(dcl) = 1 for a single anchor, here one in each direction.
    sides = [np.repeat(z, N, 0) for z in inputs(rng, "nn", n=1)]
    with_it, without = (value(name, *sides, tau=0.5) for name in ("contrastive", "dcl"))
    np.testing.assert_allclose(np.exp(with_it) - np.exp(without), 1.0, rtol=1e-4)


def test_estimators_8_and_9_are_related(rng):
    (x,) = inputs(rng, "n")
    nine = value("uniform", x, t=2)
    eight = value("uniform (8)", x, t=2)
    np.testing.assert_allclose(theory.uniformity_without_self(eight, N), nine, rtol=1e-5)
    np.testing.assert_allclose(theory.uniformity_with_self(nine, N), eight, rtol=1e-5)


def test_queue_of_the_other_points_completes_the_batch(rng):
    # Queries against the rest, and among themselves, are all pairs except pairs of the rest.
    (x,) = inputs(rng, "n", n=N + 7)
    queue = value("queue (22)", x[:N], x[N:], t=2)
    pairs = {n: n * (n - 1) / 2 for n in (7, N + 7)}
    rest, whole = (pairs[len(part)] * math.exp(uniform_oracle(part)) for part in (x[N:], x))
    expected = math.log((whole - rest) / (pairs[N + 7] - pairs[7]))
    np.testing.assert_allclose(queue, expected, rtol=1e-5)


def test_uniform_samples_attain_the_optimum():
    x = theory.uniform_sphere(KEY, 2048, 8)
    for t in (0.5, 2.0, 8.0):
        found = value("uniform", x, t=t)
        np.testing.assert_allclose(found, theory.uniformity_optimum(8, t), atol=0.02)
        assert theory.uniformity_with_self(found, 2048) > theory.uniformity_optimum(8, t)
        assert found > theory.uniformity_lower_bound(8, t, 2048)


def test_sliced_wasserstein_distances(rng):
    h = sphere(rng, 64, 4)
    directions = np.eye(4, dtype=np.float32)
    # A shift by c along a direction costs c^2, of one in four, and nothing across it.
    shift = np.float32([0, 0, 0, 3])
    loss = jax.jit(sliced_wasserstein_loss)
    assert loss(h, h[::-1], directions) == 0
    np.testing.assert_allclose(loss(h + shift, h, directions), 9 / 4, rtol=1e-5)
    assert loss(h + shift, h, directions[:, [0, 1, 2, 0]]) == 0


@pytest.mark.parametrize("prior", ["hypersphere", "hypercube", "normal"])
def test_generalized_contrastive_loss_knows_its_prior(prior, rng):
    normal = rng.standard_normal((2048, 4)).astype(np.float32)
    cube = rng.uniform(-1, 1, (2048, 4)).astype(np.float32)
    samples = {"hypersphere": sphere(rng, 2048, 4), "hypercube": cube, "normal": normal}
    loss = jax.jit(lambda z: generalized_contrastive_loss(KEY, z, z, prior, lam=1.0))
    own = loss(samples.pop(prior))  # a sample of the prior is near it, the nearer the larger
    if prior == "hypersphere":  # to which the others are normalized
        assert own < 0.1 * loss(sphere(rng, 64, 4))
    else:
        assert all(loss(sample) > 4 * own for sample in samples.values())


def test_generalized_contrastive_loss_terms(rng):
    z1, z2 = (rng.standard_normal((6, 4)).astype(np.float32) for _ in range(2))
    loss = jax.jit(generalized_contrastive_loss, static_argnames=("prior", "scaling"))
    at = {lam: loss(KEY, z1, z2, "normal", lam) for lam in (0.0, 0.5, 2.0)}
    np.testing.assert_allclose(at[0.0], np.mean((z1 - z2) ** 2) / 2, rtol=1e-6)
    np.testing.assert_allclose(at[2.0] - at[0.0], 4 * (at[0.5] - at[0.0]), rtol=1e-5)  # linear
    # The other scaling: d times the alignment, at d lam d times the loss.
    per_sample = loss(KEY, z1, z2, "normal", 2.0, scaling="per_sample")
    np.testing.assert_allclose(per_sample, 4 * at[0.5], rtol=1e-5)
