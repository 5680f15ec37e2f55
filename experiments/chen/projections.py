"""Figure B.1 of Chen, Luo & Li: outputs along random directions."""

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from experiments import inference, rates
from experiments.chen import settings
from experiments.plots.style import PAGE, printed
from experiments.reproduction import Context, Reproduction, Result, scale
from experiments.statistics import Rows, by, values
from experiments.sweeps import Planned
from hypersphere_jax.reporting.plots.style import COLORS, DPI, save_figure

# By loss, by setting: KS, squared Wasserstein distance and L_uniform, each of all seeds.
Distances = dict[str, dict[str, list[list[float]]]]
KS, L_UNIFORM = 0, 2

# More and more of the term that spreads the outputs, by its weight and by the temperature. The
# paper's own values are in its picture only.
ENCODERS = {
    "SWD (uniform hypersphere)": {
        f"lambda {lam:g}": settings.swd("hypersphere", lam) for lam in (0.05, 0.5, 5.0)
    },
    "NT-Xent": {f"tau {tau:g}": settings.nt_xent(tau) for tau in (2.0, 0.5, 0.1)},
}
SEEDS = range(5)  # at the laptop's scale
HIGHEST = 3  # bars that are drawn whole, as a multiple of the normal distribution's height


class Histograms(NamedTuple):
    """Of an encoder's outputs along some directions."""

    half_width: float  # bins reach from minus this to this; in units of uniform features' spread
    counts: Sequence[Sequence[int]]  # in equal bins `[directions, bins]`


def _plan(context: Context, rows: Rows) -> list[Planned]:
    base, planned = settings.LAPTOP if context.laptop else settings.CIFAR10, []
    for group, members in ENCODERS.items():
        for (label, objective), seed in itertools.product(
            members.items(), SEEDS if context.laptop else [0]
        ):
            about = {"group": group, "label": label}
            name = f"{settings.slug(group)}_{settings.slug(label)}_seed{seed}"
            one = settings.encoder(context, base, name, objective, about, seed=seed)
            one = one._replace(evaluation=one.evaluation._replace(projections=True, protocol=None))
            planned.append(settings.with_rate(one, group, rows) if context.laptop else one)
    return planned


def result(context: Context, rows: Rows) -> Result:
    """How far the projections are from those of uniform features, and their histograms."""
    columns = ["loss", "setting", "seeds", "distance from uniform (KS)"]
    columns += ["squared distance (SWD)", "L_uniform", "optimum"]
    choice, rows = rates.chosen(rows, "name"), rates.final(rows)
    lines, histograms = [], {}
    distances: Distances = {}
    for (group, label), members in by(rows, "group", "label").items():
        names = ("projection_ks_sphere", "sliced_wasserstein", "uniform")
        numbers = [values(members, name) for name in names]
        first, width = members[0], members[0]["projection_half_width"]
        spread = [inference.cell(inference.of_seeds(of), 3) for of in numbers]
        lines.append([group, label, len(members), *spread, first["uniform_optimum"]])
        distances.setdefault(group, {})[label] = numbers
        counts = first["projection_counts"].split("; ")
        of_directions = [[int(count) for count in of.split()] for of in counts]
        histograms[f"{group.partition(' (')[0]}\n{label}"] = Histograms(width, of_directions)
    draw_histograms(histograms, context.figure)
    seeds = max(map(len, by(rows, "group", "label").values()), default=0)
    images = "small encoders of digits" if context.laptop else "ResNet-50 on CIFAR-10"
    what = f"{images}, {seeds} seed{'s' * (seeds > 1)} of each"
    text = [
        "The paper's claim: along random directions, outputs that are spread evenly over the "
        "sphere look like a normal distribution. They come nearer to it as the weight lambda of "
        "the term that spreads them grows (SWD), and as the temperature tau falls (NT-Xent).",
        f"Here: {what}. Each step to more of that term is taken to come nearer where the distance "
        "from uniform features falls beyond chance: a Welch test over seeds, as no labels and no "
        "accuracies take part; Holm's correction counts the steps.",
        "The distances are means over 16 random directions of the test split's outputs: the "
        "largest difference of the distribution functions (Kolmogorov-Smirnov, KS), by which the "
        "claim is judged, and the squared Wasserstein distance in units of the uniform features' "
        "variance. ±: half of the 95% interval over seeds (Student's t).",
        "SWD matches sorted values, and its gradient jumps where rounding changes their order, so "
        "that runs end further apart than those of NT-Xent where the number of devices or the "
        "processor changes.",
    ]
    if choice:
        text.append(
            rates.told(choice, settings.RATES, rates.FOLDS)
            + " They were chosen at lambda 5 and tau 0.2, as for Figure E.1, and are used "
            "for all settings of a loss, for which another rate may be better."
        )
    caption = (
        "Test images along random orthogonal directions, each encoder (its first seed) a row; from "
        "top to bottom the term that spreads the outputs has more and more weight; bars of more "
        f"than {HIGHEST} times the normal distribution's height are cut"
    )
    title = "Outputs along random directions (Figure B.1)"
    verdict, short = _verdict(distances)
    return Result(title, columns, lines, [(context.figure, caption)], text, verdict, short)


@printed
def draw_histograms(encoders: Mapping[str, Histograms], path: Path | None) -> Figure:
    """A row of small histograms for each encoder, a column for each direction.

    Args:
      encoders: by name.
      path: of the picture.
    """
    columns = max(len(of.counts) for of in encoders.values())
    size = (PAGE, 0.62 * len(encoders) + 0.7)
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    grid = figure.subplots(len(encoders), columns, sharex=True, sharey=True, squeeze=False)
    widest = max(of.half_width for of in encoders.values())
    x = np.linspace(-widest, widest, 201)
    normal = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    for row, (name, (half_width, counts)) in zip(grid, encoders.items(), strict=True):
        for axes, histogram in zip(row, np.array(counts, float), strict=False):
            edges = np.linspace(-half_width, half_width, len(histogram) + 1)
            density = histogram / histogram.sum() / (edges[1] - edges[0])
            axes.stairs(density, edges, fill=True, color=COLORS[0], alpha=0.6, label="features")
            axes.plot(x, normal, "--", color=COLORS[1], lw=1, label="normal distribution")
        row[0].set_ylabel(name, rotation=0, ha="right", va="center")
    grid[0, 0].set_ylim(0, HIGHEST * normal.max())
    for axes in grid.flat:
        axes.set_yticks([])
        axes.grid(visible=False)
    label = "projection on a random direction, in standard deviations of uniform features"
    figure.supxlabel(label, fontsize=8)
    handles = grid[0, 0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper center", ncols=2)
    return save_figure(figure, path)


def _verdict(distances: Distances) -> tuple[str, str]:
    """Of each loss and step, whether the KS distance falls; and in how many L_uniform does."""
    if any(len(distances.get(group, {})) < len(of) for group, of in ENCODERS.items()):
        return "", ""
    steps = [
        (group, *pair)
        for group in ENCODERS
        for pair in itertools.pairwise(distances[group].items())
    ]
    falls, signs = _falls(steps, KS)
    parts = [
        f"{group}, from {first} to {second} {of.value:+.3f} ({of.low:+.3f} to {of.high:+.3f}): "
        f"{inference.shows(sign, claimed=-1)}"
        for (group, (first, _), (second, _)), of, sign in zip(steps, falls, signs, strict=True)
    ]
    _, of_uniform = _falls(steps, L_UNIFORM)
    other = f"L_uniform falls in {of_uniform.count(-1) or 'none'} of the {len(steps)} steps"
    return (
        f"The distance falls with more of the term that spreads: {'; '.join(parts)}. {other}. "
        f"Holm's correction counts the {len(steps)} steps.",
        f"The distance from uniform falls in {signs.count(-1)} of {len(signs)} steps, and "
        f"rises in {signs.count(1) or 'none'}; {other}.",
    )


def _falls(steps: Sequence, measure: int) -> tuple[list[inference.Estimate], list[int]]:
    """How far a measure changes in each step, and whether it does beyond chance."""
    changes = [
        inference.of_seeds(after[measure], before[measure]) for _, (_, before), (_, after) in steps
    ]
    adjusted = inference.holm([of.p for of in changes])
    beyond = [p < inference.ALPHA for p in adjusted]
    signs = [int(np.sign(of.value)) * sure for of, sure in zip(changes, beyond, strict=True)]
    return changes, signs


REPRODUCTIONS = {
    "chen/figureB1": Reproduction(
        "distribution of outputs along random directions",
        result,
        laptop=scale(
            "digits",
            functools.partial(settings.choose, settings.LAPTOP, rates.FOLDS, [*ENCODERS]),
            _plan,
        ),
        paper=scale("cifar10", _plan),
    )
}
