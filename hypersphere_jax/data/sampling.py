"""The indices of the batch of a step: a function of (seed, step), without state."""

import numpy as np

from hypersphere_jax.configs import require
from hypersphere_jax.data.source import Source


class Sampler:
    """Batches of indices, each epoch in its own random order; the short last batch is dropped."""

    def __init__(self, n: int, batch_size: int, seed: int):
        require(batch_size <= n, f"batch_size={batch_size} is more than the {n} training images")
        self.batch_size = batch_size
        self.steps_per_epoch = n // batch_size
        self._n, self._seed = n, seed
        self._orders: dict[int, np.ndarray] = {}

    def __call__(self, step: int) -> np.ndarray:
        """Indices int32 `[batch_size]` of the global batch of a step (counted from 0)."""
        epoch, position = divmod(step, self.steps_per_epoch)
        start = position * self.batch_size
        return self._order(epoch)[start : start + self.batch_size]

    def _order(self, epoch: int) -> np.ndarray:
        orders = self._orders  # of two epochs, as reading ahead crosses their border
        if epoch not in orders:
            order = np.random.default_rng([self._seed, epoch]).permutation(self._n)
            newest = dict(list(orders.items())[-1:])
            self._orders = orders = newest | {epoch: order.astype(np.int32)}
        return orders[epoch]


class Consecutive:
    """Batches of consecutive sentences, each of one document; every epoch has them in a new order.

    What a document has beyond whole batches is left out: its last sentences, fewer than a batch.
    """

    def __init__(self, documents: np.ndarray, batch_size: int, seed: int):
        """`documents` `[d + 1]`: the first sentence of each document, and their number."""
        lengths = np.diff(documents)
        batches = lengths // batch_size
        require(
            bool(batches.sum()),
            f"batch_size={batch_size} is more than the sentences of any document "
            f"({lengths.max(initial=0):,}); a batch is of consecutive sentences of one document",
        )
        self.batch_size = batch_size
        self.steps_per_epoch = int(batches.sum())
        before = np.cumsum(batches) - batches
        within = np.arange(self.steps_per_epoch) - np.repeat(before, batches)
        self._starts = np.repeat(documents[:-1], batches) + within * batch_size
        self._order = Sampler(self.steps_per_epoch, 1, seed)

    def __call__(self, step: int) -> np.ndarray:
        """Numbers `[batch_size]` of the sentences in the global batch of a step, from 0."""
        start = self._starts[self._order(step)[0]]
        return np.arange(start, start + self.batch_size)


def make_sampler(source: Source, batch_size: int, seed: int) -> Sampler | Consecutive:
    """Batches of consecutive sentences where the source has documents, else of any samples."""
    documents = getattr(source, "documents", None)
    if documents is None:
        return Sampler(len(source), batch_size, seed)
    return Consecutive(documents, batch_size, seed)
