"""Wang & Isola's encoders of sentences: what is planned, picked and compared."""

from functools import partial

import numpy as np
from run_rows import configs, done, predicted

from experiments import quick_thought
from experiments.predictions import Predictions
from experiments.reproduce import REPRODUCTIONS
from experiments.wang_isola import plane, sentence_planes, sentences

TABLE4, TABLE11, FIGURE = (f"wang-isola/{name}" for name in ("table4", "table11", "figure9b"))


def test_sentence_encoders_at_both_scales(plan):
    planned = plan(TABLE4)
    grid, baselines = planned[:-3], planned[-3:]
    assert planned == plan(FIGURE) and len(grid) >= 12
    measured = {(one.evaluation.protocol, one.evaluation.tasks) for one in grid}
    assert measured == {("quick_thought", ("mr", "cr"))}
    # The baselines have other seeds than the grid: before training too, and mean word embeddings.
    assert len({one.about["row"] for one in grid}) == len(grid)
    assert [config.seed for config in configs(baselines)] == [1, 2, 3]
    for one in baselines:
        assert one.about["kind"] == "baseline" and one.about["row"] in {
            g.about["row"] for g in grid
        }
        assert one.evaluation.initial and one.evaluation.layers == ("output", "bag")
    assert planned == plan(TABLE11) and len(plan(TABLE11, row=44)) == 1
    everything = plan(TABLE11, "paper")
    assert len(everything) == 114 - 1 == len(plan(FIGURE, "paper"))  # of one alpha is doubtful
    for config in configs(everything):
        assert config == config.replace(**vars(quick_thought.OPTIMIZER), dim=1200)
    # Table 4 trains the encoders that the paper chose: their accuracies are printed in both.
    of_mr, of_cr, both = plan(TABLE4, "paper")
    assert (of_mr.about["paper_val_mr"], of_cr.about["paper_val_cr"]) == (77.51, 83.86)
    assert (both.about["paper_val_mr"], both.about["paper_val_cr"]) == (73.76, 80.95)
    assert plan(TABLE4, "paper", row=2) == [both]


def by_both(seed=0, knn=0, **scores):
    """Scores by the paper's protocol, and by 5-NN so many points apart."""
    near = {f"{name}_knn5": value + knn for name, value in scores.items()}
    return predicted(seed, **scores, **near)


def sentence_encoder(number, kind, mr, cr, mr_cv=0, cr_cv=0, seed=0, knn=0, **more):
    """A row of an encoder with its scores on both tasks, and those of their cross-validation."""
    about = {"data": "books", "loss": f"loss {number}", "kind": kind, "step": 9, "row": number}
    about |= {"align": 1 / number, "uniform": -number, "mr_cv": mr_cv, "cr_cv": cr_cv}
    return done(**about) | by_both(seed, knn, mr=mr, cr=cr) | more


def word_vectors(mr, cr, before=10, knn=0):
    """Rows of the baselines: word vectors with these accuracies, much worse in another place."""
    rows = []
    for seed in (1, 2, 3):
        row = sentence_encoder(9, "baseline", before, before)
        rows += [
            row | {"step": step} | by_both(seed, knn, mr=before, cr=before, mr_bag=a, cr_bag=b)
            for step, a, b in ((0, mr, cr), (9, before + 1, before + 2))
        ]
    return rows


def picks():
    """A grid of both kinds, and the two encoders that are best by cross-validation on each task."""
    made = (  # kind, and scores on MR and CR, then by cross-validation
        ("contrastive", 60, 70, 1, 8),
        ("contrastive", 61, 75, 4, 6),
        ("align+uniform", 59, 71, 3, 7),
        ("contrastive+align+uniform", 58, 66, 5, 2),
        ("align", 99, 99, 99, 99),
    )
    rows = [sentence_encoder(number, *values) for number, values in enumerate(made, 1)]
    rows[4]["status"] = "failed"
    return rows


def test_table_4_picks_for_each_task(context):
    """By cross-validation among the grid, and reports the accuracy with fresh seeds."""
    rows = picks()
    chosen = {key: row["row"] for key, row in sentences.selected(rows).items()}
    names = ("best contrastive only", "best align and uniform only", "best among all encoders")
    assert chosen == {
        (name, task): row
        for name, of in zip(names, ((2, 1), (3, 3), (4, 1)), strict=True)
        for task, row in zip(("mr", "cr"), of, strict=True)
    }
    again = sentences._fresh(context, rows)
    assert {(one.about["row"], one.config.seed, one.about["fresh"]) for one in again} == {
        (row, seed, True) for row in (1, 2, 3, 4) for seed in (1, 2, 3)
    }
    fresh = [
        sentence_encoder(2, "contrastive", 80 + seed, 30, 100, 100, seed, -20, fresh=True)
        for seed in (1, 2, 3)
    ]
    result = sentences.best_result(context, rows + fresh + word_vectors(70, 50, knn=-5))
    names = ("selection", "task", "loss", "seeds", "logistic (%)", "5-NN (%)")
    places = [result.columns.index(name) for name in names]
    lines = {tuple(line[place] for place in places[:4]): line for line in result.rows}
    assert len(lines) == len(result.rows) == 6 + 8
    for *where, logistic, near in (
        ("best contrastive only", "MR", "loss 2", 3, 82, 62),
        ("best contrastive only", "CR", "loss 1", 1, 70, 70),
        ("best align and uniform only", "MR", "loss 3", 1, 59, 59),
        ("baseline: mean of random word vectors", "MR", None, 3, 70, 65),
        ("baseline: mean of trained word vectors", "CR", None, 3, 12, 7),
        ("baseline: random encoder", "MR", None, 3, 10, 5),
        ("baseline: majority class", "MR", None, 1, 100, 100),
    ):
        cells = [lines[tuple(where)][place] for place in places[4:]]
        assert [cell.partition(" ±")[0] for cell in cells] == [f"{logistic}.00", f"{near}.00"]
    less = [result.columns.index(f"{name}: less words") for name in ("logistic", "5-NN")]
    logistic, near = (lines["best contrastive only", "MR", "loss 2", 3][place] for place in less)
    assert logistic.startswith("+12.00 (") and near.startswith("-3.00 (")


def test_table_4_says_where_encoders_stand_against_word_vectors(context):
    def verdict(words, knn=0):
        again = [
            picked | {"fresh": True} | by_both(seed, knn, mr=picked["mr"], cr=picked["cr"])
            for picked in picks()[:4]
            for seed in (1, 2, 3)
        ]
        rows = picks() + again + word_vectors(words, words)
        return sentences.best_result(context, rows).verdict

    below, above = verdict(90), verdict(20)
    assert (
        "none of these encoders is shown to be ahead" in below and below.count("is behind") == 4 + 1
    )
    assert "4 of 4 are ahead of that mean" in above and above.count("is ahead of") == 4 + 1
    assert "contrastive is ahead of align + uniform (MR) by 2.00 (" in below
    assert "90.0% and 90.0% (mean of random word vectors), 100.0% and 100.0% (majority" in below
    # Ahead by logistic regression alone is not ahead.
    apart = verdict(30, -50)
    assert "none of these encoders is shown to be ahead" in apart
    assert "contrastive is not told apart from the mean of random word vectors (MR): +31" in apart
    assert sentences.best_result(context, picks()).verdict == ""


def test_levels_are_of_the_same_sentences():
    """The majority class is right on its own sentences; word vectors are those before training."""
    targets = np.array([0, 1, 1, 1])
    scores = {"mr_bag": [0, 1, 1, 0], "mr": [1, 1, 0, 0], "mr_bag_knn5": [1, 1, 1, 1]}
    scores["mr_knn5"] = [0, 0, 0, 0]
    rows = [
        done(kind="baseline", step=step, predictions=made)
        for step, flip in ((0, 0), (9, 1))
        for made in [
            {name: Predictions(targets, np.array(of) ^ flip) for name, of in scores.items()}
        ]
    ]
    found = sentences.levels([*rows, done(kind="contrastive", step=9)], "mr")
    both = {name: [one.astype(int).tolist() for one in of.values()] for name, of in found.items()}
    assert both == {
        "majority class": [[[0, 1, 1, 1]], [[0, 1, 1, 1]]],
        "mean of random word vectors": [[[1, 1, 1, 0]], [[0, 1, 1, 1]]],
        "mean of trained word vectors": [[[0, 0, 0, 1]], [[1, 0, 0, 0]]],
        "random encoder": [[[0, 1, 0, 0]], [[1, 0, 0, 0]]],
    }


def test_table_11_tells_the_baselines(context):
    rows = [sentence_encoder(n, "contrastive", 50 + n, 60) for n in range(1, 4)]
    table11 = REPRODUCTIONS[TABLE11]
    *own, told = table11.result(context, rows + word_vectors(70, 65, knn=-5)).text
    assert "on MR: majority class 100.00 ±" in told
    for number in (70, 65):
        assert f"mean of random word vectors {number}.00 ±" in told
        assert f" and {number - 5}.00 ±" in told
    assert table11.result(context, rows).text == own


def test_figure_9b_has_a_plane_for_each_task(context, monkeypatch):
    """Encoders that are the better on MR the more they are aligned, and the worse on CR.

    By 5-NN one of them more is above word vectors on MR, but where they lie is the same.
    """
    monkeypatch.setattr(
        sentence_planes, "rank_correlations", partial(plane.rank_correlations, draws=100)
    )
    rows = [sentence_encoder(n, "contrastive", 50 + 2 * n, 80 - n) for n in range(1, 9)]
    fresh = [sentence_encoder(1, "contrastive", 0, 0, seed=1, fresh=True)]
    result = sentence_planes.plane_of_tasks(context, rows + fresh + word_vectors(55, 99, knn=-2))
    values = {(line[0], line[2]): line[3:] for line in result.rows}
    for task, value in (("MR", "-1.00 ("), ("CR", "+1.00 (")):
        assert all(cell.startswith(value) for cell in values[task, "L_align"])
    assert {line[1] for line in result.rows} == {8}
    mr, cr = result.verdict.split("On CR ")
    # Of 52, 54, ... those above 55, and above 53; by both, those beyond chance.
    assert ": the claim shows. Of 8 encoders 6 by logistic regression and 7 by 5-NN are above" in mr
    assert "by both 6, " in mr and "the opposite shows. Of 8 encoders 0 by" in cr
    assert len({path for path, _ in result.figures if path.is_file()}) == 2


def test_figure_9b_shows_what_both_instruments_say(context, monkeypatch):
    monkeypatch.setattr(
        sentence_planes, "rank_correlations", partial(plane.rank_correlations, draws=100)
    )
    monkeypatch.setattr(sentence_planes, "draw", lambda *_: None)
    rows = [sentence_encoder(n, "contrastive", 50 + 2 * n, 80, knn=-4 * n) for n in range(1, 9)]
    mr, _ = sentence_planes.plane_of_tasks(context, rows).verdict.split("On CR ")
    assert "-1.00 (" in mr and "+1.00 (" in mr and ": the claim does not show." in mr
