"""The papers' tables as data, our numbers beside theirs, and the statistics of what is shown."""

import hashlib
from functools import partial

import numpy as np
from run_rows import done, predicted, scored

from experiments import statistics
from experiments.correlations import correlated
from experiments.tables import FOLDER, TABLES, rows
from experiments.wang_isola import encoder_tables
from experiments.wang_isola.encoder_tables import order_result, our_column, rows_result

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


def test_the_order_of_encoders_beside_the_papers(context, monkeypatch):
    """Both instruments in the paper's order; rows whose number was lost are left out."""
    monkeypatch.setattr(encoder_tables, "correlated", partial(correlated, draws=200))
    paper = np.array([30, 40, 50, 60, 70, 71, 72, 73, 80, 81])

    def of(ours, knn, paper=paper):
        keys = ("paper_val_output_linear", "paper_val_output_knn5")
        rows = [
            done(data="digits", row=row, **dict.fromkeys(keys, float(number)))
            | predicted(output_logistic=a, output_knn5=b, output_linear=50)
            for row, (number, a, b) in enumerate(zip(paper, ours, knn, strict=True))
        ]
        rows += [done(data="digits", row=99), {"status": "failed", "row": 98, "reason": "NaN"}]
        return order_result(8, "encoders", context, rows)

    result = of(paper, paper)
    assert [line[:3] for line in result.rows] == [
        ["output linear", 10, "30.00 to 81.00"],
        ["output 5-NN", 10, "30.00 to 81.00"],
    ]
    assert result.rows[0][3] == "+1.00 (+1.00 to +1.00)"
    assert result.verdict.count(": the orders agree.") == 2
    assert "row 98: NaN" in " ".join(result.text)
    many = np.arange(30, 46)
    halves = [line[1:3] for line in of(many, many, many).rows[:2]]
    assert halves == [[16, "30.00 to 45.00"], ["better half of 16", None]]
    assert "no agreement shows" in of(paper, paper[::-1]).verdict
    assert "the orders are opposite" in of(paper[::-1], paper[::-1]).verdict


def test_ranks():
    assert statistics.rank_correlation([1, 2, 4], [3, 2, 1]) == -1
    assert np.isnan(statistics.rank_correlation([1, 2], [3, 3]))
