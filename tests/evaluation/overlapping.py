"""Features of overlapping classes, and the logistic regression of scikit-learn."""

import numpy as np
from sklearn.linear_model import LogisticRegression


def splits(rng, d=16, num_classes=6, spread=1.5, sizes=(300, 200), unit=True):
    """Return float32 features and labels of a training and a test split."""
    centres = rng.normal(size=(num_classes, d))
    arrays = []
    for n in sizes:
        labels = rng.integers(num_classes, size=n)
        x = centres[labels] + spread * rng.normal(size=(n, d))
        if unit:
            x /= np.linalg.norm(x, axis=1, keepdims=True)
        arrays += [x.astype(np.float32), labels]
    return arrays


def fit_scikit_learn(x, y, c):
    """Return the minimum of the sum of the losses + |W|^2 / (2 c), by Newton's method."""
    return LogisticRegression(C=c, solver="newton-cholesky", tol=1e-9).fit(np.float64(x), y)


def insert_rows(arrays, label):
    """Return features and labels with one more row of this label in each."""
    return [np.insert(a, 7, a[0] if a.ndim > 1 else label, axis=0) for a in arrays]
