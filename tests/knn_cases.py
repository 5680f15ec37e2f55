"""Distances by hand, and a problem whose votes are split."""

import numpy as np


def euclidean(a, b):
    return float(np.linalg.norm(a - b))


def cosine(a, b):
    return 1 - float(a @ b) / (np.linalg.norm(a) * np.linalg.norm(b))


DISTANCES = {"cosine": cosine, "euclidean": euclidean}


def problem(rng, m=97, n=53, d=6, num_classes=4):
    """Overlapping classes, so that votes are split and often tied."""
    centres = rng.normal(size=(num_classes, d))
    labels, asked = rng.integers(num_classes, size=m), rng.integers(num_classes, size=n)
    bank, queries = centres[labels] + rng.normal(size=(m, d)), rng.normal(size=(n, d))
    return bank.astype(np.float32), labels, (centres[asked] + queries).astype(np.float32), asked
