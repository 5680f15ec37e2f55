"""Wang & Isola: which runs an item plans, which of them it compares, and how."""

import numpy as np
import pytest
from item_rows import done, scored
from scipy import stats

from experiments import tables
from experiments.reproduce import ITEMS
from experiments.specifications import config_of, formula
from experiments.wang_isola import best, plane, trajectories
from hypersphere_jax import plots
from hypersphere_jax.config import UserError, to_dict


@pytest.fixture
def drawn(monkeypatch):
    """What items give their pictures to draw; nothing is drawn."""
    found = {}
    for name in ("metrics_planes", "weights_curves", "trajectories", "circle_figure"):
        keep = lambda *given, name=name: found.update({name: given})  # noqa: E731
        monkeypatch.setattr(plots, name, keep)
    return found


def configs(planned):
    return [one.config for one in planned]


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
    assert first.measures.depth and first.about["table"] == "wang-isola/table9"


def test_the_laptops_sweeps_span_the_papers_ranges(plan):
    both = plan("wang-isola/figure5a")
    digits = [one for one in both if one.config.data.name == "digits"]
    cifar10 = [one for one in both if one.config.data.name == "cifar10"]
    assert len(digits) >= 60 and len({one.config.name for one in digits}) == len(digits)
    assert {one.about["kind"] for one in digits} >= {"contrastive", "align+uniform", "uniform"}
    dims = {one.config.model.dim for one in digits}
    assert min(dims) == 2 and max(dims) >= 1024
    assert all(one.config.init_from is None for one in both)  # none is there to begin from
    assert plan("wang-isola/table1") == cifar10  # among which the paper's own choices are
    losses = {formula(one.config.objective) for one in cifar10}
    assert {formula(config_of(row).objective) for row in tables.rows(best.TABLE1)} <= losses
    assert all(row.values["init"] == "rand" for row in plane.usable_rows())


def test_figure_7_at_both_scales(plan):
    shapes = set()
    for one in plan("wang-isola/figure7"):
        loss, seed = one.config.objective, one.config.seed
        align, uniform = one.about["align_weight"], one.about["uniform_weight"]
        assert (loss.align_weight, loss.uniform_weight) == (align, uniform)
        assert f"align{align:g}_uniform{uniform:g}_seed{seed}" in one.config.name
        shapes.add((align, uniform, seed))
    assert len(shapes) == 26 and {(1, 0, 0), (0, 1, 0), (1, 0.25, 1)} <= shapes
    assert len(plan("wang-isola/figure7", "paper")) > 50


def test_figure_8_begins_at_the_high_temperature(context, plan):
    for scale, tau, epochs in (("laptop", 2.5, {1}), ("paper", 2, {12})):
        start, *finetuned = plan("wang-isola/figure8", scale)
        assert start.config.objective.contrastive_tau == tau
        assert [one.about["panel"] for one in finetuned] == list(trajectories.OBJECTIVES)
        assert [one.about["kind"] for one in finetuned] == ["align", "uniform", "align+uniform"]
        assert {one.config.init_from for one in finetuned} == {
            str(context.runs_dir / start.config.name)
        }
        assert {one.config.optimizer.epochs for one in finetuned} == epochs


def test_rank_correlations():
    random = np.random.default_rng(0)
    align, uniform, noise = random.normal(size=(3, 40))
    rows = [encoder(*numbers) for numbers in zip(align, uniform, -align + noise, strict=True)]
    found = plane.rank_correlations(rows, draws=300)
    for name, values in (("align", align), ("uniform", uniform), ("sum", align + uniform)):
        value, low, high, chance = found[name]
        assert value == pytest.approx(stats.spearmanr(values, -align + noise).statistic)
        assert low < value < high and 0.2 < chance < 0.45  # 1.96 / sqrt(39) is 0.31
    assert found["ranks"][0] >= abs(found["align"][0])
    # Ranks know nothing of scale; and a score that the two make together is known from both.
    rows = [encoder(np.exp(a), u, 90 - a - u) for a, u in zip(align, uniform, strict=True)]
    assert plane.rank_correlations(rows, draws=10)["ranks"][0] > 0.95


def test_the_plane(context, drawn):
    rows = [encoder(i, -i, 90 - abs(i - 5)) for i in range(11)]
    rows += [encoder(0, -9, 99.0) | {"data": "cifar10"}, {"status": "failed", "data": "digits"}]
    shown = plane.show_plane(context, rows, "Figure 5a", plane.ACCURACY)
    assert [line[:2] for line in shown.rows] == [["digits", 11]] * 4 + [["cifar10", 1]]
    groups, *_, lower_is_better = drawn["metrics_planes"]
    assert groups == {"digits": rows[:11], "cifar10": rows[11:12]} and not lower_is_better
    assert any("number 6 of 11 in alignment and number 6" in text for text in shown.text)
    rows = [encoder(i, i, 0) | {"conv5_mse": float(i)} for i in range(6)]
    shown = ITEMS["wang-isola/figure5b"].show(context, rows)
    assert drawn["metrics_planes"][2] == "conv5_mse" and drawn["metrics_planes"][4]
    assert "OTHER" not in shown.verdict  # a larger error goes with larger metrics
    assert plane.lower_left([encoder(0, 0, 90), encoder(1, 1, 50)], "output_linear") == (90, 50)


def grid():
    """Encoders by row of Table 8, kind, accuracy by cross-validation and on the test split."""
    made = ((79, "contrastive", 70, 60), (83, "contrastive", 60, 99), (174, "align+uniform", 65, 1))
    return [
        encoder(1, 1, test, row=row, kind=kind, seed=0, output_linear_cv=cv, output_knn5=50)
        for row, kind, cv, test in made
    ]


def test_table_1_chooses_without_the_test_split(context):
    chosen = {
        "best contrastive only": 79,
        "best align and uniform only": 174,
        "best among all encoders": 79,
    }
    assert {name: row["row"] for name, row in best.selected(grid()).items()} == chosen
    repeats = best._repeats(context, grid())
    assert sorted((one.about["row"], one.config.seed) for one in repeats) == [
        (row, seed) for row in (79, 174) for seed in (1, 2, 3)
    ]


def test_the_circle(plan):
    """Its encoders have two dimensions, a supervised and a contrastive one."""
    planned = plan("wang-isola/figure3")
    losses = [one.config.objective for one in planned]
    assert [one.config.model.dim for one in planned] == [2, 2]
    assert [one.about["kind"] for one in planned] == ["supervised", "contrastive"]
    assert [loss.supervised_weight for loss in losses] == [1, 0]
    assert losses[0].align_weight == losses[0].uniform_weight == 0
