"""The losses in all their forms, and the process that measures the memory of one of them.

`python -m benchmarks.loss_forms LOSS FORM N D` prints the peaks of its own memory before and after.
So this module imports only what the forms need: all else would count as their memory.
"""

import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

import hypersphere_jax
from benchmarks.timing import resident_peak

OURS, DENSE, TORCH = "hypersphere_jax", "dense JAX", "PyTorch"
TAU = 0.5

# The losses as textbooks have them, with all n x n entries at once. "highest" is float32 itself,
# as in the library and in PyTorch, also on devices that would round products to fewer bits.
dot = functools.partial(jnp.matmul, precision="highest")


def dense_uniform(x, t=2.0):
    n = len(x)
    norms = jnp.sum(x * x, axis=1)
    squares = norms[:, None] + norms[None, :] - 2 * dot(x, x.T)
    off_diagonal = jnp.where(jnp.eye(n, dtype=bool), -jnp.inf, -t * squares)
    return jax.nn.logsumexp(off_diagonal) - jnp.log(n * (n - 1.0))


def dense_contrastive(x, y):
    logits = dot(x, y.T) / TAU
    both = jax.nn.log_softmax(logits, axis=1) + jax.nn.log_softmax(logits, axis=0)
    return -jnp.mean(jnp.diagonal(both)) / 2


def dense_dcl(x, y):
    logits = dot(x, y.T) / TAU
    others = jnp.where(jnp.eye(len(x), dtype=bool), -jnp.inf, logits)
    both = jax.nn.logsumexp(others, axis=1) + jax.nn.logsumexp(others, axis=0)
    return jnp.mean(both) / 2 - jnp.mean(jnp.diagonal(logits))


def dense_nt_xent(x, y):
    z = jnp.concatenate([x, y])
    logits = jnp.where(jnp.eye(len(z), dtype=bool), -jnp.inf, dot(z, z.T) / TAU)
    rows = jnp.arange(len(z))
    return -jnp.mean(jax.nn.log_softmax(logits)[rows, jnp.roll(rows, len(x))])


def dense_balanced(x, y, alpha=4.0, lam=2.0):
    z, image = jnp.concatenate([x, y]), jnp.tile(jnp.arange(len(x)), 2)
    negatives = jnp.where(image[:, None] == image[None, :], -jnp.inf, alpha * dot(z, z.T))
    repulsion = jnp.mean(jax.nn.logsumexp(negatives, axis=1)) / alpha
    return lam * repulsion - jnp.mean(jnp.sum(x * y, axis=1))


def dense_info_nce(query, key, negatives):
    positives = jnp.sum(query * key, axis=1, keepdims=True)
    logits = jnp.concatenate([positives, dot(query, negatives.T)], axis=1) / TAU
    return -jnp.mean(jax.nn.log_softmax(logits)[:, 0])


@functools.cache
def directions(dim):
    """Orthonormal, as columns."""
    return np.linalg.qr(np.random.default_rng(1).standard_normal((dim, dim)))[0].astype(np.float32)


def our_sliced_wasserstein(x, samples):
    return hypersphere_jax.sliced_wasserstein_loss(x, samples, directions(x.shape[1]))


def dense_sliced_wasserstein(x, samples):
    ours, theirs = (jnp.sort(dot(side, directions(x.shape[1])), axis=0) for side in (x, samples))
    return jnp.mean(jnp.square(ours - theirs))


def torch_sliced_wasserstein(torch, x, samples):
    along = torch.from_numpy(directions(x.shape[1])).to(x.device)
    ours, theirs = ((side @ along).sort(dim=0).values for side in (x, samples))
    return (ours - theirs).square().mean()


def torch_uniform(torch, x, t=2.0):
    return torch.pdist(x).pow(2).mul(-t).exp().mean().log()


def torch_contrastive(torch, x, y):
    cross_entropy, rows = torch.nn.functional.cross_entropy, torch.arange(len(x), device=x.device)
    logits = x @ y.T / TAU
    return (cross_entropy(logits, rows) + cross_entropy(logits.T, rows)) / 2


def torch_dcl(torch, x, y):
    logits = x @ y.T / TAU
    others = logits.masked_fill(torch.eye(len(x), dtype=torch.bool, device=x.device), -torch.inf)
    both = others.logsumexp(1) + others.logsumexp(0)
    return both.mean() / 2 - logits.diagonal().mean()


def torch_balanced(torch, x, y, alpha=4.0, lam=2.0):
    z, image = torch.cat([x, y]), torch.arange(len(x), device=x.device).tile(2)
    negatives = (alpha * z @ z.T).masked_fill(image[:, None] == image[None, :], -torch.inf)
    return lam * negatives.logsumexp(1).mean() / alpha - (x * y).sum(1).mean()


def torch_nt_xent(torch, x, y):
    z = torch.cat([x, y])
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    logits = (z @ z.T / TAU).masked_fill(itself, -torch.inf)
    positives = torch.arange(len(z), device=z.device).roll(len(x))
    return torch.nn.functional.cross_entropy(logits, positives)


def torch_info_nce(torch, query, key, negatives):
    logits = torch.cat([(query * key).sum(1, keepdim=True), query @ negatives.T], dim=1) / TAU
    first = torch.zeros(len(query), dtype=torch.long, device=query.device)
    return torch.nn.functional.cross_entropy(logits, first)


@dataclasses.dataclass(frozen=True)
class Loss:
    """A loss in its forms, and how many products of 2 n^2 d flops, [n, d] x [d, n], it needs."""

    ours: Callable
    dense: Callable
    torch: Callable
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
    "uniform": Loss(hypersphere_jax.uniform_loss, dense_uniform, torch_uniform, 1, 1, 1.5, 1.5),
    "contrastive": Loss(contrastive, dense_contrastive, torch_contrastive, 2, 2, 4, 3),
    "dcl": Loss(dcl, dense_dcl, torch_dcl, 2, 2, 4, 3),
    "nt_xent": Loss(nt_xent, dense_nt_xent, torch_nt_xent, 2, 2, 4 * 2, 4 * 1.5),
    "balanced": Loss(balanced, dense_balanced, torch_balanced, 2, 2, 4 * 2, 4 * 1.5),
    "info_nce": Loss(info_nce, dense_info_nce, torch_info_nce, 3, 1, 3, 2),
    # Two projections and a gradient. Sorting, which no product counts, takes most of its time.
    "sliced_wasserstein": Loss(
        *(our_sliced_wasserstein, dense_sliced_wasserstein, torch_sliced_wasserstein),
        *(2, 1, 3, 3, True),
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
    function = loss.ours if form == OURS else loss.dense
    compiled = jax.jit(jax.value_and_grad(function, argnums=tuple(range(loss.learned))))
    return lambda: jax.block_until_ready(compiled(*inputs))


def _torch_form(loss: Loss, arrays: Sequence[np.ndarray]) -> Callable[[], tuple]:
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    inputs = [torch.from_numpy(array).to(device) for array in arrays]
    learned = [array.requires_grad_() for array in inputs[: loss.learned]]

    def run():
        value = loss.torch(torch, *inputs)
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
