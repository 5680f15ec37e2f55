"""Figure B.2 of Chen, Luo & Li: temperature and weight of decoupled NT-Xent."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import scipy

from experiments import inference, rates, tables
from experiments.chen import settings
from experiments.plots import comparisons
from experiments.predictions import right
from experiments.reproduction import Context, Reproduction, Result, scale
from experiments.statistics import Rows, by
from experiments.sweeps import Planned

FIGURE = "chen/figureB2"
# At the laptop's scale: all of its temperatures and 6 of its 12 weights.
TAUS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
LAMBDAS = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0)
INNER = LAMBDAS[1:-1]  # that choose the rate
SEEDS = range(5)
PAPERS_DIM = 64

Scores = Mapping[tuple[float, float], float]  # by (tau, lambda)


def printed() -> dict[tuple[float, float], float]:
    """The paper's accuracies, without the cells that were lost in its text."""
    return tables.printed(FIGURE, "top1", "tau", "lambda")


def _encoder(context: Context, tau: float, lam: float, seed: int, **changes: Any) -> Planned:
    about = {"tau": tau, "lam": lam, "paper_top1": printed().get((tau, lam))}
    name = f"decoupled_tau{tau:g}_lam{lam:g}_seed{seed}"
    objective = settings.decoupled(tau, lam, self_similarity=True)
    return settings.encoder(context, settings.LAPTOP, name, objective, about, seed=seed, **changes)


def _choose(context: Context, rows: Rows) -> list[Planned]:
    """Candidates of each temperature's rate: the mean over the inner weights, a fold for each."""
    runs = []
    for tau, (fold, lam) in itertools.product(TAUS, enumerate(INNER)):
        runs.append(_encoder(context, tau, lam, seed=fold, folds=rates.FOLDS, fold=fold))
    return rates.candidates(runs, settings.RATES)


def _laptop(context: Context, rows: Rows) -> list[Planned]:
    choice = rates.chosen(rows, "tau")
    usual = settings.LAPTOP.learning_rate
    return [
        rates.at(_encoder(context, tau, lam, seed), choice.get(tau, usual))
        for tau, lam, seed in itertools.product(TAUS, LAMBDAS, SEEDS)
    ]


def _paper(context: Context, rows: Rows) -> list[Planned]:
    return [
        settings.of_row(row, context, tau=row.values["tau"], lam=row.values["lambda"])
        for row in tables.rows(FIGURE)
    ]


def result(context: Context, rows: Rows) -> Result:
    """Both grids by each instrument, and where along each temperature the best weight lies."""
    layers = ("backbone", "output") if context.laptop else ("backbone",)
    scores = inference.scores(layers)
    choice, groups = rates.chosen(rows, "tau"), by(rates.final(rows), "tau", "lam")
    dim = (settings.LAPTOP if context.laptop else settings.BASES[FIGURE]).dim
    theirs = printed()
    rights = {score: {cell: right(of, score) for cell, of in groups.items()} for score in scores}
    ours = {
        score: {cell: 100 * float(of.mean()) for cell, of in cells.items()}
        for score, cells in rights.items()
    }
    best = {score: best_weights(cells) for score, cells in ours.items()}
    same = {cell: theirs[cell] for cell in groups if cell in theirs}
    paper_best = best_weights(same)
    table = []
    for tau in sorted({tau for tau, _ in groups}):
        weights = [(score, best[score][tau]) for score in scores]
        cells = [f"{lam:g}: {inference.accuracy(groups[tau, lam], s)}" for s, lam in weights]
        other = paper_best.get(tau)
        rate = f"{choice[tau]:g}" if tau in choice else None
        paper = None if other is None else f"{other:g}: {theirs[tau, other]:.1f}"
        table.append([f"{tau:g}", rate, *cells, paper])
    columns = ["tau", "rate", *inference.columns(layers)]
    columns.append("paper (%)")
    panels = {name: _grid(ours[score], groups, dim) for score, name in scores.items()}
    panels[f"the paper: CIFAR-10, d = {PAPERS_DIM}"] = _grid(same, groups, PAPERS_DIM)
    comparisons.heat_maps(
        panels,
        context.figure,
        row="temperature tau",
        column="weight lambda",
        score="accuracy (%)",
        ridge="d lambda = tau: NT-Xent",
        across=len(inference.ALL),
        each_row=True,
    )
    rises = {score: _rises(cells) for score, cells in rights.items()}
    halves = {score: [*map(_half, cells.values())] for score, cells in rights.items()}
    two = [f"{layer}_{key}" for layer in layers for key in inference.INSTRUMENTS]
    lead = _lead([ours[score] for score in two], [half for s in two for half in halves[s]])
    alike = ", ".join(f"{_alike(rights[score], same)} ({name})" for score, name in scores.items())
    text = [
        "The paper's claim: temperature and weight of the term that spreads the outputs can take "
        "each other's place: a higher temperature takes from that term what a larger weight gives "
        "back, so that one may fix one of them and tune the other. Good settings then form a "
        "ridge, from low temperature and small weight to high temperature and large weight.",
        _what_was_done(context, groups),
        "One sentence of the paper says that a higher temperature is like a larger weight, which "
        "would be the opposite. In the scaling of its numbers the alignment is divided by the "
        "dimension d of the output: along d lambda = tau (dashed) the loss is NT-Xent itself."
        f"{_of_the_paper(same)}",
        "In each cell of the table: the best weight and its accuracy, ± half of the 95% interval "
        "over seeds and test images; as the best of several it is a little too good. "
        f"{lead}Rank "
        f"correlation of our accuracies with the paper's over {len(same)} settings, 95% interval "
        f"over seeds and test images: {alike}. Neighbouring settings are alike, so that such a "
        "number would be far from 0 by chance more often than of as many independent ones.",
    ]
    if choice:
        names = {f"tau {tau:g}": rate for tau, rate in choice.items()}
        text.append(rates.told(names, settings.RATES, len(INNER)))
        text[-1] += f" {_lead_of_rates(rows)}"
    title = "Temperature and weight of decoupled NT-Xent (Figure B.2)"
    every = [half for of in halves.values() for half in of]
    caption = (
        "Accuracies in percent; the best weight of each temperature is framed. "
        f"Half of a cell's 95% interval: {min(every, default=0):.1f} to "
        f"{max(every, default=0):.1f} points"
    )
    verdict, short = _verdict(rises, layers)
    return Result(title, columns, table, [(context.figure, caption)], text, verdict, short)


def _what_was_done(context: Context, groups: Mapping) -> str:
    if not context.laptop:
        return "ResNet-18 on CIFAR-10, one encoder for each cell of the paper's grid."
    seeds = max(map(len, groups.values()), default=0)
    return (
        f"Here: small encoders of digits, {seeds} seeds of each of {len(groups)} settings, each "
        "temperature at a learning rate that was chosen for it on training images. The claim is "
        "taken to show where the rank correlation of temperature and best weight is above 0 by "
        "logistic regression and by 5-NN before the head, the layer that the paper evaluates. Its "
        "interval draws seeds and test images anew, and is of these temperatures; p is the larger "
        "of two, that of these draws and the share of orders of the temperatures in which it would "
        "be as large. Of equally good weights the middle one counts."
    )


def _rises(rights: Mapping[tuple[float, float], np.ndarray]) -> inference.Estimate | None:
    """Rank correlation of temperature and best weight; None where fewer than three were trained.

    Both have to speak against chance: the draws of seeds and images, and the order of settings.
    """
    taus, lams = (sorted({cell[axis] for cell in rights}) for axis in (0, 1))
    if len(taus) < 3 or len(rights) < len(taus) * len(lams):
        return None
    cells = list(itertools.product(taus, lams))
    drawn = inference.resampled([rights[cell] for cell in cells])
    drawn = drawn.reshape(len(taus), len(lams), -1)
    means = np.array([rights[cell].mean() for cell in cells]).reshape(len(taus), len(lams), 1)
    value = float(_of_best(means)[0])
    of = inference.of_draws(value, _of_best(drawn))
    orders = np.array([*itertools.permutations(_best_columns(means)[:, 0])])
    by_order = np.abs(_correlation(orders.T, range(len(taus)))) >= abs(value) - 1e-9
    single = min(map(len, rights.values())) == 1
    return of._replace(p=max(of.p, float(np.mean(by_order))), single=single)


def _of_the_paper(theirs: Scores) -> str:
    """Of the cells that were trained here too: of all temperatures, and of those from 0.1."""
    whole, high = theirs, {cell: score for cell, score in theirs.items() if cell[0] >= 0.1}
    found = []
    for best in map(best_weights, (whole, high)):
        if len(best) < 3:
            return ""
        weights = np.array([[weight] for weight in best.values()])
        found.append(f"{_correlation(weights, [*best])[0]:+.2f}")
    return (
        " The rank correlation of temperature and best weight is {} in its own cells, {} in those "
        "from tau = 0.1 on."
    ).format(*found)


def _of_best(accuracies: np.ndarray) -> np.ndarray:
    """Rank correlation of rows and best columns, of each of `[rows, columns, draws]`."""
    return _correlation(_best_columns(accuracies), range(len(accuracies)))


def _best_columns(accuracies: np.ndarray) -> np.ndarray:
    """Of each row of `[rows, columns, draws]` the best column, of equal ones their mean place."""
    best = accuracies >= accuracies.max(axis=1, keepdims=True) - 1e-9
    places = np.arange(accuracies.shape[1])[None, :, None]
    return np.sum(best * places, axis=1) / np.sum(best, axis=1)


def _correlation(values: np.ndarray, other: Sequence[float]) -> np.ndarray:
    """Rank correlation of each column of `[rows, draws]` with other values; 0 of a constant."""
    ranks, others = scipy.stats.rankdata(values, axis=0), scipy.stats.rankdata(other)
    ranks, others = ranks - ranks.mean(axis=0), others - others.mean()
    spread = np.sqrt(np.sum(ranks**2, axis=0) * np.sum(others**2))
    return np.divide(others @ ranks, spread, out=np.zeros(len(spread)), where=spread > 0)


def _alike(rights: Mapping[tuple[float, float], np.ndarray], theirs: Scores) -> str:
    """Rank correlation of our accuracies with the paper's, with its interval."""
    if len(theirs) < 3:
        return "unknown"
    ours = [rights[cell] for cell in theirs]
    means = np.array([[of.mean()] for of in ours])
    value, draws = (
        _correlation(of, [*theirs.values()]) for of in (means, inference.resampled(ours))
    )
    of = inference.of_draws(value[0], draws)
    return f"{of.value:.2f}, {of.low:.2f} to {of.high:.2f}"


def _lead(ours: Iterable[Scores], halves: Sequence[float]) -> str:
    """How far the best weight of a temperature is ahead of the next one, beside the intervals."""
    leads = []
    for cells in ours:
        for tau in {tau for tau, _ in cells}:
            ordered = sorted(score for (t, _), score in cells.items() if t == tau)
            leads += [ordered[-1] - ordered[-2]] if len(ordered) > 1 else []
    if not leads:
        return ""
    lead, half = np.median(leads), np.median(halves)
    unsure = ": which one is best is little known" * bool(lead < half)
    return (
        f"By the first two instruments it is ahead of the next by {lead:.2f} points (the median), "
        f"where half of a cell's interval is {half:.2f}{unsure}. "
    )


def _lead_of_rates(rows: Rows) -> str:
    """How far the rate of a temperature is ahead of the next best."""
    ordered = [sorted(of.values()) for of in rates.accuracies(rows, "tau").values()]
    leads = [of[-1] - of[-2] for of in ordered if len(of) > 1]
    return (
        "Each fifth judged encoders of one weight and seed. The best rate is ahead of the next by "
        f"{min(leads, default=0):.2f} to {max(leads, default=0):.2f} points on average, so that "
        "other seeds may choose another one, by which rows differ too."
    )


def best_weights(scores: Scores) -> dict[float, float]:
    """The best weight of each temperature."""
    taus = sorted({tau for tau, _ in scores})
    return {
        tau: max((lam for t, lam in scores if t == tau), key=lambda lam: scores[tau, lam])
        for tau in taus
    }


def _grid(scores: Scores, trained: Iterable[tuple[float, float]], dim: int) -> comparisons.Grid:
    """On the settings that were trained here."""
    cells = list(trained)
    taus, lams = (sorted({cell[axis] for cell in cells}) for axis in (0, 1))
    ridge = [(tau / dim, tau) for tau in taus] if min(len(taus), len(lams)) > 1 else []
    return comparisons.grid_of(scores, taus, lams, ridge)


def _half(right_or_not: np.ndarray) -> float:
    of = inference.difference(right_or_not)
    return (of.high - of.low) / 2


def _verdict(
    rises: Mapping[str, inference.Estimate | None], layers: Sequence[str]
) -> tuple[str, str]:
    """Whether the best weight rises with the temperature, on each layer; and in a line."""
    parts, short = [], []
    for layer in layers:
        of = {name: rises[f"{layer}_{key}"] for key, name in inference.ALL.items()}
        known = {name: each for name, each in of.items() if each is not None}
        if len(known) < len(of):
            return "", ""
        (sign,) = inference.signs([known])
        by_each = ", ".join(f"{each} with p = {each.p:.2g} by {n}" for n, each in known.items())
        where, word = inference.where(layer), inference.shows(sign)
        parts.append(f"{word} {where}, by a rank correlation of {by_each}")
        short.append(f"{word} {where}")
    return (
        f"That the best weight rises with the temperature {'; '.join(parts)}.",
        f"That the best weight rises with the temperature {', and '.join(short)}.",
    )


REPRODUCTIONS = {
    FIGURE: Reproduction(
        "temperature against weight of the distribution term",
        result,
        laptop=scale("digits", _choose, _laptop),
        paper=scale("cifar10", _paper),
    )
}
