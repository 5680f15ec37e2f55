"""The two k-NN protocols by name, in `probe` and while training."""

import numpy as np
import pytest
import tiny_runs

from hypersphere_jax import configs as C
from hypersphere_jax import data
from hypersphere_jax.evaluation.callbacks import split_images
from hypersphere_jax.evaluation.knn import knn_probe
from hypersphere_jax.evaluation.probe_runs import run_probe


def test_named_protocols_set_options(rng, tmp_path):
    labels = [rng.integers(0, 3, n) for n in (260, 80)]
    x = [rng.standard_normal((len(y), 5)) + y[:, None] for y in labels]
    arrays = {"train_x": x[0], "train_y": labels[0], "test_x": x[1], "test_y": labels[1]}
    np.savez(tmp_path / "features.npz", **arrays)
    config = C.ProbeConfig((str(tmp_path / "features.npz"),), protocols=("knn", "knn_weighted"))
    majority, weighted = run_probe(config)
    assert majority["predicted"] == knn_probe(**arrays, k=5)["predicted"]
    expected = knn_probe(**arrays, k=200, vote="similarity", temperature=0.1)
    assert weighted["predicted"] == expected["predicted"] and weighted["k"] == 200
    assert weighted["predicted"] != knn_probe(**arrays, k=200)["predicted"]


def test_eval_images_all_uses_whole_splits(tmp_path):
    evaluate = C.EvaluateConfig(1, ("knn_weighted",), "all", eval_split="test")
    config = tiny_runs.short(tmp_path, evaluate=evaluate)
    dataset = data.load(config)
    bank, queries = split_images(config, dataset)
    assert (len(bank), len(queries)) == (len(dataset.train), len(dataset.test))


def test_too_few_images_for_200_neighbours_are_refused(tmp_path):
    from hypersphere_jax.training import train as training

    evaluate = C.EvaluateConfig(1, ("knn_weighted",), 300)
    with pytest.raises(C.UserError, match="eval_images"):
        training.train(tiny_runs.short(tmp_path, evaluate=evaluate))
