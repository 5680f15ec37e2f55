"""Tables D.1 to D.3 of Chen, Luo & Li: five contrastive losses by linear evaluation."""

import functools
import itertools

import numpy as np

from experiments import tables
from experiments.chen import settings
from experiments.reproduction import Context, Reproduction, Result, Scale, scale
from experiments.statistics import Rows, by, difference, done, interval, means, values
from experiments.sweeps import Planned

TABLE_D1 = "chen/tableD1"
SEEDS = range(8)
EPOCHS, BATCH = (100, 200, 400, 800), 128  # of the paper's numbers beside the laptop's
CLAIM = (
    "The paper's claim: what matters is that there is a term which aligns the views of an image "
    "and one that spreads the outputs over a distribution of high entropy, and not which: "
    "NT-Xent (SimCLR's loss), NT-Xent with a weight of its own for the second term, and alignment "
    "with a sliced Wasserstein distance (SWD) to a normal distribution, to a cube or to the sphere "
    "all give encoders that are about equally good."
)


def _paper(table: str, context: Context, rows: Rows) -> list[Planned]:
    """The encoders of a table's rows, or of the one that was asked for."""
    chosen = tables.rows(table) if context.row is None else [tables.row_of(table, context.row)]
    return [settings.of_row(row, context, name=row.values["loss"]) for row in chosen]


def _laptop(context: Context, rows: Rows) -> list[Planned]:
    planned = []
    for (name, objective), seed in itertools.product(settings.LOSSES.items(), SEEDS):
        slug, about = f"{settings.slug(name)}_seed{seed}", {"name": name}
        one = settings.encoder(context, settings.LAPTOP, slug, objective, about, seed=seed)
        planned.append(one)
    return planned


def result(table: str, title: str, context: Context, rows: Rows) -> Result:
    """Each loss: paper and ours."""
    title = f"{title} (Table {table[-2]}.{table[-1]})"
    if context.laptop:
        return _laptop_result(title.replace(" on CIFAR-10", ""), rows)
    columns = ["row", "loss", "pairs", "epochs", "paper (%)", "ours (%)", "95% interval"]
    lines = []
    for row in done(rows):
        about = [row[name] for name in ("row", "name", "batch", "epochs", "paper_top1")]
        lines.append([*about, row["backbone_linear"], interval(row, "backbone_linear")])
    return Result(title, columns, lines, [], [CLAIM])


def _laptop_result(title: str, rows: Rows) -> Result:
    printed = tables.printed(TABLE_D1, "top1", "loss", "epochs", "batch_size")
    columns = ["loss", "settings", "seeds", "on the output (%)", "before the head (%)"]
    columns += [f"paper: {', '.join(map(str, EPOCHS))} epochs"]
    lines, accuracies, before = [], {}, {}
    for name, group in by(rows, "name").items():
        accuracies[name] = values(group, "output_linear")
        before[name] = np.mean(values(group, "backbone_linear"))
        ours = [len(group), *means(group, "output_linear", "backbone_linear")]
        theirs = ", ".join(f"{printed[name, epochs, BATCH]:.1f}" for epochs in EPOCHS)
        lines.append([name, _settings(name), *ours, theirs])
    text = [
        CLAIM,
        "Ours: linear accuracy of small encoders of digits, mean ± half of the 95% interval over "
        "seeds (Student's t); the paper's: ResNet-50 on CIFAR-10, batches of 128. The paper "
        "evaluates before the head. There nearly every encoder of digits is good, so that its "
        "output is evaluated, too. The paper's numbers are of other data: compare the differences "
        "between losses.",
    ]
    apart = np.ptp([*before.values()] or [0])
    return Result(title, columns, lines, [], text, _verdict(accuracies, apart, printed))


def _settings(name: str) -> str:
    """Temperature, weight and factor of a loss."""
    loss = settings.LOSSES[name]
    shown = {"tau": loss.loss_tau, "lambda": loss.loss_lam}
    factor = [f"times {loss.loss_factor:g}"] if loss.loss_factor != 1 else []
    return ", ".join([f"{k} {v:g}" for k, v in shown.items() if v is not None] + factor)


def _verdict(accuracies: dict[str, list[float]], before: float, printed: dict) -> str:
    """The best and the worst of the five, and how far these are apart in the paper."""
    if len(accuracies) < len(settings.LOSSES) or min(map(len, accuracies.values())) < 2:
        return ""
    ordered = sorted(accuracies, key=lambda name: np.mean(accuracies[name]))
    worst, *_, best = ordered
    gain = difference(accuracies[best], accuracies[worst])
    spread = {
        epochs: np.ptp([printed[name, epochs, BATCH] for name in settings.LOSSES])
        for epochs in EPOCHS
    }
    theirs = ", ".join(f"{value:.1f} after {epochs} epochs" for epochs, value in spread.items())
    first = sorted(settings.LOSSES, key=lambda name: printed[name, EPOCHS[0], BATCH])
    return (
        f"best ({best}) against worst ({worst}) of the five on the output: {gain}, which does not "
        f"count that these two were picked; before the head the five are {before:.2f} points "
        f"apart, in the paper {theirs}; the last two are {' and '.join(ordered[:2])}, in the paper "
        f"after {EPOCHS[0]} epochs {' and '.join(first[:2])}"
    )


def _table(number: str, where: str, data: str, laptop: Scale | None = None) -> dict:
    table, title = f"chen/table{number}", f"five contrastive losses on {where}"
    paper = scale(data, functools.partial(_paper, table))
    compute = functools.partial(result, table, title[0].upper() + title[1:])
    return {table: Reproduction(title, compute, laptop, paper, by_row=("paper",))}


REPRODUCTIONS: dict[str, Reproduction] = {
    **_table("D1", "CIFAR-10", "cifar10", scale("digits", _laptop)),
    **_table("D2", "ImageNet, with a head of two layers", "imagenet2012"),
    **_table("D3", "ImageNet, with a head of three layers", "imagenet2012"),
}
