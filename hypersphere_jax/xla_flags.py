"""Options of XLA, which it reads from the environment once: when JAX is first used."""

import os
import sys

# No operation whose sums have no fixed order, and no choice of kernels by their measured times.
DETERMINISTIC = "--xla_gpu_deterministic_ops"
_YNN = "xla_cpu_experimental_ynn_fusion_type"


def given() -> str:
    return os.environ.get("XLA_FLAGS", "")


def is_file() -> bool:
    """Whether `XLA_FLAGS` names a file, to which nothing can be added."""
    return bool(given().strip()) and not given().strip().startswith("-")


def add(flag: str) -> bool:
    """Adds a flag to those of the user; not, and False, if JAX is in use already."""
    if "jax" in sys.modules:
        import jax

        before = jax.config.values["jax_num_cpu_devices"]
        try:  # JAX refuses another number once it is in use
            for number in (before + 1, before):
                jax.config.update("jax_num_cpu_devices", number)
        except RuntimeError:
            return False
    os.environ["XLA_FLAGS"] = f"{given()} {flag}".strip()
    return True


def of_networks(platform: str) -> dict[str, str] | None:
    """Options for XLA to compile a program with a network in it; None where the user chose.

    Of XLA's two libraries of kernels for CPUs, Eigen and YNNPACK, the first is faster for products
    of which there are many small ones at once (`python run.py bench step`), the second for losses
    and nearest neighbours. So here YNNPACK keeps reductions alone.
    """
    chosen = is_file() or _YNN in given()
    return {_YNN: "LIBRARY_FUSION_TYPE_REDUCE"} if platform == "cpu" and not chosen else None
