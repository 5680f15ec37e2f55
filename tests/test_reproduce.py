"""The items of the reproduction: their lists, what they plan, and what they conclude."""

import re

import numpy as np
import pytest
from scipy import stats
from test_cli import ROOT, fails

from experiments import costs, reproduce, results_page, sweeps, tables
from experiments.items import Context, folder_of, spread
from experiments.reproduce import ITEMS, ReproduceConfig
from experiments.specifications import config_of, formula
from experiments.wang_isola import best, plane, trajectories, weights
from hypersphere_jax import runs
from hypersphere_jax.config import UserError, to_dict
from hypersphere_jax.report import text_of

FIGURES = [f"figure{name}" for name in (1, 2, 3, 4, "5a", "5b", 6, 7, 8, "9a", "9b", 10, 11)]
TABLES = [f"table{number}" for number in range(1, 12)]
THEOREMS = ["theorem1", "theorem2"]


@pytest.fixture
def context(tmp_path):
    return Context("laptop", tmp_path / "runs", tmp_path / "item")


def plan(item, context, scale=None):
    scale = scale or context.scale
    return ITEMS[f"wang-isola/{item}"].scales[scale].stages[0](context, [])


def test_every_table_figure_and_theorem_of_the_paper_is_listed_once():
    listed = [name for name in (*ITEMS, *reproduce.ELSEWHERE) if name.startswith("wang-isola/")]
    assert sorted(listed) == sorted(f"wang-isola/{name}" for name in FIGURES + TABLES + THEOREMS)


def test_the_list(capsys):
    reproduce.main(ReproduceConfig())
    out = capsys.readouterr().out
    assert all(name in out for name in (*ITEMS, *reproduce.ELSEWHERE))
    (line,) = (line for line in out.splitlines() if line.startswith("wang-isola/figure7"))
    assert re.search(r"laptop +digits +yes +26 ", line)
    assert all(len(line) <= 100 for line in out.splitlines())
    assert out.index("wang-isola/figure8") < out.index("wang-isola/figure10")


@pytest.mark.parametrize("row", np.random.default_rng(7).choice(279, 12, replace=False) + 1)
def test_a_row_trains_that_very_encoder(row, context):
    chosen = tables.row_of(plane.TABLE8, int(row))
    context = context._replace(scale="paper", row=int(row))
    try:
        expected = config_of(chosen, runs_dir=str(context.runs_dir))
    except UserError as error:
        with pytest.raises(UserError, match=re.escape(str(error))):
            plan("table8", context)
        return
    *sources, one = plan("table8", context)
    assert to_dict(one.config) == to_dict(expected)
    assert [str(context.runs_dir / source.config.name) for source in sources] == [
        name for name in [one.config.init_from] if name
    ]
    printed = tables.expected(chosen)
    assert {f"paper_{name}": value for name, value in printed.items()}.items() <= one.about.items()


@pytest.mark.parametrize(("table", "row"), [(1, 3), (2, 3), (3, 3), (5, 2), (9, 64), (10, 1)])
def test_rows_of_the_other_tables(table, row, context):
    name = f"wang-isola/table{table}"
    context = context._replace(scale="paper", row=row)
    *_, one = plan(f"table{table}", context)
    expected = config_of(tables.row_of(name, row), runs_dir=str(context.runs_dir))
    assert to_dict(one.config) == to_dict(expected)


def test_the_laptops_sweeps_span_the_papers_ranges(context):
    both = plan("figure5a", context)
    digits = [one for one in both if one.config.data.name == "digits"]
    assert len(digits) >= 60 and len({one.config.name for one in digits}) == len(digits)
    assert {one.about["kind"] for one in digits} >= {"contrastive", "align+uniform", "uniform"}
    dims = {one.config.model.dim for one in digits}
    assert min(dims) == 2 and max(dims) >= 1024
    assert len({one.config.optimizer.batch_size for one in digits}) >= 5
    cifar10 = [one for one in both if one.config.data.name == "cifar10"]
    assert len(cifar10) >= 16 and len(digits) + len(cifar10) == len(both)
    assert plan("table1", context) == cifar10
    # Table 1 chooses among these: the paper's own choices are there.
    losses = {formula(one.config.objective) for one in cifar10}
    for row in tables.rows(best.TABLE1):
        assert formula(config_of(row).objective) in losses


def test_figure_7_at_both_scales(context):
    ratios = {one.about["uniform_weight"]: one for one in plan("figure7", context)}
    assert {0, 1} <= set(ratios) and len(plan("figure7", context)) == 26
    paper = plan("figure7", context._replace(scale="paper"))
    assert len(paper) > 50
    for one in paper:
        loss = one.config.objective
        assert (loss.align_alpha, loss.uniform_t, loss.contrastive_weight) == (2, 2, 0)
        assert (one.config.optimizer.batch_size, one.config.model.dim) == (768, 128)


def test_figure_8_begins_at_the_high_temperature(context):
    start, *finetuned = plan("figure8", context)
    assert start.config.objective.contrastive_tau == 2.5 and start.about["kind"] == "contrastive"
    assert [one.about["panel"] for one in finetuned] == list(trajectories.OBJECTIVES)
    for one in finetuned:
        assert one.config.init_from == str(context.runs_dir / start.config.name)
        assert one.config.runtime.keep_every_steps and one.measures.all_steps
    start, *finetuned = plan("figure8", context._replace(scale="paper"))
    # Table 8 trains the same ones, with fewer checkpoints: not in the same folders.
    of_table = {one.config.name for one in plan("table8", context._replace(scale="paper"))}
    assert start.config.name in of_table
    assert not of_table & {one.config.name for one in finetuned}
    assert {one.config.init_from for one in finetuned} == {
        str(context.runs_dir / start.config.name)
    }
    assert [one.about["kind"] for one in finetuned] == ["align", "uniform", "align+uniform"]


def test_circle_has_two_dimensions(context):
    runs = plan("figure3", context)
    assert [one.config.model.dim for one in runs] == [2, 2]
    assert [one.about["kind"] for one in runs] == ["supervised", "contrastive"]


def encoder(align, uniform, accuracy, **more):
    numbers = {"align": align, "uniform": uniform, "output_linear": accuracy}
    return {"status": "done", "data": "digits", "loss": "a loss", **numbers, **more}


def test_rank_correlations():
    random = np.random.default_rng(0)
    align, uniform, noise = random.normal(size=(3, 40))
    rows = [encoder(*numbers) for numbers in zip(align, uniform, -align + noise, strict=True)]
    found = plane.rank_correlations(rows)
    for name, values in (("align", align), ("uniform", uniform)):
        value, low, high, chance = found[name]
        assert value == pytest.approx(stats.spearmanr(values, -align + noise).statistic)
        assert low < value < high and 0.2 < chance < 0.45  # 1.96 / sqrt(39) is 0.31
    assert found["ranks"][0] >= abs(found["align"][0])
    total = stats.spearmanr(align + uniform, -align + noise).statistic
    assert found["sum"][0] == pytest.approx(total)
    # Ranks know nothing of scale; and a score that the two make together is known from both.
    rows = [encoder(np.exp(a), u, 90 - a - u) for a, u in zip(align, uniform, strict=True)]
    assert plane.rank_correlations(rows, draws=10)["ranks"][0] > 0.95
    assert np.isnan(
        plane.rank_correlations([encoder(1, u, u) for u in uniform], draws=1)["align"][0]
    )


def test_the_plane(context):
    rows = [encoder(i, -i, 90 - abs(i - 5)) for i in range(11)]
    rows += [encoder(0, -9, 99.0, data="cifar10"), {"status": "failed", "data": "digits"}]
    shown = plane.show_plane(context, rows, "Figure 5a", plane.ACCURACY)
    assert [line[:2] for line in shown.rows] == [["digits", 11]] * 4 + [["cifar10", 1]]
    assert shown.verdict.startswith("digits: ")
    assert "number 6 of 11 in alignment and number 6" in shown.text[2]
    assert shown.figures[0][0].is_file()
    assert plane.lower_left([encoder(0, 0, 90), encoder(1, 1, 50)], "output_linear") == (90, 50)


def test_the_inverted_u(context):
    def rows(accuracies):
        return [
            encoder(0.1, -1, accuracy, align_weight=align, uniform_weight=uniform)
            | {"output_linear_low": accuracy - 2, "output_linear_high": accuracy + 2}
            for (align, uniform), accuracy in zip([(0, 1), (1, 1), (1, 0)], accuracies, strict=True)
        ]

    shown = weights.show(context, [*rows((60, 90, 20)), *rows((62, 94, 22))])
    assert [line[0] for line in shown.rows] == ["1 : 0", "1 : 1", "0 : 1"]
    assert shown.rows[1][3:] == [92, "90.00 to 94.00", 2]
    assert (
        shown.verdict == "the inverted U shows (92.00% at 1 : 1, 21.00% at 1 : 0, 61.00% at 0 : 1)"
    )
    for not_so in ((95, 90, 20), (89, 90, 20)):  # higher at an end, and not clearly lower
        assert "does not show" in weights.show(context, rows(not_so)).verdict


def test_trajectories(context):
    rows = [
        encoder(0.5 - 0.01 * step, -1, 50 + step, panel=panel, step=step)
        | {"output_linear_low": 49 + step, "output_linear_high": 51 + step}
        for panel in trajectories.OBJECTIVES
        for step in (0, 5, 10)
    ]
    shown = trajectories.show(context, [encoder(1, 1, 1), *rows])
    assert [line[1] for line in shown.rows] == [0, 10] * 3
    assert shown.text[1] == "align only: accuracy 50.00, 55.00, 60.00%."
    assert shown.verdict.startswith("align only: better (+10.00 points); ")
    assert shown.figures[0][0].is_file()
    near = trajectories.show(context, [row for row in rows if row["step"] < 2] * 2)
    assert "align only: not clearly changed (+0.00 points)" in near.verdict
    with pytest.raises(UserError, match="nothing to draw"):
        trajectories.show(context, [encoder(1, 1, 1)])


def grid():
    """Encoders by row of Table 8, kind, accuracy by cross-validation and on the test split."""
    made = ((79, "contrastive", 70, 60), (83, "contrastive", 60, 99), (174, "align+uniform", 65, 1))
    return [
        encoder(1, 1, test, row=row, kind=kind, seed=0, output_linear_cv=cv, output_knn5=50)
        for row, kind, cv, test in made
    ]


def test_table_1_chooses_without_the_test_split(context):
    assert {name: row["row"] for name, row in best.selected(grid()).items()} == {
        "best contrastive only": 79,
        "best align and uniform only": 174,
        "best among all encoders": 79,
    }
    repeats = best._repeats(context, grid())
    assert sorted((one.about["row"], one.config.seed) for one in repeats) == [
        (row, seed) for row in (79, 174) for seed in (1, 2, 3)
    ]
    # Repeats do not take part in the choice.
    later = encoder(1, 1, 99, row=83, kind="contrastive", seed=1, output_linear_cv=99)
    assert best.selected([*grid(), later])["best contrastive only"]["row"] == 79


def test_table_1_reports_the_repeats(context):
    rows = grid()
    for row, kind, accuracies in (
        (79, "contrastive", (70, 71, 72)),
        (174, "align+uniform", (74, 75, 76)),
    ):
        rows += [
            encoder(1, 1, accuracy, row=row, kind=kind, seed=seed, output_knn5=accuracy - 10)
            for seed, accuracy in zip(best.SEEDS, accuracies, strict=True)
        ]
    shown = best.show(context, rows)
    # Half of the interval: 4.303 / sqrt(3), Student's t with two degrees of freedom.
    assert [line[2] for line in shown.rows] == [3, 3, 3]
    assert [line[3] for line in shown.rows] == ["71.00 ± 2.48", "75.00 ± 2.48", "71.00 ± 2.48"]
    assert "+4.00 points" in shown.verdict and "do not tell" not in shown.verdict
    assert shown.rows[0][-2:] == [80.46, 78.75]


def test_spread():
    assert spread(range(10), 3) == [0, 4, 9] and spread([1, 2], 5) == [1, 2]


def test_data_by_name(tmp_path):
    assert folder_of("digits", "anywhere") is None and folder_of("stl10", None) is None
    assert folder_of("stl10", str(tmp_path)) == str(tmp_path)
    (tmp_path / "stl10").mkdir()
    assert folder_of("stl10", str(tmp_path)) == str(tmp_path)  # TensorFlow Datasets' layout
    (tmp_path / "stl10" / "train.zip").touch()
    assert folder_of("stl10", str(tmp_path)) == str(tmp_path / "stl10")


def test_dry_run_trains_nothing(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(costs, "_seconds", lambda config: 0.5)
    config = ReproduceConfig(
        "wang-isola/table8", row=57, dry_run=True, out=tmp_path / "out", data_dir=str(tmp_path)
    )
    reproduce.main(config)
    out = capsys.readouterr().out
    printed = tables.row_of("wang-isola/table8", 57).values["val_output_linear"]
    assert "table8_row57" in out and f"output linear {printed:g}" in out and "1 runs" in out
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_measured_step_costs_time():
    one = config_of(tables.row_of("wang-isola/table8", 191), "laptop")
    found = costs.cost(one)
    assert found.steps == 25 * 7 and 1e-4 < found.seconds < 10


def test_failures_end_in_a_reason_each(capsys, monkeypatch, tmp_path):
    failed = [{"run": "a", "status": "failed", "reason": "loss nan", "data": "digits"}]
    monkeypatch.setattr(sweeps, "sweep", lambda *_, **__: ["b: a mistake"])
    monkeypatch.setattr(sweeps, "known", lambda planned: failed)
    with pytest.raises(UserError, match="no run is done"):
        reproduce.main(ReproduceConfig("wang-isola/figure7", scale="laptop", out=tmp_path))
    told = capsys.readouterr().err
    assert "failed: a: loss nan\nb: a mistake\n--retry" in told


def test_failed_runs_are_told_on_the_page(capsys, monkeypatch, tmp_path):
    weights = {"align_weight": 1, "uniform_weight": 1}
    row = encoder(1, -1, 50, run="a", **weights, output_linear_low=40, output_linear_high=60)
    lost = {"run": "b", "status": "failed", "reason": "loss nan"} | weights
    monkeypatch.setattr(sweeps, "sweep", lambda planned, **_: [])
    monkeypatch.setattr(sweeps, "known", lambda planned: [row, lost])
    reproduce.main(ReproduceConfig("wang-isola/figure7", scale="laptop", out=tmp_path))
    assert "1 of 26 runs failed: results.csv says why." in capsys.readouterr().out


def test_a_part_is_told_from_the_whole(capsys, monkeypatch, tmp_path):
    """What is done is shown, with how much that is; a later stage waits for all of the first."""
    asked = []
    row = encoder(1, -1, 50, run="a", row=79, kind="contrastive", seed=0, output_linear_cv=50)
    monkeypatch.setattr(sweeps, "sweep", lambda planned, **_: asked.append(len(planned)) or [])
    monkeypatch.setattr(sweeps, "known", lambda planned: [row])
    out = ReproduceConfig("wang-isola/table1", scale="laptop", out=tmp_path, only=("*row79_*",))
    reproduce.main(out)
    assert asked == [1] and "1 of 17 planned runs" in capsys.readouterr().out
    with pytest.raises(UserError, match="Do the rest first"):
        results_page.record("wang-isola/table1", "laptop", tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["wang-isola/figure77"], "did you mean 'wang-isola/figure7'"),
        (["wang-isola/figure1"], "nothing to reproduce here: an illustration"),
        (["wang-isola/table3", "--scale", "laptop"], "has no --scale laptop"),
        (["wang-isola/figure7", "--row", "3"], "is no table of encoders"),
        (["wang-isola/table1", "--scale", "laptop", "--row", "1"], "is no table of encoders"),
        (["wang-isola/table8", "--row", "280"], "has rows 1 to 279"),
        (["wang-isola/figure7", "--scale", "laptop", "--only", "x"], "no run has such a name"),
        (["wang-isola/figure7", "--dry-run", "--only", "x"], "no run has such a name"),
        (
            ["wang-isola/figure7", "--together", "yes", "--jobs", "2"],
            "--together yes is for one process",
        ),
        (["--dry-run"], "--dry-run needs an ITEM"),
        (["wang-isola/figure7", "--jobs", "0"], "--jobs 0"),
    ],
)
def test_mistakes(capsys, arguments, message):
    assert message in fails(capsys, "reproduce", *arguments)


def test_the_page_holds_what_was_recorded():
    """docs/results.md again, from what `reproduce` wrote; and that again, from its CSV."""
    assert results_page.PAGE.read_text() == results_page.page()
    sections = [line for line in results_page.page().splitlines() if line.startswith("## ")]
    assert len(sections) == 1 + len(list(results_page.KEPT.iterdir())) >= 10


def test_every_picture_of_the_docs_is_there():
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for file in re.findall(r"!\[[^\]]*\]\(([^)]*)\)", page.read_text()):
            assert (page.parent / file).is_file(), f"{page.name}: {file}"


@pytest.mark.parametrize("item", ["figure5a", "figure7", "figure8", "table1"])
def test_recorded_tables_follow_from_their_rows(item, context):
    kept = results_page.KEPT / f"wang-isola-{item}-laptop"
    rows = sweeps.read_csv(kept / "results.csv")
    shown = ITEMS[f"wang-isola/{item}"].show(context, rows)
    recorded = runs.read_json(kept / "shown.json")
    assert (shown.columns, shown.text) == (recorded["columns"], recorded["text"])
    assert shown.verdict == recorded["verdict"]
    for ours, theirs in zip(shown.rows, recorded["rows"], strict=True):
        assert [text_of(cell) for cell in ours] == [text_of(cell) for cell in theirs]
