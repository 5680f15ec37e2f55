"""Benchmarks: speed and memory next to the alternatives, measured in turns in the same run."""

import importlib
import os
from collections.abc import Sequence

import tyro

from hypersphere_jax.configs import require

# PyTorch runs on the same accelerator, and its idle threads must not spin on the CPU's cores.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Each module has a function `run`, which prints a table and returns its rows.
PARTS = {
    "losses": "value and gradient of the losses, compared with dense JAX and PyTorch",
    "step": "training step, compared with PyTorch",
    "loop": "training loop, compared with a bare loop over the steps",
    "data": "data pipelines, compared with PyTorch's DataLoader",
    "start": "seconds until the first step, with and without cached programs",
    "knn": "nearest neighbours, compared with scikit-learn",
    "probe": "linear probe, compared with scikit-learn",
}


def main(program: str, arguments: Sequence[str]) -> None:
    """Run the benchmark that the first argument names; its options follow."""
    name = arguments[0] if arguments else "--help"
    if name in ("--help", "-h"):
        print(f"usage: {program} NAME [options]\n")
        print("\n".join(f"  {part:<8}{summary}" for part, summary in PARTS.items()))
        return
    require(name in PARTS, f"unknown benchmark {name!r}: must be one of {', '.join(PARTS)}")
    run = importlib.import_module(f"benchmarks.{name}").run  # imports JAX
    tyro.cli(run, prog=f"{program} {name}", args=arguments[1:])
