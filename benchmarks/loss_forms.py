"""The losses in all their forms, and the process that measures the memory of one of them.

`python -m benchmarks.loss_forms LOSS FORM N D` prints the peaks of its own memory before and after.
So this module imports only what the forms need: all else would count as their memory.
"""

import dataclasses
import functools
import json
import math
import sys
import types
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

import hypersphere_jax
from benchmarks.timing import resident_peak

OURS, DENSE, TORCH = "hypersphere_jax", "dense JAX", "PyTorch"
TAU = 0.5


# The losses as textbooks have them, with all n x n entries at once, in PyTorch or in JAX under
# PyTorch's names.
JAX = types.SimpleNamespace(
    arange=jnp.arange,
    as_tensor=jnp.asarray,
    cat=jnp.concatenate,
    where=jnp.where,
    log_softmax=jax.nn.log_softmax,
    logsumexp=jax.nn.logsumexp,
    sort=lambda array, axis: (jnp.sort(array, axis), None),
)


def equal(numbers):
    """Which pairs of them are equal, as a matrix."""
    return numbers[:, None] == numbers[None, :]


def dense_uniform(lib, x, t=2.0):
    rows, norms = lib.arange(len(x)), (x * x).sum(1)
    squares = norms[:, None] + norms[None, :] - 2 * x @ x.T
    others = lib.where(equal(rows), -math.inf, -t * squares)
    return lib.logsumexp(others.reshape(-1), 0) - math.log(len(x) * (len(x) - 1))


def dense_contrastive(lib, x, y):
    logits = x @ y.T / TAU
    both = lib.log_softmax(logits, 1) + lib.log_softmax(logits, 0)
    return -both.diagonal().mean() / 2


def dense_dcl(lib, x, y):
    rows, logits = lib.arange(len(x)), x @ y.T / TAU
    others = lib.where(equal(rows), -math.inf, logits)
    both = lib.logsumexp(others, 1) + lib.logsumexp(others, 0)
    return both.mean() / 2 - logits.diagonal().mean()


def dense_nt_xent(lib, x, y):
    z, rows = lib.cat([x, y]), lib.arange(2 * len(x))
    logits = lib.where(equal(rows), -math.inf, z @ z.T / TAU)
    return -lib.log_softmax(logits, 1)[rows, (rows + len(x)) % len(z)].mean()


def dense_balanced(lib, x, y, alpha=4.0, lam=2.0):
    z, image = lib.cat([x, y]), lib.arange(2 * len(x)) % len(x)
    negatives = lib.where(equal(image), -math.inf, alpha * z @ z.T)
    return lam * lib.logsumexp(negatives, 1).mean() / alpha - (x * y).sum(1).mean()


def dense_info_nce(lib, query, key, negatives):
    positives = (query * key).sum(1)
    logits = lib.cat([positives[:, None], query @ negatives.T], 1) / TAU
    return -lib.log_softmax(logits, 1)[:, 0].mean()


@functools.cache
def directions(dim):
    """Orthonormal, as columns."""
    return np.linalg.qr(np.random.default_rng(1).standard_normal((dim, dim)))[0].astype(np.float32)


def our_sliced_wasserstein(x, samples):
    return hypersphere_jax.sliced_wasserstein_loss(x, samples, directions(x.shape[1]))


def dense_sliced_wasserstein(lib, x, samples):
    along = lib.as_tensor(directions(x.shape[1]))
    ours, theirs = (lib.sort(side @ along, 0)[0] for side in (x, samples))
    return ((ours - theirs) ** 2).mean()


def torch_uniform(torch, x, t=2.0):
    """As users of PyTorch have it."""
    return torch.pdist(x).pow(2).mul(-t).exp().mean().log()


@dataclasses.dataclass(frozen=True)
class Loss:
    """A loss in its forms, and how many products of 2 n^2 d flops, [n, d] x [d, n], it needs."""

    ours: Callable
    dense: Callable  # (library, *arrays)
    inputs: int  # arrays [n, d]
    learned: int  # how many of these, from the first, have gradients
    linear: float  # products with memory linear in n: softmax logits are computed twice
    kept: float  # products where the n x n logits are kept between value and gradient
    projects: bool = False  # products are [n, d] x [d, d], of 2 n d^2 flops

    def flops(self, form: str, n: int, dim: int) -> float:
        products = self.linear if form == OURS else self.kept
        return 2 * n * dim * (dim if self.projects else n) * products


# Of symmetric logits half is enough. Uniformity needs one pass: its sum scales all gradients alike.
# NT-Xent is of 2n points, so that its products are four times as large; its points are of unit norm
# already, and "dot" is the computation of the other forms.
contrastive = functools.partial(hypersphere_jax.contrastive_loss, tau=TAU)
dcl = functools.partial(hypersphere_jax.dcl_loss, tau=TAU)
nt_xent = functools.partial(hypersphere_jax.nt_xent_loss, similarity="dot", tau=TAU)
balanced = hypersphere_jax.balanced_contrastive_loss
info_nce = functools.partial(hypersphere_jax.info_nce_loss, tau=TAU)
LOSSES = {
    "uniform": Loss(hypersphere_jax.uniform_loss, dense_uniform, 1, 1, 1.5, 1.5),
    "contrastive": Loss(contrastive, dense_contrastive, 2, 2, 4, 3),
    "dcl": Loss(dcl, dense_dcl, 2, 2, 4, 3),
    "nt_xent": Loss(nt_xent, dense_nt_xent, 2, 2, 4 * 2, 4 * 1.5),
    "balanced": Loss(balanced, dense_balanced, 2, 2, 4 * 2, 4 * 1.5),
    "info_nce": Loss(info_nce, dense_info_nce, 3, 1, 3, 2),
    # Two projections and a gradient. Sorting, which no product counts, takes most of its time.
    "sliced_wasserstein": Loss(
        our_sliced_wasserstein, dense_sliced_wasserstein, 2, 1, 3, 3, projects=True
    ),
}


def unit_vectors(count: int, n: int, dim: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((n, dim), dtype=np.float32) for _ in range(count)]
    for array in arrays:  # in place, as copies would count as memory of the loss
        array /= np.sqrt(np.einsum("nd,nd->n", array, array))[:, None]
    return arrays


def make_form(loss: Loss, form: str, arrays: Sequence[np.ndarray]) -> Callable[[], tuple]:
    """A call without arguments that waits for (value, gradients of the learned inputs)."""
    if form == TORCH:
        return _torch_form(loss, arrays)
    inputs = jax.block_until_ready([jnp.asarray(array) for array in arrays])
    function = loss.ours if form == OURS else functools.partial(loss.dense, JAX)
    # "highest" is float32 itself, as in the library and in PyTorch, on all devices.
    function = jax.default_matmul_precision("highest")(function)
    compiled = jax.jit(jax.value_and_grad(function, argnums=tuple(range(loss.learned))))
    return lambda: jax.block_until_ready(compiled(*inputs))


def _torch_form(loss: Loss, arrays: Sequence[np.ndarray]) -> Callable[[], tuple]:
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


def _work(name: str, form: str, n: str, dim: str) -> None:
    call = make_form(LOSSES[name], form, unit_vectors(LOSSES[name].inputs, int(n), int(dim)))
    base = _device_peak(form) or resident_peak()
    call()
    peak = _device_peak(form) or resident_peak()
    print(json.dumps({"peak_mb": peak, "base_mb": base, "resident_mb": resident_peak()}))


def _device_peak(form: str) -> float | None:
    """MB of the accelerator's memory that this process has used at most; None on CPU."""
    if form == TORCH:
        import torch

        return torch.cuda.max_memory_allocated() / 1e6 if torch.cuda.is_available() else None
    stats = jax.devices()[0].memory_stats()
    return stats["peak_bytes_in_use"] / 1e6 if stats else None


if __name__ == "__main__":
    _work(*sys.argv[1:])
