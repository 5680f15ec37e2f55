"""Tables D.1 to D.3 of Chen, Luo & Li: five contrastive losses by linear evaluation."""

import functools
import itertools
from collections.abc import Mapping

import numpy as np

from experiments import inference, rates, tables
from experiments.chen import settings
from experiments.predictions import right
from experiments.reproduction import OF_GREY, Context, Reproduction, Result, Scale, scale
from experiments.statistics import Rows, by, done
from experiments.sweeps import Planned

TABLE_D1 = "chen/tableD1"
SEEDS = range(8)
LAYERS = settings.LAPTOP_EVALUATION.layers
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
        one = settings.encoder(context, settings.GREY, slug, objective, about, seed=seed)
        planned.append(settings.with_rate(one, name, rows))
    return planned


def result(table: str, title: str, context: Context, rows: Rows) -> Result:
    """Each loss: paper and ours."""
    title = f"{title} (Table {table[-2]}.{table[-1]})"
    if context.laptop:
        return _laptop_result(title.replace(" on CIFAR-10", ""), rows)
    columns = ["row", "loss", "pairs", "epochs", "paper (%)", *inference.columns(["backbone"])]
    lines = []
    for row in done(rows):
        about = [row[name] for name in ("row", "name", "batch", "epochs", "paper_top1")]
        lines.append([*about, *inference.accuracies([row], ["backbone"])])
    return Result(title, columns, lines, [], [CLAIM])


def _laptop_result(title: str, rows: Rows) -> Result:
    printed = tables.printed(TABLE_D1, "top1", "loss", "epochs", "batch_size")
    choice, groups = rates.chosen(rows, "name"), by(rates.final(rows), "name")
    columns = ["loss", "settings", "rate", "seeds", *inference.columns(LAYERS)]
    columns += [f"paper: {', '.join(map(str, EPOCHS))} epochs"]
    lines = []
    for name, group in groups.items():
        theirs = ", ".join(f"{printed[name, epochs, BATCH]:.1f}" for epochs in EPOCHS)
        ours = inference.accuracies(group, LAYERS)
        rate = f"{group[0]['rate']:g}"
        lines.append([name, _settings(name), rate, len(group), *ours, theirs])
    spread = {
        epochs: float(np.ptp([printed[name, epochs, BATCH] for name in settings.LOSSES]))
        for epochs in EPOCHS
    }
    theirs = ", ".join(f"{value:.1f} after {epochs}" for epochs, value in spread.items())
    seeds = max(map(len, groups.values()), default=0)
    score = f"{LAYERS[0]}_logistic"
    errors = 100 - np.mean([row[score] for group in groups.values() for row in group] or [np.nan])
    text = [
        CLAIM,
        f"Here: small encoders of {OF_GREY}, {seeds} seeds of each loss, at a learning "
        "rate that was chosen for it on training images. Equally good is a question of how large a "
        f"difference may be: the paper's own five are {theirs} epochs apart, in points. "
        "Equivalence is taken to show where all ten differences of two losses lie within "
        f"{spread[EPOCHS[-1]]:.1f} points, as the paper's do after its longest training, with "
        "their whole 95% intervals, by logistic regression and 5-NN before the head, the layer "
        "that the paper evaluates (as all have to, nothing is to be corrected). There these "
        f"encoders err on {errors:.1f}% of the images.",
        "± in the table: half of the 95% interval over seeds and test images. The paper's numbers "
        "are of ResNet-50 on all of CIFAR-10, batches of 128: compare the differences between "
        "losses.",
    ]
    if choice:
        text.append(rates.told(choice, settings.RATES))
    verdict, short = "", ""
    if len(groups) == len(settings.LOSSES):
        verdict, short = _verdict(groups, spread[EPOCHS[-1]])
        short += (
            f" The paper's own five are {spread[EPOCHS[0]]:.1f} points apart after {EPOCHS[0]} "
            f"epochs, {spread[EPOCHS[-1]]:.1f} after {EPOCHS[-1]}."
        )
    return Result(title, columns, lines, [], text, verdict, short)


def _settings(name: str) -> str:
    """Temperature, weight and factor of a loss."""
    loss = settings.LOSSES[name]
    shown = {"tau": loss.loss_tau, "lambda": loss.loss_lam}
    factor = [f"times {loss.loss_factor:g}"] if loss.loss_factor != 1 else []
    return ", ".join([f"{k} {v:g}" for k, v in shown.items() if v is not None] + factor)


def _verdict(groups: Mapping[str, Rows], margin: float) -> tuple[str, str]:
    """Within how many points the losses are equal on each layer, and which pairs differ."""
    parts, found = [], []
    for layer in LAYERS:
        each = [_apart(groups, pair, layer) for pair in itertools.combinations(groups, 2)]
        (largest, within), by_probe = (
            (max(abs(of.value) for of in some), max(abs(end) for of in some for end in of[1:3]))
            for some in (
                [of for pair in each for of in inference.deciding(pair)],
                [pair[name] for pair in each for name in inference.PAPERS.values()],
            )
        )
        beyond = [_apart(groups, pair, layer, margin) for pair in _ordered(groups, layer)]
        equal, apart = within < margin, 1 in inference.signs(beyond)
        told = f"neither equivalence within {margin:.1f} points nor a larger difference shows"
        told = f"equivalence within {margin:.1f} points shows" if equal else told
        told = f"a difference of more than {margin:.1f} points shows" if apart else told
        where, pairs = inference.where(layer), _pairs(groups, layer)
        parts.append(
            f"{inference.capitalized(where)} no two of the five are more than {largest:.2f} points "
            "apart by logistic regression or 5-NN, and with the intervals they are equal within "
            f"{within:.2f} points: {told}. By the paper's probe they are up to {by_probe[0]:.2f} "
            f"points apart, and equal within {by_probe[1]:.2f}. Beyond chance by the first two, "
            f"{'; '.join(pairs) or 'none is ahead of another'} (Holm's correction counts the ten "
            "pairs)."
        )
        found.append(
            f"{inference.capitalized(where)}, {told} (means up to {largest:.2f} points apart)."
        )
    return " ".join(parts), " ".join(found)


def _apart(
    groups: Mapping[str, Rows], pair: tuple[str, str], layer: str, margin: float = 0.0
) -> inference.Comparison:
    """By each instrument, how far the first of a pair is ahead of the second by more than this."""
    a, b = (groups[name] for name in pair)
    return {
        name: inference.contrast(
            [right(rows, f"{layer}_{key}") for rows in (a, b)], [1, -1], level=margin / 100
        )
        for key, name in inference.ALL.items()
    }


def _ordered(groups: Mapping[str, Rows], layer: str) -> list[tuple[str, str]]:
    """The ten pairs, the one first that is better by logistic regression."""
    levels = {name: right(rows, f"{layer}_logistic").mean() for name, rows in groups.items()}
    return [*itertools.combinations(sorted(groups, key=lambda name: -levels[name]), 2)]


def _pairs(groups: Mapping[str, Rows], layer: str) -> list[str]:
    """The pairs of losses of which one is ahead by both instruments."""
    pairs = list(itertools.combinations(groups, 2))
    compared = [inference.compare(groups[a], groups[b], layer) for a, b in pairs]
    return [
        f"{a if sign > 0 else b} is ahead of {b if sign > 0 else a}"
        for (a, b), sign in zip(pairs, inference.signs(compared), strict=True)
        if sign
    ]


def _table(number: str, where: str, data: str, laptop: Scale | None = None) -> dict:
    table, title = f"chen/table{number}", f"five contrastive losses on {where}"
    paper = scale(data, functools.partial(_paper, table))
    compute = functools.partial(result, table, title[0].upper() + title[1:])
    return {table: Reproduction(title, compute, laptop, paper, by_row=("paper",))}


REPRODUCTIONS: dict[str, Reproduction] = {
    **_table(
        "D1",
        "CIFAR-10",
        "cifar10",
        scale(
            "cifar10",
            functools.partial(settings.choose, settings.GREY, 1, [*settings.LOSSES]),
            _laptop,
        ),
    ),
    **_table("D2", "ImageNet, with a head of two layers", "imagenet2012"),
    **_table("D3", "ImageNet, with a head of three layers", "imagenet2012"),
}
