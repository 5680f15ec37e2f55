"""Measured peaks of a device, and the least time that they allow a program (its roofline)."""

from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
from jax.lax import DotAlgorithmPreset, Precision

from benchmarks.timing import pace
from hypersphere_jax.models import ops
from hypersphere_jax.training import distributed

# Matrix products by name: type, precision, and whether only NVIDIA's GPUs have them. The last two
# are the products of the losses on GPUs (`losses/_pairwise/block_sweep.py`).
PRODUCTS: dict[str, tuple[Any, Any, bool]] = {
    "bfloat16": (jnp.bfloat16, None, False),
    "tf32": (jnp.float32, DotAlgorithmPreset.TF32_TF32_F32, True),
    "float32": (jnp.float32, Precision.HIGHEST, False),
    "bfloat16 x6": (jnp.float32, DotAlgorithmPreset.BF16_BF16_F32_X6, True),
    "bfloat16 x3": (jnp.float32, DotAlgorithmPreset.BF16_BF16_F32_X3, True),
}


class Peaks(NamedTuple):
    """Peaks of one device: FLOP/s of each product that it has, and bytes/s of a copy."""

    flops_s: dict[str, float]
    bytes_s: float

    def of(self, *products: str) -> float:
        """Return the speed of the first of these products that the device has."""
        return next(self.flops_s[name] for name in products if name in self.flops_s)

    def of_dtype(self, dtype: str) -> float:
        """Return the speed of a network's products; float32 is TF32 where the device has it."""
        return self.of("tf32", "float32") if dtype == "float32" else self.of(dtype)

    def of_precision(self, precision: str) -> float:
        """Return the speed of a loss's products."""
        parts = {"highest": ("bfloat16 x6",), "high": ("bfloat16 x3", "bfloat16 x6")}
        return self.of(*parts[precision], "float32")


def sizes() -> tuple[int, int]:
    """Return the side of the product, and MB of the copied array, that reach the peaks."""
    return (1024, 64) if jax.default_backend() == "cpu" else (8192, 1000)


def measure(side: int, megabytes: int, products: tuple[str, ...] = tuple(PRODUCTS)) -> Peaks:
    """Return the peaks of the first device."""
    flops_s = {}
    for name in products:
        dtype, precision, needs_gpu = PRODUCTS[name]
        if not needs_gpu or jax.default_backend() == "gpu":
            a, b = jax.random.normal(jax.random.key(0), (2, side, side), dtype)
            multiply = jax.jit(lambda a, b, p=precision: jnp.matmul(a, b, precision=p))
            flops_s[name] = 2 * side**3 / pace(lambda m=multiply, a=a, b=b: m(a, b)).in_flight
    return Peaks(flops_s, _copy_bytes_s(megabytes))


def _copy_bytes_s(megabytes: int) -> float:
    """Return the bytes/s read and written by a copy in place."""
    x = jnp.zeros(megabytes * 250_000, jnp.float32)
    increment = jax.jit(lambda x: x + 1, donate_argnums=0)

    def start() -> jax.Array:
        nonlocal x
        x = increment(x)
        return x

    return 2 * x.nbytes / pace(start).in_flight


def plain_convolutions() -> Any:
    """Return a context in which traced programs use XLA's operations instead of our CPU kernels.

    XLA counts their FLOP in full. The CPU kernels loop over blocks of images, of which XLA counts
    one.
    """
    return mock.patch.object(ops, "on_cpu", return_value=False)


def step_flops(step: Callable, state: Any, arguments: tuple) -> float:
    """Return the FLOP of a training step on one device, by XLA's count.

    XLA has no count for GPUs, so the default backend's program is lowered for a CPU.
    """
    shapes = jax.eval_shape(lambda *arrays: arrays, state, *arguments)
    stacked = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), shapes)
    with plain_convolutions():
        lowered = distributed.pmap(step, jax.devices("cpu")[:1]).lower(*stacked)
    return lowered.cost_analysis()["flops"]
