"""Losses in three forms: the library's, dense in JAX, and dense in PyTorch.

The dense forms compute all n x n entries at once, as textbooks do. One function serves both
libraries; `JAX` has JAX's functions under PyTorch's names.
"""

import dataclasses
import functools
import math
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hypersphere_jax

TAU = 0.5
JAX = types.SimpleNamespace(
    arange=jnp.arange,
    cat=jnp.concatenate,
    where=jnp.where,
    log_softmax=jax.nn.log_softmax,
    logsumexp=jax.nn.logsumexp,
)


def equal(numbers):
    """Return which pairs of numbers are equal, as a matrix."""
    return numbers[:, None] == numbers[None, :]


def dense_uniform(lib, x, t=2.0):
    norms = (x * x).sum(1)
    squares = norms[:, None] + norms[None, :] - 2 * x @ x.T
    others = lib.where(equal(lib.arange(len(x))), -math.inf, -t * squares)
    return lib.logsumexp(others.reshape(-1), 0) - math.log(len(x) * (len(x) - 1))


def dense_contrastive(lib, x, y):
    logits = x @ y.T / TAU
    both = lib.log_softmax(logits, 1) + lib.log_softmax(logits, 0)
    return -both.diagonal().mean() / 2


def dense_dcl(lib, x, y):
    logits = x @ y.T / TAU
    others = lib.where(equal(lib.arange(len(x))), -math.inf, logits)
    both = lib.logsumexp(others, 1) + lib.logsumexp(others, 0)
    return both.mean() / 2 - logits.diagonal().mean()


def dense_nt_xent(lib, x, y):
    z = lib.cat([x, y])
    rows = lib.arange(len(z))
    logits = lib.where(equal(rows), -math.inf, z @ z.T / TAU)
    return -lib.log_softmax(logits, 1)[rows, (rows + len(x)) % len(z)].mean()


def dense_balanced(lib, x, y, alpha=4.0, lam=2.0):
    z = lib.cat([x, y])
    images = lib.arange(len(z)) % len(x)
    negatives = lib.where(equal(images), -math.inf, alpha * z @ z.T)
    return lam * lib.logsumexp(negatives, 1).mean() / alpha - (x * y).sum(1).mean()


def dense_info_nce(lib, query, key, negatives):
    positives = (query * key).sum(1)
    logits = lib.cat([positives[:, None], query @ negatives.T], 1) / TAU
    return -lib.log_softmax(logits, 1)[:, 0].mean()


def torch_uniform(torch, x, t=2.0):
    """Return the uniform loss as PyTorch users write it."""
    return torch.pdist(x).pow(2).mul(-t).exp().mean().log()


@dataclasses.dataclass(frozen=True)
class Loss:
    """A loss in its forms, and the number of matrix products `[n, d] x [d, n]` that it needs."""

    ours: Callable
    dense: Callable  # (library, *arrays)
    inputs: int  # number of arrays [n, d]
    learned: int  # number of these arrays, from the first, that have gradients
    products: float  # with memory linear in n, where softmax logits are computed twice


# Half of symmetric logits is enough. Uniformity needs one pass, because its sum scales all
# gradients equally. NT-Xent and balanced have 2n points, whose products are four times as large;
# unit vectors need only NT-Xent's similarity "dot".
_contrastive = functools.partial(hypersphere_jax.contrastive_loss, tau=TAU)
_dcl = functools.partial(hypersphere_jax.dcl_loss, tau=TAU)
_nt_xent = functools.partial(hypersphere_jax.nt_xent_loss, similarity="dot", tau=TAU)
_info_nce = functools.partial(hypersphere_jax.info_nce_loss, tau=TAU)
LOSSES = {
    "uniform": Loss(hypersphere_jax.uniform_loss, dense_uniform, 1, 1, 1.5),
    "contrastive": Loss(_contrastive, dense_contrastive, 2, 2, 4),
    "dcl": Loss(_dcl, dense_dcl, 2, 2, 4),
    "nt_xent": Loss(_nt_xent, dense_nt_xent, 2, 2, 8),
    "balanced": Loss(hypersphere_jax.balanced_contrastive_loss, dense_balanced, 2, 2, 8),
    "info_nce": Loss(_info_nce, dense_info_nce, 3, 1, 3),
}


def unit_vectors(count: int, n: int, dim: int) -> list[np.ndarray]:
    """Return random arrays `[n, dim]` of unit vectors, the inputs of a loss."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((n, dim), dtype=np.float32) for _ in range(count)]
    return [array / np.linalg.norm(array, axis=1, keepdims=True) for array in arrays]


def compile_gradient(function: Callable, loss: Loss, n: int, dim: int, dtype: str) -> Any:
    """Compile value and gradient of a form in JAX."""
    gradient = jax.value_and_grad(function, argnums=tuple(range(loss.learned)))
    shape = jax.ShapeDtypeStruct((n, dim), dtype)
    return jax.jit(gradient).lower(*[shape] * loss.inputs).compile()


def compile_dense(loss: Loss, n: int, dim: int) -> Any:
    """Compile value and gradient of the dense form in JAX, with float32 products everywhere."""
    with jax.default_matmul_precision("highest"):
        return compile_gradient(functools.partial(loss.dense, JAX), loss, n, dim, "float32")


def torch_form(loss: Loss, arrays: Sequence[np.ndarray]) -> Callable[[], tuple]:
    """Return a call without arguments that waits for value and gradients in PyTorch."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    inputs = [torch.from_numpy(array).to(device) for array in arrays]
    learned = [array.requires_grad_() for array in inputs[: loss.learned]]
    function = torch_uniform if loss.dense is dense_uniform else loss.dense

    def run():
        with torch.device(device):
            value = function(torch, *inputs)
        gradients = torch.autograd.grad(value, learned)
        if device == "cuda":
            torch.cuda.synchronize()
        return value.detach(), gradients

    return run
