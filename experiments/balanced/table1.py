"""Table 1 of the balanced paper: similarities in NT-Xent, with and without normalization.

Claim: outputs must be normalized before they are compared. On ImageNet, NT-Xent (tau 0.5) with the
inner product learns next to nothing (0.43%), and with minus the squared distance little.

    python run.py reproduce balanced/table1 --scale laptop --data-dir DATA

laptop: 3 similarities x 5 seeds on a tenth of CIFAR-10 in gray at 16 pixels, rates chosen on
        training data; 29 minutes on one CPU core.
gpu:    3 x 3 encoders, ResNet-18, CIFAR-10, 30 epochs; 40 minutes on one H100 (estimated).
paper:  3 encoders of ImageNet (ResNet-50, 100 epochs).
Result (laptop): cosine is better (supported); that the others gain less than a tenth of cosine's
gain over the random initialization is not supported.
"""

import itertools
from collections.abc import Mapping, Sequence

from experiments.balanced import settings
from experiments.lib import Rows, Run, rates, records, stats, tables
from experiments.lib.stats import Estimate

SCALES = ("laptop", "gpu", "paper")
SETTINGS = ("similarity", "step")
COSINE = "cosine"
INITIAL = "random initialization"
# Names as in the table.
SIMILARITIES = {COSINE: None, "dot product": "dot", "negative Euclidean distance": "neg_euclidean"}
LOW_RATES = (0.001, 0.003, 0.01)  # for outputs of any norm
NOTHING = 0.1  # share of cosine's gain
BASES = {"laptop": settings.GRAY, "gpu": settings.GPU, "paper": settings.IMAGENET}
SEEDS = {"laptop": range(5), "gpu": range(3), "paper": range(1)}


def runs(scale: str, rows: Rows) -> list[Run]:
    """Return candidates of each similarity's rate, then the encoders."""
    planned = similarity_runs(scale, SEEDS[scale])
    if scale == "paper":
        return planned
    tried = (*LOW_RATES, *settings.RATES[scale])
    candidates = rates.candidates(similarity_runs(scale, range(1)), tried)
    return rates.choose_then_train(candidates, planned, rows, "similarity")


def similarity_runs(scale: str, seeds: Sequence[int]) -> list[Run]:
    """Return NT-Xent with each similarity."""
    printed = tables.printed_column("balanced/table1", "linear_top1", "similarity_measure")
    planned = []
    for (label, similarity), seed in itertools.product(SIMILARITIES.items(), seeds):
        objective = settings.SIMCLR.replace(similarity=similarity)
        labels = {"similarity": label, "paper_top1": printed[label]}
        name = f"nt_xent_{similarity}" if similarity else "nt_xent"
        run = settings.make_run(BASES[scale], name, objective, seed, **labels)
        # The random initialization is the same for all similarities.
        planned.append(run.evaluated(initial=label == COSINE))
    return planned


def analyze(rows: Rows) -> Rows:
    """Compare cosine with the others, and their gains with a tenth of cosine's gain."""
    done = records.finished(rates.final(rows))
    groups = records.group_by([row for row in done if row["step"]], "similarity")
    groups[INITIAL] = [row for row in done if not row["step"]]
    others = [label for label in SIMILARITIES if label != COSINE]
    better = [
        stats.Claim(f"cosine is better than {label}", groups[COSINE], groups[label])
        for label in others
    ]
    table: Rows = []
    for layer in stats.layers_of(done):
        little = []
        for label in others:
            gains = gain_beyond_nothing(groups, label, layer)
            claim = f"{label} gains less than a tenth of cosine's gain; gain beyond that"
            little.append(stats.Comparison(claim, gains, expected=-1, labels={"layer": layer}))
        table += stats.judge_accuracies(better, [layer]) + stats.judge(little)
    return table


def gain_beyond_nothing(groups: Mapping[str, Rows], label: str, layer: str) -> dict[str, Estimate]:
    """Return how far a gain over the random initialization exceeds a tenth of cosine's."""
    weights = {label: 1, COSINE: -NOTHING, INITIAL: NOTHING - 1}
    estimates = {}
    for instrument, score in stats.columns_of(layer).items():
        if instrument != stats.PAPER_PROBE:
            rights = [records.correct(groups[name], score) for name in weights]
            estimates[instrument] = stats.contrast(rights, [*weights.values()])
    return estimates
