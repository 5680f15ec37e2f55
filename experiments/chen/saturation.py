"""Section C of Chen, Luo & Li (Figure C.1): the distribution terms saturate with a few bits.

Images of k binary channels, each with one value at all pixels: k bits of entropy, and no more than
2^k different outputs. Only the term that spreads the outputs is minimized.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from experiments.chen import settings
from experiments.plots import comparisons
from experiments.protocols import Evaluation
from experiments.reproduction import Context, Reproduction, Result, run, scale
from experiments.statistics import Rows, by
from experiments.sweeps import Planned
from hypersphere_jax import theory
from hypersphere_jax.config import DataConfig, ObjectiveConfig
from hypersphere_jax.losses import prior_matching_loss

SWD = "SWD (uniform hypersphere)"
LOSSES = {
    **{
        f"LogSumExp, tau {tau:g}": ObjectiveConfig(loss="logsumexp", loss_tau=tau)
        for tau in (0.1, 0.5)
    },
    SWD: ObjectiveConfig(loss="prior_matching", prior="hypersphere", loss_factor=settings.FACTOR),
}
# Temperatures, batches and bits of the paper are in its picture only.
BITS = {"paper": (1, 2, 3, 4, 6, 8, 10, 12, 14, 16), "laptop": (1, 2, 4, 6, 8, 12, 16)}
BATCHES = {"paper": (128, 512, 2048), "laptop": (64, 256)}
FEW = 8  # bits at most, of "a few"
NEARLY = 0.95  # of what is gained with the most bits: there a loss is called saturated
DRAWS = 20  # of uniform points, for what their distance to others of their kind is


def _plan(context: Context, rows: Rows) -> list[Planned]:
    base = settings.RESNET18
    if context.laptop:  # 50,000 images of 8 pixels, once
        base = settings.LAPTOP
        base = dataclasses.replace(
            base,
            model=dataclasses.replace(base.model, image_size=8),
            optimizer=dataclasses.replace(base.optimizer, epochs=1, warmup_epochs=0.1),
        )
    planned = []
    for (name, objective), batch, bits in itertools.product(
        LOSSES.items(), BATCHES[context.scale], BITS[context.scale]
    ):
        config = dataclasses.replace(
            base,
            name=f"chen_{settings.slug(name)}_batch{batch}_bits{bits}",
            data=DataConfig("random_bits", recipe="none", bits=bits),
            objective=objective,
            optimizer=dataclasses.replace(base.optimizer, batch_size=batch),
        )
        about = {"name": name, "bits": bits}
        planned.append(run(config, context, Evaluation(logged=True), about))
    return planned


def gained(row: Mapping) -> float:
    """How far the loss came: 0 with all outputs in one point, 1 with uniform ones."""
    loss = LOSSES[row["name"]]
    worst, best = reference(row["name"], row["batch"], row["dim"])
    return (worst - row["final_loss"] / loss.loss_factor) / (worst - best)


@functools.cache
def reference(name: str, n: int, d: int) -> tuple[float, float]:
    """The loss of n equal outputs in d dimensions, and of n random points of the whole sphere.

    LogSumExp of n points is log(n - 1) plus the log of the mean of `exp(z . z' / tau)`, which is
    known for uniform points; how much less it is on average for few of them is left out.
    """
    if name == SWD:

        def of_uniform(keys):
            return prior_matching_loss(keys[0], theory.uniform_sphere(keys[1], n, d))

        keys = jax.random.split(jax.random.key(0), (DRAWS, 2))
        return 2 / d, float(jnp.mean(jax.jit(jax.vmap(of_uniform))(keys)))
    kappa = 1 / LOSSES[name].loss_tau
    uniform = theory.vmf_log_normalizer(d, kappa) - theory.sphere_log_area(d)
    return kappa + math.log(n - 1), uniform + math.log(n - 1)


def result(context: Context, rows: Rows) -> Result:
    """The loss over bits, and with how many of them it is nearly what it can be."""
    bits = BITS[context.scale]
    columns = ["loss", "pairs", *(f"{k} bits" if k > 1 else "1 bit" for k in bits)]
    columns += [f"bits to {NEARLY:.0%}"]
    lines, panels, enough = [], {}, {}
    for (name, batch), group in by(rows, "name", "batch").items():
        gains = {row["bits"]: gained(row) for row in group}
        enough[name, batch] = saturated(gains)
        numbers = [f"{gains[k]:.3f}" if k in gains else None for k in bits]
        lines.append([name, batch, *numbers, enough[name, batch]])
        panel = panels.setdefault("SWD" if name == SWD else "LogSumExp", {})
        points = [comparisons.Point(*pair) for pair in sorted(gains.items())]
        panel[f"{name}, batches of {batch}"] = points
    comparisons.curves(
        panels,
        context.figure,
        x="bits of entropy in the images",
        y="gained: 0 one point, 1 uniform outputs",
        levels={"uniform outputs": 1.0},
    )
    text = [
        "The paper's claim: the term that spreads the outputs is satisfied by a few bits. Images "
        "that carry k random bits and nothing else have 2^k different outputs at most, and yet "
        "the loss is soon as low as it gets, in LogSumExp (the second term of NT-Xent) as in the "
        "sliced Wasserstein distance (SWD); temperature and batch size move the point a little.",
        "The number in each cell is the training loss at the end (the mean of the steps that were "
        "logged in the last tenth), on a scale on which 0 is what equal outputs have and 1 what "
        "points of the uniform distribution have. It may be a little above 1: outputs can be "
        "spread more evenly than random points are.",
        f"The last column: the fewest bits with {NEARLY:.0%} of what the most bits gain.",
    ]
    if context.laptop:
        text.append(
            "Ours: a small network and outputs of 32 dimensions; 50,000 images of 8 pixels, once; "
            "LARS."
        )
    caption = "The distribution term at the end of training on images of k random bits"
    title = "The distribution term saturates with a few bits (Figure C.1)"
    complete = len(by(rows, "run")) == len(LOSSES) * len(bits) * len(BATCHES[context.scale])
    verdict = _verdict(enough) if complete else ""
    return Result(title, columns, lines, [(context.figure, caption)], text, verdict)


def saturated(gains: Mapping[int, float]) -> int:
    """The fewest bits that gain nearly what the most of them do."""
    most = max(gains)
    return min(k for k, value in gains.items() if k == most or value >= NEARLY * gains[most])


def _verdict(enough: Mapping[tuple[str, int], int]) -> str:
    """Which losses are saturated by a few bits."""
    parts: dict[str, list[str]] = {}
    for (name, batch), k in enough.items():
        parts.setdefault(name, []).append(f"{k} bits (batches of {batch})")
    few = [name for name in parts if all(k <= FEW for (n, _), k in enough.items() if n == name)]
    numbers = "; ".join(f"{name}: {', '.join(each)}" for name, each in parts.items())
    shows = f"shows for {len(few)} of {len(parts)} losses, if a few are {FEW} bits at most"
    return f"saturation {shows}; {NEARLY:.0%} is reached by {numbers}"


REPRODUCTIONS = {
    "chen/figureC1": Reproduction(
        "distribution losses of images that carry k random bits",
        result,
        laptop=scale("random_bits", _plan),
        paper=scale("random_bits", _plan),
    )
}
