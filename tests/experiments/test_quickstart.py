"""The quickstart: what it trains, where, and what it compares; training is in name only."""

import dataclasses
import re

import jax
import numpy as np
import pytest

from experiments import quickstart, workers
from hypersphere_jax.configs import UserError
from hypersphere_jax.configs.objective import WEIGHTS


def test_what_the_quickstart_trains_and_compares(monkeypatch, tmp_path):
    runs = quickstart.RUNS | quickstart.CIRCLE_RUNS
    configs = [quickstart._config(name, of, str(tmp_path), 3) for name, of in runs.items()]
    assert list(runs)[1:3] == ["align_uniform", "circle_supervised"]
    weights = [[getattr(config, name) for name in WEIGHTS] for config in configs]
    assert weights == [[1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0]]
    assert [(c.dim, c.seed) for c in configs] == [(32, 3), (32, 3), (2, 3), (2, 3)]
    for rows in (quickstart.ENCODERS, quickstart.circle.ENCODERS):
        (first, step), *others = rows.values()  # step 0 of another row's run
        assert step == 0 and (first, None) in others
    numbers = {"align": 0.5, "uniform": -3.0, "uniform_optimum": -3.8}
    monkeypatch.setattr(quickstart, "run_metrics", lambda config: numbers)
    asked = []
    results = [{"top1": 98.0}, {"top1": 97.0}]
    monkeypatch.setattr(quickstart, "run_probe", lambda config: asked.append(config) or results)
    scores = quickstart._scores(tmp_path, 0)
    assert asked[0].protocols == ("lbfgs", "knn") and asked[0].standardize and asked[0].k == (5,)
    (row,) = quickstart.rows_of({"a": [scores, scores | {"knn": 95.0, "align": 0.7}]})
    spread = "0.600 ± 0.141", "-3.000 ± 0.000", "-3.800", "98.00 ± 0.00", "96.00 ± 1.41"
    assert row == ["a", *spread] and quickstart.COLUMNS[4:] == ["logistic (%)", "5-NN (%)"]


def test_the_quickstart_trains_each_encoder_once(monkeypatch, tmp_path, capsys):
    """Several at a time; each is evaluated at the checkpoints that the table has of it."""
    one = {"align": 0.5, "uniform": -3.0, "optimum": -3.8, "logistic": 98.0, "knn": 97.0}
    asked, places, drawn, outcomes = [], [], [], {}

    def each(function, tasks, jobs, command, logs):
        places.append((jobs, logs))
        for task in tasks:
            yield task, outcomes.get(task.config.name) or function(task, command)

    monkeypatch.setattr(quickstart.training, "train", lambda config, _: config.name)
    monkeypatch.setattr(quickstart, "_scores", lambda *of: asked.append(of) or one)
    monkeypatch.setattr(quickstart.circle, "features_of", lambda *of: of)
    monkeypatch.setattr(quickstart, "_draw", lambda *of: drawn.append(of[-1]))
    monkeypatch.setattr(quickstart, "_page", lambda config, folders, *_: folders["contrastive"])
    monkeypatch.setattr(quickstart.workers, "each", each)
    monkeypatch.setattr(quickstart.workers, "core_count", lambda: 3)
    config = quickstart.QuickstartConfig(str(tmp_path), seeds=(3, 4))
    quickstart.main(config)
    runs = ["contrastive", "align_uniform"]
    steps = {"contrastive": [None], "align_uniform": [0, None]}
    expected = [
        (f"{run}_seed{seed}", step) for seed in (3, 4) for run in runs for step in steps[run]
    ]
    assert asked == expected
    out = capsys.readouterr().out
    assert "1 of 6: contrastive_seed3: logistic 98.00%, 5-NN 97.00%; about" in out
    expected = {"supervised": "circle_supervised_seed3", "contrastive": "circle_contrastive_seed3"}
    circles = [
        (title, expected[of], step) for title, (of, step) in quickstart.circle.ENCODERS.items()
    ]
    assert drawn == [circles]
    assert out.count("98.00 ± 0.00") == 3 and f"page: {tmp_path / 'contrastive_seed3'}" in out
    # Several processes on CPUs alone, or as many as were asked for.
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    quickstart.main(config)
    quickstart.main(dataclasses.replace(config, jobs=2))
    assert places == [(3, tmp_path / "logs"), (1, None), (2, tmp_path / "logs")]
    outcomes["align_uniform_seed4"] = workers.DIED
    with pytest.raises(UserError, match="align_uniform_seed4: its process died"):
        quickstart.main(config)


def test_the_quickstart_chooses_on_held_out_training_images(monkeypatch, tmp_path, capsys):
    trained = []
    monkeypatch.setattr(
        quickstart.training, "train", lambda config, _: trained.append(config) or config
    )
    one_by_one = {"choose": True, "jobs": 1}
    others = {"align": 0, "uniform": 0, "optimum": 0}
    best = {"contrastive": 0.48, "align_uniform": 1.92}

    def score(config, step):
        name, rate = re.match(r"(\w+)_([\d.]+)_seed", config.name).groups()
        doublings = np.log2(float(rate) / best[name])  # either probe alone has another best rate
        return others | {
            "logistic": 90 - (doublings + 1) ** 2,
            "knn": 90 - (doublings - 1) ** 2,
        }

    monkeypatch.setattr(quickstart, "_scores", score)
    quickstart.main(quickstart.QuickstartConfig(str(tmp_path), seeds=(1, 2), **one_by_one))
    assert {config.folds for config in trained} == {5} and len(trained) == 2 * 5 * 2
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines[-2:]] == ["0.48", "1.92"]
