"""Tables D.1 to D.3 of Chen, Luo & Li: five contrastive losses by linear evaluation."""

import functools
import itertools

import numpy as np

from experiments import items, tables
from experiments.chen import settings
from experiments.items import Context, Item, Scale
from experiments.measures import Rows
from experiments.shown import Shown, between, by, difference, with_interval
from experiments.sweeps import Planned

TABLE_D1 = "chen/tableD1"
SEEDS = range(8)
EPOCHS, BATCH = (100, 200, 400, 800), 128  # of the numbers that stand beside the laptop's
CLAIM = (
    "The paper's claim: what matters is that there is a term which aligns the views of an image "
    "and one that spreads the outputs over a distribution of high entropy, and not which: "
    "NT-Xent (SimCLR's loss), NT-Xent with a weight of its own for the second term, and alignment "
    "with a sliced Wasserstein distance (SWD) to a normal distribution, to a cube or to the sphere "
    "all give encoders that are about equally good."
)


def _rows_of(table: str, context: Context, rows: Rows) -> list[Planned]:
    """The encoders of a table's rows, or of the one that was asked for."""
    chosen = tables.rows(table) if context.row is None else [tables.row_of(table, context.row)]
    planned = []
    for row in chosen:
        about = {"table": row.table, "row": row.number, "name": row.values["loss"]}
        about |= {f"paper_{name}": value for name, value in tables.expected(row).items()}
        planned.append(items.run(settings.config_of(row), context, settings.MEASURES, about))
    return planned


def _laptop(context: Context, rows: Rows) -> list[Planned]:
    return [
        settings.small(
            context, f"{settings.slug(name)}_seed{seed}", objective, {"name": name}, seed
        )
        for (name, objective), seed in itertools.product(settings.LOSSES.items(), SEEDS)
    ]


def show(table: str, title: str, context: Context, rows: Rows) -> Shown:
    """Each loss: paper and ours."""
    title = f"{title} (Table {table[-2]}.{table[-1]})"
    if context.scale == "laptop":
        return _show_laptop(title.replace(" on CIFAR-10", ""), rows)
    return _show_rows(title, rows)


def _show_rows(title: str, rows: Rows) -> Shown:
    columns = ["row", "loss", "pairs", "epochs", "paper (%)", "ours (%)", "95% interval"]
    lines = []
    for row in rows:
        if row["status"] == "done":
            about = [row[name] for name in ("row", "name", "batch", "epochs", "paper_top1")]
            lines.append([*about, row["backbone_linear"], between(row, "backbone_linear")])
    return Shown(title, columns, lines, [], [CLAIM])


def _show_laptop(title: str, rows: Rows) -> Shown:
    printed = {
        (row.values["loss"], row.values["epochs"]): row.values["top1"]
        for row in tables.rows(TABLE_D1)
        if row.values["batch_size"] == BATCH
    }
    columns = ["loss", "settings", "seeds", "on the output (%)", "before the head (%)"]
    columns += [f"paper: {', '.join(map(str, EPOCHS))} epochs"]
    lines, accuracies, before = [], {}, {}
    for name, group in by(rows, "name").items():
        accuracies[name] = [row["output_linear"] for row in group]
        before[name] = [row["backbone_linear"] for row in group]
        ours = [len(group), with_interval(accuracies[name]), with_interval(before[name])]
        theirs = ", ".join(f"{printed[name, epochs]:.1f}" for epochs in EPOCHS)
        lines.append([name, _settings(name), *ours, theirs])
    text = [
        CLAIM,
        "Ours: linear accuracy of small encoders of digits, mean ± half of the 95% interval over "
        "seeds (Student's t); the paper's: ResNet-50 on CIFAR-10, batches of 128. The paper "
        "evaluates before the head. There nearly every encoder of digits is good, so that its "
        "output is evaluated, too. The paper's numbers are of other data: compare the differences "
        "between losses.",
    ]
    apart = float(np.ptp([np.mean(values) for values in before.values()] or [0]))
    return Shown(title, columns, lines, [], text, _verdict(accuracies, apart, printed))


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
    found = difference(accuracies[best], accuracies[worst])
    spread = {
        epochs: np.ptp([printed[name, epochs] for name in settings.LOSSES]) for epochs in EPOCHS
    }
    theirs = ", ".join(f"{value:.1f} after {epochs} epochs" for epochs, value in spread.items())
    first = sorted(settings.LOSSES, key=lambda name: printed[name, EPOCHS[0]])
    return (
        f"best ({best}) against worst ({worst}) of the five on the output: {found}, which does not "
        f"count that these two were picked; before the head the five are {before:.2f} points "
        f"apart, in the paper {theirs}; the last two are {' and '.join(ordered[:2])}, in the paper "
        f"after {EPOCHS[0]} epochs {' and '.join(first[:2])}"
    )


def _item(table: str, title: str, data: str, hours: float, laptop: bool) -> Item:
    scales = {"paper": Scale((data,), hours, (functools.partial(_rows_of, table),))}
    if laptop:
        scales = {"laptop": Scale(("digits",), 0.1, (_laptop,)), **scales}
    shown = functools.partial(show, table, title)
    return Item(title[0].lower() + title[1:], scales, shown, by_row=("paper",))


ITEMS = {
    TABLE_D1: _item(TABLE_D1, "Five contrastive losses on CIFAR-10", "cifar10", 65_000, True),
    "chen/tableD2": _item(
        "chen/tableD2",
        "Five contrastive losses on ImageNet, with a head of two layers",
        "imagenet2012",
        4_000_000,
        False,
    ),
    "chen/tableD3": _item(
        "chen/tableD3",
        "Five contrastive losses on ImageNet, with a head of three layers",
        "imagenet2012",
        4_000_000,
        False,
    ),
}
