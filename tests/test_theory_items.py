"""Figures 4, 10, 11 and Theorems 1, 2 of Wang & Isola: closed forms by other means, and slopes."""

import itertools
import math

import matplotlib.image
import numpy as np
import pytest
from conftest import sphere
from scipy import integrate, special

from experiments.wang_isola import many_negatives, single_negative
from experiments.wang_isola import theory as items
from hypersphere_jax import plots
from hypersphere_jax.theory import contrastive_limit, uniformity_optimum

GRID = 2 * np.pi * np.arange(1440) / 1440


def softplus_of(cosines, tau, positive=1.0):
    """The loss with one negative from the paper's Eq. (1), as a quotient of exponentials."""
    top = np.exp(positive / tau)
    return -np.log(top / (top + np.exp(np.asarray(cosines) / tau)))


def energy(density, loss):
    """The double integral of a loss of two angles under a density on the circle, by a grid."""
    masses = density / density.sum()
    return masses @ loss(np.cos(GRID[:, None] - GRID)) @ masses


def assert_is_shown(shown, folder):
    assert all(len(row) == len(shown.columns) for row in shown.rows) and shown.rows
    ((path, caption),) = shown.figures
    assert path == folder / "figure.png" and caption
    assert matplotlib.image.imread(path)[..., :3].min() < 0.5
    assert all(text.endswith(".") and "nan" not in text for text in shown.text)


def assert_is_labelled(figure):
    for axes in figure.axes:
        assert axes.get_xlabel()
    assert any(axes.get_ylabel() for axes in figure.axes)


# Figure 4.


def named(name):
    (kind,) = (kind for kind in items.DISTRIBUTIONS if kind.name == name)
    return kind


def von_mises(kappa, centre=0.0):
    return np.exp(kappa * np.cos(GRID - centre)) / np.i0(kappa)


@pytest.mark.parametrize(
    "name, density",
    [
        ("uniform", np.ones(1440)),
        ("vMF, κ = 1", von_mises(1)),
        ("vMF, κ = 100", von_mises(100)),
        ("two vMF, κ = 10", von_mises(10) + von_mises(10, np.pi)),
        ("three vMF, κ = 10", sum(von_mises(10, k * 2 * np.pi / 3) for k in range(3))),
        ("uniform on a half circle", (np.cos(GRID) > 1e-9) + (abs(np.cos(GRID)) < 1e-9) / 2),
    ],
)
def test_expected_potential_is_the_double_integral(name, density, rng):
    kind = named(name)
    potential = energy(density, lambda cosines: np.exp(-2 * (2 - 2 * cosines)))
    assert items.expected_potential(kind.moment) == pytest.approx(potential, rel=2e-6)
    # The samples are of that distribution: their characteristic function has its moments.
    angles, k = kind.sample(rng, 20_000), np.arange(1, 7)
    moments = np.abs(np.exp(1j * k * angles[:, None]).mean(axis=0))
    np.testing.assert_allclose(moments, kind.moment(k), atol=0.03)


def test_expected_potential_at_the_ends():
    uniform, one_point = named("uniform"), named("one point")
    for t in (0.5, 2.0, 10.0):
        least = math.exp(uniformity_optimum(2, t))
        assert items.expected_potential(uniform.moment, t) == pytest.approx(least, rel=1e-12)
        assert items.expected_potential(one_point.moment, t) == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize("name", ["vMF, κ = 1", "uniform"])
def test_potential_error_is_the_scatter_over_samples(name, rng):
    kind, potentials, errors = named(name), [], []
    for _ in range(150):
        angles = kind.sample(rng, 200)
        pairs = np.exp(-4 + 4 * np.cos(angles[:, None] - angles))
        potentials.append((pairs.sum() - 200) / (200 * 199))
        errors.append(items.potential_error(items._unit(angles)))
    # Cut off at zero, the error of uniform points comes out somewhat too large.
    assert 0.85 < np.mean(errors) / np.std(potentials) < 1.4


def test_figure4(tmp_path, rng):
    encoder = sphere(rng, 400, 2)
    shown = items.figure4(tmp_path, 3, [("an encoder", encoder)], points=400)
    assert_is_shown(shown, tmp_path)
    pairs = np.exp(-4 + 4 * encoder.astype(float) @ encoder.T)
    name, uniform, measured, _, exact, difference = shown.rows[-1]
    assert name == "an encoder" and exact is difference is None
    assert measured == pytest.approx((pairs.sum() - np.trace(pairs)) / (400 * 399), rel=1e-5)
    assert uniform == pytest.approx(math.log(measured))
    for _, _, measured, error, exact, difference in shown.rows[:-1]:
        assert difference == measured - exact
        assert abs(difference) < 4 * error + 1e-5
    exacts = [row[4] for row in shown.rows[:-1]]
    assert exacts == sorted(exacts)
    with pytest.raises(ValueError, match=r"wide: features must be \[n, 2\], got \(3, 5\)"):
        panel = {"name": "wide", "features": np.zeros((3, 5)), "potential": 1.0}
        plots.potential_sheet([panel])
    with pytest.raises(ValueError, match="at least one panel"):
        plots.potential_sheet([])


def test_potential_sheet_is_inside_the_picture(rng):
    angles = [rng.vonmises(0, kappa, 50) for kappa in (0.1, 1, 10, 100, 1000)]
    panels = [
        {"name": f"an encoder numbered {i}", "features": items._unit(a), "potential": i / 10}
        for i, a in enumerate(angles)
    ]
    figure = plots.potential_sheet(panels)
    assert_is_labelled(figure)
    figure.draw_without_rendering()
    assert len(figure.axes) == 10
    for axes in figure.axes:
        box = axes.get_tightbbox()
        assert box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y0 >= 0
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert titles[3] == "an encoder numbered 3\nmean $G_{2}$ potential 0.3000"


# Figures 10 and 11.


def test_figure10(tmp_path):
    shown = items.figure10(tmp_path)
    assert_is_shown(shown, tmp_path)
    for z, alpha, scipy, ours, difference, above, _ in shown.rows:
        terms = [1.0]
        for k in range(200):
            terms.append(terms[-1] * z / ((alpha + k) * (k + 1)))
        assert ours == pytest.approx(math.fsum(terms), rel=1e-11)
        assert scipy == pytest.approx(ours, rel=1e-11)
        assert above == ours - 1 and abs(difference) < 1e-11 * ours
    assert "The curves all fall" in shown.text[-1]


def test_figure11(tmp_path):
    shown = items.figure11(tmp_path)
    assert_is_shown(shown, tmp_path)
    for t, m, printed, ours, _, limit, above in shown.rows:
        if m <= 128:  # Corollary 1 from its integral, as the proof begins
            angles = (np.arange(20_000) + 0.5) * np.pi / 20_000
            weights = np.sin(angles) ** (m - 2)
            mean = (np.exp(-2 * t * (1 - np.cos(angles))) * weights).sum() / weights.sum()
            assert ours == pytest.approx(math.log(mean), abs=1e-9)
        assert ours == pytest.approx(printed, abs=1e-10)
        assert limit == -2 * t and above == ours - limit > 0
    assert "strictly decrease" in shown.text[-1]


def test_curves_show_what_they_are_given():
    at = np.array([2.0, 4.0, 8.0])
    for function, key in ((plots.hypergeometric_curves, "z"), (plots.optimum_curves, "t")):
        figure = function(at, {1.0: at + 1, 3.0: at + 3})
        assert_is_labelled(figure)
        drawn = [line for line in figure.axes[0].lines if line.get_label().startswith(key)]
        assert [line.get_label() for line in drawn] == [f"{key} = 1", f"{key} = 3"]
        np.testing.assert_array_equal(drawn[1].get_xydata(), np.stack((at, at + 3), axis=1))
    dashed = [line for line in figure.axes[0].lines if line.get_linestyle() == "--"]
    assert [line.get_ydata()[0] for line in dashed if len(line.get_ydata())] == [-2, -6]


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
    limits = [drawn.limit[rows.index(i), 0] for i in range(7)]
    np.testing.assert_allclose(np.mean(limits), contrastive_limit(x, y, tau), rtol=1e-5)
    assert all((negative == x).all(axis=1).any() for negative in drawn.negatives[0])
    # M = 2, over all queries and draws of negatives: exact moments of each draw's mean.
    kernel = (
        np.exp(x.astype(float) @ x.T / tau) / drawn.mean[[rows.index(i) for i in range(7)]][:, None]
    )
    pairs = [
        (kernel[i, a] + kernel[i, b]) / 2 - 1 for i, a, b in itertools.product(range(7), repeat=3)
    ]
    assert np.mean(pairs) == pytest.approx(0, abs=1e-12)
    assert features.rms_constant / math.sqrt(2) == pytest.approx(np.std(pairs))


def test_digits_are_seen_by_a_linear_encoder():
    x, y = many_negatives.digit_pairs(0)
    assert x.shape == y.shape == (50, 8)
    for part in (x, y):
        np.testing.assert_allclose(np.linalg.norm(part, axis=1), 1, rtol=1e-6)
    # Two views of one image are nearer than two images, and no two images are alike.
    aligned, others = (x * y).sum(axis=1).mean(), (x @ y.T).mean()
    assert 0.99 > aligned > others + 0.05
    assert ((x @ x.T) > 0.999).sum() == 50


def test_power_law(rng):
    sizes = [16, 64, 256, 1024]
    for slope in (-0.5, -1.0):
        found, error = many_negatives.power_law(
            sizes, -3 * np.array(sizes) ** slope, np.ones(4) * 1e-3
        )
        assert found == pytest.approx(slope, abs=1e-12) and 0 < error < 0.2
    # Its error is the scatter over noise of the size that it was told.
    found, told = [], []
    for _ in range(400):
        errors = 0.03 * np.array(sizes) ** -0.5
        values = np.array(sizes) ** -0.5 + errors * rng.normal(size=4)
        slope, error = many_negatives.power_law(sizes, values, errors)
        found.append(slope)
        told.append(error)
    assert np.mean(found) == pytest.approx(-0.5, abs=3e-3)
    assert np.std(found) <= np.mean(told) <= 1.6 * np.std(found)


@pytest.fixture(scope="module")
def theorem1(tmp_path_factory):
    folder = tmp_path_factory.mktemp("theorem1")
    shown = many_negatives.theorem1(folder, 1, sizes=(256, 4096), draws=512, negatives=2**20)
    return shown, folder


def test_theorem1_slopes(theorem1):
    shown, folder = theorem1
    assert_is_shown(shown, folder)
    assert len(shown.rows) == 6
    for _, kind, slope, error, expected, value, value_error, first_order in shown.rows:
        assert expected == (-0.5 if kind.startswith("one draw") else -1.0)
        assert abs(slope - expected) < 0.1
        assert error < 0.06
        assert abs(value - first_order) < 4 * value_error + 0.02 * abs(first_order)


def test_theorem1_is_a_function_of_the_seed():
    kind = many_negatives.uniform_features()
    runs = [many_negatives.deviations(kind, [16], 64, 2**12, seed) for seed in (1, 1, 2)]
    assert runs[0][0].rms == runs[1][0].rms != runs[2][0].rms


def test_expectation_is_exact_at_few_negatives(rng):
    # Two points at a right angle and M = 4: the expected loss is a sum over binomial counts.
    x, tau, m = np.eye(2, dtype=np.float32), 0.5, 4
    top = math.exp(1 / tau)
    loss = sum(
        math.comb(m, k) / 2**m * -math.log(top / (top + k * top + m - k)) for k in range(m + 1)
    )
    exact = loss - math.log(m) - (math.log((top + 1) / 2) - 1 / tau)
    (found,) = many_negatives.deviations(
        many_negatives.population("two", x, x, tau), [m], 4096, 2**20, 0, tau
    )
    assert abs(found.bias[0] - exact) < 4 * found.bias_error[0] < 0.1 * exact


def test_limit_deviations_figure():
    item = {
        **{"name": "features", "sizes": [16, 64], "rms": [0.2, 0.1], "rms_error": [0.01, 0.01]},
        **{"bias": [-0.04, -0.01], "bias_error": [0.001, 0.001]},
        **{"rms_constant": 0.8, "bias_constant": -0.64},
    }
    figure = plots.limit_deviations([item])
    assert_is_labelled(figure)
    for axes, values in zip(figure.axes, ([0.2, 0.1], [0.04, 0.01]), strict=True):
        dots, dashed = axes.lines[0], [line for line in axes.lines if line.get_linestyle() == "--"]
        np.testing.assert_allclose(dots.get_ydata(), values)
        np.testing.assert_allclose(dashed[0].get_ydata(), values)
        assert len(axes.get_legend().get_texts()) == 2


# Theorem 2.


@pytest.mark.parametrize("tau", [0.1, 0.5, 1.0])
def test_uniform_single_is_an_integral(tau):
    for positive in (1.0, 0.3):
        circle = softplus_of(np.cos(GRID), tau, positive).mean()
        found = single_negative.uniform_single(2, tau, positive)
        assert found == pytest.approx(circle, rel=1e-9)
    # In three dimensions the cosine is uniform, and the integral a dilogarithm.
    sphere_value = tau / 2 * (special.spence(1 + math.exp(-2 / tau)) + np.pi**2 / 12)
    assert single_negative.uniform_single(3, tau) == pytest.approx(sphere_value, rel=1e-7)


@pytest.mark.parametrize("tau", [0.1, 1.0])
def test_von_mises_single_is_the_double_integral(tau):
    for kappa in (0.3, 5.0, 60.0):
        exact = energy(von_mises(kappa), lambda cosines: softplus_of(cosines, tau))
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


def test_the_derivative_in_the_proof_is_not_completely_monotone():
    # h(s) = 1 / (1 + e^s) is -2 tau f'(2 tau s): by central differences, h''' > 0 near 0.
    step = 1e-2
    h = [1 / (1 + math.exp(s)) for s in np.array([-2, -1, 1, 2]) * step + 0.1]
    assert (h[3] - 2 * h[2] + 2 * h[1] - h[0]) / (2 * step**3) > 0.1


@pytest.fixture(scope="module")
def theorem2(tmp_path_factory):
    folder = tmp_path_factory.mktemp("theorem2")
    return single_negative.theorem2(folder, 1), folder


def test_theorem2_rows(theorem2):
    shown, folder = theorem2
    assert_is_shown(shown, folder)
    for tau, dim, name, loss, exact, above in shown.rows:
        assert loss == pytest.approx(exact, rel=1e-3), name
        if "points" in name and "free" not in name:
            size = int(name.split()[1])
            points = np.exp(2j * np.pi * np.arange(size) / size)
            cosines = (points * points[:1].conj()).real
            if dim > 2:
                cosines = np.array([1.0, -1.0] + [0.0] * (size - 2))
            assert exact == pytest.approx(softplus_of(cosines, tau).mean(), rel=1e-9)
        elif name != "aligned, uniform" and "free" not in name:
            assert above > 1e-3  # what the theorem says
    by_name = {tuple(row[:3]): row[5] for row in shown.rows}
    for place in ((0.5, 2, "5"), (0.1, 2, "10"), (1.0, 2, "4")):
        assert by_name[(*place[:2], f"aligned, {place[2]} equally spaced points")] < -1e-4
    assert by_name[(1.0, 3, "aligned, 6 points ±e_i")] < -1e-4


def test_free_points_gather_at_a_pentagon(theorem2):
    tau, _, name, loss, exact, above = theorem2[0].rows[-1]
    pentagon = single_negative.spaced_single(5, 0.5)
    assert tau == 0.5 and "free" in name
    assert exact == pytest.approx(pentagon, abs=1e-5) and loss == pytest.approx(exact, abs=1e-5)
    assert above == exact - single_negative.uniform_single(2, 0.5) < -4e-4


def test_single_negative_figure():
    curve = np.arange(1, 4), np.array([0.1, 0.0, -1e-3])
    descent = {"tau": 0.5, "steps": np.arange(3), "above": np.zeros((2, 3)), "least": -1e-3}
    figure = plots.single_negative_sheet({0.5: curve}, {0.5: curve}, {0.5: curve}, descent)
    assert_is_labelled(figure)
    assert len(figure.axes) == 4
    np.testing.assert_array_equal(figure.axes[2].lines[0].get_xydata(), np.stack(curve, axis=1))
