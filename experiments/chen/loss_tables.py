"""Tables D.1 to D.3 of Chen, Luo & Li: five contrastive losses by linear evaluation."""

import functools
import itertools
from collections.abc import Mapping

import numpy as np

from experiments import inference, rates, tables
from experiments.chen import settings
from experiments.inference import INSTRUMENTS
from experiments.predictions import right
from experiments.reproduction import Context, Reproduction, Result, Scale, scale
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


def _choose(context: Context, rows: Rows) -> list[Planned]:
    return settings.choose([*settings.LOSSES], context, rows)


def _laptop(context: Context, rows: Rows) -> list[Planned]:
    planned = []
    for (name, objective), seed in itertools.product(settings.LOSSES.items(), SEEDS):
        slug, about = f"{settings.slug(name)}_seed{seed}", {"name": name}
        one = settings.encoder(context, settings.LAPTOP, slug, objective, about, seed=seed)
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
    columns = ["loss", "settings", "rate", "seeds", *inference.columns(LAYERS, papers=False)]
    columns += [f"paper: {', '.join(map(str, EPOCHS))} epochs"]
    lines = []
    for name, group in groups.items():
        theirs = ", ".join(f"{printed[name, epochs, BATCH]:.1f}" for epochs in EPOCHS)
        ours = inference.accuracies(group, LAYERS, papers=False)
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
        f"Here: small encoders of digits, {seeds} seeds of each loss, at a learning rate that was "
        "chosen for it on training images. Equally good is a question of how large a difference "
        f"may be: the paper's own five are {theirs} epochs apart, in points. Equivalence is taken "
        f"to show where the largest of the ten differences stays below {max(spread.values()):.1f} "
        "points with the upper end of its 95% interval, which draws seeds and test images anew, by "
        "both instruments before the head, the layer that the paper evaluates. There these "
        f"encoders err on {errors:.1f}% of the digits, so that such a margin asks little.",
        "± in the table: half of the 95% interval over seeds and test images. The paper's numbers "
        "are of ResNet-50 on CIFAR-10, batches of 128: compare the differences between losses.",
    ]
    if choice:
        text.append(rates.told(choice, settings.RATES))
    verdict, short = "", ""
    if len(groups) == len(settings.LOSSES):
        verdict, short = _verdict(groups, max(spread.values()))
    return Result(title, columns, lines, [], text, verdict, short)


def _settings(name: str) -> str:
    """Temperature, weight and factor of a loss."""
    loss = settings.LOSSES[name]
    shown = {"tau": loss.loss_tau, "lambda": loss.loss_lam}
    factor = [f"times {loss.loss_factor:g}"] if loss.loss_factor != 1 else []
    return ", ".join([f"{k} {v:g}" for k, v in shown.items() if v is not None] + factor)


def _verdict(groups: Mapping[str, Rows], margin: float) -> tuple[str, str]:
    """Whether the largest difference is below the margin on each layer, and which pairs differ."""
    parts, found = [], []
    for layer in LAYERS:
        of = {name: _largest(groups, f"{layer}_{key}") for key, name in INSTRUMENTS.items()}
        shows = [each.high < margin for each in of.values()]
        apart = [each.low > margin for each in of.values()]
        word = "shows" if all(shows) else "the opposite shows" if all(apart) else "does not show"
        largest = ", ".join(
            f"{each.value:.2f} ({each.low:.2f} to {each.high:.2f}) by {name}"
            for name, each in of.items()
        )
        where = inference.where(layer)
        pairs = _pairs(groups, layer)
        parts.append(
            f"{where[0].upper()}{where[1:]} the largest difference of the five is {largest}, in "
            f"points: equivalence within {margin:.1f} points {word}. Ahead of others there beyond "
            f"chance by both instruments (Holm over ten pairs): {'; '.join(pairs) or 'none'}."
        )
        found.append(f"{where} {word}")
    return " ".join(parts), f"equivalence within {margin:.1f} points: {', '.join(found)}"


def _largest(groups: Mapping[str, Rows], score: str) -> inference.Estimate:
    """The largest of all differences of two losses, in points, seeds and images drawn anew."""
    rights = [right(rows, score) for rows in groups.values()]
    drawn = 100 * np.ptp(inference.resampled(rights), axis=0)
    return inference.of_draws(100 * float(np.ptp([of.mean() for of in rights])), drawn)


def _pairs(groups: Mapping[str, Rows], layer: str) -> list[str]:
    """The pairs of losses of which one is ahead by both instruments."""
    pairs = list(itertools.combinations(groups, 2))
    compared = [inference.compare(groups[a], groups[b], layer, papers=False) for a, b in pairs]
    return [
        f"{a if sign > 0 else b}, of {b if sign > 0 else a}"
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
        scale("digits", functools.partial(settings.choose, [*settings.LOSSES]), _laptop),
    ),
    **_table("D2", "ImageNet, with a head of two layers", "imagenet2012"),
    **_table("D3", "ImageNet, with a head of three layers", "imagenet2012"),
}
