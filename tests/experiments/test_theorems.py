"""Theorems and propositions: closed forms by other means, slopes, and bounds on features."""

import math
from functools import partial

import numpy as np
import pytest
from scipy import special

from experiments.balanced import theorem4_6
from experiments.wang_isola import (
    figure10,
    figure11,
    harmonics,
    proposition1,
    proposition2,
    theorem2,
)

GRID = 2 * np.pi * np.arange(1440) / 1440


def softplus_of(cosines, tau, positive=1.0):
    """The loss with one negative from the paper's Eq. (1), as a quotient of exponentials."""
    top = np.exp(positive / tau)
    return -np.log(top / (top + np.exp(np.asarray(cosines) / tau)))


def test_losses_with_one_negative_are_integrals():
    for tau in (0.1, 0.5, 1.0):
        for positive in (1.0, 0.3):
            circle = softplus_of(np.cos(GRID), tau, positive).mean()
            loss = theorem2.uniform_loss_value(2, tau, positive)
            assert loss == pytest.approx(circle, rel=1e-9)
        # In three dimensions the cosine is uniform, and the integral a dilogarithm.
        in_space = tau / 2 * (special.spence(1 + math.exp(-2 / tau)) + np.pi**2 / 12)
        assert theorem2.uniform_loss_value(3, tau) == pytest.approx(in_space, rel=1e-7)


def exponential_eigenvalues(dim, degrees, kappa):
    """Return eigenvalues of exp(kappa (s - 1)), `[..., degrees]`, by Poisson's formula."""
    kappa = np.asarray(kappa)[..., None]
    log_scale = math.lgamma(dim / 2) + (dim / 2 - 1) * np.log(2 / kappa)
    return np.exp(log_scale) * special.ive(np.arange(degrees) + dim / 2 - 1, kappa)


def test_eigenvalues_are_those_of_closed_forms():
    """All positive for the Gaussian kernel; log(1 + e^x) is an alternating sum of exponentials."""
    terms = np.arange(1.0, 400.0)
    for dim in (2, 3, 8, 128):
        gaussian = harmonics.eigenvalues(harmonics.potential, dim, 7)
        assert gaussian == pytest.approx(exponential_eigenvalues(dim, 7, 4.0), rel=1e-6)
        assert harmonics.first_negative(harmonics.potential, dim) is None
        assert harmonics.exact_eigenvalues(dim, 9) == pytest.approx(
            exponential_eigenvalues(dim, 9, 4.0), rel=1e-12
        )
        for tau, first in ((1.0, 4), (0.5, 5), (0.1, {2: 9, 3: 9, 8: 10, 128: 15}[dim])):
            degree, size = harmonics.first_negative(partial(theorem2.pair_loss, tau=tau), dim)
            of_terms = exponential_eigenvalues(dim, first + 1, terms / tau)
            sums = np.cumsum(of_terms * (-((-1) ** terms) / terms)[:, None], axis=0)
            for _ in range(6):  # the limit is between consecutive partial sums
                sums = (sums[1:] + sums[:-1]) / 2
            assert degree == first and (sums[-1][:first] > 0).all()
            assert size == pytest.approx(sums[-1][first] / sums[-1][0], rel=1e-6)


def test_theorem_4_6_fails_at_its_counterexample():
    """One class is met at two angles, and the nearest other class at one of them."""
    (example,) = theorem4_6.analyze([])
    _, alpha = theorem4_6.counterexample()
    b = math.cos(math.radians(180 - theorem4_6.DEGREES))
    n = theorem4_6.MEMBERS
    own = (math.exp(alpha) + (n - 1) * math.exp(-alpha)) / n
    right = math.log(own + 2 * math.exp(-alpha * b)) / alpha / b
    assert right + 0.05 < -b
    assert example["verdict"] == "not supported"
    assert [example["left"], example["right"]] == pytest.approx([-b, right], abs=1e-3)


def test_closed_form_items_are_supported():
    for item in (proposition1, figure10, figure11):
        assert {row["verdict"] for row in item.analyze([])} == {"supported"}
    table = proposition2.analyze([], numbers=(4, 6, 12))
    assert {row["verdict"] for row in table} == {"supported"} and len(table) == 12
