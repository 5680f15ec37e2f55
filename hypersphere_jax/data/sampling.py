"""The indices of the batch of a step: a function of (seed, step), without state."""

import numpy as np

from hypersphere_jax.configs import require
from hypersphere_jax.data.source import Source


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


class Consecutive:
    """Batches of consecutive sentences of one document, in a new order each epoch.

    The last sentences of a document, fewer than a batch, are dropped.
    """

    def __init__(self, documents: np.ndarray, batch_size: int, seed: int):
        """`documents` `[d + 1]`: the first sentence of each document, and the total number."""
        lengths = np.diff(documents)
        batches = lengths // batch_size
        require(
            bool(batches.sum()),
            f"batch_size={batch_size} is more than the sentences of any document "
            f"({lengths.max(initial=0):,}); a batch is of consecutive sentences of one document",
        )
        self.batch_size = batch_size
        self.steps_per_epoch = int(batches.sum())
        first_batches = np.cumsum(batches) - batches
        within = np.arange(self.steps_per_epoch) - np.repeat(first_batches, batches)
        self._starts = np.repeat(documents[:-1], batches) + within * batch_size
        self._order = Sampler(self.steps_per_epoch, 1, seed)

    def __call__(self, step: int) -> np.ndarray:
        """Return the sentences `[batch_size]` of the global batch of a step, from 0."""
        start = self._starts[self._order(step)[0]]
        return np.arange(start, start + self.batch_size)


def make_sampler(source: Source, batch_size: int, seed: int) -> Sampler | Consecutive:
    """Return batches of consecutive sentences for a source with documents, else of any samples."""
    documents = getattr(source, "documents", None)
    if documents is None:
        return Sampler(len(source), batch_size, seed)
    return Consecutive(documents, batch_size, seed)
