"""Tables 4 and 11 and Figure 9b: what they plan, and what they conclude."""

import pytest
from test_reproduce import plan

from experiments import quick_thought, reproduce, sweeps
from experiments.items import Context
from experiments.reproduce import ITEMS, ReproduceConfig
from experiments.wang_isola import sentences
from experiments.wang_isola.rows import show_rows


@pytest.fixture
def context(tmp_path):
    return Context("laptop", tmp_path / "runs", tmp_path / "item")


def test_sentence_encoders_at_both_scales(context):
    laptop = plan("figure9b", context)
    assert len(laptop) >= 12 and plan("table4", context) == laptop
    taus = {
        one.config.objective.contrastive_tau for one in laptop if one.about["kind"] == "contrastive"
    }
    assert len(taus) >= 5
    assert sum(one.about["kind"] == "align+uniform" for one in laptop) >= 5
    assert [one.config.model.unit_norm for one in laptop].count(False) == 1
    paper = context._replace(scale="paper")
    everything = plan("table11", paper)
    assert len(everything) == 114 - 1 == len(plan("figure9b", paper))  # of one alpha is doubtful
    assert all(one.config.optimizer == quick_thought.OPTIMIZER for one in everything)
    assert {one.config.model.dim for one in everything} == {1200}
    names = {one.config.name for one in laptop}
    assert names <= {one.config.name for one in plan("table11", context)}


def test_table_4_trains_the_encoders_that_the_paper_chose(context):
    """Of MR and of CR: the printed accuracies are those of Table 11's rows."""
    paper = context._replace(scale="paper")
    of_mr, of_cr, both = plan("table4", paper)
    assert (of_mr.about["paper_val_mr"], of_cr.about["paper_val_cr"]) == (77.51, 83.86)
    assert (both.about["paper_val_mr"], both.about["paper_val_cr"]) == (73.76, 80.95)
    (only,) = plan("table4", paper._replace(row=2))
    assert only == both


def encoder_of_text(number, kind, mr, cr, **more):
    scores = {}
    for task, score in (("mr", mr), ("cr", cr)):
        scores |= {task: score, f"{task}_cv": score, f"{task}_low": score, f"{task}_high": score}
    about = {"status": "done", "data": "books", "loss": f"loss {number}", "kind": kind, "step": 9}
    return about | {"row": number, "align": 1 / number, "uniform": -number} | scores | more


def test_table_4_picks_for_each_task(context):
    rows = [
        encoder_of_text(1, "contrastive", 60, 70),
        encoder_of_text(2, "contrastive", 61, 69),
        encoder_of_text(3, "align+uniform", 59, 71),
        encoder_of_text(4, "align", 99, 99, status="failed"),
        encoder_of_text(5, "baseline", 98, 98, step=0, **{
            f"{task}_bag{end}": 50 for task in ("mr", "cr") for end in ("", "_low", "_high")
        }),
    ]  # fmt: skip
    shown = sentences.show_best(context, rows)
    found = {(line[0], line[1]): line[2:4] for line in shown.rows}
    assert found["best contrastive only", "MR"] == ["loss 2", 61]
    assert found["best contrastive only", "CR"] == ["loss 1", 70]
    assert found["best among all encoders", "CR"] == ["loss 3", 71]
    assert found["baseline: random encoder", "MR"] == [None, 98]
    assert found["baseline: random word embeddings, their mean", "CR"] == [None, 50]
    assert "CR: 70.00% (contrastive only), 71.00% (align and uniform only), 98.00%" in shown.verdict


def test_runs_that_are_measured_in_two_stages_count_once(context, monkeypatch, tmp_path):
    """The baselines are of a run of the grid: when all are done, no part is missing."""
    monkeypatch.setattr(sweeps, "sweep", lambda planned, **_: [])
    monkeypatch.setattr(
        sweeps, "known", lambda planned: [{"run": one.config.name} for one in planned]
    )
    scale = ITEMS["wang-isola/table4"].scales["laptop"]
    rows, _, total = reproduce._carried_out(scale, context, ReproduceConfig("x"), "")
    assert len({row["run"] for row in rows}) == total == len(sentences.LAPTOP_ROWS)


def test_rows_that_diverged_in_the_paper_are_shown():
    row = {"row": 109, "loss": "align", "dim": 100, "seed": 0, "status": "done", "data": "books"}
    shown = show_rows("wang-isola/table11", "title", [row | {"paper_diverged": True}], "laptop")
    assert shown.rows == [[109, "align", 100, 0, "training", "NaN", "none", None, None]]
    failed = row | {"status": "failed", "reason": "the run diverged", "paper_diverged": True}
    shown = show_rows("wang-isola/table11", "title", [failed], "paper")
    assert any("row 109: the run diverged, as in the paper" in line for line in shown.text)


def test_figure_9b_has_a_plane_for_each_task(context):
    rows = [encoder_of_text(n, "contrastive", 50 + n, 80 - n) for n in range(1, 8)]
    shown = sentences.show_figure(context, rows)
    values = {(line[0], line[2]): line[3] for line in shown.rows if line[3]}
    assert float(values["MR", "L_align"]) == -1 and float(values["CR", "L_align"]) == 1
    ((path, _),) = shown.figures
    assert path.is_file()
