"""Exact gradient of a batch that does not fit in memory, one microbatch at a time."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def encode_microbatches(
    encode: Callable, count: int, params: Any, batch: tuple[jax.Array, ...]
) -> tuple[dict[str, jax.Array], Any]:
    """Encode a batch in microbatches, whose activations are in memory one after another.

    The forward pass keeps only the outputs. The backward pass encodes each microbatch a second time
    and propagates the derivative of the loss with respect to its outputs to the parameters. The
    gradient of any loss of the outputs is therefore exact.

    Args:
      encode: `(params, *microbatch) -> (outputs, stats)`.
      count: Number of microbatches, equal parts of consecutive rows of the batch.
      params: Parameters of the network.
      batch: Arrays `[n, ...]`.

    Returns:
      Outputs of the whole batch, and the mean of the running statistics after each microbatch.

    Source: Gao et al. 2021 (GradCache).
    """
    if count == 1:
        return encode(params, *batch)
    microbatches = [array.reshape(count, -1, *array.shape[1:]) for array in batch]
    encode = jax.checkpoint(encode)

    def encode_next(carry, microbatch):
        return carry, encode(params, *microbatch)

    # In a program without a loop, XLA would keep all activations.
    _, (outputs, stats) = jax.lax.scan(encode_next, None, microbatches)
    outputs = {name: layer.reshape(-1, *layer.shape[2:]) for name, layer in outputs.items()}
    return outputs, jax.tree.map(lambda stat: jnp.mean(stat, axis=0), stats)
