"""Figure B.2 of Chen, Luo & Li: temperature and weight of decoupled NT-Xent.

Claim: temperature and weight of the spreading term can replace each other: the best weight rises
with the temperature. (One sentence of the paper says the opposite. In the scaling of its numbers
the loss is NT-Xent where d lambda = tau.)

    python run.py reproduce chen/figureB2 --scale laptop

laptop: 8 temperatures x 6 weights x 5 seeds on digits, a rate per temperature chosen on training
        data; 80 minutes on one CPU core (240 of 432 runs have no recorded training time).
gpu:    6 x 4 cells x 2 seeds, ResNet-18, CIFAR-10, 10 epochs; an hour on one H100 (estimated).
paper:  the 96 cells of the figure (ResNet-18, 200 epochs, the authors' rate).
Result (laptop): inconclusive. The rank correlation is 0.78 by logistic regression and 0.45 by 5-NN.
"""

import itertools
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from experiments.chen import settings
from experiments.lib import Rows, Run, plots, ranks, rates, records, stats, tables
from experiments.lib.stats import Estimate
from hypersphere_jax.configs import PretrainConfig

SCALES = ("laptop", "gpu", "paper")
SETTINGS = ("tau", "lam")
FIGURE = "chen/figureB2"
TAUS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)  # all of the paper's
LAMBDAS = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0)  # 6 of its 12


def runs(scale: str, rows: Rows) -> list[Run]:
    """Return candidates of each temperature's rate, then the grid."""
    if scale == "paper":
        printed = tables.table_rows(FIGURE)
        return [settings.row_run(r, tau=r.values["tau"], lam=r.values["lambda"]) for r in printed]
    if scale == "gpu":
        cells = itertools.product(TAUS[2:], LAMBDAS[1:5], range(2))
        return [cell_run(settings.SHORT[scale], *cell) for cell in cells]
    # Each inner weight judges the rates of a temperature on another fold.
    inner = []
    for tau, (fold, lam) in itertools.product(TAUS, enumerate(LAMBDAS[1:-1])):
        run = cell_run(settings.LAPTOP, tau, lam, fold)
        inner.append(run.replace(folds=rates.FOLDS, fold=fold))
    candidates = rates.candidates(inner, settings.RATES[scale])
    cells = itertools.product(TAUS, LAMBDAS, range(5))
    grid = [cell_run(settings.LAPTOP, *cell) for cell in cells]
    return rates.choose_then_train(candidates, grid, rows, "tau")


def cell_run(base: PretrainConfig, tau: float, lam: float, seed: int) -> Run:
    """Return the run of a cell of the grid."""
    paper = tables.printed_column(FIGURE, "top1", "tau", "lambda").get((tau, lam))
    labels = {"tau": tau, "lam": lam, "paper_top1": paper}
    objective = settings.NOTEBOOK.replace(loss_tau=tau, loss_lam=lam)
    return settings.loss_run(base, f"decoupled_tau{tau:g}_lam{lam:g}", objective, seed, **labels)


def analyze(rows: Rows) -> Rows:
    """Correlate temperature and best weight, on each layer."""
    cells = records.group_by(rates.final(rows), "tau", "lam")
    table: Rows = []
    for layer in stats.layers_of(next(iter(cells.values()))):
        estimates = {
            instrument: best_weight_correlation(cells, score)
            for instrument, score in stats.columns_of(layer).items()
        }
        claim = "the best weight rises with the temperature (rank correlation)"
        table += stats.judge([stats.Comparison(claim, estimates, labels={"layer": layer})])
    return table


def best_weight_correlation(cells: Mapping[tuple[float, float], Rows], score: str) -> Estimate:
    """Return the rank correlation of temperature and best weight on a grid of (tau, lambda)."""
    taus = sorted({tau for tau, _ in cells})
    lams = sorted({lam for _, lam in cells})
    ordered = [records.correct(cells[cell], score) for cell in itertools.product(taus, lams)]
    means = np.array([of.mean() for of in ordered]).reshape(len(taus), len(lams), 1)
    drawn, _ = stats.resample(ordered, [np.zeros(len(of)) for of in ordered])
    drawn_best = best_columns(drawn.reshape(len(taus), len(lams), -1))
    drawn_taus = np.broadcast_to(np.array(taus)[:, None], drawn_best.shape)
    estimate = ranks.setting_correlation(taus, best_columns(means)[:, 0], drawn_taus, drawn_best)
    return estimate._replace(single_seed=min(map(len, ordered)) == 1)


def best_columns(accuracies: np.ndarray) -> np.ndarray:
    """Return the index of the best column of each row of `[rows, columns, draws]`.

    Equally good columns count with their mean index.
    """
    best = accuracies >= accuracies.max(axis=1, keepdims=True) - 1e-9
    indices = np.arange(accuracies.shape[1])[None, :, None]
    return np.sum(best * indices, axis=1) / np.sum(best, axis=1)


def plot(rows: Rows, path: Path) -> None:
    """Draw accuracies over lambda, a line per temperature."""
    groups = {f"tau {t:g}": of for t, of in records.group_by(rates.final(rows), "tau").items()}
    labels = {"xlabel": "lambda", "ylabel": "accuracy (%)"}
    panels = plots.accuracy_panels(groups, "lam")
    plots.curves(panels, path, sharey="row", xscale="log", **labels)
