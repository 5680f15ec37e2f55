"""Measured peaks of a device, and the least time that they allow a program (its roofline)."""

from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
from jax.lax import DotAlgorithmPreset, Precision

from benchmarks.timing import matrix_product, pace
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
    """Peaks of one device: FLOP/s of each product that it has."""

    flops_s: dict[str, float]

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


def measure(side: int | None, products: tuple[str, ...] = tuple(PRODUCTS)) -> Peaks:
    """Return the peaks of the first device, by products of matrices with this side."""
    flops_s = {}
    for name in products:
        dtype, precision, needs_gpu = PRODUCTS[name]
        if not needs_gpu or jax.default_backend() == "gpu":
            multiply, flops = matrix_product(side, dtype, precision)
            flops_s[name] = flops / pace(multiply)
    return Peaks(flops_s)


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
