"""Benchmarks: speed and memory next to the alternatives, measured in turns in the same run."""

import importlib
import os
from collections.abc import Callable

# PyTorch runs on the same accelerator, and its idle threads must not spin on the CPU's cores.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

PARTS = ("losses", "step", "loop", "data", "start", "knn", "probe")


def functions() -> dict[str, Callable]:
    """Return the benchmarks by name. Each prints its table and returns the rows."""
    return {name: importlib.import_module(f"benchmarks.{name}").run for name in PARTS}
