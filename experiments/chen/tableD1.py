"""Table D.1 of Chen, Luo & Li: five contrastive losses on CIFAR-10.

Claim: it matters little which distribution the outputs are spread over. The paper's five losses
differ by 2.7 points after 100 epochs and by 0.6 after 800, so all differences should be within 0.6.

    python run.py reproduce chen/tableD1 --scale laptop --data-dir DATA

laptop: 5 losses x 8 seeds on a tenth of CIFAR-10 in gray at 16 pixels, rates chosen on training
        data; 45 minutes on one CPU core.
gpu:    5 losses x 3 seeds, ResNet-18, CIFAR-10, 30 epochs; an hour on one H100 (estimated).
paper:  80 encoders (ResNet-50, 100 to 800 epochs, the authors' rate).
Result (laptop): not supported: NT-Xent is more than 0.6 points better than SWD (uniform
hypersphere).
"""

import itertools
from collections.abc import Sequence

from experiments.chen import settings
from experiments.lib import Rows, Run, rates, records, stats, tables
from experiments.lib.records import correct
from experiments.lib.stats import Comparison

SCALES = ("laptop", "gpu", "paper")
SETTINGS = ("name", "batch", "epochs")
TABLE = "chen/tableD1"
MARGIN = 0.6  # points: the range of the paper's five losses after 800 epochs
SEEDS = {"laptop": range(8), "gpu": range(3)}
BASES = {"laptop": settings.GRAY, "gpu": settings.GPU}


def runs(scale: str, rows: Rows) -> list[Run]:
    """Return candidates of each loss's rate, then the encoders."""
    if scale == "paper":
        return [settings.row_run(row, name=row.values["loss"]) for row in tables.table_rows(TABLE)]
    base = BASES[scale]
    planned = []
    for (name, objective), seed in itertools.product(settings.LOSSES.items(), SEEDS[scale]):
        planned.append(settings.loss_run(base, settings.slug(name), objective, seed, name=name))
    candidates = settings.rate_candidates(base, 1, [*settings.LOSSES], scale)
    return rates.choose_then_train(candidates, planned, rows, "name")


def analyze(rows: Rows) -> Rows:
    """Test equivalence within the margin and all ten differences, on each layer."""
    groups = records.group_by(rates.final(rows), "name")
    table: Rows = []
    for layer in stats.layers_of(groups["NT-Xent"]):
        columns = stats.columns_of(layer)
        means = {name: correct(of, columns["logistic"]).mean() for name, of in groups.items()}
        differences = []
        beyond = []
        for a, b in itertools.combinations(sorted(groups, key=lambda name: -means[name]), 2):
            estimates = stats.compare(groups[a], groups[b], columns)
            claim = f"{a} is better than {b}"
            differences.append(Comparison(claim, estimates, labels={"layer": layer}))
            shifted = stats.compare(groups[a], groups[b], columns, level=MARGIN)
            beyond.append(Comparison(claim, shifted))
        table.append(equivalence(differences, beyond) | {"layer": layer})
        table += stats.judge(differences)
    return table


def equivalence(differences: Sequence[Comparison], beyond: Sequence[Comparison]) -> dict:
    """Return the verdict on equivalence, with the largest difference and the widest interval end.

    It is supported if all intervals lie within the margin, and not supported if a difference is
    significantly larger than the margin (Holm's correction counts the pairs).
    """
    deciding = [each for comparison in differences for each in comparison.deciding]
    widest = max(max(abs(each.low), abs(each.high)) for each in deciding)
    verdict = stats.INCONCLUSIVE
    if widest < MARGIN:
        verdict = stats.SUPPORTED
    if any(row["verdict"] == stats.SUPPORTED for row in stats.judge(beyond)):
        verdict = stats.NOT_SUPPORTED
    claim = f"all differences are within {MARGIN} points; largest one"
    largest = max(abs(each.effect) for each in deciding)
    return {"claim": claim, "effect": largest, "widest_interval": widest, "verdict": verdict}
