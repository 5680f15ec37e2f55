"""The theorems and Figures 4, 10, 11: closed forms by other means, slopes, and what is compared."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from item_rows import done
from points import sphere
from scipy import integrate, special

from experiments.balanced import theorems
from experiments.wang_isola import many_negatives, single_negative
from experiments.wang_isola import theory as items
from hypersphere_jax import bounds, data, plots, runs, sharding
from hypersphere_jax.config import DataConfig, ObjectiveConfig, UserError
from hypersphere_jax.theory import contrastive_limit, uniformity_optimum

GRID = 2 * np.pi * np.arange(1440) / 1440


@pytest.fixture
def drawn(monkeypatch):
    """What is given to each drawing; nothing is drawn."""
    found = {}
    for name in (
        *("potential_sheet", "hypergeometric_curves", "optimum_curves"),
        *("limit_deviations", "single_negative_sheet", "bound_sheet"),
    ):
        keep = lambda *given, name=name, **_: found.update({name: given})  # noqa: E731
        monkeypatch.setattr(plots, name, keep)
    return found


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


def well_formed(shown):
    assert all(len(row) == len(shown.columns) for row in shown.rows) and shown.rows
    assert not any("nan" in text for text in (*shown.text, shown.verdict))


# Figures 4, 10 and 11.


def test_expected_potentials(rng):
    """A double integral each; samples have its moments; the error is the scatter over samples."""
    kinds = {kind.name: kind for kind in items.DISTRIBUTIONS}
    for name, density in (
        ("uniform", np.ones(1440)),
        ("vMF, κ = 1", von_mises(1)),
        ("vMF, κ = 10", von_mises(10)),
        ("vMF, κ = 100", von_mises(100)),
        ("two vMF, κ = 10", von_mises(10) + von_mises(10, np.pi)),
        ("three vMF, κ = 10", sum(von_mises(10, k * 2 * np.pi / 3) for k in range(3))),
        ("uniform on a half circle", (np.cos(GRID) > 1e-9) + (abs(np.cos(GRID)) < 1e-9) / 2),
    ):
        kind = kinds.pop(name)
        potential = energy(density, lambda cosines: np.exp(-2 * (2 - 2 * cosines)))
        assert items.expected_potential(kind.moment) == pytest.approx(potential, rel=2e-6), name
        angles, k = kind.sample(rng, 20_000), np.arange(1, 7)
        moments = np.abs(np.exp(1j * k * angles[:, None]).mean(axis=0))
        np.testing.assert_allclose(moments, kind.moment(k), atol=0.03, err_msg=name)
        for t in (0.5, 10.0) if name == "uniform" else ():
            least = math.exp(uniformity_optimum(2, t))
            assert items.expected_potential(kind.moment, t) == pytest.approx(least, rel=1e-12)
        if name in ("uniform", "vMF, κ = 1"):
            potentials, errors = [], []
            for _ in range(100):
                angles = kind.sample(rng, 150)
                pairs = np.exp(-4 + 4 * np.cos(angles[:, None] - angles))
                potentials.append((pairs.sum() - 150) / (150 * 149))
                errors.append(items.potential_error(items._unit(angles)))
            # Cut off at zero, the error of uniform points comes out somewhat too large.
            assert 0.8 < np.mean(errors) / np.std(potentials) < 1.5, name
    assert list(kinds) == ["one point"]
    assert items.expected_potential(kinds["one point"].moment, 0.5) == pytest.approx(1)


def test_figure4(tmp_path, rng, drawn):
    encoder = sphere(rng, 400, 2)
    shown = items.figure4(tmp_path, 3, [("an encoder", encoder)], points=400)
    well_formed(shown)
    pairs = np.exp(-4 + 4 * encoder.astype(float) @ encoder.T)
    name, uniform, measured, _, exact, difference = shown.rows[-1]
    assert name == "an encoder" and exact is difference is None
    assert measured == pytest.approx((pairs.sum() - np.trace(pairs)) / (400 * 399), rel=1e-5)
    assert uniform == pytest.approx(math.log(measured))
    for _, _, measured, error, exact, difference in shown.rows[:-1]:
        assert difference == measured - exact and abs(difference) < 4 * error + 1e-5
    exacts = [row[4] for row in shown.rows[:-1]]
    assert exacts == sorted(exacts)
    panels = drawn["potential_sheet"][0]
    assert [panel["potential"] for panel in panels] == [row[2] for row in shown.rows]


def test_figures_10_and_11(tmp_path, drawn):
    for figure in (items.figure10(tmp_path), items.figure11(tmp_path)):
        well_formed(figure)
        for setting, second, scipy, ours, difference, *rest in figure.rows:
            assert ours == pytest.approx(scipy, rel=1e-10) and abs(difference) < 1e-10 * abs(ours)
            if "z" in figure.columns:  # 0F1(; alpha; z), above 1 by about z / alpha
                terms = [1.0]
                for k in range(200):
                    terms.append(terms[-1] * setting / ((second + k) * (k + 1)))
                assert ours == pytest.approx(math.fsum(terms), rel=1e-11)
                assert rest == [ours - 1, setting / second]
            else:  # the optimum at t in m dimensions, and its limit
                assert ours == uniformity_optimum(second, setting)
                assert rest == [-2 * setting, ours + 2 * setting] and rest[1] > 0
    alphas, curves, _ = drawn["hypergeometric_curves"]
    for values in (*curves.values(), *drawn["optimum_curves"][1].values()):
        assert (np.diff(values) < 0).all()
    assert {len(values) for values in curves.values()} == {len(alphas)}


# Theorem 1.


def test_uniform_features_have_their_constants(rng):
    tau, dim = 0.4, 6
    features = many_negatives.uniform_features(tau, dim, angle=50.0)
    drawn = features.draw(rng, 40, 9)
    cosines = np.einsum("nd,nkd->nk", drawn.queries, drawn.keys)
    np.testing.assert_allclose(cosines, [[1, math.cos(math.radians(50))]] * 40, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(drawn.negatives, axis=2), 1, rtol=1e-5)
    assert drawn.negatives.shape == (40, 9, dim)

    def mean(function):
        def weight(c):
            return (1 - c * c) ** ((dim - 3) / 2)

        total = integrate.quad(lambda c: function(math.exp(c / tau)) * weight(c), -1, 1)[0]
        return total / integrate.quad(weight, -1, 1)[0]

    first, second = mean(lambda e: e), mean(lambda e: e * e)
    spread = second / first**2 - 1
    np.testing.assert_allclose(drawn.mean, first, rtol=1e-8)
    np.testing.assert_allclose(drawn.limit, math.log(first) - cosines / tau, rtol=1e-5)
    assert features.rms_constant == pytest.approx(math.sqrt(spread), rel=1e-7)
    for cosine, constant in zip(cosines[0], features.bias_constant, strict=True):
        assert constant == pytest.approx(math.exp(cosine / tau) / first - spread / 2, rel=1e-5)


def test_population_is_that_of_contrastive_limit(rng):
    x, y, tau = sphere(rng, 7, 3), sphere(rng, 7, 3), 0.5
    features = many_negatives.population("points", x, y, tau)
    drawn = features.draw(rng, 400, 4)
    rows = [int(np.flatnonzero((x == query).all(axis=1))[0]) for query in drawn.queries]
    assert set(rows) == set(range(7))
    np.testing.assert_array_equal(drawn.keys[:, 0], y[rows])
    assert all((negative == x).all(axis=1).any() for negative in drawn.negatives[0])
    first = [rows.index(i) for i in range(7)]
    np.testing.assert_allclose(np.mean(drawn.limit[first]), contrastive_limit(x, y, tau), rtol=1e-5)
    # M = 2, over all queries and draws of negatives: exact moments of each draw's mean.
    kernel = np.exp(x.astype(float) @ x.T / tau) / drawn.mean[first][:, None]
    triples = itertools.product(range(7), repeat=3)
    pairs = [(kernel[i, a] + kernel[i, b]) / 2 - 1 for i, a, b in triples]
    assert np.mean(pairs) == pytest.approx(0, abs=1e-12)
    assert features.rms_constant / math.sqrt(2) == pytest.approx(np.std(pairs))


def test_digits_are_seen_by_a_linear_encoder():
    x, y = many_negatives.digit_pairs(0)
    assert x.shape == y.shape == (50, 8)
    for part in (x, y):
        np.testing.assert_allclose(np.linalg.norm(part, axis=1), 1, rtol=1e-6)
    # Two views of one image are nearer than two images, and no two images are alike.
    aligned, others = (x * y).sum(axis=1).mean(), (x @ y.T).mean()
    assert 0.99 > aligned > others + 0.05 and ((x @ x.T) > 0.999).sum() == 50


def test_power_law(rng):
    sizes = np.array([16, 64, 256, 1024])
    for slope in (-0.5, -1.0):
        found, error = many_negatives.power_law(sizes, -3.0 * sizes**slope, np.ones(4) * 1e-3)
        assert found == pytest.approx(slope, abs=1e-12) and 0 < error < 0.2
    # Its error is the scatter over noise of the size that it was told.
    errors = 0.03 * sizes**-0.5
    noisy = [sizes**-0.5 + errors * rng.normal(size=4) for _ in range(400)]
    fits = [many_negatives.power_law(sizes, values, errors) for values in noisy]
    found, told = np.array(fits).T
    assert np.mean(found) == pytest.approx(-0.5, abs=3e-3)
    assert np.std(found) <= np.mean(told) <= 1.6 * np.std(found)


def test_theorem1(tmp_path, drawn):
    shown = many_negatives.theorem1(tmp_path, 1, sizes=(256, 4096), draws=512, negatives=2**20)
    well_formed(shown)
    assert len(shown.rows) == 6 and len(drawn["limit_deviations"][0]) == 3
    for _, kind, slope, error, expected, value, value_error, first_order in shown.rows:
        assert expected == (-0.5 if kind.startswith("one draw") else -1.0)
        assert abs(slope - expected) < 0.1 and error < 0.06
        assert abs(value - first_order) < 4 * value_error + 0.02 * abs(first_order)
    kind = many_negatives.uniform_features()
    runs = [many_negatives.deviations(kind, [16], 64, 2**12, seed) for seed in (1, 1, 2)]
    assert runs[0][0].rms == runs[1][0].rms != runs[2][0].rms


def test_expectation_is_exact_at_few_negatives():
    # Two points at a right angle and M = 4: the expected loss is a sum over binomial counts.
    x, tau, m = np.eye(2, dtype=np.float32), 0.5, 4
    top = math.exp(1 / tau)
    losses = [-math.log(top / (top + k * top + m - k)) for k in range(m + 1)]
    loss = sum(math.comb(m, k) / 2**m * value for k, value in enumerate(losses))
    exact = loss - math.log(m) - (math.log((top + 1) / 2) - 1 / tau)
    two = many_negatives.population("two", x, x, tau)
    (found,) = many_negatives.deviations(two, [m], 4096, 2**20, 0, tau)
    assert abs(found.bias[0] - exact) < 4 * found.bias_error[0] < 0.1 * exact


# Theorem 2.


def test_losses_with_one_negative_are_integrals():
    for tau in (0.1, 0.5, 1.0):
        for positive in (1.0, 0.3):
            circle = softplus_of(np.cos(GRID), tau, positive).mean()
            found = single_negative.uniform_single(2, tau, positive)
            assert found == pytest.approx(circle, rel=1e-9)
        # In three dimensions the cosine is uniform, and the integral a dilogarithm.
        in_space = tau / 2 * (special.spence(1 + math.exp(-2 / tau)) + np.pi**2 / 12)
        assert single_negative.uniform_single(3, tau) == pytest.approx(in_space, rel=1e-7)
        for kappa in (0.3, 60.0):
            exact = energy(von_mises(kappa), lambda cosines, tau=tau: softplus_of(cosines, tau))
            assert single_negative.von_mises_single(kappa, tau) == pytest.approx(exact, rel=1e-9)


def test_a_square_is_below_the_constant_of_theorem_2():
    # The whole of it in one line, with nothing of ours: at tau = 1, on the circle.
    square = (math.log(2) + 2 * math.log1p(math.exp(-1)) + math.log1p(math.exp(-2))) / 4
    uniform = integrate.quad(lambda a: math.log1p(math.exp(math.cos(a) - 1)), 0, math.pi)
    assert square < uniform[0] / math.pi - 1e-4 and uniform[1] < 1e-9
    assert single_negative.spaced_single(4, 1.0) == pytest.approx(square, rel=1e-12)
    # A little of the wave with a negative coefficient is enough.
    bent = energy(1 + 0.5 * np.cos(4 * GRID), lambda cosines: softplus_of(cosines, 1.0))
    gain = single_negative.waves(1.0)[4] * 0.25 / 4
    assert gain < 0 and bent == pytest.approx(uniform[0] / math.pi + gain, rel=1e-9)


def test_theorem2(tmp_path, drawn):
    shown = single_negative.theorem2(tmp_path, 1)
    well_formed(shown)
    for tau, dim, name, loss, exact, above in shown.rows:
        assert loss == pytest.approx(exact, rel=1e-3), name
        if "points" in name and "free" not in name:
            size = int(name.split()[1])
            cosines = np.cos(2 * np.pi * np.arange(size) / size)
            cosines = cosines if dim == 2 else np.array([1.0, -1.0] + [0.0] * (size - 2))
            assert exact == pytest.approx(softplus_of(cosines, tau).mean(), rel=1e-9)
        elif name != "aligned, uniform" and "free" not in name:
            assert above > 1e-3  # what the theorem says
    by_name = {tuple(row[:3]): row[5] for row in shown.rows}
    for tau, size in ((0.5, 5), (0.1, 10), (1.0, 4)):
        assert by_name[tau, 2, f"aligned, {size} equally spaced points"] < -1e-4
    assert by_name[1.0, 3, "aligned, 6 points ±e_i"] < -1e-4
    # Free points gather at a pentagon.
    tau, _, name, loss, exact, above = shown.rows[-1]
    pentagon = single_negative.spaced_single(5, 0.5)
    assert tau == 0.5 and "free" in name and loss == pytest.approx(exact, abs=1e-5)
    assert exact == pytest.approx(pentagon, abs=1e-5)
    assert above == exact - single_negative.uniform_single(2, 0.5) < -4e-4
    descent = drawn["single_negative_sheet"][3]
    assert descent["least"] == pytest.approx(pentagon - single_negative.uniform_single(2, 0.5))


# Theorems 4.4 and 4.6 of the balanced paper.


def seen(rng, alpha=4.0, lam=2.0, loss="balanced_contrastive"):
    """Features of 4 images of each of 3 classes, around the centre of each image."""
    labels = np.tile(np.arange(3), 4)
    images = rng.normal(size=(3, 6))[labels] + 0.3 * rng.normal(size=(12, 6))
    views = images + 0.5 * rng.normal(size=(theorems.VIEWS + 1, 12, 6))
    views = (views / np.linalg.norm(views, axis=2, keepdims=True)).astype(np.float32)
    return theorems.Seen("run", loss, alpha, lam, 0, views[0], views[1:], labels, 3)


@pytest.fixture
def show(context, monkeypatch, drawn):
    def shown(item, *encoders):
        monkeypatch.setattr(theorems, "encoders", lambda context, rows: iter(encoders))
        found = theorems.ITEMS[f"balanced/{item}"].show(context, [])
        well_formed(found)
        assert len(drawn["bound_sheet"][1]) == len(encoders)
        return [dict(zip(found.columns, row, strict=True)) for row in found.rows], found

    return shown


def test_both_items_share_their_runs(plan):
    for scale, number in (("laptop", 32), ("paper", 15)):
        planned = [plan(name, scale) for name in theorems.ITEMS]
        assert planned[0] == planned[1] and len({one.config.name for one in planned[0]}) == number
        for one in planned[0]:
            found = theorems.strengths(one.config.objective)
            assert found == (one.about.get("alpha", 2), one.about.get("lam", 1))
    assert theorems.strengths(ObjectiveConfig(loss="nt_xent", loss_tau=0.1)) == (10, 1)
    assert theorems.strengths(ObjectiveConfig(loss="balanced_contrastive")) == (4, 2)


def test_views_of_as_many_images_of_each_class(context, monkeypatch):
    config = SimpleNamespace(
        data=DataConfig("digits"),
        objective=ObjectiveConfig(loss="nt_xent", loss_tau=0.5),
        seed=3,
        runtime=SimpleNamespace(cache_dir="unused"),
    )
    monkeypatch.setattr(runs, "load_encoder", lambda folder: SimpleNamespace(config=config))
    monkeypatch.setattr(sharding, "keep_compiled", lambda folder: None)
    sources = []

    def pair_features(encoder, source, devices, seed):
        sources.append(source)
        values = np.arange(len(source), dtype=np.float32)[:, None]
        return values + 1000 * (2 * seed), values + 1000 * (2 * seed + 1)

    monkeypatch.setattr(theorems, "pair_features", pair_features)
    failed = {"run": "c", "status": "failed"}
    rows = [done(), done() | {"run": "b"}, done()]
    found = list(theorems.encoders(context, [*rows, failed]))
    assert [each.run for each in found] == ["r", "b"]
    one = found[0]
    assert (one.loss, one.alpha, one.lam, one.seed, one.classes) == ("nt_xent", 2, 1, 3, 10)
    least = np.bincount(data.load(config.data).test.labels).min()
    assert np.bincount(one.labels).tolist() == [least] * 10
    np.testing.assert_array_equal(one.labels, sources[0].labels)
    # Every view is another one: 16 for the expectation, and the anchor is none of them.
    assert one.views.shape == (16, 10 * least, 1)
    assert len({*one.views[:, 0, 0].tolist(), one.anchors[0, 0]}) == 17
    assert len(next(theorems.encoders(context._replace(scale="paper"), rows)).labels) == 100
    with pytest.raises(UserError, match="none of the encoders is done"):
        next(theorems.encoders(context, [failed]))


def columns_of(left, right):
    gap = np.asarray(right) - np.asarray(left)
    numbers = {"left": left, "right": right, "mean gap": gap}
    found = {name: float(np.mean(values)) for name, values in numbers.items()}
    return found | {"least gap": float(gap.min()), "largest gap": float(gap.max())}


def test_theorem_4_4(show, rng):
    one = seen(rng)
    (first, _), shown = show("theorem4.4", one, seen(rng, 1.0, loss="generalized_nt_xent"))
    left, right, _ = bounds.attracting_bound(one.anchors, one.views)
    norms = np.linalg.norm(one.views.mean(axis=0), axis=1)
    expected = columns_of(left, right) | {"norm of m": norms.mean(), "holds (%)": 100}
    found = {name: first[name] for name in expected}
    assert found == pytest.approx(expected, abs=1e-5) and first["Assumption 4.3 (%)"] == 100
    assert "100.00% of the 24 anchors" in shown.text[2]
    turned = one.anchors.copy()
    turned[:3] *= -1  # without its assumption
    rows, shown = show("theorem4.4", one._replace(anchors=turned))
    assert rows[0]["holds (%)"] == rows[0]["Assumption 4.3 (%)"] == 75
    assert "100.00% of the 9 anchors" in shown.text[2] and "3 of 12 an" in shown.text[2]
    assert "100.00%" in shown.verdict and "75.00%" in shown.verdict


def test_theorem_4_6(show, rng):
    encoders = [seen(rng, 1.0, 8.0), seen(rng, 4.0, 2.0), seen(rng, 8.0, 1.0)]
    rows, shown = show("theorem4.6", *encoders)
    assert [row["alpha of (10)"] for row in rows] == [1, 4, 8, *theorems.ALPHAS]
    # Over alpha: the paper's best setting.
    assert {(row["alpha"], row["lambda"]) for row in rows[3:]} == {(4, 2)}
    assert rows[5] == rows[1] and rows[4]["right"] != rows[1]["right"]
    one = encoders[1]
    found = bounds.repelling_bound(one.anchors, one.labels, one.views, one.labels, 4.0, 3)
    left, right, _, nu = map(np.asarray, found)
    slack = (math.log(3) / 4 / nu).mean()
    expected = columns_of(left, right) | {"nu": nu.mean(), "log(n) / (nu alpha)": slack}
    expected |= {"holds (%)": 100, "bracket >= 0 (%)": 100}
    assert {name: rows[1][name] for name in expected} == pytest.approx(expected, abs=1e-5)
    assert "100.00% of the 36 anchors of 3 encoder(s)" in shown.text[3]


def test_theorem_4_6_says_where_it_fails(show):
    """The counterexample of the text, as an encoder, beside anchors that it holds for."""
    angles = np.radians([180, 180, 120, 240, 135, 135])
    views = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    anchors = np.where(np.arange(6)[:, None] == 0, np.float32([[1, 0]]), views)
    labels = np.repeat(np.arange(3), 2)
    one = theorems.Seen(*("run", "nt_xent", 4.0, 1.0, 0, anchors, np.stack([views] * 2), labels, 3))
    rows, shown = show("theorem4.6", one)
    assert rows[0]["holds (%)"] == rows[0]["bracket >= 0 (%)"] == pytest.approx(500 / 6)
    assert rows[0]["least gap"] == pytest.approx(-0.774 + 0.707, abs=1e-3)
    assert "alpha 4, lambda 1, seed 0 (1 of 6 anchors)" in shown.text[3]
    right = bounds.repelling_bound(anchors, labels, one.views, labels, 4.0, 3).right
    assert f"1 or more for {100 * np.mean(right >= 1):.2f}%" in shown.verdict
