"""The verb `reproduce`: its list, its costs, what it keeps, and that kept results still follow."""

import re
from pathlib import Path

import pytest
from item_rows import done, scored
from matplotlib.figure import Figure
from processes import ROOT

from experiments import costs, reproduce, results_page, sweeps, tables
from experiments.reproduce import ITEMS, ReproduceConfig
from experiments.specifications import config_of
from hypersphere_jax import runs
from hypersphere_jax.config import DataConfig, UserError
from hypersphere_jax.report import text_of

# What is shown from its rows alone, within a second or three.
KEPT = [
    *(f"wang-isola/{item}" for item in ("table1", "table4", "figure5a", "figure7", "figure8")),
    *(f"chen/{item}" for item in ("tableD1", "figureB2", "figureE1")),
    *(f"balanced/{item}" for item in ("figure3", "figure4", "table1", "table3", "table4")),
]


@pytest.fixture
def quick(monkeypatch):
    """Half a second a step, whatever it is; which configs were asked for."""
    asked = []
    monkeypatch.setattr(costs, "_seconds", lambda config: asked.append(config) or 0.5)
    return asked


def sense(verdict):
    """Its numbers, and whether it denies or prefers."""
    return re.findall(r"[-+]?\d+(?:\.\d+)?|\bnot\b|better|worse", verdict.lower())


@pytest.mark.parametrize("item", KEPT)
def test_kept_results_follow_from_their_rows(item, context, plan, monkeypatch):
    """The numbers of docs/results/, again from the measured rows that are kept beside them."""
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: Path(path).touch())
    kept = results_page.KEPT / f"{item.replace('/', '-')}-laptop"
    rows, recorded = sweeps.read_csv(kept / "results.csv"), runs.read_json(kept / "shown.json")
    first = {row["run"] for row in rows if "isola/table1" not in item or "_seed" not in row["run"]}
    assert {one.config.name for one in plan(item)} == first
    shown = ITEMS[item].show(context, rows)
    cells = [[text_of(cell) for cell in row] for row in shown.rows]
    assert cells == [[text_of(cell) for cell in row] for row in recorded["rows"]]
    assert sense(shown.verdict) == sense(recorded["verdict"])
    assert all(path.is_file() for path, _ in shown.figures)


def test_the_list(capsys):
    """Every table, figure and theorem of each paper, once."""
    numbered = {
        "wang-isola": ("1 2 3 4 5a 5b 6 7 8 9a 9b 10 11", range(1, 12), ["theorem1", "theorem2"]),
        "chen": ("A1 B1 B2 C1 E1", ("D1", "D2", "D3"), ["algorithm1"]),
        "balanced": ("1 2 3 4 5", range(1, 5), ["theorem4.4", "theorem4.6"]),
    }
    for paper, (figures, of_tables, others) in numbered.items():
        names = [*(f"figure{n}" for n in figures.split()), *(f"table{n}" for n in of_tables)]
        names += others
        listed = [name for name in (*ITEMS, *reproduce.ELSEWHERE) if name.startswith(f"{paper}/")]
        assert sorted(listed) == sorted(f"{paper}/{name}" for name in names)
    reproduce.main(ReproduceConfig())
    out = capsys.readouterr().out
    assert all(name in out for name in (*ITEMS, *reproduce.ELSEWHERE))
    (line,) = (line for line in out.splitlines() if line.startswith("wang-isola/figure7"))
    assert re.search(r"laptop +digits +yes +26 ", line)


def test_every_item_has_a_dry_run_without_the_data(capsys, quick, tmp_path):
    for name, item in ITEMS.items():
        for scale in item.scales if not name.startswith("wang-isola/") else ():
            options = {"scale": scale, "dry_run": True, "data_dir": str(tmp_path)}
            reproduce.main(ReproduceConfig(name, out=tmp_path / "out", **options))
            out = capsys.readouterr().out
            assert f"{name} at --scale {scale}" in out and " 0 runs" not in out
    assert not (tmp_path / "out").exists()
    listed = DataConfig("imagenet2012", data_dir=str(tmp_path), classes="imagenet100_classes.txt")
    assert costs._images(listed) == (126_689, (224, 224, 3))  # the 100 classes of Table 7


def test_a_dry_run_counts_what_is_not_done(capsys, monkeypatch, quick, tmp_path):
    known = {"wang_isola_table8_row57_laptop"}
    monkeypatch.setattr(
        sweeps, "known", lambda planned: [done() for one in planned if one.config.name in known]
    )
    row = tables.row_of("wang-isola/table8", 57)
    cost = costs.cost(config_of(row, "laptop"))
    batch = row.values["batch_size"] // 4
    # A step of 32 pairs is measured on CPU, and takes time in proportion.
    assert cost == (25 * (1400 // batch), pytest.approx(0.5 * batch / min(batch, 32)))
    assert quick[0].optimizer.batch_size == min(batch, 32)
    hours = []
    for _ in range(2):
        options = {"scale": "laptop", "row": 57, "dry_run": True, "out": tmp_path / "out"}
        reproduce.main(ReproduceConfig("wang-isola/table8", **options))
        out = capsys.readouterr().out
        assert f"output linear {row.values['val_output_linear']:g}" in out
        hours.append(float(re.search(r"1 runs, (\S+) hours", out)[1]))
        known.clear()
    assert hours == [0, pytest.approx(cost.steps * cost.seconds / 3600, rel=0.05)]


def test_failed_runs_and_mistakes_are_told(capsys, monkeypatch, tmp_path):
    weights = {"align_weight": 1, "uniform_weight": 1, "align": 1, "uniform": -1}
    row = done(**weights, **scored(10.0, output_linear=50.0))
    lost = {"run": "b", "status": "failed", "reason": "loss nan"} | weights
    monkeypatch.setattr(sweeps, "sweep", lambda planned, **_: ["c: a mistake"])
    monkeypatch.setattr(sweeps, "known", lambda planned: [row, lost])
    asked = ReproduceConfig("wang-isola/figure7", scale="laptop", out=tmp_path)
    with pytest.raises(UserError, match=r"1 run\(s\) are not done"):
        reproduce.main(asked)
    said = capsys.readouterr()
    assert "1 of 26 runs failed" in said.out and "failed: b: loss nan\nc: a mistake\n" in said.err
    kept = sweeps.read_csv(tmp_path / "wang-isola/figure7/laptop/results.csv")
    assert [row["run"] for row in kept] == ["r", "b"] and kept[0]["output_linear"] == 50


def test_a_part_is_told_from_the_whole(capsys, monkeypatch, tmp_path):
    """What is done is shown, with how much that is; a later stage waits for all of the first."""
    asked, first = [], [67, 79]  # rows of Table 8 that are done, the first by an earlier command
    about = {"kind": "contrastive", "seed": 0, "output_linear_cv": 50}
    rows = [
        done(row=n, loss="a", **about, **scored(output_linear=n)) | {"run": f"run{n}"}
        for n in first
    ]

    def known(planned):
        numbers = {one.about["row"] for one in planned}
        return [row for row in rows if row["row"] in numbers]

    def sweep(planned, **how):
        asked.append((len(planned), how["together"], how["retry"], how["jobs"]))
        return []

    monkeypatch.setattr(sweeps, "sweep", sweep)
    monkeypatch.setattr(sweeps, "known", known)
    how = {"only": ("*row79_*",), "together": "yes", "retry": True}
    reproduce.main(ReproduceConfig("wang-isola/table1", scale="laptop", out=tmp_path, **how))
    assert asked == [(1, True, True, 1)] and "2 of 17 planned runs" in capsys.readouterr().out
    with pytest.raises(UserError, match="Do the rest first"):
        results_page.record("wang-isola/table1", "laptop", tmp_path)


def test_the_page_holds_what_was_recorded():
    """docs/results.md again, from what `reproduce` wrote."""
    assert results_page.PAGE.read_text() == results_page.page()
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for file in re.findall(r"!\[[^\]]*\]\(([^)]*)\)", page.read_text()):
            assert (page.parent / file).is_file(), f"{page.name}: {file}"
