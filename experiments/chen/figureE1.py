"""Figure E.1 of Chen, Luo & Li: random bits in extra channels, equal in both views.

Claim: accuracy falls quickly with the number of bits, which satisfy the loss. Other losses, batch
sizes or a queue do not avoid it; a lower temperature or a larger weight lambda helps a little.

    python run.py reproduce chen/figureE1 --scale laptop

laptop: 8 encoders x 4 numbers of bits x 5 seeds on digits, rates chosen on training data; 60
        minutes on one CPU core (240 of 330 evaluations have no recorded training time).
gpu:    8 x 3 settings x 2 seeds, ResNet-18, CIFAR-10, 10 epochs; an hour on one H100 (estimated).
paper:  ResNet-18, 400 epochs. The paper's own values are in its picture only.
Result (laptop): supported for 6 of 8 encoders, which 8 bits leave below their random
initialization. SWD with lambda 50 helps.
"""

import itertools
from pathlib import Path
from typing import Any

from experiments.chen import settings
from experiments.chen.settings import DECOUPLED, LOSSES, NT_XENT, SWD
from experiments.lib import Rows, Run, plots, rates, records, stats
from experiments.lib.stats import Claim
from hypersphere_jax.configs import ObjectiveConfig

SCALES = ("laptop", "gpu", "paper")
SETTINGS = ("label", "bits", "step")
BITS = {"laptop": (0, 4, 8, 12), "gpu": (0, 8, 12), "paper": (0, 2, 4, 6, 8, 10, 12, 15)}
SEEDS = {"laptop": range(5), "gpu": range(2), "paper": range(1)}
BATCHES = {"laptop": (64, 256), "gpu": (256, 1024), "paper": (256, 512, 1024)}
QUEUES = {"laptop": 1024, "gpu": 4096, "paper": 4096}
BASE = "NT-Xent, tau 0.2"
MOCO = ObjectiveConfig(contrastive_weight=1, contrastive_tau=0.2, align_weight=0, uniform_weight=0)
FEW = 8


def encoders(scale: str) -> dict[str, tuple[str, ObjectiveConfig, dict[str, Any]]]:
    """Return by label the loss whose rate is used, the objective, and other changes."""
    base = LOSSES[NT_XENT]
    batches = {
        f"{BASE}, batch {size}": (NT_XENT, base, {"batch_size": size}) for size in BATCHES[scale]
    }
    return {
        BASE: (NT_XENT, base, {}),
        "NT-Xent, tau 0.05": (NT_XENT, base.replace(loss_tau=0.05), {}),
        **batches,
        DECOUPLED: (DECOUPLED, LOSSES[DECOUPLED], {}),
        SWD: (SWD, LOSSES[SWD], {}),
        "SWD, lambda 50": (SWD, LOSSES[SWD].replace(loss_lam=50.0), {}),
        "MoCo, tau 0.2": (NT_XENT, MOCO, {"queue_size": QUEUES[scale], "ema_decay": 0.99}),
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
    names = [NT_XENT, DECOUPLED, SWD]
    candidates = settings.rate_candidates(settings.LAPTOP, rates.FOLDS, names, scale)
    return rates.choose_then_train(candidates, planned, rows, "name")


def analyze(rows: Rows) -> Rows:
    """Compare each encoder with its initialization at 8 bits, and with the base loss."""
    final = records.finished(rates.final(rows))
    trained = records.group_by([row for row in final if row["step"]], "label", "bits")
    initial = records.group_by([row for row in final if not row["step"]], "label", "bits")
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
    for layer in stats.layers_of(final):
        table += stats.judge_accuracies(spoiled, [layer], paired=True, expected=-1)
        table += stats.judge_accuracies(better, [layer])
    return table


def plot(rows: Rows, path: Path) -> None:
    """Draw accuracy over bits by each instrument."""
    trained = [row for row in records.finished(rates.final(rows)) if row["step"]]
    panels = plots.accuracy_panels(records.group_by(trained, "label"), "bits")
    labels = {"xlabel": "random bits", "ylabel": "accuracy (%)"}
    plots.curves(panels, path, levels={"chance": 10}, **labels)
