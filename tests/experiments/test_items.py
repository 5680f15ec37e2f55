"""All items: their runs at each scale, and analyses that follow from the recorded rows."""

import itertools

import pytest
from rows import both, row

from experiments import reproduce
from experiments.balanced import figure4, settings
from experiments.chen import settings as chen
from experiments.chen import tableD1
from experiments.lib import rates
from experiments.lib.records import read_csv, read_results
from experiments.lib.sweep import placed
from experiments.options import ReproduceConfig, SweepOptions
from experiments.wang_isola import figure7
from experiments.wang_isola import table1 as best_encoders
from hypersphere_jax.configs import UserError

ITEMS = reproduce.item_names()
SCALES = [(item, scale) for item in ITEMS for scale in reproduce.find(item).SCALES]
RECORDED = [
    (item, scale)
    for item, scale in SCALES
    if (reproduce.recorded_folder(item, scale) / "results.csv").is_file()
]
# Their analyses read checkpoints, or take half a minute.
NOT_RECOMPUTED = ("balanced/theorem", "wang-isola/figure4", "wang-isola/figure5a", "chen/figureC1")


@pytest.mark.parametrize("item", ITEMS)
def test_items_plan_distinct_runs(item, tmp_path):
    module = reproduce.find(item)
    options = SweepOptions(seed_offset=7)
    for scale in module.SCALES:
        runs = [placed(run, tmp_path, options) for run in module.runs(scale, [])]
        assert len({run.config.name for run in runs}) == len(runs)
        starts = {run.config.init_from for run in runs} - {None}
        assert all(start.startswith(str(tmp_path)) for start in starts)


@pytest.mark.parametrize(("item", "scale"), RECORDED)
def test_recorded_analyses_follow_from_recorded_rows(item, scale):
    """The runs are the planned ones, and effects and verdicts are recomputed."""
    module = reproduce.find(item)
    folder = reproduce.recorded_folder(item, scale)
    rows = read_results(folder)
    assert {run.config.name for run in module.runs(scale, rows)} == {row["run"] for row in rows}
    assert reproduce.summary(module, rows) and not reproduce.failed_settings(module, rows)
    if item.startswith(NOT_RECOMPUTED):
        return
    recorded = read_csv(folder / "analysis.csv")
    for found, expected in zip(module.analyze(rows), recorded, strict=True):
        assert [found["claim"], found["verdict"]] == [expected["claim"], expected["verdict"]]
        assert found["effect"] == pytest.approx(expected["effect"], abs=1e-6)


@pytest.mark.parametrize(
    ("item", "scale", "named"),
    [
        ("wang-isola/figure77", None, "figure7"),
        ("chen/tableD2", "laptop", "paper"),
        ("wang-isola/figure7", None, "laptop or gpu or paper"),
    ],
)
def test_unknown_items_and_scales_are_refused(item, scale, named):
    with pytest.raises(UserError, match=named):
        reproduce.main(ReproduceConfig(item=item, scale=scale))


def test_item_is_reported(tmp_path):
    reproduce.main(ReproduceConfig(item="wang-isola/figure11", scale="laptop", out=tmp_path))
    folder = tmp_path / "wang-isola" / "figure11" / "laptop"
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


def test_balanced_grid_selects_by_held_out_images():
    rows = []
    for loss, alpha, lam in itertools.product(settings.NAMES, figure4.VALUES, figure4.VALUES):
        labels = {"kind": loss, "alpha": alpha, "lam": lam}
        labels["backbone_logistic_cv"] = 50 + (alpha == 2) + 2 * (lam == 4) - (lam == 1)
        rows += [row(seed, **both("backbone", 90)) | labels for seed in range(2)]
    assert figure4.selected_cells(rows)[settings.BALANCED] == [(2, 4), (2, 1)]


@pytest.mark.parametrize(
    ("alignment", "verdicts"),
    [
        ((80, 82), ["supported", "supported"]),
        ((95, 60), ["inconclusive", "supported"]),
        ((60, 96), ["inconclusive", "supported"]),
    ],
)
def test_figure_7_needs_both_instruments(alignment, verdicts):
    rows = []
    for weights, scores in {(1, 0): alignment, (1, 1): (95, 96), (0, 1): (70, 60)}.items():
        labels = dict(zip(("align_weight", "uniform_weight"), weights, strict=True))
        accuracies = dict(zip(("output_logistic", "output_knn5"), scores, strict=True))
        for seed in range(5):
            rows.append(row(seed, **accuracies, output_linear=50) | labels | {"data": "digits"})
    assert [line["verdict"] for line in figure7.analyze(rows)[::3]] == verdicts


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
