"""How the losses relate to each other, to closed forms and to theory: see docs/losses.md."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import sphere
from jax.sharding import Mesh, PartitionSpec
from loss_cases import inputs

from hypersphere_jax import (
    align_loss,
    balanced_contrastive_loss,
    contrastive_loss,
    dcl_loss,
    decoupled_nt_xent_loss,
    generalized_contrastive_loss,
    generalized_nt_xent_loss,
    info_nce_loss,
    l2_normalize,
    logsumexp_loss,
    nt_xent_loss,
    sliced_wasserstein_loss,
    theory,
    uniform_loss,
    uniform_queue_loss,
)


def test_closed_forms():
    pole = np.array([[1.0, 0.0]], np.float32)
    same = np.repeat(pole, 7, 0)
    assert align_loss(same, -same, 3.0) == 8.0
    assert uniform_loss(same) == 0.0
    for loss, negatives in ((contrastive_loss, 7), (dcl_loss, 6), (nt_xent_loss, 13)):
        np.testing.assert_allclose(loss(same, same), math.log(negatives), rtol=2e-6)
    np.testing.assert_allclose(info_nce_loss(same, same, same[:5]), math.log(6), rtol=2e-6)
    for loss, others in ((balanced_contrastive_loss, 12), (generalized_nt_xent_loss, 13)):
        value = -1 + 3 * (1 + math.log(others) / 2)
        np.testing.assert_allclose(loss(same, same, 2.0, 3.0), value, rtol=1e-6)
    for tau in (0.1, 0.5):
        np.testing.assert_allclose(logsumexp_loss(same, tau), 1 / tau + math.log(6), rtol=1e-6)
    # Two antipodal points: the only pair has potential exp(-4t), and exp(0) with itself.
    both = np.concatenate([pole, -pole])
    np.testing.assert_allclose(uniform_loss(both, 5.0), -20.0, rtol=1e-6)
    np.testing.assert_allclose(uniform_loss(both, 50.0), -200.0, rtol=1e-6)
    np.testing.assert_allclose(
        uniform_loss(both, 5.0, include_self=True), math.log((1 + math.exp(-20)) / 2), rtol=1e-6
    )


def test_generalized_nt_xent_at_lam_1_is_nt_xent(rng):
    z1, z2 = inputs(rng, "nn")
    for alpha in (0.5, 2.0, 30.0):
        generalized = alpha * generalized_nt_xent_loss(z1, z2, alpha, 1.0)
        np.testing.assert_allclose(generalized, nt_xent_loss(z1, z2, 1 / alpha), rtol=1e-5)


def test_decoupled_at_lam_tau_is_tau_times_nt_xent(rng):
    z1, z2 = inputs(rng, "nn")
    for tau in (0.05, 0.5, 2.0):
        decoupled = decoupled_nt_xent_loss(z1, z2, tau, tau)
        np.testing.assert_allclose(decoupled, tau * nt_xent_loss(z1, z2, tau), rtol=1e-5)


def test_the_two_scalings_of_the_decoupled_loss(rng):
    # For unit features the alignment of the tables is (1 - z . z') / d.
    z1, z2 = inputs(rng, "nn")
    d, tau, lam = z1.shape[1], 0.3, 0.02
    tables = decoupled_nt_xent_loss(z1, z2, tau, lam, scaling="per_dimension")
    equation = decoupled_nt_xent_loss(z1, z2, tau, d * lam)
    np.testing.assert_allclose(d * tables, 1 + equation, rtol=1e-5)


def test_logsumexp_is_what_spreads_in_the_decoupled_loss(rng):
    # Of all 2n views as the features of one.
    z1, z2 = inputs(rng, "nn")
    alone = logsumexp_loss(np.concatenate([z1, z2]), 0.3)
    losses = [decoupled_nt_xent_loss(z1, z2, 0.3, lam) for lam in (0.0, 2.0)]
    np.testing.assert_allclose(losses[1] - losses[0], 2 * alone, rtol=1e-5)


def test_negative_squared_distance_is_twice_the_cosine_for_unit_features(rng):
    z1, z2 = inputs(rng, "nn")
    far = nt_xent_loss(z1, z2, 1.0, similarity="neg_euclidean")
    np.testing.assert_allclose(far, nt_xent_loss(z1, z2, 0.5), rtol=1e-5)


def test_cosine_normalizes(rng):
    z1, z2 = inputs(rng, "nn")
    np.testing.assert_allclose(nt_xent_loss(3 * z1, 0.2 * z2), nt_xent_loss(z1, z2), rtol=1e-6)
    assert abs(nt_xent_loss(3 * z1, 0.2 * z2, similarity="dot") - nt_xent_loss(z1, z2)) > 0.1


def test_balanced_approaches_the_hardest_negative(rng):
    z1, z2 = inputs(rng, "nn")
    z = np.concatenate([z1, z2]).astype(np.float64)
    similarity = z @ z.T
    negatives = similarity.copy()
    for i in range(22):
        negatives[i, [i, (i + 11) % 22]] = -np.inf
    limit = np.mean(-np.diag(similarity, 11)) + 2.0 * negatives.max(1).mean()
    gaps = [
        float(balanced_contrastive_loss(z1, z2, alpha, 2.0)) - limit for alpha in (10, 100, 1e4)
    ]
    assert gaps[0] > gaps[1] > gaps[2] > -1e-5 and gaps[2] < 1e-3


def test_dcl_is_contrastive_without_the_positive(rng):
    # exp(contrastive) - exp(dcl) = 1 for each anchor alone, here with one anchor in each direction.
    z1, z2 = inputs(rng, "nn", n=2)
    z1[1], z2[1] = z1[0], z2[0]
    with_it, without = contrastive_loss(z1, z2), dcl_loss(z1, z2)
    np.testing.assert_allclose(np.exp(with_it) - np.exp(without), 1.0, rtol=1e-5)


def test_estimators_8_and_9_are_related(rng):
    (x,) = inputs(rng, "n")
    nine, eight = uniform_loss(x), uniform_loss(x, include_self=True)
    np.testing.assert_allclose(theory.uniformity_without_self(eight, 11), nine, rtol=1e-5)
    np.testing.assert_allclose(theory.uniformity_with_self(nine, 11), eight, rtol=1e-5)


def test_queue_of_the_other_points_completes_the_batch(rng):
    # Queries against the rest, and among themselves, are all pairs but those of the rest.
    (x,) = inputs(rng, "n")
    pairs = {n: n * (n - 1) / 2 for n in (4, 7, 11)}
    potential = {n: pairs[n] * np.exp(uniform_loss(part)) for n, part in ((7, x[4:]), (11, x))}
    queue = uniform_queue_loss(x[:4], x[4:])
    expected = np.log((potential[11] - potential[7]) / (pairs[11] - pairs[7]))
    np.testing.assert_allclose(queue, expected, rtol=1e-5)


@pytest.mark.slow
def test_contrastive_approaches_its_limit():
    # Theorem 1: the loss less log M nears its limit, at least as fast as M^(-1/2).
    x = theory.uniform_sphere(jax.random.key(0), 64, 3)
    y = l2_normalize(x + 0.3 * jax.random.normal(jax.random.key(1), x.shape))
    limit = theory.contrastive_limit(x, y, 0.5)

    @jax.jit
    def deviation(key, negatives):
        def one(key):
            drawn = x[jax.random.randint(key, negatives.shape, 0, 64)]
            return info_nce_loss(x, y, drawn, 0.5)

        return jax.vmap(one)(jax.random.split(key, 64)) - jnp.log(len(negatives)) - limit

    mean = [
        float(jnp.abs(deviation(jax.random.key(m), np.zeros(m)).mean()))
        for m in (16, 64, 256, 1024)
    ]
    slope = np.polyfit(np.log([16, 64, 256, 1024]), np.log(mean), 1)[0]
    assert mean[-1] < 0.01 and slope < -0.5
    # And that of the single draws falls with the root of M.
    spread = [float(deviation(jax.random.key(m), np.zeros(m)).std()) for m in (16, 1024)]
    np.testing.assert_allclose(spread[0] / spread[1], 8.0, rtol=0.35)


def test_uniform_samples_attain_the_optimum():
    x = theory.uniform_sphere(jax.random.key(0), 4096, 8)
    for t in (0.5, 2.0, 8.0):
        np.testing.assert_allclose(uniform_loss(x, t), theory.uniformity_optimum(8, t), atol=0.02)
        assert uniform_loss(x, t, include_self=True) > theory.uniformity_optimum(8, t)
        assert uniform_loss(x, t) > theory.uniformity_lower_bound(8, t, 4096)


def test_sliced_wasserstein_distances(rng):
    h, directions = sphere(rng, 64, 4), np.eye(4, dtype=np.float32)
    assert sliced_wasserstein_loss(h, h[::-1], directions) == 0.0
    # A shift by c along the directions costs c^2, and nothing across them.
    shift = np.array([0.0, 0.0, 0.0, 3.0], np.float32)
    np.testing.assert_allclose(
        sliced_wasserstein_loss(h + shift, h, directions[:, 3:]), 9.0, rtol=1e-5
    )
    assert sliced_wasserstein_loss(h + shift, h, directions[:, :3]) == 0.0


@pytest.mark.parametrize("prior", ["hypersphere", "hypercube", "normal"])
def test_generalized_contrastive_loss_knows_its_prior(prior, rng):
    samples = {
        "hypersphere": lambda n: sphere(rng, n, 4),
        "hypercube": lambda n: rng.uniform(-1, 1, (n, 4)).astype(np.float32),
        "normal": lambda n: rng.standard_normal((n, 4)).astype(np.float32),
    }
    loss = jax.jit(functools.partial(generalized_contrastive_loss, prior=prior))
    # A sample of the prior is near it, the nearer the larger; those of the others are not.
    distance = {
        name: [float(loss(jax.random.key(0), z, z)) / 5 for z in map(sample, (64, 4096))]
        for name, sample in samples.items()
        if name == prior or prior != "hypersphere"
    }
    small, large = distance.pop(prior)
    assert large < 0.1 * small
    assert all(other > 10 * large for _, other in distance.values())


def test_generalized_contrastive_loss_terms(rng):
    z1, z2 = (rng.standard_normal((6, 4)).astype(np.float32) for _ in range(2))
    key = jax.random.key(0)
    alignment = generalized_contrastive_loss(key, z1, z2, "normal", 0.0)
    np.testing.assert_allclose(alignment, np.mean((z1 - z2) ** 2) / 2, rtol=1e-6)
    # The other scaling: d times the alignment, at d lam d times the loss.
    per_sample = generalized_contrastive_loss(key, z1, z2, "normal", 2.0, scaling="per_sample")
    alignment = np.sum((z1 - z2) ** 2, axis=1).mean() / 2
    spread = generalized_contrastive_loss(key, z1, z1, "normal", 1.0, scaling="per_sample")
    assert generalized_contrastive_loss(key, z1, z1, "normal", 1.0) == spread
    same = generalized_contrastive_loss(key, z1, z2, "normal", 2.0 / 4)
    np.testing.assert_allclose(per_sample, 4 * same, rtol=1e-5)
    assert per_sample > alignment
    with pytest.raises(ValueError, match="got 'per_batch'"):
        generalized_contrastive_loss(key, z1, z2, scaling="per_batch")
    # Normalized for the sphere: lengths do not matter. Other keys, other directions and samples.
    loss = generalized_contrastive_loss(key, z1, z2)
    np.testing.assert_allclose(generalized_contrastive_loss(key, 5 * z1, z2), loss, rtol=1e-5)
    assert generalized_contrastive_loss(jax.random.key(1), z1, z2) != loss
    value, slope = jax.value_and_grad(generalized_contrastive_loss, 1)(key, z1, z2)
    np.testing.assert_allclose(jnp.sum(slope * z1), 0.0, atol=1e-6)
    assert value == loss
    # The weight is linear.
    values = [generalized_contrastive_loss(key, z1, z2, lam=lam) for lam in (0.0, 1.0, 3.0)]
    np.testing.assert_allclose(values[2] - values[0], 3 * (values[1] - values[0]), rtol=1e-5)


@pytest.mark.slow
def test_generalized_contrastive_loss_over_devices(rng):
    z1, z2 = (rng.standard_normal((16, 4)).astype(np.float32) for _ in range(2))
    key = jax.random.key(3)
    value, expected = jax.value_and_grad(generalized_contrastive_loss, 1)(key, z1, z2)
    step = jax.value_and_grad(
        lambda z1, z2: generalized_contrastive_loss(key, z1, z2, axis_name="data")
    )
    shares = [a.reshape(4, 4, 4) for a in (z1, z2)]
    values, grads = jax.pmap(step, axis_name="data", devices=jax.devices()[:4])(*shares)
    np.testing.assert_allclose(values, np.repeat(value, 4), rtol=1e-5)
    # Four devices, each with a loss: the sum of four gradients, which pmean makes one.
    np.testing.assert_allclose(grads.reshape(16, 4) / 4, expected, rtol=1e-4, atol=1e-7)
    sharded = jax.shard_map(
        step,
        mesh=Mesh(np.array(jax.devices()[:4]), ("data",)),
        in_specs=PartitionSpec("data"),
        out_specs=(PartitionSpec(), PartitionSpec("data")),
    )
    found = jax.jit(sharded)(z1, z2)
    np.testing.assert_allclose(found[0], value, rtol=1e-5)
    # Here types tell that the loss is one for all.
    np.testing.assert_allclose(found[1], expected, rtol=1e-4, atol=1e-7)
