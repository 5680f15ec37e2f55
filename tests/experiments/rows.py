"""Rows of finished runs with made-up predictions."""

import numpy as np

from experiments.lib.records import Predictions


def row(seed=0, n=400, **accuracies):
    """Return a finished row; of two encoders, the better one is correct wherever the other is.

    Accuracies are in percent, by score column.
    """
    order = np.random.default_rng(seed).permutation(n)
    targets = np.zeros(n, int)
    predictions = {}
    for name, percent in accuracies.items():
        wrong = order >= round(n * percent / 100)
        predictions[name] = Predictions(targets, wrong.astype(int))
    return {"status": "done", "run": "r", "seed": seed, "predictions": predictions, **accuracies}


def both(layer, percent, probe=50):
    """Return accuracies of a layer: the same by both deciding instruments."""
    return {f"{layer}_logistic": percent, f"{layer}_knn5": percent, f"{layer}_linear": probe}
