"""All items: their runs, analyses that follow from the recorded rows, and the results page."""

import re

import pytest
from processes import ROOT
from rows import both, row

from experiments import reproduce
from experiments.chen import settings as chen
from experiments.chen import tableD1
from experiments.lib import rates
from experiments.lib.records import read_csv, read_results
from experiments.lib.stats import summarize
from experiments.lib.sweep import placed
from experiments.options import ReproduceConfig, SweepOptions
from experiments.wang_isola import table1 as best_encoders

ITEMS = reproduce.item_names()
SCALES = [(item, scale) for item in ITEMS for scale in reproduce.find(item).SCALES]
RECORDED = [
    (item, scale)
    for item, scale in SCALES
    if (reproduce.recorded_folder(item, scale) / "results.csv").is_file()
]
# Their analyses read checkpoints, or take half a minute.
NOT_RECOMPUTED = ("balanced/theorem", "wang-isola/figure4", "wang-isola/figure5a", "chen/figureC1")
DOCS = ROOT / "docs"
LINE = re.compile(r"^\|.*results/([\w.-]+)/analysis\.csv\).*\|$", re.MULTILINE)
INTERVAL = re.compile(r"([+-][\d.]+) \(([+-][\d.]+) to ([+-][\d.]+)\)")


@pytest.mark.parametrize("item", ITEMS)
def test_items_plan_distinct_runs(item, tmp_path):
    module = reproduce.find(item)
    options = SweepOptions(seed_offset=7)
    for scale in module.SCALES:
        plan = reproduce.plan_of(module, scale)
        runs = [placed(run, tmp_path, options) for run in plan([])]
        assert len({run.config.name for run in runs}) == len(runs)
        starts = {run.config.init_from for run in runs} - {None}
        assert all(start.startswith(str(tmp_path)) for start in starts)


@pytest.mark.parametrize(("item", "scale"), RECORDED)
def test_recorded_analyses_follow_from_recorded_rows(item, scale):
    """The runs are the planned ones, and effects and verdicts are recomputed."""
    module = reproduce.find(item)
    folder = reproduce.recorded_folder(item, scale)
    rows = read_results(folder)
    plan = reproduce.plan_of(module, scale)
    assert {run.config.name for run in plan(rows)} == {row["run"] for row in rows}
    assert not reproduce.failed_settings(module, rows)
    assert summarize(rates.final(rows), module.SETTINGS)
    if item.startswith(NOT_RECOMPUTED):
        return
    recorded = read_csv(folder / "analysis.csv")
    for found, expected in zip(module.analyze(rows), recorded, strict=True):
        assert [found["claim"], found["verdict"]] == [expected["claim"], expected["verdict"]]
        assert found["effect"] == pytest.approx(expected["effect"], abs=1e-6)


def test_item_is_reported(tmp_path):
    options = ReproduceConfig(item="wang-isola/figure11", scale="laptop", runs_dir=str(tmp_path))
    reproduce.main(options)
    folder = tmp_path / "reproduce" / "wang-isola" / "figure11" / "laptop"
    assert (folder / "figure.png").is_file()
    assert {row["verdict"] for row in read_csv(folder / "analysis.csv")} == {"supported"}


def test_rates_are_chosen_on_held_out_images():
    candidates = chen.rate_candidates(chen.LAPTOP, 5, ["NT-Xent"], "laptop")
    folds = {(run.config.folds, run.config.fold, run.config.seed) for run in candidates}
    assert folds == {(5, fold, fold) for fold in range(5)}
    made = [(1, 90), (1, 92), (4, 91), (4, 91), (16, 99)]
    columns = ("rate", "backbone_logistic")
    labels = {"status": "done", "name": "a", "held_out": 0}
    rows = [labels | dict(zip(columns, values, strict=True)) for values in made]
    rows.append({"status": "failed", "name": "a", "held_out": 0, "rate": 16})  # counts as 0
    final = {"status": "done", "name": "a", "rate": 64, "backbone_logistic": 100}
    assert rates.chosen([*rows, final], "name") == {"a": 1}
    assert rates.final([*rows, final]) == [final]


def test_table_1_selects_without_the_test_split():
    grid = []
    for number, kind, held_out, test in (
        (79, "contrastive", (70, 72, 71), 60),
        (83, "contrastive", (90, 60, 61), 99),
        (174, "align+uniform", (65, 66, 67), 1),
    ):
        for seed, score in enumerate(held_out):
            labels = {"row": number, "kind": kind, "output_logistic_cv": score}
            grid.append(row(seed, **both("output", test)) | labels)
    assert [*best_encoders.selected(grid).values()] == [79, 174, 79]


@pytest.mark.parametrize(
    ("worst", "verdict"), [(96.9, "supported"), (96.5, "inconclusive"), (85, "not supported")]
)
def test_table_d1_tests_equivalence(worst, verdict):
    rows = []
    for name in chen.LOSSES:
        level = worst if name == "SWD (normal)" else 97
        for seed in range(3):
            rows.append(row(seed, n=4000, **both("backbone", level)) | {"name": name})
    assert tableD1.analyze(rows)[0]["verdict"] == verdict


def shows(row, printed):
    """Return whether printed numbers are a row's effect, low and high, rounded."""
    for name, text in zip(("effect", "low", "high"), printed, strict=False):
        decimals = len(text.partition(".")[2])
        if f"{row.get(name, 0.0):+.{decimals}f}" != text:
            return False
    return True


@pytest.mark.parametrize("page", [ROOT / "README.md", DOCS / "results.md"])
def test_pages_show_recorded_numbers(page):
    lines = [*LINE.finditer(page.read_text())]
    assert lines
    for line in lines:
        *_, effect, verdict = line[0].strip("| ").split(" | ")
        rows = read_csv(DOCS / "results" / line[1] / "analysis.csv")
        for printed in INTERVAL.findall(effect) or [(effect,)]:
            verdicts = {row["verdict"] for row in rows if shows(row, printed)}
            assert verdict in verdicts, (line[0], printed)


def test_every_recorded_item_is_on_the_page():
    page = (DOCS / "results.md").read_text()
    for item in reproduce.item_names():
        for scale in reproduce.find(item).SCALES:
            folder = reproduce.recorded_folder(item, scale)
            assert not folder.is_dir() or f"results/{folder.name}/analysis.csv" in page
