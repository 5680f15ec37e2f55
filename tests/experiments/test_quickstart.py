"""The quickstart: what it trains and evaluates, with a stub in place of training."""

import re

import numpy as np

from experiments import quickstart
from experiments.quickstart import QuickstartConfig
from hypersphere_jax.configs.objective import WEIGHTS


def test_plan_contains_each_encoder_once(tmp_path):
    tasks = quickstart.plan(QuickstartConfig(str(tmp_path), seeds=(3, 4)))
    assert len({task.config.name for task in tasks}) == len(tasks) == 2 * 2 + 2
    steps = {task.config.name: task.steps or task.circle_steps for task in tasks}
    assert steps["align_uniform_seed3"] == (0, None) and steps["contrastive_seed4"] == (None,)
    assert steps["circle_contrastive_seed3"] == (0, None)
    for task in tasks:
        weights = {name for name in WEIGHTS if getattr(task.config, name)}
        assert task.config.dim == (2 if task.circle_steps else 32)
        assert ("supervised_weight" in weights) == ("supervised" in task.config.name)


def test_quickstart_prints_a_row_per_encoder(monkeypatch, tmp_path, capsys):
    scores = {"align": 0.5, "uniform": -3.0, "optimum": -3.8, "logistic": 98.0, "knn": 97.0}
    monkeypatch.setattr(quickstart, "train", lambda config, _: config.name)
    monkeypatch.setattr(quickstart, "evaluate", lambda *of: scores)
    monkeypatch.setattr(quickstart, "output_features", lambda *of: {})
    drawn = []
    monkeypatch.setattr(quickstart, "draw", lambda *of: drawn.append(of[-1]))
    monkeypatch.setattr(quickstart, "write_report", lambda *of: "page")
    quickstart.main(QuickstartConfig(str(tmp_path), seeds=(3, 4), jobs=1))
    assert capsys.readouterr().out.count("98.00 ± 0.00") == 3
    assert [encoder["name"] for encoder in drawn[0]] == [*quickstart.figure3.ENCODERS]
    assert (tmp_path / "quickstart.json").is_file()


def test_table_has_mean_and_deviation_over_seeds():
    one = {"align": 0.5, "uniform": -3.0, "optimum": -3.8, "logistic": 98.0, "knn": 97.0}
    (row,) = quickstart.table_rows({"a": [one, one | {"knn": 95.0, "align": 0.7}]})
    cells = ["0.600 ± 0.141", "-3.000 ± 0.000", "-3.800", "98.00 ± 0.00", "96.00 ± 1.41"]
    assert row == ["a", *cells]


def test_rates_are_chosen_on_held_out_training_images(monkeypatch, tmp_path, capsys):
    trained = []
    monkeypatch.setattr(quickstart, "train", lambda config, _: trained.append(config) or config)
    best = {"contrastive": 0.48, "align_uniform": 1.92}
    others = {"align": 0, "uniform": 0, "optimum": 0}

    def evaluate(config, step):
        name, rate = re.match(r"(\w+)_([\d.]+)_seed", config.name).groups()
        doublings = np.log2(float(rate) / best[name])  # each probe prefers another rate
        return others | {"logistic": 90 - (doublings + 1) ** 2, "knn": 90 - (doublings - 1) ** 2}

    monkeypatch.setattr(quickstart, "evaluate", evaluate)
    quickstart.main(QuickstartConfig(str(tmp_path), seeds=(1, 2), choose=True, jobs=1))
    assert {config.folds for config in trained} == {5} and len(trained) == 2 * 5 * 2
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines[-2:]] == ["0.48", "1.92"]
