"""The check `losses`: time, memory and error of pairwise losses, n = 1,024 to 1,000,000."""

import functools
import importlib.util
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks import loss_forms, roofline
from benchmarks.gpu.record import Record
from benchmarks.timing import median, take_turns
from hypersphere_jax.losses import fused

NAMES = ("uniform", "contrastive", "nt_xent")
ORACLE_ROWS = 1024  # rows of a block of the float64 oracle
ORACLE_LIMIT = 262_144  # the largest n whose error is computed
DENSE_LIMIT = 16_384  # the largest n of PyTorch's dense form


class Case(NamedTuple):
    """A loss of n points in d dimensions, at one precision of its products."""

    loss: str
    n: int
    d: int
    dtype: str
    precision: str


def losses(minutes: float = 8, out: Path = Path("runs/gpu"), toy: bool = False) -> None:
    """Time value and gradient of uniform, contrastive and NT-Xent losses, small n to large.

    Args:
        minutes: time limit; cases that would take longer by the roofline are left out.
        out: folder of the results.
        toy: run at toy size.
    """
    record = Record("losses", out, minutes)
    peaks = roofline.measure(*((64, 1) if toy else roofline.sizes()))
    record.add(peaks_tflop_s={k: round(v / 1e12, 1) for k, v in peaks.flops_s.items()})
    for case in cases(toy):
        limit_s = roofline_seconds(case, peaks)
        row: dict[str, Any] = case._asdict()
        if 5 * limit_s > record.seconds_left:
            record.add(**row, skipped=f"needs {limit_s:.0f} s by the roofline")
            continue
        try:
            row |= measure(case, limit_s)
        except Exception as error:  # out of memory, or a program that does not compile
            row["failure"] = f"{type(error).__name__}: {error}"[:200]
        record.add(**row)
    columns = ("loss", "n", "d", "dtype", "precision", "ms", "share", "gradient_error")
    columns += ("memory_mb", "compile_s", "torch_ms")
    record.print_table("Value and gradient", columns, [r for r in record.rows if "loss" in r])


def cases(toy: bool) -> Iterator[Case]:
    """Yield the cases, the most informative ones first."""
    sizes = (1024, 4096, 16_384, 65_536, 262_144, 1_000_000)
    wide = [(65_536, 512), (65_536, 768)]
    d = 128
    if toy:
        sizes, wide, d = (64, 96), [(64, 32)], 8
    for n in sizes[:-1]:
        for name in NAMES:
            yield Case(name, n, d, "float32", "highest")
            yield Case(name, n, d, "float32", "high")
    for n, width in wide:
        for precision in ("high", "default"):
            yield Case("contrastive", n, width, "bfloat16", precision)
    for precision in ("high", "highest"):
        for name in NAMES:
            yield Case(name, sizes[-1], d, "float32", precision)


def roofline_seconds(case: Case, peaks: roofline.Peaks) -> float:
    """Return the least time of the matrix products that memory linear in n cannot avoid."""
    flops = loss_forms.LOSSES[case.loss].flops(loss_forms.OURS, case.n, case.d)
    if case.precision == "default":
        return flops / peaks.of("tf32", "float32")
    x = jax.ShapeDtypeStruct((case.n, case.d), np.float32)
    if case.precision == "high" and jax.default_backend() == "gpu" and fused.serves(x, x):
        return 3 * flops / peaks.of("bfloat16")
    return flops / peaks.of_precision(case.precision)


def measure(case: Case, limit_s: float) -> dict[str, Any]:
    """Return time, memory, compile time, error and the time of PyTorch's dense form."""
    loss = loss_forms.LOSSES[case.loss]
    arrays = loss_forms.unit_vectors(loss.inputs, case.n, case.d)
    inputs = [jnp.asarray(array, case.dtype) for array in arrays]
    function = functools.partial(loss.ours, precision=case.precision)
    gradient = jax.value_and_grad(function, argnums=tuple(range(loss.learned)))
    started = time.perf_counter()
    program = jax.jit(gradient).lower(*inputs).compile()
    compile_s = time.perf_counter() - started
    forms: dict[str, Callable] = {"ours": lambda: jax.block_until_ready(program(*inputs))}
    has_torch = importlib.util.find_spec("torch") is not None
    if has_torch and case.precision == "highest" and case.n <= DENSE_LIMIT:
        forms["torch"] = loss_forms.make_form(loss, loss_forms.TORCH, arrays)
    is_long = limit_s > 1
    times = take_turns(forms, rounds=1 if is_long else 5, before=0 if is_long else 1)
    seconds = median(times["ours"])
    memory = program.memory_analysis()
    row = {
        "ms": round(1e3 * seconds, 3),
        "share": round(limit_s / seconds, 3),
        "memory_mb": round((memory.temp_size_in_bytes + memory.output_size_in_bytes) / 1e6),
        "compile_s": round(compile_s, 1),
    }
    if "torch" in times:
        row["torch_ms"] = round(1e3 * median(times["torch"]), 3)
    if case.n <= ORACLE_LIMIT:
        value, gradients = program(*inputs)
        row |= errors(case.loss, value, gradients, inputs)
    return row


def errors(name: str, value: Any, gradients: Any, inputs: list) -> dict[str, float]:
    """Return errors of value and gradients against float64, relative to their norms."""
    given = [np.float64(x) for x in jax.device_get(inputs)]
    found = [np.float64(x) for x in jax.device_get(gradients)]
    with jax.enable_x64(True):
        oracle = jax.jit(
            jax.value_and_grad(ORACLES[name], argnums=tuple(range(len(found)))),
        )
        exact, exact_gradients = jax.device_get(oracle(*given))
    difference = math.hypot(
        *(np.linalg.norm(a - b) for a, b in zip(found, exact_gradients, strict=True))
    )
    norm = math.hypot(*map(np.linalg.norm, exact_gradients))
    return {
        "value_error": float(abs(float(value) - exact) / max(1.0, abs(exact))),
        "gradient_error": float(difference / norm),
    }


def row_logsumexp(x: jax.Array, y: jax.Array, scale: float, exclude_self: bool) -> jax.Array:
    """Return `log sum_j exp(scale x_i . y_j)` `[n]` by blocks of rows, the textbook formula."""
    n = len(x)
    size = min(ORACLE_ROWS, n)
    starts = jnp.minimum(jnp.arange(0, n, size), n - size)

    @jax.checkpoint
    def block(start: jax.Array) -> jax.Array:
        rows = lax.dynamic_slice_in_dim(x, start, size)
        logits = scale * rows @ y.T
        if exclude_self:
            is_self = start + jnp.arange(size)[:, None] == jnp.arange(n)[None, :]
            logits = jnp.where(is_self, -jnp.inf, logits)
        return jax.nn.logsumexp(logits, axis=1)

    # The last block begins early; its first rows were in the block before.
    blocks = lax.map(block, starts)
    kept = blocks[:-1].reshape(-1)
    return jnp.concatenate([kept, blocks[-1][size - (n - len(kept)) :]])


def exact_uniform(x: jax.Array, t: float = 2.0) -> jax.Array:
    """`log mean_{i != j} exp(-t |x_i - x_j|^2)`, Wang & Isola's estimator (9)."""
    n, squares = len(x), jnp.sum(x**2, axis=1)
    # exp(-t |x_i - x_j|^2) = exp(2 t u_i . v_j) with the squared norms as further coordinates.
    ones = jnp.ones_like(squares)
    u = jnp.concatenate([x, jnp.stack([-squares / 2, ones], 1)], 1)
    v = jnp.concatenate([x, jnp.stack([ones, -squares / 2], 1)], 1)
    sums = row_logsumexp(u, v, 2 * t, exclude_self=True)
    return jax.nn.logsumexp(sums) - math.log(n * (n - 1))


def exact_contrastive(x: jax.Array, y: jax.Array) -> jax.Array:
    """The symmetric contrastive loss of Wang & Isola, B.1."""
    scale = 1 / loss_forms.TAU
    rows = row_logsumexp(x, y, scale, exclude_self=False)
    columns = row_logsumexp(y, x, scale, exclude_self=False)
    return jnp.mean((rows + columns) / 2 - scale * jnp.sum(x * y, axis=1))


def exact_nt_xent(x: jax.Array, y: jax.Array) -> jax.Array:
    """NT-Xent of SimCLR."""
    scale = 1 / loss_forms.TAU
    z = jnp.concatenate([x, y])
    sums = row_logsumexp(z, z, scale, exclude_self=True)
    return jnp.mean(sums) - scale * jnp.mean(jnp.sum(x * y, axis=1))


ORACLES = {
    "uniform": exact_uniform,
    "contrastive": exact_contrastive,
    "nt_xent": exact_nt_xent,
}
