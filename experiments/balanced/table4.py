"""Table 4 of the balanced paper: balanced against long-tailed training data.

Claim: an encoder trained on a balanced set is better than one trained on a long-tailed set of the
same size (ImageNet-LT: 115,846 images, 1,280 to 5 per class).

    python run.py reproduce balanced/table4 --scale laptop --data-dir DATA

laptop: 5 draws of each subset of CIFAR-10 at 16 pixels; 10 minutes on one CPU core.
gpu:    5 draws of each subset, ResNet-18, 100 epochs; 20 minutes on one H100 (estimated).
paper:  2 encoders of ImageNet (ResNet-50, 100 epochs).
Result (laptop): inconclusive; differences are below 0.4 points. All encoders are probed with the
same balanced training images; the paper does not say which images it uses.
"""

import itertools

from experiments.balanced import settings
from experiments.lib import Rows, Run, records, stats, tables

SCALES = ("laptop", "gpu", "paper")
SETTINGS = ("classes",)
GPU = settings.GPU.replace(epochs=100)
BASES = {"laptop": settings.SUBSETS, "gpu": GPU, "paper": settings.IMAGENET}
PROBE_SIZES = {"laptop": 5000, "gpu": 5000, "paper": 115_846}
SUBSETS = {"uniform": "uniform", "long-tailed": "long_tailed"}  # names as in the table


def runs(scale: str, rows: Rows) -> list[Run]:
    """Return encoders of each subset; each seed draws another subset."""
    printed = tables.printed_column("balanced/table4", "linear_top1", "class_distribution")
    seeds = range(1) if scale == "paper" else range(5)
    planned = []
    for (label, subset), seed in itertools.product(SUBSETS.items(), seeds):
        labels = {"classes": label, "paper_top1": printed[label]}
        run = settings.make_run(BASES[scale], subset, settings.SIMCLR, seed, **labels)
        run = run.replace(subset=subset, subset_seed=seed)
        planned.append(run.evaluated(probe_size=PROBE_SIZES[scale]))
    return planned


def analyze(rows: Rows) -> Rows:
    """Compare balanced with long-tailed training data, on each layer."""
    groups = records.group_by(rows, "classes")
    text = "balanced training data are better than long-tailed data"
    return stats.judge_accuracies([stats.Claim(text, groups["uniform"], groups["long-tailed"])])
