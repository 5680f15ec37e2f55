"""Section C of Chen, Luo & Li (Figure C.1): the distribution terms saturate with a few bits.

Images of k binary channels, each with one value at all pixels: k bits of entropy, and no more than
2^k different outputs. Only the term that spreads the outputs is minimized.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import inference
from experiments.chen import settings
from experiments.plots import comparisons
from experiments.protocols import Evaluation
from experiments.reproduction import Context, Reproduction, Result, run, scale
from experiments.statistics import Rows, by
from experiments.sweeps import Planned
from hypersphere_jax import theory
from hypersphere_jax.configs import ObjectiveConfig
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
BITS = {"paper": (1, 2, 3, 4, 6, 8, 10, 12, 14, 16), "laptop": (2, 4, 6, 8, 16)}
BATCHES = {"paper": (128, 512, 2048), "laptop": (64, 256)}
EPOCHS = {64: 3, 256: 6}  # at the laptop's scale: 234 and 114 steps
SEEDS = range(5)  # there, too
FEW = 8  # bits
NEARLY = 95  # percent of what is gained with the most bits: there a loss is called saturated
DRAWS = 20  # of uniform points, for what their distance to others of their kind is


def _plan(context: Context, rows: Rows) -> list[Planned]:
    base = settings.RESNET18
    share = 1.0
    if context.laptop:  # 5,000 images of 8 pixels
        base, share = settings.LAPTOP, 0.1
        base = dataclasses.replace(base, image_size=8)
    planned = []
    for (name, objective), batch, bits, seed in itertools.product(
        LOSSES.items(),
        BATCHES[context.scale],
        BITS[context.scale],
        SEEDS if context.laptop else [0],
    ):
        rule: dict[str, Any] = {"batch_size": batch}
        if context.laptop:
            rule |= {"epochs": EPOCHS[batch], "warmup_epochs": EPOCHS[batch] / 10}
        config = base.replace(
            name=f"chen_{settings.slug(name)}_batch{batch}_bits{bits}_seed{seed}",
            seed=seed,
            # Bits of its own for each seed.
            data="random_bits",
            recipe="none",
            bits=bits,
            fraction=share,
            subset_seed=seed,
            **vars(objective),
            **rule,
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
    """The loss over bits, and how much of it a few of them gain."""
    bits = BITS[context.scale]
    columns = ["loss", "pairs", *(f"{k} bits" if k > 1 else "1 bit" for k in bits)]
    columns += [f"bits to {NEARLY}%", f"{FEW} bits of {max(bits)}'s"]
    lines: list[list] = []
    panels: dict[str, dict] = {}
    shares: dict[tuple[str, int], inference.Estimate] = {}
    for (name, batch), group in by(rows, "name", "batch").items():
        gains = {k: [gained(row) for row in of] for k, of in by(group, "bits").items()}
        means = {k: inference.of_seeds(of) for k, of in gains.items()}
        cells = [inference.cell(means[k], 3) if k in means else None for k in bits]
        whole = {FEW, max(bits)} <= gains.keys()
        if whole:
            shares[name, batch] = few_of_most(gains[FEW], gains[max(bits)])
        enough = saturated({k: of.value for k, of in means.items()})
        lines.append(
            [name, batch, *cells, enough, _percent(shares[name, batch]) if whole else None]
        )
        panel = panels.setdefault("SWD" if name == SWD else "LogSumExp", {})
        points = [comparisons.Point(k, *of[:3]) for k, of in sorted(means.items())]
        panel[f"{_short(name)}, batches of {batch}"] = points
    comparisons.curves(
        panels,
        context.figure,
        x="bits of entropy in the images",
        y="gained: 0 one point, 1 uniform",
        levels={"uniform outputs": 1.0},
    )
    seeds = max((len(of) for of in by(rows, "name", "batch", "bits").values()), default=0)
    what = (
        f"a small network with outputs of 32 dimensions, 5,000 images of 8 pixels, {seeds} seeds, "
        "each with bits of its own"
        if context.laptop
        else "ResNet-18, 50,000 images"
    )
    text = [
        "The paper's claim: the term that spreads the outputs is satisfied by a few bits. Images "
        "that carry k random bits and nothing else have 2^k different outputs at most, and yet "
        "the loss is soon as low as it gets, in LogSumExp (the second term of NT-Xent) as in the "
        "sliced Wasserstein distance (SWD); temperature and batch size move the point a little.",
        f"Here: {what}. A loss is taken to be saturated by a few bits where {FEW} of them gain "
        f"more than {NEARLY}% of what {max(bits)} do, beyond chance over seeds (no test images "
        "take part).",
        "The number in each cell is the training loss at the end (the mean of the steps that were "
        "logged in the last tenth), on a scale on which 0 is what equal outputs have and 1 what "
        "points of the uniform distribution have, ± half of the interval. It may be a little above "
        "1: outputs can be spread more evenly than random points are. Bits to "
        f"{NEARLY}%: the fewest of the columns that gain so much of what the most bits do.",
    ]
    caption = (
        "The distribution term at the end of training on images of k random bits; bars: 95% "
        "interval over seeds"
    )
    title = "The distribution term saturates with a few bits (Figure C.1)"
    complete = len(shares) == len(LOSSES) * len(BATCHES[context.scale])
    verdict, short = _verdict(shares, max(bits)) if complete else ("", "")
    return Result(title, columns, lines, [(context.figure, caption)], text, verdict, short)


def saturated(gains: Mapping[int, float]) -> int:
    """The fewest bits that gain nearly what the most of them do."""
    most = max(gains)
    return min(k for k, of in gains.items() if k == most or of >= NEARLY / 100 * gains[most])


def few_of_most(few: Sequence[float], most: Sequence[float]) -> inference.Estimate:
    """What a few bits gain, in percent of what the most do; p: of its being that of saturation.

    The interval of the ratio is by the delta method, with Welch's degrees of freedom.
    """
    ratio = float(np.mean(few) / np.mean(most))
    scale = 100 / float(np.mean(most))
    of = inference.of_seeds(np.multiply(few, scale), np.multiply(most, scale * ratio))
    low, high = (100 * ratio + end for end in (of.low, of.high))
    at = inference.of_seeds(
        np.multiply(few, scale), np.multiply(most, scale * NEARLY / 100)
    )  # zero where few are just that share
    return inference.Estimate(100 * ratio, low, high, at.p)


def _short(name: str) -> str:
    """Such as `tau 0.1`, or `SWD`."""
    return "SWD" if name == SWD else name.rpartition(", ")[2]


def _percent(of: inference.Estimate) -> str:
    return f"{of.value:.1f}% ({of.low:.1f} to {of.high:.1f})"


def _verdict(shares: Mapping[tuple[str, int], inference.Estimate], most: int) -> tuple[str, str]:
    """Which losses are saturated by a few bits; Holm's correction counts them."""
    adjusted = inference.holm([of.p for of in shares.values()])
    parts: list[str] = []
    signs: list[int] = []
    for ((name, batch), of), p in zip(shares.items(), adjusted, strict=True):
        signs.append(int(np.sign(of.value - NEARLY)) if p < inference.ALPHA else 0)
        told = inference.shows(signs[-1])
        parts.append(f"{name}, batches of {batch}: {_percent(of)}, {told}")
    return (
        f"Of what {most} bits gain, {FEW} gain: {'; '.join(parts)}. Holm's correction counts the "
        f"{len(parts)} comparisons with {NEARLY}%.",
        f"{FEW} bits are shown to saturate {signs.count(1)} of {len(signs)} losses and batches, "
        f"and not to saturate {signs.count(-1)}.",
    )


REPRODUCTIONS = {
    "chen/figureC1": Reproduction(
        "distribution losses of images that carry k random bits",
        result,
        laptop=scale("random_bits", _plan),
        paper=scale("random_bits", _plan),
    )
}
