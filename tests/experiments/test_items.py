"""All items: their runs at each scale, and analyses that follow from the recorded rows."""

import itertools
import re

import pytest
from rows import both, row

from experiments import reproduce
from experiments.balanced import figure3, grids, settings, table1
from experiments.chen import figureC1, tableD1
from experiments.chen import settings as chen
from experiments.lib import rates
from experiments.lib.records import read_csv, read_results
from experiments.lib.sweep import SweepOptions, placed
from experiments.lib.tables import printed_scores, table_row, table_rows
from experiments.options import ReproduceConfig
from experiments.wang_isola import figure5a, figure7, figure8
from experiments.wang_isola import table1 as best_encoders
from hypersphere_jax import configs as C
from hypersphere_jax.configs import UserError

ITEMS = reproduce.item_names()
RECORDED = [
    (item, scale)
    for item in ITEMS
    for scale in reproduce.find(item).SCALES
    if (reproduce.recorded_folder(item, scale) / "results.csv").is_file()
]
# Their analyses read checkpoints, or take half a minute.
NOT_RECOMPUTED = ("balanced/theorem", "wang-isola/figure4", "wang-isola/figure5a", "chen/figureC1")


@pytest.mark.parametrize("item", ITEMS)
def test_items_plan_distinct_runs(item, tmp_path):
    module = reproduce.find(item)
    assert f"python run.py reproduce {item} --scale" in module.__doc__
    for scale in module.SCALES:
        assert re.search(rf"^({scale}:|Nothing is trained)", module.__doc__, re.MULTILINE), scale
        options = SweepOptions(tmp_path, seed_offset=7)
        runs = [placed(run, options) for run in module.runs(scale)]
        assert len({run.config.name for run in runs}) == len(runs)
        for run in runs:
            assert run.config.init_from is None or str(tmp_path) in run.config.init_from


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
    found = module.analyze(rows)
    recorded = read_csv(folder / "analysis.csv")
    for after, before in zip(found, recorded, strict=True):
        assert [after["claim"], after["verdict"]] == [before["claim"], before["verdict"]]
        assert after["effect"] == pytest.approx(before["effect"], abs=1e-6)


def test_unknown_items_and_scales_are_refused(capsys):
    with pytest.raises(UserError, match="figure7"):
        reproduce.main(ReproduceConfig("wang-isola/figure77"))
    with pytest.raises(UserError, match="--scale paper"):
        reproduce.main(ReproduceConfig("chen/tableD2", scale="laptop"))
    with pytest.raises(UserError, match="laptop or gpu or paper"):
        reproduce.main(ReproduceConfig("wang-isola/figure7"))
    assert "Claim:" in capsys.readouterr().out
    reproduce.main(ReproduceConfig())
    listed = capsys.readouterr().out
    assert all(item in listed for item in ITEMS)


def test_an_item_is_reported(tmp_path, capsys):
    reproduce.main(ReproduceConfig("wang-isola/figure11", scale="laptop", out=tmp_path))
    folder = tmp_path / "wang-isola" / "figure11" / "laptop"
    assert (folder / "figure.png").is_file()
    assert {row["verdict"] for row in read_csv(folder / "analysis.csv")} == {"supported"}


def test_chen_tables_train_what_the_paper_says():
    """Appendix A of Chen et al., and the authors' published rate of CIFAR-10."""
    swd = ("generalized_contrastive", None, 5.0)
    printed = {
        "NT-Xent": ("nt_xent", 0.2, None, None, 1),
        "Decoupled NT-Xent": ("decoupled_nt_xent", 1.0, 0.1, None, 1000),
        "SWD (normal)": (*swd, "normal", 1),
        "SWD (uniform hypercube)": (*swd, "hypercube", 1),
        "SWD (uniform hypersphere)": (*swd, "hypersphere", 1000),
    }
    for table, dim, head, rate in (
        ("chen/tableD1", 64, "simclr2", 3.2),
        ("chen/tableD2", 128, "simclr2", 1.2),
        ("chen/tableD3", 128, "simclr3", 1.2),
    ):
        for printed_row in table_rows(table):
            config = chen.row_config(printed_row)
            assert (config.model, config.dim, config.head) == ("resnet50", dim, head)
            assert (config.optimizer, config.scaling) == ("lars", "sqrt")
            assert config.learning_rate == rate
            loss = (config.loss, config.loss_tau, config.loss_lam, config.prior, config.loss_factor)
            assert loss == printed[printed_row.values["loss"]]


def test_figure_5a_trains_each_setting_once():
    runs = figure5a.runs("laptop")
    digits = [run for run in runs if run.config.data == "digits"]
    assert len({run.labels["row"] for run in digits}) == 190 and len(digits) == 950
    best = [printed_scores(row) for row in table_rows("wang-isola/table1")]
    printed = [run.labels for run in figure5a.cifar10_runs("cifar10")]
    for scores in best:
        assert any(scores[n] == of.get(f"paper_{n}") for n in scores for of in printed)


def test_figure_8_finetunes_from_each_start():
    for scale, tau, seeds in (("laptop", 2.5, 3), ("gpu", 2.5, 3), ("paper", 2, 1)):
        runs = figure8.runs(scale)
        assert len(runs) == 5 * seeds
        for start, *finetuned in zip(*[iter(runs)] * 5, strict=True):
            assert start.config.contrastive_tau == tau
            assert {run.config.init_from for run in finetuned} == {start.config.name}
            optimizers = {C.section(run.config, C.OptimizerConfig) for run in finetuned}
            assert len(optimizers) == 1


def test_rates_are_chosen_on_held_out_images():
    candidates = chen.rate_candidates(chen.LAPTOP, 5, ["NT-Xent"], "laptop")
    assert {(run.config.folds, run.config.fold, run.config.seed) for run in candidates} == {
        (5, fold, fold) for fold in range(5)
    }
    made = [(1, 90), (1, 92), (4, 91), (4, 91), (16, 99)]
    rows = [
        {"status": "done", "name": "a", "held_out": 0, "rate": rate, "backbone_logistic": score}
        for rate, score in made
    ]
    rows.append({"status": "failed", "name": "a", "held_out": 0, "rate": 16})  # counts as 0
    rows.append({"status": "done", "name": "a", "rate": 64, "backbone_logistic": 100})
    assert rates.chosen(rows, "name") == {"a": 1} and rates.final(rows) == rows[-1:]


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


def test_figure_7_needs_both_instruments():
    def verdicts(alignment):
        rows = []
        for weights, scores in {(1, 0): alignment, (1, 1): (95, 96), (0, 1): (70, 60)}.items():
            for seed in range(5):
                accuracies = dict(zip(("output_logistic", "output_knn5"), scores, strict=True))
                labels = dict(zip(("align_weight", "uniform_weight"), weights, strict=True))
                made = row(seed, **accuracies, output_linear=50)
                rows.append(made | labels | {"data": "digits"})
        return [line["verdict"] for line in figure7.analyze(rows)[::3]]

    assert verdicts((80, 82)) == ["supported", "supported"]
    assert verdicts((95, 60)) == verdicts((60, 96)) == ["inconclusive", "supported"]


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


def test_figure_c1_compares_shares():
    share = figureC1.share_gained([0.5, 0.52, 0.54], [1.0, 1.02, 1.04])
    assert share.effect == pytest.approx(100 * 0.52 / 1.02)
    assert share.low < share.effect < share.high and share.p < 1e-3


def test_balanced_grid_selects_by_held_out_images():
    rows = []
    for loss, alpha, lam in itertools.product(settings.NAMES, grids.VALUES, grids.VALUES):
        labels = {"kind": loss, "alpha": alpha, "lam": lam}
        labels["backbone_logistic_cv"] = 50 + (alpha == 2) + 2 * (lam == 4) - (lam == 1)
        rows += [row(seed, **both("backbone", 90)) | labels for seed in range(2)]
    assert grids.selected_cells(rows)[settings.BALANCED] == [(2, 4), (2, 1)]


def test_table_1_of_the_balanced_paper_needs_a_tenth_of_the_gain():
    def verdict(level):
        rows = []
        levels = {"cosine": 60, "dot product": level, "negative Euclidean distance": 40}
        for (similarity, score), seed in itertools.product(levels.items(), range(4)):
            labels = {"similarity": similarity, "step": 9}
            rows.append(row(seed, n=4000, **both("backbone", score)) | labels)
        for seed in range(4):
            labels = {"similarity": "cosine", "step": 0}
            rows.append(row(seed, n=4000, **both("backbone", 30)) | labels)
        (found,) = {
            line["verdict"] for line in table1.analyze(rows) if line["claim"].startswith("dot")
        }
        return found

    assert verdict(30.5) == "supported" and verdict(50) == "not supported"


def test_bias_correlation_counts_orders():
    groups = {}
    for index, bias in enumerate((1.0, 1.1, 1.2, 1.3, 1.4)):
        made = [row(seed, n=200, output_knn5=90 - 5 * index) for seed in range(3)]
        groups[str(index)] = [of | {"prototype_bias": bias} for of in made]
    estimate = figure3.bias_correlation(groups, "output_knn5", draws=50)
    assert estimate.effect == -1 and estimate.p == pytest.approx(max(estimate.p, 2 / 120))


def test_rows_of_the_best_are_rows_of_the_grid():
    row_of_best = table_row("wang-isola/table1", 1)
    assert best_encoders.runs("paper")[0].labels["table"] == "wang-isola/table8"
    assert printed_scores(row_of_best)["val_output_linear"] > 0
