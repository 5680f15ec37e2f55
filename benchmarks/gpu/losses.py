"""The check `losses`: time, memory and error of pairwise losses, n = 1,024 to 1,000,000."""

import functools
import importlib.util
import math
import time
from collections.abc import Callable
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks import loss_forms, roofline
from benchmarks.gpu.record import Record
from benchmarks.timing import median, pace, take_turns
from hypersphere_jax.losses._pairwise import hopper

NAMES = ("uniform", "contrastive", "nt_xent")
ORACLE_ROWS = 1024  # rows of a block of the float64 oracle
ORACLE_LIMIT = 65_536  # the largest n whose error is computed
DENSE_LIMIT = 16_384  # the largest n of PyTorch's dense form
COMPILE_THREADS = 8


class Case(NamedTuple):
    """A loss of n points in d dimensions, at one precision of its products."""

    loss: str
    n: int
    d: int
    dtype: str
    precision: str


def losses(minutes: float = 8, out: Path = Path("runs/gpu"), toy: bool = False) -> None:
    """Time value and gradient of uniform, contrastive and NT-Xent losses up to a million points.

    All programs are compiled first, eight at a time.

    Args:
        minutes: time limit; cases that would take longer by the roofline are left out.
        out: folder of the results.
        toy: run at toy size.
    """
    record = Record("losses", out, minutes)
    size = (64, 1) if toy else roofline.sizes()
    peaks = roofline.measure(*size)
    record.add(peaks_tflop_s={k: round(v / 1e12, 1) for k, v in peaks.flops_s.items()})
    compiled_by = record.seconds_left / 2
    # Daemon threads, unlike those of concurrent.futures: the program can end before they do.
    with ThreadPool(COMPILE_THREADS) as pool:
        programs = {case: pool.apply_async(compile_case, (case,)) for case in cases(toy)}
        for program in programs.values():
            program.wait(max(0.0, record.seconds_left - compiled_by))
        for case, program in programs.items():
            row: dict[str, Any] = case._asdict()
            limit_s = roofline_seconds(case, peaks)
            if not program.ready():
                record.add(**row, failure=f"not compiled in {compiled_by:.0f} s")
            elif 5 * limit_s > record.seconds_left:
                record.add(**row, skipped=f"needs {limit_s:.0f} s by the roofline")
            else:
                record.add(**row, **_attempt(measure, case, program, limit_s))
    columns = ("loss", "n", "d", "dtype", "precision", "ms", "share", "gradient_error")
    columns += ("memory_mb", "compile_s", "torch_ms")
    record.finish("Value and gradient", columns, [r for r in record.rows if "loss" in r])


def cases(toy: bool) -> list[Case]:
    """Return the cases, those with a goal first."""
    million, large, sizes, wide, d = 1_000_000, 65_536, (262_144, 16_384, 1024), (768, 512), 128
    if toy:
        million, large, sizes, wide, d = 96, 64, (48,), (32,), 8
    found = [Case(name, million, d, "float32", "high") for name in ("uniform", "contrastive")]
    for width in wide:
        for precision in ("high", "default"):
            found.append(Case("contrastive", large, width, "bfloat16", precision))
    for n in (large, *sizes):
        for name in NAMES:
            found.append(Case(name, n, d, "float32", "high"))
            found.append(Case(name, n, d, "float32", "highest"))
    return found


def roofline_seconds(case: Case, peaks: roofline.Peaks) -> float:
    """Return the least time of the matrix products that memory linear in n cannot avoid."""
    flops = loss_forms.LOSSES[case.loss].flops(loss_forms.OURS, case.n, case.d)
    if case.precision == "default":
        return flops / peaks.of("tf32", "float32")
    x = jax.ShapeDtypeStruct((case.n, case.d), np.float32)
    if case.precision == "high" and jax.default_backend() == "gpu" and hopper.is_supported(x, x):
        return 3 * flops / peaks.of("bfloat16")
    return flops / peaks.of_precision(case.precision)


def compile_case(case: Case) -> tuple[Any, float]:
    """Return the compiled value and gradient of a case, and the seconds that it took."""
    loss = loss_forms.LOSSES[case.loss]
    function = functools.partial(loss.ours, precision=case.precision)
    gradient = jax.value_and_grad(function, argnums=tuple(range(loss.learned)))
    x = jax.ShapeDtypeStruct((case.n, case.d), case.dtype)
    started = time.perf_counter()
    program = jax.jit(gradient).lower(*[x] * loss.inputs).compile()
    return program, time.perf_counter() - started


def measure(case: Case, compiled: Any, limit_s: float) -> dict[str, Any]:
    """Return time, memory, compile time, error, and the time of PyTorch's dense form."""
    program, compile_s = compiled.get()
    arrays = loss_forms.unit_vectors(loss_forms.LOSSES[case.loss].inputs, case.n, case.d)
    inputs = [jnp.asarray(array, case.dtype) for array in arrays]
    value, gradients = jax.block_until_ready(program(*inputs))
    seconds = pace(lambda: program(*inputs), rounds=1 if limit_s > 1 else 3).in_flight
    memory = program.memory_analysis()
    row = {
        "ms": round(1e3 * seconds, 3),
        "share": round(limit_s / seconds, 3),
        "memory_mb": round((memory.temp_size_in_bytes + memory.output_size_in_bytes) / 1e6),
        "compile_s": round(compile_s, 1),
    }
    if case.n <= ORACLE_LIMIT and case.dtype == "float32":
        row |= errors(case, value, gradients)
    if case.n <= DENSE_LIMIT and case.precision == "highest":
        row |= _attempt(measure_torch, case)
    return row


def measure_torch(case: Case) -> dict[str, Any]:
    """Return the time of PyTorch's dense form, if PyTorch is installed."""
    # The gradient of torch.pdist takes n^2 d numbers.
    is_too_large = case.loss == "uniform" and case.n > 2048
    if is_too_large or importlib.util.find_spec("torch") is None:
        return {}
    import torch

    loss = loss_forms.LOSSES[case.loss]
    arrays = loss_forms.unit_vectors(loss.inputs, case.n, case.d)
    call = loss_forms.make_form(loss, loss_forms.TORCH, arrays)
    times = take_turns({"torch": call}, rounds=3)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return {"torch_ms": round(1e3 * median(times["torch"]), 3)}


def _attempt(function: Callable[..., dict], *arguments: Any) -> dict[str, Any]:
    """Return what a function returns, or the error: other cases are worth measuring."""
    try:
        return function(*arguments)
    except Exception as error:
        return {"failure": f"{function.__name__}: {type(error).__name__}: {error}"[:200]}


def errors(case: Case, value: Any, gradients: Any) -> dict[str, float]:
    """Return errors of value and gradients against float64, relative to their norms."""
    found = [np.float64(x) for x in jax.device_get(gradients)]
    exact, exact_gradients = oracle(case.loss, case.n, case.d)
    pairs = zip(found, exact_gradients, strict=True)
    difference = math.hypot(*(np.linalg.norm(a - b) for a, b in pairs))
    norm = math.hypot(*map(np.linalg.norm, exact_gradients))
    return {
        "value_error": float(abs(float(value) - exact) / max(1.0, abs(exact))),
        "gradient_error": float(difference / norm),
    }


@functools.cache
def oracle(name: str, n: int, d: int) -> tuple[float, list[np.ndarray]]:
    """Return value and gradients of a loss in float64."""
    loss = loss_forms.LOSSES[name]
    arrays = [np.float64(x) for x in loss_forms.unit_vectors(loss.inputs, n, d)]
    with jax.enable_x64(True):
        gradient = jax.value_and_grad(ORACLES[name], argnums=tuple(range(loss.learned)))
        value, gradients = jax.device_get(jax.jit(gradient)(*arrays))
    return float(value), list(gradients)


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
