"""What compiled programs move, launch and multiply, beside what they may.

    python -m benchmarks.compiled                              # for the device that is here
    python -m benchmarks.compiled --target MODULE:FUNCTION     # for another one

A target is a function with the arguments of `compile_here`, such as one that compiles ahead of time
for a device that is elsewhere (`jax.experimental.topologies`). Nothing is run, so there are no
times: those are by the roofline, at an H100's measured peaks, for which the limits are, too. Exit
status 1 if one is not kept.
"""

import argparse
import functools
import importlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from benchmarks.launches import BANDWIDTH, BFLOAT16, Launch, launches
from hypersphere_jax import config as C
from hypersphere_jax import contrastive_loss, models, uniform_loss
from hypersphere_jax.tables import print_table
from hypersphere_jax.training.optimizers import make_optimizer, make_schedule
from hypersphere_jax.training.step import init_state, make_step_of, scalars_of


def compile_here(function: Callable, *arguments: Any, **options: Any) -> Any:
    """The compiled program of a function of such arguments, of which shapes and types count."""
    return jax.jit(function, **options).lower(*arguments).compile()


def loss(target: Callable, name: str, n: int = 1_000_000, **options: Any) -> list[Launch]:
    """Value and gradients of a loss of n points, d = 128."""
    function = {"uniform": uniform_loss, "contrastive": contrastive_loss}[name]
    points = [jax.ShapeDtypeStruct((n, 128), np.float32)] * (1 if name == "uniform" else 2)
    of = functools.partial(function, **options)
    gradients = jax.value_and_grad(of, argnums=tuple(range(len(points))))
    return launches(target(gradients, *points).as_text())


def step(target: Callable, pairs: int = 512, width: float = 1.0) -> list[Launch]:
    """A SimCLR step of a ResNet-18 in bfloat16 on images as those of CIFAR-10."""
    of = {"dim": 128, "head": "simclr2", "dtype": "bfloat16", "width": width, "batch_norm": "sync"}
    config = C.PretrainConfig(
        model=C.ModelConfig("resnet18", image_size=32, channels=3, **of),  # type: ignore[arg-type]
        data=C.DataConfig(recipe="simclr_cifar"),
        objective=C.ObjectiveConfig(loss="nt_xent", loss_tau=0.5, similarity="cosine"),
        optimizer=C.OptimizerConfig(batch_size=pairs, learning_rate=0.5),
    )
    apply, params, stats = models.abstract(config.model)
    optimizer = make_optimizer(config.optimizer, make_schedule(config.optimizer, 1000))
    state = jax.eval_shape(functools.partial(init_state, optimizer=optimizer), params, stats)
    one = make_step_of(config, apply, 1000, axis_name=None)

    def taken(state, images, labels, indices, key, scalars):
        return one(state, images, labels, indices, jax.random.wrap_key_data(key), scalars)

    kinds = {
        (50_000, 32, 32, 3): np.uint8,
        (50_000,): np.int32,
        (pairs,): np.int32,
        (2,): np.uint32,
    }
    given = [jax.ShapeDtypeStruct(shape, kind) for shape, kind in kinds.items()]
    program = target(taken, state, *given, scalars_of(config), donate_argnums=(0,))
    return launches(program.as_text())


def block_of(program: list[Launch]) -> list[Launch]:
    """What is launched most often: the loops over pairs of blocks."""
    most = max(one.times for one in program)
    return [one for one in program if one.times == most]


def moved(program: list[Launch]) -> float:
    return float(sum(one.times * one.moved for one in program))


def rows_of_loss(name: str, program: list[Launch]) -> Iterator[list]:
    """What was found in a loss of a million points, its unit, and the limit if there is one."""
    block, products = block_of(program), sum(one.times * one.bfloat16 for one in program)
    if name == "uniform":
        yield ["moved by a block of pairs", sum(one.moved for one in block) / 1e6, "MB", 280]
    copies = [one for one in block if one.kind == "copy" and one.moved > 1e6]
    yield ["launches of a block", len(block), "", None]
    yield ["copies of blocks", len(copies), "", 0]
    yield ["time of all that is moved", moved(program) / BANDWIDTH, "s", 12]
    yield ["time of the products", products / BFLOAT16, "s", 12]
    yield ["launch by launch", sum(one.seconds for one in program), "s", None]


def rows_of_step(program: list[Launch]) -> Iterator[list]:
    """Likewise, of a step."""
    convolutions = [one for one in program if "conv" in one.kind and "$" in one.kind]
    wide = Counter(one.dtype for one in convolutions)
    # Those of weights are smaller, or in float32.
    transposes = [one for one in program if "transpose" in one.name and one.moved > 16e6]
    turned = [one for one in transposes if one.dtype == "bf16"]
    yield ["moved", moved(program) / 1e9, "GB", 21]
    yield ["of these by convolutions", moved(convolutions) / 1e9, "GB", None]
    yield ["launches", sum(one.times for one in program), "", None]
    yield ["convolutions", len(convolutions), "", None]
    yield ["not in bfloat16", len(convolutions) - wide["bf16"], "", 0]
    yield ["transposes of activations", len(turned), "", 0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", help="MODULE:FUNCTION that compiles for another device")
    parser.add_argument("--only", choices=("uniform", "contrastive", "step"), help="one of them")
    options, target = parser.parse_args(), compile_here
    if options.target:
        module, function = options.target.split(":")
        target = getattr(importlib.import_module(module), function)
    rows: list[list] = []
    for name in ("uniform", "contrastive", "step"):
        if options.only not in (None, name):
            continue
        found = (
            rows_of_step(step(target)) if name == "step" else rows_of_loss(name, loss(target, name))
        )
        rows += [[name, *row] for row in found]
    shown = [[*row[:2], f"{row[2]:,.4g} {row[3]}", row[4]] for row in rows]
    print_table(["program", "what", "found", "at most"], shown)
    return int(any(limit is not None and value > limit for *_, value, _, limit in rows))


if __name__ == "__main__":
    sys.exit(main())
