"""Matrix products of float32 arrays, as exact as a loss asks for, on any device."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

Precision = Literal["highest", "high", "default"]
# On NVIDIA's tensor cores: products of bfloat16 parts, summed in float32. Six are as exact as
# float32 products, which do not run there. XLA has no kernel of them for the smallest sides.
PARTS_ON_GPU = {
    "highest": lax.DotAlgorithmPreset.BF16_BF16_F32_X6,
    "high": lax.DotAlgorithmPreset.BF16_BF16_F32_X3,
}
SMALLEST = 16


def product(a: jax.Array, b: jax.Array, precision: Precision = "highest") -> jax.Array:
    """A matrix product of float32 arrays.

    Args:
      a: `[n, k]`.
      b: `[k, m]`.
      precision: "highest" is that of float32. "high" takes three products of bfloat16 parts, with
        16 bits of each number; "default" is what the device does by default, such as TF32. On CPU
        all are float32 products.
    """
    algorithm: Any = {"highest": lax.Precision.HIGHEST, "high": lax.Precision.HIGH}.get(precision)
    if jax.default_backend() == "gpu" and a.dtype == jnp.float32 and _has_bfloat16():
        small = any(isinstance(side, int) and side < SMALLEST for side in (*a.shape, *b.shape))
        exact = lax.Precision.HIGHEST if small else PARTS_ON_GPU.get(precision)
        algorithm = None if precision == "default" else exact
    return jnp.matmul(a, b, precision=algorithm)


def _has_bfloat16() -> bool:
    """Whether the tensor cores of NVIDIA's GPU here multiply bfloat16."""
    return float(getattr(jax.local_devices()[0], "compute_capability", "8.0")) >= 8


def on_cpu() -> bool:
    return jax.default_backend() == "cpu"
