"""Matrix products of float32 arrays at a chosen precision on any device."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

Precision = Literal["highest", "high", "default"]
ALGORITHMS: dict[str, Any] = {"highest": lax.Precision.HIGHEST, "high": lax.Precision.HIGH}
# NVIDIA's tensor cores have no float32 products. Six products of bfloat16 parts, summed in float32,
# are as exact.
TENSOR_CORE_ALGORITHMS: dict[str, Any] = {
    "highest": lax.DotAlgorithmPreset.BF16_BF16_F32_X6,
    "high": lax.DotAlgorithmPreset.BF16_BF16_F32_X3,
}
SMALLEST_SIDE = 16  # XLA has no kernel of these products for smaller matrices.


def matmul(a: jax.Array, b: jax.Array, precision: Precision = "highest") -> jax.Array:
    """Return the matrix product of two float32 arrays.

    Args:
      a: `[n, k]`.
      b: `[k, m]`.
      precision: "highest" has the precision of float32. "high" takes three products of bfloat16
        parts, with 16 bits of each number. "default" is the default of the device, such as TF32.
        On CPU all three are float32.
    """
    algorithm = ALGORITHMS.get(precision)
    if jax.default_backend() == "gpu" and a.dtype == jnp.float32 and _multiplies_bfloat16():
        small = any(isinstance(n, int) and n < SMALLEST_SIDE for n in (*a.shape, *b.shape))
        algorithm = TENSOR_CORE_ALGORITHMS.get(precision)
        if small and precision != "default":
            algorithm = lax.Precision.HIGHEST
    return jnp.matmul(a, b, precision=algorithm)


def _multiplies_bfloat16() -> bool:
    """Return whether the GPU has tensor cores for bfloat16."""
    capability = getattr(jax.local_devices()[0], "compute_capability", "8.0")
    return float(capability) >= 8


def on_cpu() -> bool:
    return jax.default_backend() == "cpu"
