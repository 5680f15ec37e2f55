"""Figure B.1 of Chen, Luo & Li: outputs along random directions."""

import dataclasses
import itertools

from experiments import items
from experiments.chen import settings
from experiments.items import Context, Item, Scale
from experiments.measures import Rows
from experiments.shown import Shown, by
from experiments.sweeps import Planned
from hypersphere_jax import plots
from hypersphere_jax.config import MetricsConfig
from hypersphere_jax.evaluate.metrics_verb import measure

# More and more of the term that spreads the outputs, by its weight and by the temperature. The
# paper's own values stand in its picture only.
ENCODERS = {
    "SWD (uniform hypersphere)": {
        f"lambda {lam:g}": settings.swd("hypersphere", lam) for lam in (0.05, 0.5, 5.0)
    },
    "NT-Xent": {f"tau {tau:g}": settings.nt_xent(tau) for tau in (2.0, 0.5, 0.1)},
}
DIRECTIONS = 6  # drawn of each encoder


def _plan(context: Context, rows: Rows) -> list[Planned]:
    planned = []
    for group, members in ENCODERS.items():
        for label, objective in members.items():
            about = {"group": group, "label": label}
            name = f"{settings.slug(group)}_{settings.slug(label)}"
            if context.scale == "laptop":
                planned.append(settings.small(context, name, objective, about))
                continue
            config = dataclasses.replace(settings.CIFAR10, name=f"chen_{name}", objective=objective)
            planned.append(items.run(config, context, settings.MEASURES, about))
    return planned


def show(context: Context, rows: Rows) -> Shown:
    """How far the projections are from those of uniform features, and their histograms."""
    columns = ["loss", "setting", "distance from uniform (KS)", "squared distance (SWD)"]
    columns += ["L_uniform", "optimum"]
    lines, histograms, distances, width = [], {}, {}, 0.0
    for (group, label), (row,) in by(rows, "group", "label").items():
        found = measure(MetricsConfig(str(context.runs_dir / row["run"]), parts=("projections",)))
        distance, width = found["projection_ks_sphere"], found["projection_half_width"]
        numbers = [found[name] for name in ("sliced_wasserstein", "uniform", "uniform_optimum")]
        lines.append([group, label, f"{distance:.4f}", f"{numbers[0]:.4f}", *numbers[1:]])
        distances.setdefault(group, []).append(distance)
        counts = [one["counts"] for one in found["projections"][:DIRECTIONS]]
        histograms.setdefault(group, {})[label] = counts
    path = context.folder / "figure.png"
    plots.projection_sheet(histograms, width, path)
    text = [
        "The paper's claim: along random directions, outputs that are spread evenly over the "
        "sphere look like a normal distribution. They come nearer to it as the weight lambda of "
        "the term that spreads them grows (SWD), and as the temperature tau falls (NT-Xent).",
        "The distances are means over all directions of the test split's outputs: the largest "
        "difference of the distribution functions (Kolmogorov-Smirnov, KS), and the squared "
        "Wasserstein distance in units of the uniform features' variance.",
    ]
    caption = (
        "Test images along random orthogonal directions, each encoder a row; from top to bottom "
        "the term that spreads the outputs has more and more weight"
    )
    title = "Outputs along random directions (Figure B.1)"
    return Shown(title, columns, lines, [(path, caption)], text, _verdict(distances))


def _verdict(distances: dict[str, list[float]]) -> str:
    found = []
    for group, values in distances.items():
        if len(values) < len(ENCODERS[group]):
            continue
        falls = all(a > b for a, b in itertools.pairwise(values))
        numbers = ", ".join(f"{value:.3f}" for value in values)
        first, *_, last = ENCODERS[group]
        found.append(
            f"{group}: the distance {'falls' if falls else 'does not fall throughout'} from "
            f"{first} to {last} ({numbers}): {'shows' if falls else 'does not show'}"
        )
    return "; ".join(found)


ITEMS = {
    "chen/figureB1": Item(
        "distribution of outputs along random directions",
        {
            "laptop": Scale(("digits",), 0.03, (_plan,)),
            "paper": Scale(("cifar10",), 1_300, (_plan,)),
        },
        show,
    )
}
