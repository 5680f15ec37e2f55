"""The one rule for claims, and the predictions that it rests on."""

import numpy as np
import pytest
import scipy

from experiments import inference, predictions
from experiments.inference import Estimate
from experiments.predictions import Predictions


def rows_of(right, score="output_logistic"):
    targets = np.zeros(right.shape[1], int)
    return [{"predictions": {score: Predictions(targets, 1 - of)}} for of in right.astype(int)]


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


def test_intervals_cover_what_they_should(rng):
    """Other seeds and other images each time: the truth is inside in 95%, and rather more."""
    covered, trials, k, n = 0, 400, 4, 150
    for _ in range(trials):
        images, sides = rng.normal(size=n), []
        for _ in range(2):
            ability = 1.2 + 0.4 * rng.normal(size=(k, 1))
            sides.append(rng.random((k, n)) < scipy.special.expit(ability + images))
        found = inference.difference(*sides)
        covered += found.low <= 0 <= found.high
    assert 0.94 <= covered / trials <= 0.995


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
    text = inference.sentences({"A against B": both, "C against D": other}, "backbone")
    assert text.startswith("Before the head, in points: A against B +1.00 (+0.00 to +2.00) by log")
    assert "probe: shows; C" in text and "probe: the opposite shows (Holm's correction" in text
    short = inference.short({"backbone": {"A against B": both}, "output": {"C against D": other}})
    assert short == "before the head, a against B ahead; on the output, c against D behind"


def test_tables_of_accuracies(rng):
    right = rng.random((3, 40)) < 0.9
    rows = [
        {"predictions": {**a["predictions"], **b["predictions"]}}
        for a, b in zip(rows_of(right), rows_of(~right, "output_knn5"), strict=True)
    ]
    cells = inference.accuracies(rows, ["output"], papers=False)
    assert len(cells) == len(inference.columns(["output"], papers=False)) == 2
    assert cells[0].startswith(f"{100 * right.mean():.2f} ± ")
    assert inference.accuracies([], ["output"]) == [None] * 3
    ahead = inference.compare(rows, rows[:1], "output", papers=False)
    assert [*ahead] == ["logistic regression", "5-NN"]
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
