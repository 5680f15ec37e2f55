"""The check `losses`: time, memory and error of pairwise losses, n = 1,024 to 1,000,000."""

import dataclasses
import functools
import math
import time
from multiprocessing.pool import ThreadPool
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import roofline
from benchmarks.gpu.record import Check, Record
from benchmarks.loss_forms import LOSSES, compile_gradient, torch_form, unit_vectors
from benchmarks.timing import HAS_TORCH, pace
from hypersphere_jax.losses._pairwise import hopper

ERROR_LIMIT = 65_536  # the largest n whose error is computed
# The largest n of PyTorch's dense forms; the gradient of torch.pdist takes n^2 d numbers.
TORCH_LIMITS = {"uniform": 2048, "contrastive": 16_384, "nt_xent": 16_384}
COMPILE_THREADS = 8
# Products on GPUs by precision; other devices have float32.
PRODUCTS = {"default": "tf32", "high": "bfloat16 x3", "highest": "bfloat16 x6"}


class Case(NamedTuple):
    """A loss of n points in d dimensions, at one precision of its products."""

    loss: str
    n: int
    d: int
    dtype: str
    precision: str


@dataclasses.dataclass
class Losses(Check):
    """Time value and gradient of uniform, contrastive and NT-Xent losses up to a million points.

    All programs are compiled first, eight at a time, for at most half of the time.
    """

    def run(self) -> None:
        record = Record("losses", self)
        peaks = roofline.peaks(64 if self.toy else None)
        record.add(peaks_tflop_s={k: round(v / 1e12, 1) for k, v in peaks.items()})
        compiled_by = record.seconds_left / 2
        # The program can end before these daemon threads do, unlike threads of concurrent.futures.
        with ThreadPool(COMPILE_THREADS) as pool:
            programs = {case: pool.apply_async(compile_case, (case,)) for case in cases(self.toy)}
            for program in programs.values():
                program.wait(max(0.0, record.seconds_left - compiled_by))
            for case, program in programs.items():
                record.measure(case._asdict(), measure, case, program, peaks)
        columns = ("loss", "n", "d", "dtype", "precision", "ms", "share", "gradient_error")
        record.finish("Value and gradient", *columns, "torch_ms", "memory_mb", "compile_s")


def cases(toy: bool) -> list[Case]:
    """Return the cases, those with a goal first."""
    million, sizes, wide, d = 1_000_000, (65_536, 262_144, 16_384, 1024), (768, 512), 128
    if toy:
        million, sizes, wide, d = 96, (64, 48), (32,), 8
    found = [Case(name, million, d, "float32", "high") for name in ("uniform", "contrastive")]
    for width in wide:
        for precision in ("high", "default"):
            found.append(Case("contrastive", sizes[0], width, "bfloat16", precision))
    for n in sizes:
        for name in ("uniform", "contrastive", "nt_xent"):
            found.append(Case(name, n, d, "float32", "high"))
            found.append(Case(name, n, d, "float32", "highest"))
    return found


def compile_case(case: Case) -> tuple[Any, float]:
    """Return the compiled value and gradient of a case, and the seconds that it took."""
    loss = LOSSES[case.loss]
    function = functools.partial(loss.ours, precision=case.precision)
    started = time.perf_counter()
    program = compile_gradient(function, loss, case.n, case.d, case.dtype)
    return program, time.perf_counter() - started


def measure(case: Case, compiled: Any, peaks: dict[str, float]) -> dict[str, Any]:
    """Return time, memory, compile time, error, and the time of PyTorch's dense form."""
    program, compile_s = compiled.get(timeout=0)
    loss = LOSSES[case.loss]
    arrays = unit_vectors(loss.inputs, case.n, case.d)
    inputs = [jnp.asarray(array, case.dtype) for array in arrays]
    value, gradients = jax.block_until_ready(program(*inputs))
    seconds = pace(lambda: program(*inputs))
    memory = program.memory_analysis()
    row = {
        "ms": round(1e3 * seconds, 3),
        "share": round(roofline_seconds(case, peaks) / seconds, 3),
        "memory_mb": round((memory.temp_size_in_bytes + memory.output_size_in_bytes) / 1e6),
        "compile_s": round(compile_s, 1),
    }
    if case.n <= ERROR_LIMIT and case.dtype == "float32":
        row |= errors(case, value, gradients)
    if HAS_TORCH and case.n <= TORCH_LIMITS[case.loss] and case.precision == "highest":
        row["torch_ms"] = round(1e3 * pace(torch_form(loss, arrays)), 3)
    return row


def roofline_seconds(case: Case, peaks: dict[str, float]) -> float:
    """Return the least time of the matrix products that memory linear in n cannot avoid."""
    flops = 2 * case.n**2 * case.d * LOSSES[case.loss].products
    x = jax.ShapeDtypeStruct((case.n, case.d), np.float32)
    if case.precision == "high" and jax.default_backend() == "gpu" and hopper.is_supported(x, x):
        return 3 * flops / peaks["bfloat16"]
    return flops / peaks.get(PRODUCTS[case.precision], peaks["float32"])


def errors(case: Case, value: Any, gradients: Any) -> dict[str, float]:
    """Return errors of value and gradients against float64, relative to their norms."""
    exact, exact_gradients = exact_gradient(case.loss, case.n, case.d)
    found = [np.float64(x) for x in jax.device_get(gradients)]
    pairs = zip(found, exact_gradients, strict=True)
    difference = math.hypot(*(np.linalg.norm(a - b) for a, b in pairs))
    norm = math.hypot(*map(np.linalg.norm, exact_gradients))
    return {
        "value_error": float(abs(float(value) - exact) / max(1.0, abs(exact))),
        "gradient_error": float(difference / norm),
    }


@functools.cache
def exact_gradient(name: str, n: int, d: int) -> tuple[float, list[np.ndarray]]:
    """Return value and gradients of a loss in float64, which the tests compare with oracles."""
    loss = LOSSES[name]
    arrays = [np.float64(x) for x in unit_vectors(loss.inputs, n, d)]
    with jax.enable_x64(True):
        program = compile_gradient(loss.ours, loss, n, d, "float64")
        value, gradients = jax.device_get(program(*arrays))
    return float(value), list(gradients)
