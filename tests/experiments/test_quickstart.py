"""The quickstart: what it trains, and its table."""

from experiments import quickstart
from hypersphere_jax.configs.objective import WEIGHTS


def test_plan_contains_each_encoder_once():
    runs = quickstart.plan((3, 4))
    assert len({run.config.name for run in runs}) == len(runs) == 2 * 2 + 2
    for run in runs:
        weights = {name for name in WEIGHTS if getattr(run.config, name)}
        assert run.config.dim == (2 if "circle" in run.config.name else 32)
        assert ("supervised_weight" in weights) == ("supervised" in run.config.name)


def test_table_has_mean_and_deviation_over_seeds():
    one = {"align": 0.5, "uniform": -3.0, "optimum": -3.8, "logistic": 98.0, "knn": 97.0}
    (row,) = quickstart.table_rows({"a": [one, one | {"knn": 95.0, "align": 0.7}]})
    cells = ["0.600 ± 0.141", "-3.000 ± 0.000", "-3.800", "98.00 ± 0.00", "96.00 ± 1.41"]
    assert row == ["a", *cells]
