"""Comparison of runs: differences and intervals against oracles, CSV, page and terminal."""

import csv
import math

import numpy as np
import pytest
from reports import make_run, parse
from scipy import stats

from hypersphere_jax import cli
from hypersphere_jax.configs import UserError
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
    base, other = rows_of([runs[3], *runs[:3], runs[4]])[::-1]
    assert (other["runs"], other["count"]) == ("b0, b1", 2)
    assert (base["runs"], base["count"]) == ("a0, a1, a2", 3)
    assert base["value"] == pytest.approx(np.mean(first))
    assert base["deviation"] == pytest.approx(np.std(first, ddof=1))
    test = stats.ttest_ind(first, second, equal_var=False)
    low, high = test.confidence_interval()
    assert base["difference"] == pytest.approx(np.mean(first) - np.mean(second))
    assert (base["low"], base["high"]) == pytest.approx((low, high))
    assert other["difference"] is None


def write_predictions(run, labels, wrong):
    predicted = labels.copy()
    predicted[list(wrong)] += 1
    np.savez(run / "eval" / "lbfgs.npz", targets=labels, predicted=predicted)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int64])
def test_predictions_of_the_same_samples_are_paired(dtype, tmp_path):
    labels = (np.arange(100) % 3).astype(dtype)
    one, other = scored(tmp_path / "one", 90.0), scored(tmp_path / "other", 95.0, tau=0.1)
    write_predictions(one, labels, range(10))
    write_predictions(other, labels, range(7, 12))
    # 7 samples are correct in the second run only, 2 in the first only.
    middle = 100 * 5 / 102
    half = 100 * Z * math.sqrt(10 - 25 / 102) / 102
    row = rows_of([one, other])[1]
    assert row["difference"] == pytest.approx(5) and row["method"] == "paired"
    assert (row["low"], row["high"]) == pytest.approx((middle - half, middle + half))


def reorder(run, labels):
    write_predictions(run, labels[::-1].copy(), range(10))


def rescore(run, labels):
    write_predictions(run, labels, range(20))


def damage(run, labels):
    file = run / "eval" / "lbfgs.npz"
    file.write_bytes(file.read_bytes()[:-9])


@pytest.mark.parametrize("change", [reorder, rescore, damage])
def test_predictions_that_do_not_fit_are_not_paired(change, tmp_path):
    labels = np.arange(100) % 3
    one, other = scored(tmp_path / "one", 90.0), scored(tmp_path / "other", 95.0, tau=0.1)
    write_predictions(one, labels, range(10))
    write_predictions(other, labels, range(3, 8))
    change(one, labels)
    row = rows_of([one, other])[1]
    assert row["difference"] == 5 and row["method"] is row["low"] is None


def test_single_values_use_their_standard_errors(tmp_path):
    one = scored(tmp_path / "one", 80.0, -3.0)
    other = scored(tmp_path / "other", 60.0, -2.5, tau=0.1)
    base, row = rows_of([one, other], "uniform")
    half = Z * 0.04 * math.sqrt(2)
    assert (base["value"], base["standard_error"]) == (-3.0, 0.04)
    assert (row["low"], row["high"]) == pytest.approx((0.5 - half, 0.5 + half))


def test_results_that_do_not_compare_have_no_interval(tmp_path):
    one = scored(tmp_path / "one", 80.0)
    elsewhere = scored(tmp_path / "elsewhere", 60.0, tau=0.1, data="cifar10")
    row = rows_of([one, elsewhere])[1]
    assert row["value"] == 60.0 and row["difference"] is row["low"] is None
    seeds = [scored(tmp_path / f"s{seed}", 70.0 + seed, seed=seed, tau=0.2) for seed in (1, 2)]
    row = rows_of([one, *seeds])[1]
    assert row["difference"] == pytest.approx(-8.5) and row["low"] is None
    with pytest.raises(UserError, match="run"):
        differences.compare_runs([])


def test_report_writes_page_csv_and_table(tmp_path, capsys):
    one = scored(tmp_path / "runs" / "one", 80.0, -3.0, n=70)
    other = scored(tmp_path / "runs" / "other <b>", 60.0, -2.5, n=80, tau=0.1)
    out = tmp_path / "page.html"
    for _ in range(2):  # its own files are replaced
        assert cli.main(["report", str(one), str(other), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    tags, texts, pictures = parse(out)
    assert len(pictures) == 1 and "b" not in tags
    for shown in ("-20.00", "-2.500 ± 0.040", "+0.3891 to +0.6109", other.name):
        assert shown in printed and shown in texts
    assert {"contrastive_tau", "0.1", "0.5"} <= set(texts) and "dim" not in texts
    with (tmp_path / "page.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    compared = differences.compare_runs([one, other])
    assert len(rows) == len(compared) == 4
    for row, expected in zip(rows, compared, strict=True):
        for key, value in expected.items():
            assert row[key] == ("" if value is None else str(value)), key
    (tmp_path / "page.csv").write_text("a,b\n1,2\n")
    assert cli.main(["report", str(one), str(other), "--out", str(out)]) == 2
    assert (tmp_path / "page.csv").read_text() == "a,b\n1,2\n"


def test_runs_of_the_same_name_are_told_apart(tmp_path):
    runs = [scored(tmp_path / part / "run", 80.0, seed=seed) for seed, part in enumerate("ab")]
    (row,) = rows_of(runs)
    assert row["runs"] == f"{runs[0]}, {runs[1]}" and row["count"] == 2
    other = scored(tmp_path / "c" / "run", 70.0, tau=0.1)
    assert [row["runs"] for row in rows_of([runs[0], other])] == [str(runs[0]), str(other)]
