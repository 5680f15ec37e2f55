"""The runs behind the tables and figures of Chen, Luo & Li, at both scales."""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

from experiments import items, tables
from experiments.chen import settings
from experiments.items import Context
from experiments.measures import Measures, Rows
from experiments.sweeps import Planned
from hypersphere_jax.config import DataConfig, MocoConfig, ObjectiveConfig, PretrainConfig

SEEDS = (0, 1, 2)
# Figure B.2 at the laptop's scale: 5 of its 8 temperatures and 6 of its 12 weights.
TAUS, LAMBDAS = (0.05, 0.1, 0.2, 0.5, 1.0), (0.001, 0.005, 0.02, 0.1, 0.5, 2.0)
# Figure B.1, whose own values stand in its picture only: what the distribution term weighs more
# and more, by its weight and by the temperature.
PROJECTED = {
    "SWD (uniform hypersphere)": {
        f"lambda {lam:g}": settings.swd("hypersphere", lam) for lam in (0.05, 0.5, 5.0)
    },
    "NT-Xent": {f"tau {tau:g}": settings.nt_xent(tau) for tau in (2.0, 0.5, 0.1)},
}
# Figure C.1: the losses without alignment. Bits, temperatures and batches of the paper stand in
# its picture only.
SATURATED = {
    **{
        f"LogSumExp, tau {tau:g}": ObjectiveConfig(loss="logsumexp", loss_tau=tau)
        for tau in (0.1, 0.5)
    },
    "SWD (uniform hypersphere)": ObjectiveConfig(
        loss="prior_matching", prior="hypersphere", loss_factor=settings.FACTOR
    ),
}
SATURATED_BITS = {"paper": (1, 2, 3, 4, 6, 8, 10, 12, 14, 16), "laptop": (1, 2, 4, 6, 8, 12, 16)}
SATURATED_BATCHES = {"paper": (128, 512, 2048), "laptop": (64, 256)}
# Figure E.1.
COMPETING_BITS = {"paper": (0, 2, 4, 6, 8, 10, 12, 15), "laptop": (0, 2, 4, 6, 8, 12)}
QUEUE = {"paper": 4096, "laptop": 1024}
MOCO = ObjectiveConfig(contrastive_weight=1, contrastive_tau=0.2, align_weight=0, uniform_weight=0)


def table(name: str, context: Context, rows: Rows) -> list[Planned]:
    """The encoders of a table's rows, or of the one that was asked for."""
    chosen = tables.rows(name) if context.row is None else [tables.row_of(name, context.row)]
    return [_of_row(row, context) for row in chosen if not row.lost]


def _of_row(row: tables.Row, context: Context) -> Planned:
    config = items.located(settings.config_of(row), context)
    about = {"table": row.table, "row": row.number}
    about |= {f"paper_{name}": value for name, value in tables.expected(row).items()}
    return Planned(config, items.described(config) | about, settings.MEASURES)


def losses_of_digits(context: Context, rows: Rows) -> list[Planned]:
    """The five losses of Table D.1, three seeds each."""
    return [
        _small(context, f"chen_{_slug(name)}_seed{seed}", objective, {"name": name}, seed)
        for (name, objective), seed in itertools.product(settings.LOSSES.items(), SEEDS)
    ]


def grid_of_digits(context: Context, rows: Rows) -> list[Planned]:
    """Temperature and weight of decoupled NT-Xent."""
    printed = {
        (row.values["tau"], row.values["lambda"]): tables.expected(row)
        for row in tables.rows("chen/figureB2")
    }
    planned = []
    for tau, lam in itertools.product(TAUS, LAMBDAS):
        about = {"tau": tau, "lam": lam}
        about |= {f"paper_{name}": value for name, value in printed[tau, lam].items()}
        name = f"chen_decoupled_tau{tau:g}_lam{lam:g}"
        planned.append(_small(context, name, settings.decoupled(tau, lam), about))
    return planned


def projected(context: Context, rows: Rows) -> list[Planned]:
    """Encoders whose outputs are projected: more and more of the distribution term."""
    planned = []
    for group, members in PROJECTED.items():
        for label, objective in members.items():
            about = {"group": group, "label": label}
            name = f"chen_{_slug(group)}_{_slug(label)}"
            if context.scale == "laptop":
                planned.append(_small(context, name, objective, about))
            else:
                config = dataclasses.replace(settings.CIFAR10, name=name, objective=objective)
                planned.append(_located(config, context, about, settings.MEASURES))
    return planned


def saturation(context: Context, rows: Rows) -> list[Planned]:
    """The distribution terms alone, on images of k random bits."""
    planned = []
    laptop = context.scale == "laptop"
    base = settings.LAPTOP if laptop else settings.RESNET18
    model = dataclasses.replace(base.model, image_size=8) if laptop else base.model
    for (name, objective), batch, bits in itertools.product(
        SATURATED.items(), SATURATED_BATCHES[context.scale], SATURATED_BITS[context.scale]
    ):
        rule = dataclasses.replace(base.optimizer, batch_size=batch)
        if laptop:  # 50,000 images once
            rule = dataclasses.replace(rule, epochs=1, warmup_epochs=0.1)
        config = dataclasses.replace(
            base,
            name=f"chen_{_slug(name)}_batch{batch}_bits{bits}",
            data=DataConfig("random_bits", recipe="none", bits=bits),
            model=model,
            objective=objective,
            optimizer=rule,
        )
        about = {"name": name, "bits": bits}
        planned.append(_located(config, context, about, Measures(logged=True)))
    return planned


def competing_bits(context: Context, rows: Rows) -> list[Planned]:
    """Encoders of images with k random bits in channels of their own."""
    laptop = context.scale == "laptop"
    base = settings.LAPTOP if laptop else settings.RESNET18
    measures = settings.LAPTOP_MEASURES if laptop else settings.MEASURES
    batch = base.optimizer.batch_size
    batches = (batch // 2, batch * 2) if laptop else (batch * 2, batch * 4, batch * 8)
    curves = {
        "NT-Xent, tau 0.2": {"objective": settings.nt_xent(0.2)},
        "NT-Xent, tau 0.05": {"objective": settings.nt_xent(0.05)},
        **{f"NT-Xent, tau 0.2, batch {size}": {"batch": size} for size in batches},
        "Decoupled NT-Xent": {"objective": settings.LOSSES["Decoupled NT-Xent"]},
        "SWD (uniform hypersphere)": {"objective": settings.swd("hypersphere", 5.0)},
        "MoCo, tau 0.2": {"objective": MOCO, "queue": QUEUE[context.scale]},
    }
    planned = []
    for (label, change), bits in itertools.product(curves.items(), COMPETING_BITS[context.scale]):
        rule = dataclasses.replace(base.optimizer, batch_size=change.get("batch", batch))
        queue = change.get("queue")
        config = dataclasses.replace(
            base,
            name=f"chen_{_slug(label)}_with{bits}bits",
            data=dataclasses.replace(base.data, bits=bits),
            objective=change.get("objective", settings.nt_xent(0.2)),
            optimizer=rule,
            moco=MocoConfig(queue_size=queue, ema_decay=0.99) if queue else MocoConfig(),
        )
        planned.append(_located(config, context, {"label": label, "bits": bits}, measures))
    return planned


def _small(
    context: Context, name: str, objective: ObjectiveConfig, about: Mapping[str, Any], seed: int = 0
) -> Planned:
    config = dataclasses.replace(settings.LAPTOP, name=name, objective=objective, seed=seed)
    return _located(config, context, about, settings.LAPTOP_MEASURES)


def _located(
    config: PretrainConfig, context: Context, about: Mapping[str, Any], measures: Measures
) -> Planned:
    return Planned(items.located(config, context), items.described(config) | dict(about), measures)


def _slug(name: str) -> str:
    """A part of a run's name: `NT-Xent, tau 0.2` is `nt_xent_tau0.2`."""
    kept = "".join(c for c in name.lower() if c.isalnum() or c in " .-")
    return (
        kept.replace("-", "_")
        .replace("tau ", "tau")
        .replace("lambda ", "lam")
        .replace("batch ", "batch")
        .replace(" ", "_")
    )
