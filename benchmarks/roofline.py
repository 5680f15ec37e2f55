"""What a device can do at most, as measured, and the time that this allows a program: its roofline.

A program takes at least its arithmetic at the speed of a matrix product of its type, and its
traffic at the speed of a copy.
"""

from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
from jax.lax import DotAlgorithmPreset, Precision

from benchmarks.timing import pace
from hypersphere_jax.models import ops

# Products by name: type of the numbers, precision, and whether NVIDIA's GPUs alone have them. The
# last two are those of the losses there, see `losses/_pairwise/block_sweep.py`.
PRODUCTS: dict[str, tuple[Any, Any, bool]] = {
    "bfloat16": (jnp.bfloat16, None, False),
    "tf32": (jnp.float32, DotAlgorithmPreset.TF32_TF32_F32, True),
    "float32": (jnp.float32, Precision.HIGHEST, False),
    "bfloat16 x6": (jnp.float32, DotAlgorithmPreset.BF16_BF16_F32_X6, True),
    "bfloat16 x3": (jnp.float32, DotAlgorithmPreset.BF16_BF16_F32_X3, True),
}


class Peaks(NamedTuple):
    """Of one device: FLOP a second of each product that it has, and bytes a second of a copy."""

    flops_s: dict[str, float]
    bytes_s: float

    def of(self, *products: str) -> float:
        """The speed of the first of these products that the device has."""
        return next(self.flops_s[name] for name in products if name in self.flops_s)

    def of_dtype(self, dtype: str) -> float:
        """That of a network's products: float32 ones are TF32 by default where there is that."""
        return self.of("tf32", "float32") if dtype == "float32" else self.of(dtype)

    def of_precision(self, precision: str) -> float:
        """That of a loss's products."""
        parts = {"highest": ("bfloat16 x6",), "high": ("bfloat16 x3", "bfloat16 x6")}
        return self.of(*parts[precision], "float32")

    def seconds(self, flops: float, nbytes: float, flops_s: float) -> float:
        """The least time for so much arithmetic and traffic."""
        return max(flops / flops_s, nbytes / self.bytes_s)


def sizes() -> tuple[int, int]:
    """Side of the product, and MB of the copied array, that show a device's peaks."""
    return (1024, 64) if jax.default_backend() == "cpu" else (8192, 1000)


def measure(side: int, megabytes: int, products: tuple[str, ...] = tuple(PRODUCTS)) -> Peaks:
    """The peaks of the first device: products of matrices of this side, a copy of so many MB."""
    flops_s = {}
    for name in products:
        dtype, precision, of_gpu = PRODUCTS[name]
        if not of_gpu or jax.default_backend() == "gpu":
            a, b = jax.random.normal(jax.random.key(0), (2, side, side), dtype)
            multiply = jax.jit(lambda a, b, p=precision: jnp.matmul(a, b, precision=p))
            flops_s[name] = 2 * side**3 / pace(lambda m=multiply, a=a, b=b: m(a, b)).in_flight
    return Peaks(flops_s, _copied(megabytes))


def _copied(megabytes: int) -> float:
    """Bytes a second, read and written; in place, as new memory comes slowly on CPU."""
    x = jnp.zeros(megabytes * 250_000, jnp.float32)
    copy = jax.jit(lambda x: x + 1, donate_argnums=0)

    def begin() -> jax.Array:
        nonlocal x
        x = copy(x)
        return x

    return 2 * x.nbytes / pace(begin).in_flight


def plain_convolutions() -> Any:
    """While a program is traced: convolutions as on accelerators.

    Of loops over blocks of images, which those of CPUs are, XLA counts the FLOP of one block.
    """
    return mock.patch.object(ops, "on_cpu", return_value=False)


def moved(compiled: Any) -> float:
    """Bytes that a program moves, by XLA's count."""
    after = compiled.cost_analysis()
    after = after[0] if isinstance(after, list) else after
    return after["bytes accessed"]
