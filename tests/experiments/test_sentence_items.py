"""Tables 4 and 11 and Figure 9b: what they plan, and what they conclude."""

import functools

from item_rows import done, scored

from experiments import quick_thought, reproduce, sweeps
from experiments.reproduce import ITEMS, ReproduceConfig
from experiments.wang_isola import plane, sentences
from experiments.wang_isola.rows import show_rows

TABLE4, TABLE11, FIGURE = (f"wang-isola/{name}" for name in ("table4", "table11", "figure9b"))


def test_sentence_encoders_at_both_scales(plan):
    laptop = plan(FIGURE)
    *grid, baseline = plan(TABLE4)
    assert grid == laptop and len(laptop) >= 12
    kinds = [one.about["kind"] for one in laptop]
    contrastive = [one for one in laptop if one.about["kind"] == "contrastive"]
    assert len({one.config.objective.contrastive_tau for one in contrastive}) >= 5
    assert kinds.count("align+uniform") >= 5
    assert [one.config.model.unit_norm for one in laptop].count(False) == 1
    assert all(one.measures.tasks == ("mr", "cr") for one in laptop)
    assert all(one.measures.protocol == "quick_thought" for one in laptop)
    # The baselines are of one of the grid: before training too, and its mean word embeddings.
    assert baseline.config in [one.config for one in laptop]
    assert baseline.about["kind"] == "baseline" and baseline.measures.initial
    assert baseline.measures.layers == ("output", "bag")
    everything = plan(TABLE11, "paper")
    assert len(everything) == 114 - 1 == len(plan(FIGURE, "paper"))  # of one alpha is doubtful
    assert all(one.config.optimizer == quick_thought.OPTIMIZER for one in everything)
    assert {one.config.model.dim for one in everything} == {1200}
    assert {one.config.name for one in laptop} <= {one.config.name for one in plan(TABLE11)}


def test_table_4_trains_the_encoders_that_the_paper_chose(plan):
    """Of MR and of CR: the printed accuracies are those of Table 11's rows."""
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
    expected = {
        "best contrastive only": [("loss 2", 61), ("loss 1", 70)],
        "best align and uniform only": [("loss 3", 59), ("loss 3", 71)],
        "best among all encoders": [("loss 4", 58), ("loss 1", 70)],
        "baseline: random encoder": [(None, 98), (None, 97)],
        "baseline: random word embeddings, their mean": [(None, 50), (None, 51)],
    }
    tasks = ("loss", "accuracy (%)")
    found = {}
    for line in shown.rows:
        values = dict(zip(shown.columns, line, strict=True))
        found[values["selection"], values["task"]] = tuple(values[name] for name in tasks)
    assert found == {
        (name, task): pair
        for name, pairs in expected.items()
        for task, pair in zip(("MR", "CR"), pairs, strict=True)
    }
    for number in ("61.00%", "59.00%", "98.00%", "70.00%", "71.00%", "97.00%"):
        assert number in shown.verdict


def test_runs_that_are_measured_in_two_stages_count_once(context, monkeypatch):
    """The baselines are of a run of the grid: when all are done, no part is missing."""
    monkeypatch.setattr(sweeps, "sweep", lambda planned, **_: [])
    rows_of = lambda planned: [{"run": one.config.name} for one in planned]  # noqa: E731
    monkeypatch.setattr(sweeps, "known", rows_of)
    scale = ITEMS[TABLE4].scales["laptop"]
    rows, _, total = reproduce._carried_out(scale, context, ReproduceConfig("x"), "")
    assert len({row["run"] for row in rows}) == total == len(sentences.LAPTOP_ROWS)


def test_rows_that_diverged_in_the_paper_are_shown():
    row = {"row": 109, "loss": "align", "dim": 100, "seed": 0, "status": "done", "data": "books"}
    shown = show_rows(TABLE11, "title", [row | {"paper_diverged": True}], "laptop")
    (line,) = shown.rows
    assert line[0] == 109 and "NaN" in line
    failed = row | {"status": "failed", "reason": "the run diverged", "paper_diverged": True}
    shown = show_rows(TABLE11, "title", [failed], "paper")
    assert any("row 109: the run diverged, as in the paper" in line for line in shown.text)


def test_figure_9b_has_a_plane_for_each_task(context, monkeypatch):
    """Encoders that are the better on MR the more they are aligned, and the worse on CR."""
    few = functools.partial(plane.rank_correlations, draws=20)
    monkeypatch.setattr(plane, "rank_correlations", few)
    rows = [encoder(n, "contrastive", 50 + n, 80 - n) for n in range(1, 8)]
    shown = sentences.show_figure(context, rows)
    values = {(line[0], line[2]): line[3] for line in shown.rows if line[3]}
    assert float(values["MR", "L_align"]) == -1 and float(values["CR", "L_align"]) == 1
    ((path, _),) = shown.figures
    assert path.is_file()
