"""Every item of the two later papers, whichever of its runs are done."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from experiments import costs, reproduce
from experiments.chen import projections, saturation
from experiments.items import Context
from experiments.reproduce import ITEMS, ReproduceConfig

LATER = [name for name in ITEMS if name.startswith(("chen/", "balanced/"))]
LAPTOP = [
    name for name in LATER if "laptop" in ITEMS[name].scales and "/theorem" not in name
]  # the theorems look at encoders


def rows_of(planned, rng):
    """What `measured` would give, with random scores."""
    made = []
    for one in planned:
        row = {
            "run": one.config.name,
            "status": "done",
            **one.about,
            "final_loss": 2.0 + rng.random(),
        }
        for layer in one.measures.layers:
            for what in ("linear", *(f"knn{k}" for k in one.measures.neighbours)):
                score = 50 + 40 * rng.random()
                ends = {"": score, "_low": score - 2, "_high": score + 2}
                row |= {f"{layer}_{what}{end}": value for end, value in ends.items()}
        row["prototype_bias"] = rng.random()
        made.append(row)
    return made


def measured(config):
    counts = [{"counts": [1, 2, 1]}] * 8
    names = ("sliced_wasserstein", "uniform", "uniform_optimum", "projection_ks_sphere")
    return dict.fromkeys(names, 0.1) | {"projection_half_width": 4.0, "projections": counts}


@pytest.mark.parametrize("name", LAPTOP)
def test_all_rows_some_rows_and_failed_ones(name, tmp_path, rng, monkeypatch):
    monkeypatch.setattr(projections, "measure", measured)
    monkeypatch.setattr(saturation, "reference", lambda name, n, d: (5.0, 1.0))
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: Path(path).touch())
    context = Context("laptop", tmp_path / "runs", tmp_path / "item")
    planned = [one for stage in ITEMS[name].scales["laptop"].stages for one in stage(context, [])]
    rows = rows_of(planned, rng)
    failed = rows[0] | {"status": "failed", "reason": "loss nan at step 3"}
    for given in (rows, rows[:1], rows[1:3], [failed, *rows[1:]]):
        shown = ITEMS[name].show(context, given)
        assert shown.title and shown.text and shown.rows
        assert all(len(line) == len(shown.columns) for line in shown.rows)
        assert "nan" not in f"{shown.verdict} {shown.text}"
        assert all(path.is_file() for path, _ in shown.figures)
        assert bool(shown.verdict) == (given is rows) or len(given) > 2


@pytest.mark.parametrize("scale", ["laptop", "paper"])
@pytest.mark.parametrize("name", LATER)
def test_dry_run_without_the_data(name, scale, tmp_path, monkeypatch, capsys):
    """Only the step itself is not measured: its batch is made."""
    made = {}

    def seconds(config):
        if config.data not in made:
            made[config.data] = costs._images(config.data)[1][-1]
        return 0.5

    monkeypatch.setattr(costs, "_seconds", seconds)
    if scale not in ITEMS[name].scales:
        return
    options = {"scale": scale, "dry_run": True, "out": tmp_path, "data_dir": str(tmp_path)}
    reproduce.main(ReproduceConfig(name, **options))
    out = capsys.readouterr().out
    assert f"{name} at --scale {scale}" in out and " 0 runs" not in out
    channels = {data: 3 + data.extra_channels for data in made if data.name == "cifar10"}
    assert all(made[data] == count for data, count in channels.items())
    printed = {"tableD1", "tableD2", "tableD3", "figureB2", "table1", "table4"}
    if (name, scale) != ("chen/tableD1", "laptop"):  # its five losses stand for twenty rows each
        assert ("top1" in out) == (name.partition("/")[2] in printed)


def test_a_subset_costs_what_it_holds(tmp_path):
    context = Context("paper", tmp_path, tmp_path, str(tmp_path))
    (stage,) = ITEMS["balanced/table4"].scales["paper"].stages
    for one in stage(context, []):
        assert costs._images(one.config.data)[0] == 115_846
