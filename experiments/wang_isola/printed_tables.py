"""Tables whose rows are encoders: our numbers next to the paper's, shared by Tables 2 to 11."""

import numpy as np

from experiments.lib.ranks import MIN_ENCODERS, encoder_correlations
from experiments.lib.records import Rows, finished
from experiments.lib.stats import Comparison, judge


def our_column(printed: str) -> str:
    """Return our column of a printed one, e.g. `val_output_linear` or `cv_top1`."""
    split, _, score = printed.partition("_")
    score = {"top1": "backbone_linear", "top5": "backbone_linear_top5"}.get(score, score)
    return f"{score}_cv" if split == "cv" else score


def differences(rows: Rows) -> Rows:
    """Return a row per encoder and printed number: the paper's, ours, and the difference."""
    table = []
    for row in finished(rows):
        for name, paper in row.items():
            ours = our_column(name.removeprefix("paper_"))
            if name.startswith("paper_") and ours in row:
                line = {"row": row["row"], "loss": row["loss"], "score": ours}
                table.append(
                    line | {"paper": paper, "ours": row[ours], "effect": row[ours] - paper}
                )
    return table


def order_agrees(rows: Rows, compared: dict[str, dict[str, str]]) -> Rows:
    """Correlate our accuracies with the paper's over encoders.

    Args:
      rows: one seed per row of the table.
      compared: the paper's column -> our columns by instrument.
    """
    comparisons = []
    for printed, scores in compared.items():
        both = [row for row in finished(rows) if f"paper_{printed}" in row]
        if len(both) < MIN_ENCODERS:
            continue
        estimates = {
            instrument: encoder_correlations(both, score, (f"paper_{printed}",), np.ones((1, 1)))[0]
            for instrument, score in scores.items()
        }
        comparisons.append(Comparison(f"our order agrees with {printed}", estimates))
    return judge(comparisons)
