"""Run one GPU check: `python -m benchmarks.gpu NAME`."""

import os
import sys
import threading

import tyro

from benchmarks.gpu import encoders, losses, parity, steps, suite
from hypersphere_jax.configs import UserError

CHECKS = {
    "parity": parity.Parity,
    "losses": losses.Losses,
    "tests": suite.Tests,
    "cifar10": encoders.Cifar10,
    "wang_isola": encoders.WangIsola,
    "resnet50": steps.ResNet50,
}


def main() -> None:
    check = tyro.extras.subcommand_cli_from_dict(CHECKS, description=__doc__)
    # The results are in the file at any time, so the process may end whatever it is doing.
    timer = threading.Timer(60 * check.minutes, os._exit, (1,))
    timer.daemon = True
    timer.start()
    try:
        check.run()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
