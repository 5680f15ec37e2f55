"""Features of classes that overlap, for probes that must choose; and scikit-learn on them."""

import numpy as np
from sklearn.linear_model import LogisticRegression


def splits(rng, d=16, num_classes=6, spread=1.5, sizes=(300, 200), unit=True):
    """Features and labels of a training and a test split, float32 and of unit norm if so asked."""
    centres, found = rng.normal(size=(num_classes, d)), []
    for n in sizes:
        labels = rng.integers(num_classes, size=n)
        x = centres[labels] + spread * rng.normal(size=(n, d))
        x = x / np.linalg.norm(x, axis=1, keepdims=True) if unit else x
        found += [x.astype(np.float32), labels]
    return found


def scikit_learn(x, y, c):
    """The minimum of the sum of the losses and half the squared norm / c, by Newton's method."""
    return LogisticRegression(C=c, solver="newton-cholesky", tol=1e-9).fit(np.float64(x), y)


class Watched:
    """Features that know how many rows were read at a time."""

    def __init__(self, x):
        self.x = x
        self.shape = x.shape
        self.dtype = x.dtype
        self.reads = []

    def __len__(self):
        return len(self.x)

    def __getitem__(self, rows):
        self.reads.append(len(np.atleast_2d(self.x[rows])))
        return self.x[rows]
