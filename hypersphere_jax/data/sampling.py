"""The indices of the batch of a step: a function of (seed, step), without state."""

import numpy as np

from hypersphere_jax.configs import require


class Sampler:
    """Batches of indices in a new random order each epoch; the last incomplete batch is dropped."""

    def __init__(self, n: int, batch_size: int, seed: int):
        require(batch_size <= n, f"batch_size={batch_size} is more than the {n} training images")
        self.batch_size = batch_size
        self.steps_per_epoch = n // batch_size
        self._n = n
        self._seed = seed
        self._orders: dict[int, np.ndarray] = {}

    def __call__(self, step: int) -> np.ndarray:
        """Return the indices int32 `[batch_size]` of the global batch of a step, from 0."""
        epoch, position = divmod(step, self.steps_per_epoch)
        start = position * self.batch_size
        return self._order(epoch)[start : start + self.batch_size]

    def _order(self, epoch: int) -> np.ndarray:
        orders = self._orders  # the two newest epochs, since reading ahead crosses their border
        if epoch not in orders:
            order = np.random.default_rng([self._seed, epoch]).permutation(self._n)
            newest = dict(list(orders.items())[-1:])
            orders = newest | {epoch: order.astype(np.int32)}
            self._orders = orders
        return orders[epoch]
