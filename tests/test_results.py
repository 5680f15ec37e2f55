"""Results of probes: their order, and the table of them."""

import pytest

from hypersphere_jax.evaluation import results

RESULTS = [
    {"run": "a", "step": 1, "layer": "fc7", "protocol": "lbfgs", "top1": 50.0, "top5": 70.0},
    {"run": "b", "step": 1, "layer": "fc7", "protocol": "knn", "k": 5, "top1": 61.25, "top5": None},
    {"run": "a", "step": 1, "layer": "conv5", "protocol": "lbfgs", "top1": 55.0, "top5": 90.0},
]


RESULTS = [
    result
    | {"d": 8, "n": 1397, "seconds_probe": 10.0 - place, "chosen": {"l2": 0.001}}
    | {"top1_interval": [result["top1"] - 2 - place * 1.25, result["top1"] + 2 + place * 1.25]}
    for place, result in enumerate(RESULTS)
]


@pytest.mark.parametrize(
    ("column", "order"),
    [
        (None, [0, 1, 2]),
        ("top1", [1, 2, 0]),  # best first
        ("top5", [2, 0, 1]),  # without one: last
        ("run", [0, 2, 1]),
        ("layer", [2, 0, 1]),
        ("seconds", [2, 1, 0]),
    ],
)
def test_sorting(column, order):
    assert results.ordered(RESULTS, column) == [RESULTS[place] for place in order]


def test_table():
    """What all share stands above it once."""
    title, columns, rows = results.table(RESULTS)
    assert title == "2 runs, step 1, d 8, 1,397 test samples, accuracies in percent"
    assert columns == ["run", "layer", "protocol", "top-1 ± 95%", "top-5", "chosen", "s"]
    assert rows[0] == ["a", "fc7", "lbfgs", "50.00 ± 2.00", 70.0, "l2=0.001", "10.00"]
    assert rows[1] == ["b", "fc7", "knn 5", "61.25 ± 3.25", None, "l2=0.001", "9.00"]
    of_sgd = RESULTS[0] | {
        "protocol": "moco",
        "augment": True,
        "chosen": {"learning_rate": 30.0, "weight_decay": 0.0},
        "converged": False,
        "valid_top1": 49.5,
    }
    _, columns, ((protocol, valid, _, _, chosen, _),) = results.table([of_sgd])
    assert protocol == "moco+augment*" and chosen == "lr=30, wd=0" and valid == 49.5
    assert "held out" in columns and "run" not in columns
