"""Wang & Isola: which runs an item plans, which of them it compares, and how."""

import numpy as np
import pytest
from item_rows import done, scored
from scipy import stats

from experiments import tables
from experiments.items import folder_of, spread
from experiments.reproduce import ITEMS
from experiments.specifications import config_of, formula, refusal
from experiments.wang_isola import best, circle, plane, trajectories, weights
from hypersphere_jax import plots, runs
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
    numbers = [*range(1, 280, 25), 191, 240, 255]
    asked = [("table8", number) for number in numbers]
    asked += [("table1", 3), ("table2", 3), ("table3", 3), ("table5", 2)]
    for item, number in [*asked, ("table9", 64), ("table10", 1)]:
        row = tables.row_of(f"wang-isola/{item}", number)
        if refusal(row) is not None:
            with pytest.raises(UserError) as error:
                plan(f"wang-isola/{item}", "paper", row=number)
            assert refusal(row) in str(error.value)
            continue
        *sources, one = plan(f"wang-isola/{item}", "paper", row=number)
        assert to_dict(one.config) == to_dict(config_of(row, runs_dir=str(context.runs_dir)))
        before = [str(context.runs_dir / source.config.name) for source in sources]
        assert before == [name for name in [one.config.init_from] if name]
        printed = {f"paper_{name}": value for name, value in tables.expected(row).items()}
        assert printed.items() <= one.about.items(), (item, number)
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
    assert len({one.config.optimizer.batch_size for one in digits}) >= 5
    assert len(cifar10) >= 16 and len(digits) + len(cifar10) == len(both)
    assert all(one.config.init_from is None for one in both)  # none is there to begin from
    assert plan("wang-isola/table1") == cifar10
    # Table 1 chooses among these: the paper's own choices are there.
    losses = {formula(one.config.objective) for one in cifar10}
    assert {formula(config_of(row).objective) for row in tables.rows(best.TABLE1)} <= losses
    assert all(row.values["init"] == "rand" for row in plane.usable_rows())
    assert spread(range(10), 3) == [0, 4, 9] and spread([1, 2], 5) == [1, 2]


def test_figure_7_at_both_scales(plan):
    laptop = plan("wang-isola/figure7")
    shapes = [
        (o.objective.align_weight, o.objective.uniform_weight, o.seed) for o in configs(laptop)
    ]
    assert len(set(shapes)) == len(laptop) == 26 and {seed for *_, seed in shapes} == {0, 1}
    for one, (align, uniform, seed) in zip(laptop, shapes, strict=True):
        assert (one.about["align_weight"], one.about["uniform_weight"]) == (align, uniform)
        assert f"align{align:g}_uniform{uniform:g}_seed{seed}" in one.config.name
    assert {(1, 0, 0), (1, 1, 0), (0, 1, 0), (1, 0.25, 1)} <= set(shapes)
    paper = plan("wang-isola/figure7", "paper")
    assert len(paper) > 50
    for config in configs(paper):
        loss = config.objective
        assert (loss.align_alpha, loss.uniform_t, loss.contrastive_weight) == (2, 2, 0)
        assert (config.optimizer.batch_size, config.model.dim) == (768, 128)


def test_figure_8_begins_at_the_high_temperature(context, plan):
    of_table = {one.config.name for one in plan("wang-isola/table8", "paper")}
    for scale, tau, epochs in (("laptop", 2.5, {1}), ("paper", 2, {12})):
        start, *finetuned = plan("wang-isola/figure8", scale)
        assert (
            start.config.objective.contrastive_tau == tau and start.about["kind"] == "contrastive"
        )
        assert [one.about["panel"] for one in finetuned] == list(trajectories.OBJECTIVES)
        assert [one.about["kind"] for one in finetuned] == ["align", "uniform", "align+uniform"]
        assert {one.config.init_from for one in finetuned} == {
            str(context.runs_dir / start.config.name)
        }
        assert {one.config.optimizer.epochs for one in finetuned} == epochs
        assert all(o.config.runtime.keep_every_steps and o.measures.all_steps for o in finetuned)
        # Table 8 trains the paper's, with fewer checkpoints: not in the same folders.
        assert not of_table & {one.config.name for one in finetuned}
    assert start.config.name in of_table


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
    same = plane.rank_correlations([encoder(1, u, u) for u in uniform], draws=1)
    assert np.isnan(same["align"][0])


def test_the_plane(context, drawn):
    rows = [encoder(i, -i, 90 - abs(i - 5)) for i in range(11)]
    rows += [encoder(0, -9, 99.0) | {"data": "cifar10"}, {"status": "failed", "data": "digits"}]
    shown = plane.show_plane(context, rows, "Figure 5a", plane.ACCURACY)
    assert [line[:2] for line in shown.rows] == [["digits", 11]] * 4 + [["cifar10", 1]]
    groups, *_, lower_is_better = drawn["metrics_planes"]
    assert groups == {"digits": rows[:11], "cifar10": rows[11:12]} and not lower_is_better
    assert any("number 6 of 11 in alignment and number 6" in text for text in shown.text)
    for item, key, lower in (
        ("figure5b", "conv5_mse", True),
        ("figure9a", "backbone_linear", False),
    ):
        rows = [encoder(i, i, 0) | {key: float(i)} for i in range(6)]
        shown = ITEMS[f"wang-isola/{item}"].show(context, rows)
        assert drawn["metrics_planes"][2] == key and drawn["metrics_planes"][4] == lower
        assert ("OTHER" in shown.verdict) != lower  # a larger error goes with larger metrics
    assert plane.lower_left([encoder(0, 0, 90), encoder(1, 1, 50)], "output_linear") == (90, 50)


def test_the_inverted_u(context, drawn):
    def rows(accuracies, seed=0):
        made = zip([(0, 1), (1, 1), (1, 0)], accuracies, strict=True)
        return [
            encoder(0.1 + seed, -1, accuracy, align_weight=align, uniform_weight=uniform)
            for (align, uniform), accuracy in made
        ]

    shown = weights.show(context, [*rows((60, 90, 20)), *rows((62, 94, 22), seed=1)])
    cells = [line[0] for line in shown.rows]
    assert cells == ["1 : 0", "1 : 1", "0 : 1"]  # alignment alone comes first
    assert shown.rows[1][1:4] == pytest.approx([0.6, np.exp(-1), 92])
    assert shown.rows[1][4:] == ["90.00 to 94.00", 2]
    assert [len(group) for group in drawn["weights_curves"][1]] == [2, 2, 2]
    said = shown.verdict
    for not_so in ((95, 90, 20), (89, 90, 20)):  # higher at an end, and not clearly lower
        other = weights.show(context, rows(not_so)).verdict
        assert ("does not" in other) and ("does not" not in said)


def test_trajectories(context, drawn):
    rows = [
        encoder(0.5 - 0.01 * step, -1, 50 + sign * step, panel=panel, step=step)
        for panel, sign in zip(trajectories.OBJECTIVES, (1, -1, 0.1), strict=True)
        for step in (0, 5, 10)
    ]
    shown = trajectories.show(context, [encoder(1, 1, 1), *rows])
    assert [line[1] for line in shown.rows] == [0, 10] * 3
    better, worse, near = shown.verdict.split("; ")[:3]
    for said, word, change in ((better, "better", "+10.00"), (worse, "worse", "-10.00")):
        assert word in said and change in said
    assert "not clearly" in near and "+1.00" in near
    assert [len(group) for group in drawn["trajectories"][0].values()] == [3, 3, 3]
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
    # Repeats do not take part in the choice.
    later = encoder(1, 1, 99, row=83, kind="contrastive", seed=1, output_linear_cv=99)
    assert best.selected([*grid(), later])["best contrastive only"]["row"] == 79


def test_the_circle(context, plan, monkeypatch, drawn, rng):
    """Its encoders have two dimensions; the random one is the contrastive one's beginning."""
    planned = plan("wang-isola/figure3")
    losses = [one.config.objective for one in planned]
    assert [one.config.model.dim for one in planned] == [2, 2]
    assert [one.about["kind"] for one in planned] == ["supervised", "contrastive"]
    assert [loss.supervised_weight for loss in losses] == [1, 0]
    loaded, points = [], rng.normal(size=(3, 50, 2))
    points = (points / np.linalg.norm(points, axis=2, keepdims=True)).astype(np.float32)

    class Split:
        labels, class_names = np.arange(50) % 4, circle.CLASSES

    def load(folder, step):
        loaded.append((folder.name, step))
        return planned[0]

    class Features:
        x = points[2]

    monkeypatch.setattr(runs, "load_encoder", load)
    monkeypatch.setattr(circle.data, "load", lambda config: Split)
    monkeypatch.setattr(runs, "test_split", lambda dataset: Split)
    monkeypatch.setattr(circle, "pair_features", lambda *_: (points[0], points[1]))
    monkeypatch.setattr(circle, "split_features", lambda *_: {"output": Features})
    rows = [
        done(run=f"circle_{name}", encoder=name, output_linear=30.0)
        for name in ("supervised", "contrastive")
    ]
    shown = circle.show(context, [row | {"run": row["run"]} for row in rows])
    assert loaded == [
        ("circle_contrastive", 0),
        ("circle_supervised", None),
        ("circle_contrastive", None),
    ]
    distances = np.linalg.norm(points[0] - points[1], axis=1)
    gram = np.exp(-4 + 4 * points[2].astype(float) @ points[2].T)
    potential = (gram.sum() - 50) / (50 * 49)
    for line, accuracy in zip(shown.rows, (None, 30.0, 30.0), strict=True):
        assert line[1:4] == pytest.approx([distances.mean(), np.median(distances), potential])
        assert line[4] == accuracy
    assert drawn["circle_figure"][3] == [0, 1, 2, 3]


def test_data_by_name(tmp_path):
    assert folder_of("digits", "anywhere") is None and folder_of("stl10", None) is None
    for inside, place in ((None, ""), ("stl10", ""), ("stl10/train.zip", "stl10")):
        if inside:  # a folder alone is TensorFlow Datasets' layout
            (tmp_path / inside).touch() if "." in inside else (tmp_path / inside).mkdir()
        assert folder_of("stl10", str(tmp_path)) == str(tmp_path / place)
