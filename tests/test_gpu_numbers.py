"""GPU numbers of docs/gpus.md and the README against the recorded runs."""

import json
import re

import numpy as np
from processes import ROOT

RESULTS = ROOT / "docs" / "results"
PAGE = (ROOT / "docs" / "gpus.md").read_text()
README = (ROOT / "README.md").read_text()


def recorded(file):
    return json.loads((RESULTS / file).read_text())


def cells(title):
    """Return the cells after the first in the page's row with this title."""
    (row,) = re.findall(rf"^\| {re.escape(title)} \| (.*) \|$", PAGE, re.MULTILINE)
    return row.split(" | ")


def test_parity_rows_are_recorded():
    rows = recorded("gpu/parity-h200.json")["rows"]
    sides = [
        [row for row in rows if row["framework"] == framework]
        for framework in ("hypersphere_jax", "PyTorch")
    ]
    scores = [side[-1] for side in sides]
    losses = [{row["epoch"]: row["loss"] for row in side if "epoch" in row} for side in sides]
    for title, name in (
        ("5-NN, %", "knn5"),
        ("200 weighted neighbours, %", "knn200"),
        ("logistic regression, %", "linear"),
    ):
        assert cells(title) == [f"{score[name]:.2f}" for score in scores]
    for epoch in (1, 10, 20, 40):
        assert cells(f"loss in epoch {epoch}") == [f"{loss[epoch]:.3f}" for loss in losses]
    speeds = [f"{score['images_per_s']:,}" for score in scores]
    assert cells("images/s") == speeds and all(speed in README for speed in speeds)
    apart = [abs(scores[0][name] - scores[1][name]) for name in ("knn5", "knn200", "linear")]
    assert max(apart) < 0.2
    assert max(abs(losses[0][epoch] - losses[1][epoch]) for epoch in losses[0]) < 0.03


def test_cpu_parity_rows_are_recorded():
    rows = recorded("gpu/parity-cpu.json")["rows"]
    for title, name in (
        ("5-NN, three seeds, %", "knn5"),
        ("200 weighted neighbours, three seeds, %", "knn200"),
        ("logistic regression, three seeds, %", "linear"),
    ):
        printed = []
        for framework in ("hypersphere_jax", "PyTorch"):
            scores = [row[name] for row in rows if name in row and row["framework"] == framework]
            printed.append(f"{np.mean(scores):.2f} ± {np.std(scores, ddof=1):.2f}")
        assert cells(title) == printed


def test_loss_rows_are_recorded():
    row_pattern = r"^\| (\w+) \| ([\d,]+) \| (\d+) \| (\w+) \| `(\w+)` \| (.*) \|$"
    printed = re.findall(row_pattern, PAGE, re.MULTILINE)
    assert len(printed) > 20
    rows = {
        tuple(str(row[name]) for name in ("loss", "n", "d", "dtype", "precision")): row
        for row in recorded("gpu/losses-h200.json")["rows"]
        if "loss" in row
    }
    for loss, n, d, dtype, precision, measured in printed:
        row = rows[loss, n.replace(",", ""), d, dtype, precision]
        expected = [f"{row['ms']:,.1f}", f"{row['share']:.0%}"]
        expected.append(f"{row['gradient_error']:.1e}" if "gradient_error" in row else "")
        expected += [f"{row['memory_mb']:,}", f"{row['compile_s']:.0f}"]
        expected.append(f"{row['torch_ms']:.1f}" if "torch_ms" in row else "")
        assert [cell.strip() for cell in measured.split("|")] == expected
    for loss, seconds in (("uniform", "2.1 s"), ("contrastive", "7.4 s")):
        assert f"{rows[loss, '1000000', '128', 'float32', 'high']['ms'] / 1e3:.1f} s" == seconds
        assert seconds.removesuffix(" s") in README


def test_earlier_rows_are_recorded():
    h200 = recorded("h200/measured.json")
    resumed = h200["resumption"]
    same = resumed["arrays"] - resumed["arrays_that_differ"]
    assert f"{same} of {resumed['arrays']} arrays bit-identical" in PAGE
    for row in h200["encoders"]:
        assert f"| H200 | {row['ms']:.1f} ms, {row['single_ms']:.1f} ms |" in PAGE
    _, scores = recorded("h100/measured.json")["cifar10"]
    minutes, *accuracies = (scores[name] for name in ("minutes", "knn5_top1", "linear_top1"))
    printed = "{:.1f} minutes; 5-NN {:.1f}%, linear {:.1f}%"
    assert printed.format(minutes, *np.round(accuracies, 1)) in PAGE
