"""The one rule for claims, and the predictions that it rests on."""

import numpy as np
import pytest
import scipy

from experiments import inference, predictions
from experiments.inference import Estimate
from experiments.predictions import Predictions
from hypersphere_jax.configs import UserError


def rows_of(right, **others):
    """Rows of encoders that are right so, by all instruments but these."""
    targets = np.zeros(right.shape[1], int)
    scores = {f"output_{key}": right for key in inference.ALL} | others
    made = {name: Predictions(targets, 1 - of.astype(int)) for name, of in scores.items()}
    return [
        {"predictions": {name: of._replace(predicted=of.predicted[i]) for name, of in made.items()}}
        for i in range(len(right))
    ]


def test_a_difference_is_that_of_its_closed_forms(rng):
    a, b = rng.random((5, 300)) < 0.8, rng.random((4, 300)) < 0.7
    # Where all seeds are the same, the paired t-test over samples.
    same = np.tile(a[:1], (3, 1)), np.tile(b[:1], (2, 1))
    expected = scipy.stats.ttest_rel(*(side[0].astype(float) for side in same))
    found, ends = inference.difference(*same), expected.confidence_interval()
    assert found.p == pytest.approx(expected.pvalue)
    assert found[1:3] == pytest.approx([100 * ends.low, 100 * ends.high])
    # Where all samples are the same, Welch's test over seeds.
    flat = np.tile([[1], [1], [0], [1]], 1000), np.tile([[0], [1], [0], [0], [0]], 1000)
    expected = scipy.stats.ttest_ind(*(side[:, 0] for side in flat), equal_var=False)
    assert inference.difference(*flat).p == pytest.approx(expected.pvalue)
    # A single seed, against a level: the interval over samples.
    one, level = inference.difference(a[:1], 0.75), scipy.stats.ttest_1samp(a[0], 0.75)
    assert one.p == pytest.approx(level.pvalue) and one.value == pytest.approx(
        100 * a[0].mean() - 75
    )
    assert inference.difference(b, a).value == pytest.approx(-inference.difference(a, b).value)
    assert inference.difference(np.ones((2, 9)), np.ones((2, 9))) == Estimate(0, 0, 0, 1)
    assert inference.difference(np.ones((2, 9)), np.zeros((2, 9))) == Estimate(100, 100, 100, 0)


def test_weighted_sums_and_paired_seeds(rng):
    """Where all samples are the same, t-tests over seeds: of each seed's sum where these pair."""
    flat = [np.tile(rng.random((k, 1)) < 0.5, 1000).astype(float) for k in (5, 5, 4)]
    for of in flat:
        of[:2] = [[0], [1]]
    flat[1][:4] = flat[0][:4]
    expected = scipy.stats.ttest_rel(flat[0][:, 0], flat[1][:, 0] * 0.5)
    found, ends = (
        inference.contrast(flat[:2], [1, -0.5], paired=True),
        expected.confidence_interval(),
    )
    assert found.p == pytest.approx(expected.pvalue)
    assert found[1:3] == pytest.approx([100 * ends.low, 100 * ends.high])
    expected = scipy.stats.ttest_ind(flat[0][:, 0], flat[2][:, 0] * 0.5 + 0.2, equal_var=False)
    assert inference.contrast(flat[::2], [1, -0.5], 0.2).p == pytest.approx(expected.pvalue)


@pytest.mark.parametrize(("k", "spread"), [(4, 0.4), (3, 2.0)])
def test_intervals_cover_what_they_should(rng, k, spread):
    """Other seeds and other images each time, seeds that dominate among them.

    The truth is inside in 95%, and rather more.
    """
    covered, trials, n = 0, 400, 150
    for _ in range(trials):
        images, sides = rng.normal(size=n), []
        for _ in range(2):
            ability = 1.2 + spread * rng.normal(size=(k, 1))
            sides.append(rng.random((k, n)) < scipy.special.expit(ability + images))
        found = inference.difference(*sides)
        covered += found.low <= 0 <= found.high
    assert 0.94 <= covered / trials <= 0.995


def test_resampling_agrees_with_the_closed_form(rng):
    """Of a difference of two settings, whose images are the same; and of equal ones."""
    images = rng.random(80)  # how hard each is
    a, b = (
        images < np.array(of)[:, None] for of in ((0.75, 0.77, 0.8, 0.83, 0.85), (0.6, 0.7, 0.8))
    )
    first, second = inference.resampled([a, b], draws=8000)
    expected = sum(of.mean(axis=1).var(ddof=1) / len(of) for of in (a, b))
    expected += np.var(a.mean(axis=0) - b.mean(axis=0)) / 80
    assert np.var(first - second) == pytest.approx(expected, rel=0.08)
    assert np.mean(first - second) == pytest.approx(a.mean() - b.mean(), abs=3e-3)
    copies = a[[0, 0, 0]], a[[0, 0, 0, 0, 0]], a[:1]
    assert np.ptp(inference.resampled(copies), axis=0).max() == 0  # ties, for ranks
    of = inference.of_draws(0.5, np.array([-1.0, *np.arange(1.0, 100)]))
    assert of.p == pytest.approx(2 * 2 / 101) and of.low > 0
    assert inference.of_draws(2.0, np.arange(1.0, 100), level=99).p == pytest.approx(2 * 2 / 100)


def test_holm_and_the_rule():
    assert inference.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])

    def of(logistic, p, knn, q, papers=9.0):
        pairs = {"logistic regression": (logistic, p), "5-NN": (knn, q)}
        pairs["the paper's probe"] = (papers, 0.0)
        return {name: Estimate(v, v - 1, v + 1, p) for name, (v, p) in pairs.items()}

    both, one, other, apart = (
        of(1, 0.01, 2, 0.01),
        of(1, 0.01, 2, 0.2),
        of(-1, 0.001, -2, 0.001),
        of(1, 0.001, -2, 0.001),
    )
    assert [inference.signs([each])[0] for each in (both, one, other, apart)] == [1, 0, -1, 0]
    # With four comparisons the first is not beyond chance any more.
    assert inference.signs([of(1, 0.03, 2, 0.02), one, other, apart]) == [0, 0, -1, 0]
    names = {"A loss against B": both, "NT-Xent against D": other, "E against F": one}
    assert inference.sentences(names, "backbone") == (
        "Before the head, with logistic regression, 5-NN and the paper's probe in this order, of "
        "which the first two decide, a loss is ahead of B by 1.00 (0.00 to 2.00), 2.00 (1.00 to "
        "3.00) and 9.00 (8.00 to 10.00) points; NT-Xent is behind D by 1.00 (0.00 to 2.00), 2.00 "
        "(1.00 to 3.00) and -9.00 (-10.00 to -8.00) points; e is not told apart from F: +1.00 "
        "(+0.00 to +2.00), +2.00 (+1.00 to +3.00) and +9.00 (+8.00 to +10.00) points. Holm's "
        "correction counts the 3 comparisons."
    )
    # Where the correction alone decides, the sentence says so.
    near = {"A against B": of(1, 0.03, 2, 0.02), "C against D": one}
    told = "+9.00 (+8.00 to +10.00) points"
    found = inference.sentences(near, "output")
    assert f"{told} (by itself p = 0.03); c is not told apart from D" in found
    assert found.count("by itself") == 1
    assert inference.sentences({"A against B": {"5-NN": both["5-NN"]}}, "output") == (
        "On the output, with 5-NN, a is ahead of B by 2.00 (1.00 to 3.00) points."
    )
    short = inference.short({"backbone": {"A loss against B": both}, "output": names})
    assert short == (
        "Before the head, a loss is ahead of B by 1.00 (0.00 to 2.00) and 2.00 (1.00 to 3.00) "
        "points. On the output, a loss is ahead of B by 1.00 (0.00 to 2.00) and 2.00 (1.00 to "
        "3.00) points; NT-Xent is behind D by 1.00 (0.00 to 2.00) and 2.00 (1.00 to 3.00) points; "
        "the other difference does not show."
    )
    unclear = {f"{a} against B": one for a in "XYZ"}
    assert inference.short({"output": unclear}) == "On the output, none of 3 differences shows."
    some = inference.short({"output": {"A against B": both} | unclear})
    assert some == (
        "On the output, a is ahead of B by 1.00 (0.00 to 2.00) and 2.00 (1.00 to 3.00) points; "
        "none of the other 3 differences shows."
    )
    assert inference.short({"output": {"X against B": one}, "backbone": {}}) == (
        "On the output, x is not told apart from B."
    )
    assert [inference.shows(sign, -1) for sign in (-1, 0, 1)] == [
        *("shows", "does not show", "the opposite shows"),
    ]


def test_single_encoders_show_nothing(rng):
    a, b = rng.random((2, 400)) < 0.9, rng.random((1, 400)) < 0.1
    for sides, sure in (((a, b), 0), ((a, b.repeat(2, axis=0)), 1), ((b, a), 0), ((a, 0.1), 1)):
        compared = {"5-NN": inference.difference(*sides)}
        assert inference.signs([compared]) == [sure]
        told = inference.sentences({"A against B": compared}, "output")
        assert ("single" in told) != sure


def test_paired_rows_are_in_the_order_of_their_seeds(rng):
    rights = [rng.random((4, 300)) < share for share in (0.5, 0.6)]
    a, b = ([row | {"seed": seed} for seed, row in enumerate(rows_of(of))] for of in rights)
    found = inference.compare(a, b[::-1], "output", paired=True)["5-NN"]
    assert found == inference.difference(*rights, paired=True) != inference.difference(*rights)
    fewer = inference.compare(a, b[1:], "output", paired=True)["5-NN"]
    assert fewer == inference.difference(rights[0][1:], rights[1][1:], paired=True)
    with pytest.raises(UserError, match="no seed"):
        inference.compare(a[:1], b[1:], "output", paired=True)


def test_tables_of_accuracies(rng):
    right = rng.random((3, 40)) < 0.9
    rows = rows_of(right, output_knn5=~right)
    cells = inference.accuracies(rows, ["output"])
    assert len(cells) == len(inference.columns(["output"])) == 3
    assert cells[0].startswith(f"{100 * right.mean():.2f} ± ")
    assert inference.accuracies([], ["output"]) == [None] * 3
    ahead = inference.compare(rows, rows[:1], "output")
    assert [*ahead] == ["logistic regression", "5-NN", "the paper's probe"]
    assert ahead["5-NN"].value == pytest.approx(100 * (right[0].mean() - right.mean()))


def test_predictions_of_several_data_sets_in_a_file(rng, tmp_path):
    digits, letters = rng.integers(0, 10, 7), rng.integers(0, 300, 5)

    def row(run, targets, *scores):
        of = {score: Predictions(targets, rng.permutation(targets)) for score in scores}
        return {"run": run, "predictions": of}

    rows = [row("a", digits, "x", "y"), row("b", letters, "x"), {"run": "failed"}]
    rows.append(row("c", digits, "x"))
    predictions.write(tmp_path / "p.npz", rows)
    plain = predictions.without(rows)
    assert plain == [{"run": run} for run in ("a", "b", "failed", "c")]
    again = predictions.read(tmp_path / "p.npz", plain)
    for before, after in zip(rows, again, strict=True):
        before = before.get("predictions", {})
        assert before.keys() == after["predictions"].keys()
        for score, of in before.items():
            for one, other in zip(of, after["predictions"][score], strict=True):
                np.testing.assert_array_equal(one, other)
    assert predictions.right([rows[0], rows[3]], "x").shape == (2, 7)
