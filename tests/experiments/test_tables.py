"""The papers' tables as data, our numbers beside theirs, and the statistics of what is shown."""

import hashlib

import numpy as np
import pytest
from run_rows import done, scored
from scipy import stats

from experiments import statistics
from experiments.tables import FOLDER, TABLES, rows
from experiments.wang_isola.encoder_tables import our_column, rows_result

# Rows that are there: of Table 8 the caption says 304, of which 25 were lost.
COUNTS = (3, 3, 3, 3, 2, 100, 304 - 25, 306 - 304, 64, 45, 108 + 6)  # Wang & Isola
COUNTS += (5 * 4 * 4, 5 * 3 * 4, 5 * 3 * 4, 8 * 12, 3, 2)  # Chen, Luo & Li; the balanced paper


def test_the_files_are_those_that_were_read():
    assert tuple(len(rows(table)) for table in TABLES) == COUNTS
    assert {f"{name}.csv" for name in TABLES.values()} == {p.name for p in FOLDER.glob("*.csv")}
    assert sum(row.values["nan_occurred"] for row in rows("wang-isola/table11")) == 6
    whole = b"".join(path.read_bytes() for path in sorted(FOLDER.glob("*.csv")))
    assert hashlib.sha256(whole).hexdigest()[:16] == "8cf7334e9691c24e"


def test_each_number_has_ours_of_its_kind_beside_it():
    names = {"val_fc7_linear": "fc7_linear", "cv_fc7_linear": "fc7_linear_cv"}
    names |= {"cv_top1": "backbone_linear_cv", "val_top5": "backbone_linear_top5"}
    assert {name: our_column(name) for name in names} == names


def test_rows_beside_the_papers(context):
    about = {"row": 7, "loss": "a loss", "dim": 128, "seed": 0}
    ours = scored(output_linear=80.0) | {"output_linear_cv": 79.0, "fc7_knn5": 1.0}
    theirs = {"paper_val_output_linear": 81.5, "paper_cv_output_linear": 78.0}
    failed = about | {"status": "failed", "reason": "loss nan", "row": 8}
    rows = [done(**about, **ours, **theirs), failed]
    result = rows_result("wang-isola/table8", "encoders", context, rows)
    assert [line[:4] + line[5:] for line in result.rows] == [
        [7, "a loss", 128, 0, 81.5, 80.0, "78.00 to 82.00", -1.5],
        [7, "a loss", 128, 0, 78.0, 79.0, None, 1.0],
    ]
    assert any("row 8: loss nan" in text for text in result.text)


def test_statistics_of_seeds(rng):
    a, b = rng.normal(90, 1, 5), rng.normal(88, 3, 7)
    low, high = stats.t.interval(0.95, 4, a.mean(), a.std(ddof=1) / 5**0.5)
    assert statistics.with_interval(a) == f"{a.mean():.2f} ± {(high - low) / 2:.2f}"
    assert statistics.with_interval([1.0]) == "1.00"
    spread = a.var(ddof=1) / 5, b.var(ddof=1) / 7
    freedom = sum(spread) ** 2 / (spread[0] ** 2 / 4 + spread[1] ** 2 / 6)  # Welch's
    half = stats.t.ppf(0.975, freedom) * np.sqrt(sum(spread))
    middle, gain = a.mean() - b.mean(), statistics.difference(a, b)
    assert gain == pytest.approx((middle, middle - half, middle + half))
    assert gain.significant == (abs(middle) > half) and statistics.difference(a, b[:1]) is None
    assert statistics.rank_correlation([1, 2, 4], [3, 2, 1]) == -1
    assert np.isnan(statistics.rank_correlation([1, 2], [3, 3]))
