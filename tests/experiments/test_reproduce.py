"""`reproduce`: its list, its costs, and that kept results still follow; the quickstart."""

import re
from pathlib import Path
from unittest.mock import Mock

import jax
import numpy as np
import pytest
from matplotlib.figure import Figure
from run_rows import done, read_csv, scored

from experiments import costs, quickstart, reproduce, results_page, sweeps, tables
from experiments.reproduce import REPRODUCTIONS, ReproduceConfig
from experiments.specifications import config_of
from hypersphere_jax.config import DataConfig, ModelConfig, PretrainConfig, UserError
from hypersphere_jax.config.objective import WEIGHTS
from hypersphere_jax.files import read_json
from hypersphere_jax.report import text_of

# What is shown from its rows alone, within a second or three.
KEPT = (
    "wang-isola/table1 wang-isola/table4 wang-isola/figure5a wang-isola/figure7 wang-isola/figure8"
)
KEPT += " chen/tableD1 chen/figureB2 chen/figureE1 balanced/figure3 balanced/figure4"
KEPT += " balanced/table1 balanced/table3 balanced/table4"


def sense(verdict, rows):
    """Its numbers, and whether it denies or prefers; the table's cells."""
    words = re.findall(r"[-+]?\d+(?:\.\d+)?|\bnot\b|better|worse", verdict.lower())
    return words, [[text_of(cell) for cell in row] for row in rows]


@pytest.mark.parametrize("item", KEPT.split())
def test_kept_results_follow_from_their_rows(item, context, plan, monkeypatch):
    """The numbers of docs/results/, again from the measured rows that are kept beside them."""
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: Path(path).touch())
    kept = results_page.KEPT / f"{item.replace('/', '-')}-laptop"
    rows, recorded = read_csv(kept / "results.csv"), read_json(kept / "shown.json")
    first = {row["run"] for row in rows if "isola/table1" not in item or "_seed" not in row["run"]}
    assert {one.config.name for one in plan(item)} == first
    result = REPRODUCTIONS[item].result(context, rows)
    assert sense(result.verdict, result.rows) == sense(recorded["verdict"], recorded["rows"])
    assert all(path.is_file() for path, _ in result.figures)


def test_the_list(capsys):
    """Every table, figure and theorem of each paper, once."""
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
    names += ["balanced/theorem4.4", "balanced/theorem4.6"]
    assert sorted((*REPRODUCTIONS, *reproduce.OTHERS)) == sorted(names)
    reproduce.main(ReproduceConfig())
    out = capsys.readouterr().out
    assert all(name in out for name in names)
    assert re.search(r"wang-isola/figure7 .*laptop +digits +yes +26 ", out)


def test_every_item_has_a_dry_run_without_the_data(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(costs, "_flop", lambda config: 1e12)  # of a step
    options = {"out": tmp_path / "out", "dry_run": True, "data_dir": str(tmp_path)}
    for name, one in REPRODUCTIONS.items():
        for scale in one.scales if not name.startswith("wang-isola/") else ():
            reproduce.main(ReproduceConfig(name, scale=scale, **options))
            out = capsys.readouterr().out
            assert f"{name} at --scale {scale}" in out and " 0 runs" not in out
    assert not (tmp_path / "out").exists()
    listed = DataConfig("imagenet2012", data_dir=str(tmp_path), classes="imagenet100_classes.txt")
    assert costs._images(listed) == (126_689, (224, 224, 3))  # the 100 classes of Table 7


def test_a_dry_run_counts_what_is_not_done(capsys, monkeypatch, tmp_path):
    seconds = Mock(return_value=0.5)
    monkeypatch.setattr(costs, "_seconds", seconds)
    monkeypatch.setattr(costs, "_flop", lambda config: 0.5 * costs._sustained()[1])
    known = {"wang_isola_table8_row57_laptop"}
    of_known = lambda planned: [done() for one in planned if one.config.name in known]  # noqa: E731
    monkeypatch.setattr(sweeps, "known", of_known)
    row = tables.row_of("wang-isola/table8", 57)
    config, batch = config_of(row, "laptop"), row.values["batch_size"] // 4
    # A step of 32 pairs is counted, on CPU also measured, and grows in proportion.
    cost = costs.cost(config)
    assert cost == (25 * (1400 // batch), pytest.approx(0.5 * batch / min(batch, 32)))
    assert cost == pytest.approx(costs.cost(config, measure=True))
    assert seconds.call_args[0][0].optimizer.batch_size == min(batch, 32)
    options = {"scale": "laptop", "row": 57, "dry_run": True, "out": tmp_path / "out"}
    for hours in (0, cost.steps * cost.seconds / 3600):
        reproduce.main(ReproduceConfig("wang-isola/table8", **options))
        out = capsys.readouterr().out
        assert "val output linear" in out and f" {row.values['val_output_linear']:g}\n" in out
        said = re.search(r"1 runs, (\S+) hours", out)[1]
        assert float(said) == pytest.approx(hours, rel=0.05)
        known.clear()


def test_flop_of_a_step():
    """A product in a loop in all its turns; a step of ResNet-50 is three forward passes a view."""
    weights, x = np.ones((6, 6)), np.ones((4, 6))
    loop = jax.make_jaxpr(lambda x: jax.lax.scan(lambda c, _: (c @ weights, 0), x, length=10))(x)
    assert costs.flop(loop.jaxpr) == 10 * 2 * 4 * 6 * 6
    image, kernel = np.ones((2, 8, 8, 3), np.float32), np.ones((3, 3, 3, 5), np.float32)
    of = (2, 2), ((1, 1), (1, 1)), None, None, ("NHWC", "HWIO", "NHWC")
    value = lambda *sides: jax.lax.conv_general_dilated(*sides, *of).sum()  # noqa: E731
    slopes = jax.make_jaxpr(jax.grad(value, argnums=(0, 1)))(image, kernel)
    assert costs.flop(slopes.jaxpr) == 3 * 2 * (2 * 4 * 4 * 5) * (3 * 3 * 3)
    config = PretrainConfig(data=DataConfig("imagenet2012"), model=ModelConfig("resnet50"))
    step = costs.cost(config).seconds * costs._sustained()[1]
    assert step == pytest.approx(3 * 8.2e9 * 2 * config.optimizer.batch_size, rel=0.03)


def test_failed_runs_and_invalid_input_are_told(capsys, monkeypatch, tmp_path):
    weights = {"align_weight": 1, "uniform_weight": 1, "align": 1, "uniform": -1}
    row = done(**weights, **scored(10.0, output_linear=50.0))
    lost = {"run": "b", "status": "failed", "reason": "loss nan"} | weights
    monkeypatch.setattr(sweeps, "sweep", lambda planned, **_: ["c: invalid"])
    monkeypatch.setattr(sweeps, "known", lambda planned: [row, lost])
    with pytest.raises(UserError, match=r"1 run\(s\) are not done"):
        reproduce.main(ReproduceConfig("wang-isola/figure7", scale="laptop", out=tmp_path))
    said = capsys.readouterr()
    assert "1 of 26 runs failed" in said.out and "failed: b: loss nan\nc: invalid\n" in said.err
    kept = read_csv(tmp_path / "wang-isola/figure7/laptop/results.csv")
    assert [row["run"] for row in kept] == ["r", "b"] and kept[0]["output_linear"] == 50


def test_a_part_is_told_from_the_whole(capsys, monkeypatch, tmp_path):
    """What is done is shown, with how much that is; a later stage waits for all of the first."""
    sweep = Mock(return_value=[])
    about = {"kind": "contrastive", "seed": 0, "output_linear_cv": 50, "loss": "a"}

    def known(planned):  # of Table 8, the first by an earlier command
        numbers = [n for n in (67, 79) if n in {one.about["row"] for one in planned}]
        scores = {n: scored(output_linear=n) | {"run": f"run{n}"} for n in numbers}
        return [done(row=n) | about | scores[n] for n in numbers]

    monkeypatch.setattr(sweeps, "sweep", sweep)
    monkeypatch.setattr(sweeps, "known", known)
    how = {"only": ("*row79_*",), "vmapped": "yes", "retry": True}
    reproduce.main(ReproduceConfig("wang-isola/table1", scale="laptop", out=tmp_path, **how))
    (planned,), how = sweep.call_args
    assert [len(planned), how["vmapped"], how["retry"], how["jobs"]] == [1, True, True, 1]
    assert sweep.call_count == 1 and "2 of 17 planned runs" in capsys.readouterr().out
    with pytest.raises(UserError, match="Do the rest first"):
        results_page.record("wang-isola/table1", "laptop", tmp_path)


def test_the_page_holds_what_was_recorded():
    """docs/results.md again, from what `reproduce` wrote."""
    assert results_page.PAGE.read_text() == results_page.page()


def test_what_the_quickstart_trains_and_compares(monkeypatch, tmp_path):
    runs = quickstart.RUNS | quickstart.CIRCLE_RUNS
    configs = [quickstart._config(name, of, str(tmp_path), 3) for name, of in runs.items()]
    assert list(runs)[1:3] == ["align_uniform", "circle_supervised"]
    weights = [[getattr(config.objective, name) for name in WEIGHTS] for config in configs]
    assert weights == [[1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0]]
    assert [(c.model.dim, c.seed) for c in configs] == [(32, 3), (32, 3), (2, 3), (2, 3)]
    for rows in (quickstart.ENCODERS, quickstart.circle.ENCODERS):
        (first, step), *others = rows.values()  # step 0 of another row's run
        assert step == 0 and (first, None) in others
    numbers = {"align": 0.5, "uniform": -3.0, "uniform_optimum": -3.8}
    monkeypatch.setattr(quickstart, "run_metrics", lambda config: numbers)
    monkeypatch.setattr(quickstart, "run_probe", lambda config: [{"top1": 98.0}, {"top1": 97.0}])
    scores = quickstart._scores(tmp_path, 0)
    (row,) = quickstart.rows_of({"a": [scores, scores | {"knn": 95.0, "align": 0.7}]})
    spread = "0.600 ± 0.141", "-3.000 ± 0.000", "-3.800", "98.00 ± 0.00", "96.00 ± 1.41"
    assert row == ["a", *spread] and quickstart.COLUMNS[4:] == ["linear (%)", "5-NN (%)"]


def test_the_quickstart_chooses_on_held_out_training_images(monkeypatch, tmp_path, capsys):
    trained = []
    monkeypatch.setattr(
        quickstart.loop, "train", lambda config, _: trained.append(config) or config
    )
    scores = {"align": 0, "uniform": 0, "optimum": 0, "knn": 0}
    best = {"contrastive": 0.06, "align_uniform": 0.24}

    def score(config, step):
        name = config.name.split("_0.")[0]
        return scores | {"linear": 90 - abs(config.optimizer.learning_rate - best[name])}

    monkeypatch.setattr(quickstart, "_scores", score)
    quickstart.main(quickstart.QuickstartConfig(str(tmp_path), seeds=(1, 2), choose=True))
    assert {config.data.folds for config in trained} == {5} and len(trained) == 2 * 5 * 2
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines[3:5]] == ["0.06", "0.24"]


@pytest.mark.slow
def test_the_quickstart_shortened(monkeypatch, tmp_path, capsys):
    for name in ("RUNS", "CIRCLE_RUNS"):
        short = {run: (*of[:2], 8, of[3]) for run, of in getattr(quickstart, name).items()}
        monkeypatch.setattr(quickstart, name, short)
    quickstart.main(quickstart.QuickstartConfig(str(tmp_path), seeds=(0,)))
    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/png") == 3 and "align + uniform" in capsys.readouterr().out
