"""Theorems and propositions: closed forms by other means, slopes, and bounds on features."""

import math

import numpy as np
import pytest
from scipy import special

from experiments.balanced import bounds, theorem4_4, theorem4_6
from experiments.wang_isola import (
    figure4,
    figure10,
    figure11,
    harmonics,
    potentials,
    proposition1,
    proposition2,
    proposition3,
    theorem1,
    theorem2,
)
from hypersphere_jax import theory

GRID = 2 * np.pi * np.arange(1440) / 1440


def softplus_of(cosines, tau, positive=1.0):
    """The loss with one negative from the paper's Eq. (1), as a quotient of exponentials."""
    top = np.exp(positive / tau)
    return -np.log(top / (top + np.exp(np.asarray(cosines) / tau)))


def energy(density, loss):
    """The double integral of a loss of two angles under a density on the circle, by a grid."""
    masses = density / density.sum()
    return masses @ loss(np.cos(GRID[:, None] - GRID)) @ masses


def von_mises(kappa, centre=0.0):
    return np.exp(kappa * np.cos(GRID - centre)) / np.i0(kappa)


def test_expected_potentials(rng):
    """A double integral each; samples have its moments."""
    kinds = figure4.DISTRIBUTIONS
    for name, density in (
        ("uniform", np.ones(1440)),
        ("vMF, κ = 1", von_mises(1)),
        ("vMF, κ = 100", von_mises(100)),
        ("two vMF, κ = 10", von_mises(10) + von_mises(10, np.pi)),
        ("three vMF, κ = 10", sum(von_mises(10, k * 2 * np.pi / 3) for k in range(3))),
        ("uniform on a half circle", (np.cos(GRID) > 1e-9) + (abs(np.cos(GRID)) < 1e-9) / 2),
    ):
        kind = kinds[name]
        potential = energy(density, lambda cosines: np.exp(-2 * (2 - 2 * cosines)))
        assert figure4.expected_potential(kind.moment) == pytest.approx(potential, rel=2e-6), name
        angles, k = kind.sample(rng, 20_000), np.arange(1, 7)
        moments = np.abs(np.exp(1j * k * angles[:, None]).mean(axis=0))
        np.testing.assert_allclose(moments, kind.moment(k), atol=0.03, err_msg=name)
    assert figure4.expected_potential(kinds["one point"].moment, 0.5) == pytest.approx(1)


@pytest.mark.slow
def test_theorem1_slopes_and_first_order():
    options = {"sizes": (256, 4096), "draws": 512, "max_negatives": 2**20, "seed": 1}
    table = theorem1.analyze(**options)
    assert len(table) == 6 and {row["verdict"] for row in table} == {"supported"}
    for row in theorem1.measure(**options):
        tolerance = 4 * row["error"] + 0.02 * abs(row["first_order"])
        assert abs(row["deviation"] - row["first_order"]) < tolerance


def test_expectation_is_exact_at_few_negatives():
    # Two points at a right angle and M = 4: the expected loss is a sum over binomial counts.
    x, m, top = np.eye(2, dtype=np.float32), 4, math.exp(1 / 0.5)
    losses = [-math.log(top / (top + k * top + m - k)) for k in range(m + 1)]
    loss = sum(math.comb(m, k) / 2**m * value for k, value in enumerate(losses))
    exact = loss - math.log(m) - (math.log((top + 1) / 2) - 1 / 0.5)
    two = theorem1.finite_population("two", x, x)
    measured = theorem1.deviations(two, m, 4096, 2**20, 0)
    (bias,), (error,) = measured["expectation"]
    assert abs(bias - exact) < 4 * error < 0.1 * exact


def test_losses_with_one_negative_are_integrals():
    for tau in (0.1, 0.5, 1.0):
        for positive in (1.0, 0.3):
            circle = softplus_of(np.cos(GRID), tau, positive).mean()
            loss = theorem2.uniform_loss_value(2, tau, positive)
            assert loss == pytest.approx(circle, rel=1e-9)
        # In three dimensions the cosine is uniform, and the integral a dilogarithm.
        in_space = tau / 2 * (special.spence(1 + math.exp(-2 / tau)) + np.pi**2 / 12)
        assert theorem2.uniform_loss_value(3, tau) == pytest.approx(in_space, rel=1e-7)
        for kappa in (0.3, 60.0):
            exact = energy(von_mises(kappa), lambda cosines, tau=tau: softplus_of(cosines, tau))
            assert theorem2.vmf_loss(kappa, tau) == pytest.approx(exact, rel=1e-9)


@pytest.mark.slow
def test_theorem2_is_false():
    pentagon = theorem2.polygon_loss(5, 0.5)
    cosines = np.cos(2 * np.pi * np.arange(5) / 5)
    assert pentagon == pytest.approx(softplus_of(cosines, 0.5).mean(), rel=1e-9)
    # Free points gather at a pentagon, whose loss is below the constant.
    assert theorem2.free_losses(1)[-1].min() == pytest.approx(pentagon, abs=1e-5)
    assert pentagon < theorem2.uniform_loss_value(2, 0.5) - 4e-4
    angles = np.linspace(0, 2 * np.pi, 60, endpoint=False)
    x = np.stack((np.cos(angles), np.sin(angles)), axis=1).astype(np.float32)
    expected = softplus_of(np.cos(angles), 0.5).mean()
    assert float(theorem2.all_pairs_loss(x, x, x, 0.5)) == pytest.approx(expected, rel=1e-4)
    verdicts = {row["claim"][:10]: row["verdict"] for row in theorem2.analyze()}
    assert verdicts["no polygon"] == verdicts["no eigenva"] == "not supported"


def exponential_eigenvalues(dim, degrees, kappa):
    """Return eigenvalues of exp(kappa (s - 1)), `[..., degrees]`, by Poisson's formula."""
    kappa = np.asarray(kappa)[..., None]
    log_scale = math.lgamma(dim / 2) + (dim / 2 - 1) * np.log(2 / kappa)
    return np.exp(log_scale) * special.ive(np.arange(degrees) + dim / 2 - 1, kappa)


def sphere_energy(density, kernel):
    """Return the energy of a density of the height on the sphere in R^3, by quadrature."""
    heights, weights = np.polynomial.legendre.leggauss(40)
    masses, radii = weights / 2 * density(heights), np.sqrt(1 - heights**2)
    turns = np.cos(2 * np.pi * np.arange(128) / 128)
    cosines = np.multiply.outer(np.outer(radii, radii), turns)
    cosines += np.outer(heights, heights)[..., None]
    return masses @ kernel(cosines).mean(axis=2) @ masses


def test_eigenvalues_are_those_of_closed_forms():
    """All positive for the Gaussian kernel; log(1 + e^x) is an alternating sum of exponentials."""
    terms = np.arange(1.0, 400.0)
    for dim in (2, 3, 8, 128):
        gaussian = harmonics.eigenvalues(potentials.potential, dim, 7)
        assert gaussian == pytest.approx(exponential_eigenvalues(dim, 7, 4.0), rel=1e-6)
        assert harmonics.first_negative(potentials.potential, dim) is None
        assert potentials.exact_eigenvalues(dim, 9) == pytest.approx(
            exponential_eigenvalues(dim, 9, 4.0), rel=1e-12
        )
        for tau, first in ((1.0, 4), (0.5, 5), (0.1, {2: 9, 3: 9, 8: 10, 128: 15}[dim])):
            degree, size = harmonics.first_negative(theorem2.kernel(tau), dim)
            of_terms = exponential_eigenvalues(dim, first + 1, terms / tau)
            sums = np.cumsum(of_terms * (-((-1) ** terms) / terms)[:, None], axis=0)
            for _ in range(6):  # the limit is between consecutive partial sums
                sums = (sums[1:] + sums[:-1]) / 2
            assert degree == first and (sums[-1][:first] > 0).all()
            assert size == pytest.approx(sums[-1][first] / sums[-1][0], rel=1e-6)


def test_a_negative_eigenvalue_is_a_density_of_lower_loss():
    kernel = theorem2.kernel(1.0)
    fourth = np.polynomial.legendre.Legendre.basis(4)
    uniform = sphere_energy(lambda z: np.ones_like(z), kernel)
    values = harmonics.eigenvalues(kernel, 3, 5)
    assert uniform == pytest.approx(values[0], rel=1e-12)
    gain = sphere_energy(lambda z: 1 + 2 * fourth(z), kernel) - uniform  # positive: P_4 >= -3/7
    assert gain == pytest.approx(4 / 9 * values[4], rel=1e-6) and gain < -1e-6
    third = np.polynomial.legendre.Legendre.basis(3)
    assert sphere_energy(lambda z: 1 + third(z), kernel) > uniform + 1e-5
    # No polygon gains more than the bound.
    for tau in (0.1, 0.5, 1.0):
        least = min(theorem2.polygon_loss(n, tau) for n in range(1, 40))
        gained = 1 - least / theorem2.uniform_loss_value(2, tau)
        bound = harmonics.largest_decrease(theorem2.kernel(tau), 2)
        assert 0 < gained < bound < 3.5 * gained


def test_potentials_of_measures():
    """Potentials by quadrature, and known minimizers."""
    kappa = 3.0
    density = lambda z: kappa / np.sinh(kappa) * np.exp(kappa * z)  # noqa: E731
    exact = sphere_energy(density, potentials.potential)
    assert potentials.vmf_potential(3, kappa) == pytest.approx(exact, rel=1e-9)
    # A mass of 0.3 at a point: pairs of it, and all others, of which one at least is uniform.
    others = 0.7**2 + 2 * 0.3 * 0.7
    mixed = others * potentials.uniform_potential(3) + 0.3**2
    assert proposition3.mixture_potential(3, 0.3) == pytest.approx(mixed, rel=1e-12)
    for dim, n in ((2, 4), (3, 6)):
        start = np.random.default_rng(0).standard_normal((n, dim))
        points = proposition2.minimized(start)
        cosines = np.sort(points @ points.T, axis=1)
        expected = np.sort(proposition2.known_cosines(dim, n))
        np.testing.assert_allclose(cosines, np.tile(expected, (n, 1)), atol=1e-5)


def test_distance_to_uniform(rng):
    # Antipodal points: E|u - v| less half of 2. Many random points: its mean square is E|u - v|/n.
    for dim, mean in ((2, 4 / np.pi), (3, 4 / 3)):
        two = np.array([[1.0, -1.0], [-1.0, 1.0]])
        assert proposition2.distance(two, dim) == pytest.approx(math.sqrt(mean - 1))
        squares = []
        for _ in range(300):
            x = rng.standard_normal((20, dim))
            x /= np.linalg.norm(x, axis=1, keepdims=True)
            squares.append(proposition2.distance(x @ x.T, dim) ** 2)
        assert np.mean(squares) == pytest.approx(mean / 20, rel=0.15)


def features(rng, classes=3, per_class=4):
    """Return views of images around the center of each class, and labels."""
    labels = np.tile(np.arange(classes), per_class)
    n = len(labels)
    images = rng.normal(size=(classes, 6))[labels] + 0.3 * rng.normal(size=(n, 6))
    views = images + 0.5 * rng.normal(size=(bounds.VIEWS + 1, n, 6))
    return (views / np.linalg.norm(views, axis=2, keepdims=True)).astype(np.float32), labels


@pytest.fixture
def encoder(monkeypatch, rng):
    """Features of one encoder, in place of its checkpoint; the anchors are the view before last."""
    views, labels = features(rng)
    stacked = np.concatenate([views[1:], views[:1], views[:1]])
    monkeypatch.setattr(bounds, "view_features", lambda *of: (stacked, labels))
    row = {"status": "done", "folder": "f", "kind": "balanced_contrastive"}
    return views, labels, row | {"alpha": 4, "lam": 2}


def test_theorem_4_4_on_features(encoder):
    views, _, row = encoder
    (found,) = theorem4_4.analyze([row])
    left, right, allowed = map(np.asarray, theory.attracting_bound(views[0], views[1:]))
    assert found["effect"] == pytest.approx((right - left).mean(), abs=1e-5)
    assert found["verdict"] == "supported" and found["assumption_percent"] == 100 * allowed.mean()


def test_theorem_4_6_on_features_and_at_its_counterexample(encoder):
    views, labels, row = encoder
    example, found = theorem4_6.analyze([row])
    bound = theory.repelling_bound(views[0], labels, views[1:], labels, 4.0, 3)
    assert found["effect"] == pytest.approx(float((bound[1] - bound[0]).mean()), abs=1e-5)
    assert found["verdict"] == "supported" and example["verdict"] == "not supported"
    # By hand: nu = b belongs to the class at two angles, and the nearest class is at one of them.
    (anchor, _, (images,), counts), alpha = theorem4_6.counterexample()
    assert (images[0] == anchor[0]).all()
    assert (np.bincount(counts) == theorem4_6.MEMBERS).all()
    b = math.cos(math.radians(180 - theorem4_6.DEGREES))
    n = theorem4_6.MEMBERS
    own = (math.exp(alpha) + (n - 1) * math.exp(-alpha)) / n
    right = math.log(own + 2 * math.exp(-alpha * b)) / alpha / b
    assert right + 0.05 < -b
    assert [example["left"], example["right"]] == pytest.approx([-b, right], abs=1e-3)


def test_closed_form_items_are_supported():
    for item in (proposition1, figure10, figure11):
        assert {row["verdict"] for row in item.analyze()} == {"supported"}
    table = proposition2.analyze(numbers=(4, 6, 12))
    assert {row["verdict"] for row in table} == {"supported"} and len(table) == 12
