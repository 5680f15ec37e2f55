"""Figures of the experiments: densities, planes of encoders, and heat maps."""

import numpy as np
import pytest

from experiments.inference import Estimate
from experiments.plots import circle, comparisons, planes

CIRCLE = np.linspace(-np.pi, np.pi, 20_000, endpoint=False)
NAN = float("nan")


def ys(axes):
    return [list(line.get_ydata()) for line in axes.lines]


def test_densities_are_loops_over_points(rng):
    angles, grid = rng.uniform(-np.pi, np.pi, 30), np.linspace(-4, 4, 7)
    for kappa in (0.3, 4.0, 100.0):
        kernels = np.exp(kappa * np.cos(grid[:, None] - angles)) / (2 * np.pi * np.i0(kappa))
        density = circle.vmf_kde(angles, grid, kappa)
        np.testing.assert_allclose(density, kernels.mean(axis=1), rtol=1e-10)
        assert circle.vmf_kde(angles, CIRCLE, kappa).mean() * 2 * np.pi == pytest.approx(
            1, rel=1e-9
        )
    # At large kappa a Gaussian in the angle, where exp(kappa) has long overflowed.
    gaussian = np.sqrt(1e8 / (2 * np.pi)) * np.exp(-1e8 * 2e-4**2 / 2)
    assert circle.vmf_kde(np.zeros(1), np.array([2e-4]), 1e8) == pytest.approx(gaussian, rel=1e-6)
    points, grid, width = rng.normal(size=(20, 2)), np.linspace(-2, 2, 5), 0.4
    kernels = [
        [np.exp(-((points - [x, y]) ** 2).sum(1) / 2 / width**2) for x in grid] for y in grid
    ]
    expected = np.mean(kernels, axis=-1) / (2 * np.pi * width**2)
    np.testing.assert_allclose(circle.gaussian_kde_2d(points, grid, width), expected)


def test_a_sweep_shows_its_encoders():
    names = ("align", "uniform", "output_linear", "output_linear_low", "output_linear_high", "step")
    numbers = ((0.1, -3.0, 90.0, 88.0, 93.0, 5), (0.5, -1.0, 40.0, 38.0, 43.0, 5))
    rows = [dict(zip(names, of, strict=True)) for of in numbers]
    rows[0]["name"] = "good"
    for lower_is_better, best in ((False, [0.1, -3.0]), (True, [0.5, -1.0])):  # drawn last, in blue
        figure = planes.metric_planes(
            {"a": rows}, None, "output_linear", "score", lower_is_better, optimum=-3.87
        )
        dots = figure.axes[0].collections[0]
        figure.draw_without_rendering()
        red, _, blue, _ = dots.get_facecolor()[-1]
        assert dots.get_offsets()[-1].tolist() == best and blue > red
        assert ys(figure.axes[0])[0] == [-3.87, -3.87]
        assert {text.get_text(): text.xy for text in figure.axes[0].texts}["good"] == (0.1, -3.0)


def test_planes_of_encoders_are_coloured_by_rank(rng):
    """A marker a family, the best on top and in blue; bars over seeds; curves with intervals."""
    kinds = ["contrastive", "align+uniform", "contrastive+align", "contrastive"]
    metrics = np.repeat(rng.random((2, 4, 1)), 3, axis=2)
    metrics[0, 3, 1:] = 0.2, 0.9  # the seeds of the last
    scores = {"logistic regression": np.array([99.0, 98.0, 99.5, 10.0]), "5-NN": np.arange(4.0)}
    of = [Estimate(value, value - 0.1, value + 0.1, 0.5) for value in (-0.2, -0.6, -0.4)]
    curves = {"all": dict.fromkeys(scores, of), "better half": dict.fromkeys(scores, of[::-1])}
    plane = planes.Plane(kinds, *metrics, scores, curves)
    for lower_is_better, ranks in ((False, [2, 1, 3, 0]), (True, [1, 2, 0, 3])):
        shares = np.array([0, 0.5, 1])
        figure = planes.encoder_planes({"digits": plane}, None, shares, lower_is_better)
        first, _, curve, key, *_ = figure.axes
        families = [dots for dots in first.collections if dots.get_array() is not None]
        found = {}
        for dots in families:
            for spot, colour in zip(dots.get_offsets().tolist(), dots.get_array(), strict=True):
                found[tuple(spot)] = round(3 * colour)
        assert found == dict(zip(map(tuple, metrics[:, :, 0].T.tolist()), ranks, strict=True))
        contrastive = families[0].get_array()
        assert len(contrastive) == 2 and contrastive[0] < contrastive[1]
    assert [-0.2, -0.6, -0.4] in ys(curve) and [-0.4, -0.6, -0.2] in ys(curve)
    assert {text.get_text() for text in key.get_legend().get_texts()} > {*planes.MARKERS}


def test_good_encoders_have_colours_of_their_own():
    """Beside those that learned nothing; and a colour bar has numbers wherever the scores are."""
    scores = {(1, x): score for x, score in enumerate((10, 20, 97, 99), 1)}
    grid = comparisons.grid_of(scores, [1], [1, 2, 3, 4])
    figure = comparisons.heat_maps({"t": grid}, None, row="r", column="c", score="s")
    scale = figure.axes[0].images[0].norm
    assert scale(99) == 1 and scale(10) == 0 and scale(97) < 0.9 and scale(20) < 0.1
    for low, high in ((71, 79), (91, 94.5), (98, 99.6)):
        grid = comparisons.grid_of({(1, 1): low, (1, 2): high}, [1], [1, 2])
        bar = comparisons.heat_maps({"t": grid}, None, row="r", column="c", score="s").axes[-1]
        shown = [tick for tick in bar.get_yticks() if bar.get_ylim()[0] <= tick <= high]
        assert len(shown) >= 2


def test_heat_maps_have_numbers_a_ridge_and_the_best_framed():
    scores = np.array([[1.0, 2.0], [NAN, 9.0]])
    grid = comparisons.Grid((0.1, 1.0), (0.01, 0.1), scores, [(0.01, 0.1), (1.0, 1.0)])
    names = {"row": "tau", "column": "lambda", "score": "%", "ridge": "r"}
    axes = comparisons.heat_maps({"t": grid}, None, **names).axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("lambda", "tau")
    cells = {text.get_position(): text.get_text() for text in axes.texts}
    assert cells == {(0, 0): "1.0", (1, 0): "2.0", (1, 1): "9.0"}
    assert axes.patches[0].get_xy() == (0.5, 0.5)
    np.testing.assert_allclose(axes.lines[0].get_xydata(), [[0, 0], [2, 1]])  # a decade beyond
