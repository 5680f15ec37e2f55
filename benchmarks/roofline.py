"""Measured peaks of a device, and the operations of a step: the least time of a program."""

from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from jax.lax import DotAlgorithmPreset, Precision

from benchmarks.timing import Stepper, matrix_product, pace
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


def peaks(side: int | None, *products: str) -> dict[str, float]:
    """Return the FLOP/s of those products that the device has, of matrices with this side."""
    flops_s = {}
    for name in products or PRODUCTS:
        dtype, precision, needs_gpu = PRODUCTS[name]
        if not needs_gpu or jax.default_backend() == "gpu":
            multiply, flops = matrix_product(side, dtype, precision)
            flops_s[name] = flops / pace(multiply)
    return flops_s


def plain_convolutions() -> Any:
    """Return a context in which traced programs use XLA's operations instead of our CPU kernels.

    XLA counts their FLOP in full. The CPU kernels loop over blocks of images, of which XLA counts
    one.
    """
    return mock.patch.object(ops, "on_cpu", return_value=False)


def step_flops(stepper: Stepper, batch: tuple) -> float:
    """Return the FLOP of a training step on one device, by XLA's count.

    XLA has no count for GPUs, so the default backend's program is lowered for a CPU.
    """
    arguments = (stepper.state, *batch, *stepper.hparams)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arguments)
    with plain_convolutions():
        lowered = distributed.pmap(stepper.function, jax.devices("cpu")[:1]).lower(*shapes)
    return lowered.cost_analysis()["flops"]
