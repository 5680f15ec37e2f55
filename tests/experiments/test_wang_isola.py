"""Wang & Isola: which runs an item plans, which of them it compares, and how."""

import math
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from run_rows import configs, done, predicted, scored
from scipy import stats

from experiments import tables
from experiments.correlations import rank_correlations
from experiments.inference import difference
from experiments.predictions import Predictions, right
from experiments.reproduce import REPRODUCTIONS
from experiments.specifications import config_of, formula
from experiments.wang_isola import best_encoders, circle, plane, trajectories, weights
from hypersphere_jax import configs as C
from hypersphere_jax.configs import UserError, to_dict


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
    digits, cifar10 = ([p for p in both if p.config.data == n] for n in ("digits", "cifar10"))
    assert len({config.name for config in configs(both)}) == len(both)
    assert all(one.config.init_from is None for one in both)  # none is there to begin from
    assert all(row.values["init"] == "rand" for row in plane.usable_rows())
    # Of digits, all of Table 8 that begin at random, as they are there, with more seeds. Rows 1 to
    # 3 are one setting here, of which the first stays, as of those that the paper repeats.
    every = {one.config.name: one for one in plan("wang-isola/table8")}
    random = {name: one for name, one in every.items() if one.config.init_from is None}
    assert (len(every), len(random)) == (219, 195)
    for number in (2, 3):
        again = random.pop(f"wang_isola_table8_row{number}_laptop").config
        assert replace(again, name=digits[0].config.name) == digits[0].config
    single = {name: one for name, one in random.items() if one.config.seed == 0}
    assert {one.config.name: one for one in digits if one.config.seed == 0} == single
    assert len({replace(one.config, name="encoder") for one in digits}) == len(digits)
    seeds = {}
    for one in digits:
        seeds.setdefault(one.about["row"], set()).add(one.config.seed)
    assert len(seeds) == 190 and all(of == set(range(5)) for of in seeds.values())
    assert plan("wang-isola/table1") == cifar10  # among which the paper's own choices are
    losses = {formula(config) for config in configs(cifar10)}
    assert {formula(config_of(row)) for row in tables.rows(best_encoders.TABLE1)} <= losses
    assert len(cifar10) == 3 * len(losses) and {c.seed for c in configs(cifar10)} == {0, 1, 2}
    assert {config.init for config in configs(cifar10)} == {"authors"}


def test_figure_7_at_both_scales(plan):
    shapes = set()
    for config, about, *_ in plan("wang-isola/figure7"):
        shape = (config.align_weight, config.uniform_weight, config.seed)
        assert shape[:2] == (about["align_weight"], about["uniform_weight"])
        assert "align{:g}_uniform{:g}_seed{}".format(*shape) in config.name
        shapes.add((config.data, *shape))
    assert len(shapes) == 13 * 5 + 5 * 3
    for images, seed in (("digits", 4), ("cifar10", 2)):
        assert {(images, *pair, seed) for pair in ((1, 0), (0, 1), (1, 1), (0.25, 1))} <= shapes
    assert len(plan("wang-isola/figure7", "paper")) > 50


def test_figure_8_begins_at_the_high_temperature(context, plan):
    for scale, tau, epochs, seeds in (("laptop", 2.5, 1, 3), ("paper", 2, 12, 1)):
        planned = plan("wang-isola/figure8", scale)
        assert len({config.name for config in configs(planned)}) == len(planned) == 5 * seeds
        for seed in range(seeds):
            start, control, *finetuned = planned[5 * seed : 5 * seed + 5]
            assert start.config.contrastive_tau == tau
            assert formula(control.config) == formula(start.config)
            assert {config.seed for config in configs([start, control, *finetuned])} == {seed}
            assert [one.about["panel"] for one in finetuned] == list(trajectories.OBJECTIVES)
            assert [one.about["kind"] for one in finetuned] == ["align", "uniform", "align+uniform"]
            # Nothing but the objective tells these from the control.
            rules = {
                C.section(config, C.OptimizerConfig) for config in configs([control, *finetuned])
            }
            starts = {config.init_from for config in configs([control, *finetuned])}
            assert len(rules) == 1 and rules.pop().epochs == epochs
            assert starts == {str(context.runs_dir / start.config.name)}


def test_the_circle(plan):
    """Its encoders have two dimensions, a supervised and a contrastive one."""
    planned = plan("wang-isola/figure3")
    trained = [(c.dim, c.supervised_weight) for c in configs(planned)]
    assert trained == [(2, 1)] * 3 + [(2, 0)] * 3
    assert [one.about["seed"] for one in planned] == 2 * [0, 1, 2]
    assert {one.about["kind"] for one in planned} == {"supervised", "contrastive"}
    assert len(plan("wang-isola/figure3", "paper")) == 2
    assert planned[0].config.align_weight == planned[0].config.uniform_weight == 0
    assert [one.evaluation.initial for one in planned] == [False] * 3 + [True] * 3


def test_the_circles_encoders_have_their_own_scores(context, monkeypatch):
    """The random initialization those of step 0; one that is not done has no row."""
    monkeypatch.setattr(
        circle, "features_of", lambda name, folder, step: {"name": name, "of": (folder.name, step)}
    )
    rows = [
        done(encoder=name, step=step, output_linear=accuracy, seed=0)
        for name, step, accuracy in (("contrastive", 0, 1), ("contrastive", 9, 2))
    ]
    rows.append(rows[1] | {"encoder": "supervised", "seed": 1})  # not of the picture's seed
    found = circle.encoders(context, rows)
    of = {"Random initialization": (0, 1), "Unsupervised contrastive learning": (None, 2)}
    assert [one["name"] for one in found] == [*of]
    for one, (step, accuracy) in zip(found, of.values(), strict=True):
        assert one["of"] == ("circle_contrastive", step)
        assert [row["output_linear"] for row in one["rows"]] == [accuracy]


def test_how_often_the_contrastive_encoder_is_the_most_uniform(context, monkeypatch):
    monkeypatch.setattr(circle, "circle_figure", lambda *of: None)
    apart = {"Random": 0.2, "Supervised": 0.9, "Unsupervised": 0.5}
    features = lambda name, *of: {  # noqa: E731
        "name": name,
        "pair_distances": np.full(5, apart[name.split()[0]]),
        "class_names": circle.CLASSES,
    }
    monkeypatch.setattr(circle, "features_of", features)
    levels = {("contrastive", 0): 0.9, ("contrastive", 9): 0.3, ("supervised", 9): 0.35}
    scores = {f"output_{key}": 30 for key in ("logistic", "knn5", "linear")}
    rows = [
        done(
            encoder=name, step=step, uniform=math.log(level - 0.1 * (seed == 2 and name[0] == "s"))
        )
        | predicted(seed, **scores)
        for (name, step), level in levels.items()
        for seed in range(3)
    ]
    result = circle.result(context, rows)
    assert result.verdict.startswith(
        "The contrastive encoder is the most uniform of the three in 2"
    )
    assert (
        "nearer than random points (0.50; supervised 0.90, random network 0.20)" in result.verdict
    )
    assert [row[3] for row in result.rows][1] == "0.350, 0.350, 0.250"


def judged(seed, logistic, knn, paper=50, **more):
    """A row of an encoder with these accuracies on the output by all instruments."""
    scores = {"output_logistic": logistic, "output_knn5": knn, "output_linear": paper}
    return done(align=1.0, uniform=-1.0, **more) | predicted(seed, **scores)


def test_the_inverted_u_has_to_show_by_both_instruments(context, drawn):
    """The paper's probe alone decides nothing; nor does one end."""

    def verdict(alone, equal, others, images="digits"):
        rows = [
            judged(seed, *of, data=images, align_weight=pair[0], uniform_weight=pair[1])
            for pair, of in {(1, 0): alone, (1, 1): equal, (0, 1): others, (0.5, 1): others}.items()
            for seed in range(5)
        ]
        failed = {"status": "failed", "data": images, "align_weight": 1, "uniform_weight": 1}
        result = weights.result(context, [*rows, failed])
        assert [line[1] for line in result.rows] == ["1 : 0", "1 : 1", "0.5 : 1", "0 : 1"]
        return result.verdict

    assert "shows on digits" in verdict((80, 82), (95, 96), (70, 60))
    for alone, others in (((95, 60), (70, 60)), ((60, 96, 10), (70, 60)), ((80, 82), (97, 98))):
        assert "U does not show on cifar10" in verdict(alone, (95, 96), others, "cifar10")
    told = "equal weighting is ahead of alignment alone (digits) by 15.00 ("
    assert told in verdict((80, 82), (95, 96), (70, 60))
    assert "within" not in verdict((80, 82), (95, 96), (70, 60))
    half = [(1, 0, 80), (1, 1, 90)]
    some = [
        judged(seed, at, at, data="d", align_weight=align, uniform_weight=uniform)
        for align, uniform, at in half
        for seed in range(5)
    ]
    found = weights.result(context, some)
    assert "equal weighting is ahead of alignment alone (d) by" in found.verdict
    assert found.short == ""
    one_end = [judged(0, 90, 90, data="d", align_weight=1, uniform_weight=0)]
    assert weights.result(context, one_end).verdict == ""


def test_the_middle_of_the_inverted_u(context, drawn):
    """Within a ratio of 4; Holm's correction counts its comparisons, too."""

    def result(near):
        accuracies = {(1, 0): 70, (1, 0.25): near[0], (1, 1): 90, (0.25, 1): near[1], (0, 1): 70}
        rows = [
            judged(seed, at, at, data="digits", align_weight=pair[0], uniform_weight=pair[1])
            for pair, at in accuracies.items()
            for seed in range(5)
        ]
        return weights.result(context, rows)

    short = "The inverted U shows on digits; within a ratio of 4, "
    assert result((90, 90)).short == f"{short}no difference shows."
    found = result((80, 97))
    assert (
        found.short
        == f"{short}equal weighting is ahead of 4 : 1 on digits and behind 1 : 4 on digits."
    )
    assert "Holm's correction counts the 4 comparisons" in found.verdict


def test_finetuning_is_judged_against_start_and_control(context, drawn):
    def rows_of(**ends):
        """The first start has 50%, others more, as what is finetuned of them has."""
        return [
            judged(seed, *(score + 5 * seed for score in of), panel=panel, step=step)
            for panel, end in ends.items()
            for seed in range(3)
            for step, of in ((0, (50, 50)), (9, end))
        ]

    panels = {"contrastive": (60, 62), "align only": (30, 80), "uniform only": (40, 41)}
    rows = rows_of(**panels, **{"align + uniform": (90, 61)})
    result = trajectories.result(context, rows)
    assert [line[:2] for line in result.rows] == [
        *(["start", 0], ["contrastive", 9], ["align only", 9]),
        *(["uniform only", 9], ["align + uniform", 9]),
    ]
    assert "decide, the control is ahead of the start by 10.00 (" in result.verdict
    told, _, rest = result.short.removeprefix("On the output, ").partition("; none of")
    assert rest == " the other 3 differences shows." and set(
        re.sub(" by [^;]*", "", told).split("; ")
    ) == {
        *("the control is ahead of the start", "align + uniform is ahead of the start"),
        *("the start is ahead of uniform only", "the control is ahead of uniform only"),
    }
    (apart,) = re.findall("start is not told apart from align only([^;]+)", result.verdict)
    assert apart.startswith(": +20.00 (") and "-30.00" in apart  # by 5-NN, the other way
    assert trajectories.result(context, rows_of(**{"align only": (30, 80)})).verdict == ""


def test_all_instruments_stand_in_one_picture():
    """Means over seeds with their intervals, all percents on the axis; metrics below."""

    def encoder(seed, align, logistic, **more):
        scores = {"output_logistic": logistic, "output_knn5": 50, "output_linear": 20}
        numbers = {"align": align, "uniform": -align, "step": 9} | more
        return done(**predicted(seed, **scores) | numbers)

    first, last = [encoder(0, 0.1, 90), encoder(1, 0.5, 80)], [encoder(2, 0.4, 60, step=0)]
    one = {(1, 0): first, (1, 1): last}
    figure = weights.draw_weights({"a": one, "b": {(1, 1): last, (0, 1): first}}, None)
    accuracy, others, near, _, metrics, _ = figure.axes
    assert accuracy.lines[0].get_xydata().tolist() == [[0, 85], [1, 60]]
    assert others.lines[0].get_xydata().tolist() == [[1, 60], [2, 85]]
    assert accuracy.get_ylim() == others.get_ylim() and accuracy.get_ylim()[0] == 0
    assert len(near.containers) == 2 and near.get_ylim()[0] > 20  # the third has 20 everywhere
    bar = accuracy.collections[0].get_segments()[0]
    of = difference(right(first, "output_logistic"))
    assert bar[:, 1] == pytest.approx([of.low, of.high])
    for line, expected in zip(metrics.lines, ([0.3, 0.4], np.exp([-0.3, -0.4])), strict=True):
        assert list(line.get_ydata()) == pytest.approx(expected)
    labels = [text.get_text() for text in metrics.get_xticklabels()]
    assert labels == ["1 : 0", "1 : 1", "0 : 1"]
    above, below = trajectories.draw_trajectories({"p": last + first}, None).axes
    assert above.lines[0].get_xydata().tolist() == [[0, 60], [9, 85]]
    assert list(below.lines[0].get_ydata()) == pytest.approx([0.4, 0.3])


def points(align, uniform, accuracy, row, seed=0, data="digits", predicted_ones=True, **more):
    """A row of an encoder with this accuracy on the output by all instruments."""
    names = ("output_logistic", "output_knn5", "output_linear")
    scores = dict.fromkeys(names, accuracy)
    made = predicted(seed, **scores) if predicted_ones else scored(**scores)
    about = {"data": data, "loss": "a loss", "kind": "contrastive", "row": row, "seed": seed}
    return done(align=align, uniform=uniform, **made | about | more)


def test_rank_correlations(rng):
    """SciPy's of the means over seeds: of weighted sums, of either half."""
    align, uniform, noise = rng.normal(size=(3, 40))
    score = 20 + 1.5 * stats.rankdata(-align - uniform - noise)
    numbers = [*zip(align, uniform, score, strict=True)]
    rows = [points(a, u, s, row) for row, (a, u, s) in enumerate(numbers)]
    rows.append(points(align[0] + 9, uniform[0] - 3, score[0] - 10.5, 0, seed=1))
    for of, change in ((align, 4.5), (uniform, -1.5), (score, -5.25)):
        of[0] += change  # the mean over both seeds of the first
    shares = np.array([0, 0.25, 0.5])
    halves = {0: score > 0, 1: score >= np.sort(score)[20], -1: score < np.sort(score)[20]}
    for half, mine in halves.items():
        found = rank_correlations(rows, "output_knn5", shares, half)
        for share, estimate in zip(shares, found, strict=True):
            total = (1 - share) * align + share * uniform
            expected = stats.spearmanr(total[mine], score[mine]).statistic
            assert estimate.value == pytest.approx(expected)
            assert estimate.low < estimate.value < estimate.high
            assert (estimate.p < 0.05) == (estimate.low > 0 or estimate.high < 0)
        if half == 0:  # about Fisher's interval of the last
            width = 2 * 1.96 / np.sqrt(37) * (1 - estimate.value**2)
            assert 0.7 < (estimate.high - estimate.low) / width < 1.6


def test_rank_correlations_draw_test_samples(rng):
    """Encoders that differ by few of a hundred samples are in an order that is not sure."""
    rows = [points(a, 0, 50 - a / 9, a, predicted_ones=False) for a in range(30)]
    for kept in (False, True):
        for row in rows if kept else ():
            ones = Predictions(np.ones(100, int), (rng.random(100) < 0.4).astype(int))
            row["predictions"] = {"output_knn5": ones}
        (of,) = rank_correlations(rows, "output_knn5", np.zeros(1), draws=200)
        assert (of.value == pytest.approx(-1)) != kept
        assert of.low == pytest.approx(of.high) if not kept else of.low < -0.2 < 0.2 < of.high


def test_the_plane(context, drawn, monkeypatch):
    """The claim shows where both instruments say so."""
    monkeypatch.setattr(plane, "rank_correlations", partial(rank_correlations, draws=200))
    of_digits = [(i / 10, -1, 90 - 5 * i) for i in range(9)] + [
        (2 + i / 10, -1, 30 - i) for i in range(9)
    ]
    rows = [points(*of, row) for row, of in enumerate(of_digits)]
    rows += [points(0, -9, 99, 0, data="cifar10"), {"status": "failed", "data": "digits"}]
    result = plane.plane_result("Figure 5a", plane.ACCURACY, context, rows)
    assert [line[:2] for line in result.rows] == [
        *([["digits", "all 18"]] * 5 + [["digits", "better half of 18"]] * 5),
        ["cifar10", "1, too few to rank"],
    ]
    assert [line[2] for line in result.rows[:5]] == ["1 : 0", "3 : 1", "1 : 1", "1 : 3", "0 : 1"]
    assert result.rows[2][3].startswith("-1.00 (")
    told = "Over all 18 encoders of digits, the rank correlation with L_align + L_uniform is -1.00"
    assert result.verdict.startswith(told) and "probe: the claim shows." in result.verdict
    planes, _, _, lower_is_better = drawn["encoder_planes"]
    assert list(planes) == ["digits", "cifar10"] and not lower_is_better
    assert planes["digits"].scores["5-NN"].tolist() == [of[2] for of in of_digits]
    # By one instrument alone it does not show.
    for row in rows[:18]:
        row["predictions"]["output_knn5"] = rows[0]["predictions"]["output_knn5"]
    verdict = plane.plane_result("Figure 5a", plane.ACCURACY, context, rows).verdict
    assert "-1.00" in verdict and "claim shows" not in verdict
    rows = [points(i, i, 0, i) | {"conv5_mse": float(i)} for i in range(12)]
    result = REPRODUCTIONS["wang-isola/figure5b"].result(context, rows)
    assert drawn["encoder_planes"][3] and "+1.00" in result.verdict
    assert "opposite" not in result.verdict  # a larger error goes with larger metrics


def test_table_1_chooses_without_the_test_split(context):
    made = (  # row, kind, validation by seed, test
        (79, "contrastive", (70, 72, 71), 60),
        (83, "contrastive", (90, 60, 61), 99),
        (109, "contrastive+uniform", (80, 80, 80), 55),
        (174, "align+uniform", (65, 66, 67), 1),
    )
    grid = [
        points(1, 1, test, row, seed, kind=kind, data="cifar10", output_logistic_cv=cv)
        for row, kind, by_seed, test in made
        for seed, cv in enumerate(by_seed)
    ]
    chosen = {name[5:]: row for name, row in best_encoders.selected(grid).items()}
    expected = {"contrastive only": 79, "align and uniform only": 174, "among all encoders": 109}
    assert chosen == expected
    fresh = best_encoders._fresh(context, grid)
    trained = {(one.about["row"], one.config.seed) for one in fresh}
    assert trained == {(row, seed) for row in (79, 109, 174) for seed in range(3, 8)}
    # What is compared are these seeds alone, whatever the grid says.
    layers = ("output", "fc7")

    def again(row, accuracy):
        scores = {
            f"{layer}_{key}": accuracy for layer in layers for key in ("logistic", "knn5", "linear")
        }
        made = (predicted(seed, n=2000, **scores) for seed in range(3, 8))
        return [done(data="cifar10", row=row, kind="any", loss="a loss", **of) for of in made]

    rows = grid + again(79, 40) + again(174, 45) + again(109, 30)
    result = best_encoders.result(context, rows)
    assert "uniform encoder is ahead of the best contrastive one by 5.00 (" in result.verdict
    column = result.columns.index("output: 5-NN (%)")
    assert [line[column][:5] for line in result.rows] == ["40.00", "45.00", "30.00"]
    assert best_encoders.result(context, grid).verdict == ""


# Tables 4 and 11, and Figure 9b: sentence encoders.
