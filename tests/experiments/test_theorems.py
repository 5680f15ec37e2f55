"""The theorems and Figures 4, 10, 11: closed forms by other means, slopes, and what is compared."""

import math

import numpy as np
import pytest
from scipy import special

from experiments.balanced import theorems
from experiments.wang_isola import many_negatives, single_negative, theory_figures
from hypersphere_jax import theory
from hypersphere_jax.config import ObjectiveConfig

SIDES = ("left", "right", "mean gap")
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
    kinds = theory_figures.DISTRIBUTIONS
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
        assert theory_figures.expected_potential(kind.moment) == pytest.approx(
            potential, rel=2e-6
        ), name
        angles, k = kind.sample(rng, 20_000), np.arange(1, 7)
        moments = np.abs(np.exp(1j * k * angles[:, None]).mean(axis=0))
        np.testing.assert_allclose(moments, kind.moment(k), atol=0.03, err_msg=name)
    assert theory_figures.expected_potential(kinds["one point"].moment, 0.5) == pytest.approx(1)


def test_theorem1(tmp_path, drawn):
    result = many_negatives.theorem1(tmp_path, 1, sizes=(256, 4096), draws=512, negatives=2**20)
    assert len(result.rows) == 6
    for _, kind, slope, error, expected, value, value_error, first_order in result.rows:
        assert expected == (-0.5 if kind.startswith("one draw") else -1.0)
        assert abs(slope - expected) < 0.1 and error < 0.06
        assert abs(value - first_order) < 4 * value_error + 0.02 * abs(first_order)
    kind = many_negatives.uniform_features()
    one, again, other = (many_negatives.deviations(kind, [16], 64, 2**12, n)[0] for n in (1, 1, 2))
    assert one["rms"][0] == again["rms"][0] != other["rms"][0]


def test_expectation_is_exact_at_few_negatives():
    # Two points at a right angle and M = 4: the expected loss is a sum over binomial counts.
    x, m, top = np.eye(2, dtype=np.float32), 4, math.exp(1 / 0.5)
    losses = [-math.log(top / (top + k * top + m - k)) for k in range(m + 1)]
    loss = sum(math.comb(m, k) / 2**m * value for k, value in enumerate(losses))
    exact = loss - math.log(m) - (math.log((top + 1) / 2) - 1 / 0.5)
    two = many_negatives.population("two", x, x)
    (measured,) = many_negatives.deviations(two, [m], 4096, 2**20, 0)
    (bias,), (error,) = measured["bias"]
    assert abs(bias - exact) < 4 * error < 0.1 * exact


def test_losses_with_one_negative_are_integrals():
    for tau in (0.1, 0.5, 1.0):
        for positive in (1.0, 0.3):
            circle = softplus_of(np.cos(GRID), tau, positive).mean()
            loss = single_negative.uniform_single(2, tau, positive)
            assert loss == pytest.approx(circle, rel=1e-9)
        # In three dimensions the cosine is uniform, and the integral a dilogarithm.
        in_space = tau / 2 * (special.spence(1 + math.exp(-2 / tau)) + np.pi**2 / 12)
        assert single_negative.uniform_single(3, tau) == pytest.approx(in_space, rel=1e-7)
        for kappa in (0.3, 60.0):
            exact = energy(von_mises(kappa), lambda cosines, tau=tau: softplus_of(cosines, tau))
            assert single_negative.von_mises_single(kappa, tau) == pytest.approx(exact, rel=1e-9)


@pytest.mark.slow
def test_theorem2(tmp_path, drawn):
    result = single_negative.theorem2(tmp_path, 1)
    for tau, dim, name, loss, exact, above in result.rows:
        assert loss == pytest.approx(exact, rel=1e-3), name
        if "points" in name and "free" not in name:
            size = int(name.split()[1])
            cosines = np.cos(2 * np.pi * np.arange(size) / size)
            cosines = cosines if dim == 2 else np.array([1.0, -1.0] + [0.0] * (size - 2))
            assert exact == pytest.approx(softplus_of(cosines, tau).mean(), rel=1e-9)
        elif name != "aligned, uniform" and "free" not in name:
            assert above > 1e-3  # what the theorem says
    # Free points gather at a pentagon, which is below the constant.
    tau, _, name, loss, exact, above = result.rows[-1]
    pentagon = single_negative.spaced_single(5, 0.5)
    assert (
        tau == 0.5 and "free" in name and [loss, exact] == pytest.approx([pentagon] * 2, abs=1e-5)
    )
    assert above == exact - single_negative.uniform_single(2, 0.5) < -4e-4


def features(rng, alpha=4.0, lam=2.0):
    """Features of 4 images of each of 3 classes, around the centre of each image."""
    labels = np.tile(np.arange(3), 4)
    images = rng.normal(size=(3, 6))[labels] + 0.3 * rng.normal(size=(12, 6))
    views = images + 0.5 * rng.normal(size=(theorems.VIEWS + 1, 12, 6))
    views = (views / np.linalg.norm(views, axis=2, keepdims=True)).astype(np.float32)
    loss = "balanced_contrastive"
    return theorems.EncoderFeatures(loss, alpha, lam, 0, views[0], views[1:], labels, 3)


@pytest.fixture
def show(context, monkeypatch, drawn):
    def result_of(item, *encoders):
        monkeypatch.setattr(theorems, "encoders", lambda context, rows: iter(encoders))
        result = theorems.REPRODUCTIONS[f"balanced/{item}"].result(context, [])
        return [dict(zip(result.columns, row, strict=True)) for row in result.rows], result.text

    return result_of


def columns_of(left, right, **more):
    sides = {"left": left.mean(), "right": right.mean(), "mean gap": (right - left).mean()}
    return pytest.approx({name: float(value) for name, value in (sides | more).items()}, abs=1e-5)


def test_theorem_4_4(show, rng):
    assert theorems.strengths(ObjectiveConfig(loss="nt_xent", loss_tau=0.1)) == (10, 1)
    assert theorems.strengths(ObjectiveConfig(loss="balanced_contrastive")) == (4, 2)
    one = features(rng)
    (row,), _ = show("theorem4.4", one)
    left, right, _ = map(np.asarray, theory.attracting_bound(one.anchors, one.views))
    norm = np.linalg.norm(one.views.mean(axis=0), axis=1).mean()
    expected = {"norm of m": norm, "holds (%)": 100}
    assert {name: row[name] for name in (*SIDES, *expected)} == columns_of(left, right, **expected)
    turned = one.anchors.copy()
    turned[:3] *= -1  # without its assumption
    (row,), text = show("theorem4.4", one._replace(anchors=turned))
    assert row["holds (%)"] == row["Assumption 4.3 (%)"] == 75
    assert "100.00% of the 9 anchors" in text[2] and "3 of 12 an" in text[2]


def test_theorem_4_6(show, rng):
    encoders = [features(rng, 1.0, 8.0), features(rng, 4.0, 2.0), features(rng, 8.0, 1.0)]
    rows, _ = show("theorem4.6", *encoders)
    assert [row["alpha of (10)"] for row in rows] == [1, 4, 8, *theorems.ALPHAS]
    one = encoders[1]
    bound = theory.repelling_bound(one.anchors, one.labels, one.views, one.labels, 4.0, 3)
    left, right, _, nu = map(np.asarray, bound)
    expected = {"nu": nu.mean(), "log(n) / (nu alpha)": (math.log(3) / 4 / nu).mean()}
    expected |= {"holds (%)": 100, "bracket >= 0 (%)": 100}
    means = {name: rows[1][name] for name in (*SIDES, *expected)}
    assert means == columns_of(left, right, **expected)
