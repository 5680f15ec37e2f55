"""Comparison of runs: differences and intervals against oracles, the CSV file and the page."""

import csv
import math

import numpy as np
import pytest
from reports import make_run, parse
from scipy import stats

from hypersphere_jax import cli
from hypersphere_jax.evaluation import estimates
from hypersphere_jax.reporting import differences

Z = stats.norm.ppf(0.975)


def scored(folder, top1, uniform=None, n=100, seed=0, tau=0.5, data="digits"):
    """Make a run with an accuracy, and perhaps a uniformity with a standard error of 0.04."""
    results = {"lbfgs": {"protocol": "lbfgs", "data": data, "top1": top1, "n": n}}
    if uniform is not None:
        results["metrics"] = {"protocol": "metrics", "uniform": uniform}
        results["metrics"]["uniform_standard_error"] = 0.04
    options = {"contrastive_tau": tau, "data_dir": f"place {seed}"}
    return make_run(folder, seed, results, **options)


def rows_of(folders, score="top1"):
    return [row for row in differences.compare_runs(folders) if row["score"] == score]


def test_seeds_form_a_group_with_welch_intervals(tmp_path):
    first, second = [80.0, 83.0, 84.0], [60.0, 62.5]
    runs = [scored(tmp_path / f"a{i}", x, seed=i) for i, x in enumerate(first)]
    runs += [scored(tmp_path / f"b{i}", x, seed=i, tau=0.1) for i, x in enumerate(second)]
    base, row = rows_of([runs[3], *runs[:3], runs[4]])
    assert (base["runs"], base["count"], base["difference"]) == ("b0, b1", 2, None)
    assert (row["runs"], row["count"]) == ("a0, a1, a2", 3)
    assert row["value"] == pytest.approx(np.mean(first))
    assert row["deviation"] == pytest.approx(np.std(first, ddof=1))
    interval = stats.ttest_ind(first, second, equal_var=False).confidence_interval()
    assert row["difference"] == pytest.approx(np.mean(first) - np.mean(second))
    assert (row["low"], row["high"]) == pytest.approx((interval.low, interval.high))


def write_predictions(run, labels, wrong):
    predicted = labels.copy()
    predicted[list(wrong)] += 1
    np.savez(run / "eval" / "lbfgs.npz", targets=labels, predicted=predicted)


def compare_predictions(tmp_path, labels, wrong):
    """Return the difference of a second run, which is wrong on samples 7 to 11."""
    one, other = scored(tmp_path / "one", 90.0), scored(tmp_path / "other", 95.0, tau=0.1)
    write_predictions(one, labels, wrong)
    write_predictions(other, np.arange(100) % 3, range(7, 12))
    return rows_of([one, other])[1]


def test_predictions_of_the_same_samples_are_paired(tmp_path):
    row = compare_predictions(tmp_path, np.arange(100) % 3, range(10))
    correct = np.arange(100) >= 10
    other = (np.arange(100) < 7) | (np.arange(100) >= 12)
    expected = estimates.paired(other, correct)
    found = (row["difference"], row["low"], row["high"])
    assert row["method"] == "paired" and found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("labels", "wrong"), [(np.arange(100)[::-1] % 3, range(10)), (np.arange(100) % 3, range(20))]
)
def test_predictions_that_do_not_fit_are_not_paired(tmp_path, labels, wrong):
    """The samples are in another order, or the accuracy is another one."""
    row = compare_predictions(tmp_path, labels, wrong)
    assert row["difference"] == 5 and row["method"] is row["low"] is None


def test_single_values_use_their_standard_errors(tmp_path):
    one = scored(tmp_path / "one", 80.0, -3.0)
    other = scored(tmp_path / "other", 60.0, -2.5, tau=0.1)
    base, row = rows_of([one, other], "uniform")
    half = Z * 0.04 * math.sqrt(2)
    assert (base["value"], base["standard_error"]) == (-3.0, 0.04)
    assert (row["low"], row["high"]) == pytest.approx((0.5 - half, 0.5 + half))


def test_report_writes_page_csv_and_table(tmp_path, capsys):
    one = scored(tmp_path / "runs" / "one", 80.0, -3.0, n=70)
    other = scored(tmp_path / "runs" / "other <b>", 60.0, -2.5, n=80, tau=0.1)
    out, table = tmp_path / "page.html", tmp_path / "page.csv"
    assert cli.main(["report", str(one), str(other), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    tags, texts, pictures = parse(out)
    assert len(pictures) == 1 and "b" not in tags
    for shown in ("-20.00", "-2.500 ± 0.040", other.name):
        assert shown in printed and shown in texts
    assert {"contrastive_tau", "0.1", "0.5"} <= set(texts) and "dim" not in texts
    with table.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    for row, expected in zip(rows, differences.compare_runs([one, other]), strict=True):
        for key, value in expected.items():
            assert row[key] == ("" if value is None else str(value)), key
    table.write_text("a,b\n1,2\n")
    assert cli.main(["report", str(one), str(other), "--out", str(out)]) == 2
    assert table.read_text() == "a,b\n1,2\n"
