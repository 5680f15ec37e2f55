"""Figure B.2 of Chen, Luo & Li: temperature and weight of decoupled NT-Xent."""

import itertools
import math
from collections.abc import Mapping

import numpy as np

from experiments import items, tables
from experiments.chen import settings
from experiments.items import Context, Item, Scale
from experiments.measures import Rows
from experiments.shown import Shown, rank_correlation
from experiments.sweeps import Planned
from hypersphere_jax import plots

FIGURE = "chen/figureB2"
# At the laptop's scale: 5 of its 8 temperatures and 6 of its 12 weights.
TAUS, LAMBDAS = (0.05, 0.1, 0.2, 0.5, 1.0), (0.001, 0.005, 0.02, 0.1, 0.5, 2.0)

Scores = Mapping[tuple[float, float], float]  # by (tau, lambda)


def printed() -> dict[tuple[float, float], float]:
    """The paper's accuracies, without the cells that were lost in its text."""
    return {
        (row.values["tau"], row.values["lambda"]): row.values["top1"]
        for row in tables.rows(FIGURE)
        if row.values["top1"] is not None
    }


def _laptop(context: Context, rows: Rows) -> list[Planned]:
    planned = []
    for tau, lam in itertools.product(TAUS, LAMBDAS):
        about = {"tau": tau, "lam": lam, "paper_top1": printed().get((tau, lam))}
        name = f"decoupled_tau{tau:g}_lam{lam:g}"
        planned.append(settings.small(context, name, settings.decoupled(tau, lam), about))
    return planned


def _paper(context: Context, rows: Rows) -> list[Planned]:
    planned = []
    for row in tables.rows(FIGURE):
        about = {"tau": row.values["tau"], "lam": row.values["lambda"], "row": row.number}
        about |= {"paper_top1": row.values["top1"]}
        planned.append(items.run(settings.config_of(row), context, settings.MEASURES, about))
    return planned


def show(context: Context, rows: Rows) -> Shown:
    """Both grids, and where along each row the best weight lies."""
    laptop = context.scale == "laptop"
    score = "output_linear" if laptop else "backbone_linear"
    dim = (settings.LAPTOP if laptop else settings.BASES[FIGURE]).model.dim
    ours = {(row["tau"], row["lam"]): row[score] for row in rows if row["status"] == "done"}
    theirs = printed()
    columns = ["tau", "best lambda", "d lambda / tau", "linear (%)"]
    columns += ["paper: best lambda", "64 lambda / tau", "paper: linear (%)"]
    best, paper_best = best_weights(ours), best_weights(theirs)
    lines = []
    for tau, lam in best.items():
        other = paper_best[tau]
        found = [f"{tau:g}", f"{lam:g}", f"{dim * lam / tau:.1f}", ours[tau, lam]]
        lines.append([*found, f"{other:g}", f"{64 * other / tau:.1f}", theirs[tau, other]])
    path = context.folder / "figure.png"
    plots.heat_maps(
        {
            f"ours: {'digits' if laptop else 'CIFAR-10'}, d = {dim}": _grid(ours, dim),
            "the paper: CIFAR-10, d = 64": _grid(theirs, 64),
        },
        path,
        row="temperature tau",
        column="weight lambda of the distribution term",
        score="linear accuracy (%)",
        ridge="d lambda = tau: NT-Xent",
    )
    text = [
        "The paper's claim: temperature and weight of the term that spreads the outputs can stand "
        "in for each other: a higher temperature takes from that term what a larger weight gives "
        "back (the paper calls them inversely correlated), so that one may fix one of them and "
        "tune the other. So good settings form a ridge, from low temperature and small weight to "
        "high temperature and large weight. (One sentence of the paper says that a higher "
        "temperature is like a larger weight; its grid says the opposite.)",
        "In the scaling of the paper's numbers the alignment is divided by the dimension d of the "
        "output: along d lambda = tau (dashed) the loss is NT-Xent itself. How far from that line "
        f"the best weight lies: in the paper's grid at {_range(paper_best, 64)} times the weight "
        f"of NT-Xent, in ours at {_range(best, dim)} times, the temperatures from low to high.",
    ]
    if laptop:
        text.append(
            "Ours are small encoders of digits, one seed each, evaluated on their output; the "
            "interval of an accuracy is about 2 points to either side. At the lowest temperature "
            "the best weight is the smallest of the grid."
        )
    title = "Temperature and weight of decoupled NT-Xent (Figure B.2)"
    caption = "Linear accuracy; the best cell is framed, grey cells are lost or not trained"
    return Shown(title, columns, lines, [(path, caption)], text, _verdict(best, ours, theirs))


def best_weights(scores: Scores) -> dict[float, float]:
    """The best weight of each temperature."""
    taus = sorted({tau for tau, _ in scores})
    return {
        tau: max((lam for t, lam in scores if t == tau), key=lambda lam: scores[tau, lam])
        for tau in taus
    }


def _grid(scores: Scores, dim: int) -> plots.Grid:
    taus, lams = (sorted({key[axis] for key in scores}) for axis in (0, 1))
    table = np.array([[scores.get((tau, lam), np.nan) for lam in lams] for tau in taus])
    ridge = [(tau / dim, tau) for tau in taus] if min(len(taus), len(lams)) > 1 else []
    return plots.Grid(taus, lams, table, ridge)


def _verdict(best: Mapping[float, float], ours: Scores, theirs: Scores) -> str:
    rises = rank_correlation(list(best), list(best.values())) if len(best) > 2 else math.nan
    both = [key for key in ours if key in theirs]
    if math.isnan(rises):
        return ""
    alike = rank_correlation(*([scores[key] for key in both] for scores in (ours, theirs)))
    return (
        f"the best weight {'rises' if rises > 0.5 else 'does not rise'} with the temperature "
        f"(rank correlation {rises:.2f}): the claim {'shows' if rises > 0.5 else 'does not show'}; "
        f"over {len(both)} settings our accuracies and the paper's have a rank correlation of "
        f"{alike:.2f}"
    )


def _range(best: Mapping[float, float], dim: int) -> str:
    return ", ".join(f"{dim * lam / tau:.2g}" for tau, lam in best.items())


ITEMS = {
    FIGURE: Item(
        "temperature against weight of the distribution term",
        {
            "laptop": Scale(("digits",), 0.17, (_laptop,)),
            "paper": Scale(("cifar10",), 18_000, (_paper,)),
        },
        show,
    )
}
