"""k-NN with a bank that does not divide over the devices."""

import jax
import numpy as np
from points import sphere

from hypersphere_jax.evaluation.knn import nearest


def test_rows_of_padding_are_no_neighbours(rng):
    """Zeros pad the bank, and are nearer to the query than all members."""
    bank = sphere(rng, 10, 3)
    devices = jax.devices()[:4]
    found = nearest(bank, np.zeros((1, 3)), 10, metric="euclidean", devices=devices)
    assert sorted(found.positions[0]) == list(range(10))
