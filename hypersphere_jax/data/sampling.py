"""Which images stand in the batch of a step: a function of (seed, step), without state."""

import functools

import numpy as np

from hypersphere_jax.config import require


class Sampler:
    """Batches of indices, each epoch in its own random order; the short last batch is dropped.

    Nothing has to be stored to resume at a step, and no number depends on devices or hosts.
    """

    def __init__(self, n: int, batch_size: int, seed: int):
        require(
            batch_size <= n,
            f"--batch-size {batch_size} is more than the {n} training images",
        )
        self.batch_size = batch_size
        self.steps_per_epoch = n // batch_size
        self._n, self._seed = n, seed

    def __call__(self, step: int) -> np.ndarray:
        """Indices int32 `[batch_size]` of the global batch of a step (counted from 0)."""
        epoch, position = divmod(step, self.steps_per_epoch)
        start = position * self.batch_size
        return _order(self._n, self._seed, epoch)[start : start + self.batch_size]


# Few epochs are held at a time: the running one, and the next at its border.
@functools.lru_cache(maxsize=4)
def _order(n: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(n).astype(np.int32)
