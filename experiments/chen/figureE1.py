"""Figure E.1 of Chen, Luo & Li: random bits in extra channels, equal in both views.

Claim: accuracy falls quickly with the number of bits, as the loss is satisfied by them. Other
losses, batch sizes or a queue (MoCo) do not avoid it; a lower temperature or a larger weight lambda
helps a little.

    python run.py reproduce chen/figureE1 --scale laptop

laptop: 8 encoders x 4 numbers of bits x 5 seeds on digits, rates chosen on training data; 60
        minutes on one CPU core (240 of 330 evaluations have no recorded training time).
gpu:    8 encoders x 3 numbers of bits x 2 seeds, ResNet-18, CIFAR-10, 10 epochs at the authors'
        rate; about an hour on one H100 (estimated).
paper:  ResNet-18, 400 epochs. The paper's own values are in its picture only.
Result (laptop): supported for 6 of 8 encoders, whose accuracy with 8 bits falls below the
accuracy of their random initialization. SWD with lambda 50 helps.

Accuracy falls without training, too, so bits are taken to spoil an encoder where training with 8
bits leaves it below its initialization.
"""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.chen import settings
from experiments.lib import rates
from experiments.lib.evaluation import layers_of
from experiments.lib.plots import curves, point
from experiments.lib.records import Rows, finished, group_by
from experiments.lib.stats import Comparison, accuracy, columns_of, compare, judge
from experiments.lib.sweep import Run
from hypersphere_jax.configs import ObjectiveConfig

SCALES = ("laptop", "gpu", "paper")
SETTINGS = ("label", "bits", "step")
BITS = {"laptop": (0, 4, 8, 12), "gpu": (0, 8, 12), "paper": (0, 2, 4, 6, 8, 10, 12, 15)}
SEEDS = {"laptop": range(5), "gpu": range(2), "paper": range(1)}
BATCHES = {"laptop": (64, 256), "gpu": (256, 1024), "paper": (256, 512, 1024)}
QUEUES = {"laptop": 1024, "gpu": 4096, "paper": 4096}
DECOUPLED = "Decoupled NT-Xent"
SWD = "SWD (uniform hypersphere)"
BASE = "NT-Xent, tau 0.2"
FEW = 8
CHANCE = 10.0


def encoders(scale: str) -> dict[str, tuple[str, ObjectiveConfig, dict[str, Any]]]:
    """Return by label the loss whose rate is used, the objective, and other changes."""
    moco = ObjectiveConfig(
        contrastive_weight=1, contrastive_tau=0.2, align_weight=0, uniform_weight=0
    )
    planned: dict[str, tuple[str, ObjectiveConfig, dict[str, Any]]] = {
        BASE: ("NT-Xent", settings.nt_xent(0.2), {}),
        "NT-Xent, tau 0.05": ("NT-Xent", settings.nt_xent(0.05), {}),
    }
    for size in BATCHES[scale]:
        label = f"NT-Xent, tau 0.2, batch {size}"
        planned[label] = ("NT-Xent", settings.nt_xent(0.2), {"batch_size": size})
    planned[DECOUPLED] = (DECOUPLED, settings.LOSSES[DECOUPLED], {})
    planned[SWD] = (SWD, settings.LOSSES[SWD], {})
    planned["SWD, lambda 50"] = (SWD, settings.swd("hypersphere", 50.0), {})
    queue = {"queue_size": QUEUES[scale], "ema_decay": 0.99}
    planned["MoCo, tau 0.2"] = ("NT-Xent", moco, queue)
    return planned


def runs(scale: str, rows: Sequence = ()) -> list[Run]:
    """Return candidates of each loss's rate (at laptop scale), then the encoders."""
    bases = {
        "laptop": settings.LAPTOP,
        "gpu": settings.GPU.replace(epochs=10, warmup_epochs=1),
        "paper": settings.RESNET18,
    }
    candidates = []
    if scale == "laptop":
        names = ["NT-Xent", DECOUPLED, SWD]
        candidates = settings.rate_candidates(settings.LAPTOP, rates.FOLDS, names, scale)
        if not rates.is_complete(candidates, rows):
            return candidates
    planned = []
    cells = itertools.product(encoders(scale).items(), BITS[scale], SEEDS[scale])
    for (label, (rate_of, objective, changes)), bits, seed in cells:
        name = f"{settings.slug(label)}_with{bits}bits_seed{seed}"
        run = settings.loss_run(bases[scale], name, objective, scale, label=label, bits=bits)
        run = run.replace(seed=seed, subset_seed=seed, bits=bits, **changes)
        run = run.evaluated(initial=bits in (0, FEW))
        planned.append(settings.with_rate_of(run, rate_of, rows) if candidates else run)
    return [*candidates, *planned]


def analyze(rows: Rows) -> Rows:
    """Compare each encoder with its initialization at 8 bits, and with the base loss."""
    final = finished(rates.final(rows))
    trained = group_by([row for row in final if row["step"]], "label", "bits")
    initial = group_by([row for row in final if not row["step"]], "label", "bits")
    table: Rows = []
    for layer in layers_of(final, ("backbone", "output")):
        columns = columns_of(layer)
        spoiled = []
        for label in dict.fromkeys(label for label, _ in trained):
            sides = (trained[label, FEW], initial[label, FEW])
            claim = f"training with {FEW} bits is worse than the random initialization"
            estimates = compare(*sides, columns, paired=True)
            labels = {"layer": layer, "encoder": label}
            spoiled.append(Comparison(claim, estimates, expected=-1, labels=labels))
        table += judge(spoiled) + judge(remedies(trained, layer, columns))
    return table


def remedies(trained: Mapping, layer: str, columns: Mapping[str, str]) -> list[Comparison]:
    """Return comparisons of all other encoders with the base loss, with 8 bits and without."""
    comparisons = []
    others = dict.fromkeys(label for label, _ in trained if label != BASE)
    for bits, label in itertools.product((FEW, 0), others):
        estimates = compare(trained[label, bits], trained[BASE, bits], columns)
        claim = f"better than {BASE} with {bits} bits"
        labels = {"layer": layer, "encoder": label}
        comparisons.append(Comparison(claim, estimates, labels=labels))
    return comparisons


def plot(rows: Rows, path: Path) -> None:
    """Draw accuracy over bits by each instrument."""
    final = [row for row in finished(rates.final(rows)) if row["step"]]
    panels: dict[str, dict] = {}
    for layer in layers_of(final, ("backbone", "output")):
        for instrument, score in columns_of(layer).items():
            panel = panels.setdefault(f"{layer}: {instrument}", {})
            for label, group in group_by(final, "label").items():
                by_bits = group_by(group, "bits").items()
                panel[label] = [point(bits, accuracy(of, score)) for bits, of in by_bits]
    curves(panels, path, x="random bits", y="accuracy (%)", levels={"chance": CHANCE})
