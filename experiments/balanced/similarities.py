"""Table 1 of the balanced paper: what takes the place of cosine similarity in NT-Xent."""

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence

from experiments import inference, rates, tables
from experiments.balanced import settings
from experiments.balanced.settings import SIMCLR, Tasks
from experiments.predictions import right
from experiments.reproduction import OF_GREY, Context, Reproduction, Result, scale
from experiments.statistics import Rows, done
from experiments.sweeps import Planned

TABLE = "balanced/table1"
COSINE, INITIAL = "cosine", "random initialization"
RATES = (0.001, 0.003, 0.01, *settings.RATES)  # low ones for outputs of any norm
NOTHING, SHARE = 0.1, "tenth"  # of cosine's gain; less is next to nothing
# As the table names them.
SIMILARITIES = {
    COSINE: None,
    "dot product": "dot",
    "negative Euclidean distance": "neg_euclidean",
}


def _runs(tasks: Tasks, context: Context) -> list[Planned]:
    """NT-Xent with each similarity."""
    printed = tables.printed(TABLE, "linear_top1", "similarity_measure")
    planned = []
    for (setting, seeds), (label, similarity) in itertools.product(tasks, SIMILARITIES.items()):
        objective = dataclasses.replace(SIMCLR, similarity=similarity)
        about = {"similarity": label, "paper_top1": printed[label]}
        name = f"nt_xent_{similarity}" if similarity else "nt_xent"
        for seed in seeds:
            planned.append(settings.run(setting, context, name, objective, about, seed))
    return planned


def choose(tasks: Tasks, context: Context, rows: Rows) -> list[Planned]:
    """Candidates of the rate of each similarity."""
    return rates.candidates(_runs(tasks, context), RATES)


def plan(tasks: Tasks, context: Context, rows: Rows) -> list[Planned]:
    """NT-Xent with each similarity, and the random initialization, which is the same for all."""
    planned = _runs(tasks, context)
    if context.laptop:
        planned = settings.at_chosen(planned, rows, "data", "similarity")
    return [
        one._replace(evaluation=one.evaluation._replace(initial=True))
        if one.about["similarity"] == COSINE
        else one
        for one in planned
    ]


def result(context: Context, rows: Rows) -> Result:
    """Accuracy with each similarity, and how much of cosine's gain the others have."""
    layers = ("backbone", "output") if context.laptop else ("backbone",)
    choice, rows = rates.chosen(rows, "data", "similarity"), rates.final(rows)
    groups = {
        label: [row for row in done(rows) if row["similarity"] == label and row["step"]]
        for label in SIMILARITIES
    }
    groups[INITIAL] = [row for row in done(rows) if not row["step"]]
    printed = tables.printed(TABLE, "linear_top1", "similarity_measure")
    columns = ["similarity", "rate", "seeds", "failed"]
    columns += [*inference.columns(layers), "paper (%)"]
    lines = []
    for label, group in groups.items():
        failed = [r for r in rows if r["status"] == "failed" and r["similarity"] == label]
        rate = next((f"{rate:g}" for (_, of), rate in choice.items() if of == label), None)
        ours = inference.accuracies(group, layers)
        lines.append([label, rate, len(group), len(failed), *ours, printed.get(label)])
    text = [
        "It is crucial that outputs are normalized before they are compared: without that, NT-Xent "
        "(tau 0.5) with the plain inner product learns next to nothing on ImageNet (0.43%, where "
        "chance is 0.1%), and with minus the squared distance little.",
        f"Here: {f'small encoders of {OF_GREY}' if context.laptop else 'as in the paper'}, "
        f"{len(groups[COSINE])} of each similarity, and their random initializations, which are "
        "the same for all similarities. Whether cosine is ahead is one question, whether the "
        "others learn next to nothing another: that is taken to show where they have less than a "
        f"{SHARE} of cosine's gain over the random initialization.",
        "±: half of the 95% interval over seeds and test images.",
    ]
    text += [rates.told(_named(choice), RATES)] if choice else []
    verdict, short = _verdict(groups, layers) if all(groups.values()) else ("", "")
    title = "Similarities, with and without normalization (Table 1)"
    return Result(title, columns, lines, [], text, verdict, short)


def _named(choice: Mapping[tuple[str, str], float]) -> dict[str, float]:
    return {label: rate for (_, label), rate in choice.items()}


def _verdict(groups: Mapping[str, Rows], layers: Sequence[str]) -> tuple[str, str]:
    """Whether cosine is ahead of the others, and whether these learn next to nothing."""
    words = {
        -1: "learns next to nothing",
        1: "learns more than next to nothing",
        0: "is not shown to learn next to nothing, nor to learn more",
    }
    others = [label for label in SIMILARITIES if label != COSINE]
    parts, found = [], []
    for layer in layers:
        gains = {
            label: inference.compare(groups[label], groups[INITIAL], layer)
            for label in SIMILARITIES
        }
        told = {label: inference.told(of) for label, of in gains.items()}
        ahead = {
            f"Cosine against the {label}": inference.compare(groups[COSINE], groups[label], layer)
            for label in others
        }
        more = inference.signs([_more_than_little(groups, label, layer) for label in others])
        parts.append(inference.sentences(ahead, layer))
        parts.append(f"Cosine's gain over the random initialization is {told[COSINE]}.")
        parts += [
            f"The {label} {words[sign]}: its gain is {told[label]}."
            for label, sign in zip(others, more, strict=True)
        ]
        shown = inference.signs([*ahead.values()])
        found.append(
            f"{inference.capitalized(inference.where(layer))}, cosine is ahead of "
            f"{shown.count(1) or 'none'} of the {len(others)} others; that they learn next to "
            f"nothing shows for {more.count(-1) or 'none'}, that they learn more for "
            f"{more.count(1) or 'none'}."
        )
    return " ".join(parts), " ".join(found)


def _more_than_little(groups: Mapping[str, Rows], label: str, layer: str) -> inference.Comparison:
    """By each instrument, how far a gain is above NOTHING times cosine's, in points."""
    weights = {label: 1, COSINE: -NOTHING, INITIAL: NOTHING - 1}
    return {
        name: inference.contrast(
            [right(groups[of], f"{layer}_{key}") for of in weights], [*weights.values()]
        )
        for key, name in inference.INSTRUMENTS.items()
    }


REPRODUCTIONS = {
    TABLE: Reproduction(
        "similarities with and without normalization",
        result,
        laptop=scale(
            "cifar10",
            functools.partial(choose, [(settings.GREY, range(1))]),
            functools.partial(plan, [(settings.GREY, range(5))]),
        ),
        paper=scale("imagenet2012", functools.partial(plan, [(settings.IMAGENET, range(1))])),
    )
}
