"""Linear classifiers by minibatches: a grid at once, cell by cell, and with features on the host.

Run by hand: `python -m benchmarks.sgd --help`. Each form trains all cells for some epochs on random
features; the share is that of a large float32 matrix product's speed on the same device.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.timing import take_turns
from hypersphere_jax.evaluate import sgd

AT_ONCE, ONE_BY_ONE, ON_THE_HOST = "grid at once", "cell by cell", "grid, features on the host"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--protocol", default="stl10", choices=list(sgd.PROTOCOLS))
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--dim", type=int, default=4096)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()

    rng = np.random.default_rng(0)
    x = rng.standard_normal((args.rows, args.dim), np.float32) / np.float32(np.sqrt(args.dim))
    y = rng.integers(args.classes, size=args.rows)
    protocol = sgd.PROTOCOLS[args.protocol]
    grid = protocol.grid
    protocol = protocol._replace(epochs=args.epochs)
    resident_share = sgd.RESIDENT_SHARE

    def fit(cells, share=resident_share):
        sgd.RESIDENT_SHARE = share
        found, _ = sgd.fit_grid(
            protocol, x, y, np.arange(len(x)), cells, num_classes=args.classes, seed=0
        )
        jax.block_until_ready(found)

    side = 4096
    square = jnp.asarray(rng.standard_normal((side, side), np.float32))
    product = jax.jit(lambda a: jnp.matmul(a, a.T, precision="highest"))
    forms = {
        AT_ONCE: lambda: fit(grid),
        ONE_BY_ONE: lambda: [fit([cell]) for cell in grid],
        ON_THE_HOST: lambda: fit(grid, share=0),
        "matrix product": lambda: jax.block_until_ready(product(square)),
    }
    seconds = take_turns(forms, args.rounds)
    speeds = 2 * side**3 / seconds["matrix product"]
    # Logits and the gradient of the weights: two products a step.
    operations = 4 * args.epochs * len(x) * len(grid) * args.classes * args.dim
    for name in (AT_ONCE, ONE_BY_ONE, ON_THE_HOST):
        ratio = np.median(seconds[name] / seconds[AT_ONCE])
        share = np.median(operations / seconds[name] / speeds)
        print(
            f"{args.protocol}, {len(grid)} cells, {name}: {np.median(seconds[name]):.2f} s, "
            f"{ratio:.2f} times the grid at once, {share:.0%} of the matrix product's speed"
        )


if __name__ == "__main__":
    main()
