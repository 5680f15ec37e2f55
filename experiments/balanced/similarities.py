"""Table 1 of the balanced paper: what takes the place of cosine similarity in NT-Xent."""

import dataclasses
import functools
import itertools

from experiments import tables
from experiments.balanced import settings
from experiments.balanced.settings import SIMCLR, Setting
from experiments.reproduction import Context, Reproduction, Result, scale
from experiments.statistics import Rows, difference, done, means, values
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
    printed = tables.printed(TABLE, "linear_top1", "similarity_measure")
    planned = []
    for (label, similarity), seed in itertools.product(SIMILARITIES.items(), seeds):
        objective = dataclasses.replace(SIMCLR, similarity=similarity)
        about = {"similarity": label, "paper_top1": printed[label]}
        name = similarity or "cosine"
        planned.append(settings.run(setting, context, name, objective, about, seed))
    return planned


def result(context: Context, rows: Rows) -> Result:
    """Accuracy with each similarity."""
    scores = ["backbone_linear"] + ["output_linear"] * context.laptop
    columns = ["similarity", "normalized", "seeds", "failed", "linear (%)"]
    columns += ["on the output (%)"] * context.laptop + ["paper (%)"]
    lines, accuracies = [], {}
    for label in dict.fromkeys(values(rows, "similarity")):
        group = [row for row in rows if row["similarity"] == label]
        ended = done(group)
        accuracies[label] = values(ended, scores[-1])
        about = [label, "yes" if label == "cosine" else "no", len(ended), len(group) - len(ended)]
        lines.append([*about, *means(ended, *scores), group[0]["paper_top1"]])
    text = [
        "The paper's claim: it is crucial that outputs are normalized before they are compared. "
        "Without that, NT-Xent (tau 0.5) with the plain inner product learns next to nothing on "
        "ImageNet (chance is 0.1%), and with minus the squared distance little."
    ]
    if context.laptop:
        text.append(
            "Ours are small encoders of digits, with ten classes: before the head a linear "
            "classifier does well on any network here, also a random one, so that the output, "
            "which the loss shapes, is evaluated too. ±: half of the 95% interval over seeds, by "
            "Student's t."
        )
    title = "Similarities, with and without normalization (Table 1)"
    return Result(
        title, columns, lines, [], text, _verdict(accuracies, scores[-1].removesuffix("_linear"))
    )


def _verdict(accuracies: dict[str, list[float]], layer: str) -> str:
    """How far the others are from cosine similarity; runs that failed are not among them."""
    parts = []
    for label in SIMILARITIES:
        gain = difference(accuracies.get("cosine", []), accuracies.get(label, []))
        if label != "cosine" and gain is not None:
            shows = "shows" if gain.low > 0 else "does not show for certain"
            parts.append(f"cosine against {label} on the {layer}: {gain}: {shows}")
    return "; ".join(parts)


REPRODUCTIONS = {
    TABLE: Reproduction(
        "similarities with and without normalization",
        result,
        laptop=scale("digits", functools.partial(plan, settings.DIGITS, range(5))),
        paper=scale("imagenet2012", functools.partial(plan, settings.IMAGENET, range(1))),
    )
}
