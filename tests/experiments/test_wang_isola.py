"""Wang & Isola: which runs an item plans, which of them it compares, and how."""

from functools import partial

import numpy as np
import pytest
from run_rows import configs, done, scored
from scipy import stats

from experiments import quick_thought, tables
from experiments.reproduce import REPRODUCTIONS
from experiments.specifications import config_of, formula
from experiments.wang_isola import best_encoders, plane, sentences, trajectories
from hypersphere_jax.config import UserError, to_dict


def encoder(align, uniform, accuracy, **more):
    numbers = {"align": align, "uniform": uniform} | scored(output_linear=accuracy)
    return done(data="digits", loss="a loss", **numbers, **more)


def test_a_row_trains_that_very_encoder(context, plan):
    asked = [("table8", number) for number in (1, 76, 191, 255, 276)]
    asked += [("table1", 3), ("table2", 3), ("table3", 3), ("table5", 2)]
    for item, number in [*asked, ("table9", 64), ("table10", 1)]:
        row = tables.row_of(f"wang-isola/{item}", number)
        *sources, one = plan(f"wang-isola/{item}", "paper", row=number)
        assert to_dict(one.config) == to_dict(config_of(row, runs_dir=str(context.runs_dir)))
        before = [str(context.runs_dir / source.config.name) for source in sources]
        assert before == [name for name in [one.config.init_from] if name]
        printed = {f"paper_{name}": value for name, value in tables.expected(row).items()}
        assert printed.items() <= one.about.items(), (item, number)
    with pytest.raises(UserError, match="doubtful"):
        plan("wang-isola/table8", "paper", row=64)
    # A row of a table of the best has all numbers of its encoder.
    (first,) = plan("wang-isola/table2", "paper", row=2)
    assert {"paper_val_conv5_mse", "paper_cv_conv5_mse"} <= set(first.about)
    assert first.evaluation.depth and first.about["table"] == "wang-isola/table9"


def test_the_laptops_sweeps_span_the_papers_ranges(plan):
    both = plan("wang-isola/figure5a")
    digits, cifar10 = ([p for p in both if p.config.data.name == n] for n in ("digits", "cifar10"))
    assert len({config.name for config in configs(digits)}) == len(digits) >= 60
    assert {one.about["kind"] for one in digits} >= {"contrastive", "align+uniform", "uniform"}
    assert {2, 1024} <= {config.model.dim for config in configs(digits)}
    assert all(one.config.init_from is None for one in both)  # none is there to begin from
    assert plan("wang-isola/table1") == cifar10  # among which the paper's own choices are
    losses = {formula(config.objective) for config in configs(cifar10)}
    assert {
        formula(config_of(row).objective) for row in tables.rows(best_encoders.TABLE1)
    } <= losses
    assert all(row.values["init"] == "rand" for row in plane.usable_rows())


def test_figure_7_at_both_scales(plan):
    shapes = set()
    for config, about, *_ in plan("wang-isola/figure7"):
        loss = config.objective
        shape = (loss.align_weight, loss.uniform_weight, config.seed)
        assert shape[:2] == (about["align_weight"], about["uniform_weight"])
        assert "align{:g}_uniform{:g}_seed{}".format(*shape) in config.name
        shapes.add(shape)
    assert len(shapes) == 26 and {(1, 0, 0), (0, 1, 0), (1, 0.25, 1)} <= shapes
    assert len(plan("wang-isola/figure7", "paper")) > 50


def test_figure_8_begins_at_the_high_temperature(context, plan):
    for scale, tau, epochs in (("laptop", 2.5, 1), ("paper", 2, 12)):
        start, *finetuned = plan("wang-isola/figure8", scale)
        assert start.config.objective.contrastive_tau == tau
        assert [one.about["panel"] for one in finetuned] == list(trajectories.OBJECTIVES)
        assert [one.about["kind"] for one in finetuned] == ["align", "uniform", "align+uniform"]
        starts = {(config.init_from, config.optimizer.epochs) for config in configs(finetuned)}
        assert starts == {(str(context.runs_dir / start.config.name), epochs)}


def test_the_circle(plan):
    """Its encoders have two dimensions, a supervised and a contrastive one."""
    planned = plan("wang-isola/figure3")
    trained = [(c.model.dim, c.objective.supervised_weight) for c in configs(planned)]
    assert trained == [(2, 1), (2, 0)]
    assert [one.about["kind"] for one in planned] == ["supervised", "contrastive"]
    loss = planned[0].config.objective
    assert loss.align_weight == loss.uniform_weight == 0


def test_rank_correlations():
    random = np.random.default_rng(0)
    align, uniform, noise = random.normal(size=(3, 40))
    rows = [encoder(*numbers) for numbers in zip(align, uniform, -align + noise, strict=True)]
    correlations = plane.rank_correlations(rows, draws=300)
    for name, values in {"align": align, "uniform": uniform, "sum": align + uniform}.items():
        value, low, high, chance = correlations[name]
        assert value == pytest.approx(stats.spearmanr(values, -align + noise).statistic)
        assert low < value < high and 0.2 < chance < 0.45  # 1.96 / sqrt(39) is 0.31
    assert correlations["ranks"][0] >= abs(correlations["align"][0])
    # Ranks know nothing of scale; and a score that the two make together is known from both.
    rows = [encoder(np.exp(a), u, 90 - a - u) for a, u in zip(align, uniform, strict=True)]
    assert plane.rank_correlations(rows, draws=10)["ranks"][0] > 0.95


def test_the_plane(context, drawn):
    rows = [encoder(i, -i, 90 - abs(i - 5)) for i in range(11)]
    rows += [encoder(0, -9, 99.0) | {"data": "cifar10"}, {"status": "failed", "data": "digits"}]
    result = plane.plane_result("Figure 5a", plane.ACCURACY, context, rows)
    assert [line[:2] for line in result.rows] == [["digits", 11]] * 4 + [["cifar10", 1]]
    groups, *_, lower_is_better = drawn["metric_planes"]
    assert groups == {"digits": rows[:11], "cifar10": rows[11:12]} and not lower_is_better
    assert any("number 6 of 11 in alignment and number 6" in text for text in result.text)
    rows = [encoder(i, i, 0) | {"conv5_mse": float(i)} for i in range(6)]
    result = REPRODUCTIONS["wang-isola/figure5b"].result(context, rows)
    assert drawn["metric_planes"][2] == "conv5_mse" and drawn["metric_planes"][4]
    assert "OTHER" not in result.verdict  # a larger error goes with larger metrics
    assert plane.lower_left([encoder(0, 0, 90), encoder(1, 1, 50)], "output_linear") == (90, 50)


def test_table_1_chooses_without_the_test_split(context):
    made = ((79, "contrastive", 70, 60), (83, "contrastive", 60, 99), (174, "align+uniform", 65, 1))
    grid = [
        encoder(1, 1, test, row=row, kind=kind, seed=0, output_linear_cv=cv, output_knn5=50)
        for row, kind, cv, test in made
    ]
    chosen = {name[5:]: row["row"] for name, row in best_encoders.selected(grid).items()}
    expected = {"contrastive only": 79, "align and uniform only": 174, "among all encoders": 79}
    assert chosen == expected
    repeats = {(one.about["row"], one.config.seed) for one in best_encoders._repeats(context, grid)}
    assert repeats == {(row, seed) for row in (79, 174) for seed in (1, 2, 3)}


# Tables 4 and 11, and Figure 9b: sentence encoders.
TABLE4, TABLE11, FIGURE = (f"wang-isola/{name}" for name in ("table4", "table11", "figure9b"))


def test_sentence_encoders_at_both_scales(plan):
    *grid, baseline = plan(TABLE4)
    assert grid == plan(FIGURE) and len(grid) >= 12
    measured = {(one.evaluation.protocol, one.evaluation.tasks) for one in grid}
    assert measured == {("quick_thought", ("mr", "cr"))}
    # The baselines are of one of the grid: before training too, and its mean word embeddings.
    assert baseline.config in configs(grid) and baseline.about["kind"] == "baseline"
    assert baseline.evaluation.initial and baseline.evaluation.layers == ("output", "bag")
    everything = plan(TABLE11, "paper")
    assert len(everything) == 114 - 1 == len(plan(FIGURE, "paper"))  # of one alpha is doubtful
    settings = {(config.optimizer, config.model.dim) for config in configs(everything)}
    assert settings == {(quick_thought.OPTIMIZER, 1200)}
    # Table 4 trains the encoders that the paper chose: their accuracies are printed in both.
    of_mr, of_cr, both = plan(TABLE4, "paper")
    assert (of_mr.about["paper_val_mr"], of_cr.about["paper_val_cr"]) == (77.51, 83.86)
    assert (both.about["paper_val_mr"], both.about["paper_val_cr"]) == (73.76, 80.95)
    assert plan(TABLE4, "paper", row=2) == [both]


def sentence_encoder(number, kind, mr, cr, mr_cv=0, cr_cv=0, **more):
    """A row of an encoder with its scores on both tasks, and those of their cross-validation."""
    about = {"data": "books", "loss": f"loss {number}", "kind": kind, "step": 9, "row": number}
    about |= {"align": 1 / number, "uniform": -number, "mr_cv": mr_cv, "cr_cv": cr_cv}
    return done(**about | scored(mr=mr, cr=cr) | more)


def test_table_4_picks_for_each_task(context):
    """By cross-validation, not by the score of the table."""
    made = (  # kind, and scores on MR and CR, then by cross-validation
        ("contrastive", 60, 70, 1, 8),
        ("contrastive", 61, 75, 4, 6),
        ("align+uniform", 59, 71, 3, 7),
        ("contrastive+align+uniform", 58, 66, 5, 2),
        ("align", 99, 99, 99, 99),
        ("baseline", 98, 97, 98, 98),
    )
    rows = [sentence_encoder(number, *values) for number, values in enumerate(made, 1)]
    rows[4]["status"] = "failed"
    rows[5] |= {"step": 0} | scored(mr_bag=50, cr_bag=51)
    result = sentences.best_result(context, rows)
    places = [result.columns.index(name) for name in ("selection", "task", "loss", "accuracy (%)")]
    lines = {tuple(line[place] for place in places) for line in result.rows}
    assert len(lines) == len(result.rows) == 10
    for name, *of in (
        ("best contrastive only", "loss 2", 61, "loss 1", 70),
        ("best align and uniform only", "loss 3", 59, "loss 3", 71),
        ("best among all encoders", "loss 4", 58, "loss 1", 70),
        ("baseline: random encoder", None, 98, None, 97),
        ("baseline: random word embeddings, their mean", None, 50, None, 51),
    ):
        assert {(name, "MR", *of[:2]), (name, "CR", *of[2:])} <= lines
    assert all(f"{number}.00%" in result.verdict for number in (61, 59, 98, 70, 71, 97))


def test_figure_9b_has_a_plane_for_each_task(context, monkeypatch):
    """Encoders that are the better on MR the more they are aligned, and the worse on CR."""
    monkeypatch.setattr(plane, "rank_correlations", partial(plane.rank_correlations, draws=20))
    rows = [sentence_encoder(n, "contrastive", 50 + n, 80 - n) for n in range(1, 8)]
    result = sentences.plane_of_tasks(context, rows)
    values = {(line[0], line[2]): line[3] for line in result.rows if line[3]}
    assert float(values["MR", "L_align"]) == -1 and float(values["CR", "L_align"]) == 1
