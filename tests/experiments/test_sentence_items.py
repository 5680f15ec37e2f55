"""Tables 4 and 11 and Figure 9b: what they plan, and what they conclude."""

import functools

from item_rows import done, scored

from experiments import quick_thought
from experiments.wang_isola import plane, sentences

TABLE4, TABLE11, FIGURE = (f"wang-isola/{name}" for name in ("table4", "table11", "figure9b"))


def test_sentence_encoders_at_both_scales(plan):
    laptop = plan(FIGURE)
    *grid, baseline = plan(TABLE4)
    assert grid == laptop and len(laptop) >= 12
    measured = {(one.measures.protocol, one.measures.tasks) for one in laptop}
    assert measured == {("quick_thought", ("mr", "cr"))}
    # The baselines are of one of the grid: before training too, and its mean word embeddings.
    assert baseline.config in [one.config for one in laptop]
    assert baseline.about["kind"] == "baseline" and baseline.measures.initial
    assert baseline.measures.layers == ("output", "bag")
    everything = plan(TABLE11, "paper")
    assert len(everything) == 114 - 1 == len(plan(FIGURE, "paper"))  # of one alpha is doubtful
    assert all(one.config.optimizer == quick_thought.OPTIMIZER for one in everything)
    assert {one.config.model.dim for one in everything} == {1200}
    # Table 4 trains the encoders that the paper chose: their accuracies are printed in both.
    of_mr, of_cr, both = plan(TABLE4, "paper")
    assert (of_mr.about["paper_val_mr"], of_cr.about["paper_val_cr"]) == (77.51, 83.86)
    assert (both.about["paper_val_mr"], both.about["paper_val_cr"]) == (73.76, 80.95)
    assert plan(TABLE4, "paper", row=2) == [both]


def encoder(number, kind, mr, cr, mr_cv=0, cr_cv=0, **more):
    """A row of an encoder with its scores on both tasks, and those of their cross-validation."""
    about = {"data": "books", "loss": f"loss {number}", "kind": kind, "step": 9, "row": number}
    about |= {"align": 1 / number, "uniform": -number, "mr_cv": mr_cv, "cr_cv": cr_cv}
    return done(**about | scored(mr=mr, cr=cr) | more)


def test_table_4_picks_for_each_task(context):
    """By cross-validation, not by the score that is shown."""
    rows = [
        encoder(1, "contrastive", 60, 70, mr_cv=1, cr_cv=8),
        encoder(2, "contrastive", 61, 75, mr_cv=4, cr_cv=6),
        encoder(3, "align+uniform", 59, 71, mr_cv=3, cr_cv=7),
        encoder(4, "contrastive+align+uniform", 58, 66, mr_cv=5, cr_cv=2),
        encoder(5, "align", 99, 99, mr_cv=99, cr_cv=99, status="failed"),
        encoder(6, "baseline", 98, 97, mr_cv=98, cr_cv=98, step=0, **scored(mr_bag=50, cr_bag=51)),
    ]
    shown = sentences.show_best(context, rows)
    names = ("selection", "task", "loss", "accuracy (%)")
    lines = [dict(zip(shown.columns, line, strict=True)) for line in shown.rows]
    assert {tuple(line[name] for name in names) for line in lines} == {
        ("best contrastive only", "MR", "loss 2", 61),
        ("best contrastive only", "CR", "loss 1", 70),
        ("best align and uniform only", "MR", "loss 3", 59),
        ("best align and uniform only", "CR", "loss 3", 71),
        ("best among all encoders", "MR", "loss 4", 58),
        ("best among all encoders", "CR", "loss 1", 70),
        ("baseline: random encoder", "MR", None, 98),
        ("baseline: random encoder", "CR", None, 97),
        ("baseline: random word embeddings, their mean", "MR", None, 50),
        ("baseline: random word embeddings, their mean", "CR", None, 51),
    }
    assert all(f"{number}.00%" in shown.verdict for number in (61, 59, 98, 70, 71, 97))


def test_figure_9b_has_a_plane_for_each_task(context, monkeypatch):
    """Encoders that are the better on MR the more they are aligned, and the worse on CR."""
    few = functools.partial(plane.rank_correlations, draws=20)
    monkeypatch.setattr(plane, "rank_correlations", few)
    rows = [encoder(n, "contrastive", 50 + n, 80 - n) for n in range(1, 8)]
    shown = sentences.show_figure(context, rows)
    values = {(line[0], line[2]): line[3] for line in shown.rows if line[3]}
    assert float(values["MR", "L_align"]) == -1 and float(values["CR", "L_align"]) == 1
