"""`reproduce`: its list, its costs, and that kept results still follow; the quickstart."""

import re
from pathlib import Path
from unittest.mock import Mock

import pytest
from matplotlib.figure import Figure
from PIL import Image
from run_rows import done, predicted, read_csv, scored

from experiments import (
    costs,
    plans,
    reproduce,
    results_page,
    sweeps,
)
from experiments.costs import Machine
from experiments.reproduce import PREDICTIONS, REPRODUCTIONS, ReproduceConfig
from experiments.reproduction import Context, Result, Scale
from hypersphere_jax import data
from hypersphere_jax.configs import (
    UserError,
)
from hypersphere_jax.reporting.tables import format_value
from hypersphere_jax.utils.files import read_json, write_json

# Results that follow from rows and predictions, which are kept beside them.
KEPT = [item for item in REPRODUCTIONS if (plans.kept(item, "laptop") / PREDICTIONS).is_file()]
# These read features of the runs themselves.
KEPT = [item for item in KEPT if not re.search("figure[34]$|theorem", item) or "balanced/f" in item]
KEPT = [item for item in KEPT if item not in ("wang-isola/figure5a", "balanced/figure3")]


@pytest.mark.parametrize("item", KEPT)
def test_kept_results_follow_from_their_rows(item, context, monkeypatch):
    """The numbers of docs/results/, again from what was measured; the runs are those planned."""
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: drawn.append(Path(path).name))
    kept = plans.kept(item, "laptop")
    rows, recorded = results_page.rows_kept(kept), read_json(kept / "shown.json")
    stages = REPRODUCTIONS[item].scales["laptop"].stages
    planned = {one.config.name for stage in stages for one in stage(context, rows)}
    assert planned == {row["run"] for row in rows}
    found = results_page.again(item, "laptop")
    for name in ("title", "columns", "text", "verdict", "summary"):
        assert found[name] == recorded[name], name
    rows, recorded_rows = (
        [list(map(format_value, row)) for row in result["rows"]] for result in (found, recorded)
    )
    assert rows == recorded_rows
    assert drawn == [name for name, _ in recorded["figures"]]


def test_pictures_of_a_kept_result_are_drawn_again(tmp_path):
    """With few colours, as they are kept."""
    results_page.again("balanced/figure4", "laptop", tmp_path)
    (file,) = tmp_path.iterdir()
    with Image.open(file) as picture:
        assert file.name == "figure.png" and picture.mode == "P" and picture.width > 900


@pytest.mark.slow
def test_the_list(capsys, monkeypatch, tmp_path):
    """Every table, figure and theorem of each paper, once."""
    monkeypatch.chdir(tmp_path)  # where no run is
    numbered = {
        "wang-isola/figure": "1 2 3 4 5a 5b 6 7 8 9a 9b 10 11",
        "wang-isola/table": "1 2 3 4 5 6 7 8 9 10 11",
        "chen/figure": "A1 B1 B2 C1 E1",
        "chen/table": "D1 D2 D3",
        "balanced/figure": "1 2 3 4 5",
        "balanced/table": "1 2 3 4",
    }
    names = [f"{kind}{number}" for kind, of in numbered.items() for number in of.split()]
    names += ["wang-isola/theorem1", "wang-isola/theorem2", "chen/algorithm1"]
    names += [f"wang-isola/proposition{number}" for number in (1, 2, 3)]
    names += ["balanced/theorem4.4", "balanced/theorem4.6"]
    assert sorted((*REPRODUCTIONS, *reproduce.OTHERS)) == sorted(names)
    reproduce.main(ReproduceConfig())
    out = capsys.readouterr().out
    assert all(name in out for name in names)
    assert re.search(
        r"wang-isola/figure7 +laptop +80 +[\d.]+ \w+ +[\d.]+ GB +digits, cifar10 ", out
    )


ONE_CORE = Machine("1 CPU core", 0, costs.CORE_FLOP, costs.CORE_ELEMENTS, 8 * 10**9)


@pytest.fixture
def sweep(monkeypatch):
    """What would be trained; nothing is, and no data are opened."""
    trained = Mock(return_value=[])
    monkeypatch.setattr(sweeps, "sweep", trained)
    monkeypatch.setattr(data, "load", Mock(side_effect=AssertionError("data are opened")))
    monkeypatch.setattr(costs, "machine", lambda apart=False: ONE_CORE)
    return trained


def test_times_are_readable():
    told = {0: "0 s", 12.1: "13 s", 59.9: "60 s", 100: "2 min", 3300: "55 min", 5400: "1.5 h"}
    told |= {12.4 * 3600: "12 h", 1_284 * 3600: "1,300 h", 260_000 * 3600: "260,000 h"}
    assert {seconds: costs.time_text(seconds) for seconds in told} == told
    assert [plans.step_text(s) for s in (0.00391, 0.5, 7.24, 612)] == [
        *("0.0039", "0.5000", "7.2", "612"),
    ]


def test_nothing_is_begun_before_it_is_asked_for(sweep, capsys, monkeypatch, tmp_path):
    """Without a scale, or with one that takes over an hour or more memory than there is."""
    typed = "python run.py reproduce chen/figureB1"
    with pytest.raises(SystemExit, match=r"^2$"):
        reproduce.main(ReproduceConfig("chen/figureB1", out=tmp_path), typed)
    out, asked = capsys.readouterr()
    assert f"choose a scale:\n  {typed} --scale laptop\n" in asked and "error" not in asked
    assert re.search(r"laptop +90 +\d+ min .* digits +yes +0 +yes", out)
    assert re.search(r"paper +6 +[\d,]+ h +15 GB +cifar10 +no +0 +no", out)
    assert "V100" in out
    how = {"scale": "paper", "out": tmp_path, "data_dir": str(tmp_path), "yes": True}
    with pytest.raises(UserError, match=r"needs cifar10, not found in .*: --data-dir"):
        reproduce.main(ReproduceConfig("chen/figureB1", **how), "TYPED")
    monkeypatch.setattr(costs, "is_here", lambda name, data_dir: True)
    how["yes"] = False
    with pytest.raises(UserError, match=r"[\d,]{5} h on 1 CPU core and 15 GB .* TYPED --yes$"):
        reproduce.main(ReproduceConfig("chen/figureB1", **how), "TYPED")
    assert not sweep.called and not any(tmp_path.iterdir())
    capsys.readouterr()
    with pytest.raises(UserError, match="no run is done"):
        reproduce.main(ReproduceConfig("chen/figureB1", **(how | {"yes": True})))
    assert sweep.call_count == 1 and len(sweep.call_args[0][0]) == 6
    said = capsys.readouterr().err
    assert re.search(r"^chen/figureB1 at --scale paper: 6 runs: about [\d,]+ h on 1 CPU core", said)


def test_failed_runs_and_invalid_input_are_told(capsys, monkeypatch, tmp_path):
    weights = {"align_weight": 1, "uniform_weight": 1, "align": 1, "uniform": -1}
    about = {"data": "digits", "epochs": 25, "seed": 0}
    scores = dict.fromkeys(("output_linear", "output_logistic", "output_knn5"), 50.0)
    row = done(**weights, **about | predicted(**scores))
    lost = {"run": "b", "status": "failed", "reason": "loss nan"} | weights
    monkeypatch.setattr(sweeps, "sweep", lambda planned, **_: ["c: invalid"])
    monkeypatch.setattr(sweeps, "with_predictions", lambda planned: [row, lost])
    monkeypatch.setattr(costs, "is_here", lambda name, data_dir: True)
    with pytest.raises(UserError, match=r"1 run\(s\) are not done"):
        how = {"scale": "laptop", "out": tmp_path, "yes": True}
        reproduce.main(ReproduceConfig("wang-isola/figure7", **how))
    said = capsys.readouterr()
    assert "1 of 2 encoders failed" in said.out and "failed: b: loss nan\nc: invalid\n" in said.err
    kept = read_csv(tmp_path / "wang-isola/figure7/laptop/results.csv")
    assert [row["run"] for row in kept] == ["r", "b"] and kept[0]["output_linear"] == 50


def test_a_part_is_told_from_the_whole(capsys, monkeypatch, tmp_path):
    """What is done is shown, with how much that is; a later stage waits for all of the first."""
    sweep = Mock(return_value=[])
    about = {"kind": "contrastive", "seed": 0, "output_logistic_cv": 50, "loss": "a"}
    about |= {"data": "cifar10", "epochs": 2}

    def known(planned):  # of Table 8, the first by an earlier command
        numbers = [n for n in (67, 79) if n in {one.about["row"] for one in planned}]
        scores = {n: scored(output_linear=n) | {"run": f"run{n}"} for n in numbers}
        return [done(row=n) | about | scores[n] for n in numbers]

    monkeypatch.setattr(sweeps, "sweep", sweep)
    monkeypatch.setattr(sweeps, "with_predictions", known)
    monkeypatch.setattr(costs, "is_here", lambda name, data_dir: True)
    how = {"only": ("*row79_*seed0",), "vmapped": "yes", "retry": True}
    reproduce.main(ReproduceConfig("wang-isola/table1", scale="laptop", out=tmp_path, **how))
    (planned,), how = sweep.call_args
    assert [len(planned), how["vmapped"], how["retry"], how["jobs"]] == [1, True, True, 1]
    assert sweep.call_count == 1 and "2 of 51 planned runs" in capsys.readouterr().out
    with pytest.raises(UserError, match="Do the rest first"):
        results_page.record("wang-isola/table1", "laptop", tmp_path)


def test_a_page_says_what_was_trained(tmp_path):
    """Data, network, epochs and seeds, from the runs' configs; also where nothing is trained."""
    rows, context = [], Context("laptop", tmp_path / "runs", tmp_path)
    for seed, (network, fraction) in enumerate((("a", 1.0), ("a", 1.0), ("a", 1.0), ("b", 0.1))):
        row = {"run": f"r{seed}", "data": "digits", "epochs": 20 + 20 * (seed == 2), "seed": seed}
        rows += [row | {"status": "done"}] * 2  # evaluated in two stages
        config = {"fraction": fraction, "model": network, "width": 0.25}
        write_json(tmp_path / "runs" / f"r{seed}" / "config.json", {"config": config})
    rows.append(rows[0] | {"run": "lost", "status": "failed", "seed": 9})
    trained = reproduce._trained(Scale(("digits",), 1), context, rows)
    assert trained == [
        ["digits", "a, width 0.25", "20, 40", "0 to 2", 3],
        ["digits, fraction 0.1", "b, width 0.25", "20", "3", 1],
    ]
    nothing = reproduce._trained(Scale(("cifar10",), 1), context, [])
    result = Result("A theorem", ["n"], [[1]], [], ["What is claimed."])
    page = reproduce._page(context, nothing, result, "again").read_text()
    assert page.index("cifar10") < page.index("nothing is trained") < page.index("What is claimed")


def test_the_page_holds_what_was_recorded():
    """docs/results.md and the README's claims again, from what `reproduce` wrote."""
    assert results_page.PAGE.read_text() == results_page.page()
    assert results_page.README.read_text() == results_page.readme()
