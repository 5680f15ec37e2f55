"""The quickstart: what it trains and evaluates; in the slow tier the whole of it, shortened."""

import pytest

from experiments import quickstart
from experiments.quickstart import CIRCLES, ENCODERS, RUNS, QuickstartConfig


def test_what_is_trained_and_compared(monkeypatch, tmp_path):
    configs = {name: quickstart._config(name, QuickstartConfig(str(tmp_path), 3)) for name in RUNS}
    weights = {name: quickstart._weights(config.objective) for name, config in configs.items()}
    assert {name: [*of.values()] for name, of in weights.items()} == {
        "contrastive": [1, 0, 0, 0],
        "align_uniform": [0, 1, 1, 0],
        "circle_supervised": [0, 0, 0, 1],
        "circle_contrastive": [1, 0, 0, 0],
    }
    assert [config.model.dim for config in configs.values()] == [32, 32, 2, 2]
    assert {config.seed for config in configs.values()} == {3}
    for rows in (ENCODERS, CIRCLES):  # random initialization first: step 0 of another row's run
        (first, step), *others = rows.values()
        assert step == 0 and (first, None) in others
    numbers = {"align": 0.5, "uniform": -3.0, "uniform_optimum": -3.8}
    monkeypatch.setattr(quickstart, "measure", lambda config: numbers)
    monkeypatch.setattr(quickstart, "probe", lambda config: [{"top1": 98.0}, {"top1": 97.0}])
    assert quickstart._scores(tmp_path, 0) == [0.5, -3.0, -3.8, 98.0, 97.0]
    assert quickstart.COLUMNS[4:] == ["linear (%)", "5-NN (%)"]


@pytest.mark.slow
def test_the_whole_path_shortened(monkeypatch, tmp_path, capsys):
    short = {name: (loss, dim, 8, rate) for name, (loss, dim, _, rate) in RUNS.items()}
    monkeypatch.setattr(quickstart, "RUNS", short)
    quickstart.main(QuickstartConfig(str(tmp_path)))
    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/png") == 3 and "align + uniform" in capsys.readouterr().out
