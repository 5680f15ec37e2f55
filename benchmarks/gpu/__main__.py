"""Run one GPU check: `python -m benchmarks.gpu NAME`."""

import os
import sys

# PyTorch runs on the same card.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import tyro

from benchmarks.gpu import encoders, losses, parity, steps, suite
from benchmarks.gpu.record import Record
from hypersphere_jax.configs import UserError

CHECKS = {
    "parity": parity.parity,
    "losses": losses.losses,
    "tests": suite.tests,
    "cifar10": encoders.cifar10,
    "wang_isola": encoders.wang_isola,
    "resnet50": steps.resnet50,
}


def main() -> None:
    Record.ends_process = True
    try:
        tyro.extras.subcommand_cli_from_dict(CHECKS, description=__doc__)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
