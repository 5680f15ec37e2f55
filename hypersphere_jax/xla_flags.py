"""Options of XLA, which it reads from the environment once: when JAX is first used."""

import importlib.util
import os
import sys

# No operation whose sums have no fixed order, and no choice of kernels by their measured times.
DETERMINISTIC = "--xla_gpu_deterministic_ops"
_YNN = "--xla_cpu_experimental_ynn_fusion_type"
_NO_YNN_CONVOLUTIONS = f"{_YNN}=-LIBRARY_FUSION_TYPE_INDIVIDUAL_CONVOLUTION"


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


def prefer_eigen_convolutions() -> None:
    """Asks XLA to compute convolutions on CPU by Eigen, in the place of YNNPACK.

    That is faster for wide 3 x 3 ones: with JAX 0.10.2 on two cores of an AMD EPYC, value and
    gradients of SmallAlexNet's second layer took two thirds of the time. A user's own choice stays;
    so do other flags. Where JAX has an accelerator's plugin nothing is asked for, as that plugin's
    XLA reads the same flags and may not know this one.
    """
    on_cpu = os.environ.get("JAX_PLATFORMS") == "cpu"
    plugin = any(importlib.util.find_spec(name) for name in ("jax_plugins", "libtpu"))
    if (on_cpu or not plugin) and not is_file() and _YNN not in given():
        add(_NO_YNN_CONVOLUTIONS)


def has_eigen_convolutions() -> bool:
    return _NO_YNN_CONVOLUTIONS in given()
