"""GPU checks that train networks, at toy size."""

import numpy as np
import pytest
from gpu_checks import run_toy


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifar10", "wang_isola", "parity"])
def test_toy_runs_are_trained_and_evaluated(name, tmp_path):
    if name == "parity":
        pytest.importorskip("torch")
    rows = run_toy(name, tmp_path)
    scores = [value for row in rows for key, value in row.items() if key.endswith("knn5")]
    assert scores and all(-1 <= score <= 100 for score in scores)
    assert all(np.isfinite(row["loss"]) for row in rows if "epoch_images_per_s" in row)
