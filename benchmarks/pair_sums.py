"""The kernel of Hopper GPUs (`_pairwise/hopper.py`) against the same sums in blocks, by XLA.

    python -m benchmarks.pair_sums            # n = 65,536, d = 128; under a minute

One line of JSON a form: milliseconds, TFLOP/s of the products of bfloat16 parts, and the errors
against float64 at some rows, relative to the norm of what is right.
"""

import argparse
import functools
import json
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.timing import device_kind, median, take_turns
from hypersphere_jax.losses._pairwise import hopper
from hypersphere_jax.losses._pairwise.logits import BIAS_PARTS, bias_parts
from hypersphere_jax.losses._pairwise.precision import matmul

BLOCK, ROWS = 4096, 128
Arrays = tuple[jax.Array, ...]
# Of a name: the function, whether its sums are weighted, and its options.
Forms = dict[str, tuple[Callable, bool, dict[str, Any]]]
OPTIONS: dict[str, tuple[bool, dict[str, Any]]] = {
    "weighted": (True, {}),
    "weighted, i = j left out": (True, {"exclude": 1}),
    "weighted by two terms, i = j left out": (True, {"exclude": 1, "second": True}),
    "sums, i = j left out": (False, {"exclude": 1}),
}


def points(n: int, dim: int = 128) -> Arrays:
    """X and y of norm 2; shift, bias, and the two vectors of a second term."""
    rng = np.random.default_rng(0)
    sides = rng.standard_normal((2, n, dim))
    sides *= 2 / np.linalg.norm(sides, axis=2, keepdims=True)
    return tuple(map(jnp.float32, (*sides, *0.3 * rng.standard_normal((4, n)))))


def by_blocks(weighted: bool, x: Any, y: Any, shift: Any, bias: Any, *_: Any) -> Arrays:
    """In blocks by XLA, as in `block_sweep.py`: biases and sums are columns of the products."""
    n, d = x.shape
    size = min(n, BLOCK)
    one, ones = jnp.ones_like(shift), [jnp.ones_like(shift)] * BIAS_PARTS
    rows = jnp.stack([*bias_parts(-shift), *ones], 1)
    columns = jnp.stack([*ones, *bias_parts(bias)], 1)
    rows, columns = (
        jnp.concatenate(both, 1).reshape(n // size, size, -1)
        for both in ((x, rows), (y, one[:, None], columns))
    )

    def meet(k: Any, total: jax.Array) -> jax.Array:
        i, j = k // len(columns), k % len(columns)
        # What follows y is 1, which the sums of weights are a product with.
        across = jnp.concatenate([columns[j, :, :d], columns[j, :, d + 1 :]], 1)
        weights = jnp.exp(matmul(rows[i], across.T, "high"))
        to = columns[j, :, : d + 1]
        return total.at[i].add(matmul(weights, to, "high") if weighted else weights.sum(1))

    shape = (len(rows), size, d + 1) if weighted else (len(rows), size)
    total = lax.fori_loop(0, len(rows) * len(columns), meet, jnp.zeros(shape)).reshape(n, -1)
    return (total[:, :d], total[:, d]) if weighted else (total[:, 0],)


def by_kernel(weighted: bool, options: dict[str, Any], *arrays: Any) -> Arrays:
    x, y, shift, bias, u, v = arrays
    second = (u, v) if options.get("second") else None
    exclude = options.get("exclude", 0)
    return hopper.exp_sums(x, y, shift, bias, second, exclude=exclude, weighted=weighted)


def by_float64(arrays: Arrays, rows: np.ndarray, exclude: int = 0, second: bool = False) -> tuple:
    """Weighted sums and sums, of some rows."""
    x, y, shift, bias, u, v = (np.float64(array) for array in arrays)
    logits = x[rows] @ y.T + bias
    weights = np.exp(logits - shift[rows, None])
    if second:
        weights += np.exp(logits - u[rows, None] - v)
    if exclude:
        weights[np.arange(len(rows)), rows] = 0
    return weights @ y, weights.sum(1)


def forms() -> Forms:
    """The kernel with each of its options, and blocks."""
    every: Forms = {}
    for name, (weighted, options) in OPTIONS.items():
        call = functools.partial(by_kernel, weighted, options)
        every[f"kernel, {name}"] = call, weighted, options
    for name, weighted in {"weighted": True, "sums": False}.items():
        every[f"blocks, {name}"] = functools.partial(by_blocks, weighted), weighted, {}
    return every


def measured(n: int, forms: Forms, rounds: int = 4) -> Iterator[dict]:
    """Records of the forms."""
    arrays = points(n)
    rows = np.arange(0, n, max(1, n // ROWS))
    calls = {name: jax.jit(function) for name, (function, _, _) in forms.items()}
    times = take_turns(
        {name: lambda c=call: jax.block_until_ready(c(*arrays)) for name, call in calls.items()},
        rounds,
    )
    for name, (_, weighted, options) in forms.items():
        found = [np.asarray(part)[rows] for part in calls[name](*arrays)]
        wanted = by_float64(arrays, rows, **options)[not weighted :]
        errors = [
            float(np.linalg.norm(one - other) / np.linalg.norm(other))
            for one, other in zip(found, wanted, strict=True)
        ]
        seconds, products = median(times[name]), 12 if weighted else 6
        yield {
            "form": name,
            "n": n,
            "ms": 1e3 * seconds,
            "tflop_s": products * n * n * arrays[0].shape[1] / seconds / 1e12,
            "errors": errors,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=65_536, help="points of either side")
    n = parser.parse_args().n
    if n % BLOCK:
        parser.error(f"--n {n}: must be a multiple of {BLOCK}")
    x = jax.ShapeDtypeStruct((n, 128), np.float32)
    if jax.default_backend() != "gpu" or not hopper.is_supported(x, x):
        parser.exit(2, f"error: the kernel needs JAX 0.11 and a Hopper GPU; {device_kind()}\n")
    for record in measured(n, forms()):
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
