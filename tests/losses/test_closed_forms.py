"""Closed forms of the losses, and their relations to each other and to the theory."""

import math

import numpy as np
import pytest
from loss_cases import N, inputs, value
from oracles import lightly_dcl_oracle

import hypersphere_jax as hj

SAME = np.eye(5)[:1].repeat(N, 0)


@pytest.mark.parametrize(
    ("name", "arrays", "numbers", "expected"),
    [
        ("align", (SAME, -SAME), {"alpha": 3}, 8),
        ("uniform", (SAME,), {"t": 2}, 0),
        ("queue and batch", (SAME, SAME[:7]), {"t": 2}, 0),
        ("contrastive", (SAME, SAME), {"tau": 0.5}, math.log(N)),
        ("dcl", (SAME, SAME), {"tau": 0.5}, math.log(N - 1)),
        ("nt_xent", (SAME, SAME), {"tau": 0.5}, math.log(2 * N - 1)),
        ("info_nce", (SAME, SAME, SAME[:7]), {"tau": 0.07}, math.log(8)),
        ("balanced", (SAME, SAME), {"alpha": 2, "lam": 3}, 2 + 1.5 * math.log(2 * N - 2)),
        ("generalized", (SAME, SAME), {"alpha": 2, "lam": 3}, 2 + 1.5 * math.log(2 * N - 1)),
        ("decoupled", (SAME, SAME), {"tau": 0.5, "lam": 3}, 5 + 3 * math.log(2 * N - 1)),
        ("logsumexp", (SAME,), {"tau": 0.1}, 10 + math.log(N - 1)),
        ("supervised", (SAME,), {"tau": 0.3}, math.log(N - 1)),
        ("quick_thought_contrastive", (SAME, SAME), {"tau": 0.1}, math.log(N)),
    ],
)
def test_equal_points(name, arrays, numbers, expected):
    np.testing.assert_allclose(value(name, *arrays, **numbers), expected, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("tau", [0.05, 0.5, 2.0])
def test_generalizations_of_nt_xent(tau, rng):
    views = inputs(rng, "nn")
    nt_xent = value("nt_xent", *views, tau=tau)
    generalized = value("generalized", *views, alpha=1 / tau, lam=1)
    np.testing.assert_allclose(generalized / tau, nt_xent, rtol=1e-5)
    decoupled = value("decoupled", *views, tau=tau, lam=tau)
    np.testing.assert_allclose(decoupled / tau, nt_xent, rtol=1e-5)
    # Unit features: the squared distance is 2 - 2 cos.
    distance = value("nt_xent distance", *views, tau=2 * tau)
    np.testing.assert_allclose(distance, nt_xent, rtol=1e-5)


def test_supervised_loss_with_one_class_per_image_is_nt_xent(rng):
    views = inputs(rng, "nn")
    images = np.tile(rng.permutation(N), 2)
    found = hj.supervised_contrastive_loss(np.concatenate(views), images, 0.2)
    np.testing.assert_allclose(found, value("nt_xent", *views, tau=0.2), rtol=1e-5)


@pytest.mark.parametrize("tau", [0.1, 0.5])
def test_balanced_loss_is_lightlys_dcl_loss(tau, rng):
    views = inputs(rng, "nn")
    found = value("balanced", *views, alpha=1 / tau, lam=1) / tau
    np.testing.assert_allclose(found, lightly_dcl_oracle(*views, tau), rtol=1e-5)
    assert abs(value("dcl", *views, tau=tau) - found) > 0.1


def test_cosine_similarity_ignores_lengths(rng):
    z1, z2 = inputs(rng, "nn")
    unit = value("nt_xent", z1, z2, tau=0.5)
    np.testing.assert_allclose(value("nt_xent", 3 * z1, 0.2 * z2, tau=0.5), unit, rtol=1e-6)
    assert abs(value("nt_xent dot", 3 * z1, z2, tau=0.5) - unit) > 0.1
