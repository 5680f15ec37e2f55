"""Table 1 of the balanced paper: what takes the place of cosine similarity in NT-Xent."""

import dataclasses
import functools
import itertools

from experiments import tables
from experiments.balanced import settings
from experiments.balanced.settings import SIMCLR, Setting
from experiments.items import Context, Item, Scale
from experiments.measures import Rows
from experiments.shown import Shown, by, with_interval
from experiments.sweeps import Planned

TABLE = "balanced/table1"
# As the table names them.
SIMILARITIES = {
    "cosine": None,
    "dot product": "dot",
    "negative Euclidean distance": "neg_euclidean",
}


def plan(setting: Setting, seeds: range, context: Context, rows: Rows) -> list[Planned]:
    """NT-Xent with each similarity."""
    printed = {
        row.values["similarity_measure"]: row.values["linear_top1"] for row in tables.rows(TABLE)
    }
    planned = []
    for (label, similarity), seed in itertools.product(SIMILARITIES.items(), seeds):
        objective = dataclasses.replace(SIMCLR, similarity=similarity)
        about = {"similarity": label, "paper_top1": printed[label]}
        name = similarity or "cosine"
        planned.append(settings.run(setting, context, name, objective, about, seed))
    return planned


def show(context: Context, rows: Rows) -> Shown:
    """Accuracy with each similarity."""
    laptop = context.scale == "laptop"
    columns = ["similarity", "normalized", "seeds", "linear (%)"]
    columns += ["on the output (%)"] if laptop else []
    columns += ["paper (%)"]
    lines, means = [], {}
    for label, group in by(rows, "similarity").items():
        accuracies = [row["backbone_linear"] for row in group]
        score = "output_linear" if laptop else "backbone_linear"
        means[label] = sum(row[score] for row in group) / len(group)
        line = [label, "yes" if label == "cosine" else "no", len(group), with_interval(accuracies)]
        line += [with_interval([row["output_linear"] for row in group])] if laptop else []
        lines.append([*line, group[0]["paper_top1"]])
    failed = [row for row in rows if row["status"] == "failed"]
    lines += [[row["similarity"], "no", 1, row["reason"]] + [None] * (1 + laptop) for row in failed]
    text = [
        "The paper's claim: it is crucial that outputs are normalized before they are compared. "
        "Without that, NT-Xent (tau 0.5) with the plain inner product learns next to nothing on "
        "ImageNet (chance is 0.1%), and with minus the squared distance little.",
        "±: half of the 95% interval over seeds, by Student's t.",
    ]
    if laptop:
        text.append(
            "Ours are small encoders of digits, with ten classes: before the head a linear "
            "classifier does well on any network here, also a random one, so that the output, "
            "which the loss shapes, is evaluated too."
        )
    title = "Similarities, with and without normalization (Table 1)"
    return Shown(
        title, columns, lines, [], text, _verdict(means, "output" if laptop else "backbone")
    )


def _verdict(means: dict[str, float], layer: str) -> str:
    if len(means) < len(SIMILARITIES):
        return ""
    numbers = ", ".join(f"{label} {value:.2f}%" for label, value in means.items())
    ahead = means["cosine"] - max(value for label, value in means.items() if label != "cosine")
    return (
        f"on the {layer}: {numbers}; cosine similarity is {ahead:+.2f} points from the better of "
        "the others"
    )


ITEMS = {
    TABLE: Item(
        "similarities with and without normalization",
        {
            "laptop": Scale(
                ("digits",), 0.07, (functools.partial(plan, settings.DIGITS, range(3)),)
            ),
            "paper": Scale(
                ("imagenet2012",), 52_000, (functools.partial(plan, settings.IMAGENET, range(1)),)
            ),
        },
        show,
    )
}
