"""Figure E.1 of Chen, Luo & Li: random bits in extra channels, equal in both views.

Claim: accuracy falls quickly with the number of bits, which satisfy the loss. Other losses, batch
sizes or a queue do not avoid it; a lower temperature or a larger weight lambda helps a little.

    python run.py reproduce chen/figureE1 --scale laptop

laptop: 8 encoders x 4 numbers of bits x 5 seeds on digits, rates chosen on training data; 60
        minutes on one CPU core (240 of 330 evaluations have no recorded training time).
gpu:    8 x 3 settings x 2 seeds, ResNet-18, CIFAR-10, 10 epochs; an hour on one H100 (estimated).
paper:  ResNet-18, 400 epochs. The paper's own values are in its picture only.
Result (laptop): supported for 6 of 8 encoders. SWD with lambda 50 helps.

Accuracy falls without training, too, so bits are taken to spoil an encoder where training with 8
bits leaves it below its random initialization.
"""

import itertools
from pathlib import Path
from typing import Any

from experiments.chen import settings
from experiments.lib import rates
from experiments.lib.plots import accuracy_lines, curves
from experiments.lib.records import Rows, finished, group_by
from experiments.lib.stats import Claim, judge_accuracies, layers_of
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
MOCO = ObjectiveConfig(contrastive_weight=1, contrastive_tau=0.2, align_weight=0, uniform_weight=0)
FEW = 8
CHANCE = 10.0


def encoders(scale: str) -> dict[str, tuple[str, ObjectiveConfig, dict[str, Any]]]:
    """Return by label the loss whose rate is used, the objective, and other changes."""
    base = settings.nt_xent(0.2)
    batches = {
        f"{BASE}, batch {size}": ("NT-Xent", base, {"batch_size": size}) for size in BATCHES[scale]
    }
    return {
        BASE: ("NT-Xent", base, {}),
        "NT-Xent, tau 0.05": ("NT-Xent", settings.nt_xent(0.05), {}),
        **batches,
        DECOUPLED: (DECOUPLED, settings.LOSSES[DECOUPLED], {}),
        SWD: (SWD, settings.LOSSES[SWD], {}),
        "SWD, lambda 50": (SWD, settings.swd("hypersphere", 50.0), {}),
        "MoCo, tau 0.2": ("NT-Xent", MOCO, {"queue_size": QUEUES[scale], "ema_decay": 0.99}),
    }


def runs(scale: str, rows: Rows) -> list[Run]:
    """Return candidates of each loss's rate (at laptop scale), then the encoders."""
    planned = []
    cells = itertools.product(encoders(scale).items(), BITS[scale], SEEDS[scale])
    for (label, (rate_of, objective, changes)), bits, seed in cells:
        name = f"{settings.slug(label)}_with{bits}bits"
        labels = {"label": label, "bits": bits, "name": rate_of}
        run = settings.loss_run(settings.SHORT[scale], name, objective, seed, **labels)
        run = run.replace(subset_seed=seed, bits=bits, **changes)
        planned.append(run.evaluated(initial=bits in (0, FEW)))
    if scale != "laptop":
        return planned
    names = ["NT-Xent", DECOUPLED, SWD]
    candidates = settings.rate_candidates(settings.LAPTOP, rates.FOLDS, names, scale)
    return rates.choose_then_train(candidates, planned, rows, "name")


def analyze(rows: Rows) -> Rows:
    """Compare each encoder with its initialization at 8 bits, and with the base loss."""
    final = finished(rates.final(rows))
    trained = group_by([row for row in final if row["step"]], "label", "bits")
    initial = group_by([row for row in final if not row["step"]], "label", "bits")
    names = [*dict.fromkeys(label for label, _ in trained)]
    spoiled = []
    for name in names:
        text = f"training with {FEW} bits is worse than the random initialization"
        spoiled.append(Claim(text, trained[name, FEW], initial[name, FEW], {"encoder": name}))
    better = []
    for bits, name in itertools.product((FEW, 0), names):
        if name != BASE:
            text = f"better than {BASE} with {bits} bits"
            better.append(Claim(text, trained[name, bits], trained[BASE, bits], {"encoder": name}))
    table: Rows = []
    for layer in layers_of(final):
        table += judge_accuracies(spoiled, [layer], paired=True, expected=-1)
        table += judge_accuracies(better, [layer])
    return table


def plot(rows: Rows, path: Path) -> None:
    """Draw accuracy over bits by each instrument."""
    final = [row for row in finished(rates.final(rows)) if row["step"]]
    panels: dict[str, dict] = {}
    for layer in layers_of(final):
        for label, group in group_by(final, "label").items():
            for instrument, points in accuracy_lines(group_by(group, "bits"), layer).items():
                panels.setdefault(f"{layer}: {instrument}", {})[label] = points
    labels = {"xlabel": "random bits", "ylabel": "accuracy (%)"}
    curves(panels, path, levels={"chance": CHANCE}, **labels)
