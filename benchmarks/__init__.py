"""Benchmarks: speed and memory next to the alternatives, measured in turns in the same run."""

import importlib
import os
from typing import Any

from benchmarks.options import PARTS


def run(options: Any) -> list[dict[str, Any]]:
    """Run the benchmark of these options, print its table and return the rows."""
    # PyTorch runs on the same accelerator, and its idle threads must not spin on the CPU's cores.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    (name,) = [name for name, cls in PARTS.items() if type(options) is cls]
    return importlib.import_module(f"benchmarks.{name}").run(options)
